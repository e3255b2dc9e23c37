# Program: what a table layout and a set of columns present mean, as a list of steps; and the loop over an event's rows.

cdef enum Step:
    SIGNED, UNSIGNED, FLOAT, DOUBLE, DECIMAL, BIT, YEAR, ENUM, SET, DATE, DATETIME, TIMESTAMP, OLD_TIMESTAMP, TIME
    TEXT, BYTES, PADDED, TABLE, JSON, CALL_FIXED, CALL


cdef struct Column:
    Step step
    int size      # bytes, or bytes of the length for what has one
    int a         # precision, digits of the fraction, bits, or width to pad to
    int b         # scale


cdef class Program:
    """Decodes row images of one layout with the columns `present`; made from (step name, size, a, b, extra) for each.

    `extra`: ENUM and SET members as a list of UTF-8 bytes, a single-byte charset's 256 characters as a list of UTF-8
    bytes, the functions that print JSON's doubles and SQL values, or the Python function of CALL and CALL_FIXED, from the value's bytes to its stored form.
    """

    cdef Column* columns
    cdef int n
    cdef list extras
    cdef Buffer scratch
    cdef readonly int failed

    def __cinit__(self, steps):
        cdef int i
        memset(&self.scratch, 0, sizeof(Buffer))
        self.n = len(steps)
        self.failed = -1
        self.columns = <Column*>PyMem_Malloc(max(1, self.n) * sizeof(Column))
        if self.columns == NULL:
            raise MemoryError()
        self.extras = []
        for i, (name, size, a, b, extra) in enumerate(steps):
            self.columns[i] = Column(_STEPS[name], size, a, b)
            self.extras.append(extra)

    def __dealloc__(self):
        PyMem_Free(self.columns)
        free_buffer(&self.scratch)

    def forget(self):
        """Forget which column failed."""
        self.failed = -1

    cdef const uint8_t* image(self, Buffer* out, const uint8_t* p, const uint8_t* end) except NULL:
        """Write one row image as an array; return where it ends."""
        cdef const uint8_t* nulls = p
        cdef Column* column
        cdef int i
        cdef size_t size
        p += (self.n + 7) // 8
        if p > end:
            raise IndexError("the NULL bits run past the end of the event")
        put_array_head(out, self.n)
        for i in range(self.n):
            if nulls[i >> 3] >> (i & 7) & 1:
                put_byte(out, 0xC0)
                continue
            column = &self.columns[i]
            self.failed = i
            if column.step < TEXT or column.step == CALL_FIXED:
                size = column.size
            else:
                if end - p < column.size:
                    raise IndexError("a length runs past the end of the event")
                size = little(p, column.size)
                p += column.size
            if <size_t>(end - p) < size:
                raise IndexError("a value runs past the end of the event")
            self.value(out, column, i, p, size)
            p += size
        self.failed = -1
        return p

    cdef int value(self, Buffer* out, Column* column, int i, const uint8_t* p, size_t size) except -1:
        cdef Step step = column.step
        if step == SIGNED:
            return put_signed(out, signed_little(p, <int>size))
        if step == UNSIGNED:
            return put_unsigned(out, little(p, <int>size))
        if step == TEXT:
            if not is_utf8(p, size):
                PyBytes_FromStringAndSize(<char*>p, size).decode()  # raises what the reference raises
                raise ValueError("text is not UTF-8")
            return put_text(out, p, size)
        if step == DECIMAL:
            return put_decimal(out, p, column.a, column.b, <int>size)
        if step == DATETIME:
            return put_datetime(out, p, column.a)
        if step == TIMESTAMP:
            return put_timestamp(out, big(p, 4), fraction(p + 4, column.a), column.a)
        if step == BYTES:
            put_bin_head(out, size)
            return put_raw(out, p, size)
        if step == ENUM:
            return self.member(out, i, little(p, <int>size))
        if step == DATE:
            return put_date(out, p)
        if step == DOUBLE:
            return self.double(out, p)
        if step == FLOAT:
            return put_float(out, p)
        if step == TIME:
            return put_time(out, p, column.a)
        if step == YEAR:
            return put_unsigned(out, p[0] + 1900 if p[0] else 0)
        if step == BIT:
            if column.a < 64 and big(p, <int>size) >> column.a:
                raise ValueError(f"BIT({column.a}) {big(p, <int>size):#x}")
            return put_unsigned(out, big(p, <int>size))
        if step == SET:
            return self.members(out, i, little(p, <int>size))
        if step == OLD_TIMESTAMP:
            return put_timestamp(out, little(p, 4), 0, 0)
        if step == PADDED:
            return self.padded(out, p, size, column.a)
        if step == JSON:
            return self.document(out, i, p, size)
        if step == TABLE:
            return self.translated(out, i, p, size)
        return put_object(out, self.extras[i](PyBytes_FromStringAndSize(<char*>p, size)))

    cdef int double(self, Buffer* out, const uint8_t* p) except -1:
        cdef double value
        memcpy(&value, p, 8)
        return put_double(out, value)

    cdef int member(self, Buffer* out, int i, uint64_t number) except -1:
        cdef list members = <list>self.extras[i]
        if number >= <uint64_t>len(members):
            raise IndexError(f"ENUM value {number} with {len(members) - 1} members")
        cdef bytes text = <bytes>members[number]
        return put_text(out, <uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    cdef int members(self, Buffer* out, int i, uint64_t bits) except -1:
        cdef list members = <list>self.extras[i]
        cdef int k, n = len(members)
        cdef size_t size = 0
        cdef bytes text
        if n < 64 and bits >> n:
            raise ValueError(f"SET value {bits:#x} with {n} members")
        for k in range(n):
            if bits >> k & 1:
                size += PyBytes_GET_SIZE(<bytes>members[k]) + 1
        put_text_head(out, size - 1 if size else 0)
        reserve(out, size)
        for k in range(n):
            if bits >> k & 1:
                text = <bytes>members[k]
                put_raw(out, <uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
                put_byte(out, c",")
        if size:
            out.size -= 1  # the last comma
        return 0

    cdef int padded(self, Buffer* out, const uint8_t* p, size_t size, size_t width) except -1:
        put_bin_head(out, max(size, width))
        put_raw(out, p, size)
        if size < width:
            reserve(out, width - size)
            memset(out.data + out.size, 0, width - size)
            out.size += width - size
        return 0

    cdef int document(self, Buffer* out, int i, const uint8_t* p, size_t size) except -1:
        cdef Json json = Json(p, size, <int64_t>size + 16)
        if not size:  # what INSERT IGNORE of NULL leaves: JSON null
            return put_text(out, <const uint8_t*>b"null", 4)
        self.scratch.size = 0
        put_json(&json, &self.scratch, p[0], 1, 0, <tuple>self.extras[i])
        put_text(out, self.scratch.data, self.scratch.size)
        if self.scratch.room > LARGE:
            free_buffer(&self.scratch)
        return 0

    cdef int translated(self, Buffer* out, int i, const uint8_t* p, size_t size) except -1:
        """Text of a single-byte charset."""
        cdef list table = <list>self.extras[i]
        cdef size_t k, total = 0
        cdef bytes text
        for k in range(size):
            total += PyBytes_GET_SIZE(<bytes>table[p[k]])
        put_text_head(out, total)
        reserve(out, total)
        for k in range(size):
            text = <bytes>table[p[k]]
            memcpy(out.data + out.size, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
            out.size += PyBytes_GET_SIZE(text)
        return 0


cdef int decode_rows(Program before, Program after, const uint8_t* p, const uint8_t* end, Buffer* first, Buffer* second) except -1:
    """Write the images of all rows from `p` to `end`: `before` into `first`, `after` into `second`; return the rows."""
    cdef int count = 0
    cdef const uint8_t* start
    while p < end:
        start = p
        if before is not None:
            p = before.image(first, p, end)
        if after is not None:
            p = after.image(second, p, end)
        if p == start:
            raise ValueError("no column is present in the rows")
        count += 1
    return count


def rows_of(Program before, Program after, const uint8_t[::1] data, Py_ssize_t at):
    """Decode the rows in data[at:]; return (rows, arrays of the images before, arrays of the images after), as MessagePack.

    Raises ValueError, IndexError or what a Python function of a column raises; `failed` of the program says which column.
    """
    cdef Buffer first, second
    cdef int count
    memset(&first, 0, sizeof(Buffer))
    memset(&second, 0, sizeof(Buffer))
    cdef const uint8_t* base = &data[0] if data.shape[0] else NULL
    try:
        if not 0 <= at <= data.shape[0]:
            raise IndexError("the rows begin behind the end of the event")
        count = decode_rows(before, after, base + at, base + data.shape[0], &first, &second)
        return count, _array(before, count, &first), _array(after, count, &second)
    finally:
        free_buffer(&first)
        free_buffer(&second)


cdef object _array(Program program, int count, Buffer* images):
    cdef Buffer head
    if program is None:
        return None
    memset(&head, 0, sizeof(Buffer))
    try:
        put_array_head(&head, count)
        put_raw(&head, images.data, images.size)
        return PyBytes_FromStringAndSize(<char*>head.data, head.size)
    finally:
        free_buffer(&head)


_STEPS = {
    "signed": SIGNED, "unsigned": UNSIGNED, "float": FLOAT, "double": DOUBLE, "decimal": DECIMAL, "bit": BIT, "year": YEAR,
    "enum": ENUM, "set": SET, "date": DATE, "datetime": DATETIME, "timestamp": TIMESTAMP, "old_timestamp": OLD_TIMESTAMP,
    "time": TIME, "text": TEXT, "bytes": BYTES, "padded": PADDED, "table": TABLE, "json": JSON, "call_fixed": CALL_FIXED, "call": CALL,
}  # fmt: skip
