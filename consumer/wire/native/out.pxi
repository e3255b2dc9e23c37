# Bytes on their way out: a growing buffer, and protobuf's varints.

cdef struct Piece:
    const uint8_t* at
    size_t size


cdef struct Out:
    uint8_t* data
    size_t size
    size_t capacity


cdef inline bint reserve(Out* out, size_t more) noexcept nogil:
    """See to space for `more` bytes; False where there is no memory."""
    cdef size_t capacity
    cdef void* grown
    if out.size + more <= out.capacity:
        return True
    capacity = max(2 * out.capacity, out.size + more, 4096)
    grown = realloc(out.data, capacity)
    if grown == NULL:
        return False
    out.data, out.capacity = <uint8_t*>grown, capacity
    return True


cdef inline int varint_size(uint64_t number) noexcept nogil:
    cdef int size = 1
    while number > 0x7F:
        number >>= 7
        size += 1
    return size


cdef inline uint8_t* put_varint(uint8_t* to, uint64_t number) noexcept nogil:
    while number > 0x7F:
        to[0] = <uint8_t>(number & 0x7F | 0x80)
        number >>= 7
        to += 1
    to[0] = <uint8_t>number
    return to + 1


cdef inline uint8_t* put_piece(uint8_t* to, const uint8_t* at, size_t size) noexcept nogil:
    memcpy(to, at, size)
    return to + size


cdef inline uint8_t* put_number(uint8_t* to, uint8_t tag, uint64_t number) noexcept nogil:
    """An integer field; at most 11 bytes. A default is left out, as proto3 does."""
    if number:
        to[0] = tag
        to = put_varint(to + 1, number)
    return to


cdef inline uint8_t* put_string(uint8_t* to, uint8_t tag, const uint8_t* at, size_t size) noexcept nogil:
    """A string field; at most 11 bytes more than the text."""
    if size:
        to[0] = tag
        to = put_piece(put_varint(to + 1, size), at, size)
    return to


cdef inline uint8_t* put_pair(uint8_t* to, uint8_t tag, const char* key, size_t key_size, const uint8_t* at, size_t size) noexcept nogil:
    """A Pair; at most 33 bytes more than key and value."""
    cdef size_t content = 1 + varint_size(key_size) + key_size
    if size:
        content += 1 + varint_size(size) + size
    to[0] = tag
    to = put_varint(to + 1, content)
    return put_string(put_string(to, 0x0A, <const uint8_t*>key, key_size), 0x12, at, size)
