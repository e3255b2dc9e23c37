# One stored value -> one place in a column. A column has `values` (or int32 offsets, one more than rows), a bit for each
# row that says that it is there, and for text and bytes the bytes themselves.
#
# Text is checked many values at a time, once they were copied: they are UTF-8 if what they are together is, and none of them begins within a
# character.

cdef enum Kind:
    SKIP, INT, DATE, MOMENT, FLOAT, DOUBLE, DECIMAL, SIGNED_DECIMAL, UNSIGNED_DECIMAL, TEXT, BYTES

_KINDS = {
    "skip": SKIP,
    "int": INT,                            # a: bytes of a value
    "date": DATE,                          # days; a zero date, which is text, becomes NULL and is counted
    "moment": MOMENT,                      # microseconds; a zero date as above
    "float": FLOAT,
    "double": DOUBLE,
    "decimal": DECIMAL,                    # text; a: precision, b: scale
    "signed_decimal": SIGNED_DECIMAL,      # int; a: precision
    "unsigned_decimal": UNSIGNED_DECIMAL,
    "text": TEXT,
    "bytes": BYTES,
}

cdef enum:
    MAX_BYTES = 0x7FFFFFFF  # of a column's text: offsets are int32
    WIDEST = 64             # bytes of text that are copied without a call; `text` has as many to spare
    OWN_BUFFER = 1 << 14    # bytes of text that have a buffer of their own, which can grow, and give back what was too much
    UNCHECKED = 4096        # bytes of text that are checked together, while they are in the processor's cache

cdef extern from *:
    """
    typedef unsigned __int128 shmstore_wide;
    """
    ctypedef unsigned long long wide "shmstore_wide"  # 128 bits; Cython need not know


cdef struct Column:
    Kind kind
    int width        # bytes of one of `values`; 0: nothing is kept
    int precision
    int scale
    wide limit       # of a decimal: 10**precision
    uint8_t* valid
    uint8_t* values
    uint8_t* text
    size_t size      # of `text`, bytes used
    size_t capacity  # WIDEST more are there
    size_t most      # bytes that `text` can have in the end
    size_t checked   # of TEXT: bytes found to be UTF-8
    int64_t rows
    int64_t nulls
    int64_t zeros    # zero dates among them
    PyObject* made         # Arrays, which have its memory
    PyObject* text_buffer  # whose memory `text` is; NULL: also that of `made`


cdef int begin_column(
    Column* column, tuple step, int64_t rows, size_t most, const uint8_t* there, int64_t absent, Arrays made
) except -1:
    """Make a column of `rows` rows; each is to be filled, in order, with no more than `most` bytes of text. `step`: (kind, a, b). `there` has a bit for
    each row that is; the others, `absent`, are NULL already, and `fill_absent` is all that they want. NULL: all are there.
    """
    cdef int i
    name, a, b = step
    memset(column, 0, sizeof(Column))
    column.kind, column.rows, column.most = _KINDS[name], rows, most
    if column.kind == SKIP:
        return 0
    if column.kind == INT:
        column.width = a
    elif column.kind in (DATE, FLOAT, TEXT, BYTES):
        column.width = 4
    elif column.kind in (MOMENT, DOUBLE):
        column.width = 8
    else:
        if not 1 <= a <= 38 or not 0 <= b <= a:
            raise ValueError(f"DECIMAL({a}, {b}) has no place in 128 bits")
        column.width, column.precision, column.scale = 16, a, b
        column.limit = 1
        for i in range(a):
            column.limit = column.limit * 10
    cdef size_t bits = (rows + 7) // 8, sized = column.kind >= TEXT
    column.made = <PyObject*>made
    column.valid = made.memory(bits)
    column.values = made.memory((rows + sized) * column.width)
    if there == NULL:
        memset(column.valid, 0xFF, bits)
    else:
        memcpy(column.valid, there, bits)
        column.nulls = absent
        if not sized:
            memset(column.values, 0, rows * column.width)
    if sized:
        (<int32_t*>column.values)[0] = 0
    return 0


cdef void end_column(Column* column) noexcept:
    Py_CLEAR(column.text_buffer)


cdef int give_column(Column* column, ArrowArray* array) except -1:
    """Make `array` of a column that was filled."""
    if column.text_buffer != NULL:
        # What the first rows said may have been too much, and the column may be kept for long.
        buffer = <object>column.text_buffer
        buffer.resize(column.size, column.capacity > column.size + column.size // 4)
        column.text = <uint8_t*><uintptr_t>buffer.address
        (<Arrays>column.made).buffers.append(buffer)
    set_array(
        array, column.rows, column.nulls, column.valid if column.nulls else NULL, column.values,
        column.values if column.text == NULL else column.text,  # of no bytes, but Arrow wants a place
        3 if column.kind >= TEXT else 2,
    )
    return 0


cdef inline void fill_absent(Column* column, int64_t row, int64_t rows) noexcept nogil:
    """Rows that are not there, as in what `begin_column` got."""
    cdef int64_t k
    if column.kind >= TEXT:
        for k in range(row + 1, row + rows + 1):
            (<int32_t*>column.values)[k] = <int32_t>column.size


cdef inline void fill_null(Column* column, int64_t row) noexcept nogil:
    column.valid[row >> 3] &= ~(1 << (row & 7))
    column.nulls += 1
    if column.kind >= TEXT:
        (<int32_t*>column.values)[row + 1] = <int32_t>column.size
    elif column.width == 4:
        (<int32_t*>column.values)[row] = 0
    elif column.width == 8:
        (<int64_t*>column.values)[row] = 0
    else:
        memset(column.values + row * column.width, 0, column.width)


cdef inline bint checked_text(Column* column) noexcept nogil:
    """Check what of a TEXT column was not checked yet."""
    cdef size_t first = column.checked
    column.checked = column.size
    return column.size == first or is_utf8(column.text + first, column.size - first)


cdef inline const uint8_t* fill_cell(Column* column, int64_t row, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Put the value at `p` into its place; give where it ends, or NULL where this is no value that the column has."""
    cdef Kind kind = column.kind
    cdef int64_t number = 0
    cdef uint64_t whole = 0
    cdef double real = 0
    cdef size_t size = 0
    cdef const uint8_t* at
    if p >= end:
        return NULL
    if p[0] == 0xC0 and kind != SKIP:
        fill_null(column, row)
        return p + 1
    if kind == INT:
        p = read_signed(p, end, &number)
        if p == NULL:
            return NULL
        if column.width == 8:
            (<int64_t*>column.values)[row] = number
        elif column.width == 4:
            (<int32_t*>column.values)[row] = <int32_t>number
            if number != <int32_t>number:
                return NULL
        elif column.width == 2:
            (<int16_t*>column.values)[row] = <int16_t>number
            if number != <int16_t>number:
                return NULL
        else:
            (<int8_t*>column.values)[row] = <int8_t>number
            if number != <int8_t>number:
                return NULL
        return p
    if kind == TEXT or kind == BYTES:
        at = read_text(p, end, &size) if kind == TEXT else read_bin(p, end, &size)
        if at == NULL or not _append(column, row, at, size, end):
            return NULL
        (<int32_t*>column.values)[row + 1] = <int32_t>column.size
        if kind == TEXT:
            if size and column.text[column.size - size] & 0xC0 == 0x80:
                return NULL
            if column.size - column.checked >= UNCHECKED and not checked_text(column):
                return NULL
        return at + size
    if kind == DATE or kind == MOMENT:
        at = read_signed(p, end, &number)
        if at == NULL:
            at = read_text(p, end, &size)
            if at == NULL or not is_utf8(at, size):
                return NULL
            fill_null(column, row)
            column.zeros += 1
            return at + size
        if kind == MOMENT:
            (<int64_t*>column.values)[row] = number
        else:
            (<int32_t*>column.values)[row] = <int32_t>number
            if number != <int32_t>number:
                return NULL
        return at
    if kind == DECIMAL:
        at = read_text(p, end, &size)
        if at == NULL or not _decimal(column, row, at, size):
            return NULL
        return at + size
    if kind == DOUBLE:
        p = read_double(p, end, &real)
        (<double*>column.values)[row] = real
        return p
    if kind == FLOAT:
        p = read_double(p, end, &real)
        (<float*>column.values)[row] = <float>real
        if p != NULL and <float>real - <float>real != 0 and real - real == 0:
            return NULL  # too large for a float
        return p
    if kind == SIGNED_DECIMAL:
        p = read_signed(p, end, &number)
        whole = <uint64_t>number if number >= 0 else 0 - <uint64_t>number
        return p if p != NULL and _put_wide(column, row, whole, number < 0) else NULL
    if kind == UNSIGNED_DECIMAL:
        p = read_unsigned(p, end, &whole)
        return p if p != NULL and _put_wide(column, row, whole, False) else NULL
    return skip_cell(p, end)


cdef bint _grow_text(Column* column, int64_t row, size_t size) noexcept with gil:
    """Make space for `size` bytes of `row`, and for as many in each row to come as those before have; False where there is no memory."""
    cdef size_t wanted = column.size + size
    cdef double all_rows = 1.05 * <double>wanted / (row + 1) * column.rows
    cdef size_t capacity = max(wanted + wanted // 4, <size_t>min(all_rows, <double>column.most))
    cdef uint8_t* grown
    try:
        if column.text_buffer != NULL:
            (<object>column.text_buffer).resize(capacity + WIDEST, False)
            column.text = <uint8_t*><uintptr_t>(<object>column.text_buffer).address
        else:
            if capacity + WIDEST < OWN_BUFFER:
                grown = (<Arrays>column.made).memory(capacity + WIDEST)
            else:
                buffer = buffer_of(capacity + WIDEST, <void**>&grown, True)
                Py_INCREF(buffer)
                column.text_buffer = <PyObject*>buffer
            if column.size:
                memcpy(grown, column.text, column.size)
            column.text = grown
    except MemoryError:
        return False
    column.capacity = capacity
    return True


cdef inline bint _append(Column* column, int64_t row, const uint8_t* at, size_t size, const uint8_t* end) noexcept nogil:
    cdef uint8_t* to
    if column.size + size > MAX_BYTES:
        return False
    if (column.size + size > column.capacity or column.text == NULL) and not _grow_text(column, row, size):
        return False
    to = column.text + column.size
    if size <= 16 and end - at >= 16:
        memcpy(to, at, 16)  # a size known beforehand needs no call; what is beyond is written over
    elif size <= WIDEST and end - at >= WIDEST:
        memcpy(to, at, WIDEST)
    else:
        memcpy(to, at, size)
    column.size += size
    return True


cdef inline bint _put_wide(Column* column, int64_t row, wide value, bint negative) noexcept nogil:
    """A 128-bit integer, little-endian; False where it has more digits than the column."""
    if value >= column.limit:
        return False
    if negative:
        value = 0 - value
    memcpy(column.values + 16 * row, &value, 16)
    return True


cdef bint _decimal(Column* column, int64_t row, const uint8_t* at, size_t size) noexcept nogil:
    """Digits as MySQL prints them, at most 38: ``-12.30``. Fewer after the point than the column has are made up for by zeros."""
    cdef wide value = 0
    cdef uint64_t part = 0
    cdef size_t i = 0
    cdef int digits = 0, after = 0, pending = 0
    cdef uint8_t c
    cdef bint negative = size > 0 and at[0] == c"-", point = False
    if size > 40:
        return False
    for i in range(1 if negative else 0, size):
        c = at[i]
        if c == c"." and not point and digits:
            point = True
            continue
        if not c"0" <= c <= c"9":
            return False
        part = part * 10 + (c - c"0")
        digits += 1
        after += point
        pending += 1
        if pending == 18:
            value = value * <uint64_t>1000000000000000000 + part
            part = 0
            pending = 0
    if not digits or digits > 38 or after > column.scale or (point and not after):
        return False
    if value:
        while pending:
            value = value * 10
            pending -= 1
    value = value + part
    for i in range(column.scale - after):
        digits += 1
        if digits > 38:
            return False
        value = value * 10
    return _put_wide(column, row, value, negative)
