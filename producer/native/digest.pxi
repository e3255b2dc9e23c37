# row_numbers: what `shmstore.producer.verify.digests` makes of rows, without an object for a value: BLAKE2b (RFC 7693) of the bytes of a
# row, and of those of its key, cut to 64 bits as hashlib's `digest_size=8` does.

cdef extern from *:
    """
    static const uint64_t BLAKE2_START[8] = {
        0x6a09e667f3bcc908ULL, 0xbb67ae8584caa73bULL, 0x3c6ef372fe94f82bULL, 0xa54ff53a5f1d36f1ULL,
        0x510e527fade682d1ULL, 0x9b05688c2b3e6c1fULL, 0x1f83d9abfb41bd6bULL, 0x5be0cd19137e2179ULL};

    #define BLAKE2_ROTATED(x, n) ((x) >> (n) | (x) << (64 - (n)))
    #define BLAKE2_MIX(a, b, c, d, x, y) \\
        a += b + (x); d = BLAKE2_ROTATED(d ^ a, 32); c += d; b = BLAKE2_ROTATED(b ^ c, 24); \\
        a += b + (y); d = BLAKE2_ROTATED(d ^ a, 16); c += d; b = BLAKE2_ROTATED(b ^ c, 63);
    #define BLAKE2_ROUND(s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15) \\
        BLAKE2_MIX(v0, v4, v8, v12, m[s0], m[s1]) BLAKE2_MIX(v1, v5, v9, v13, m[s2], m[s3]) \\
        BLAKE2_MIX(v2, v6, v10, v14, m[s4], m[s5]) BLAKE2_MIX(v3, v7, v11, v15, m[s6], m[s7]) \\
        BLAKE2_MIX(v0, v5, v10, v15, m[s8], m[s9]) BLAKE2_MIX(v1, v6, v11, v12, m[s10], m[s11]) \\
        BLAKE2_MIX(v2, v7, v8, v13, m[s12], m[s13]) BLAKE2_MIX(v3, v4, v9, v14, m[s14], m[s15])

    static uint64_t blake2_word(const uint8_t *p) {
        uint64_t word;
        memcpy(&word, p, 8);
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
    #endif
        return word;
    }

    /* One block of 128 bytes; `total` bytes came with it, `last` whether it is the last. */
    static void blake2_block(uint64_t h[8], const uint8_t *block, uint64_t total, int last) {
        uint64_t m[16];
        uint64_t v0 = h[0], v1 = h[1], v2 = h[2], v3 = h[3], v4 = h[4], v5 = h[5], v6 = h[6], v7 = h[7];
        uint64_t v8 = BLAKE2_START[0], v9 = BLAKE2_START[1], v10 = BLAKE2_START[2], v11 = BLAKE2_START[3];
        uint64_t v12 = BLAKE2_START[4] ^ total, v13 = BLAKE2_START[5], v14 = BLAKE2_START[6], v15 = BLAKE2_START[7];
        int i;
        for (i = 0; i < 16; i++) m[i] = blake2_word(block + 8 * i);
        if (last) v14 = ~v14;
        BLAKE2_ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
        BLAKE2_ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3)
        BLAKE2_ROUND(11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4)
        BLAKE2_ROUND(7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8)
        BLAKE2_ROUND(9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13)
        BLAKE2_ROUND(2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9)
        BLAKE2_ROUND(12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11)
        BLAKE2_ROUND(13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10)
        BLAKE2_ROUND(6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5)
        BLAKE2_ROUND(10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0)
        BLAKE2_ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
        BLAKE2_ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3)
        h[0] ^= v0 ^ v8; h[1] ^= v1 ^ v9; h[2] ^= v2 ^ v10; h[3] ^= v3 ^ v11;
        h[4] ^= v4 ^ v12; h[5] ^= v5 ^ v13; h[6] ^= v6 ^ v14; h[7] ^= v7 ^ v15;
    }

    /* The first 8 bytes of the digest, as they are in memory. */
    static uint64_t blake2_number(const uint8_t *p, size_t size) {
        uint64_t h[8], total = 0, number;
        uint8_t rest[128];
        memcpy(h, BLAKE2_START, sizeof h);
        h[0] ^= 0x01010000 ^ 8;
        while (size > 128) {
            total += 128;
            blake2_block(h, p, total, 0);
            p += 128;
            size -= 128;
        }
        memcpy(rest, p, size);
        memset(rest + size, 0, 128 - size);
        blake2_block(h, rest, total + size, 1);
        number = blake2_word((const uint8_t *)h);  /* little-endian, as bytes */
        return number;
    }
    """
    uint64_t blake2_number(const uint8_t* p, size_t size) noexcept nogil


cdef const uint8_t* _array_begins(const uint8_t* p, const uint8_t* end, size_t* count) except NULL:
    """Read the head of a MessagePack array; return where its first element begins."""
    cdef int width
    if p >= end:
        raise ValueError("rows end before an array")
    if p[0] & 0xF0 == 0x90:
        count[0] = p[0] & 15
        return p + 1
    width = 2 if p[0] == 0xDC else 4
    if p[0] != 0xDC and p[0] != 0xDD or end - p <= width:
        raise ValueError(f"rows have an array that begins with {p[0]:#x}")
    count[0] = <size_t>big(p + 1, width)
    return p + 1 + width


def row_numbers(const uint8_t[::1] data, tuple key):
    """Return 16 bytes for each row of `data`, a MessagePack array of rows: the number of its key, then that of the row; `key`: where the
    values of the key are in a row. Raises ValueError where `data` is something else."""
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef const uint8_t* begin
    cdef const uint8_t** values
    cdef uint64_t* out
    cdef Buffer joined
    cdef size_t rows, width, i
    cdef int j, k, n = len(key), most = max(key) + 1
    cdef int* places
    cdef bint together = True
    if not data.shape[0]:
        raise ValueError("rows end before an array")
    p = &data[0]
    end = p + data.shape[0]
    p = _array_begins(p, end, &rows)
    if rows > <size_t>(end - p):
        raise ValueError(f"{rows} rows are not in {end - p} bytes")
    memset(&joined, 0, sizeof(Buffer))
    found = PyBytes_FromStringAndSize(NULL, 16 * rows)
    out = <uint64_t*>PyBytes_AS_STRING(found)
    values = <const uint8_t**>PyMem_Malloc((most + 1) * sizeof(uint8_t*))
    places = <int*>PyMem_Malloc(n * sizeof(int))
    if values == NULL or places == NULL:
        PyMem_Free(values)
        PyMem_Free(places)
        raise MemoryError()
    try:
        for k in range(n):
            places[k] = key[k]
            together = together and places[k] == places[0] + k
        for i in range(rows):
            begin = p
            p = _array_begins(p, end, &width)
            if width < <size_t>most:
                raise ValueError(f"a row has {width} values, and its key needs {most}")
            for j in range(<int>width):
                if j <= most:
                    values[j] = p
                if p >= end:
                    raise ValueError("rows end inside a row")
                p = value_end(p)
            if p > end:
                raise ValueError("rows end inside a value")
            if width == <size_t>most:
                values[most] = p
            if together:
                out[0] = blake2_number(values[places[0]], values[places[0] + n] - values[places[0]])
            else:
                joined.size = 0
                for k in range(n):
                    j = places[k]
                    put_raw(&joined, values[j], values[j + 1] - values[j])
                out[0] = blake2_number(joined.data, joined.size)
            out[1] = blake2_number(begin, p - begin)
            out += 2
    finally:
        PyMem_Free(values)
        PyMem_Free(places)
        free_buffer(&joined)
    if p != end:
        raise ValueError(f"{end - p} bytes follow the rows")
    return found
