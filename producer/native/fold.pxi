# The checksum of what a store has of a transaction (`shmstore.producer.transactions.seal`, whose `fold` is the reference), without decoding a header.

cdef enum:
    ORDER_ITEM = 8  # indexes of the header's fields: `shmstore.encoding.codec.Header`
    DATABASE_ITEM = 12
    SQL_ITEM = 13
    DEEPEST = 8  # a header nests no further


cdef uint64_t _folded_number(const uint8_t* at, int size) noexcept:
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value = value << 8 | at[i]
    return value


cdef const uint8_t* _behind(const uint8_t* at, const uint8_t* end, int depth) noexcept:
    """Where the MessagePack value at `at` ends; NULL where that is not before `end`, or not to be told."""
    cdef uint64_t size = 0, items = 0
    cdef uint8_t kind
    if at == NULL or at >= end or depth > DEEPEST:
        return NULL
    kind = at[0]
    at += 1
    if kind <= 0x7F or kind >= 0xE0 or kind in (0xC0, 0xC2, 0xC3):
        return at
    if kind <= 0x8F:
        items = 2 * (kind & 15)
    elif kind <= 0x9F:
        items = kind & 15
    elif kind <= 0xBF:
        size = kind & 31
    elif 0xCC <= kind <= 0xCF or 0xD0 <= kind <= 0xD3:
        size = 1 << (kind & 3)
    elif kind in (0xCA, 0xCB):
        size = 4 << (kind & 1)
    elif kind in (0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB):
        size = 1 << (kind - 0xC4 if kind < 0xC8 else kind - 0xD9)
        if <uint64_t>(end - at) < size:
            return NULL
        kind, size = <uint8_t>size, _folded_number(at, <int>size)
        at += kind
    else:
        return NULL  # longer lists and maps, extension types: in no header
    while items:
        at = _behind(at, end, depth + 1)
        if at == NULL:
            return NULL
        items -= 1
    return at + size if <uint64_t>(end - at) >= size else NULL


cdef const uint8_t* _content(const uint8_t* at, const uint8_t* stop) noexcept:
    """Where the bytes of the text or bytes from `at` to `stop` begin; NULL where it is neither, and `stop` where it is nil."""
    if at[0] == 0xC0:
        return stop
    if at[0] & 0xE0 == 0xA0:
        return at + 1
    if 0xC4 <= at[0] <= 0xC6:
        return at + 1 + (1 << (at[0] - 0xC4))
    if 0xD9 <= at[0] <= 0xDB:
        return at + 1 + (1 << (at[0] - 0xD9))
    return NULL


cdef bint _fold_one(const uint8_t* at, const uint8_t* end, int type_, uint32_t* checksum) noexcept:
    """Take one event in; False, with nothing taken, where Python has to."""
    cdef const uint8_t* texts[3]  # the database, the SQL and the schema, and where they end
    cdef const uint8_t* ends[3]
    cdef const uint8_t* item
    cdef uint64_t order = 0
    cdef uint32_t value
    cdef int i, width, items, found = 0
    cdef char prefix[64]
    if end - at < 3 or at[0] != 0x94 or at[1] > 0x7F or at[2] & 0xF0 != 0x90:
        return False
    items = at[2] & 15
    at += 3
    if items <= SQL_ITEM:
        return False
    for i in range(items + 1):  # the header's, and the schema behind it
        item = at
        at = _behind(at, end, 0)
        if at == NULL:
            return False
        if i == ORDER_ITEM:
            if item[0] <= 0x7F:
                order = item[0]
            elif 0xCC <= item[0] <= 0xCF:
                width = 1 << (item[0] & 3)
                order = _folded_number(item + 1, width)
            else:
                return False
        elif i in (DATABASE_ITEM, SQL_ITEM, items):
            texts[found], ends[found] = _content(item, at), at
            if texts[found] == NULL:
                return False
            found += 1
    value = crc_of(<const uint8_t*>prefix, snprintf(prefix, 64, "%llu %d ", <unsigned long long>order, type_), checksum[0])
    for i in range(2):
        value = crc_of(<const uint8_t*>b" ", 1, crc_of(texts[i], ends[i] - texts[i], value))
    if ends[2] - texts[2] > 5 and texts[2][0] == 0x97 and ends[2][-5] == 0xCE:  # `bare_schema`
        order = _folded_number(ends[2] - 4, 4)
        if order > <uint64_t>(ends[2] - texts[2]) or not order:
            return False
        value = crc_of(<const uint8_t*>b"\x94", 1, value)
        value = crc_of(texts[2] + 1, <Py_ssize_t>order - 1, value)
    else:
        value = crc_of(texts[2], ends[2] - texts[2], value)
    checksum[0] = crc_of(at, end - at, value)
    return True


def fold_events(const uint8_t[::1] blob, const uint32_t[:] sizes, const uint8_t[:] types, uint32_t checksum):
    """Return (how many of the events in `blob` were taken in, checksum): it ends before one that Python has to take."""
    cdef Py_ssize_t at = 0, i
    for i in range(sizes.shape[0]):
        if sizes[i] > blob.shape[0] - at:
            raise ValueError("the sizes do not fit the events")
        if not sizes[i] or not _fold_one(&blob[at], &blob[at] + sizes[i], types[i], &checksum):
            return i, checksum
        at += sizes[i]
    return sizes.shape[0], checksum
