# TransactionState, as `shmstore.producer.transactions.state` has it, which explains it: the texts in growing buffers, and the executed
# set as the number that the next transaction of its one source counts up, until a caller asks for the set.

@cython.final
cdef class TransactionState:
    """Where the stream stands, and how far its transaction has come."""

    cdef Buffer file_text, name_text, gtids_text   # `file`, `transaction` and `gtids`
    cdef readonly uint32_t file_number
    cdef public int64_t offset, order, filtered_events, filtered_rows
    cdef readonly int64_t begun, events, rows
    cdef readonly bint in_transaction, open, has_gtid
    cdef public bint unfinished
    cdef public uint32_t differing
    cdef public object tail
    cdef public dict props
    cdef public str xa, xa_end
    cdef readonly dict marks
    cdef object gtid_set                           # the executed set, but for what `last` is ahead of it
    cdef bint asked                                # whether `source`, `prefix` and `last` are those of the set
    cdef bytes source, prefix                      # of a set of one source: its text up to the last number; else None
    cdef uint64_t last, ahead                      # its last number; the first that the set does not have yet, 0: it has all

    def __cinit__(self):
        memset(&self.file_text, 0, sizeof(Buffer))
        memset(&self.name_text, 0, sizeof(Buffer))
        memset(&self.gtids_text, 0, sizeof(Buffer))
        self.props, self.marks, self.xa, self.xa_end = {}, {}, "", ""

    def __dealloc__(self):
        free_buffer(&self.file_text)
        free_buffer(&self.name_text)
        free_buffer(&self.gtids_text)

    @property
    def file(self):
        return text_of(&self.file_text).decode()

    @property
    def transaction(self):
        return text_of(&self.name_text).decode()

    @property
    def gtids(self):
        return text_of(&self.gtids_text).decode()

    @gtids.setter
    def gtids(self, str text):
        set_text(&self.gtids_text, text.encode())

    @property
    def executed(self):
        if self.ahead:
            self.gtid_set.add_run(self.source.decode(), self.ahead, self.last)
            self.ahead = 0
        return self.gtid_set

    cdef inline bint usual(self) noexcept:
        """Whether no state is open that only Python knows."""
        return self.tail is None and not self.props and not self.xa

    # ------------------------------------------------------------ the stream

    def start(self, position, executed, tail):
        self.move(position.file, position.offset)
        self.set_executed(executed.copy() if executed is not None else None)
        self.tail = tail
        self.close()

    def set_executed(self, executed):
        self.gtid_set, self.asked, self.ahead = executed, False, 0
        self.gtids = "" if executed is None else str(executed)

    def move(self, str file, int64_t offset):
        set_text(&self.file_text, file.encode())
        self.file_number, self.offset = Position(file, 0).file_number, offset

    cpdef void advance(self, uint32_t end) noexcept:
        cdef int64_t offset = self.offset & ~<int64_t>0xFFFFFFFF | end
        self.offset = offset if offset >= self.offset else offset + (<int64_t>1 << 32)

    # ------------------------------------------------------------ the transaction

    def begin(self, str gtid, int64_t length):
        set_text(&self.name_text, gtid.encode())
        self.begin_named(bool(gtid), length)

    cdef int begin_named(self, bint has_gtid, int64_t length) except -1:
        """As `begin`; the GTID, where there is one, is in `name_text`."""
        self.in_transaction, self.begun, self.has_gtid = True, self.offset - length, has_gtid
        if not has_gtid:
            self.name_text.size = 0
            put_raw(&self.name_text, self.file_text.data, self.file_text.size)
            put_byte(&self.name_text, c":")
            put_signed(&self.name_text, self.begun)
        return 0

    cpdef void opened(self) noexcept:
        self.open = True

    cpdef void count(self, int64_t rows) noexcept:
        self.events += 1
        self.rows += rows

    def mark(self, str name):
        self.marks[name] = self.events, self.rows, self.differing

    def rolled_back_to(self, str name):
        self.events, self.rows, self.differing = self.marks[name]

    def restarted(self):
        gtid, length = self.transaction if self.has_gtid else "", self.offset - self.begun
        self.close()
        self.begin(gtid, length)

    def commit(self):
        if not self.has_gtid or self.gtid_set is None:
            return self.gtids
        executed = self.executed
        self.asked = False
        executed.add(self.transaction)
        return str(executed)

    cdef bint is_next(self) except -1:
        """Whether the transaction's GTID is the next number of the executed set's one source."""
        cdef char due[20]
        cdef size_t digits, size
        if not self.asked:
            self.ask()
        if self.source is None:
            return False
        size = PyBytes_GET_SIZE(self.source)
        digits = write_digits(due, self.last + 1)
        return (
            self.name_text.size == size + 1 + digits
            and memcmp(self.name_text.data, PyBytes_AS_STRING(self.source), size) == 0
            and memcmp(self.name_text.data + size + 1, due, digits) == 0
        )

    cdef int ask(self) except -1:
        single = self.executed.single()
        self.source, self.asked = None, True
        if single is not None:
            source, prefix, self.last = single
            self.source, self.prefix = source.encode(), prefix.encode()
        return 0

    cdef int write_next(self, Buffer* out) except -1:
        """Write the text of the executed set with the next number in it, for which see `is_next`."""
        set_text(out, self.prefix)
        return put_digits(out, self.last + 1)

    cdef void count_up(self, Buffer* text) noexcept:
        """Commit the next number; `text` is what `write_next` wrote, and another buffer afterwards."""
        self.last += 1
        self.ahead = self.ahead or self.last
        self.gtids_text, text[0] = text[0], self.gtids_text

    def over(self):
        self.close()

    cdef int close(self) except -1:
        self.in_transaction = self.open = self.has_gtid = self.unfinished = False
        self.begun = self.order = self.events = self.rows = self.differing = self.name_text.size = 0
        if self.marks:
            self.marks.clear()
        if self.props:
            self.props = {}
        if self.xa:
            self.xa = self.xa_end = ""
        return 0
