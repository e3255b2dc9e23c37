# Entries: a stored event -> its entry, as `shmstore.consumer.wire.encoding.entry` has it.

cdef enum:
    BEGIN_ENTRY = 1            # shmstore.event.EntryType
    ROWS_ENTRY = 2
    END_ENTRY = 3
    INSERT_TYPE = 1            # EventType
    READ_TYPE = 16
    HEADER_FIELDS = 15         # codec.Header
    LEAD = 64                  # bytes before a header that is written: tags and lengths of the messages around it, and RowChange's first fields
    LARGE = 1 << 16            # bytes of an event that is encoded without the interpreter's lock
    MOST_TABLES = 4096


cdef struct Props:             # what is looked for in an event's props; NULL where it is not there
    Piece xa
    Piece thread_id
    Piece xid
    Piece number               # curtGtidSn
    Piece parent               # curtGtidLct
    Piece query                # rows_query_at


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


cdef class Entries:
    """Encodes stored events, those of one client after each other. `table_of` gives the `rows.EntryTable` of a stored schema; `canal` and `gtids`
    as in `entry.Encoder`."""

    cdef object table_of
    cdef bint canal, gtids, busy
    cdef dict tables
    cdef bytes schema          # of the last event with rows
    cdef Table table
    cdef Out out, head

    def __cinit__(self, table_of, bint canal, bint gtids):
        self.table_of, self.canal, self.gtids, self.tables = table_of, canal, gtids, {}

    def __dealloc__(self):
        free(self.out.data)
        free(self.head.data)

    def encode(self, payload, wanted=None):
        """The entry of a stored event as `Encoder.encode` gives it, or NotImplemented where that must say it."""
        cdef Py_buffer view
        if self.busy:
            return NotImplemented
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        self.busy = True
        try:
            return self.entry_of(<const uint8_t*>view.buf, <const uint8_t*>view.buf + view.len, wanted)
        finally:
            self.busy = False
            PyBuffer_Release(&view)

    cdef object entry_of(self, const uint8_t* p, const uint8_t* end, object wanted):
        cdef Stored event
        cdef Out* out = &self.out
        cdef bint done
        cdef Table table = None
        if not read_stored(p, end, &event) or event.props.xa.at != NULL or (self.canal and event.props.query.at != NULL):
            return NotImplemented
        if event.entry == ROWS_ENTRY:
            if event.schema.at == NULL or event.sql.size:
                return NotImplemented
            table = self.known(&event.schema)
            if wanted is not None and not wanted(table.name):
                return None
        elif event.schema.at != NULL:
            return NotImplemented
        elif event.entry == BEGIN_ENTRY:
            if self.canal and event.props.thread_id.at == NULL and event.type != READ_TYPE:
                return None
        elif event.entry != END_ENTRY:
            return NotImplemented
        self.head.size = 0
        if not self.header(&event, table):
            return NotImplemented
        # The rows come behind the space for what is before them, which is known when they are there.
        out.size = 0
        if not reserve(out, self.head.size + LEAD + 64):
            return NotImplemented
        out.size = self.head.size + LEAD
        if table is not None:
            if end - p < LARGE:
                done = not event.rows or table.rows(
                    out, event.before, event.before_columns, event.after, event.after_columns, event.rows, end
                )
            else:
                with nogil:
                    done = not event.rows or table.rows(
                        out, event.before, event.before_columns, event.after, event.after_columns, event.rows, end
                    )
            if not done:
                return NotImplemented
        elif not self.transaction(&event):
            return NotImplemented
        return self.whole(&event, table)

    cdef Table known(self, Piece* schema):
        """The table of a stored schema."""
        if self.schema is not None and <size_t>PyBytes_GET_SIZE(self.schema) == schema.size and not memcmp(
            PyBytes_AS_STRING(self.schema), schema.at, schema.size
        ):
            return self.table
        cdef bytes blob = PyBytes_FromStringAndSize(<const char*>schema.at, schema.size)
        table = self.tables.get(blob)
        if table is None:
            if len(self.tables) >= MOST_TABLES:
                self.tables.clear()
            table = self.tables[blob] = Table(self.table_of(blob))
        self.schema, self.table = blob, table
        return table

    cdef bint header(self, Stored* event, Table table) noexcept:
        """Write Header into `head`; False where the reference must."""
        cdef Out* head = &self.head
        cdef uint8_t[24] count
        cdef uint8_t* to
        cdef size_t text = event.file.size + 2 * event.transaction.size + event.gtids.size
        cdef bint stands_in
        text += event.props.number.size + event.props.parent.size
        if table is not None:
            text += table.names.size
        if not reserve(head, text + 512):
            return False
        to = head.data
        to[0], to[1] = 0x08, 1
        to = put_string(to + 2, 0x12, event.file.at, event.file.size)
        to = put_number(to, 0x18, event.offset - event.length)  # as Canal: where the event starts
        to = put_number(to, 0x20, event.server)
        to = put_piece(to, <const uint8_t*>b"\x2a\x05UTF-8", 7)
        to = put_number(to, 0x30, event.time // 1000 * 1000)
        to[0], to[1] = 0x38, 2
        to += 2
        if table is not None:
            to = put_piece(to, table.names.at, table.names.size)
        to = put_number(to, 0x50, event.length)
        if table is not None:
            to[0] = 0x58
            to = put_varint(to + 1, INSERT_TYPE if event.type == READ_TYPE else event.type)
        if self.gtids:
            # A place in the binlog stands in for the GTID of a server that has none.
            stands_in = event.transaction.size > event.file.size and event.transaction.at[event.file.size] == c":" and not memcmp(
                event.transaction.at, event.file.at, event.file.size
            )
            if event.transaction.size and not stands_in:
                to = put_pair(to, 0x62, b"curtGtid", 8, event.transaction.at, event.transaction.size)
                if event.props.number.at != NULL:
                    to = put_pair(to, 0x62, b"curtGtidSn", 10, event.props.number.at, event.props.number.size)
                    if event.props.parent.at != NULL:
                        to = put_pair(to, 0x62, b"curtGtidLct", 11, event.props.parent.at, event.props.parent.size)
        if table is not None:
            if event.rows:
                to = put_pair(to, 0x62, b"rowsCount", 9, count, write_unsigned(count, event.rows))
            if event.type == READ_TYPE:
                to = put_pair(to, 0x62, b"snapshot", 8, <const uint8_t*>b"true", 4)
        if self.gtids:
            to = put_string(to, 0x6A, event.gtids.at, event.gtids.size)
        head.size = to - head.data
        return True

    cdef bint transaction(self, Stored* event) noexcept:
        """Write a TransactionBegin or a TransactionEnd; False where the reference must."""
        cdef Out* out = &self.out
        cdef Piece text = event.props.xid
        cdef uint64_t thread = 0
        cdef size_t i
        if event.entry == END_ENTRY:
            if text.at == NULL:
                text.at, text.size = <const uint8_t*>b"0", 1
            if not reserve(out, text.size + 16):
                return False
            out.size = put_string(out.data + out.size, 0x12, text.at, text.size) - out.data
            return True
        text = event.props.thread_id
        if text.size > 18:
            return False
        for i in range(text.size):
            if not c"0" <= text.at[i] <= c"9":
                return False
            thread = thread * 10 + (text.at[i] - c"0")
        out.size = put_number(out.data + out.size, 0x20, thread) - out.data
        return True

    cdef object whole(self, Stored* event, Table table):
        """The entry around what was written behind the space for the header."""
        cdef Out* out = &self.out
        cdef Out* head = &self.head
        cdef size_t first = head.size + LEAD, value = out.size - first, stored = 0, content
        cdef uint8_t[32] change
        cdef uint8_t* to = change
        cdef uint8_t* start
        if table is not None:  # RowChange: tableId, eventType, isDdl
            to = put_piece(to, table.head.at, table.head.size)
            to[0] = 0x10
            to = put_varint(to + 1, INSERT_TYPE if event.type == READ_TYPE else event.type)
            to[0], to[1] = 0x50, 0
            to += 2
        value += to - change
        if value:
            stored = 1 + varint_size(value) + value
        content = 1 + varint_size(head.size) + head.size + 2 + stored
        start = out.data + out.size - content - 1 - varint_size(content)
        first = start - out.data
        start[0] = 0x12
        start = put_varint(start + 1, content)
        start[0] = 0x0A
        start = put_piece(put_varint(start + 1, head.size), head.data, head.size)
        start[0], start[1] = 0x10, <uint8_t>event.entry  # Canal's numbers
        start += 2
        if value:
            start[0] = 0x1A
            put_piece(put_varint(start + 1, value), change, to - change)
        return PyBytes_FromStringAndSize(<char*>out.data + first, out.size - first)


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
