# Condition: a row filter, tried on rows as MessagePack, as `shmstore.producer.filters.condition` tries it on their values.
#
# It is a list of checks, in postfix order, that `shmstore.producer.filters.condition_steps` makes: each of a column pushes what it finds,
# "not", "and" and "or" take what is on the stack. A column's value is looked for in ranges, which are closed on both sides but for text
# and bytes. A value of another form than its column mostly has (an impossible date, text that is not UTF-8) raises ValueError: then the
# event is Python's.

cdef enum Check:
    IS_NULL, IN_SIGNED, IN_UNSIGNED, IN_DOUBLE, IN_SINGLE, IN_DECIMAL, IN_TEXT, IN_BYTES, IS_LIKE, NOT_OF, ALL_OF, ANY_OF

cdef enum:
    FALSE_, TRUE_, UNKNOWN_
    LIKE_ANY = 0x110000  # %: beyond all characters
    LIKE_ONE = 0x110001  # _


cdef struct CheckStep:
    int check
    int column      # of "and" and "or": how many parts
    int scale       # of a DECIMAL
    bint negated
    size_t first    # of its ranges, or of its pattern's characters
    size_t count


cdef struct Range:
    int64_t low, high
    uint64_t unsigned_low, unsigned_high
    double real_low, real_high
    size_t low_at, low_size, high_at, high_size  # in `texts`
    bint has_low, has_high, low_open, high_open


cdef class Condition:
    """A condition on rows of one table. Made from (check, column, scale, negated, ranges) for each step; see `condition_steps`."""

    cdef Buffer steps, ranges, texts, characters
    cdef int width                    # values of a row that are looked at
    cdef const uint8_t** values
    cdef uint8_t* stack

    def __cinit__(self, steps):
        cdef CheckStep step
        memset(&self.steps, 0, sizeof(Buffer))
        memset(&self.ranges, 0, sizeof(Buffer))
        memset(&self.texts, 0, sizeof(Buffer))
        memset(&self.characters, 0, sizeof(Buffer))
        self.width = 0
        for check, column, scale, negated, ranges in steps:
            step.check, step.column, step.scale, step.negated = _CHECKS[check], column, scale, negated
            step.first, step.count = self.ranges.size // sizeof(Range), len(ranges)
            if step.check < NOT_OF:
                self.width = max(self.width, step.column + 1)
            if step.check == IS_LIKE:
                step.first = self.characters.size // sizeof(uint32_t)
                for character in ranges:
                    self.add_character(character)
            else:
                for each in ranges:
                    self.add(step.check, each)
            put_raw(&self.steps, <uint8_t*>&step, sizeof(CheckStep))
        self.values = <const uint8_t**>PyMem_Malloc((self.width + 1) * sizeof(uint8_t*))
        self.stack = <uint8_t*>PyMem_Malloc(len(steps) + 1)
        if self.values == NULL or self.stack == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free_buffer(&self.steps)
        free_buffer(&self.ranges)
        free_buffer(&self.texts)
        free_buffer(&self.characters)
        PyMem_Free(self.values)
        PyMem_Free(self.stack)

    cdef int add_character(self, uint32_t character) except -1:
        return put_raw(&self.characters, <uint8_t*>&character, sizeof(uint32_t))

    cdef int add(self, int check, tuple found) except -1:
        cdef Range made
        memset(&made, 0, sizeof(Range))
        if check == IN_UNSIGNED:
            made.unsigned_low, made.unsigned_high = found
        elif check == IN_DOUBLE or check == IN_SINGLE:
            made.real_low, made.real_high = found
        elif check == IN_TEXT or check == IN_BYTES:
            low, made.low_open, high, made.high_open = found
            made.has_low, made.has_high = low is not None, high is not None
            made.low_at = self.texts.size
            if low is not None:
                made.low_size = len(low)
                put_raw(&self.texts, <const uint8_t*>PyBytes_AS_STRING(low), made.low_size)
            made.high_at = self.texts.size
            if high is not None:
                made.high_size = len(high)
                put_raw(&self.texts, <const uint8_t*>PyBytes_AS_STRING(high), made.high_size)
        else:
            made.low, made.high = found
        return put_raw(&self.ranges, <uint8_t*>&made, sizeof(Range))

    def tried(self, const uint8_t[::1] data):
        """Return True, False or None for each row of `data`, a MessagePack array of rows. Raises ValueError where Python has to try it."""
        cdef size_t count, width, i, j
        cdef const uint8_t* p = &data[0]
        cdef const uint8_t* end = p + data.shape[0]
        p = _array_begins(p, end, &count)
        found = []
        for i in range(count):
            found.append((False, True, None)[self.of(p)])
            p = _array_begins(p, end, &width)
            for j in range(width):
                p = value_end(p)
        return found

    cdef int of(self, const uint8_t* row) except -1:
        """Try it on a row that was written here: FALSE_, TRUE_ or UNKNOWN_."""
        cdef CheckStep* step = <CheckStep*>self.steps.data
        cdef CheckStep* end = step + self.steps.size // sizeof(CheckStep)
        cdef uint8_t* top = self.stack
        cdef const uint8_t* p
        cdef int i, found, decides
        p = row + (1 if row[0] < 0xDC else 3)  # no table has 65536 columns
        for i in range(self.width):
            self.values[i] = p
            p = value_end(p)
        while step < end:
            if step.check == NOT_OF:
                if (top - 1)[0] != UNKNOWN_:
                    (top - 1)[0] = 1 - (top - 1)[0]
            elif step.check == ALL_OF or step.check == ANY_OF:
                decides = FALSE_ if step.check == ALL_OF else TRUE_
                found = 1 - decides
                top -= step.column
                for i in range(step.column):
                    if top[i] == decides:
                        found = decides
                        break
                    if top[i] == UNKNOWN_:
                        found = UNKNOWN_
                top[0] = <uint8_t>found
                top += 1
            else:
                p = self.values[step.column]
                if step.check == IS_NULL:
                    top[0] = p[0] == 0xC0
                elif p[0] == 0xC0:
                    top[0] = UNKNOWN_
                else:
                    top[0] = self.holds(step, p) != step.negated
                top += 1
            step += 1
        return (top - 1)[0]

    cdef bint holds(self, CheckStep* step, const uint8_t* p) except -1:
        """Whether a value that is not NULL is in one of the ranges, or like the pattern."""
        cdef Range* at = <Range*>self.ranges.data + step.first
        cdef Range* end = at + step.count
        cdef int64_t number
        cdef uint64_t positive
        cdef double real
        cdef size_t size
        cdef const uint8_t* text
        if step.check == IN_SIGNED or step.check == IN_DECIMAL:
            number = stored_signed(p) if step.check == IN_SIGNED else stored_decimal(p, step.scale)
            while at < end:
                if at.low <= number <= at.high:
                    return True
                at += 1
        elif step.check == IN_UNSIGNED:
            positive = stored_unsigned(p)
            while at < end:
                if at.unsigned_low <= positive <= at.unsigned_high:
                    return True
                at += 1
        elif step.check == IN_DOUBLE or step.check == IN_SINGLE:
            real = stored_double(p)
            if step.check == IN_SINGLE:
                real = <double><float>real
            while at < end:
                if at.real_low <= real <= at.real_high:
                    return True
                at += 1
        else:
            text = stored_text(p, step.check == IN_BYTES, &size)
            if step.check == IS_LIKE:
                return is_like(text, text + size, <uint32_t*>self.characters.data + step.first, step.count)
            while at < end:
                if self.between(at, text, size):
                    return True
                at += 1
        return False

    cdef bint between(self, Range* at, const uint8_t* text, size_t size) noexcept:
        cdef int order
        if at.has_low:
            order = compare_texts(text, size, self.texts.data + at.low_at, at.low_size)
            if order < 0 or (order == 0 and at.low_open):
                return False
        if at.has_high:
            order = compare_texts(text, size, self.texts.data + at.high_at, at.high_size)
            if order > 0 or (order == 0 and at.high_open):
                return False
        return True


# ---------------------------------------------------------------- stored values


cdef inline int64_t stored_signed(const uint8_t* p) except? -1:
    cdef uint8_t head = p[0]
    cdef uint64_t value
    if head < 0x80:
        return head
    if head >= 0xE0:
        return <int64_t><int8_t>head
    if 0xD0 <= head <= 0xD3:
        value = big(p + 1, 1 << (head & 3))
        return <int64_t>(value << (64 - (8 << (head & 3)))) >> (64 - (8 << (head & 3)))
    value = stored_unsigned(p)
    if value >> 63:
        raise ValueError("an integer is larger than its column's")
    return <int64_t>value


cdef inline uint64_t stored_unsigned(const uint8_t* p) except? 1:
    cdef uint8_t head = p[0]
    if head < 0x80:
        return head
    if 0xCC <= head <= 0xCF:
        return big(p + 1, 1 << (head & 3))
    raise ValueError(f"not a number from 0 on: {head:#x}")


cdef inline double stored_double(const uint8_t* p) except? -1:
    cdef uint64_t bits
    cdef double value
    if p[0] != 0xCB:
        raise ValueError(f"not a floating-point number: {p[0]:#x}")
    bits = big(p + 1, 8)
    memcpy(&value, &bits, 8)
    return value


cdef const uint8_t* stored_text(const uint8_t* p, bint binary, size_t* size) except NULL:
    cdef uint8_t head = p[0]
    cdef int width
    if not binary and head & 0xE0 == 0xA0:
        size[0] = head & 31
        return p + 1
    width = 1 << (head - (0xC4 if binary else 0xD9)) if (0xC4 <= head <= 0xC6 if binary else 0xD9 <= head <= 0xDB) else 0
    if not width:
        raise ValueError(f"not {'bytes' if binary else 'text'}: {head:#x}")
    size[0] = <size_t>big(p + 1, width)
    return p + 1 + width


cdef int64_t stored_decimal(const uint8_t* p, int scale) except? -1:
    """A DECIMAL's digits, with `scale` of them behind the point, as an integer."""
    cdef size_t size, i
    cdef const uint8_t* text = stored_text(p, False, &size)
    cdef int64_t value = 0
    cdef int digits = 0, behind = -1
    cdef bint minus = size > 0 and text[0] == c"-"
    for i in range(minus, size):
        if text[i] == c"." and behind < 0:
            behind = 0
            continue
        if not c"0" <= text[i] <= c"9":
            raise ValueError("not a DECIMAL")
        value = 10 * value + (text[i] - c"0")
        digits += value > 0
        if behind >= 0:
            behind += 1
        if digits > 18:
            raise ValueError("a DECIMAL has more digits than fit")
    behind = max(behind, 0)
    if behind > scale or digits + scale - behind > 18:
        raise ValueError("a DECIMAL has more digits than its column")
    while behind < scale:
        value *= 10
        behind += 1
    return -value if minus else value


cdef inline int compare_texts(const uint8_t* one, size_t size, const uint8_t* other, size_t other_size) noexcept:
    cdef int found = memcmp(one, other, min(size, other_size)) if size and other_size else 0
    return found if found else (size > other_size) - (size < other_size)


cdef inline const uint8_t* next_character(const uint8_t* p, const uint8_t* end, uint32_t* found) noexcept:
    """Read a character of text that was checked when it was stored."""
    cdef uint8_t head = p[0]
    cdef int more = 0 if head < 0x80 else 1 if head < 0xE0 else 2 if head < 0xF0 else 3
    cdef uint32_t value = head if head < 0x80 else head & (0x3F >> more)
    p += 1
    while more and p < end:
        value = value << 6 | p[0] & 0x3F
        p += 1
        more -= 1
    found[0] = value
    return p


cdef inline const uint8_t* first_place(const uint8_t* p, const uint8_t* end, const uint32_t* pattern, const uint32_t* stop) noexcept:
    """Where, from `p` on, what follows a % may begin: where its first byte is; NULL: nowhere."""
    cdef uint32_t character
    if pattern == stop or pattern[0] >= LIKE_ANY or p == end:
        return p
    character = pattern[0]
    return <const uint8_t*>memchr(
        p,
        character if character < 0x80 else 0xC0 | character >> 6 if character < 0x800
        else 0xE0 | character >> 12 if character < 0x10000 else 0xF0 | character >> 18,
        end - p,
    )


cdef bint is_like(const uint8_t* p, const uint8_t* end, const uint32_t* pattern, size_t count) noexcept:
    """LIKE. What is between two % is taken at its first place: only the last % is gone back to."""
    cdef const uint32_t* stop = pattern + count
    cdef const uint32_t* after_any = NULL
    cdef const uint8_t* again = NULL
    cdef const uint8_t* after
    cdef uint32_t character
    while p < end:
        if pattern < stop and pattern[0] == LIKE_ANY:
            pattern += 1
            if pattern == stop:
                return True  # whatever follows
            p = first_place(p, end, pattern, stop)
            if p == NULL:
                return False
            after_any, again = pattern, p
            continue
        after = next_character(p, end, &character)
        if pattern < stop and (pattern[0] == LIKE_ONE or pattern[0] == character):
            pattern += 1
            p = after
            continue
        if after_any == NULL:
            return False
        again = first_place(next_character(again, end, &character), end, after_any, stop)
        if again == NULL:
            return False
        pattern, p = after_any, again
    while pattern < stop and pattern[0] == LIKE_ANY:
        pattern += 1
    return pattern == stop


_CHECKS = {
    "null": IS_NULL, "signed": IN_SIGNED, "unsigned": IN_UNSIGNED, "double": IN_DOUBLE, "single": IN_SINGLE, "decimal": IN_DECIMAL,
    "text": IN_TEXT, "bytes": IN_BYTES, "like": IS_LIKE, "not": NOT_OF, "and": ALL_OF, "or": ANY_OF,
}  # fmt: skip
