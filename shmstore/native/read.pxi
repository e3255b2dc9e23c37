# MessagePack, read. Each function gives where the value ends, or NULL: not that kind of value, or it runs past the end. Each reads a byte once: what its
# head said must not change between what is checked and what is read.

cdef inline uint64_t big(const uint8_t* at, int size) noexcept nogil:
    """A big-endian integer of 1, 2, 4 or 8 bytes. Written out, it is one load and one swap."""
    if size == 1:
        return at[0]
    if size == 2:
        return <uint64_t>at[0] << 8 | at[1]
    if size == 4:
        return <uint64_t>at[0] << 24 | <uint64_t>at[1] << 16 | <uint64_t>at[2] << 8 | at[3]
    return (
        <uint64_t>at[0] << 56 | <uint64_t>at[1] << 48 | <uint64_t>at[2] << 40 | <uint64_t>at[3] << 32
        | <uint64_t>at[4] << 24 | <uint64_t>at[5] << 16 | <uint64_t>at[6] << 8 | at[7]
    )


cdef inline const uint8_t* read_unsigned(const uint8_t* p, const uint8_t* end, uint64_t* value) noexcept nogil:
    """An integer from 0 to 2**64 - 1."""
    cdef int size
    cdef uint8_t head
    cdef int64_t signed
    if p >= end:
        return NULL
    head = p[0]
    if head < 0x80:
        value[0] = head
        return p + 1
    if 0xCC <= head <= 0xCF:
        size = 1 << (head - 0xCC)
        if end - p <= size:
            return NULL
        value[0] = big(p + 1, size)
        return p + 1 + size
    p = read_signed(p, end, &signed)
    if p == NULL or signed < 0:
        return NULL
    value[0] = <uint64_t>signed
    return p


cdef inline const uint8_t* read_signed(const uint8_t* p, const uint8_t* end, int64_t* value) noexcept nogil:
    """An integer from -2**63 to 2**63 - 1."""
    cdef int size
    cdef uint8_t head
    cdef uint64_t found
    if p >= end:
        return NULL
    head = p[0]
    if head < 0x80 or head >= 0xE0:
        value[0] = <int8_t>head
        return p + 1
    if 0xCC <= head <= 0xCF:
        size = 1 << (head - 0xCC)
    elif 0xD0 <= head <= 0xD3:
        size = 1 << (head - 0xD0)
    else:
        return NULL
    if end - p <= size:
        return NULL
    found = big(p + 1, size)
    if head == 0xCF and found >> 63:
        return NULL
    if head >= 0xD0:
        value[0] = <int64_t>(found << (64 - 8 * size)) >> (64 - 8 * size)
    else:
        value[0] = <int64_t>found
    return p + 1 + size


cdef inline const uint8_t* read_double(const uint8_t* p, const uint8_t* end, double* value) noexcept nogil:
    cdef uint64_t bits
    cdef uint32_t half
    cdef float single
    cdef uint8_t head
    if p >= end:
        return NULL
    head = p[0]
    if head == 0xCB:
        if end - p < 9:
            return NULL
        bits = big(p + 1, 8)
        memcpy(value, &bits, 8)
        return p + 9
    if head == 0xCA:
        if end - p < 5:
            return NULL
        half = <uint32_t>big(p + 1, 4)
        memcpy(&single, &half, 4)
        value[0] = single
        return p + 5
    return NULL


cdef inline const uint8_t* _sized(const uint8_t* p, const uint8_t* end, int width, size_t* size) noexcept nogil:
    """What follows a head with its size in `width` bytes; gives where the bytes begin, which are all there."""
    if end - p <= width:
        return NULL
    size[0] = big(p + 1, width)
    p += 1 + width
    return p if <size_t>(end - p) >= size[0] else NULL


cdef inline const uint8_t* read_text(const uint8_t* p, const uint8_t* end, size_t* size) noexcept nogil:
    """The head of a str; gives where its bytes begin, which are all there. Whether they are UTF-8 is not looked at."""
    cdef uint8_t head
    if p >= end:
        return NULL
    head = p[0]
    if head & 0xE0 == 0xA0:
        size[0] = head & 0x1F
        p += 1
        return p if <size_t>(end - p) >= size[0] else NULL
    if 0xD9 <= head <= 0xDB:
        return _sized(p, end, 1 << (head - 0xD9), size)
    return NULL


cdef inline const uint8_t* read_bin(const uint8_t* p, const uint8_t* end, size_t* size) noexcept nogil:
    """The head of a bin; gives where its bytes begin, which are all there."""
    cdef uint8_t head
    if p >= end:
        return NULL
    head = p[0]
    return _sized(p, end, 1 << (head - 0xC4), size) if 0xC4 <= head <= 0xC6 else NULL


cdef inline const uint8_t* read_array(const uint8_t* p, const uint8_t* end, int64_t* count) noexcept nogil:
    """The head of an array; gives where its first value begins. A value takes a byte at least: no count beyond that."""
    cdef uint8_t head
    cdef int64_t found
    if p >= end:
        return NULL
    head = p[0]
    if head & 0xF0 == 0x90:
        found = head & 0x0F
        p += 1
    elif head == 0xDC:
        if end - p <= 2:
            return NULL
        found = <int64_t>big(p + 1, 2)
        p += 3
    elif head == 0xDD:
        if end - p <= 4:
            return NULL
        found = <int64_t>big(p + 1, 4)
        p += 5
    else:
        return NULL
    count[0] = found
    return p if found <= end - p else NULL


cdef const uint8_t* skip_props(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """A map of text to text."""
    cdef int64_t count
    cdef size_t size
    cdef uint8_t head
    if p >= end:
        return NULL
    head = p[0]
    if head & 0xF0 == 0x80:
        count = head & 0x0F
        p += 1
    elif head == 0xDE and end - p >= 3:
        count = <int64_t>big(p + 1, 2)
        p += 3
    else:
        return NULL
    while count:
        for _ in range(2):
            p = read_text(p, end, &size)
            if p == NULL or not is_utf8(p, size):
                return NULL
            p += size
        count -= 1
    return p


cdef const uint8_t* skip_resume(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Nil, or where each source continues: [{text: [text, number, text]}, number, number]."""
    cdef int64_t count, number
    cdef uint8_t head
    if p == NULL or p >= end:
        return NULL
    head = p[0]
    if head == 0xC0:
        return p + 1
    if head != 0x93 or end - p < 2:
        return NULL
    head = p[1]
    if head & 0xF0 != 0x80:  # more than fifteen sources are msgpack's to read
        return NULL
    count = head & 0x0F
    p += 2
    while count:
        p = skip_text(p, end)
        if p == NULL or p >= end or p[0] != 0x93:
            return NULL
        p = skip_text(p + 1, end)
        p = read_signed(p, end, &number) if p != NULL else NULL
        p = skip_text(p, end) if p != NULL else NULL
        if p == NULL:
            return NULL
        count -= 1
    p = read_signed(p, end, &number)
    return read_signed(p, end, &number) if p != NULL else NULL


cdef inline const uint8_t* skip_text(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef size_t size
    p = read_text(p, end, &size)
    return p + size if p != NULL and is_utf8(p, size) else NULL


cdef const uint8_t* skip_cell(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """A value of a row that no reader wants: nil, bool, number, str or bin."""
    cdef const uint8_t* at
    cdef uint64_t whole
    cdef int64_t signed
    cdef double real
    cdef size_t size
    cdef uint8_t head
    if p >= end:
        return NULL
    head = p[0]
    if head == 0xC0 or head == 0xC2 or head == 0xC3:
        return p + 1
    at = read_text(p, end, &size)
    if at != NULL:
        return at + size if is_utf8(at, size) else NULL
    at = read_bin(p, end, &size)
    if at != NULL:
        return at + size
    at = read_signed(p, end, &signed)
    if at == NULL:
        at = read_unsigned(p, end, &whole)
    return at if at != NULL else read_double(p, end, &real)
