# FastPath: handles the usual events of a run, and hands all else to Python.
#
# The usual events are those of a plain transaction: GTID, BEGIN, table maps seen before, rows, XID. Everything else is
# surfaced: handed as a RawEvent to the decoder in Python, which works on the same state and buffer.

cdef inline bint is_rows(int code) noexcept:
    return 23 <= code <= 25 or 30 <= code <= 32 or code == 39 or 166 <= code <= 171


cdef enum:
    ROWS_INSERT = 1  # EventType
    ROWS_UPDATE = 2
    ROWS_DELETE = 3


cdef struct Place:  # of a row that a filter was tried on: its images, and the type of the event that it is in; 0: none
    size_t before, before_size, after, after_size
    int type


cdef class FastPath:
    """Handles runs for one `EventDecoder`; `python` is the decoder's side: `surface`, `plan`, `cut`."""

    cdef object python
    cdef TransactionState state
    cdef TransactionBuffer buffer
    cdef list tables
    cdef Buffer second               # images after an UPDATE
    cdef Buffer first, places        # of rows that are filtered: images before, and what becomes of each
    cdef Chunk chunk                 # where the events of this run lie
    cdef bytes begin_tail            # a BEGIN seen before, from behind thread id and execution time on
    cdef int64_t begin_microsecond
    cdef Buffer after, props         # of the event being written: the executed set with its transaction in it, and its props

    def __cinit__(self, python, TransactionState state, TransactionBuffer buffer):
        self.python, self.state, self.buffer = python, state, buffer
        self.tables = [None] * TABLES
        memset(&self.second, 0, sizeof(Buffer))
        memset(&self.first, 0, sizeof(Buffer))
        memset(&self.places, 0, sizeof(Buffer))
        memset(&self.after, 0, sizeof(Buffer))
        memset(&self.props, 0, sizeof(Buffer))
        self.begin_tail = b""

    def __dealloc__(self):
        free_buffer(&self.second)
        free_buffer(&self.first)
        free_buffer(&self.places)
        free_buffer(&self.after)
        free_buffer(&self.props)

    def forget_tables(self):
        """Forget the table maps: another connection, another file."""
        self.tables = [None] * TABLES

    def run(self, Run run):
        """Handle all events of a run. Raises what the Python decoder raises."""
        cdef Event* event = <Event*>run.events.data
        cdef Event* end = event + run.events.size // sizeof(Event)
        cdef Chunk outer = self.chunk  # a compressed transaction's own events are run while it is surfaced
        cdef bint usual = self.state.usual()
        self.chunk = run.chunk
        self.buffer.settle()
        try:
            while event < end:
                if not usual or not self.take(event):
                    self.surface(event)
                    usual = self.state.usual()
                event += 1
        finally:
            self.chunk = outer
            run.use_up()
            self.buffer.note_time()

    cdef int surface(self, Event* event) except -1:
        cdef const uint8_t* head = event.start
        cdef int code = head[4]
        if code == CODE_PAYLOAD or (event.stop - head > LARGE and is_rows(code)):  # rows may be large: not copied
            body = memoryview(self.chunk)[head + HEADER - self.chunk.memory : event.stop - self.chunk.memory]
        else:
            body = PyBytes_FromStringAndSize(<char*>head + HEADER, event.stop - head - HEADER)
        table = self.python.surface(
            code, little(head, 4), little(head + 5, 4), event.length, little(head + 13, 4), little(head + 17, 2), body
        )
        if code == CODE_TABLE_MAP:
            self.tables[little(head + HEADER, 6) % TABLES] = None  # this id means something else now
            if table is not None:
                self.remember(table, body)
        elif code == CODE_FORMAT or code == CODE_ROTATE:
            self.forget_tables()
        elif code == CODE_QUERY and table is not None:
            self.begin_microsecond = table
            self.begin_tail = PyBytes_FromStringAndSize(<char*>head + HEADER + 8, event.stop - head - HEADER - 8)
        return self.buffer.settle()  # where it was taken from meanwhile

    cdef int remember(self, object found, bytes body) except -1:
        cdef Table table = Table.__new__(Table)
        table.map, table.passes, table.plain, table.columns, table.head, table.schema, table.condition = found
        table.body = body
        table.id = little(<const uint8_t*>PyBytes_AS_STRING(body), 6)
        table.plans = []
        self.tables[table.id % TABLES] = table
        return 0

    # ------------------------------------------------------------ events

    cdef bint take(self, Event* event) except -1:
        """Handle a usual event; False where it is to be surfaced, with nothing changed."""
        cdef const uint8_t* head = event.start
        cdef const uint8_t* body = head + HEADER
        cdef size_t size = event.stop - body
        cdef int code = head[4]
        cdef TransactionState state = self.state
        cdef int64_t offset = state.offset
        cdef uint32_t position = little(head + 13, 4)
        cdef bint done = False
        if event.stop < body or little(head + 17, 2) & FLAG_ARTIFICIAL:
            return False
        if position:
            state.advance(position)
        if code == CODE_TABLE_MAP:
            done = self.known(body, size)
        elif 23 <= code <= 25 or 30 <= code <= 32:
            done = state.open and self.take_rows(event, code, body, size)
        elif code == CODE_XID:
            done = state.open and state.events > 0 and size >= 8 and self.take_xid(event, body)
        elif code == CODE_MARIADB_GTID:
            done = not state.in_transaction and size >= 13 and not body[12] & (1 | 64 | 128) and self.take_mariadb_gtid(event, body)
        elif code == CODE_GTID:
            done = not state.in_transaction and size >= 25 and 0 < <int64_t>little(body + 17, 8) and self.take_gtid(event, body)
        elif code == CODE_ANONYMOUS_GTID:
            done = not state.in_transaction and self.take_anonymous(event)
        elif code == CODE_QUERY:
            done = state.in_transaction and not state.open and self.take_begin(event, body, size)
        if not done:
            state.offset = offset
        return done

    cdef bint known(self, const uint8_t* body, size_t size) except -1:
        if size < 8:
            return False
        found = self.tables[little(body, 6) % TABLES]
        if found is None:
            return False
        cdef bytes seen = (<Table>found).body
        return <size_t>PyBytes_GET_SIZE(seen) == size and memcmp(PyBytes_AS_STRING(seen), body, size) == 0

    cdef bint take_mariadb_gtid(self, Event* event, const uint8_t* body) except -1:
        cdef Buffer* name = &self.state.name_text
        name.size = 0
        put_digits(name, little(body + 8, 4))
        put_byte(name, c"-")
        put_digits(name, little(event.start + 5, 4))
        put_byte(name, c"-")
        put_digits(name, little(body, 8))
        self.state.begin_named(True, event.length)
        self.state.opened()
        self.props.size = 0
        put_byte(&self.props, 0x80)
        self.write(event, ENTRY_BEGIN, 0, NULL)
        return True

    cdef bint take_gtid(self, Event* event, const uint8_t* body) except -1:
        cdef Buffer* name = &self.state.name_text
        cdef const char* digits = b"0123456789abcdef"
        cdef uint8_t* to
        cdef int i
        name.size = 0
        reserve(name, 37)
        to = name.data
        for i in range(16):
            if i in (4, 6, 8, 10):
                to[0] = c"-"
                to += 1
            to[0], to[1] = digits[body[1 + i] >> 4], digits[body[1 + i] & 15]
            to += 2
        to[0] = c":"
        name.size = 37
        put_digits(name, little(body + 17, 8))
        self.state.begin_named(True, event.length)
        return True

    cdef bint take_anonymous(self, Event* event) except -1:
        self.state.begin_named(False, event.length)
        return True

    cdef bint take_begin(self, Event* event, const uint8_t* body, size_t size) except -1:
        cdef bytes tail = self.begin_tail
        if size < 8 or <size_t>PyBytes_GET_SIZE(tail) != size - 8 or memcmp(PyBytes_AS_STRING(tail), body + 8, size - 8) != 0 or not size - 8:
            return False
        self.state.opened()
        self.props.size = 0
        put_byte(&self.props, 0x81)
        put_prop(&self.props, b"thread_id", little(body, 4))
        self.write(event, ENTRY_BEGIN, self.begin_microsecond // 1000, NULL)
        return True

    cdef bint take_xid(self, Event* event, const uint8_t* body) except -1:
        cdef TransactionState state = self.state
        cdef bint counts = state.has_gtid and state.gtid_set is not None
        if self.buffer.part > 0 or (counts and not state.is_next()):
            return False
        if counts:
            state.write_next(&self.after)
        self.props.size = 0
        put_byte(&self.props, 0x83)
        put_prop(&self.props, b"xid", little(body, 8))
        put_prop(&self.props, b"events", state.events)
        put_prop(&self.props, b"rows", state.rows)
        state.order += 1
        # The set advances once the event is written: a part that is cut before it must not be resumed behind it.
        self.write(event, ENTRY_END, 0, &self.after if counts else &state.gtids_text)
        self.buffer.end_full(SLOT_TRANSACTION_END)
        if counts:
            state.count_up(&self.after)
        state.close()
        return True

    # ------------------------------------------------------------ rows

    cdef bint take_rows(self, Event* event, int code, const uint8_t* body, size_t size) except -1:
        cdef Table table
        cdef Plan plan
        cdef const uint8_t* end = body + size
        cdef const uint8_t* p = body + 8
        cdef int count, width
        if size < 12:
            return False
        found = self.tables[little(body, 6) % TABLES]
        if found is None or (<Table>found).id != little(body, 6):
            return False
        table = <Table>found
        if not table.passes:
            self.state.order += 1
            self.state.filtered_events += 1
            return True
        if not table.plain:
            return False
        if code >= 30:
            p += max(<uint64_t>2, little(p, 2))
        if p >= end or p[0] >= 251 or p[0] != table.columns:
            return False
        width = (p[0] + 7) // 8
        p += 1
        if code == 24 or code == 31:
            width *= 2
        if end - p < width:
            return False
        plan = self.plan(table, code, p, width)
        if plan is None:
            return False
        if table.condition is not None:
            return self.take_filtered(event, table, plan, p + width, end)
        self.state.order += 1
        count = self.write_rows(event, table, plan, p + width, end)
        if count < 0:
            self.state.order -= 1
            return False  # the decoder in Python says what is wrong with it
        if count:
            self.state.count(count)
        if self.second.capacity > LARGE:
            free_buffer(&self.second)
        return True

    cdef bint take_filtered(self, Event* event, Table table, Plan plan, const uint8_t* p, const uint8_t* end) except -1:
        """Write what the table's row filter leaves of the rows from `p` to `end`, as `shmstore.producer.filters.row_runs` does: runs of rows
        of one kind, each an event. False, with nothing written, where it is Python's to do."""
        cdef Place place
        cdef Place* at
        cdef Place* stop
        cdef Place* next_
        cdef int count = 0, kept = 0, run
        cdef bint was, is_
        cdef TransactionState state = self.state
        if end - p > LARGE or plan.before_columns != b"\xc0" or plan.after_columns != b"\xc0":
            return False
        self.first.size = self.second.size = self.places.size = 0
        try:
            while p < end:
                place.before, place.after = self.first.size, self.second.size
                was = is_ = False
                if plan.before is not None:
                    p = plan.before.image(&self.first, p, end)
                    was = table.condition.of(self.first.data + place.before) == TRUE_
                if plan.after is not None:
                    p = plan.after.image(&self.second, p, end)
                    is_ = table.condition.of(self.second.data + place.after) == TRUE_
                place.before_size, place.after_size = self.first.size - place.before, self.second.size - place.after
                if plan.before is not None and plan.after is not None:
                    place.type = ROWS_UPDATE if was and is_ else ROWS_DELETE if was else ROWS_INSERT if is_ else 0
                else:
                    place.type = plan.type if was or is_ else 0
                put_raw(&self.places, <uint8_t*>&place, sizeof(Place))
                count += 1
        except Exception:
            return False
        state.order += 1
        at = <Place*>self.places.data
        stop = at + count
        while at < stop:
            if not at.type:
                at += 1
                continue
            run, next_ = 0, at
            while next_ < stop and (not next_.type or next_.type == at.type):
                run += next_.type != 0
                next_ += 1
            self.write_run(event, table, at, next_, run)
            state.count(run)
            kept += run
            at = next_
        state.filtered_rows += count - kept
        state.filtered_events += count > 0 and kept == 0
        return True

    cdef int write_run(self, Event* event, Table table, Place* first, Place* stop, int count) except -1:
        """Write the event of the rows from `first` to `stop` that stay, which are `count`."""
        cdef Buffer* out = &self.buffer.payloads.buffer
        cdef size_t before = out.size
        cdef Place* at
        self.head(event, ENTRY_ROWS, first.type, 0, NULL)
        out.size -= 1  # `row`, a 0
        put_unsigned(out, first - <Place*>self.places.data)
        put_raw(out, <uint8_t*>PyBytes_AS_STRING(table.head), PyBytes_GET_SIZE(table.head))
        put_raw(out, <uint8_t*>PyBytes_AS_STRING(table.schema), PyBytes_GET_SIZE(table.schema))
        put_raw(out, <const uint8_t*>b"\x94\xc0", 2)
        if first.type == ROWS_INSERT:
            put_byte(out, 0xC0)
        else:
            put_array_head(out, count)
            at = first
            while at < stop:
                if at.type:
                    put_raw(out, self.first.data + at.before, at.before_size)
                at += 1
        put_byte(out, 0xC0)
        if first.type == ROWS_DELETE:
            put_byte(out, 0xC0)
        else:
            put_array_head(out, count)
            at = first
            while at < stop:
                if at.type:
                    put_raw(out, self.second.data + at.after, at.after_size)
                at += 1
        if self.finish(event, before, ENTRY_ROWS, first.type, count, 0):
            return 0
        return self.write_run(event, table, first, stop, count)  # again, in the next part

    cdef Plan plan(self, Table table, int code, const uint8_t* bits, int width):
        cdef Plan plan
        for found in table.plans:
            plan = <Plan>found
            if plan.code == code and PyBytes_GET_SIZE(plan.bits) == width and memcmp(PyBytes_AS_STRING(plan.bits), bits, width) == 0:
                return plan if plan.type else None
        plan = Plan.__new__(Plan)
        plan.code, plan.bits = code, PyBytes_FromStringAndSize(<char*>bits, width)
        made = self.python.plan(table.map, code, plan.bits)
        plan.type, plan.head = 0, 1
        if made is not None:
            plan.type, plan.before, plan.after, plan.before_columns, plan.after_columns = made
        table.plans.append(plan)
        return plan if plan.type else None

    cdef int write_rows(self, Event* event, Table table, Plan plan, const uint8_t* p, const uint8_t* end) except -1:
        """Write the event of the rows from `p` to `end`; return their number. -2, with nothing written, where one cannot be read."""
        cdef Buffer* out = &self.buffer.payloads.buffer
        cdef size_t before = out.size, at
        cdef bint inserts = plan.before is None
        cdef int count = -1
        self.head(event, ENTRY_ROWS, plan.type, 0, NULL)
        put_raw(out, <uint8_t*>PyBytes_AS_STRING(table.head), PyBytes_GET_SIZE(table.head))
        put_raw(out, <uint8_t*>PyBytes_AS_STRING(table.schema), PyBytes_GET_SIZE(table.schema))
        put_byte(out, 0x94)
        put_raw(out, <uint8_t*>PyBytes_AS_STRING(plan.before_columns), PyBytes_GET_SIZE(plan.before_columns))
        if inserts:
            put_byte(out, 0xC0)
            put_raw(out, <uint8_t*>PyBytes_AS_STRING(plan.after_columns), PyBytes_GET_SIZE(plan.after_columns))
        at = out.size
        reserve(out, plan.head)
        out.size += plan.head
        if plan.after is not None and not inserts and end - p > LARGE:
            count = self.write_large_update(plan, p, end)
        if count == 1:
            if self.finish(event, before, ENTRY_ROWS, plan.type, count, 0):
                return count
            return self.write_rows(event, table, plan, p, end)  # again, in the next part
        self.second.size = 0
        try:
            count = decode_rows(plan.before, plan.after, p, end, out, out if inserts else &self.second)
        except Exception:
            out.size = before
            return -2
        if not count:
            out.size = before
            return 0
        self.count_rows(out, at, plan, count)
        if not inserts:
            put_raw(out, <uint8_t*>PyBytes_AS_STRING(plan.after_columns), PyBytes_GET_SIZE(plan.after_columns))
            if plan.after is None:
                put_byte(out, 0xC0)
            else:
                put_array_head(out, count)
                put_raw(out, self.second.data, self.second.size)
        if self.finish(event, before, ENTRY_ROWS, plan.type, count, 0):
            return count
        return self.write_rows(event, table, plan, p, end)  # again, in the next part

    cdef int write_large_update(self, Plan plan, const uint8_t* p, const uint8_t* end) except -1:
        """Write both images of the one row that a large event mostly has, one behind the other: nothing of it is held twice. 1; or -2,
        with nothing written, where it is not one row or cannot be read."""
        cdef Buffer* out = &self.buffer.payloads.buffer
        cdef size_t before = out.size - plan.head
        try:
            out.size = before
            put_byte(out, 0x91)
            p = plan.before.image(out, p, end)
            put_raw(out, <uint8_t*>PyBytes_AS_STRING(plan.after_columns), PyBytes_GET_SIZE(plan.after_columns))
            put_byte(out, 0x91)
            p = plan.after.image(out, p, end)
        except Exception:
            p = NULL
        if p == end:
            return 1
        out.size = before + plan.head
        return -2

    cdef int count_rows(self, Buffer* out, size_t at, Plan plan, int count) except -1:
        """Write the head of the array at `at`, in front of which as much space is as the last one's took."""
        cdef int size = 1 if count < 16 else 3 if count <= 0xFFFF else 5
        cdef uint8_t* head
        cdef int i
        if size != plan.head:
            reserve(out, size)
            memmove(out.data + at + size, out.data + at + plan.head, out.size - at - plan.head)
            out.size = out.size + size - plan.head
            plan.head = size
        head = out.data + at
        head[0] = 0x90 | count if size == 1 else 0xDC if size == 3 else 0xDD
        for i in range(1, size):
            head[i] = <uint8_t>(count >> 8 * (size - 1 - i))
        return 0

    # ------------------------------------------------------------ writing

    cdef int head(self, Event* event, int entry, int type_, int64_t more_ms, Buffer* gtids) except -1:
        """Begin an event: format, and the header up to `row`."""
        cdef TransactionState state = self.state
        cdef Buffer* out = &self.buffer.payloads.buffer
        cdef uint8_t* to
        reserve(out, 128 + state.file_text.size + state.name_text.size + (0 if gtids == NULL else gtids.size))
        to = write_raw(out.data + out.size, <const uint8_t*>b"\x95\x02\x9f", 3)
        to = write_unsigned(to, entry)
        to = write_unsigned(to, type_)
        to = write_text(to, state.file_text.data, state.file_text.size)
        to = write_unsigned(to, state.offset)
        to = write_unsigned(to, event.length)
        to = write_unsigned(to, little(event.start, 4) * 1000 + more_ms)
        to = write_unsigned(to, little(event.start + 5, 4))
        to = write_text(to, state.name_text.data, state.name_text.size)
        to = write_unsigned(to, state.order)
        to = write_unsigned(to, self.buffer.part)
        to = write_text(to, b"", 0) if gtids == NULL else write_text(to, gtids.data, gtids.size)
        to = write_unsigned(to, 0)
        out.size = to - out.data
        return 0

    cdef int write(self, Event* event, int entry, int64_t more_ms, Buffer* gtids) except -1:
        """Write an event without rows, with `props`."""
        cdef Buffer* out = &self.buffer.payloads.buffer
        cdef size_t before = out.size
        self.head(event, entry, 0, more_ms, gtids)
        put_raw(out, <const uint8_t*>b"\xa0\xa0", 2)  # database, sql
        put_raw(out, self.props.data, self.props.size)
        put_raw(out, <const uint8_t*>b"\xc0\xc0\xc0", 3)  # resume, schema, body
        if self.finish(event, before, entry, 0, 0, more_ms):
            return 0
        return self.write(event, entry, more_ms, gtids)

    cdef bint finish(self, Event* event, size_t before, int entry, int type_, int rows, int64_t more_ms) except -1:
        """Slot the event written from `before` on; False where the part was full: it was cut, and the event taken back."""
        cdef TransactionBuffer buffer = self.buffer
        cdef size_t size = buffer.payloads.buffer.size - before
        buffer.payloads.buffer.size = before
        if buffer.too_large(size):
            self.python.cut()
            return False
        buffer.payloads.buffer.size = before + size
        buffer.put_slot(little(event.start, 4) * 1000 + more_ms, self.state.offset, self.state.file_number, <uint32_t>size, rows, entry, type_)
        return True
