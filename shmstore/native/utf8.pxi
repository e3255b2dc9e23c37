# UTF-8 as Python's strict decoder has it (RFC 3629: no surrogates, nothing overlong, up to U+10FFFF), as a state machine whose
# states are bit offsets: the row of a byte holds the next state for each state, so that a step is one shift, and no branch is
# mispredicted in mixed text (Per Vognsen's shift-based machine). Where the processor has AVX2, 32 bytes at a time are checked
# instead: what two bytes in a row cannot be is looked up by the half bytes of both (Keiser and Lemire, "Validating UTF-8 In
# Less Than One Instruction Per Byte", 2020).

cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #include <string.h>
    #define UTF8_WIDE() __builtin_cpu_supports("avx2")

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

    #define U_HALVES(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))

    __attribute__((target("avx2"))) static inline __m256i utf8_block(__m256i before, __m256i x) {
        const __m256i half = _mm256_set1_epi8(15);
        const __m256i first_high = U_HALVES(U_FIRST_HIGH), first_low = U_HALVES(U_FIRST_LOW), second_high = U_HALVES(U_SECOND_HIGH);
        __m256i middle = _mm256_permute2x128_si256(before, x, 0x21);  /* the last 16 bytes before, the first 16 of these */
        __m256i one = _mm256_alignr_epi8(x, middle, 15), two = _mm256_alignr_epi8(x, middle, 14), three = _mm256_alignr_epi8(x, middle, 13);
        __m256i wrong = _mm256_and_si256(
            _mm256_and_si256(
                _mm256_shuffle_epi8(first_high, _mm256_and_si256(_mm256_srli_epi16(one, 4), half)),
                _mm256_shuffle_epi8(first_low, _mm256_and_si256(one, half))),
            _mm256_shuffle_epi8(second_high, _mm256_and_si256(_mm256_srli_epi16(x, 4), half)));
        /* the third byte behind E0..FF, the fourth behind F0..FF: the high bit where it is due */
        __m256i due = _mm256_or_si256(
            _mm256_subs_epu8(two, _mm256_set1_epi8(0xE0 - 0x80)), _mm256_subs_epu8(three, _mm256_set1_epi8(0xF0 - 0x80)));
        return _mm256_xor_si256(_mm256_and_si256(due, _mm256_set1_epi8((char)0x80)), wrong);
    }

    __attribute__((target("avx2"))) static int utf8_wide(const unsigned char *at, size_t size) {
        __m256i before = _mm256_setzero_si256(), wrong = before, x;
        int now, then = 0;               /* whether these bytes, and those before, are more than ASCII */
        unsigned char last[32] = {0};    /* ends in ASCII, so that a character cut off is too short */
        for (; size >= 32; at += 32, size -= 32) {
            x = _mm256_loadu_si256((const __m256i *)at);
            now = _mm256_movemask_epi8(x);
            if (now | then)
                wrong = _mm256_or_si256(wrong, utf8_block(before, x));
            before = x;
            then = now;
        }
        memcpy(last, at, size);
        wrong = _mm256_or_si256(wrong, utf8_block(before, _mm256_loadu_si256((const __m256i *)last)));
        return _mm256_testz_si256(wrong, wrong);
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
    if WIDE and size >= 16:
        return utf8_wide(at, size)
    while end - at >= 8:
        memcpy(&eight, at, 8)
        if eight & <uint64_t>0x8080808080808080:
            break
        at += 8
    return steps_utf8(at, end - at)


cdef bint steps_utf8(const uint8_t* at, size_t size) noexcept nogil:
    cdef uint64_t state = WHOLE
    cdef const uint8_t* end = at + size
    while at < end:
        state = UTF8[at[0]] >> (state & 63)
        at += 1
    return state & 63 == WHOLE
