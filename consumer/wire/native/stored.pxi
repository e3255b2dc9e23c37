# A stored event, read but for its rows; and what its rows have values of.

cdef enum:
    BEGIN_ENTRY = 1            # shmstore.event.EntryType
    ROWS_ENTRY = 2
    END_ENTRY = 3
    INSERT_TYPE = 1            # EventType
    READ_TYPE = 16
    HEADER_FIELDS = 15         # codec.Header
    MOST_TABLES = 4096


cdef struct Props:             # what is looked for in an event's props; NULL where it is not there
    Piece xa
    Piece thread_id
    Piece xid
    Piece number               # curtGtidSn
    Piece parent               # curtGtidLct
    Piece query                # rows_query_at
    Piece statement            # rows_query


cdef struct Stored:            # an event
    int64_t entry
    int64_t type
    int64_t offset
    int64_t length
    int64_t time
    int64_t server
    Piece file
    Piece transaction
    Piece gtids
    Piece sql
    Piece schema               # NULL: none
    Props props
    int64_t rows
    const uint8_t* before      # where the rows of the images begin; NULL: none
    const uint8_t* after
    const uint8_t* before_columns
    const uint8_t* after_columns


cdef inline const uint8_t* text_at(const uint8_t* p, const uint8_t* end, Piece* found) noexcept nogil:
    """A str that is UTF-8; gives where it ends, or NULL."""
    if p == NULL:
        return NULL
    found.at = read_text(p, end, &found.size)
    return found.at + found.size if found.at != NULL and is_utf8(found.at, found.size) else NULL


cdef inline const uint8_t* whole_at(const uint8_t* p, const uint8_t* end, int64_t* found) noexcept nogil:
    """An integer from 0 to 2**60; gives where it ends, or NULL."""
    if p == NULL:
        return NULL
    p = read_signed(p, end, found)
    return p if p != NULL and 0 <= found[0] <= <int64_t>1 << 60 else NULL


cdef const uint8_t* props_at(const uint8_t* p, const uint8_t* end, Props* found) noexcept nogil:
    """A map of text to text; gives where it ends, or NULL. Of a key that comes twice the last counts."""
    cdef int64_t count
    cdef Piece key, value
    if p == NULL or p >= end:
        return NULL
    if p[0] & 0xF0 == 0x80:
        count = p[0] & 0x0F
        p += 1
    elif p[0] == 0xDE and end - p >= 3:
        count = <int64_t>big(p + 1, 2)
        p += 3
    else:
        return NULL
    while count:
        p = text_at(text_at(p, end, &key), end, &value)
        if p == NULL:
            return NULL
        if key.size == 2 and not memcmp(key.at, b"xa", 2):
            found.xa = value
        elif key.size == 3 and not memcmp(key.at, b"xid", 3):
            found.xid = value
        elif key.size == 9 and not memcmp(key.at, b"thread_id", 9):
            found.thread_id = value
        elif key.size == 10 and not memcmp(key.at, b"curtGtidSn", 10):
            found.number = value
        elif key.size == 10 and not memcmp(key.at, b"rows_query", 10):
            found.statement = value
        elif key.size == 11 and not memcmp(key.at, b"curtGtidLct", 11):
            found.parent = value
        elif key.size == 13 and not memcmp(key.at, b"rows_query_at", 13):
            found.query = value
        count -= 1
    return p


cdef bint read_stored(const uint8_t* p, const uint8_t* end, Stored* event) noexcept nogil:
    """Read an event but for its rows; False where anything is not as `shmstore.encoding.codec` writes it."""
    cdef int64_t number, before_rows = 0, after_rows = 0
    cdef Piece text
    memset(event, 0, sizeof(Stored))
    if end - p < 5 or p[0] != 0x95 or p[1] != 2 or p[2] != 0x90 | HEADER_FIELDS:  # five values; the format; the header
        return False
    p = text_at(whole_at(whole_at(p + 3, end, &event.entry), end, &event.type), end, &event.file)
    p = whole_at(whole_at(p, end, &event.offset), end, &event.length)
    p = whole_at(whole_at(p, end, &event.time), end, &event.server)
    p = whole_at(whole_at(text_at(p, end, &event.transaction), end, &number), end, &number)
    p = whole_at(text_at(p, end, &event.gtids), end, &number)
    p = skip_resume(props_at(text_at(text_at(p, end, &text), end, &event.sql), end, &event.props), end)
    if p == NULL or p >= end or not event.file.size or event.length > event.offset or event.type > 0xFFFF:
        return False
    if p[0] == 0xC0:  # no table
        return end - p == 2 and p[1] == 0xC0
    event.schema.at = read_bin(p, end, &event.schema.size)
    if event.schema.at == NULL:
        return False
    p = event.schema.at + event.schema.size
    if p >= end:
        return False
    if p[0] == 0xC0:
        return end - p == 1
    if p[0] != 0x94:
        return False
    p = image_at(p + 1, end, &event.before_columns, &event.before, &before_rows)
    if p != NULL:
        p = image_at(p, end, &event.after_columns, &event.after, &after_rows)
    event.rows = before_rows or after_rows
    # An image without rows is none.
    return p == end and (event.before == NULL or event.after == NULL or before_rows == after_rows)


cdef const uint8_t* image_at(const uint8_t* p, const uint8_t* end, const uint8_t** columns, const uint8_t** rows, int64_t* count) noexcept nogil:
    """The columns and rows of an image; gives where it ends, or NULL."""
    cdef int64_t width, i, k
    if p >= end:
        return NULL
    if p[0] == 0xC0:
        p += 1
    else:
        columns[0] = p
        p = read_array(p, end, &width)
        for i in range(width if p != NULL else 0):
            p = read_signed(p, end, &k)
            if p == NULL:
                return NULL
    if p == NULL or p >= end:
        return NULL
    if p[0] == 0xC0:
        return p + 1
    p = read_array(p, end, count)
    if p == NULL:
        return NULL
    rows[0] = p if count[0] else NULL
    for i in range(count[0]):
        p = read_array(p, end, &width)
        if p == NULL:
            return NULL
        for k in range(width):
            p = behind_cell(p, end)
            if p == NULL:
                return NULL
    return p


cdef inline int member_of(const Piece* members, int count, const uint8_t* at, size_t size) noexcept nogil:
    """The number of a member, from 1; 0 where there is none of that name. Of two the last counts."""
    cdef int i = count
    while i:
        i -= 1
        if members[i].size == size and memcmp(members[i].at, at, size) == 0:
            return i + 1
    return 0


cdef bint set_mask(const Piece* members, int count, const uint8_t* at, size_t size, uint64_t* mask) noexcept nogil:
    """The members of a SET as bits; False where one is none, comes twice, or has no bit."""
    cdef const uint8_t* end = at + size
    cdef const uint8_t* comma
    cdef int i
    mask[0] = 0
    while size:
        comma = <const uint8_t*>memchr(at, c",", end - at)
        i = member_of(members, count, at, (comma if comma != NULL else end) - at)
        if not 1 <= i <= 64 or mask[0] >> (i - 1) & 1:
            return False
        mask[0] |= <uint64_t>1 << (i - 1)
        if comma == NULL:
            return True
        at = comma + 1
    return True


cdef inline const uint8_t* behind_cell(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Where a value ends; NULL where it is none that a row has."""
    cdef uint8_t head
    cdef size_t size
    cdef const uint8_t* at
    if p >= end:
        return NULL
    head = p[0]
    if head < 0x80 or head >= 0xE0 or head == 0xC0:
        return p + 1
    if 0xCC <= head <= 0xD3:
        size = <size_t>1 << (head - 0xCC & 3)
    elif head == 0xCA or head == 0xCB:
        size = 4 << (head - 0xCA)
    else:
        at = read_text(p, end, &size)
        if at == NULL:
            at = read_bin(p, end, &size)
        return at + size if at != NULL else NULL
    return p + 1 + size if <size_t>(end - p) > size else NULL
