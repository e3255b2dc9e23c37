# MessagePack: written to a place (`write_`: they return where it ends) and to a growing buffer (`put_`). Integers take the
# shortest form, as every encoder writes them.
#
# The caller that writes to a place has made space for the value before, and for SLACK bytes behind it: what is copied in whole words may
# run over that far, and is written over by what comes next.

cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define AS_LITTLE(x) __builtin_bswap64(x)
    #define AS_BIG(x) (x)
    #else
    #define AS_LITTLE(x) (x)
    #define AS_BIG(x) __builtin_bswap64(x)
    #endif
    #define LOWEST_BIT(x) __builtin_ctzll(x)
    """
    uint64_t AS_LITTLE(uint64_t value) noexcept  # the number whose bytes, lowest first, were read as a word; and back
    uint64_t AS_BIG(uint64_t value) noexcept     # highest first
    int LOWEST_BIT(uint64_t value) noexcept      # its number; of 0 there is none

cdef enum:
    LARGE = 1 << 20  # bytes that a buffer keeps while it is not needed
    SLACK = 64


cdef struct Buffer:
    uint8_t* data
    size_t size
    size_t capacity


cdef int _grow(Buffer* out, size_t more) except -1:
    cdef size_t capacity = out.capacity * 2 if out.capacity else 65536
    while capacity < out.size + more:
        capacity *= 2
    cdef void* data = PyMem_Realloc(out.data, capacity)
    if data == NULL:
        raise MemoryError(f"no memory for an event of {capacity} bytes")
    out.data = <uint8_t*>data
    out.capacity = capacity
    return 0


cdef inline int reserve(Buffer* out, size_t more) except -1:
    """Make space for `more` bytes, and SLACK."""
    if out.size + more + SLACK > out.capacity:
        _grow(out, more + SLACK)
    return 0


cdef int shrink(Buffer* out, size_t capacity) except -1:
    cdef void* data = PyMem_Realloc(out.data, capacity)
    if data == NULL:
        raise MemoryError(f"no memory for {capacity} bytes")
    out.data = <uint8_t*>data
    out.capacity = capacity
    return 0


cdef inline void free_buffer(Buffer* out) noexcept:
    PyMem_Free(out.data)
    out.data = NULL
    out.size = out.capacity = 0


# ---------------------------------------------------------------- to a place

cdef inline uint8_t* _write_head(uint8_t* to, uint8_t head, uint64_t value, int width) noexcept:
    """A head, then the lowest `width` bytes of `value`, highest first."""
    cdef uint64_t word = AS_BIG(value << (64 - 8 * width))
    to[0] = head
    memcpy(to + 1, &word, 8)
    return to + 1 + width


cdef inline uint8_t* write_unsigned(uint8_t* to, uint64_t value) noexcept:
    cdef int step
    if value < 0x80:
        to[0] = <uint8_t>value
        return to + 1
    step = <int>(value > 0xFF) + <int>(value > 0xFFFF) + <int>(value > <uint64_t>0xFFFFFFFF)  # uncast, that is a Python integer
    return _write_head(to, <uint8_t>(0xCC + step), value, <int>1 << step)


cdef inline uint8_t* write_signed(uint8_t* to, int64_t value) noexcept:
    cdef int step
    if value >= 0:
        return write_unsigned(to, <uint64_t>value)
    if value >= -32:
        to[0] = <uint8_t>(value & 0xFF)
        return to + 1
    step = <int>(value < -0x80) + <int>(value < -0x8000) + <int>(value < -<int64_t>0x80000000)
    return _write_head(to, <uint8_t>(0xD0 + step), <uint64_t>value, <int>1 << step)


cdef inline uint8_t* write_double(uint8_t* to, double value) noexcept:
    cdef uint64_t bits
    memcpy(&bits, &value, 8)
    return _write_head(to, 0xCB, bits, 8)


cdef inline uint8_t* write_text_head(uint8_t* to, size_t size) noexcept:
    if size < 32:
        to[0] = <uint8_t>(0xA0 | size)
        return to + 1
    if size <= 0xFF:
        return _write_head(to, 0xD9, size, 1)
    if size <= 0xFFFF:
        return _write_head(to, 0xDA, size, 2)
    return _write_head(to, 0xDB, size, 4)


cdef inline uint8_t* write_bin_head(uint8_t* to, size_t size) noexcept:
    if size <= 0xFF:
        return _write_head(to, 0xC4, size, 1)
    if size <= 0xFFFF:
        return _write_head(to, 0xC5, size, 2)
    return _write_head(to, 0xC6, size, 4)


cdef inline uint8_t* write_array_head(uint8_t* to, size_t size) noexcept:
    if size < 16:
        to[0] = <uint8_t>(0x90 | size)
        return to + 1
    if size <= 0xFFFF:
        return _write_head(to, 0xDC, size, 2)
    return _write_head(to, 0xDD, size, 4)


cdef inline uint8_t* write_raw(uint8_t* to, const uint8_t* data, size_t size) noexcept:
    memcpy(to, data, size)
    return to + size


cdef inline uint8_t* write_text(uint8_t* to, const uint8_t* data, size_t size) noexcept:
    return write_raw(write_text_head(to, size), data, size)


cdef inline uint8_t* write_near(uint8_t* to, const uint8_t* data, size_t size) noexcept:
    """As `write_raw`, for what is mostly short: the 16 bytes at `data` can be read whatever the size."""
    memcpy(to, data, 16)
    if size > 16:
        memcpy(to + 16, data + 16, size - 16)
    return to + size


cdef inline uint64_t eight_digits(uint32_t value) noexcept:
    """The digits of a number below 100,000,000, the first in the lowest byte: halves of four, then pairs, then single ones."""
    cdef uint64_t word = (value // 10000) | <uint64_t>(value % 10000) << 32
    cdef uint64_t tens = (word * 10486 >> 20) & <uint64_t>0x0000007F0000007F
    word = tens | (word - tens * 100) << 16
    tens = (word * 103 >> 10) & <uint64_t>0x000F000F000F000F
    return tens | (word - tens * 10) << 8


cdef inline int write_digits(char* text, uint64_t value) noexcept:
    """Write a number as decimal text, up to 20 bytes, for which there is space whatever it is; return its length."""
    cdef uint64_t word
    cdef int before = 0, zeros = 0
    if value >= 100000000:
        before = write_digits(text, value // 100000000)
        word = eight_digits(<uint32_t>(value % 100000000))
    else:
        word = eight_digits(<uint32_t>value)
        zeros = LOWEST_BIT(word | <uint64_t>1 << 56) // 8
    word = AS_LITTLE((word | <uint64_t>0x3030303030303030) >> 8 * zeros)
    memcpy(text + before, &word, 8)
    return before + 8 - zeros


# ---------------------------------------------------------------- to a buffer

cdef inline int put_raw(Buffer* out, const uint8_t* data, size_t size) except -1:
    reserve(out, size)
    memcpy(out.data + out.size, data, size)
    out.size += size
    return 0


cdef inline int put_byte(Buffer* out, uint8_t value) except -1:
    reserve(out, 1)
    out.data[out.size] = value
    out.size += 1
    return 0


cdef inline int put_unsigned(Buffer* out, uint64_t value) except -1:
    reserve(out, 9)
    out.size = write_unsigned(out.data + out.size, value) - out.data
    return 0


cdef inline int put_text_head(Buffer* out, size_t size) except -1:
    reserve(out, 9)
    out.size = write_text_head(out.data + out.size, size) - out.data
    return 0


cdef inline int put_text(Buffer* out, const uint8_t* data, size_t size) except -1:
    put_text_head(out, size)
    return put_raw(out, data, size)


cdef inline int put_bin_head(Buffer* out, size_t size) except -1:
    reserve(out, 9)
    out.size = write_bin_head(out.data + out.size, size) - out.data
    return 0


cdef inline int put_array_head(Buffer* out, size_t size) except -1:
    reserve(out, 9)
    out.size = write_array_head(out.data + out.size, size) - out.data
    return 0


cdef inline int put_map_head(Buffer* out, size_t size) except -1:
    reserve(out, 9)
    if size < 16:
        out.data[out.size] = <uint8_t>(0x80 | size)
        out.size += 1
    else:
        out.size = _write_head(out.data + out.size, 0xDE if size <= 0xFFFF else 0xDF, size, 2 if size <= 0xFFFF else 4) - out.data
    return 0


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
    reserve(out, 9)
    if isinstance(value, float):
        out.size = write_double(out.data + out.size, value) - out.data
    elif value < 0:
        out.size = write_signed(out.data + out.size, value) - out.data
    else:
        out.size = write_unsigned(out.data + out.size, value) - out.data
    return 0
