# Table: one table version, and its rows as the bytes of Canal's RowChange.rowDatas.

cdef struct Column:
    Form form
    int scale
    bint unsigned              # values above `most` have another sqlType
    uint64_t most
    # A column's bytes before its value, all but its length, by whether it was updated: of the usual sqlType, and of that above `most`.
    Piece[2] usual
    Piece[2] high
    Piece[2] null              # all of it
    Piece tail                 # behind the value
    int count                  # of an ENUM or a SET: its members, in UTF-8
    Piece* members
    Piece was                  # the value in the image before, as it is stored
    size_t cell                # where that image's bytes of this column begin in the output, and how many they are
    size_t cell_size

cdef enum:
    BEFORE = 0x0A              # the tags of the two images in a row
    AFTER = 0x12
    ROW = 0x62
    VALUE = 0x42


cdef class Table:
    """What `rows.EntryTable` says, for compiled code. Immutable but for what a row leaves behind, so one at a time may use it."""

    cdef readonly str name     # that filters see
    cdef Piece names, head     # Header.schemaName and tableName; RowChange.tableId
    cdef int width
    cdef Column* columns
    cdef list texts, kept      # what prints a value in Python, by column; what the pieces point into
    cdef Piece* members

    def __cinit__(self, table):
        cdef int i, k, count = 0
        cdef Column* column
        plans = table.plans
        self.kept = []
        self.name, self.width = table.name, len(plans)
        self.texts = [plan.text for plan in plans]
        self.names, self.head = self.piece(table.names), self.piece(table.head)
        for plan in plans:
            count += len(plan.members)
        self.columns = <Column*>calloc(max(1, self.width), sizeof(Column))
        self.members = <Piece*>calloc(max(1, count), sizeof(Piece))
        if self.columns == NULL or self.members == NULL:
            raise MemoryError("no memory for a table's columns")
        count = 0
        for i in range(self.width):
            plan, column = plans[i], &self.columns[i]
            column.form = _FORMS.get(plan.form, OTHER) if 0 <= plan.scale <= 6 or plan.form in ("digits", "grouped") else OTHER
            column.scale = plan.scale
            column.unsigned, column.most = plan.most is not None, plan.most or 0
            for k in range(2):
                column.usual[k], column.high[k] = self.piece(plan.usual[k]), self.piece(plan.high[k])
                column.null[k] = self.piece(plan.null[k])
            column.tail = self.piece(plan.tail)
            column.members = self.members + count
            column.count = len(plan.members)
            for member in plan.members:
                self.members[count] = self.piece(member.encode("utf-8", "replace").decode("latin-1"))
                count += 1

    def __dealloc__(self):
        free(self.columns)
        free(self.members)

    cdef Piece piece(self, str text):
        """Text of one byte a character, as the reference puts fields together."""
        cdef bytes made = text.encode("latin-1")
        cdef Piece piece
        self.kept.append(made)
        piece.at, piece.size = <const uint8_t*>PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made)
        return piece

    cdef bint rows(self, Out* out, const uint8_t* before, const uint8_t* before_columns, const uint8_t* after,
                   const uint8_t* after_columns, int64_t count, const uint8_t* end) noexcept nogil:
        """Write `count` rows. `before` and `after`: where the rows of the images begin, or NULL; the columns of an image as indexes of which
        each takes one byte or more, or NULL for all. False where the reference must write them."""
        cdef int prefix = 2, size
        cdef size_t start
        cdef int64_t i
        for i in range(count):
            if not reserve(out, 16):
                return False
            start = out.size
            out.size += 1 + prefix
            if before != NULL:
                before = self.image(out, before, before_columns, end, BEFORE, False)
                if before == NULL:
                    return False
            if after != NULL:
                after = self.image(out, after, after_columns, end, AFTER, before != NULL)
                if after == NULL:
                    return False
            # Its length stands before the row, with as many bytes as that of the row before it: mostly that is right.
            size = varint_size(out.size - start - 1 - prefix)
            if size != prefix:
                if not reserve(out, 16):
                    return False
                memmove(out.data + start + 1 + size, out.data + start + 1 + prefix, out.size - start - 1 - prefix)
                out.size = out.size + size - prefix
                prefix = size
            out.data[start] = ROW
            put_varint(out.data + start + 1, out.size - start - 1 - prefix)
        return True

    cdef const uint8_t* image(self, Out* out, const uint8_t* p, const uint8_t* present, const uint8_t* end, uint8_t side,
                              bint compared) noexcept nogil:
        """Write one image of a row, and give where it ends. `compared`: with the image before, which was written just now."""
        cdef int64_t count, indexes = self.width, number, index = -1, k
        cdef Column* column
        cdef const uint8_t* after
        cdef bint here, same
        cdef int i
        cdef size_t start
        if present != NULL:
            present = read_array(present, end, &indexes)
            if present == NULL:
                return NULL
        if side == BEFORE and present != NULL:
            for i in range(self.width):
                self.columns[i].was.at = NULL
        p = read_array(p, end, &count)
        if p == NULL or count != indexes:
            return NULL
        for k in range(count):
            number = k
            if present != NULL:
                present = read_signed(present, end, &number)
                if present == NULL or not index < number < self.width:
                    return NULL
                index = number
            column = &self.columns[number]
            after = behind_cell(p, end)
            if after == NULL:
                return NULL
            here = compared and column.was.at != NULL
            same = here and after - p == <Py_ssize_t>column.was.size and not memcmp(column.was.at, p, column.was.size)
            start = out.size
            if not self.cell(out, column, <int>number, p, end, side, side == AFTER and not here):
                return NULL
            if side == BEFORE:
                column.was.at, column.was.size = p, after - p
                column.cell, column.cell_size = start, out.size - start
            elif here and not same and (
                # As Canal, by what is printed. What differs in more than the side is written again, as updated.
                out.size - start != column.cell_size
                or memcmp(out.data + start + 1, out.data + column.cell + 1, column.cell_size - 1)
            ):
                out.size = start
                if not self.cell(out, column, <int>number, p, end, side, True):
                    return NULL
            p = after
        return p

    cdef bint cell(self, Out* out, Column* column, int number, const uint8_t* p, const uint8_t* end, uint8_t side, bint updated) noexcept nogil:
        """Write a column; False where the reference must."""
        cdef uint8_t[SHORT] text
        cdef const uint8_t* at = NULL
        cdef uint8_t* to
        cdef size_t size = 0, shown
        cdef int64_t value = 0
        cdef uint64_t whole = 0
        cdef double real = 0
        cdef int made = -1, i
        cdef Form form = column.form
        cdef Piece* head = &column.usual[updated]
        if p >= end:
            return False
        if p[0] == 0xC0:
            head = &column.null[updated]
            if not reserve(out, head.size + 12):
                return False
            to = out.data + out.size
            to[0] = side
            to = put_piece(put_varint(to + 1, head.size), head.at, head.size)
            out.size = to - out.data
            return True
        if form == INT:
            if read_signed(p, end, &value) != NULL:
                if column.unsigned and value > 0 and <uint64_t>value > column.most:
                    head = &column.high[updated]
                made = write_signed(text, value)
            elif read_unsigned(p, end, &whole) != NULL:
                if column.unsigned and whole > column.most:
                    head = &column.high[updated]
                made = write_unsigned(text, whole)
        elif form == TEXT or form == STRIPPED or form == OCTETS or form == DIGITS or form == GROUPED:
            at = read_text(p, end, &size)
            if at != NULL:
                return form != STRIPPED and self.text(out, column, head, at, size, side)
            at = read_bin(p, end, &size)
            if at == NULL or form == DIGITS or form == GROUPED:
                return False
            while form == STRIPPED and size and at[size - 1] == 0:
                size -= 1
            return self.octets(out, column, head, at, size, side)
        elif form == JSON:
            at = read_text(p, end, &size)
            if at == NULL:
                return False
            if like_java(at, size):
                return self.text(out, column, head, at, size, side)
            return self.printed(out, column, number, head, at, size, 0, side)
        elif form == DATE or form == MOMENT or form == LOCAL:
            if read_signed(p, end, &value) != NULL:
                if form == DATE:
                    made = write_date(text, value)
                else:
                    made = write_moment(text, value, column.scale) if form == MOMENT else write_local(text, value, column.scale)
            else:  # a zero or impossible date
                at = read_text(p, end, &size)
                return at != NULL and self.text(out, column, head, at, size, side)
        elif form == ENUM or form == SET:
            at = read_text(p, end, &size)
            if at == NULL:
                return False
            if form == ENUM:
                i = member_of(column.members, column.count, at, size)
                if i == 0 and size:
                    return False
                made = write_unsigned(text, i)
            elif set_mask(column.members, column.count, at, size, &whole):
                made = write_unsigned(text, whole)
        elif form == JAVA or form == NUMBER:
            if read_double(p, end, &real) == NULL or real - real != 0:
                return False
            made = write_double(text, real, form == JAVA)
            if made < 0:
                return self.printed(out, column, number, head, NULL, 0, real, side)
        elif form == TIME:
            if read_signed(p, end, &value) != NULL:
                made = write_time(text, value, column.scale)
        elif form == YEAR:
            if read_signed(p, end, &value) != NULL and 0 <= value <= 9999:
                write_padded(text, value, 4)
                made = 4
        if made < 0:
            return False
        to = begin_cell(out, side, head, made, &column.tail)
        if to == NULL:
            return False
        memcpy(to, text, made)
        end_cell(out, to + made, &column.tail)
        return True

    cdef bint text(self, Out* out, Column* column, Piece* head, const uint8_t* at, size_t size, uint8_t side) noexcept nogil:
        """A column with text."""
        cdef uint8_t* to
        cdef size_t i, short, kept
        if column.form == OCTETS:
            return is_utf8(at, size) and self.octets(out, column, head, at, size, side)
        if column.form == GROUPED:
            short = column.scale % 9
            if short and size >= short:
                i = size - short
                while i < size and at[i] == c"0":
                    i += 1
                if i == size:  # all zeros: where there is no other group, one of them stays
                    size -= short if short != <size_t>column.scale else short - 1
        to = begin_cell(out, side, head, size, &column.tail)
        if to == NULL:
            return False
        memcpy(to, at, size)
        if not is_utf8(to, size):
            return False
        end_cell(out, to + size, &column.tail)
        return True

    cdef bint octets(self, Out* out, Column* column, Piece* head, const uint8_t* at, size_t size, uint8_t side) noexcept nogil:
        """A column with bytes, each a character."""
        cdef size_t shown = size + high_bytes(at, size)
        cdef uint8_t* to = begin_cell(out, side, head, shown, &column.tail)
        cdef uint8_t* last
        if to == NULL or not reserve(out, 2 * size + column.tail.size + 32):  # what is read again may have more of them
            return False
        to = out.data + out.size
        last = put_octets(to, at, size)
        if last != to + shown:
            return False
        end_cell(out, last, &column.tail)
        return True

    cdef bint printed(self, Out* out, Column* column, int number, Piece* head, const uint8_t* at, size_t size, double real, uint8_t side) noexcept nogil:
        """A column that Python prints: text at `at`, or a double."""
        with gil:
            try:
                value = text_of(at, size) if at != NULL else real
                shown = self.texts[number](value).encode("utf-8", "replace")
                return self.text(out, column, head, <const uint8_t*>PyBytes_AS_STRING(shown), PyBytes_GET_SIZE(shown), side)
            except Exception:
                return False


cdef inline uint8_t* begin_cell(Out* out, uint8_t side, const Piece* head, size_t size, const Piece* tail) noexcept nogil:
    """Write what is before a value of `size` bytes; give where it goes, with space for all that follows. NULL: no memory.

    `out.size` is then where the value begins."""
    cdef uint8_t* to
    cdef size_t content = head.size + tail.size
    if size:
        content += 1 + varint_size(size) + size
    if not reserve(out, content + 12):
        return NULL
    to = out.data + out.size
    to[0] = side
    to = put_piece(put_varint(to + 1, content), head.at, head.size)
    if size:
        to[0] = VALUE
        to = put_varint(to + 1, size)
    out.size = to - out.data
    return to


cdef inline void end_cell(Out* out, uint8_t* to, const Piece* tail) noexcept nogil:
    out.size = put_piece(to, tail.at, tail.size) - out.data
