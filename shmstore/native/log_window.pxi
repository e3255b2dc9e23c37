# The log as a reader sees it: the bytes of its format, and a run of its events that a subscription may take without a look at the files.

cdef packed struct LogRecord:
    Slot slot
    int64_t end, rows, at

cdef packed struct LogBlock:
    int64_t first, count, at, size, appended_ms
    uint32_t events_check, slots_check
    int64_t newest_ms
    uint32_t reserved, check

cdef packed struct LogHeader:
    uint8_t magic[8]
    int64_t version, epoch, first, end, rows, created_ms
    uint32_t check, reserved

if (
    [RECORD.itemsize, BLOCK.itemsize, HEADER.itemsize] != [sizeof(LogRecord), sizeof(LogBlock), sizeof(LogHeader)]
    or [RECORD.fields[field][1] for field in ("end", "rows", "at")] != [40, 48, 56]
    or [BLOCK.fields[field][1] for field in BLOCK.names] != [0, 8, 16, 24, 32, 40, 44, 48, 56, 60]
    or [HEADER.fields[field][1] for field in HEADER.names] != [0, 8, 16, 24, 32, 40, 48, 56, 60]
):
    raise ImportError("the log's format is not what this was compiled for")


cdef class LogWindow:
    """Events `first` to `last` of a set of the log, whose blocks are known to be sound. Holds the mapping.

    `events` and `records` (without the header) are the set's, from their start; `start` is its first sequence. A file that was cut
    since is not touched: then the Python says what is lost.
    """

    cdef object events  # for views of parts of it
    cdef Py_buffer views[2]
    cdef int held
    cdef const LogRecord* records
    cdef int64_t start, first, last

    def __cinit__(self, events, records, int64_t start, int64_t first, int64_t last):
        for part in (events, records):
            PyObject_GetBuffer(part, &self.views[self.held], PyBUF_SIMPLE)
            self.held += 1
        self.events, self.records = events, <const LogRecord*>self.views[1].buf
        self.start, self.first, self.last = start, first, last
        if not 0 <= start <= first <= last or last - start >= self.views[1].len // <int64_t>sizeof(LogRecord):
            raise ValueError(f"events {first} to {last} of a set that begins at {start}")

    def __dealloc__(self):
        while self.held:
            self.held -= 1
            PyBuffer_Release(&self.views[self.held])

    cdef object payloads(self, int64_t first, int64_t last):
        """A view of the payloads of events `first` to `last`, which must be in the window; None where the file has them no longer."""
        cdef int64_t start = self.records[first - self.start].at, end = self.end_of(last)
        if not 0 <= start <= end <= self.views[0].len or end > self.events.obj.size():
            return None
        return viewed(self.events, <uint8_t*>self.views[0].buf + start, end - start)

    cdef bytes ends(self, int64_t first, int64_t last):
        """Where each of them ends in that view, int64."""
        cdef int64_t n = last - first + 1, k, start = self.records[first - self.start].at
        cdef bytes found = PyBytes_FromStringAndSize(NULL, n * 8)
        cdef int64_t* ends = <int64_t*>PyBytes_AS_STRING(found)
        for k in range(n):
            ends[k] = self.end_of(first + k) - start
        return found

    cdef int64_t rows(self, int64_t first, int64_t last) noexcept:
        """How many rows they have."""
        cdef const LogRecord* record = self.records + (first - self.start)
        return self.records[last - self.start].rows - record.rows + record.slot.rows

    cdef inline int64_t end_of(self, int64_t sequence) noexcept:
        cdef const LogRecord* record = self.records + (sequence - self.start)
        return record.at + record.slot.size
