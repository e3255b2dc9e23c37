# Splitter: bytes from the socket to runs of whole events, checksums verified. Run: such events back to back in one piece of
# memory. As `producer.packets`, which draws the packets.

cdef enum:
    HEADER = 19
    TABLES = 256   # places of the table map cache, by table id
    CODE_QUERY = 2, CODE_ROTATE = 4, CODE_FORMAT = 15, CODE_XID = 16, CODE_TABLE_MAP = 19, CODE_HEARTBEAT = 27
    CODE_GTID = 33, CODE_ANONYMOUS_GTID = 34, CODE_MARIADB_GTID = 162
    FLAG_ARTIFICIAL = 0x20
    ENTRY_BEGIN = 1, ENTRY_ROWS = 2, ENTRY_END = 3
    SLOT_TRANSACTION_END = 1


cdef struct Event:
    const uint8_t* start   # of its header
    const uint8_t* stop    # of its body, without the checksum
    uint32_t length        # in the binlog, checksum included


cdef class Run:
    """Whole events back to back in one piece of memory, in order; made by `Splitter`, used up by `Stream`."""

    cdef bytes data
    cdef Buffer events

    def __cinit__(self):
        memset(&self.events, 0, sizeof(Buffer))

    def __dealloc__(self):
        free_buffer(&self.events)

    def __len__(self):
        return self.events.size // sizeof(Event)

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
    """Feed it what came from the socket; it returns the events that became whole as one `Run`. As `PacketSplitter`.

    What is not a plain packet, and whether the events have checksums, is asked of the Python splitter `slow`.
    """

    cdef int sequence
    cdef object slow
    cdef int checksum    # -1 until the first FORMAT event
    cdef list parts      # what came and is not whole yet
    cdef size_t need     # bytes wanted before the next look: a large event is joined once, not at every chunk

    def __cinit__(self, slow, int sequence=1):
        self.slow, self.sequence, self.checksum = slow, sequence, -1
        self.parts, self.need = [], 4

    def feed(self, bytes chunk):
        """Return ([] or [run]). Raises what `PacketSplitter.feed` raises."""
        cdef const uint8_t* data
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef const uint8_t* stop
        cdef size_t size
        cdef Event event
        self.parts.append(chunk)
        if <size_t>sum([len(part) for part in self.parts]) < self.need:
            return []
        whole = chunk if len(self.parts) == 1 else b"".join(self.parts)
        self.parts = []
        self.need = 4
        cdef Run run = Run.__new__(Run)
        run.data = whole
        data = at = <const uint8_t*>PyBytes_AS_STRING(whole)
        end = at + PyBytes_GET_SIZE(whole)
        while end - at >= 4:
            size = <size_t>little(at, 3)
            if <size_t>(end - at) < size + 4:
                self.need = size + 4
                break
            if at[3] != self.sequence:
                raise self.slow.out_of_order(at[3], self.sequence)
            stop = at + 4 + size
            if size == 0xFFFFFF:
                break
            if size < 1 + HEADER or at[4]:
                self.slow.check_status(PyBytes_FromStringAndSize(<char*>at + 4, size))
            event.start, event.stop, event.length = at + 5, stop, <uint32_t>(size - 1)
            self.check(&event)
            put_raw(&run.events, <uint8_t*>&event, sizeof(Event))
            self.sequence = self.sequence + 1 & 255
            at = stop
        if at < end:
            self.parts.append(PyBytes_FromStringAndSize(<char*>at, end - at))
            if end - at >= 4 and little(at, 3) == 0xFFFFFF and <size_t>(end - at) >= 0xFFFFFF + 4:
                return self.long_event(run, at, end)
        return [run] if run.events.size else []

    cdef object long_event(self, Run run, const uint8_t* at, const uint8_t* end):
        """An event over several packets: hand it to Python, whole, once all of it is there."""
        cdef size_t size, taken = 0, need = 0
        cdef const uint8_t* p = at
        pieces = []
        sequence = self.sequence
        while True:
            if end - p < 4 or <size_t>(end - p) < 4 + <size_t>little(p, 3):
                self.need = (p - at) + 4 + (<size_t>little(p, 3) if end - p >= 4 else 0)
                return [run] if run.events.size else []
            size = <size_t>little(p, 3)
            if p[3] != sequence:
                raise self.slow.out_of_order(p[3], sequence)
            sequence = sequence + 1 & 255
            pieces.append(PyBytes_FromStringAndSize(<char*>p + 4, size))
            p += 4 + size
            if size < 0xFFFFFF:
                break
        self.sequence = sequence
        self.parts = []
        self.need = 4
        event = b"".join(pieces)
        self.slow.check_status(event)
        raw = self.slow.take(event, self.checksum)
        more = self.feed(PyBytes_FromStringAndSize(<char*>p, end - p)) if p < end else []
        return ([run] if run.events.size else []) + [raw] + more

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
        return size >= HEADER + 4 and crc32(at, size - 4) == <uint32_t>little(at + size - 4, 4)
