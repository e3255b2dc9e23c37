# TransactionBuffer, as `shmstore.producer.transactions.buffer` has it, on two contiguous regions: payloads, and their slot records.
#
#     payloads   [ taken | units that are ready ... | the open part ]
#     slots      [ taken | ...                      | ...           ]
#
# What is taken is lent, not copied. It stays as it is until something is written next (`settle`), and beyond that while
# a view of it exists.

cdef packed struct Slot:  # layout.SLOT
    int64_t time
    int64_t offset
    uint32_t file
    uint32_t size
    uint32_t rows
    uint32_t check
    uint16_t flags
    uint8_t entry
    uint8_t type
    uint32_t reserved


cdef struct Unit:
    size_t bytes
    size_t events
    size_t rows
    size_t ends


cdef class Region:
    """A growing buffer that can be looked at. It must not grow, nor its front be moved, while it is."""

    cdef Buffer buffer
    cdef size_t views

    def __cinit__(self):
        memset(&self.buffer, 0, sizeof(Buffer))

    def __dealloc__(self):
        free_buffer(&self.buffer)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.buffer.data, <Py_ssize_t>self.buffer.size, 0, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.views -= 1

    cdef Region without(self, size_t taken, size_t most):
        """Return the region without its front of `taken` bytes: itself, or another if a view of it exists."""
        cdef Buffer* own = &self.buffer
        cdef size_t rest = own.size - taken
        cdef Region fresh
        if self.views:
            fresh = Region.__new__(Region)
            put_raw(&fresh.buffer, own.data + taken, rest)
            return fresh
        memmove(own.data, own.data + taken, rest)
        own.size = rest
        if own.capacity > 2 * most + LARGE and rest <= most:
            shrink(own, most + LARGE)  # let go of memory that a large event took
        return self


cdef class TransactionBuffer:
    """The open transaction and the units that are ready; as `shmstore.producer.transactions.buffer.TransactionBuffer`, which explains it."""

    cdef Region payloads, slots
    cdef Buffer units
    cdef size_t taken_bytes, taken_slots, taken_units      # of the front of each region
    cdef size_t open_bytes, open_slots, open_rows          # where the open part begins, and its rows
    cdef size_t most_events, most_bytes, empty_events, dropped
    cdef double empty_seconds, passed
    cdef bint has_passed                                   # something has since, at a time yet to be noted
    cdef object held, clock, flush, dtype
    cdef dict marks
    cdef public int part
    cdef readonly size_t ready_bytes, ready_events

    def __cinit__(self, *, size_t events, size_t size, size_t empty_events=8192, double empty_seconds=5.0, clock, flush, dtype):
        self.payloads, self.slots = Region.__new__(Region), Region.__new__(Region)
        memset(&self.units, 0, sizeof(Buffer))
        self.most_events, self.most_bytes = events, size
        self.empty_events, self.empty_seconds = empty_events, empty_seconds
        self.clock, self.flush, self.dtype = clock, flush, dtype
        self.passed = clock()
        self.marks = {}
        self.held = None

    def __dealloc__(self):
        free_buffer(&self.units)

    cdef inline size_t events_open(self) noexcept:
        return (self.slots.buffer.size - self.open_slots) // sizeof(Slot)

    cdef inline Slot* last_slot(self) noexcept:
        return <Slot*>(self.slots.buffer.data + self.slots.buffer.size - sizeof(Slot))

    cdef inline bint too_large(self, size_t size) noexcept:
        """Whether `size` more bytes would make the open part too large; an event that is itself too large goes alone."""
        cdef size_t events = self.events_open()
        return events > 0 and (self.payloads.buffer.size - self.open_bytes + size > self.most_bytes or events >= self.most_events)

    cdef int put_slot(self, int64_t time, int64_t offset, uint32_t file, uint32_t size, uint32_t rows, uint8_t entry, uint8_t type_) except -1:
        cdef Slot slot
        memset(&slot, 0, sizeof(Slot))
        slot.time, slot.offset, slot.file, slot.size, slot.rows, slot.entry, slot.type = time, offset, file, size, rows, entry, type_
        self.open_rows += rows
        return put_raw(&self.slots.buffer, <uint8_t*>&slot, sizeof(Slot))

    def overflows(self, size_t size):
        """Whether an event of `size` bytes would make the open part too large."""
        return self.too_large(size)

    def add(self, list parts, tuple slot):
        """Add an event, whose payload is in parts, to the open part. `slot`: (time, offset, file, rows, entry | type << 8)."""
        cdef Buffer* out
        cdef Py_buffer view
        cdef size_t before
        time_ms, offset, file, rows, kind = slot
        self.settle()  # first: it may be another region then
        out = &self.payloads.buffer
        before = out.size
        for part in parts:
            PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
            try:
                put_raw(out, <const uint8_t*>view.buf, view.len)
            finally:
                PyBuffer_Release(&view)
        self.put_slot(time_ms, offset, file, <uint32_t>(out.size - before), rows, kind & 255, kind >> 8)

    @property
    def last(self):
        """The payload added last: a view, to be let go of before anything is written."""
        cdef size_t size = self.last_slot().size if self.events_open() else 0
        return memoryview(self.payloads)[self.payloads.buffer.size - size :]

    def replace_head(self, size_t size, bytes head):
        """Replace the first `size` bytes of the payload added last, in place."""
        cdef Buffer* out
        cdef size_t more = PyBytes_GET_SIZE(head), rest
        self.settle()  # first: it may be another region then
        out = &self.payloads.buffer
        if not self.events_open() or self.last_slot().size < size:
            raise ValueError(f"a head of {size} bytes is more than the last event has")
        if self.payloads.views:
            raise BufferError("the last payload is still looked at")
        rest = self.last_slot().size - size
        reserve(out, more)
        memmove(out.data + out.size - rest + more - size, out.data + out.size - rest, rest)
        memcpy(out.data + out.size - rest - size, PyBytes_AS_STRING(head), more)
        out.size = out.size + more - size
        self.last_slot().size = <uint32_t>(rest + more)

    def cut(self):
        """Make what is open a part of its own."""
        self.push(0)
        self.part += 1

    def end(self, int flag, *, bint empty=False):
        """The last event added ends the transaction; its slot gets `flag`. An `empty` one passes only now and then."""
        if empty:
            self.dropped += 1
            if self.dropped < self.empty_events and self.clock() - self.passed < self.empty_seconds:
                self.last_slot().flags = flag
                self.part = 0
                self.held = self.copied()
                self.drop_open()
                return
        self.end_full(flag)
        self.note_time()

    cdef int end_full(self, int flag) except -1:
        """As `end` of one that is not empty; `note_time` is to follow before another may be."""
        self.last_slot().flags = flag
        self.part = 0
        self.push(1)
        self.let_through()
        return 0

    cdef inline void let_through(self):
        self.held = None
        self.dropped = 0
        self.has_passed = True

    cdef int note_time(self) except -1:
        """Note when the last passed: once a run, not once a transaction."""
        if self.has_passed:
            self.has_passed, self.passed = False, self.clock()
        return 0

    cdef int push(self, size_t ends) except -1:
        cdef Unit unit = Unit(self.payloads.buffer.size - self.open_bytes, self.events_open(), self.open_rows, ends)
        put_raw(&self.units, <uint8_t*>&unit, sizeof(Unit))
        self.ready_bytes += unit.bytes
        self.ready_events += unit.events
        self.open_bytes, self.open_slots, self.open_rows = self.payloads.buffer.size, self.slots.buffer.size, 0
        if self.marks:
            self.marks.clear()
        return 0

    cdef object copied(self):
        """The open part as (payloads, slot records, rows)."""
        return (
            PyBytes_FromStringAndSize(<char*>self.payloads.buffer.data + self.open_bytes, self.payloads.buffer.size - self.open_bytes),
            PyBytes_FromStringAndSize(<char*>self.slots.buffer.data + self.open_slots, self.slots.buffer.size - self.open_slots),
            self.open_rows,
        )

    cdef void drop_open(self):
        self.payloads.buffer.size, self.slots.buffer.size, self.open_rows = self.open_bytes, self.open_slots, 0
        self.marks.clear()

    def tick(self):
        """Let the last empty transaction pass when it was held back for long enough; let go of what was taken."""
        self.settle()
        if self.held is None or self.ready_events or self.events_open() or self.clock() - self.passed < self.empty_seconds:
            return
        payloads, slots, rows = self.held
        put_raw(&self.payloads.buffer, <uint8_t*>PyBytes_AS_STRING(payloads), PyBytes_GET_SIZE(payloads))
        put_raw(&self.slots.buffer, <uint8_t*>PyBytes_AS_STRING(slots), PyBytes_GET_SIZE(slots))
        self.open_rows = rows
        self.push(1)
        self.let_through()
        self.note_time()

    def discard(self):
        """Forget the open transaction."""
        self.drop_open()
        self.part = 0

    def reset(self):
        """Forget everything that was not taken: the stream starts over."""
        self.payloads = self.payloads.without(self.payloads.buffer.size, self.most_bytes)
        self.slots = self.slots.without(self.slots.buffer.size, self.most_events * sizeof(Slot))
        self.units.size = 0
        self.taken_bytes = self.taken_slots = self.taken_units = 0
        self.open_bytes = self.open_slots = self.open_rows = 0
        self.ready_bytes = self.ready_events = 0
        self.marks.clear()
        self.part = 0
        self.held = None

    def mark(self, str name):
        """Remember this place as savepoint `name`."""
        self.marks.pop(name, None)
        self.marks[name] = (self.payloads.buffer.size - self.open_bytes, self.slots.buffer.size - self.open_slots, self.open_rows)

    def rollback_to(self, str name):
        """Take back what came after savepoint `name`; False where it is unknown: set before this part, or never."""
        if name not in self.marks:
            return False
        size, slots, rows = self.marks[name]
        self.payloads.buffer.size, self.slots.buffer.size, self.open_rows = self.open_bytes + size, self.open_slots + slots, rows
        while next(reversed(self.marks)) != name:
            self.marks.popitem()
        return True

    @property
    def full(self):
        """Whether more is ready than one put should take."""
        return self.ready_bytes >= self.most_bytes or self.ready_events >= self.most_events

    def take(self):
        """Return the oldest units, as many as go into one put; None when none is ready."""
        cdef size_t size = 0, events = 0, rows = 0, ends = 0
        cdef bint whole = False
        cdef Unit* unit
        while self.taken_units < self.units.size:
            unit = <Unit*>(self.units.data + self.taken_units)
            if events and (size + unit.bytes > self.most_bytes or events + unit.events > self.most_events):
                break
            size, events, rows, ends = size + unit.bytes, events + unit.events, rows + unit.rows, ends + unit.ends
            whole = unit.ends
            self.taken_units += sizeof(Unit)
        if not events:
            return None
        blob = memoryview(self.payloads)[self.taken_bytes : self.taken_bytes + size]
        slots = memoryview(self.slots)[self.taken_slots : self.taken_slots + events * sizeof(Slot)]
        self.taken_bytes += size
        self.taken_slots += events * sizeof(Slot)
        self.ready_bytes -= size
        self.ready_events -= events
        return self.flush(blob, self.dtype(slots), rows, ends, whole)

    cdef inline int settle(self) except -1:
        """Before anything is written: what was taken makes space, if nothing else is ready or a view of it exists."""
        if self.taken_slots and (self.taken_units == self.units.size or self.payloads.views or self.slots.views):
            self.make_space()
        return 0

    cdef int make_space(self) except -1:
        self.payloads = self.payloads.without(self.taken_bytes, self.most_bytes)
        self.slots = self.slots.without(self.taken_slots, self.most_events * sizeof(Slot))
        memmove(self.units.data, self.units.data + self.taken_units, self.units.size - self.taken_units)
        self.units.size -= self.taken_units
        self.open_bytes -= self.taken_bytes
        self.open_slots -= self.taken_slots
        self.taken_units = self.taken_bytes = self.taken_slots = 0
        return 0
