# Entries: a stored event -> its entry, as `shmstore.consumer.wire.encoding.entry` has it.

cdef enum:
    LEAD = 64                  # bytes before a header that is written: tags and lengths of the messages around it, and RowChange's first fields
    LARGE = 1 << 16            # bytes of an event that is encoded without the interpreter's lock


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
