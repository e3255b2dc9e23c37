# RowMessages: a stored event -> its messages, in each of the formats.

cdef enum Shape:
    CANAL = 0
    OWN = 1
    DEBEZIUM = 2
    MAXWELL = 3

_SHAPES = {"canal": CANAL, "json": OWN, "debezium": DEBEZIUM, "maxwell": MAXWELL}

cdef enum:
    HEARTBEAT_ENTRY = 4        # shmstore.event.EntryType
    UPDATE_TYPE = 2            # EventType
    DELETE_TYPE = 3


cdef str POSITION = "shmstore.position", SEQUENCE = "shmstore.sequence", TRANSACTION = "shmstore.transaction"


cdef extern from *:
    """
    #define NEW_TUPLE(kind, size) PyType_GenericAlloc((PyTypeObject*)(kind), size)
    """
    object NEW_TUPLE(type kind, Py_ssize_t size)  # of a subclass of tuple, its items not set yet


# Messages and their headers are text, bytes and numbers, so that no cycle goes through them. A batch has hundreds of thousands: the collector would walk
# over all of them again and again while the rest is made, up to 40 % of the time. So it does not know them.
cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object made)


cdef inline void item(object made, Py_ssize_t i, object value) noexcept:
    Py_INCREF(value)
    PyTuple_SET_ITEM(made, i, value)


cdef class RowMessages:
    """Makes the messages of stored events, which come in order. `plan_of` gives the `row_plans.MessagePlan` of a stored schema, None where the reference
    must make its messages; `message` is `queue.Message`; `shape` and `gtids` are the format's, `name` Debezium's name of the server as JSON."""

    cdef object plan_of, real, nothing, first
    cdef type message
    cdef int shape
    cdef bint gtids, with_headers, tombstones, busy
    cdef int64_t bytes
    cdef dict tables
    cdef bytes schema, name    # of the last event with rows; the server's name
    cdef RowTable table
    cdef Out out, side, key, head, tail

    def __cinit__(self, plan_of, type message, str shape, bytes name, *, bint gtids, bint headers, bint tombstones, real):
        if not issubclass(message, tuple):
            raise TypeError(f"{message!r} is no tuple")
        self.plan_of, self.message, self.shape, self.name = plan_of, message, _SHAPES[shape], name
        self.gtids, self.with_headers, self.tombstones, self.real, self.tables = gtids, headers, tombstones, real, {}

    def __dealloc__(self):
        free(self.out.data)
        free(self.side.data)
        free(self.key.data)
        free(self.head.data)
        free(self.tail.data)

    def messages(self, list found, payloads, int64_t sequence, thread, int64_t now, Py_ssize_t messages, int64_t size):
        """Add the messages of the next events to `found`, until there are so many, or their values have so many bytes, or the reference must say one's.

        Gives the sequence behind the last event that was looked at; its payload, None where there was none; whether the reference must say its messages,
        None where no event is left; the bytes of the values; and the thread of the transaction in hand. `thread` is the one before, `now` the
        nanoseconds since 1970.
        """
        cdef Py_buffer view
        last = None
        if self.busy:
            last = next(payloads, None)
            return (sequence, None, None, 0, thread) if last is None else (sequence + 1, last, True, 0, thread)
        self.busy = True
        self.bytes = 0
        try:
            while len(found) < messages and self.bytes < size:
                payload = next(payloads, None)
                if payload is None:
                    return sequence, last, None, self.bytes, thread
                last = payload
                PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
                try:
                    made = self.made(found, <const uint8_t*>view.buf, <const uint8_t*>view.buf + view.len, sequence, thread, now)
                finally:
                    PyBuffer_Release(&view)
                sequence += 1
                if made is NotImplemented:
                    return sequence, last, True, self.bytes, thread
                if made is not found:
                    thread = made
            return sequence, last, False, self.bytes, thread
        finally:
            self.busy = False

    cdef object made(self, list found, const uint8_t* p, const uint8_t* end, int64_t sequence, object thread, int64_t now):
        """`found`, with the messages of an event; of a transaction's begin its thread, or None; NotImplemented where the reference must say it."""
        cdef Stored event
        cdef RowTable table
        if not read_stored(p, end, &event) or event.sql.size:
            return NotImplemented
        if event.entry != ROWS_ENTRY:
            if event.schema.at != NULL or event.type > READ_TYPE:
                return NotImplemented
            if event.entry == BEGIN_ENTRY:
                return begun(&event.props.thread_id)
            return found if event.entry == END_ENTRY or event.entry == HEARTBEAT_ENTRY else NotImplemented
        if event.schema.at == NULL or not event.rows or (event.before == NULL and event.after == NULL):
            return NotImplemented
        # The type, and the images that belong to it.
        if event.type == UPDATE_TYPE:
            if event.before == NULL or event.after == NULL:
                return NotImplemented
        elif event.type == DELETE_TYPE:
            if event.after != NULL:
                return NotImplemented
        elif (event.type != INSERT_TYPE and event.type != READ_TYPE) or event.before != NULL:
            return NotImplemented
        table = self.known(&event.schema)
        if table is None:
            return NotImplemented
        if table.unwanted:
            return found
        if event.before == NULL:
            table.unmarked(BEFORE)
        if event.after == NULL:
            table.unmarked(AFTER)
        if self.shape == CANAL:
            return self.canal(found, &event, table, end, sequence, now)
        return self.by_row(found, &event, table, end, sequence, thread, now)

    cdef RowTable known(self, Piece* schema):
        """The table of a stored schema."""
        if self.schema is not None and <size_t>PyBytes_GET_SIZE(self.schema) == schema.size and not memcmp(
            PyBytes_AS_STRING(self.schema), schema.at, schema.size
        ):
            return self.table
        cdef bytes blob = PyBytes_FromStringAndSize(<const char*>schema.at, schema.size)
        try:
            table = self.tables[blob]
        except KeyError:
            if len(self.tables) >= MOST_TABLES:
                self.tables.clear()
            plan = self.plan_of(blob)
            table = self.tables[blob] = None if plan is None else RowTable(plan, self.real)
        self.schema, self.table = blob, table
        return table

    cdef object headers(self, Stored* event, int64_t sequence):
        """Where the messages come from."""
        if not self.with_headers:
            return ()
        cdef Out* text = &self.key
        cdef uint8_t[SHORT] digits
        text.size = 0
        if not (put(text, event.file.at, event.file.size) and say(text, b":") and number(text, event.offset)):
            raise MemoryError("no memory for headers")
        cdef list found = [
            (POSITION, PyBytes_FromStringAndSize(<char*>text.data, text.size)),
            (SEQUENCE, PyBytes_FromStringAndSize(<char*>digits, write_signed(digits, sequence))),
        ]
        if event.transaction.size:
            found.append((TRANSACTION, PyBytes_FromStringAndSize(<const char*>event.transaction.at, event.transaction.size)))
        for pair in found:
            PyObject_GC_UnTrack(pair)
        PyObject_GC_UnTrack(found)
        return found

    cdef object one(self, RowTable table, object key, object value, object sequence, object row, object headers):
        made = NEW_TUPLE(self.message, 7)
        item(made, 0, table.topic)
        item(made, 1, key)
        item(made, 2, value)
        item(made, 3, table.unkeyed if key is None else table.keyed)
        item(made, 4, sequence)
        item(made, 5, row)
        item(made, 6, headers)
        PyObject_GC_UnTrack(made)
        return made

    # ---------------------------------------------------------------- Canal's: one document for all rows

    cdef object canal(self, list found, Stored* event, RowTable table, const uint8_t* end, int64_t sequence, int64_t now):
        cdef Out* out = &self.out
        out.size = self.side.size = 0
        if not self.canal_document(event, table, end, sequence, now):
            return NotImplemented
        value = PyBytes_FromStringAndSize(<char*>out.data, out.size)
        self.bytes += out.size
        found.append(self.one(table, None, value, sequence, 0, self.headers(event, sequence)))
        return found

    cdef bint canal_document(self, Stored* event, RowTable table, const uint8_t* end, int64_t sequence, int64_t now) noexcept:
        cdef Out* out = &self.out
        cdef Out* old = &self.side
        cdef const uint8_t* before = event.before
        cdef const uint8_t* after = event.after
        cdef int newest = AFTER if after != NULL else BEFORE
        cdef int64_t i
        cdef bint first = True
        cdef int k
        if event.props.statement.at != NULL or not say(out, b'{"data":['):
            return False
        for i in range(event.rows):
            table.begin_row()
            if before != NULL:
                before = table.marked(BEFORE, before, event.before_columns, end)
                if before == NULL:
                    return False
            if after != NULL:
                after = table.marked(AFTER, after, event.after_columns, end)
                if after == NULL:
                    return False
            if (i and not say(out, b",")) or not table.image(out, newest, newest, end):
                return False
            if out.data[out.size - 2] == c"{" :
                return False  # without any column
            if before != NULL and after != NULL and not self.canal_old(old, out, table, end, i == 0):
                return False
        if not (say(out, b'],"database":') and put(out, table.database.at, table.database.size) and say(out, b',"es":')):
            return False
        if not (number(out, event.time // 1000 * 1000) and say(out, b',"gtid":')):
            return False
        if not quoted(out, event.gtids.at, event.gtids.size if self.gtids else 0) or not say(out, b',"id":'):
            return False
        if not (number(out, sequence) and say(out, b',"isDdl":false,"mysqlType":{')):
            return False
        for k in range(table.width):
            if table.columns[k].raw[newest].at != NULL:
                if not table.named(out, &table.columns[k].mysql_type, first):
                    return False
                first = False
        if not say(out, b'},"old":'):
            return False
        if before == NULL or after == NULL:
            if not say(out, b'null,"pkNames":'):
                return False
        elif not (say(out, b"[") and put(out, old.data, old.size) and say(out, b'],"pkNames":')):
            return False
        if not self.canal_key(out, table, newest) or not say(out, b',"sql":"","sqlType":{'):
            return False
        first = True
        for k in range(table.width):
            if table.columns[k].raw[newest].at != NULL:
                if not table.named(out, &table.columns[k].sql_type[table.columns[k].type], first):
                    return False
                first = False
        if not (say(out, b'},"table":') and put(out, table.table.at, table.table.size) and say(out, b',"ts":')):
            return False
        return number(out, now // 1000000) and say(out, b',"type":"') and say(out, canal_type(event.type)) and say(out, b'"}')

    cdef bint canal_old(self, Out* old, const Out* out, RowTable table, const uint8_t* end, bint first_row) noexcept:
        """What the columns that a row changed were before, by what is printed."""
        cdef int i, type_
        cdef bint first = True
        cdef size_t start, begin
        cdef Column* column
        if not say(old, b"{" if first_row else b",{"):
            return False
        for i in range(table.width):
            column = &table.columns[i]
            if not table.differs(column):
                continue
            start, type_ = old.size, column.type
            if not table.named(old, &column.name, first):
                return False
            begin = old.size
            if not table.json(old, column, i, column.raw[BEFORE].at, end):
                return False
            column.type = type_
            if old.size - begin == column.cell_size[AFTER] and not memcmp(
                old.data + begin, out.data + column.cell[AFTER], column.cell_size[AFTER]
            ):
                old.size = start
            else:
                first = False
        return say(old, b"}")

    cdef bint canal_key(self, Out* out, RowTable table, int newest) noexcept:
        """The names of the key's columns, in the order of the columns."""
        cdef int i
        cdef Column* column
        cdef bint first = True
        for i in range(table.width):
            column = &table.columns[i]
            if not column.is_key or column.raw[newest].at == NULL:
                continue
            # A name is `,"name":`
            if not say(out, b"[" if first else b",") or not put(out, column.name.at + 1, column.name.size - 2):
                return False
            first = False
        return say(out, b"null" if first else b"]")

    # ---------------------------------------------------------------- the others: one for each row

    cdef object by_row(self, list found, Stored* event, RowTable table, const uint8_t* end, int64_t sequence, object thread, int64_t now):
        cdef Out* out = &self.out
        cdef const uint8_t* before = event.before
        cdef const uint8_t* after = event.after
        cdef int64_t i, bytes_ = 0
        cdef bint done, whole
        cdef Py_ssize_t kept = len(found)
        self.head.size = self.tail.size = 0
        if self.shape == OWN:
            done = self.own_around(event, table, sequence)
        elif self.shape == DEBEZIUM:
            done = self.debezium_around(event, table, thread, now)
        else:
            done = self.maxwell_around(event, table, thread)
        if not done:
            return NotImplemented
        same = sequence  # one object for all
        headers = self.headers(event, sequence)
        for i in range(event.rows):
            done = self.row(event, table, end, i, &before, &after, &whole)
            if not done:
                del found[kept:]
                return NotImplemented
            key = PyBytes_FromStringAndSize(<char*>self.key.data, self.key.size) if whole else None
            value = PyBytes_FromStringAndSize(<char*>out.data, out.size)
            bytes_ += out.size
            found.append(self.one(table, key, value, same, i, headers))
            if self.tombstones and whole and event.type == DELETE_TYPE:
                found.append(self.one(table, key, None, same, i, headers))
        self.bytes += bytes_
        return found

    cdef bint row(
        self, Stored* event, RowTable table, const uint8_t* end, int64_t i, const uint8_t** before, const uint8_t** after, bint* whole
    ) noexcept:
        """Write the next row's document and key; False where the reference must."""
        cdef bint done
        table.begin_row()
        if before[0] != NULL:
            before[0] = table.marked(BEFORE, before[0], event.before_columns, end)
            if before[0] == NULL:
                return False
        if after[0] != NULL:
            after[0] = table.marked(AFTER, after[0], event.after_columns, end)
            if after[0] == NULL:
                return False
        if before[0] != NULL and after[0] != NULL and table.moves():
            return False
        self.out.size = self.side.size = self.key.size = 0
        if self.shape == OWN:
            done = self.own(event, table, end, i, whole)
        elif self.shape == DEBEZIUM:
            done = self.debezium(event, table, end, i, whole)
        else:
            done = self.maxwell(event, table, end, whole)
        return done and (not table.keys or whole[0])

    cdef bint own_around(self, Stored* event, RowTable table, int64_t sequence) noexcept:
        cdef Out* head = &self.head
        cdef Out* tail = &self.tail
        if not (say(head, b'{"op":"') and say(head, own_type(event.type)) and say(head, b'","ts_ms":') and number(head, event.time)):
            return False
        if not (say(head, b',"database":') and put(head, table.database.at, table.database.size) and say(head, b',"table":')):
            return False
        if not (put(head, table.table.at, table.table.size) and say(head, b',"before":')):
            return False
        if not (say(tail, b',"position":{"file":') and quoted(tail, event.file.at, event.file.size) and say(tail, b',"offset":')):
            return False
        if not number(tail, event.offset):
            return False
        if event.gtids.size and not (say(tail, b',"gtids":') and quoted(tail, event.gtids.at, event.gtids.size)):
            return False
        if not (say(tail, b'},"transaction":') and quoted(tail, event.transaction.at, event.transaction.size)):
            return False
        if not (say(tail, b',"server_id":') and number(tail, event.server) and say(tail, b',"seq":') and number(tail, sequence)):
            return False
        return say(tail, b',"row":')

    cdef bint own(self, Stored* event, RowTable table, const uint8_t* end, int64_t row, bint* whole) noexcept:
        cdef Out* out = &self.out
        if not put(out, self.head.data, self.head.size) or not self.images(event, table, end, b',"after":'):
            return False
        if not table.keyed_by(&self.key, out, whole):
            return False
        if not (say(out, b',"pk":') and put(out, self.key.data, self.key.size) and put(out, self.tail.data, self.tail.size)):
            return False
        return number(out, row) and say(out, b"}")

    cdef bint images(self, Stored* event, RowTable table, const uint8_t* end, const char* between) noexcept:
        """Both images, null where there is none."""
        cdef Out* out = &self.out
        if not (say(out, b"null") if event.before == NULL else table.image(out, BEFORE, BEFORE, end)) or not say(out, between):
            return False
        return say(out, b"null") if event.after == NULL else table.image(out, AFTER, AFTER, end)

    cdef bint gtid(self, Out* out, Stored* event) noexcept:
        """The transaction's GTID; null where a place in the binlog stands in for it."""
        cdef bint stands_in = event.transaction.size > event.file.size and event.transaction.at[event.file.size] == c":" and not memcmp(
            event.transaction.at, event.file.at, event.file.size
        )
        if stands_in or not event.transaction.size:
            return say(out, b"null")
        return quoted(out, event.transaction.at, event.transaction.size)

    cdef bint debezium_around(self, Stored* event, RowTable table, object thread, int64_t now):
        cdef Out* head = &self.head
        cdef Out* tail = &self.tail
        if event.time > <int64_t>9000000000000:  # in nanoseconds it would have more than 64 bits
            return False
        if not say(head, b',"source":{"version":"shmstore","connector":"mysql","name":'):
            return False
        if not (put(head, <const uint8_t*>PyBytes_AS_STRING(self.name), PyBytes_GET_SIZE(self.name)) and say(head, b',"ts_ms":')):
            return False
        if not (number(head, event.time) and say(head, b',"snapshot":"') and say(head, b"true" if event.type == READ_TYPE else b"false")):
            return False
        if not (say(head, b'","db":') and put(head, table.database.at, table.database.size) and say(head, b',"sequence":null,"ts_us":')):
            return False
        if not (number(head, event.time * 1000) and say(head, b',"ts_ns":') and number(head, event.time * 1000000)):
            return False
        if not (say(head, b',"table":') and put(head, table.table.at, table.table.size) and say(head, b',"server_id":')):
            return False
        if not (number(head, event.server) and say(head, b',"gtid":') and self.gtid(head, event) and say(head, b',"file":')):
            return False
        if not (quoted(head, event.file.at, event.file.size) and say(head, b',"pos":') and number(head, event.offset - event.length)):
            return False
        if not (say(head, b',"row":') and say(tail, b',"thread":')):
            return False
        if not (say(tail, b"null") if thread is None else number(tail, thread)) or not say(tail, b',"query":'):
            return False
        if event.props.statement.at == NULL:
            if not say(tail, b"null"):
                return False
        elif not quoted(tail, event.props.statement.at, event.props.statement.size):
            return False
        if not (say(tail, b'},"transaction":null,"op":"') and say(tail, debezium_type(event.type)) and say(tail, b'","ts_ms":')):
            return False
        if not (number(tail, now // 1000000) and say(tail, b',"ts_us":') and number(tail, now // 1000) and say(tail, b',"ts_ns":')):
            return False
        return number(tail, now) and say(tail, b"}") and put(tail, table.schema_tail.at, table.schema_tail.size)

    cdef bint debezium(self, Stored* event, RowTable table, const uint8_t* end, int64_t row, bint* whole) noexcept:
        cdef Out* out = &self.out
        if not (put(out, table.schema_head.at, table.schema_head.size) and say(out, b'{"before":') and self.images(event, table, end, b',"after":')):
            return False
        if not (put(out, self.head.data, self.head.size) and number(out, row) and put(out, self.tail.data, self.tail.size)):
            return False
        return table.keyed_by(&self.key, out, whole)

    cdef bint maxwell_around(self, Stored* event, RowTable table, object thread):
        cdef Out* head = &self.head
        if not (say(head, b'{"database":') and put(head, table.database.at, table.database.size) and say(head, b',"table":')):
            return False
        if not (put(head, table.table.at, table.table.size) and say(head, b',"type":"') and say(head, maxwell_type(event.type))):
            return False
        if not (say(head, b'","ts":') and number(head, event.time // 1000) and say(head, b',"position":')):
            return False
        if not quoted(head, event.file.at, event.file.size):
            return False
        head.size -= 1  # the string continues
        if not (say(head, b":") and number(head, event.offset) and say(head, b'","gtid":') and self.gtid(head, event)):
            return False
        if not (say(head, b',"server_id":') and number(head, event.server)):
            return False
        if thread is not None and not (say(head, b',"thread_id":') and number(head, thread)):
            return False
        return say(head, b',"primary_key":[')

    cdef bint maxwell(self, Stored* event, RowTable table, const uint8_t* end, bint* whole) noexcept:
        cdef Out* out = &self.out
        cdef Out* known = &self.side
        cdef int i, side
        cdef Column* column
        # A column that only the image before has did not change.
        if not table.image(known, AFTER, BEFORE, end) or not put(out, self.head.data, self.head.size):
            return False
        for i in range(table.keys):
            column = &table.columns[table.key[i]]
            side = AFTER if column.raw[AFTER].at != NULL else BEFORE
            if i and not say(out, b","):
                return False
            if column.raw[side].at == NULL:
                if not say(out, b"null"):
                    return False
            elif not put(out, known.data + column.cell[side], column.cell_size[side]):
                return False
        if not (say(out, b'],"primary_key_columns":') and put(out, table.key_columns.at, table.key_columns.size)):
            return False
        if not (say(out, b',"data":') and put(out, known.data, known.size)):
            return False
        if event.type == UPDATE_TYPE and not self.maxwell_old(out, known, table, end):
            return False
        return say(out, b"}") and table.keyed_by(&self.key, known, whole)

    cdef bint maxwell_old(self, Out* out, const Out* known, RowTable table, const uint8_t* end) noexcept:
        """What the columns that a row changed were before, by their values."""
        cdef int i
        cdef bint first = True, same
        cdef size_t start, begin
        cdef const uint8_t* now
        cdef Column* column
        if not say(out, b',"old":{'):
            return False
        for i in range(table.width):
            column = &table.columns[i]
            if not table.differs(column):
                continue
            start = out.size
            if not table.named(out, &column.name, first):
                return False
            begin = out.size
            if not table.json(out, column, i, column.raw[BEFORE].at, end):
                return False
            now = known.data + column.cell[AFTER]
            same = out.size - begin == column.cell_size[AFTER] and not memcmp(out.data + begin, now, column.cell_size[AFTER])
            if not same and (column.form == REAL or column.form == DECIMAL_NUMBER):
                same = is_zero(out.data + begin, out.size - begin) and is_zero(now, column.cell_size[AFTER])
            if not same and column.form == DOCUMENT:
                return False  # other text may be the same document
            if same:
                out.size = start
            else:
                first = False
        return say(out, b"}")


cdef inline bint is_zero(const uint8_t* at, size_t size) noexcept nogil:
    """Whether a number, written out, is zero."""
    cdef size_t i
    for i in range(size):
        if at[i] != c"0" and at[i] != c"." and at[i] != c"-":
            return False
    return True


cdef object begun(const Piece* text):
    """The thread that a transaction's begin names; None where it names none."""
    cdef size_t i
    cdef int64_t thread = 0
    if text.size > 18:
        return NotImplemented
    for i in range(text.size):
        if not c"0" <= text.at[i] <= c"9":
            return NotImplemented
        thread = thread * 10 + (text.at[i] - c"0")
    return thread if text.size else None


cdef inline const char* canal_type(int64_t type_) noexcept nogil:
    return b"UPDATE" if type_ == UPDATE_TYPE else b"DELETE" if type_ == DELETE_TYPE else b"INSERT"


cdef inline const char* own_type(int64_t type_) noexcept nogil:
    return b"update" if type_ == UPDATE_TYPE else b"delete" if type_ == DELETE_TYPE else b"insert" if type_ == INSERT_TYPE else b"read"


cdef inline const char* debezium_type(int64_t type_) noexcept nogil:
    return b"u" if type_ == UPDATE_TYPE else b"d" if type_ == DELETE_TYPE else b"c" if type_ == INSERT_TYPE else b"r"


cdef inline const char* maxwell_type(int64_t type_) noexcept nogil:
    if type_ == READ_TYPE:
        return b"bootstrap-insert"
    return own_type(type_)
