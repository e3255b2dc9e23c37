# UTF-8 as Python's strict decoder has it (RFC 3629: no surrogates, nothing overlong, up to U+10FFFF), as a state machine whose
# states are bit offsets: the row of a byte holds the next state for each state, so that a step is one shift, and no branch is
# mispredicted in mixed text (Per Vognsen's shift-based machine). Where the processor has SSSE3, sixteen bytes at a time are checked
# instead: what two bytes in a row cannot be is looked up by the half bytes of both (Keiser and Lemire, "Validating UTF-8 In
# Less Than One Instruction Per Byte", 2020).

cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #include <string.h>
    #define UTF8_WIDE() __builtin_cpu_supports("ssse3")

    enum {
        U_SHORT = 1,       /* a lead or ASCII where a continuation is due */
        U_LONG = 2,        /* a continuation behind ASCII */
        U_OVER3 = 4,       /* E0 80..9F */
        U_LARGE = 8,       /* F4 90.. and above */
        U_SURROGATE = 16,  /* ED A0..BF */
        U_OVER2 = 32,      /* C0, C1 */
        U_OVER4 = 64,      /* F0 80..8F, and F5.. before 80..8F */
        U_TWO = 128,       /* two continuations: right where the third byte of a character is */
        U_ANY = U_SHORT | U_LONG | U_TWO
    };
    #define U_FOUR (char)(U_ANY | U_LARGE | U_OVER4)
    #define U_CONTINUES (U_LONG | U_OVER2 | U_TWO)
    /* what cannot be, by the high and the low half of one byte, and by the high half of the next */
    #define U_FIRST_HIGH \\
        U_LONG, U_LONG, U_LONG, U_LONG, U_LONG, U_LONG, U_LONG, U_LONG, (char)U_TWO, (char)U_TWO, (char)U_TWO, (char)U_TWO, \\
        U_SHORT | U_OVER2, U_SHORT, U_SHORT | U_OVER3 | U_SURROGATE, U_SHORT | U_LARGE | U_OVER4
    #define U_FIRST_LOW \\
        (char)(U_ANY | U_OVER2 | U_OVER3 | U_OVER4), (char)(U_ANY | U_OVER2), (char)U_ANY, (char)U_ANY, (char)(U_ANY | U_LARGE), \\
        U_FOUR, U_FOUR, U_FOUR, U_FOUR, U_FOUR, U_FOUR, U_FOUR, U_FOUR, (char)(U_FOUR | U_SURROGATE), U_FOUR, U_FOUR
    #define U_SECOND_HIGH \\
        U_SHORT, U_SHORT, U_SHORT, U_SHORT, U_SHORT, U_SHORT, U_SHORT, U_SHORT, (char)(U_CONTINUES | U_OVER3 | U_OVER4), \\
        (char)(U_CONTINUES | U_OVER3 | U_LARGE), (char)(U_CONTINUES | U_SURROGATE | U_LARGE), (char)(U_CONTINUES | U_SURROGATE | U_LARGE), \\
        U_SHORT, U_SHORT, U_SHORT, U_SHORT

    __attribute__((target("ssse3"))) static inline __m128i utf8_block(__m128i before, __m128i x) {
        const __m128i half = _mm_set1_epi8(15);
        const __m128i first_high = _mm_setr_epi8(U_FIRST_HIGH), first_low = _mm_setr_epi8(U_FIRST_LOW);
        const __m128i second_high = _mm_setr_epi8(U_SECOND_HIGH);
        __m128i one = _mm_alignr_epi8(x, before, 15), two = _mm_alignr_epi8(x, before, 14), three = _mm_alignr_epi8(x, before, 13);
        __m128i wrong = _mm_and_si128(
            _mm_and_si128(
                _mm_shuffle_epi8(first_high, _mm_and_si128(_mm_srli_epi16(one, 4), half)),
                _mm_shuffle_epi8(first_low, _mm_and_si128(one, half))),
            _mm_shuffle_epi8(second_high, _mm_and_si128(_mm_srli_epi16(x, 4), half)));
        /* the third byte behind E0..FF, the fourth behind F0..FF: the high bit where it is due */
        __m128i due = _mm_or_si128(
            _mm_subs_epu8(two, _mm_set1_epi8(0xE0 - 0x80)), _mm_subs_epu8(three, _mm_set1_epi8(0xF0 - 0x80)));
        return _mm_xor_si128(_mm_and_si128(due, _mm_set1_epi8((char)0x80)), wrong);
    }

    __attribute__((target("ssse3"))) static int utf8_wide(const unsigned char *at, size_t size) {
        __m128i before = _mm_setzero_si128(), wrong = before, x;
        unsigned char last[16] = {0};  /* ends in ASCII, so that a character cut off is too short */
        for (; size >= 16; at += 16, size -= 16) {
            x = _mm_loadu_si128((const __m128i *)at);
            wrong = _mm_or_si128(wrong, utf8_block(before, x));
            before = x;
        }
        memcpy(last, at, size);
        wrong = _mm_or_si128(wrong, utf8_block(before, _mm_loadu_si128((const __m128i *)last)));
        return _mm_movemask_epi8(_mm_cmpeq_epi8(wrong, _mm_setzero_si128())) == 0xFFFF;
    }
    #else
    #define UTF8_WIDE() 0
    static int utf8_wide(const unsigned char *at, size_t size) { return 0; }
    #endif
    """
    bint UTF8_WIDE() noexcept nogil
    bint utf8_wide(const uint8_t* at, size_t size) noexcept nogil

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
cdef bint WIDE = UTF8_WIDE()


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
    cdef uint64_t eight
    cdef const uint8_t* end = at + size
    while end - at >= 8:
        memcpy(&eight, at, 8)
        if eight & <uint64_t>0x8080808080808080:
            break
        at += 8
    return utf8_wide(at, end - at) if WIDE and end - at >= 16 else steps_utf8(at, end - at)


cdef bint steps_utf8(const uint8_t* at, size_t size) noexcept nogil:
    cdef uint64_t state = WHOLE
    cdef const uint8_t* end = at + size
    while at < end:
        state = UTF8[at[0]] >> (state & 63)
        at += 1
    return state & 63 == WHOLE
