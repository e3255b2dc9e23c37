# Bytes of one value in a row image -> MessagePack of its stored form. The caller has checked that the bytes are there, and has
# made space for LONGEST bytes. `end`: of the event; up to it a number is read as one word.

cdef enum:
    SECOND = 1000000
    LONGEST = 80  # bytes of any value here: a DECIMAL's 65 digits, sign, point and head

cdef int* DIGIT_BYTES = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
cdef uint32_t* POWERS = [1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000]
cdef uint32_t* MONTH_DAYS = [0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0]
cdef uint32_t* MARCH_DAYS = [0, 306, 337, 0, 31, 61, 92, 122, 153, 184, 214, 245, 275, 0, 0, 0]  # of a year's days from March on
cdef double* TENS = [1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15]
cdef int64_t* FRACTIONS = [1, 10000, 100, 1]  # microseconds, by bytes of the fraction


cdef inline uint64_t little(const uint8_t* at, int size) noexcept:
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value |= <uint64_t>at[i] << (8 * i)
    return value


cdef inline uint64_t big(const uint8_t* at, int size) noexcept:
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value = value << 8 | at[i]
    return value


cdef inline int64_t signed_little(const uint8_t* at, int size) noexcept:
    cdef uint64_t value = little(at, size)
    cdef int shift = 64 - 8 * size
    return <int64_t>(value << shift) >> shift


cdef inline uint64_t _shifted_little(const uint8_t* at, const uint8_t* end, int size) noexcept:
    """The number of 1 to 8 bytes in the highest bytes of a word."""
    cdef uint64_t word
    if end - at < 8:
        return little(at, size) << (64 - 8 * size)
    memcpy(&word, at, 8)
    return AS_LITTLE(word) << (64 - 8 * size)


cdef inline uint64_t read_little(const uint8_t* at, const uint8_t* end, int size) noexcept:
    return _shifted_little(at, end, size) >> (64 - 8 * size)


cdef inline int64_t read_signed(const uint8_t* at, const uint8_t* end, int size) noexcept:
    return <int64_t>_shifted_little(at, end, size) >> (64 - 8 * size)


cdef inline uint64_t read_big(const uint8_t* at, const uint8_t* end, int size) noexcept:
    cdef uint64_t word
    if end - at < 8:
        return big(at, size)
    memcpy(&word, at, 8)
    return AS_BIG(word) >> (64 - 8 * size)


cdef inline bint days_since_1970(uint32_t year, uint32_t month, uint32_t day, int64_t* days) noexcept:
    """Days of a date of the proleptic Gregorian calendar; False for one that does not exist. `month` is below 16."""
    cdef uint32_t leap = (year & 3 == 0) & ((year % 100 != 0) | (year & 15 == 0))
    if (year - 1 > 9998) | (day - 1 >= MONTH_DAYS[month] + (leap & (month == 2))):
        return False
    # The year begins in March, so that the leap day comes last.
    cdef uint32_t of_march = year - (month <= 2)
    cdef uint32_t century = of_march // 100
    days[0] = <int64_t>(of_march * 365 + of_march // 4 - century + century // 4 + MARCH_DAYS[month] + day - 1) - 719468
    return True


cdef inline uint8_t* _write_c_text(uint8_t* to, const char* text, int size) noexcept:
    return write_text(to, <const uint8_t*>text, size)


cdef inline uint8_t* write_date(uint8_t* to, const uint8_t* at, const uint8_t* end) except NULL:
    cdef uint32_t packed = <uint32_t>read_little(at, end, 3)
    cdef int64_t days
    cdef char text[32]
    if packed >> 9 > 9999 or packed >> 5 & 15 > 12:
        raise ValueError(f"DATE {packed >> 9}-{packed >> 5 & 15}-{packed & 31}")
    if days_since_1970(packed >> 9, packed >> 5 & 15, packed & 31, &days):
        return write_signed(to, days)
    return _write_c_text(to, text, snprintf(text, 32, b"%04d-%02d-%02d", packed >> 9, packed >> 5 & 15, packed & 31))


cdef int _fraction_text(char* text, int size, int64_t microseconds, int digits) noexcept:
    cdef char whole[32]
    if digits:
        snprintf(whole, 32, b".%06d", <int>microseconds)
        memcpy(text + size, whole, digits + 1)
        size += digits + 1
    return size


cdef inline uint8_t* write_datetime(uint8_t* to, const uint8_t* at, const uint8_t* end, int digits) except NULL:
    cdef int part = (digits + 1) // 2  # bytes of the fraction
    cdef uint64_t word = read_big(at, end, 5 + part)
    cdef int64_t microseconds = <int64_t>(word & ((<uint64_t>1 << 8 * part) - 1)) * FRACTIONS[part]
    cdef int64_t packed = <int64_t>(word >> 8 * part) - <int64_t>0x8000000000
    cdef uint32_t months = <uint32_t>(packed >> 22), clock = <uint32_t>packed & 0x1FFFF, day = <uint32_t>packed >> 17 & 31
    cdef uint32_t hour = clock >> 12, minute = clock >> 6 & 63, second = clock & 63
    cdef int64_t days
    cdef char text[64]
    cdef int size
    if packed < 0 or months > 9999 * 13 + 12:
        raise ValueError(f"DATETIME that begins with 0x{at[0]:02x}{at[1]:02x}{at[2]:02x}")
    if (hour > 23) | (minute > 59) | (second > 59):
        raise ValueError(f"DATETIME of {hour}:{minute}:{second} o'clock")
    if days_since_1970(months // 13, months % 13, day, &days):
        return write_signed(to, (days * 86400 + hour * 3600 + minute * 60 + second) * SECOND + microseconds)
    size = snprintf(text, 64, b"%04d-%02d-%02d %02d:%02d:%02d", months // 13, months % 13, day, hour, minute, second)
    return _write_c_text(to, text, _fraction_text(text, size, microseconds, digits))


cdef inline uint8_t* write_timestamp(uint8_t* to, int64_t value, int digits) noexcept:
    """`value`: microseconds since 1970; 0 is the zero date."""
    cdef char text[64]
    if value:
        return write_signed(to, value)
    memcpy(text, b"0000-00-00 00:00:00", 19)
    return _write_c_text(to, text, _fraction_text(text, 19, 0, digits))


cdef inline int64_t read_timestamp(const uint8_t* at, const uint8_t* end, int digits) noexcept:
    cdef int part = (digits + 1) // 2
    cdef uint64_t word = read_big(at, end, 4 + part)
    return <int64_t>(word >> 8 * part) * SECOND + <int64_t>(word & ((<uint64_t>1 << 8 * part) - 1)) * FRACTIONS[part]


cdef inline uint8_t* write_time(uint8_t* to, const uint8_t* at, const uint8_t* end, int digits) except NULL:
    cdef int part = (digits + 1) // 2
    cdef int64_t packed = <int64_t>read_big(at, end, 3 + part) - (<int64_t>0x800000 << 8 * part)
    cdef int64_t size = -packed if packed < 0 else packed
    cdef int64_t clock = size >> 8 * part
    cdef int64_t microseconds = (size & ((<int64_t>1 << 8 * part) - 1)) * FRACTIONS[part]
    if clock >> 6 & 63 > 59 or clock & 63 > 59 or microseconds >= SECOND:
        raise ValueError(f"TIME {packed}")
    cdef int64_t value = ((clock >> 12) * 3600 + (clock >> 6 & 63) * 60 + (clock & 63)) * SECOND + microseconds
    return write_signed(to, -value if packed < 0 else value)


cdef inline bint _nearest(double wide, int digits, double* found) noexcept:
    """The double nearest to `wide` as a decimal of so many digits; False where only exact arithmetic can tell which that is.

    Integers up to 10^9 and powers of ten up to 10^22 are doubles, so that a quotient or a product of them is rounded once.
    """
    cdef double size = fabs(wide), scaled, whole
    cdef int places
    if not 1e-5 <= size < 1e15:
        return False
    places = digits - 1 - <int>floor(log10(size))
    scaled = size * TENS[places] if places >= 0 else size / TENS[-places]
    whole = floor(scaled + 0.5)
    if fabs(fabs(scaled - whole) - 0.5) < 1e-5:
        return False
    whole = copysign(whole, wide)
    found[0] = whole / TENS[places] if places >= 0 else whole * TENS[-places]
    return True


cdef uint8_t* write_float(uint8_t* to, const uint8_t* at) noexcept:
    """The double nearest to the shortest decimal that gives this float again."""
    cdef float value
    cdef double shortest
    cdef char text[64]
    cdef int digits
    memcpy(&value, at, 4)
    cdef double wide = value
    if wide != wide or wide - wide != 0:
        return write_double(to, wide)
    for digits in range(6 if wide == 0 or wide >= 1.1754943508222875e-38 or wide <= -1.1754943508222875e-38 else 1, 10):
        if not _nearest(wide, digits, &shortest):
            snprintf(text, 64, b"%.*g", digits, wide)
            shortest = strtod(text, NULL)
        if <float>shortest == value:
            return write_double(to, shortest)
    return write_double(to, wide)


cdef inline uint8_t* _write_group(uint8_t* to, uint64_t value, int digits, bint leading) except NULL:
    """Write a group of 1 to 9 digits; the first of a number without the zeros it begins with."""
    cdef uint64_t word
    if value >= POWERS[digits]:
        raise ValueError(f"a DECIMAL has {value} where {digits} digits belong")
    word = eight_digits(<uint32_t>(value % 100000000))
    if leading:
        digits = 9 if value >= 100000000 else 8 - LOWEST_BIT(word | <uint64_t>1 << 56) // 8
    word |= <uint64_t>0x3030303030303030
    if digits == 9:
        to[0] = <uint8_t>(c"0" + value // 100000000)
        word = AS_LITTLE(word)
        memcpy(to + 1, &word, 8)
    else:
        word = AS_LITTLE(word >> 8 * (8 - digits))
        memcpy(to, &word, 8)
    return to + digits


cdef inline uint8_t* write_decimal(uint8_t* to, const uint8_t* at, const uint8_t* end, int precision, int scale) except NULL:
    """Digits as the server prints them. Groups of up to 9 digits are big-endian; a negative value has all bits inverted."""
    cdef uint8_t* begin = to
    cdef int i, digits, width, whole = precision - scale, groups = whole // 9, parts = scale // 9
    cdef uint64_t flip = 0, value
    cdef uint64_t sign = 1  # the first group's highest bit, which is inverted once more
    cdef bint leading = True
    to += 1
    if not at[0] & 0x80:
        flip = ~flip
        to[0] = c"-"
        to += 1
    for i in range(groups + parts + 2):  # a part of a group, whole groups, the point, whole groups, a part
        digits = whole % 9 if i == 0 else scale % 9 if i == groups + parts + 1 else 9
        if i == groups + 1:
            if leading:
                to[0] = c"0"
                to += 1
                leading = False
            to[0] = c"."
            to += scale > 0
        width = DIGIT_BYTES[digits]
        if not width:
            continue
        value = (read_big(at, end, width) ^ flip) & ((<uint64_t>1 << 8 * width) - 1) ^ sign << (8 * width - 1)
        sign = 0
        at += width
        if value or not leading:
            to = _write_group(to, value, digits, leading)
            leading = False
    if to - begin > 32:  # the text has a head of two bytes
        memmove(begin + 2, begin + 1, to - begin - 1)
        begin[1] = <uint8_t>(to - begin - 1)
        begin[0] = 0xD9
        return to + 1
    begin[0] = <uint8_t>(0xA0 | (to - begin - 1))
    return to
