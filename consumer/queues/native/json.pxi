# JSON, written as `shmstore.consumer.formats.json_text` writes it. Each function gives False where there is no memory, or no text.

cdef inline bint say(Out* out, const char* text) noexcept nogil:
    """Write text as it is."""
    cdef size_t size = strlen(text)
    if not reserve(out, size):
        return False
    memcpy(out.data + out.size, text, size)
    out.size += size
    return True


cdef inline bint put(Out* out, const uint8_t* at, size_t size) noexcept nogil:
    """Write bytes as they are."""
    if not reserve(out, size):
        return False
    memcpy(out.data + out.size, at, size)
    out.size += size
    return True


cdef inline bint number(Out* out, int64_t value) noexcept nogil:
    if not reserve(out, SHORT):
        return False
    out.size += write_signed(out.data + out.size, value)
    return True


cdef inline bint quoted(Out* out, const uint8_t* at, size_t size) noexcept nogil:
    """Write text as a string."""
    cdef size_t start
    if not say(out, b'"') or not put(out, at, size):
        return False
    start = out.size - size
    return is_utf8(out.data + start, size) and escaped(out, start) and say(out, b'"')


cdef inline bint is_special(uint8_t c) noexcept nogil:
    return c < 0x20 or c == c'"' or c == c"\\"


cdef bint escaped(Out* out, size_t start) noexcept nogil:
    """Escape the text from `start` on, where it stands."""
    cdef size_t i, more = 0, size = out.size - start
    cdef uint8_t* at = out.data + start
    cdef uint8_t* to
    cdef uint8_t c, found = 0
    for i in range(size):  # without a branch: many bytes at a time
        c = at[i]
        found |= (c < 0x20) | (c == 0x22) | (c == 0x5C)
    if not found:
        return True
    for i in range(size):
        if is_special(at[i]):
            more += 1 if at[i] >= 0x20 or short_escape(at[i]) else 5
    if not reserve(out, more):
        return False
    at = out.data + start + size
    to = at + more
    out.size += more
    while to != at:  # from the end, so that nothing is written over before it is read
        at -= 1
        c = at[0]
        if not is_special(c):
            to -= 1
            to[0] = c
            continue
        if c >= 0x20 or short_escape(c):
            to -= 2
            to[1] = c if c >= 0x20 else short_escape(c)
        else:
            to -= 6
            to[1], to[2], to[3] = c"u", c"0", c"0"
            to[4] = c"0" + (c >> 4)
            to[5] = c"0" + (c & 15) if c & 15 < 10 else c"a" + (c & 15) - 10
        to[0] = c"\\"
    return True


cdef inline uint8_t short_escape(uint8_t c) noexcept nogil:
    """The letter of a control character; 0 where it has none."""
    if c == 8:
        return c"b"
    if c == 9:
        return c"t"
    if c == 10:
        return c"n"
    if c == 12:
        return c"f"
    return c"r" if c == 13 else 0


cdef const char* BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef bint base64(Out* out, const uint8_t* at, size_t size) noexcept nogil:
    """Write bytes as a string of base64."""
    cdef uint8_t* to
    cdef uint32_t three
    if not reserve(out, (size + 2) // 3 * 4 + 2):
        return False
    to = out.data + out.size
    to[0] = c'"'
    to += 1
    while size:
        three = <uint32_t>at[0] << 16
        if size > 1:
            three |= <uint32_t>at[1] << 8
        if size > 2:
            three |= at[2]
        to[0], to[1] = BASE64[three >> 18], BASE64[three >> 12 & 63]
        to[2] = BASE64[three >> 6 & 63] if size > 1 else c"="
        to[3] = BASE64[three & 63] if size > 2 else c"="
        to += 4
        at += min(size, 3)
        size -= min(size, 3)
    to[0] = c'"'
    out.size = to + 1 - out.data
    return True
