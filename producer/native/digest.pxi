# row_numbers: what `shmstore.producer.verify.digests` makes of rows, without an object for a value: the polynomial of a row's bytes, and
# of those of its key, at a point.

cdef extern from *:
    """
    #define ROW_PRIME ((1ULL << 61) - 1)

    static inline uint64_t row_loaded(const uint8_t *p) {
        uint64_t word;
        memcpy(&word, p, 8);
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
    #endif
        return word;
    }

    /* 7 bytes, with 8 to read from `p` on. */
    static inline uint64_t row_word(const uint8_t *p) {
        return row_loaded(p) & 0xFFFFFFFFFFFFFFULL;
    }

    /* The last 1 to 7 bytes. */
    static inline uint64_t row_rest(const uint8_t *p, size_t size) {
        uint64_t word = 0;
        while (size) word = word << 8 | p[--size];
        return word;
    }

    static inline uint64_t row_folded(unsigned __int128 sum) {
        /* below 2^62 for a sum below 2^125: 2^61 is 1 here */
        uint64_t once = (uint64_t)sum & ROW_PRIME;
        uint64_t high = (uint64_t)(sum >> 61);
        high = (high & ROW_PRIME) + (high >> 61);
        once += high;
        return (once & ROW_PRIME) + (once >> 61);
    }

    /* `powers`: of the point, from its first to its fourth. Four words go at once, so that only one of their products waits for the last. */
    static uint64_t row_number(const uint8_t *p, size_t size, const uint64_t powers[4]) {
        typedef unsigned __int128 wide;
        uint64_t sum = size;
        for (; size >= 28; p += 28, size -= 28)
            sum = row_folded((wide)sum * powers[3] + (wide)row_word(p) * powers[2] + (wide)row_word(p + 7) * powers[1]
                             + (wide)row_word(p + 14) * powers[0] + (row_loaded(p + 20) >> 8));
        for (; size > 7; p += 7, size -= 7)
            sum = row_folded((wide)sum * powers[0] + row_word(p));
        if (size) sum = row_folded((wide)sum * powers[0] + row_rest(p, size));
        sum = (sum & ROW_PRIME) + (sum >> 61);
        return sum >= ROW_PRIME ? sum - ROW_PRIME : sum;
    }

    static void row_powers(uint64_t point, uint64_t powers[4]) {
        int i;
        powers[0] = point % ROW_PRIME;
        for (i = 1; i < 4; i++) powers[i] = row_folded((unsigned __int128)powers[i - 1] * powers[0]);
    }
    """
    uint64_t row_number(const uint8_t* p, size_t size, const uint64_t* powers) noexcept nogil
    void row_powers(uint64_t point, uint64_t* powers) noexcept nogil


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


cdef const uint8_t* value_within(const uint8_t* p, const uint8_t* end) except NULL:
    """Where a value ends that must end before `end`."""
    cdef Py_ssize_t head = 1
    if p < end and p[0] in (0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB):
        head = 1 + (1 << (p[0] - (0xC4 if p[0] < 0xD0 else 0xD9)))
    if end - p < head:
        raise ValueError("rows end inside a row")
    p = value_end(p)
    if p > end:
        raise ValueError("rows end inside a value")
    return p


def row_numbers(const uint8_t[::1] data, tuple key, uint64_t point):
    """Return 16 bytes for each row of `data`, a MessagePack array of rows: the number of its key, then that of the row, at `point`; `key`:
    where the values of the key are in a row. Raises ValueError where `data` is something else."""
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef const uint8_t* begin
    cdef const uint8_t** values
    cdef uint64_t* out
    cdef Buffer joined
    cdef uint64_t powers[4]
    cdef size_t rows, width, i, j
    cdef int k, n = len(key), most = max(key) + 1
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
    row_powers(point, powers)
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
            for j in range(width):
                if j <= <size_t>most:
                    values[j] = p
                p = value_within(p, end)
            if width == <size_t>most:
                values[most] = p
            if together:
                out[0] = row_number(values[places[0]], values[places[0] + n] - values[places[0]], powers)
            else:
                joined.size = 0
                for k in range(n):
                    j = places[k]
                    put_raw(&joined, values[j], values[j + 1] - values[j])
                out[0] = row_number(joined.data, joined.size, powers)
            out[1] = row_number(begin, p - begin, powers)
            out += 2
    finally:
        PyMem_Free(values)
        PyMem_Free(places)
        free_buffer(&joined)
    if p != end:
        raise ValueError(f"{end - p} bytes follow the rows")
    return found
