# Splitter: bytes from the socket to runs of whole events, checksums verified. Run: such events, in order, in one piece of memory.
# As `shmstore.producer.binlog.packets`, which draws the packets.
#
# The socket writes into the splitter's chunk, and a run points into it: nothing is copied but the beginning of an event that is
# not whole yet, from the chunk's end to its front. Of a large event that a filter leaves out only the beginning is kept.

cdef enum:
    HEADER = 19
    TABLES = 4096  # places of the table map cache, by table id
    CODE_QUERY = 2, CODE_ROTATE = 4, CODE_FORMAT = 15, CODE_XID = 16, CODE_TABLE_MAP = 19, CODE_HEARTBEAT = 27
    CODE_GTID = 33, CODE_ANONYMOUS_GTID = 34, CODE_PAYLOAD = 40, CODE_MARIADB_GTID = 162
    FLAG_ARTIFICIAL = 0x20
    ENTRY_BEGIN = 1, ENTRY_ROWS = 2, ENTRY_END = 3
    SLOT_TRANSACTION_END = 1
    FULL_PACKET = 0xFFFFFF
    NAMED = 5 + HEADER + 8     # bytes of the first packet that name the table of a rows event
    LARGEST = 4 << 20         # bytes of a chunk that is kept for what comes next
    KEPT = HEADER + 64        # bytes of an event that is passed over which its run has


cdef struct Event:
    const uint8_t* start   # of its header
    const uint8_t* stop    # of its body, without the checksum
    uint32_t length        # in the binlog, checksum included


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject*)


cdef class Chunk:
    """Memory to receive into."""

    cdef uint8_t* memory
    cdef size_t size

    def __cinit__(self, size_t size):
        self.memory, self.size = <uint8_t*>PyMem_Malloc(size), size
        if self.memory == NULL:
            raise MemoryError(f"no memory for {size} bytes of the stream")

    def __dealloc__(self):
        PyMem_Free(self.memory)

    cdef int grow(self, size_t size) except -1:
        """Make space for a large event as it comes. No view of it may exist. The system moves large memory without a second copy."""
        cdef void* memory = PyMem_Realloc(self.memory, size)
        if memory == NULL:
            raise MemoryError(f"no memory for {size} bytes of the stream")
        self.memory, self.size = <uint8_t*>memory, size
        return 0

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.memory, <Py_ssize_t>self.size, 0, flags)


cdef class PassedOver:
    """A large event that is left out: its beginning, and its checksum so far. The rest is looked at as it comes, and not kept."""

    cdef uint8_t[KEPT] kept
    cdef uint8_t[4] end          # the checksum that it ends with
    cdef size_t size, came       # bytes by its header; that came
    cdef size_t left             # of its packet
    cdef bint more               # another packet follows
    cdef uint32_t checksum

    cdef void take(self, const uint8_t* at, size_t count) noexcept:
        """Look at `count` more bytes of the event."""
        cdef size_t body = self.size - 4, summed = min(count, body - self.came) if self.came < body else 0, i
        if self.came < KEPT:
            memcpy(self.kept + self.came, at, min(count, KEPT - self.came))
        self.checksum = crc_of(at, summed, self.checksum)
        for i in range(summed, min(count, max(self.size, self.came) - self.came)):
            self.end[self.came + i - body] = at[i]
        self.came += count
        self.left -= count


cdef class Run:
    """Whole events in one piece of memory, in order; made by `Splitter`, used up by `FastPath`."""

    cdef Chunk chunk
    cdef Buffer events

    def __cinit__(self):
        memset(&self.events, 0, sizeof(Buffer))

    def __dealloc__(self):
        free_buffer(&self.events)

    def __len__(self):
        return self.events.size // sizeof(Event)

    cdef void use_up(self):
        """Let go of the memory, so that more can be received into it."""
        self.events.size = 0
        self.chunk = None

    def raw(self, make):
        """Return the events as `make(code, timestamp, server id, length, end, flags, body)` gives them."""
        cdef Event* event = <Event*>self.events.data
        cdef const uint8_t* head
        cdef size_t i
        made = []
        for i in range(self.events.size // sizeof(Event)):
            head = event[i].start
            made.append(make(
                head[4], little(head, 4), little(head + 5, 4), event[i].length, little(head + 13, 4), little(head + 17, 2),
                PyBytes_FromStringAndSize(<char*>head + HEADER, event[i].stop - head - HEADER),
            ))
        return made


cdef class Splitter:
    """Receive into `buffer`, say how much came with `took`; it returns the events that became whole as one `Run`.

    What is not a plain packet, and whether the events have checksums, is asked of the Python splitter `slow`. `leaves_out` says of
    an event, by its type and the first 8 bytes of its body, whether the rest is unwanted: asked of an event over several packets, once
    the run before it was handled, as that may have what tells. Such an event's run has its header and the beginning of its body.
    """

    cdef int sequence
    cdef object slow, leaves_out
    cdef bint asked         # of the large event that the chunk begins with
    cdef PassedOver passed  # the event that is left out and not at its end yet
    cdef int checksum       # -1 until the first FORMAT event
    cdef Chunk chunk
    cdef size_t start, end  # what is in the chunk and was not split yet
    cdef size_t need        # bytes of it wanted before the next look

    def __cinit__(self, slow, int sequence=1, leaves_out=None):
        self.slow, self.sequence, self.checksum, self.leaves_out = slow, sequence, -1, leaves_out
        self.chunk, self.need = Chunk(1), 4

    def feed(self, const uint8_t[::1] received):
        """Take bytes that were received elsewhere. Returns and raises as `took`."""
        buffer = self.buffer(max(1, received.shape[0]))
        buffer[: received.shape[0]] = received
        return self.took(received.shape[0])

    def buffer(self, size_t size):
        """Return memory for `size` bytes, to receive into."""
        cdef size_t rest = self.end - self.start
        cdef size_t wanted = max(rest, self.need) + size
        cdef size_t now = self.chunk.size
        cdef size_t due = max(2 * size, wanted if wanted <= now or rest < now // 2 else max(wanted, 2 * now))
        cdef Chunk chunk
        if Py_REFCNT(<PyObject*>self.chunk) > 1 or (now > 4 * size and wanted <= 2 * size):
            # A view of it still exists; or it was for a large event, and would stay large.
            chunk = Chunk(due)
            memcpy(chunk.memory, self.chunk.memory + self.start, rest)
            self.chunk = chunk
            self.start, self.end = 0, rest
        elif now - self.end < size:
            memmove(self.chunk.memory, self.chunk.memory + self.start, rest)
            self.start, self.end = 0, rest
            if wanted > now:
                self.chunk.grow(due)
        return memoryview(self.chunk)[self.end : self.end + size]

    def took(self, size_t size):
        """Return no, one or two runs: `size` more bytes are there. Raises what `PacketSplitter.feed` raises."""
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef const uint8_t* stop
        cdef size_t length
        cdef Event event
        cdef Run run
        if size > self.chunk.size - self.end:
            raise ValueError(f"{size} bytes were received where {self.chunk.size - self.end} were free")
        cdef list runs = []
        self.end += size
        if self.passed is not None and not self.pass_over(runs):
            return runs
        if self.end - self.start < self.need:
            return runs
        self.need = 4
        run = Run.__new__(Run)
        run.chunk = self.chunk
        at, end = self.chunk.memory + self.start, self.chunk.memory + self.end
        while end - at >= 4:
            length = <size_t>little(at, 3)
            if <size_t>(end - at) < length + 4:
                self.need = length + 4
                if length == FULL_PACKET and self.leaves_out is not None and not self.asked:
                    if run.events.size or runs or <size_t>(end - at) < NAMED:
                        self.need = NAMED  # what comes before it is handled first
                    elif self.is_left_out(at):
                        self.need = 4
                        self.pass_over(runs)
                        return runs
                break
            if at[3] != self.sequence:
                raise self.slow.out_of_order(at[3], self.sequence)
            event.start, event.stop = at + 5, at + 4 + length
            stop = event.stop
            if length == FULL_PACKET:
                stop = self.joined(&event, end)
                if stop == NULL:
                    break
                length = event.stop - at - 4
            if length < 1 + HEADER or at[4]:
                self.slow.check_status(PyBytes_FromStringAndSize(<char*>at + 4, length))
            event.length = <uint32_t>(length - 1)
            self.check(&event)
            put_raw(&run.events, <uint8_t*>&event, sizeof(Event))
            self.sequence = self.sequence + 1 & 255
            self.asked = False
            at = stop
        self.start = at - self.chunk.memory
        if run.events.size:
            runs.append(run)
            if self.chunk.size > LARGEST:
                self.let_go()
        return runs

    cdef int let_go(self) except -1:
        """Leave a chunk that had a large event to its run alone, so that it goes when that was decoded, before it is put."""
        cdef size_t rest = self.end - self.start
        cdef Chunk chunk = Chunk(max(1, rest))
        memcpy(chunk.memory, self.chunk.memory + self.start, rest)
        self.chunk, self.start, self.end = chunk, 0, rest
        return 0

    cdef bint is_left_out(self, const uint8_t* at) except -1:
        """Whether the event whose first packet begins at `at` is left out; it is begun to be passed over then."""
        cdef const uint8_t* event = at + 5
        cdef PassedOver passed
        self.asked = True
        if at[3] != self.sequence or at[4] or self.checksum < 0 or <size_t>little(event + 9, 4) < FULL_PACKET - 1:
            return False
        if not self.leaves_out(event[4], PyBytes_FromStringAndSize(<char*>event + HEADER, 8)):
            return False
        passed = PassedOver.__new__(PassedOver)
        passed.size, passed.left, passed.more = <size_t>little(event + 9, 4), FULL_PACKET - 1, True
        self.passed, self.start = passed, event - self.chunk.memory
        self.sequence = self.sequence + 1 & 255
        return True

    cdef bint pass_over(self, list runs) except -1:
        """Look at what came of the event that is left out. At its end True, and its run in `runs`."""
        cdef PassedOver passed = self.passed
        cdef const uint8_t* at = self.chunk.memory + self.start
        cdef const uint8_t* end = self.chunk.memory + self.end
        cdef size_t count
        while passed.left or passed.more:
            if passed.left:
                count = min(passed.left, <size_t>(end - at))
                passed.take(at, count)
                at += count
                if passed.left:
                    break
            elif end - at < 4:
                break
            elif at[3] != self.sequence:
                raise self.slow.out_of_order(at[3], self.sequence)
            else:
                passed.left = <size_t>little(at, 3)
                passed.more = passed.left == FULL_PACKET
                self.sequence = self.sequence + 1 & 255
                at += 4
        self.start = at - self.chunk.memory
        if passed.left or passed.more:
            return False
        self.passed, self.asked = None, False
        runs.append(self.run_of(passed))
        return True

    cdef Run run_of(self, PassedOver passed):
        cdef Run run = Run.__new__(Run)
        cdef Event event
        if passed.came != passed.size:
            raise self.slow.wrong_size(passed.kept[4], passed.size, passed.came)
        if self.checksum and passed.checksum != <uint32_t>little(passed.end, 4):
            raise self.slow.wrong_checksum(passed.kept[4], little(passed.kept + 13, 4))
        run.chunk = Chunk(KEPT)
        memcpy(run.chunk.memory, passed.kept, KEPT)
        event.start, event.stop, event.length = run.chunk.memory, run.chunk.memory + KEPT, <uint32_t>passed.size
        put_raw(&run.events, <uint8_t*>&event, sizeof(Event))
        return run

    cdef const uint8_t* joined(self, Event* event, const uint8_t* end) except? NULL:
        """Put an event over several packets together, in place, and return where the last ends; NULL where it has not come yet."""
        cdef const uint8_t* first = event.start - 5
        cdef const uint8_t* p = first
        cdef size_t size
        cdef int packets = 0
        while True:
            if end - p < 4 or <size_t>(end - p) < 4 + <size_t>little(p, 3):
                self.need = (p - first) + 4 + (<size_t>little(p, 3) if end - p >= 4 else 0)
                return NULL
            if p[3] != self.sequence + packets & 255:
                raise self.slow.out_of_order(p[3], self.sequence + packets & 255)
            size = <size_t>little(p, 3)
            p += 4 + size
            packets += 1
            if size < FULL_PACKET:
                break
        p = event.stop
        while True:
            size = <size_t>little(p, 3)
            memmove(<uint8_t*>event.stop, p + 4, size)
            event.stop += size
            p += 4 + size
            if size < FULL_PACKET:
                break
        self.sequence = self.sequence + packets - 1 & 255
        return p

    cdef int check(self, Event* event) except -1:
        """Verify size and checksum, and leave the checksum off."""
        cdef size_t size = event.stop - event.start
        cdef int code = event.start[4]
        if little(event.start + 9, 4) != size:
            raise self.slow.wrong_size(code, little(event.start + 9, 4), size)
        if code == CODE_FORMAT:
            self.checksum = 1 if self.slow.format_checksum(PyBytes_FromStringAndSize(<char*>event.start + HEADER, size - HEADER)) else 0
            event.stop -= 4
        elif self.checksum == 1 or (self.checksum < 0 and self.sums_up(event.start, size)):
            if not self.sums_up(event.start, size):
                raise self.slow.wrong_checksum(code, little(event.start + 13, 4))
            event.stop -= 4
        return 0

    cdef bint sums_up(self, const uint8_t* at, size_t size) noexcept:
        return size >= HEADER + 4 and crc_of(at, size - 4, 0) == <uint32_t>little(at + size - 4, 4)


def inner_run(bytes events, uint32_t length, uint32_t end):
    """Return the events of a compressed transaction, whole and back to back, as a run; each covers the `length` bytes before `end`."""
    cdef Run run = Run.__new__(Run)
    cdef Event event
    cdef uint8_t* at
    cdef uint8_t* stop
    cdef size_t size
    run.chunk = Chunk(max(1, len(events)))
    at, stop = run.chunk.memory, run.chunk.memory + len(events)
    memcpy(at, PyBytes_AS_STRING(events), len(events))
    while at < stop:
        size = <size_t>little(at + 9, 4) if stop - at >= HEADER else 0
        if size < HEADER or <size_t>(stop - at) < size:
            raise ValueError(f"an inner event of {size} bytes where {stop - at} are left")
        memcpy(at + 13, &end, 4)
        memset(at + 17, 0, 2)
        event.start, event.stop, event.length = at, at + size, length
        put_raw(&run.events, <uint8_t*>&event, sizeof(Event))
        at += size
    return run
