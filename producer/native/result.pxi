# ResultRows: the answer to a prepared SELECT, from the socket's bytes to rows as MessagePack, which are kept here until they are put.
# As `shmstore.producer.binlog.result_rows`, which draws the packets; integers, text and the rest are written by the code
# that writes those of row images.

cdef enum:
    BIG = 0xFFFFFF  # bytes of a packet that the next one continues


cdef inline const uint8_t* _counted(const uint8_t* p, const uint8_t* end, size_t* size) except NULL:
    """Read a length in front of a value; return where the value begins, all of which is there."""
    cdef int width = 0
    if p >= end:
        raise IndexError("a row ends before its last value")
    if p[0] < 251:
        size[0] = p[0]
    else:
        width = 2 if p[0] == 252 else 3 if p[0] == 253 else 8
        if end - p <= width:
            raise IndexError("a row ends inside a value's length")
        size[0] = <size_t>little(p + 1, width)
    p += 1 + width
    if <size_t>(end - p) < size[0]:
        raise IndexError("a row ends inside a value")
    return p


cdef inline uint8_t* _write_day(uint8_t* to, const uint8_t* at, size_t size, int digits, bint with_clock) noexcept:
    """DATE, DATETIME and TIMESTAMP: 0, 4, 7 or 11 bytes of year, month, day, the time of the day, microseconds."""
    cdef uint32_t year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0
    cdef int64_t days, micros = 0
    cdef char text[80]
    cdef int length
    if size >= 4:
        year, month, day = at[0] | <uint32_t>at[1] << 8, at[2], at[3]
    if size >= 7:
        hour, minute, second = at[4], at[5], at[6]
    if size >= 11:
        micros = <int64_t>little(at + 7, 4)
    if month < 16 and days_since_1970(year, month, day, &days):
        if with_clock:
            days = (days * 86400 + hour * 3600 + minute * 60 + second) * SECOND + micros
        return write_signed(to, days)
    length = snprintf(text, 80, b"%04u-%02u-%02u", year, month, day)
    if with_clock:
        length += snprintf(text + length, 40, b" %02u:%02u:%02u", hour, minute, second)
        length = _fraction_text(text, length, micros % SECOND, digits)
    return _write_c_text(to, text, length)


cdef inline uint8_t* _write_duration(uint8_t* to, const uint8_t* at, size_t size) noexcept:
    """TIME: 0, 8 or 12 bytes of sign, days, hours, minutes, seconds, microseconds."""
    cdef int64_t value = 0
    if size >= 8:
        value = (<int64_t>little(at + 1, 4) * 86400 + at[5] * 3600 + at[6] * 60 + at[7]) * SECOND
    if size >= 12:
        value += <int64_t>little(at + 8, 4)
    return write_signed(to, -value if size and at[0] else value)


cdef const uint8_t* value_end(const uint8_t* p) except NULL:
    """Where a value of a row that was written here ends."""
    cdef uint8_t head = p[0]
    if head < 0x80 or head >= 0xE0 or head == 0xC0:
        return p + 1
    if 0xA0 <= head < 0xC0:
        return p + 1 + (head & 31)
    if head == 0xC4 or head == 0xD9:
        return p + 2 + p[1]
    if head == 0xC5 or head == 0xDA:
        return p + 3 + big(p + 1, 2)
    if head == 0xC6 or head == 0xDB:
        return p + 5 + big(p + 1, 4)
    if head == 0xCB:
        return p + 9
    if 0xCC <= head <= 0xD3:
        return p + 1 + (1 << (head & 3))
    raise ValueError(f"a row's value begins with {head:#x}")


cdef class ResultRows:
    """Receive into `buffer`, say how much came with `took`: rows are decoded as they become whole.

    `steps` are those of `binary_rows.row_steps`; of their values the first `shown` make a row, the others are kept of the last row only.
    """

    cdef Program program
    cdef int shown
    cdef Chunk chunk
    cdef size_t start, end       # what is in the chunk and was not decoded yet
    cdef Buffer rows, ends       # the rows, and where each ends there
    cdef Buffer extras, joined   # the last row's other values; a row over several packets

    def __cinit__(self, steps, int shown):
        self.program, self.shown = Program(steps), shown
        memset(&self.rows, 0, sizeof(Buffer))
        memset(&self.ends, 0, sizeof(Buffer))
        memset(&self.extras, 0, sizeof(Buffer))
        memset(&self.joined, 0, sizeof(Buffer))
        self.chunk = Chunk(1)

    def __dealloc__(self):
        free_buffer(&self.rows)
        free_buffer(&self.ends)
        free_buffer(&self.extras)
        free_buffer(&self.joined)

    def __len__(self):
        return self.ends.size // sizeof(size_t)

    # ------------------------------------------------------------ in

    def buffer(self, size_t size):
        """Return memory for `size` bytes, to receive into."""
        cdef size_t rest = self.end - self.start
        cdef Chunk chunk
        if self.chunk.size - self.end < size:
            if self.chunk.size < rest + size or Py_REFCNT(<PyObject*>self.chunk) > 1:
                chunk = Chunk(2 * (rest + size))
                memcpy(chunk.memory, self.chunk.memory + self.start, rest)
                self.chunk = chunk
            else:
                memmove(self.chunk.memory, self.chunk.memory + self.start, rest)
            self.start, self.end = 0, rest
        return memoryview(self.chunk)[self.end : self.end + size]

    def took(self, size_t size):
        """Decode what is whole, now that `size` more bytes are there; return the packet behind the last row, None before it came."""
        cdef const uint8_t* p
        cdef const uint8_t* stop
        cdef const uint8_t* after
        cdef size_t length
        if size > self.chunk.size - self.end:
            raise ValueError(f"{size} bytes were received where {self.chunk.size - self.end} were free")
        self.end += size
        p, stop = self.chunk.memory + self.start, self.chunk.memory + self.end
        try:
            while stop - p >= 4:
                length = <size_t>little(p, 3)
                if <size_t>(stop - p) < 4 + length:
                    break
                if length == BIG:
                    after = self.join(p, stop)
                    if after == NULL:
                        break
                    self.row(self.joined.data, self.joined.data + self.joined.size)
                    free_buffer(&self.joined)
                    p = after
                    continue
                if not length or p[4]:
                    return PyBytes_FromStringAndSize(<char*>p + 4, length)
                self.row(p + 4, p + 4 + length)
                p += 4 + length
        finally:
            self.start = p - self.chunk.memory
        return None

    cdef const uint8_t* join(self, const uint8_t* first, const uint8_t* stop) except? NULL:
        """Put a row over several packets together in `joined`; return where the last one ends, NULL while it is not there."""
        cdef const uint8_t* p = first
        cdef size_t size = BIG, total = 0
        while size == BIG:
            if stop - p < 4 or <size_t>(stop - p) < 4 + <size_t>little(p, 3):
                return NULL
            size = <size_t>little(p, 3)
            total += size
            p += 4 + size
        self.joined.size = 0
        reserve(&self.joined, total)
        while first < p:
            size = <size_t>little(first, 3)
            put_raw(&self.joined, first + 4, size)
            first += 4 + size
        return p

    cdef int row(self, const uint8_t* p, const uint8_t* end) except -1:
        cdef Program program = self.program
        cdef Column* column = program.columns
        cdef Buffer* out = &self.rows
        cdef const uint8_t* nulls = p + 1
        cdef const uint8_t* at
        cdef uint8_t* to
        cdef size_t before = self.rows.size, size
        cdef int i, n = program.n
        cdef Step step
        cdef uint64_t number
        cdef double real
        p += 1 + (n + 9) // 8
        if p > end:
            raise IndexError("the NULL bits run past the end of a row")
        reserve(out, program.most + (end - p))
        to = write_array_head(out.data + out.size, self.shown)
        for i in range(n):
            if i == self.shown:
                out.size = to - out.data
                out = &self.extras
                out.size = 0
                reserve(out, program.most + (end - p))
                to = write_array_head(out.data, n - i)
            if nulls[i + 2 >> 3] >> (i + 2 & 7) & 1:
                to[0] = 0xC0
                to += 1
                column += 1
                continue
            step = column.step
            if step == SIGNED or step == UNSIGNED or step == FLOAT or step == DOUBLE:
                at = p
                p += column.size
                if p > end:
                    raise IndexError("a row ends inside a value")
                if step == SIGNED:
                    to = write_signed(to, read_signed(at, end, column.size))
                elif step == UNSIGNED:
                    to = write_unsigned(to, read_little(at, end, column.size))
                elif step == FLOAT:
                    to = write_float(to, at)
                else:
                    memcpy(&real, at, 8)
                    to = write_double(to, real)
                column += 1
                continue
            p = _counted(p, end, &size)
            if step == TEXT:
                to = write_text_head(to, size)
                if not copy_text(to, p, size):
                    PyBytes_FromStringAndSize(<char*>p, size).decode()  # raises what the reference raises
                    raise ValueError("text is not UTF-8")
                to += size
            elif step == BYTES:
                to = write_raw(write_bin_head(to, size), p, size)
            elif step == DATE:
                to = _write_day(to, p, size, 0, False)
            elif step == DATETIME:
                to = _write_day(to, p, size, column.a, True)
            elif step == TIME:
                to = _write_duration(to, p, size)
            elif step == BIT:
                if size > 8:
                    raise ValueError(f"a BIT of {size} bytes")
                to = write_unsigned(to, big(p, <int>size))
            else:
                out.size = to - out.data
                if step == TABLE:
                    program.translated(out, i, p, size)
                else:
                    put_object(out, program.extras[i](PyBytes_FromStringAndSize(<char*>p, size)))
                reserve(out, program.most + (end - p))
                to = out.data + out.size
            p += size
            column += 1
        out.size = to - out.data
        if p != end:
            self.rows.size = before
            raise ValueError(f"a row of {end - nulls + 1} bytes ends {end - p} early")
        before = self.rows.size
        return put_raw(&self.ends, <uint8_t*>&before, sizeof(size_t))

    # ------------------------------------------------------------ out

    @property
    def last(self):
        """The last row and its extras, both as MessagePack."""
        cdef size_t* ends = <size_t*>self.ends.data
        cdef size_t n = len(self)
        cdef size_t begin = ends[n - 2] if n > 1 else 0
        return (
            PyBytes_FromStringAndSize(<char*>self.rows.data + begin, self.rows.size - begin),
            PyBytes_FromStringAndSize(<char*>self.extras.data, self.extras.size) or b"\x90",
        )

    def array(self, size_t first, size_t count):
        """Return `count` rows from `first` on, fewer at the end, as one MessagePack array."""
        cdef size_t* ends = <size_t*>self.ends.data
        cdef size_t n = len(self)
        cdef size_t stop = min(n, first + count)
        cdef uint8_t head[9]
        cdef size_t size, begin
        if first >= stop:
            return b"\x90"
        begin = ends[first - 1] if first else 0
        size = write_array_head(head, stop - first) - head
        made = PyBytes_FromStringAndSize(NULL, size + ends[stop - 1] - begin)
        memcpy(PyBytes_AS_STRING(made), head, size)
        memcpy(PyBytes_AS_STRING(made) + size, self.rows.data + begin, ends[stop - 1] - begin)
        return made

    def leave_out(self, keys, tuple indexes):
        """Take out the rows whose values at `indexes`, as MessagePack one behind the other, are in one of the sets `keys`."""
        cdef size_t* ends = <size_t*>self.ends.data
        cdef size_t n = len(self), kept = 0, begin = 0, end, size = 0, k
        cdef Buffer key
        cdef const uint8_t* p
        cdef const uint8_t** values
        cdef int j, most = max(indexes) + 1
        memset(&key, 0, sizeof(Buffer))
        values = <const uint8_t**>PyMem_Malloc((most + 1) * sizeof(uint8_t*))
        if values == NULL:
            raise MemoryError()
        try:
            for k in range(n):
                end = ends[k]
                p = self.rows.data + begin
                p += 1 if p[0] < 0xDC else 3  # the array's head: no table has 65536 columns
                for j in range(most):
                    values[j] = p
                    p = value_end(p)
                values[most] = p
                key.size = 0
                for index in indexes:
                    j = index
                    put_raw(&key, values[j], values[j + 1] - values[j])
                found = PyBytes_FromStringAndSize(<char*>key.data, key.size)
                for one in keys:
                    if found in one:
                        break
                else:
                    memmove(self.rows.data + size, self.rows.data + begin, end - begin)
                    size += end - begin
                    ends[kept] = size
                    kept += 1
                begin = end
        finally:
            PyMem_Free(values)
            free_buffer(&key)
        self.rows.size = size
        self.ends.size = kept * sizeof(size_t)

    def clear(self):
        """Forget the rows that came so far."""
        self.rows.size = self.ends.size = 0
