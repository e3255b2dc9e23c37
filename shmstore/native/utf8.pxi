# UTF-8 as Python's strict decoder has it (RFC 3629: no surrogates, nothing overlong, up to U+10FFFF), as a state machine whose
# states are bit offsets: the row of a byte holds the next state for each state, so that a step is one shift, and no branch is
# mispredicted in mixed text (Per Vognsen's shift-based machine).

cdef enum:
    WHOLE = 0    # between characters
    WRONG = 6
    ONE = 12     # one more byte of 80..BF
    TWO = 18
    THREE = 24
    AFTER_E0 = 30  # A0..BF, then one
    AFTER_ED = 36  # 80..9F, then one
    AFTER_F0 = 42  # 90..BF, then two
    AFTER_F4 = 48  # 80..8F, then two

cdef uint64_t UTF8[256]


cdef void _fill_utf8() noexcept:
    cdef int byte, state, next_
    for byte in range(256):
        UTF8[byte] = 0
        for state in range(0, 54, 6):
            next_ = WRONG
            if state == WHOLE:
                if byte < 0x80:
                    next_ = WHOLE
                elif 0xC2 <= byte <= 0xDF:
                    next_ = ONE
                elif 0xE0 <= byte <= 0xEF:
                    next_ = AFTER_E0 if byte == 0xE0 else AFTER_ED if byte == 0xED else TWO
                elif 0xF0 <= byte <= 0xF4:
                    next_ = AFTER_F0 if byte == 0xF0 else AFTER_F4 if byte == 0xF4 else THREE
            elif state != WRONG and 0x80 <= byte <= 0xBF:
                if state == ONE:
                    next_ = WHOLE
                elif state == TWO or (state == AFTER_E0 and byte >= 0xA0) or (state == AFTER_ED and byte < 0xA0):
                    next_ = ONE
                elif state == THREE or (state == AFTER_F0 and byte >= 0x90) or (state == AFTER_F4 and byte < 0x90):
                    next_ = TWO
            UTF8[byte] |= <uint64_t>next_ << state


_fill_utf8()


cdef inline bint is_utf8(const uint8_t* at, size_t size) noexcept nogil:
    cdef uint64_t eight, state = WHOLE
    cdef const uint8_t* end = at + size
    while end - at >= 8:
        memcpy(&eight, at, 8)
        if eight & <uint64_t>0x8080808080808080:
            break
        at += 8
    while at < end:
        state = UTF8[at[0]] >> (state & 63)
        at += 1
    return state & 63 == WHOLE
