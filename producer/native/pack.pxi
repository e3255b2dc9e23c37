# A growing buffer, and MessagePack written into it. Integers take the shortest form, as every encoder writes them.

cdef enum:
    LARGE = 1 << 20  # bytes that a buffer keeps while it is not needed


cdef struct Buffer:
    uint8_t* data
    size_t size
    size_t room


cdef int _grow(Buffer* out, size_t more) except -1:
    cdef size_t room = out.room * 2 if out.room else 65536
    while room < out.size + more:
        room *= 2
    cdef void* data = PyMem_Realloc(out.data, room)
    if data == NULL:
        raise MemoryError(f"no memory for an event of {room} bytes")
    out.data = <uint8_t*>data
    out.room = room
    return 0


cdef inline int reserve(Buffer* out, size_t more) except -1:
    if out.size + more > out.room:
        _grow(out, more)
    return 0


cdef int shrink(Buffer* out, size_t room) except -1:
    cdef void* data = PyMem_Realloc(out.data, room)
    if data == NULL:
        raise MemoryError(f"no memory for {room} bytes")
    out.data = <uint8_t*>data
    out.room = room
    return 0


cdef inline void free_buffer(Buffer* out):
    PyMem_Free(out.data)
    out.data = NULL
    out.size = out.room = 0


cdef inline int put_raw(Buffer* out, const uint8_t* data, size_t size) except -1:
    reserve(out, size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


cdef inline void _big_endian(uint8_t* at, uint64_t value, int width) noexcept:
    cdef int i
    for i in range(width):
        at[i] = <uint8_t>(value >> (8 * (width - 1 - i)))


cdef inline int _put_head(Buffer* out, uint8_t head, uint64_t value, int width) except -1:
    reserve(out, 9)
    out.data[out.size] = head
    _big_endian(out.data + out.size + 1, value, width)
    out.size += 1 + width
    return 0


cdef inline int put_byte(Buffer* out, uint8_t value) except -1:
    reserve(out, 1)
    out.data[out.size] = value
    out.size += 1
    return 0


cdef inline int write_digits(char* text, uint64_t value) noexcept:
    """Write a number as decimal text, up to 20 bytes; return its length."""
    cdef char turned[20]
    cdef int i, n = 0
    while True:
        turned[n] = <char>(c"0" + value % 10)
        value //= 10
        n += 1
        if not value:
            break
    for i in range(n):
        text[i] = turned[n - 1 - i]
    return n


cdef inline int put_unsigned(Buffer* out, uint64_t value) except -1:
    if value < 0x80:
        return put_byte(out, <uint8_t>value)
    if value <= 0xFF:
        return _put_head(out, 0xCC, value, 1)
    if value <= 0xFFFF:
        return _put_head(out, 0xCD, value, 2)
    if value <= 0xFFFFFFFF:
        return _put_head(out, 0xCE, value, 4)
    return _put_head(out, 0xCF, value, 8)


cdef inline int put_signed(Buffer* out, int64_t value) except -1:
    if value >= 0:
        return put_unsigned(out, <uint64_t>value)
    if value >= -32:
        return put_byte(out, <uint8_t>(value & 0xFF))
    if value >= -0x80:
        return _put_head(out, 0xD0, <uint64_t>value & 0xFF, 1)
    if value >= -0x8000:
        return _put_head(out, 0xD1, <uint64_t>value & 0xFFFF, 2)
    if value >= -<int64_t>0x80000000:
        return _put_head(out, 0xD2, <uint64_t>value & 0xFFFFFFFF, 4)
    return _put_head(out, 0xD3, <uint64_t>value, 8)


cdef inline int put_double(Buffer* out, double value) except -1:
    cdef uint64_t bits
    memcpy(&bits, &value, 8)
    return _put_head(out, 0xCB, bits, 8)


cdef inline int put_text_head(Buffer* out, size_t size) except -1:
    if size < 32:
        return put_byte(out, <uint8_t>(0xA0 | size))
    if size <= 0xFF:
        return _put_head(out, 0xD9, size, 1)
    if size <= 0xFFFF:
        return _put_head(out, 0xDA, size, 2)
    return _put_head(out, 0xDB, size, 4)


cdef inline int put_text(Buffer* out, const uint8_t* data, size_t size) except -1:
    put_text_head(out, size)
    return put_raw(out, data, size)


cdef inline int put_bin_head(Buffer* out, size_t size) except -1:
    if size <= 0xFF:
        return _put_head(out, 0xC4, size, 1)
    if size <= 0xFFFF:
        return _put_head(out, 0xC5, size, 2)
    return _put_head(out, 0xC6, size, 4)


cdef inline int put_array_head(Buffer* out, size_t size) except -1:
    if size < 16:
        return put_byte(out, <uint8_t>(0x90 | size))
    if size <= 0xFFFF:
        return _put_head(out, 0xDC, size, 2)
    return _put_head(out, 0xDD, size, 4)


cdef int put_object(Buffer* out, object value) except -1:
    """Write what a Python function gave: None, int, float, str or bytes."""
    cdef const char* text
    cdef Py_ssize_t size
    if value is None:
        return put_byte(out, 0xC0)
    if isinstance(value, str):
        text = PyUnicode_AsUTF8AndSize(value, &size)
        return put_text(out, <const uint8_t*>text, size)
    if isinstance(value, bytes):
        put_bin_head(out, PyBytes_GET_SIZE(value))
        return put_raw(out, <const uint8_t*>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    if isinstance(value, float):
        return put_double(out, value)
    if value < 0:
        return put_signed(out, value)
    return put_unsigned(out, value)
