# CRC-32 as zlib has it (reflected, polynomial 0xEDB88320), eight bytes at a time ("slicing by 8", Kounavis and Berry 2005).
# Where the processor multiplies without carries, 64 bytes at a time are first folded into 16 that have the same remainder
# (Gopal et al., "Fast CRC Computation Using PCLMULQDQ", 2009), or 256 where it does so in four lanes; the tables do the rest.

cdef extern from *:
    """
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define CRC_FOLDS() __builtin_cpu_supports("pclmul")
    #define CRC_WIDE() (__builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f"))
    /* x^(distance in bits + 32) and x^(distance in bits - 32), by the distance in bytes over which they fold */
    #define CRC_BY_16 _mm_set_epi64x(0x0ccaa009e, 0x1751997d0)
    #define CRC_BY_64 _mm_set_epi64x(0x1c6e41596, 0x154442bd4)
    #define CRC_BY_256 _mm_set_epi64x(0x1322d1430, 0x11542778a)

    __attribute__((target("pclmul"))) static inline __m128i crc_step(__m128i x, __m128i by, __m128i next) {
        __m128i low = _mm_clmulepi64_si128(x, by, 0x00), high = _mm_clmulepi64_si128(x, by, 0x11);
        return _mm_xor_si128(_mm_xor_si128(low, high), next);
    }

    /* Folds whole blocks of 16 bytes, of which there are at least four, into `out`; returns the bytes it took. */
    __attribute__((target("pclmul"))) static size_t crc_fold(unsigned state, const unsigned char *at, size_t size, unsigned char *out) {
        const __m128i by_64 = CRC_BY_64, by_16 = CRC_BY_16;
        const __m128i *p = (const __m128i *)at, *end = p + size / 16;
        __m128i x[4];
        int i;
        for (i = 0; i < 4; i++)
            x[i] = _mm_loadu_si128(p++);
        x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)state));
        for (; end - p >= 4; p += 4)
            for (i = 0; i < 4; i++)
                x[i] = crc_step(x[i], by_64, _mm_loadu_si128(p + i));
        for (i = 1; i < 4; i++)
            x[0] = crc_step(x[0], by_16, x[i]);
        for (; p < end; p++)
            x[0] = crc_step(x[0], by_16, _mm_loadu_si128(p));
        _mm_storeu_si128((__m128i *)out, x[0]);
        return size & ~(size_t)15;
    }

    #define CRC_LANES "vpclmulqdq,pclmul,avx512f"
    __attribute__((target(CRC_LANES))) static inline __m512i crc_step_wide(__m512i x, __m512i by, __m512i next) {
        __m512i low = _mm512_clmulepi64_epi128(x, by, 0x00), high = _mm512_clmulepi64_epi128(x, by, 0x11);
        return _mm512_xor_si512(_mm512_xor_si512(low, high), next);
    }

    /* The same for at least 256 bytes. */
    __attribute__((target(CRC_LANES))) static size_t crc_fold_wide(unsigned state, const unsigned char *at, size_t size, unsigned char *out) {
        const __m512i by_256 = _mm512_broadcast_i32x4(CRC_BY_256), by_64 = _mm512_broadcast_i32x4(CRC_BY_64);
        const __m128i by_16 = CRC_BY_16;
        const unsigned char *p = at, *end = at + (size & ~(size_t)15);
        __m512i x[4];
        __m128i lanes[4];
        int i;
        for (i = 0; i < 4; i++, p += 64)
            x[i] = _mm512_loadu_si512(p);
        x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
        for (; end - p >= 256; p += 256)
            for (i = 0; i < 4; i++)
                x[i] = crc_step_wide(x[i], by_256, _mm512_loadu_si512(p + 64 * i));
        for (i = 1; i < 4; i++)
            x[0] = crc_step_wide(x[0], by_64, x[i]);
        for (; end - p >= 64; p += 64)
            x[0] = crc_step_wide(x[0], by_64, _mm512_loadu_si512(p));
        _mm512_storeu_si512(lanes, x[0]);
        for (i = 1; i < 4; i++)
            lanes[0] = crc_step(lanes[0], by_16, lanes[i]);
        for (; p < end; p += 16)
            lanes[0] = crc_step(lanes[0], by_16, _mm_loadu_si128((const __m128i *)p));
        _mm_storeu_si128((__m128i *)out, lanes[0]);
        return end - at;
    }
    #else
    #define CRC_FOLDS() 0
    #define CRC_WIDE() 0
    static size_t crc_fold_wide(unsigned state, const unsigned char *at, size_t size, unsigned char *out) { return 0; }
    static size_t crc_fold(unsigned state, const unsigned char *at, size_t size, unsigned char *out) { return 0; }
    #endif
    #if defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
    #include <arm_acle.h>
    #define CRC_STEPS 1
    static unsigned crc_steps(unsigned state, const unsigned char *at, size_t size) {
        uint64_t eight;
        for (; size >= 8; at += 8, size -= 8) {
            __builtin_memcpy(&eight, at, 8);
            state = __crc32d(state, eight);
        }
        while (size--)
            state = __crc32b(state, *at++);
        return state;
    }
    #else
    #define CRC_STEPS 0
    static unsigned crc_steps(unsigned state, const unsigned char *at, size_t size) { return 0; }
    #endif
    """
    bint CRC_FOLDS() noexcept
    bint CRC_WIDE() noexcept
    const bint CRC_STEPS  # the processor, as it was compiled for, has an instruction for this very checksum
    size_t crc_fold(unsigned int state, const uint8_t* at, size_t size, uint8_t* out) noexcept nogil
    size_t crc_fold_wide(unsigned int state, const uint8_t* at, size_t size, uint8_t* out) noexcept nogil
    uint32_t crc_steps(uint32_t state, const uint8_t* at, size_t size) noexcept nogil

cdef uint32_t CRC[8][256]
cdef bint FOLDS = CRC_FOLDS(), FOLDS_WIDE = FOLDS and CRC_WIDE()


cdef void _fill_crc() noexcept:
    cdef uint32_t value
    cdef int i, k
    for i in range(256):
        value = i
        for k in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        CRC[0][i] = value
    for i in range(256):
        for k in range(1, 8):
            CRC[k][i] = CRC[k - 1][i] >> 8 ^ CRC[0][CRC[k - 1][i] & 0xFF]


_fill_crc()


cdef uint32_t _sliced(uint32_t value, const uint8_t* at, size_t size) noexcept nogil:
    cdef uint32_t low, high
    if CRC_STEPS:
        return crc_steps(value, at, size)
    while size >= 8:
        memcpy(&low, at, 4)
        memcpy(&high, at + 4, 4)
        low ^= value
        value = (
            CRC[7][low & 0xFF] ^ CRC[6][low >> 8 & 0xFF] ^ CRC[5][low >> 16 & 0xFF] ^ CRC[4][low >> 24]
            ^ CRC[3][high & 0xFF] ^ CRC[2][high >> 8 & 0xFF] ^ CRC[1][high >> 16 & 0xFF] ^ CRC[0][high >> 24]
        )
        at += 8
        size -= 8
    while size:
        value = value >> 8 ^ CRC[0][(value ^ at[0]) & 0xFF]
        at += 1
        size -= 1
    return value


cdef uint32_t crc_of(const uint8_t* at, size_t size, uint32_t before) noexcept nogil:
    """`before`: the checksum of the bytes before these."""
    cdef uint32_t value = ~before
    cdef uint8_t folded[16]
    cdef size_t taken
    if FOLDS and size >= 64:
        taken = crc_fold_wide(value, at, size, folded) if FOLDS_WIDE and size >= 256 else crc_fold(value, at, size, folded)
        value = _sliced(0, folded, 16)
        at += taken
        size -= taken
    return ~_sliced(value, at, size)
