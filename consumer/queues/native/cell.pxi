# RowTable: the columns of one table version, a value's JSON, and the images of a row.

cdef enum MoreForms:  # `row_plans.ColumnPlan.form` beyond text.pxi's, by name; those are strings in JSON
    WHOLE_NUMBER = 32
    REAL            # a double, which Python prints
    PLAIN           # text, or bytes as base64
    UTC             # a moment as ISO 8601; a zero date as it is
    ZONED           # a moment as ISO 8601; a zero date is `nothing`
    DAYS            # a date as its days; a zero date is `nothing`
    MILLIS          # a moment in milliseconds; so too
    MICROS          # a moment in microseconds; so too
    MICRO_TIME      # a time of day in microseconds
    BOOLEAN
    BITS            # the bytes of a BIT, the lowest first, as base64
    LIST            # members of a SET
    DECIMAL_NUMBER  # a DECIMAL, of which Python makes JSON
    DOCUMENT        # JSON, of which Python makes JSON

_MORE_FORMS = {
    "whole": WHOLE_NUMBER, "real": REAL, "plain": PLAIN, "utc": UTC, "zoned": ZONED, "days": DAYS, "millis": MILLIS, "micros": MICROS,
    "micro_time": MICRO_TIME, "boolean": BOOLEAN, "bits": BITS, "list": LIST,
    "decimal_number": DECIMAL_NUMBER, "document": DOCUMENT,
}

cdef enum:
    BEFORE = 0
    AFTER = 1
    LEAST_MOMENT = -62135596800000000  # of Python's calendar
    MOST_MOMENT = 253402300799999999
    USUAL_TYPE = 0
    HIGH_TYPE = 1
    NULL_TYPE = 2


cdef struct Column:
    int form
    int scale
    int size                   # bytes of a BIT
    bint unsigned              # values above `most` have another sqlType
    uint64_t most
    Piece name                 # `,"name":`
    Piece key_name             # the same as it is in the key
    Piece nothing              # JSON of a zero date
    Piece mysql_type           # `,"name":"type"`
    Piece[3] sql_type          # `,"name":number` of the usual sqlType, of that above `most`, of NULL
    int count                  # of an ENUM or a SET: its members, in UTF-8
    Piece* members
    bint is_key
    Piece[2] raw               # of the row in hand: its value in both images, as it is stored; NULL: it is absent
    size_t[2] cell             # where its JSON is, in the output that the image was written to
    size_t[2] cell_size
    int type                   # which sqlType the last value had


cdef class RowTable:
    """What `row_plans.MessagePlan` says, for compiled code. Immutable but for the row in hand, so one at a time may use it."""

    cdef object topic, keyed, unkeyed  # its topic; the partitions of messages with and without a key
    cdef int width, keys
    cdef int* key
    cdef Column* columns
    cdef Piece* members
    cdef list texts, kept      # what prints a value in Python, by column; what the pieces point into
    cdef object real
    cdef bint unwanted
    cdef Piece database, table, schema_head, schema_tail, key_head, key_tail, key_columns

    def __cinit__(self, plan, real):
        cdef int i, k, count = 0
        cdef Column* column
        plans = plan.columns
        self.kept, self.real = [], real
        self.topic, self.keyed, self.unkeyed, self.unwanted = plan.topic, plan.keyed, plan.unkeyed, plan.unwanted
        self.width, self.keys = len(plans), len(plan.key)
        self.texts = [each.text for each in plans]
        self.database, self.table = self.piece(plan.database), self.piece(plan.table)
        self.schema_head, self.schema_tail = self.piece(plan.around[0]), self.piece(plan.around[1])
        self.key_head, self.key_tail = self.piece(plan.key_around[0]), self.piece(plan.key_around[1])
        self.key_columns = self.piece(plan.key_columns)
        for each in plans:
            count += len(each.members)
        self.columns = <Column*>calloc(max(1, self.width), sizeof(Column))
        self.members = <Piece*>calloc(max(1, count), sizeof(Piece))
        self.key = <int*>calloc(max(1, self.keys), sizeof(int))
        if self.columns == NULL or self.members == NULL or self.key == NULL:
            raise MemoryError("no memory for a table's columns")
        count = 0
        for i in range(self.width):
            each, column = plans[i], &self.columns[i]
            column.form = _FORMS.get(each.form, OTHER) or _MORE_FORMS.get(each.form, OTHER)
            column.scale, column.size = each.scale, each.size
            if not 0 <= each.scale <= 6 and column.form != DIGITS and column.form != GROUPED and column.form != DECIMAL_NUMBER:
                column.form = OTHER
            column.unsigned, column.most = each.most is not None, each.most or 0
            column.name, column.key_name = self.piece(each.name), self.piece(each.key_name)
            column.nothing, column.mysql_type = self.piece(each.nothing), self.piece(each.mysql_type)
            for k in range(3):
                column.sql_type[k] = self.piece(each.sql_types[k])
            column.members = self.members + count
            column.count = len(each.members)
            for member in each.members:
                self.members[count] = self.piece(member.encode("utf-8", "replace"))
                count += 1
        for i in range(self.keys):
            self.key[i] = plan.key[i]
        for i in plan.shown_key:
            self.columns[i].is_key = True

    def __dealloc__(self):
        free(self.columns)
        free(self.members)
        free(self.key)

    cdef Piece piece(self, bytes made):
        cdef Piece piece
        self.kept.append(made)
        piece.at, piece.size = <const uint8_t*>PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made)
        return piece

    # ---------------------------------------------------------------- the row in hand

    cdef const uint8_t* marked(self, int side, const uint8_t* p, const uint8_t* present, const uint8_t* end) noexcept nogil:
        """Note where the values of an image are; gives where it ends, or NULL where the reference must read it."""
        cdef int64_t count, indexes = self.width, at, index = -1, k
        cdef const uint8_t* after
        cdef int i
        if present != NULL:
            present = read_array(present, end, &indexes)
            if present == NULL:
                return NULL
            for i in range(self.width):
                self.columns[i].raw[side].at = NULL
        p = read_array(p, end, &count)
        if p == NULL or count != indexes:
            return NULL
        for k in range(count):
            at = k
            if present != NULL:
                present = read_signed(present, end, &at)
                if present == NULL or not index < at < self.width:
                    return NULL
                index = at
            after = behind_cell(p, end)
            if after == NULL:
                return NULL
            self.columns[at].raw[side].at, self.columns[at].raw[side].size = p, after - p
            p = after
        return p

    cdef void unmarked(self, int side) noexcept nogil:
        """There is no such image."""
        cdef int i
        for i in range(self.width):
            self.columns[i].raw[side].at = NULL

    cdef inline bint differs(self, Column* column) noexcept nogil:
        """Whether both images have the column, stored in another way."""
        cdef Piece* was = &column.raw[BEFORE]
        cdef Piece* now = &column.raw[AFTER]
        return was.at != NULL and now.at != NULL and (was.size != now.size or memcmp(was.at, now.at, was.size) != 0)

    cdef bint moves(self) noexcept nogil:
        """Whether the row may have another key now."""
        cdef int i
        for i in range(self.keys):
            if self.differs(&self.columns[self.key[i]]):
                return True
        return False

    cdef bint image(self, Out* out, int side, int other, const uint8_t* end) noexcept nogil:
        """Write an object of the columns that an image has, or the `other` one."""
        cdef int i, chosen
        cdef Column* column
        cdef size_t start
        if not say(out, b"{"):
            return False
        start = out.size
        for i in range(self.width):
            column = &self.columns[i]
            chosen = side if column.raw[side].at != NULL else other
            if column.raw[chosen].at == NULL:
                continue
            if not self.named(out, &column.name, out.size == start) or not self.once(out, column, i, chosen, end):
                return False
        return say(out, b"}")

    cdef inline bint named(self, Out* out, const Piece* name, bint first) noexcept nogil:
        return put(out, name.at + first, name.size - first)

    cdef inline bint once(self, Out* out, Column* column, int index, int side, const uint8_t* end) noexcept nogil:
        """Write a value; one that is in the image before already is copied from there."""
        cdef size_t size
        if side == AFTER and column.raw[BEFORE].at != NULL and not self.differs(column) and column.cell_size[BEFORE]:
            size = column.cell_size[BEFORE]
            if not reserve(out, size):
                return False
            memcpy(out.data + out.size, out.data + column.cell[BEFORE], size)
            column.cell[side], column.cell_size[side] = out.size, size
            out.size += size
            return True
        column.cell[side] = out.size
        if not self.json(out, column, index, column.raw[side].at, end):
            return False
        column.cell_size[side] = out.size - column.cell[side]
        return True

    cdef void begin_row(self) noexcept nogil:
        """Nothing of the row is written yet."""
        cdef int i
        for i in range(self.width):
            self.columns[i].cell_size[BEFORE] = self.columns[i].cell_size[AFTER] = 0

    cdef bint keyed_by(self, Out* out, const Out* written, bint* whole) noexcept nogil:
        """Write the key, of what is in `written`: the newest value of each column. `whole`: whether no part of it is NULL."""
        cdef int i, side
        cdef Column* column
        whole[0] = self.keys > 0
        if not put(out, self.key_head.at, self.key_head.size):
            return False
        for i in range(self.keys):
            column = &self.columns[self.key[i]]
            if not self.named(out, &column.key_name, out.data[out.size - 1] == c"{"):
                return False
            side = AFTER if column.raw[AFTER].at != NULL else BEFORE
            if column.raw[side].at == NULL or not column.cell_size[side]:
                whole[0] = False
                if not say(out, b"null"):
                    return False
                continue
            if column.cell_size[side] == 4 and not memcmp(written.data + column.cell[side], b"null", 4):
                whole[0] = False
            if not put(out, written.data + column.cell[side], column.cell_size[side]):
                return False
        return put(out, self.key_tail.at, self.key_tail.size)

    # ---------------------------------------------------------------- one value

    cdef bint json(self, Out* out, Column* column, int index, const uint8_t* p, const uint8_t* end) noexcept nogil:
        """Write a value; False where the reference must."""
        cdef uint8_t* to
        cdef const uint8_t* at = NULL
        cdef size_t size = 0
        cdef int64_t value = 0
        cdef uint64_t whole = 0
        cdef double real = 0
        cdef int made = -1, i, form = column.form
        if p >= end or not reserve(out, SHORT + 2):
            return False
        if p[0] == 0xC0:
            column.type = NULL_TYPE
            return say(out, b"null")
        column.type = USUAL_TYPE
        if form >= WHOLE_NUMBER:
            return self.unquoted(out, column, index, p, end)
        to = out.data + out.size + 1
        if form == INT:
            if read_signed(p, end, &value) != NULL:
                if column.unsigned and value > 0 and <uint64_t>value > column.most:
                    column.type = HIGH_TYPE
                made = write_signed(to, value)
            elif read_unsigned(p, end, &whole) != NULL:
                if column.unsigned and whole > column.most:
                    column.type = HIGH_TYPE
                made = write_unsigned(to, whole)
        elif form == TEXT or form == STRIPPED or form == OCTETS:
            at = read_text(p, end, &size)
            if at != NULL:
                if form == OCTETS:
                    return is_utf8(at, size) and octets(out, at, size)
                return form == TEXT and quoted(out, at, size)
            at = read_bin(p, end, &size)
            if at == NULL:
                return False
            while form == STRIPPED and size and at[size - 1] == 0:
                size -= 1
            return octets(out, at, size)
        elif form == DIGITS or form == GROUPED:
            at = read_text(p, end, &size)
            if at == NULL or not is_decimal(at, size):
                return False
            if form == GROUPED:
                size = grouped(at, size, column.scale)
            return quoted(out, at, size)
        elif form == JSON:
            at = read_text(p, end, &size)
            if at == NULL:
                return False
            if like_java(at, size):
                return quoted(out, at, size)
            return self.printed(out, index, at, size, 0)
        elif form == DATE or form == MOMENT or form == LOCAL:
            if read_signed(p, end, &value) != NULL:
                if form == DATE:
                    made = write_date(to, value)
                else:
                    made = write_moment(to, value, column.scale) if form == MOMENT else write_local(to, value, column.scale)
            else:  # a zero or impossible date
                at = read_text(p, end, &size)
                return at != NULL and quoted(out, at, size)
        elif form == ENUM or form == SET:
            at = read_text(p, end, &size)
            if at == NULL:
                return False
            if form == ENUM:
                i = member_of(column.members, column.count, at, size)
                if i == 0 and size:
                    return False
                made = write_unsigned(to, i)
            elif set_mask(column.members, column.count, at, size, &whole):
                made = write_unsigned(to, whole)
        elif form == JAVA or form == NUMBER:
            if read_double(p, end, &real) == NULL or real - real != 0:
                return False
            made = write_double(to, real, form == JAVA)
            if made < 0:
                return self.printed(out, index, NULL, 0, real)
        elif form == TIME:
            if read_signed(p, end, &value) != NULL:
                made = write_time(to, value, column.scale)
        elif form == YEAR:
            if read_signed(p, end, &value) != NULL and 0 <= value <= 9999:
                write_padded(to, value, 4)
                made = 4
        if made < 0:
            return False
        out.data[out.size] = to[made] = c'"'
        out.size += made + 2
        return True

    cdef bint unquoted(self, Out* out, Column* column, int index, const uint8_t* p, const uint8_t* end) noexcept nogil:
        """A value of one of the forms beyond text.pxi's."""
        cdef uint8_t* to = out.data + out.size
        cdef const uint8_t* at
        cdef size_t size = 0
        cdef int64_t value = 0
        cdef uint64_t whole = 0
        cdef uint8_t[8] bits
        cdef double real = 0
        cdef int made, form = column.form
        if form == PLAIN:
            at = read_text(p, end, &size)
            if at != NULL:
                return quoted(out, at, size)
            at = read_bin(p, end, &size)
            return at != NULL and base64(out, at, size)
        if form == WHOLE_NUMBER:
            if read_signed(p, end, &value) != NULL:
                out.size += write_signed(to, value)
            elif read_unsigned(p, end, &whole) != NULL:
                out.size += write_unsigned(to, whole)
            else:
                return False
            return True
        if form == REAL:
            return read_double(p, end, &real) != NULL and self.dumped(out, real)
        if form == LIST:
            at = read_text(p, end, &size)
            return at != NULL and members(out, at, size)
        if form == DECIMAL_NUMBER or form == DOCUMENT:
            at = read_text(p, end, &size)
            if at == NULL or (form == DECIMAL_NUMBER and not has_scale(at, size, column.scale)):
                return False
            return self.made(out, index, at, size)
        if form == BITS or form == BOOLEAN:
            if read_unsigned(p, end, &whole) == NULL:
                return False
            if form == BOOLEAN:
                return say(out, b"true" if whole else b"false")
            for made in range(8):
                bits[made] = whole >> (8 * made) & 0xFF
                if made >= column.size and bits[made]:
                    return False
            return base64(out, bits, column.size)
        if read_signed(p, end, &value) == NULL:  # a zero or impossible date
            at = read_text(p, end, &size)
            if at == NULL or form == MICRO_TIME:
                return False
            return quoted(out, at, size) if form == UTC else is_utf8(at, size) and put(out, column.nothing.at, column.nothing.size)
        if form == MICRO_TIME:
            out.size += write_signed(to, value)
            return True
        if form == DAYS:
            out.size += write_signed(to, value)
            return -719162 <= value <= 2932896
        if not LEAST_MOMENT <= value <= MOST_MOMENT:
            return False
        if form == MILLIS:
            value = value // 1000 - (1 if value % 1000 < 0 else 0)  # C's division goes to zero
        if form == MILLIS or form == MICROS:
            out.size += write_signed(to, value)
            return True
        made = write_moment(to + 1, value, column.scale) if form == UTC or form == ZONED else -1
        if made < 0:
            return False
        to[0], to[11], to[1 + made], to[2 + made] = c'"', c"T", c"Z", c'"'
        out.size += made + 3
        return True

    cdef bint printed(self, Out* out, int index, const uint8_t* at, size_t size, double real) noexcept nogil:
        """A value that Python prints: text at `at`, or a double."""
        with gil:
            try:
                value = text_of(at, size) if at != NULL else real
                shown = self.texts[index](value).encode()
                return quoted(out, <const uint8_t*>PyBytes_AS_STRING(shown), PyBytes_GET_SIZE(shown))
            except Exception:
                return False

    cdef bint made(self, Out* out, int index, const uint8_t* at, size_t size) noexcept nogil:
        """Text of which Python makes JSON."""
        with gil:
            try:
                shown = self.texts[index](text_of(at, size))
                return put(out, <const uint8_t*>PyBytes_AS_STRING(shown), PyBytes_GET_SIZE(shown))
            except Exception:
                return False

    cdef bint dumped(self, Out* out, double real) noexcept nogil:
        """A double as a number."""
        cdef int made
        if not reserve(out, SHORT):
            return False
        made = write_plain(out.data + out.size, real)
        if made >= 0:
            out.size += made
            return True
        with gil:
            try:
                shown = self.real(real)
                return put(out, <const uint8_t*>PyBytes_AS_STRING(shown), PyBytes_GET_SIZE(shown))
            except Exception:
                return False


cdef bint octets(Out* out, const uint8_t* at, size_t size) noexcept nogil:
    """Bytes as a string, each a character."""
    cdef size_t part
    if not say(out, b'"'):
        return False
    while size:
        part = min(size, <size_t>1024)
        if not reserve(out, 6 * part + sizeof(Shown)):
            return False
        out.size = put_shown(out.data + out.size, at, part, OCTET) - out.data
        at += part
        size -= part
    return say(out, b'"')


cdef inline bint is_decimal(const uint8_t* at, size_t size) noexcept nogil:
    """Whether these are digits as a server prints them: ``-12.30``, ``0``."""
    cdef size_t i = 0, begin
    if size and at[0] == c"-":
        i = 1
    begin = i
    while i < size and c"0" <= at[i] <= c"9":
        i += 1
    if i == begin or (at[begin] == c"0" and i > begin + 1):
        return False
    if i == size:
        return True
    if at[i] != c"." or i + 1 == size:
        return False
    i += 1
    while i < size and c"0" <= at[i] <= c"9":
        i += 1
    return i == size


cdef inline size_t grouped(const uint8_t* at, size_t size, int scale) noexcept nogil:
    """The size without the last group of digits, where that is not whole and all zeros."""
    cdef size_t short = scale % 9, i
    if not short or size < short:
        return size
    i = size - short
    while i < size and at[i] == c"0":
        i += 1
    if i < size:
        return size
    return size - (short if short != <size_t>scale else short - 1)  # where there is no other group, one of them stays


cdef inline bint has_scale(const uint8_t* at, size_t size, int scale) noexcept nogil:
    """Whether these are digits with `scale` of them behind the point."""
    if not is_decimal(at, size):
        return False
    return memchr(at, c".", size) == NULL if scale == 0 else size > <size_t>scale + 1 and at[size - scale - 1] == c"."


cdef bint members(Out* out, const uint8_t* at, size_t size) noexcept nogil:
    """The members of a SET as a list."""
    cdef const uint8_t* end = at + size
    cdef const uint8_t* comma
    if not say(out, b"["):
        return False
    while size:
        comma = <const uint8_t*>memchr(at, c",", end - at)
        if not quoted(out, at, (comma if comma != NULL else end) - at):
            return False
        if comma == NULL:
            break
        at = comma + 1
        if not say(out, b","):
            return False
    return say(out, b"]")
