# Index: what the headers of a run of events say, as records; and the rows of some of the events as columns.

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void*) noexcept nogil


cdef struct Record:  # RECORD in shmstore/encoding/arrow.py
    int64_t entry
    int64_t type
    int64_t file            # index into `files`
    int64_t offset
    int64_t length
    int64_t time
    int64_t server
    int64_t transaction     # where its text is
    int64_t transaction_size
    int64_t order
    int64_t part
    int64_t row
    int64_t sql_size
    int64_t schema          # index into `schemas`; -1: none
    int64_t rows
    int64_t images          # 1: before, 2: after
    int64_t body            # where the body's values begin
    int64_t end

cdef enum:
    BEFORE = 1
    AFTER = 2
    HEADER_FIELDS = 15
    MAX_ROW = 0x3FFFFFFF    # a row number with a run's rows added stays an int32
    SEQ_WIDTH = 37
    AHEAD = 4               # events whose beginning is asked for while an earlier one is read: it comes from another processor's cache, or from memory
    FETCHED = 640           # bytes of it
    SMALL = 2048            # bytes of an event, on average, up to which all bytes are asked for, in order: memory gives such three times as fast
    NEAR = 4096             # how many bytes before they are read

cdef uint16_t HEX[256]


cdef void _fill_hex() noexcept:
    cdef int byte
    cdef uint8_t[2] two
    for byte in range(256):
        two[0], two[1] = b"0123456789abcdef"[byte >> 4], b"0123456789abcdef"[byte & 15]
        memcpy(&HEX[byte], two, 2)


_fill_hex()


cdef struct Found:  # pieces of an event that become Python objects, once for each distinct one
    const uint8_t* file
    size_t file_size
    const uint8_t* schema
    size_t schema_size


# Of no cycle, and not the collector's: it would clear the memoryview that `view` is of, which this still has to release.
@cython.no_gc
cdef class Index:
    """The headers of the events in `raw`, whose payloads end at `ends` (int64). `failed` is the first that could not be read,
    or -1; with one, there are no records.

    `raw` stays in use while this object lives.
    """

    cdef Py_buffer view
    cdef bint viewed
    cdef Record* records_at  # in `records`, which others only read
    cdef Py_ssize_t count
    cdef readonly Py_ssize_t failed
    cdef readonly object records
    cdef readonly list files, schemas
    cdef list names  # `files`, as bytes

    def __cinit__(self, raw, ends):
        cdef Numbers marks = Numbers(ends)
        cdef int64_t start = 0, end
        cdef Py_ssize_t i
        cdef Found found
        cdef dict files = {}, schemas = {}
        self.failed = -1
        self.files, self.schemas, self.names = [], [], []
        PyObject_GetBuffer(raw, &self.view, PyBUF_SIMPLE)
        self.viewed = True
        self.count = marks.count
        self.records = buffer_of(self.count * sizeof(Record), <void**>&self.records_at)
        cdef const uint8_t* bytes_ = <const uint8_t*>self.view.buf
        cdef bytes file = None, schema = None
        cdef int64_t file_number = 0, schema_number = 0
        cdef Record* record
        cdef int64_t near = 0  # what is before was asked for
        cdef bint small = self.count > 0 and self.view.len // self.count < SMALL
        for i in range(self.count):
            end = marks.at[i]
            if small:
                while near < min(start + NEAR, <int64_t>self.view.len):
                    prefetch(bytes_ + near)
                    near += 64
            elif i + AHEAD < self.count:
                fetch(bytes_, marks.at[i + AHEAD - 1], marks.at[i + AHEAD], self.view.len)
            record = &self.records_at[i]
            if not start <= end <= self.view.len or not read_event(bytes_, start, end, record, &found):
                self.failed = i
                return
            if file is None or not same(file, found.file, found.file_size):
                file = PyBytes_FromStringAndSize(<char*>found.file, found.file_size)
                file_number = files.setdefault(file, len(files))
                if file_number == len(self.files):
                    try:
                        self.files.append(file.decode())
                    except UnicodeDecodeError:
                        self.failed = i
                        return
                    self.names.append(file)
            record.file = file_number
            if found.schema != NULL:
                if schema is None or not same(schema, found.schema, found.schema_size):
                    schema = PyBytes_FromStringAndSize(<char*>found.schema, found.schema_size)
                    schema_number = schemas.setdefault(schema, len(schemas))
                    if schema_number == len(self.schemas):
                        self.schemas.append(schema)
                record.schema = schema_number
            start = end
        if start != self.view.len:
            self.failed = self.count

    def __dealloc__(self):
        if self.viewed:
            PyBuffer_Release(&self.view)

    cdef int check(self, Numbers events) except -1:
        cdef Py_ssize_t i
        if self.failed >= 0:
            raise ValueError(f"event {self.failed} could not be read")
        for i in range(events.count):
            if not 0 <= events.at[i] < self.count:
                raise IndexError(f"event {events.at[i]} of {self.count}")
        return 0

    def runs(self, most):
        """The numbers of the events that have rows, in order, as arrays of int64: cut where the schema changes, and after `most` rows, or the event that
        holds the last of these.
        """
        cdef int64_t limit = most, rows = 0, schema = -1
        cdef Py_ssize_t n, first = 0, count = 0
        cdef Record* record
        cdef list found = []
        if self.failed >= 0:
            raise ValueError(f"event {self.failed} could not be read")
        cdef int64_t* numbers
        chosen = buffer_of(self.count * 8, <void**>&numbers)
        for n in range(self.count):
            record = &self.records_at[n]
            if record.schema < 0 or record.rows <= 0:
                continue
            if count > first and (record.schema != schema or rows >= limit):
                found.append(chosen.slice(first * 8, (count - first) * 8))
                first, rows = count, 0
            schema = record.schema
            rows += record.rows
            numbers[count] = n
            count += 1
        if count > first:
            found.append(chosen.slice(first * 8, (count - first) * 8))
        return found

    cdef int64_t rows_of(self, Numbers chosen):
        """How many rows `chosen` have; -1 where it cannot be: one has none, or more than the bytes that are there (a row takes one at least), or all
        have too many. No memory is taken for rows that are not there.
        """
        cdef Record* record
        cdef int64_t rows = 0
        cdef Py_ssize_t n
        for n in range(chosen.count):
            record = &self.records_at[chosen.at[n]]
            if not 0 < record.rows <= min(record.end - record.body, <int64_t>MAX_ROW):
                return -1
            rows += record.rows
            if rows > MAX_ROW:
                return -1
        return rows

    def images(self, events, steps_before, steps_after, zeros, schema):
        """The rows of `events`, all of them of one table: a RecordBatch of two structs of `schema`, the images before and after. Each has the columns
        that are not skipped, all of them NULL where a row has no such image.

        Steps: (kind, a, b) for each column of the table. `zeros`: whether a date that does not exist may become NULL. None where anything is not as it
        should be, or an image lacks columns.
        """
        cdef Numbers chosen = Numbers(events)
        self.check(chosen)
        cdef int64_t rows = self.rows_of(chosen)
        if rows < 0:
            return None
        cdef Arrays made = Arrays(2 + 2 * len(steps_after))
        cdef ArrowArray* both = made.children(&made.root, 2)
        return made.batch(rows, schema) if self.set_images(made, both, chosen, rows, steps_before, steps_after, zeros) else None

    def rows(self, events, steps_before, steps_after, zeros, numbers, sequences, bytes ops, bytes database, bytes table, schema):
        """The rows of `events`, all of them of `table`, as a RecordBatch of `schema`: op, database, table, before, after, ts_ms, server_id, file, offset,
        seq, row, transaction; before and after as in `images`. None where anything is not as it should be.

        `op` is the character that `ops` has for the event's type. `seq` is what `sequences` has for the event (int64, one for each event of the index); or,
        where that is None, text of `SEQ_WIDTH` characters that sorts as the rows do: in lower-case hex, each cut to its digits, the number of
        the file (`numbers` has one for each of `files`), the end of the event, its number in the transaction, and the row.
        """
        cdef Numbers chosen = Numbers(events)
        cdef Numbers file_numbers = None if numbers is None else Numbers(numbers), own = None if sequences is None else Numbers(sequences)
        cdef Record* record
        cdef Py_ssize_t n
        cdef int64_t k
        self.check(chosen)
        if (file_numbers is None) == (own is None):
            raise ValueError("numbers of the files, or sequences of the events")
        if len(ops) < 256 or (file_numbers is not None and file_numbers.count < len(self.files)):
            raise ValueError("one number for each file, one op for each type")
        if own is not None and own.count != self.count:
            raise ValueError("one value for each event")
        cdef int64_t rows = self.rows_of(chosen)
        if rows < 0 or rows > MAX_BYTES // SEQ_WIDTH:
            return None
        for n in range(chosen.count):
            if self.records_at[chosen.at[n]].sql_size:
                return None
        cdef Arrays made = Arrays(12 + 2 * len(steps_after))
        cdef ArrowArray* columns = made.children(&made.root, 12)
        if not self.set_images(made, columns + 3, chosen, rows, steps_before, steps_after, zeros):
            return None
        cdef uint8_t* op = made.memory(rows)
        cdef int64_t* time = <int64_t*>made.memory(rows * 8)
        cdef int64_t* server = <int64_t*>made.memory(rows * 8)
        cdef int64_t* offset = <int64_t*>made.memory(rows * 8)
        cdef int32_t* row = <int32_t*>made.memory(rows * 4)
        cdef uint8_t* seq = made.memory(rows * (SEQ_WIDTH if own is None else 8))
        set_text(columns, rows, widths(made, rows, 1), op)
        set_array(columns + 5, rows, 0, NULL, time, NULL, 2)
        set_array(columns + 6, rows, 0, NULL, server, NULL, 2)
        set_array(columns + 8, rows, 0, NULL, offset, NULL, 2)
        set_array(columns + 10, rows, 0, NULL, row, NULL, 2)
        if own is None:
            set_text(columns + 9, rows, widths(made, rows, SEQ_WIDTH), seq)
        else:
            set_array(columns + 9, rows, 0, NULL, seq, NULL, 2)
        cdef const uint8_t* letters = <const uint8_t*>PyBytes_AS_STRING(ops)
        for n in range(chosen.count):
            record = &self.records_at[chosen.at[n]]
            put_times(time, record.time, record.rows)
            put_times(server, record.server, record.rows)
            put_times(offset, record.offset, record.rows)
            memset(op, letters[record.type], record.rows)
            for k in range(record.rows):
                row[k] = <int32_t>(record.row + k)
            if own is None:
                put_seqs(seq, file_numbers.at[record.file], record)
                seq += record.rows * SEQ_WIDTH
            else:
                put_times(<int64_t*>seq, own.at[chosen.at[n]], record.rows)
                seq += record.rows * 8
            op += record.rows
            time += record.rows
            server += record.rows
            offset += record.rows
            row += record.rows
        if not set_same(made, columns + 1, rows, database) or not set_same(made, columns + 2, rows, table):
            return None
        if not (set_same(made, columns + 7, rows, self.names[0]) if len(self.names) == 1 else self.set_texts(made, columns + 7, chosen, rows, True)):
            return None
        return made.batch(rows, schema) if self.set_texts(made, columns + 11, chosen, rows, False) else None

    cdef bint set_texts(self, Arrays made, ArrowArray* array, Numbers chosen, int64_t rows, bint files) except -1:
        """The file, or the transaction, of each row; False where it is no text, or too much."""
        cdef Py_ssize_t i
        cdef int64_t size = 0, each, k
        cdef Record* record
        cdef const uint8_t* source
        cdef bytes name
        for i in range(chosen.count):
            record = &self.records_at[chosen.at[i]]
            each = PyBytes_GET_SIZE(<bytes>self.names[record.file]) if files else record.transaction_size
            if each > MAX_BYTES or record.rows * each > MAX_BYTES - size:
                return False
            size += record.rows * each
        cdef int32_t* offset = <int32_t*>made.memory((rows + 1) * 4)
        cdef uint8_t* text = made.memory(max(1, size))
        cdef uint8_t* at = text
        set_text(array, rows, offset, text)
        offset[0] = 0
        for i in range(chosen.count):
            record = &self.records_at[chosen.at[i]]
            if files:
                name = self.names[record.file]
                source, each = <const uint8_t*>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
            else:
                source, each = <const uint8_t*>self.view.buf + record.transaction, record.transaction_size
            for k in range(record.rows):
                memcpy(at, source, each)
                if k == 0 and not files:
                    source = at  # the memory of a store may change: what was looked at is copied
                    if not is_utf8(source, each):
                        return False
                at += each
                offset += 1
                offset[0] = <int32_t>(at - text)
        return True

    cdef bint set_images(
        self, Arrays made, ArrowArray* both, Numbers chosen, int64_t rows, list steps_before, list steps_after, bint zeros
    ) except -1:
        """Both images, as `images` has them; False where that cannot be."""
        cdef int width = len(steps_after), i
        cdef Py_ssize_t n
        cdef int64_t some = 0, every = BEFORE | AFTER
        cdef size_t most = 0
        cdef bint good
        cdef Record* record
        if len(steps_before) != width:
            raise ValueError("one step for each column, before and after")
        for n in range(chosen.count):
            record = &self.records_at[chosen.at[n]]
            if record.rows * width > record.end - record.body:
                return False  # a value takes a byte at least
            most += record.end - record.body
            some |= record.images
            every &= record.images
        cdef Column* columns = <Column*>calloc(max(1, 2 * width), sizeof(Column))
        if columns == NULL:
            raise MemoryError(f"no memory for {width} columns")
        cdef Column* before = columns if some & BEFORE else NULL
        cdef Column* after = columns + width if some & AFTER else NULL
        try:
            self.begin_image(made, both, before, chosen, rows, BEFORE, every, most, steps_before)
            self.begin_image(made, both + 1, after, chosen, rows, AFTER, every, most, steps_after)
            with nogil:
                good = self.fill(chosen, before, after, width)
            if not good:
                return False
            if not zeros:
                for i in range(2 * width):
                    if columns[i].zeros:
                        return False
            give_image(made, both, before, rows, steps_before)
            give_image(made, both + 1, after, rows, steps_after)
            return True
        finally:
            for i in range(2 * width):
                end_column(&columns[i])
            free(columns)

    cdef int begin_image(
        self, Arrays made, ArrowArray* image, Column* columns, Numbers chosen, int64_t rows, int64_t which, int64_t every, size_t most, list steps
    ) except -1:
        """Begin the `columns` of an image, and the struct of them; NULL: no row has it."""
        cdef uint8_t* there = NULL
        cdef int64_t absent = 0
        cdef int i
        if columns == NULL or not every & which:
            there = made.memory((rows + 7) // 8)
            absent = self.absent(there, chosen, rows, which)
        set_array(image, rows, absent, there, NULL, NULL, 1)
        if columns != NULL:
            for i in range(len(steps)):
                begin_column(&columns[i], steps[i], rows, most, there, absent, made)
        return 0

    cdef int64_t absent(self, uint8_t* there, Numbers chosen, int64_t rows, int64_t image) noexcept:
        """How many rows have not that image; `there` gets a bit for each row that has it."""
        cdef Record* record
        cdef Py_ssize_t n
        cdef int64_t at = 0, k, found = 0
        memset(there, 0xFF, (rows + 7) // 8)
        for n in range(chosen.count):
            record = &self.records_at[chosen.at[n]]
            if not record.images & image:
                for k in range(at, at + record.rows):
                    there[k >> 3] &= ~(1 << (k & 7))
                found += record.rows
            at += record.rows
        return found

    cdef bint fill(self, Numbers chosen, Column* before, Column* after, int width) noexcept nogil:
        cdef const uint8_t* bytes_ = <const uint8_t*>self.view.buf
        cdef const uint8_t* p
        cdef const uint8_t* end
        cdef Py_ssize_t n
        cdef int64_t row = 0
        cdef Record* record
        cdef Record* later
        for n in range(chosen.count):
            record = &self.records_at[chosen.at[n]]
            if n + AHEAD < chosen.count:
                later = &self.records_at[chosen.at[n + AHEAD]]
                fetch(bytes_, later.body, later.end, self.view.len)
            p, end = bytes_ + record.body, bytes_ + record.end
            p = fill_image(before, width, row, record.rows, record.images & BEFORE, p, end)
            if p == NULL:
                return False
            p = fill_image(after, width, row, record.rows, record.images & AFTER, p, end)
            if p != end:
                return False
            row += record.rows
        return texts_checked(before, width) and texts_checked(after, width)


cdef inline void fetch(const uint8_t* bytes_, int64_t start, int64_t end, int64_t size) noexcept nogil:
    """Ask for the beginning of what is between `start` and `end`, if that is within `size`."""
    if 0 <= start <= end <= size:
        end = min(end, start + FETCHED)
        while start < end:
            prefetch(bytes_ + start)
            start += 64


cdef bint texts_checked(Column* columns, int width) noexcept nogil:
    cdef int i
    if columns != NULL:
        for i in range(width):
            if columns[i].kind == TEXT and not checked_text(&columns[i]):
                return False
    return True


cdef int give_image(Arrays made, ArrowArray* image, Column* columns, int64_t rows, list steps) except -1:
    """Make the children of an image's struct: those of `columns` that are not skipped. NULL: no row has it."""
    cdef int i
    cdef uint8_t* nothing
    cdef ArrowArray* child = made.children(image, len([None for step in steps if step[0] != "skip"]))
    if columns == NULL:
        nothing = made.memory((rows + 1) * 16)  # enough for values of every width, and all children have the same
        memset(nothing, 0, (rows + 1) * 16)
    for i in range(len(steps)):
        if steps[i][0] == "skip":
            continue
        if columns != NULL:
            give_column(&columns[i], child)
        else:
            set_array(child, rows, rows, image.buffers[0], nothing, nothing, 3 if _KINDS[steps[i][0]] >= TEXT else 2)
        child += 1
    return 0


cdef void set_text(ArrowArray* array, int64_t rows, const int32_t* offsets, const uint8_t* text) noexcept:
    """A column of text, of no NULL."""
    set_array(array, rows, 0, NULL, offsets, text, 3)


cdef int32_t* widths(Arrays made, int64_t rows, int64_t width) except NULL:
    """Where each of `rows` texts of `width` bytes begins, and the last one ends."""
    cdef int32_t* ends = <int32_t*>made.memory((rows + 1) * 4)
    cdef int64_t i
    for i in range(rows + 1):
        ends[i] = <int32_t>(i * width)
    return ends


cdef bint set_same(Arrays made, ArrowArray* array, int64_t rows, bytes text) except -1:
    """`text` for each row; False where that is too much."""
    cdef int64_t width = PyBytes_GET_SIZE(text), i
    cdef const uint8_t* source = <const uint8_t*>PyBytes_AS_STRING(text)
    if rows * width > MAX_BYTES:
        return False
    cdef uint8_t* at = made.memory(max(1, rows * width))
    set_text(array, rows, widths(made, rows, width), at)
    for i in range(rows):
        memcpy(at, source, width)
        at += width
    return True


cdef inline void put_times(int64_t* at, int64_t value, int64_t times) noexcept nogil:
    cdef int64_t k
    for k in range(times):
        at[k] = value


cdef inline void put_seqs(uint8_t* seq, int64_t file, const Record* record) noexcept nogil:
    """The seqs of an event's rows."""
    cdef int64_t k
    hex_of(file, 4, seq)
    hex_of(record.offset, 6, seq + 9)
    hex_of(record.order, 4, seq + 22)
    seq[8] = seq[21] = seq[30] = c"-"
    for k in range(record.rows):
        if k:
            memcpy(seq, seq - SEQ_WIDTH, SEQ_WIDTH)
        hex_of(record.row + k, 3, seq + 31)
        seq += SEQ_WIDTH


cdef inline void hex_of(uint64_t value, int size, uint8_t* at) noexcept nogil:
    """The last `size` bytes of a number, two digits each."""
    while size:
        size -= 1
        memcpy(at + 2 * size, &HEX[value & 0xFF], 2)
        value >>= 8


cdef inline bint same(bytes known, const uint8_t* at, size_t size):
    return <size_t>PyBytes_GET_SIZE(known) == size and memcmp(PyBytes_AS_STRING(known), at, size) == 0


cdef const uint8_t* fill_image(
    Column* columns, int width, int64_t row, int64_t rows, bint there, const uint8_t* p, const uint8_t* end
) noexcept nogil:
    """One image of an event's rows: the columns present, which must be nil (all of them), and the rows."""
    cdef int64_t count, last = row + rows
    cdef int i
    if end - p < 2 or p[0] != 0xC0:
        return NULL
    p += 1
    if not there:
        if p[0] != 0xC0:
            return NULL
        if columns != NULL:
            for i in range(width):
                fill_absent(&columns[i], row, rows)
        return p + 1
    p = read_array(p, end, &count)
    if p == NULL or count != rows:
        return NULL
    while row < last:
        p = read_array(p, end, &count)
        if p == NULL or count != width:
            return NULL
        for i in range(width):
            p = fill_cell(&columns[i], row, p, end)
            if p == NULL:
                return NULL
        row += 1
    return p


cdef bint read_event(const uint8_t* bytes_, int64_t start, int64_t end_at, Record* record, Found* found) noexcept:
    """An event but for its rows: `record` and `found`; False where anything is not as `shmstore.encoding.codec` writes it."""
    cdef const uint8_t* p = bytes_ + start
    cdef const uint8_t* end = bytes_ + end_at
    cdef int64_t number
    cdef size_t size
    record.end = end_at
    record.schema = -1
    record.rows = record.images = record.body = 0
    found.schema = NULL
    if end - p < 5 or p[0] != 0x95 or p[1] != 2 or p[2] != 0x90 | HEADER_FIELDS:  # five values; the format; the header
        return False
    p += 3
    p = read_signed(p, end, &record.entry)
    if p == NULL or not 0 <= record.entry <= 255:
        return False
    p = read_signed(p, end, &record.type)
    if p == NULL or not 0 <= record.type <= 255:
        return False
    p = read_text(p, end, &found.file_size)
    if p == NULL:
        return False
    found.file = p
    p = read_signed(p + found.file_size, end, &record.offset)
    if p != NULL:
        p = read_signed(p, end, &record.length)
    if p != NULL:
        p = read_signed(p, end, &record.time)
    if p != NULL:
        p = read_signed(p, end, &record.server)
    if p == NULL:
        return False
    p = read_text(p, end, &size)
    if p == NULL or not is_utf8(p, size):
        return False
    record.transaction, record.transaction_size = p - bytes_, size
    p = read_signed(p + size, end, &record.order)
    if p != NULL:
        p = read_signed(p, end, &record.part)
    if p == NULL:
        return False
    p = read_text(p, end, &size)  # GTIDs
    if p == NULL or not is_utf8(p, size):
        return False
    p = read_signed(p + size, end, &record.row)
    if p == NULL or not 0 <= record.row <= MAX_ROW:
        return False
    p = read_text(p, end, &size)  # database
    if p == NULL or not is_utf8(p, size):
        return False
    p = read_text(p + size, end, &size)
    if p == NULL or not is_utf8(p, size):
        return False
    record.sql_size = size
    p = skip_resume(skip_props(p + size, end), end)
    if p == NULL or p >= end:
        return False
    if p[0] == 0xC0:  # no table
        return end - p == 2 and p[1] == 0xC0
    p = read_bin(p, end, &found.schema_size)
    if p == NULL:
        return False
    found.schema = p
    p += found.schema_size
    if end - p < 5 or p[0] != 0x94 or p[1] != 0xC0:
        return False
    record.body = p + 1 - bytes_
    if p[2] != 0xC0:
        record.images |= BEFORE
        if read_array(p + 2, end, &record.rows) == NULL or not record.rows:
            return False
        # Whether there is an image after is behind the rows; an UPDATE has one, and else the filling will find it out.
        if record.type == 2:
            record.images |= AFTER
        return True
    if p[3] != 0xC0:
        return False
    if p[4] == 0xC0:
        return end - p == 5  # no rows
    record.images |= AFTER
    return read_array(p + 4, end, &record.rows) != NULL and record.rows > 0

