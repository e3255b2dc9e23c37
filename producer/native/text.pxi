# Text copied and checked in one pass, where the processor has AVX-512: the check of `utf8.pxi`, which explains it, 64 bytes at a
# time. Bytes outside of the text are masked off, so that none is read or written whatever the length is.

cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GNUC__)
    #define TEXT_WIDE() (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
    #define U_TABLE(...) _mm512_broadcast_i32x4(_mm_setr_epi8(__VA_ARGS__))

    __attribute__((target("avx512f,avx512bw"))) static int copy_wide(unsigned char *to, const unsigned char *at, size_t size) {
        const __m512i half = _mm512_set1_epi8(15), high = _mm512_set1_epi8((char)0x80);
        const __m512i first_high = U_TABLE(U_FIRST_HIGH), first_low = U_TABLE(U_FIRST_LOW), second_high = U_TABLE(U_SECOND_HIGH);
        __m512i wrong = _mm512_setzero_si512();
        __mmask64 begun = 0;  /* nothing is before the first byte */
        for (;;) {
            /* the last block ends one byte behind the text, where a character that is cut off is found out */
            const __mmask64 here = size < 64 ? ((__mmask64)1 << size) - 1 : ~(__mmask64)0;
            const __mmask64 near = size < 64 ? ((__mmask64)2 << size) - 1 : ~(__mmask64)0;
            const __m512i x = _mm512_maskz_loadu_epi8(here, at);
            const __m512i one = _mm512_maskz_loadu_epi8(near & (begun | ~(__mmask64)1), at - 1);
            const __m512i two = _mm512_maskz_loadu_epi8(near & (begun | ~(__mmask64)3), at - 2);
            const __m512i three = _mm512_maskz_loadu_epi8(near & (begun | ~(__mmask64)7), at - 3);
            const __m512i pair = _mm512_and_si512(
                _mm512_and_si512(
                    _mm512_shuffle_epi8(first_high, _mm512_and_si512(_mm512_srli_epi16(one, 4), half)),
                    _mm512_shuffle_epi8(first_low, _mm512_and_si512(one, half))),
                _mm512_shuffle_epi8(second_high, _mm512_and_si512(_mm512_srli_epi16(x, 4), half)));
            const __m512i due = _mm512_or_si512(
                _mm512_subs_epu8(two, _mm512_set1_epi8(0xE0 - 0x80)), _mm512_subs_epu8(three, _mm512_set1_epi8(0xF0 - 0x80)));
            wrong = _mm512_or_si512(wrong, _mm512_xor_si512(_mm512_and_si512(due, high), pair));
            _mm512_mask_storeu_epi8(to, here, x);
            if (size < 64)
                return !_mm512_test_epi8_mask(wrong, wrong);
            begun = ~(__mmask64)0;
            at += 64, to += 64, size -= 64;
        }
    }
    #else
    #define TEXT_WIDE() 0
    static int copy_wide(unsigned char *to, const unsigned char *at, size_t size) { return 0; }
    #endif
    """
    bint TEXT_WIDE() noexcept
    bint copy_wide(uint8_t* to, const uint8_t* at, size_t size) noexcept

cdef bint WIDEST


cdef inline bint copy_text(uint8_t* to, const uint8_t* at, size_t size) noexcept:
    """Copy; return whether it is UTF-8."""
    if WIDEST:
        return copy_wide(to, at, size)
    memcpy(to, at, size)
    return is_utf8(at, size)
