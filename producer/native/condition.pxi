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
    ONE_CHARACTER = 0xFF  # _ in a pattern: no byte of UTF-8

cdef extern from *:
    """
    #if defined(__SSE2__)
    #include <emmintrin.h>
    #endif
    #include <string.h>

    /* Where `sought` is first; NULL: nowhere. Of a few bytes, as patterns mostly are: sixteen places are looked at together, by the first byte and
       the last. The C library's own search steps through them, but takes no longer for a text made to be slow. */
    static const unsigned char *place_of(const unsigned char *p, size_t size, const unsigned char *sought, size_t count) {
        if (size < count)
            return NULL;
        if (!count)
            return p;
        if (count == 1)
            return (const unsigned char *)memchr(p, sought[0], size);
    #if defined(__SSE2__)
        if (size - count >= 15 && count <= 16) {
            const __m128i first = _mm_set1_epi8((char)sought[0]), last = _mm_set1_epi8((char)sought[count - 1]);
            const unsigned char *const end = p + (size - count) - 15;  /* of the last sixteen places */
            for (;;) {
                int found = _mm_movemask_epi8(_mm_and_si128(
                    _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)p), first),
                    _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(p + count - 1)), last)));
                for (; found; found &= found - 1) {
                    const unsigned char *at = p + __builtin_ctz((unsigned)found);
                    if (count == 2 || !memcmp(at + 1, sought + 1, count - 2))
                        return at;
                }
                if (p == end)
                    return NULL;
                p = end - p < 16 ? end : p + 16;
            }
        }
    #endif
        return (const unsigned char *)memmem(p, size, sought, count);
    }
    """
    const uint8_t* place_of(const uint8_t* p, size_t size, const uint8_t* sought, size_t count) noexcept nogil


cdef struct CheckStep:
    int check
    int column      # of "and" and "or": how many parts
    int scale       # of a DECIMAL
    bint negated
    size_t first    # of its ranges, or of its pattern's pieces
    size_t count


cdef struct Range:
    int64_t low, high
    uint64_t unsigned_low, unsigned_high
    double real_low, real_high
    size_t low_at, low_size, high_at, high_size  # in `texts`
    bint has_low, has_high, low_open, high_open


cdef struct Piece:  # of a LIKE's pattern: what is between two %
    size_t at, size       # in `texts`
    size_t characters
    bint plain            # without _


cdef class Condition:
    """A condition on rows of one table. Made from (check, column, scale, negated, ranges) for each step; see `condition_steps`."""

    cdef Buffer steps, ranges, texts, pieces
    cdef int width                    # values of a row that are looked at
    cdef const uint8_t** values
    cdef uint8_t* stack

    def __cinit__(self, steps):
        cdef CheckStep step
        memset(&self.steps, 0, sizeof(Buffer))
        memset(&self.ranges, 0, sizeof(Buffer))
        memset(&self.texts, 0, sizeof(Buffer))
        memset(&self.pieces, 0, sizeof(Buffer))
        self.width = 0
        for check, column, scale, negated, ranges in steps:
            step.check, step.column, step.scale, step.negated = _CHECKS[check], column, scale, negated
            step.first, step.count = self.ranges.size // sizeof(Range), len(ranges)
            if step.check < NOT_OF:
                self.width = max(self.width, step.column + 1)
            if step.check == IS_LIKE:
                step.first = self.pieces.size // sizeof(Piece)
                for piece in ranges:
                    self.add_piece(piece)
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
        free_buffer(&self.pieces)
        PyMem_Free(self.values)
        PyMem_Free(self.stack)

    cdef int add_piece(self, bytes text) except -1:
        cdef Piece piece
        piece.at, piece.size = self.texts.size, len(text)
        piece.characters, piece.plain = len([byte for byte in text if not 0x80 <= byte < 0xC0]), ONE_CHARACTER not in text
        put_raw(&self.texts, <const uint8_t*>PyBytes_AS_STRING(text), piece.size)
        return put_raw(&self.pieces, <uint8_t*>&piece, sizeof(Piece))

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
                return self.is_like(text, text + size, <Piece*>self.pieces.data + step.first, step.count)
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

    cdef bint is_like(self, const uint8_t* p, const uint8_t* end, const Piece* piece, size_t count) noexcept:
        """LIKE. What is between two % is taken at its first place, and what follows the last % stands at the end."""
        cdef const uint8_t* texts = self.texts.data
        cdef const Piece* last = piece + count - 1
        cdef const uint8_t* at = end
        cdef size_t left = last.characters
        p = piece_end(p, end, piece, texts)
        if count == 1 or p == NULL:
            return p == end
        piece += 1
        while piece < last:
            p = piece_found(p, end, piece, texts)
            if p == NULL:
                return False
            piece += 1
        while left and at > p:
            at -= 1
            left -= at[0] & 0xC0 != 0x80
        return not left and piece_end(at, end, last, texts) == end


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


cdef inline const uint8_t* next_character(const uint8_t* p, const uint8_t* end) noexcept:
    """Where the next character begins, in text that was checked when it was stored."""
    cdef uint8_t head = p[0]
    cdef int size = 1 if head < 0x80 else 2 if head < 0xE0 else 3 if head < 0xF0 else 4
    return p + size if end - p > size else end


cdef const uint8_t* piece_end(const uint8_t* p, const uint8_t* end, const Piece* piece, const uint8_t* texts) noexcept:
    """Where a piece that begins at `p` ends; NULL: it does not begin there. A character's bytes are compared: no other character has them."""
    cdef const uint8_t* at = texts + piece.at
    cdef const uint8_t* stop = at + piece.size
    if piece.plain:
        return p + piece.size if <size_t>(end - p) >= piece.size and not memcmp(p, at, piece.size) else NULL
    while at < stop:
        if p == end:
            return NULL
        if at[0] == ONE_CHARACTER:
            p = next_character(p, end)
        elif at[0] == p[0]:
            p += 1
        else:
            return NULL
        at += 1
    return p


cdef const uint8_t* piece_found(const uint8_t* p, const uint8_t* end, const Piece* piece, const uint8_t* texts) noexcept:
    """Where the first place of a piece, from `p` on, ends; NULL: there is none."""
    cdef const uint8_t* after
    cdef uint8_t first = (texts + piece.at)[0] if piece.size else 0
    if piece.plain:
        after = place_of(p, end - p, texts + piece.at, piece.size)
        if after != NULL:
            after += piece.size
        return after
    while True:
        if first != ONE_CHARACTER:
            p = <const uint8_t*>memchr(p, first, end - p)
        if p == NULL or p == end:
            return NULL
        after = piece_end(p, end, piece, texts)
        if after != NULL:
            return after
        p = next_character(p, end)


_CHECKS = {
    "null": IS_NULL, "signed": IN_SIGNED, "unsigned": IN_UNSIGNED, "double": IN_DOUBLE, "single": IN_SINGLE, "decimal": IN_DECIMAL,
    "text": IN_TEXT, "bytes": IN_BYTES, "like": IS_LIKE, "not": NOT_OF, "and": ALL_OF, "or": ANY_OF,
}  # fmt: skip
