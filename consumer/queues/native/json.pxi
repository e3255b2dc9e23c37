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


cdef struct Shown:  # a byte, as it is in a string
    uint8_t[7] text
    uint8_t size

cdef Shown[256] ESCAPED  # in text in UTF-8
cdef Shown[256] OCTET    # as a character of ISO-8859-1


cdef void _fill_shown() noexcept:
    cdef int i
    cdef Shown* at
    memset(ESCAPED, 0, sizeof(ESCAPED))
    for i in range(256):
        at = &ESCAPED[i]
        at.text[0], at.size = i, 1
        if i < 0x20 or i == c'"' or i == c"\\":
            at.text[0], at.text[1], at.size = c"\\", i if i >= 0x20 else short_escape(i), 2
            if not at.text[1]:
                memcpy(&at.text[1], b"u00", 3)
                at.text[4] = c"0" + (i >> 4)
                at.text[5] = c"0" + (i & 15) if i & 15 < 10 else c"a" + (i & 15) - 10
                at.size = 6
        OCTET[i] = at[0]
        if i >= 0x80:
            OCTET[i].text[0], OCTET[i].text[1], OCTET[i].size = 0xC0 | i >> 6, 0x80 | i & 0x3F, 2


cdef bint escaped(Out* out, size_t start) noexcept nogil:
    """Escape the text from `start` on, where it stands."""
    cdef size_t i, more = 0, size = out.size - start
    cdef const uint8_t* at = out.data + start
    cdef uint8_t* to
    cdef uint8_t c, found = 0
    for i in range(size):  # without a branch: many bytes at a time
        c = at[i]
        found |= (c < 0x20) | (c == 0x22) | (c == 0x5C)
    if not found:
        return True
    for i in range(size):
        more += ESCAPED[at[i]].size
    more -= size
    if not reserve(out, more + sizeof(Shown)):
        return False
    to = out.data + start
    # It is read from behind where it goes, so that nothing is written over before; what is written is less than what is between.
    memmove(to + more + sizeof(Shown), to, size)
    put_shown(to, to + more + sizeof(Shown), size, ESCAPED)
    out.size += more
    return True


cdef inline uint8_t* put_shown(uint8_t* to, const uint8_t* at, size_t size, const Shown* table) noexcept nogil:
    """Write bytes by a table, without a branch; up to 7 bytes more are written than count."""
    cdef const uint8_t* end = at + size
    cdef const Shown* shown
    while at != end:
        shown = &table[at[0]]
        at += 1
        memcpy(to, shown, sizeof(Shown))
        to += shown.size
    return to


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


_fill_shown()


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
