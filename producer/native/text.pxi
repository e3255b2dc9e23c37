# Text, copied and checked.

cdef inline bint copy_text(uint8_t* to, const uint8_t* at, size_t size) noexcept:
    """Copy; return whether it is UTF-8."""
    memcpy(to, at, size)
    return is_utf8(at, size)
