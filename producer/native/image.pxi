# Program: what a table layout and a set of columns present mean, as a list of steps; and the loop over an event's rows.

cdef enum Step:
    SIGNED, UNSIGNED, TEXT, BYTES, DECIMAL, DATETIME, TIMESTAMP, ENUM, DATE, DOUBLE, FLOAT, TIME, YEAR, BIT, OLD_TIMESTAMP
    SET, CALL_FIXED, PADDED, TABLE, JSON, CALL


cdef struct Column:
    Step step
    int size      # bytes, or bytes of the length for what has one
    int a         # precision, digits of the fraction, bits, width to pad to, or the place of an ENUM's first member in `starts`
    int b         # scale, or how many members


cdef class Program:
    """Decodes row images of one layout with the columns `present`; made from (step name, size, a, b, extra) for each.

    `extra`: ENUM and SET members as a list of UTF-8 bytes, a single-byte charset's 256 characters as a list of UTF-8
    bytes, the functions that print JSON's doubles and SQL values, or the Python function of CALL and CALL_FIXED, from the value's bytes to its stored form.
    """

    cdef Column* columns
    cdef int n
    cdef list extras
    cdef Buffer texts, starts  # the members of all ENUMs as MessagePack; where each begins there, and where the last one ends
    cdef size_t most           # bytes of an image besides those that are copied from the event, but for `other` columns
    cdef Buffer scratch
    cdef readonly int failed

    def __cinit__(self, steps):
        cdef int i
        memset(&self.scratch, 0, sizeof(Buffer))
        memset(&self.texts, 0, sizeof(Buffer))
        memset(&self.starts, 0, sizeof(Buffer))
        self.n = len(steps)
        self.failed = -1
        self.columns = <Column*>PyMem_Malloc(max(1, self.n) * sizeof(Column))
        if self.columns == NULL:
            raise MemoryError()
        self.extras = []
        self.most = 8
        for i, (name, size, a, b, extra) in enumerate(steps):
            if size < 1 or (name == "enum" and size > 2) or (name == "set" and size > 8) or (name == "decimal" and not 0 <= b <= a <= 65):
                raise NotImplementedError(f"{name} of {size} bytes, {a}, {b}")  # the decoder in Python says what is wrong with it
            if name == "enum":
                a, b = self.starts.size // sizeof(uint32_t), len(extra)
                self.most += self.add_members(extra)
            self.columns[i] = Column(_STEPS[name], size, a, b)
            self.most += LONGEST
            self.extras.append(extra)

    cdef size_t add_members(self, list members) except 0:
        """Return the bytes of the longest."""
        cdef uint32_t start
        for text in members:
            start = <uint32_t>self.texts.size
            put_raw(&self.starts, <uint8_t*>&start, sizeof(uint32_t))
            put_text(&self.texts, <uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
        start = <uint32_t>self.texts.size
        put_raw(&self.starts, <uint8_t*>&start, sizeof(uint32_t))
        return 9 + max([len(text) for text in members])

    def __dealloc__(self):
        PyMem_Free(self.columns)
        free_buffer(&self.texts)
        free_buffer(&self.starts)
        free_buffer(&self.scratch)

    def forget(self):
        """Forget which column failed."""
        self.failed = -1

    cdef const uint8_t* image(self, Buffer* out, const uint8_t* p, const uint8_t* end) except NULL:
        """Write one row image as an array; return where it ends.

        There is space for what all columns take at most, so that only `other` ones look for space.
        """
        cdef const uint8_t* nulls = p
        cdef const uint8_t* at
        cdef uint8_t* to
        cdef Column* column = self.columns
        cdef int i, n = self.n
        cdef Step step
        cdef size_t size
        cdef uint64_t number
        cdef double real
        p += (n + 7) // 8
        if p > end:
            raise IndexError("the NULL bits run past the end of the event")
        reserve(out, self.most + (end - p))
        to = write_array_head(out.data + out.size, n)
        for i in range(n):
            if nulls[i >> 3] >> (i & 7) & 1:
                to[0] = 0xC0
                to += 1
                column += 1
                continue
            self.failed = i
            at = p
            p += column.size
            if p > end:
                raise IndexError("a value, or its length, runs past the end of the event")
            step = column.step
            if step == SIGNED:
                to = write_signed(to, read_signed(at, end, column.size))
            elif step == UNSIGNED:
                to = write_unsigned(to, read_little(at, end, column.size))
            elif step == TEXT:
                size = read_little(at, end, column.size)
                if <size_t>(end - p) < size:
                    raise IndexError("a text runs past the end of the event")
                to = write_text_head(to, size)
                if not copy_text(to, p, size):
                    PyBytes_FromStringAndSize(<char*>p, size).decode()  # raises what the reference raises
                    raise ValueError("text is not UTF-8")
                to += size
                p += size
            elif step == BYTES:
                size = read_little(at, end, column.size)
                if <size_t>(end - p) < size:
                    raise IndexError("bytes run past the end of the event")
                to = write_raw(write_bin_head(to, size), p, size)
                p += size
            elif step == DECIMAL:
                to = write_decimal(to, at, end, column.a, column.b)
            elif step == DATETIME:
                to = write_datetime(to, at, end, column.a)
            elif step == TIMESTAMP:
                to = write_timestamp(to, read_timestamp(at, end, column.a), column.a)
            elif step == ENUM:
                number = read_little(at, end, column.size)
                if number >= <uint64_t>column.b:
                    raise IndexError(f"ENUM value {number} with {column.b - 1} members")
                to = self.write_member(to, column.a + <size_t>number)
            elif step == DATE:
                to = write_date(to, at, end)
            elif step == DOUBLE:
                memcpy(&real, at, 8)
                to = write_double(to, real)
            elif step == FLOAT:
                to = write_float(to, at)
            elif step == TIME:
                to = write_time(to, at, end, column.a)
            elif step == YEAR:
                to = write_unsigned(to, at[0] + 1900 if at[0] else 0)
            elif step == BIT:
                number = read_big(at, end, column.size)
                if column.a < 64 and number >> column.a:
                    raise ValueError(f"BIT({column.a}) {number:#x}")
                to = write_unsigned(to, number)
            elif step == OLD_TIMESTAMP:
                to = write_timestamp(to, <int64_t>read_little(at, end, 4) * SECOND, 0)
            else:
                out.size = to - out.data
                p = self.other(out, column, i, at, end)
                reserve(out, self.most + (end - p))
                to = out.data + out.size
            column += 1
        out.size = to - out.data
        self.failed = -1
        return p

    cdef inline uint8_t* write_member(self, uint8_t* to, size_t place) noexcept:
        cdef uint32_t* start = <uint32_t*>self.starts.data + place
        return write_near(to, self.texts.data + start[0], start[1] - start[0])

    cdef const uint8_t* other(self, Buffer* out, Column* column, int i, const uint8_t* at, const uint8_t* end) except NULL:
        """Write a value of a rarer kind; return where it ends."""
        cdef size_t size = column.size
        if column.step == SET:
            self.members(out, i, read_little(at, end, column.size))
            return at + size
        if column.step != CALL_FIXED:
            at += size
            size = little(at - size, column.size)
            if <size_t>(end - at) < size:
                raise IndexError("a value runs past the end of the event")
        if column.step == PADDED:
            self.padded(out, at, size, column.a)
        elif column.step == JSON:
            self.document(out, i, at, size)
        elif column.step == TABLE:
            self.translated(out, i, at, size)
        else:
            put_object(out, self.extras[i](PyBytes_FromStringAndSize(<char*>at, size)))
        return at + size

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
        put_text_head(out, self.scratch.size)
        reserve(out, self.scratch.size)
        if not copy_text(out.data + out.size, self.scratch.data, self.scratch.size):
            raise ValueError("JSON text is not UTF-8")
        out.size += self.scratch.size
        if self.scratch.capacity > LARGE:
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
    if (before is None or before.n == 0) and (after is None or after.n == 0):
        raise ValueError("no column is present in the rows")  # a row would take no bytes, so their number is unknown
    while p < end:
        if before is not None:
            p = before.image(first, p, end)
        if after is not None:
            p = after.image(second, p, end)
        count += 1
    return count


def rows_of(Program before, Program after, const uint8_t[::1] data, Py_ssize_t at):
    """Decode the rows in data[at:]; return (rows, arrays of the images before, arrays of the images after), as MessagePack.

    Raises ValueError, IndexError or what a Python function of a column raises; `failed` of the program says which column.
    """
    cdef Region first = Region.__new__(Region), second = Region.__new__(Region)
    cdef int count
    cdef const uint8_t* base = &data[0] if data.shape[0] else NULL
    if not 0 <= at <= data.shape[0]:
        raise IndexError("the rows begin behind the end of the event")
    put_raw(&first.buffer, <const uint8_t*>b"\0\0\0\0\0", HEAD)
    put_raw(&second.buffer, <const uint8_t*>b"\0\0\0\0\0", HEAD)
    count = decode_rows(before, after, base + at, base + data.shape[0], &first.buffer, &second.buffer)
    return count, _array(before, count, first), _array(after, count, second)


cdef enum:
    HEAD = 5  # bytes that an array's head takes at most


cdef object _array(Program program, int count, Region images):
    """The images as an array, whose head is written right before them; large ones as a view, which nothing copies."""
    cdef Buffer* out = &images.buffer
    cdef size_t size = 1 if count < 16 else 3 if count <= 0xFFFF else HEAD
    cdef uint8_t head[16]
    if program is None:
        return None
    write_array_head(head, count)
    memcpy(out.data + HEAD - size, head, size)
    if out.size > LARGE:
        return memoryview(images)[HEAD - size :]
    return PyBytes_FromStringAndSize(<char*>out.data + HEAD - size, out.size - HEAD + size)


_STEPS = {
    "signed": SIGNED, "unsigned": UNSIGNED, "float": FLOAT, "double": DOUBLE, "decimal": DECIMAL, "bit": BIT, "year": YEAR,
    "enum": ENUM, "set": SET, "date": DATE, "datetime": DATETIME, "timestamp": TIMESTAMP, "old_timestamp": OLD_TIMESTAMP,
    "time": TIME, "text": TEXT, "bytes": BYTES, "padded": PADDED, "table": TABLE, "json": JSON, "call_fixed": CALL_FIXED, "call": CALL,
}  # fmt: skip
