# One stored value -> its text, as `shmstore.consumer.formats.canal_values` prints it.

cdef enum Form:  # `canal_values.Form`, by name
    OTHER      # the reference alone knows it
    INT
    YEAR
    DIGITS     # of a DECIMAL
    GROUPED    # the same without its last group of digits where that is all zeros
    TEXT
    STRIPPED   # bytes without trailing zero bytes
    OCTETS     # text as its bytes, each a character
    ENUM
    SET
    JSON
    JAVA       # a double, as Java prints it
    NUMBER     # a double, as MySQL does
    DATE
    MOMENT
    LOCAL      # a moment in the process's time zone
    TIME

_FORMS = {
    "int": INT, "year": YEAR, "digits": DIGITS, "grouped": GROUPED, "text": TEXT, "stripped": STRIPPED, "octets": OCTETS, "enum": ENUM,
    "set": SET, "json": JSON, "java": JAVA, "number": NUMBER, "date": DATE, "moment": MOMENT, "local": LOCAL, "time": TIME,
}

cdef enum:
    SHORT = 64  # bytes of any text that is made of a number
    SECOND = 1000000
    DAY_SECONDS = 86400

cdef int64_t* TENS = [1, 10, 100, 1000, 10000, 100000, 1000000]
cdef uint64_t[20] POWERS  # of ten
cdef uint8_t[200] PAIRS   # 00 to 99


cdef void _fill_powers() noexcept:
    cdef int i
    POWERS[0] = 1
    for i in range(1, 20):
        POWERS[i] = 10 * POWERS[i - 1]
    for i in range(100):
        PAIRS[2 * i], PAIRS[2 * i + 1] = <uint8_t>(c"0" + i // 10), <uint8_t>(c"0" + i % 10)


_fill_powers()

cdef extern from "Python.h":
    char* PyOS_double_to_string(double value, char format, int precision, int flags, int* kind)
    const int Py_DTSF_ADD_DOT_0
    void PyErr_Clear()


cdef inline int write_unsigned(uint8_t* to, uint64_t value) noexcept nogil:
    cdef uint8_t[20] digits
    cdef int at = 20
    while value > 9:  # two at a time
        at -= 2
        memcpy(&digits[at], &PAIRS[2 * (value % 100)], 2)
        value //= 100
    if value or at == 20:
        at -= 1
        digits[at] = <uint8_t>(c"0" + value)
    memcpy(to, &digits[at], 20 - at)
    return 20 - at


cdef inline int write_signed(uint8_t* to, int64_t value) noexcept nogil:
    if value >= 0:
        return write_unsigned(to, <uint64_t>value)
    to[0] = c"-"
    return 1 + write_unsigned(to + 1, 0 - <uint64_t>value)


cdef inline void write_padded(uint8_t* to, uint64_t value, int digits) noexcept nogil:
    """The last `digits` digits, with zeros before them."""
    while digits > 1:
        digits -= 2
        memcpy(to + digits, &PAIRS[2 * (value % 100)], 2)
        value //= 100
    if digits:
        digits -= 1
        to[digits] = <uint8_t>(c"0" + value % 10)
        value //= 10


cdef inline int write_fraction(uint8_t* to, int64_t micro, int scale) noexcept nogil:
    if not scale:
        return 0
    to[0] = c"."
    write_padded(to + 1, micro // TENS[6 - scale], scale)
    return 1 + scale


cdef inline int write_date(uint8_t* to, int64_t days) noexcept nogil:
    """``2024-02-29``; -1 where the calendar has no such day."""
    cdef int64_t era, of_era, year_of_era, of_year, month, day, year
    if not -719162 <= days <= 2932896:
        return -1
    # Counted in eras of 400 years that begin in March, so that the leap day comes last.
    days += 719468
    era = days // 146097
    of_era = days - era * 146097
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    write_padded(to, year, 4)
    to[4] = to[7] = c"-"
    write_padded(to + 5, month, 2)
    write_padded(to + 8, day, 2)
    return 10


cdef inline int write_clock(uint8_t* to, int64_t hour, int64_t minute, int64_t second) noexcept nogil:
    write_padded(to, hour, 2)
    to[2] = to[5] = c":"
    write_padded(to + 3, minute, 2)
    write_padded(to + 6, second, 2)
    return 8


cdef int write_moment(uint8_t* to, int64_t value, int scale) noexcept nogil:
    cdef int64_t second = value // SECOND - (1 if value % SECOND < 0 else 0), micro = value - second * SECOND  # C's division goes to zero
    cdef int64_t days = second // DAY_SECONDS - (1 if second % DAY_SECONDS < 0 else 0)
    if write_date(to, days) < 0:
        return -1
    second -= days * DAY_SECONDS
    to[10] = c" "
    write_clock(to + 11, second // 3600, second // 60 % 60, second % 60)
    return 19 + write_fraction(to + 19, micro, scale)


cdef int write_local(uint8_t* to, int64_t value, int scale) noexcept nogil:
    cdef time_t second = value // SECOND
    cdef tm local
    if value < 0 or second > <int64_t>250000000000 or localtime_r(&second, &local) == NULL:
        return -1
    write_padded(to, local.tm_year + 1900, 4)
    to[4] = to[7] = c"-"
    write_padded(to + 5, local.tm_mon + 1, 2)
    write_padded(to + 8, local.tm_mday, 2)
    to[10] = c" "
    write_clock(to + 11, local.tm_hour, local.tm_min, min(local.tm_sec, 59))
    return 19 + write_fraction(to + 19, value % SECOND, scale)


cdef int write_time(uint8_t* to, int64_t value, int scale) noexcept nogil:
    cdef int size = 0
    cdef int64_t second
    if not -<int64_t>1000000000000000000 < value < <int64_t>1000000000000000000:
        return -1
    if value < 0:
        to[0] = c"-"
        value, size = -value, 1
    second = value // SECOND
    if second < 360000:
        size += write_clock(to + size, second // 3600, second // 60 % 60, second % 60)
    else:
        size += write_unsigned(to + size, second // 3600)
        to[size] = to[size + 3] = c":"
        write_padded(to + size + 1, second // 60 % 60, 2)
        write_padded(to + size + 4, second % 60, 2)
        size += 6
    return size + write_fraction(to + size, value % SECOND, scale)


cdef int write_repr(uint8_t* to, double value) noexcept nogil:
    """A double as Python prints it; -1 where it is none that a server has."""
    cdef char* text
    cdef int size = write_plain(to, value)
    if size >= 0:
        return size
    if value - value != 0:
        return -1
    size = 0
    with gil:
        text = PyOS_double_to_string(value, c"r", 0, Py_DTSF_ADD_DOT_0, NULL)
        if text == NULL:
            PyErr_Clear()
            return -1
        while text[size] and size < SHORT:
            to[size] = text[size]
            size += 1
        PyMem_Free(text)
    return size


cdef int write_double(uint8_t* to, double value, bint java) noexcept nogil:
    """A double as Java prints it, or MySQL; -1 where the reference must."""
    cdef uint8_t[SHORT] text
    cdef uint8_t[SHORT] digits
    cdef int size = write_repr(text, value), i, count = 0, end = 0, before = -1, leading = 0, exponent = 0, sign = 0
    cdef double large = -value if value < 0 else value
    if size < 0:
        return -1
    for i in range(size):
        if text[i] == c"e":
            break
        end = i + 1
    if end < size:  # an exponent of two or three digits, with its sign
        for i in range(end + 2, size):
            exponent = exponent * 10 + (text[i] - c"0")
        if text[end + 1] == c"-":
            exponent = -exponent
    if large == 0 or (1e-3 <= large < 1e7 if java else end == size):
        if end < size:
            return -1
        if not java and size > 2 and text[size - 2] == c"." and text[size - 1] == c"0":
            size -= 2
        memcpy(to, text, size)
        return size
    if not java:
        if -15 <= exponent < 0:
            return -1
        memcpy(to, text, end)
        if end > 2 and text[end - 2] == c"." and text[end - 1] == c"0":
            return -1
        to[end] = c"e"
        return end + 1 + write_signed(to + end + 1, exponent)
    if text[0] == c"-":
        to[0] = c"-"
        sign = 1
    for i in range(sign, end):
        if text[i] == c".":
            before = count + leading
        elif count or text[i] != c"0":
            digits[count] = text[i]
            count += 1
        else:
            leading += 1
    if before < 0:
        before = count + leading
    if large < 1e-37:
        return -1  # what has one digit may have two in Java
    while count and digits[count - 1] == c"0":
        count -= 1
    exponent += before - leading - 1
    to += sign
    to[0], to[1], to[2] = digits[0], c".", c"0"
    if count > 1:
        memcpy(to + 2, &digits[1], count - 1)
    size = 2 + max(1, count - 1)
    to[size] = c"E"
    return sign + size + 1 + write_signed(to + size + 1, exponent)


cdef inline size_t high_bytes(const uint8_t* at, size_t size) noexcept nogil:
    """How many bytes are above 127: each takes two as ISO-8859-1 in UTF-8."""
    cdef size_t i, count = 0
    for i in range(size):
        count += at[i] >> 7
    return count


cdef inline uint8_t* put_octets(uint8_t* to, const uint8_t* at, size_t size) noexcept nogil:
    """Bytes as ISO-8859-1 characters, in UTF-8."""
    cdef size_t i
    cdef uint8_t c, high
    for i in range(size):  # without a branch; two bytes are written, and there is room for them
        c = at[i]
        high = c >> 7
        to[0], to[1] = (0xC0 | c >> 6) if high else c, 0x80 | c & 0x3F
        to += 1 + high
    return to


cdef bint like_java(const uint8_t* at, size_t size) noexcept nogil:
    """Whether Canal prints a JSON document as the server does: no number with a point or an exponent, no \\b, no \\f, no name of a member with
    an escape, no U+007F to U+00A0, no bytes (base64:...). False also where that takes a closer look: a text with a point behind a digit may be a moment.
    """
    cdef size_t i
    cdef uint8_t before = 0, c
    cdef bint inside = False, escapes = False, slashes = False, worded = False
    for i in range(size):
        c = at[i]
        if before == c"\\":  # of two, the second counts no more
            if c == c"b" or c == c"f":
                return False
            before = 0 if c == c"\\" else c
            continue
        if c == 0x7F or (before == 0xC2 and 0x80 <= c <= 0xA0):
            return False
        if (c == c"." or c == c"e" or c == c"E") and (before >= 0x80 or c"0" <= before <= c"9"):
            if not inside or c == c".":
                return False
            worded = True  # no number, but part of a text
        if c == c":" and before == c"4":
            return False
        if c == c"\\":
            escapes = slashes = True
        elif c == c'"':
            if inside and escapes and i + 1 < size and at[i + 1] == c":":
                return False
            inside, escapes = not inside, False
        before = c
    # Where texts begin and end is sure where there is no escape, and the last one ends.
    return not worded or not (slashes or inside)
