# Bytes of one value in a row image -> MessagePack of its stored form. The caller has checked that the bytes are there.

DEF SECOND = 1000000

cdef int* DIGIT_BYTES = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
cdef int* MONTH_DAYS = [0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


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


cdef inline bint days_since_1970(int64_t year, int64_t month, int64_t day, int64_t* days) noexcept:
    """Days of a date of the proleptic Gregorian calendar; False for one that does not exist."""
    cdef bint leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= year <= 9999 or not 1 <= month <= 12 or day < 1 or day > MONTH_DAYS[month] + (1 if month == 2 and leap else 0):
        return False
    # Counted in eras of 400 years that begin in March, so that the leap day comes last.
    cdef int64_t y = year - (1 if month <= 2 else 0)
    cdef int64_t era = y // 400
    cdef int64_t of_era = y - era * 400
    cdef int64_t of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days[0] = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
    return True


cdef inline int64_t fraction(const uint8_t* at, int digits) noexcept:
    """Microseconds of a fraction of `digits` digits in (digits + 1) // 2 big-endian bytes."""
    if digits == 0:
        return 0
    if digits <= 2:
        return <int64_t>at[0] * 10000
    if digits <= 4:
        return <int64_t>big(at, 2) * 100
    return <int64_t>big(at, 3)


cdef int put_date(Buffer* out, const uint8_t* at) except -1:
    cdef int packed = <int>little(at, 3)
    cdef int64_t days
    cdef char text[32]
    if packed >> 9 > 9999 or packed >> 5 & 15 > 12:
        raise ValueError(f"DATE {packed >> 9}-{packed >> 5 & 15}-{packed & 31}")
    if days_since_1970(packed >> 9, packed >> 5 & 15, packed & 31, &days):
        return put_signed(out, days)
    cdef int size = snprintf(text, 32, b"%04d-%02d-%02d", packed >> 9, packed >> 5 & 15, packed & 31)
    return put_text(out, <uint8_t*>text, size)


cdef int _fraction_text(char* text, int size, int64_t microseconds, int digits) noexcept:
    cdef char whole[32]
    if digits:
        snprintf(whole, 32, b".%06d", <int>microseconds)
        memcpy(text + size, whole, digits + 1)
        size += digits + 1
    return size


cdef int put_datetime(Buffer* out, const uint8_t* at, int digits) except -1:
    cdef int64_t packed = <int64_t>big(at, 5) - <int64_t>0x8000000000
    if not 0 <= packed >> 22 <= 9999 * 13 + 12:
        raise ValueError(f"DATETIME that begins with 0x{at[0]:02x}{at[1]:02x}{at[2]:02x}")
    cdef int64_t months = packed >> 22, day = packed >> 17 & 31, hour = packed >> 12 & 31
    cdef int64_t minute = packed >> 6 & 63, second = packed & 63, days
    cdef int64_t microseconds = fraction(at + 5, digits)
    cdef char text[64]
    cdef int size
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"DATETIME of {hour}:{minute}:{second} o'clock")
    if days_since_1970(months // 13, months % 13, day, &days):
        return put_signed(out, (days * 86400 + hour * 3600 + minute * 60 + second) * SECOND + microseconds)
    size = snprintf(
        text, 64, b"%04d-%02d-%02d %02d:%02d:%02d", <int>(months // 13), <int>(months % 13), <int>day, <int>hour, <int>minute, <int>second
    )
    return put_text(out, <uint8_t*>text, _fraction_text(text, size, microseconds, digits))


cdef int put_timestamp(Buffer* out, uint64_t seconds, int64_t microseconds, int digits) except -1:
    cdef int64_t value = <int64_t>seconds * SECOND + microseconds
    cdef char text[64]
    if value:
        return put_signed(out, value)
    memcpy(text, b"0000-00-00 00:00:00", 19)
    return put_text(out, <uint8_t*>text, _fraction_text(text, 19, 0, digits))


cdef int put_time(Buffer* out, const uint8_t* at, int digits) except -1:
    cdef int bits = (digits + 1) // 2 * 8
    cdef int64_t packed = <int64_t>big(at, 3 + bits // 8) - (<int64_t>0x800000 << bits)
    cdef int64_t size = -packed if packed < 0 else packed
    cdef int64_t clock = size >> bits, part = size & ((<int64_t>1 << bits) - 1)
    cdef int64_t scale = SECOND if bits == 0 else 10000 if bits == 8 else 100 if bits == 16 else 1
    if clock >> 6 & 63 > 59 or clock & 63 > 59 or part * scale >= SECOND:
        raise ValueError(f"TIME {packed}")
    cdef int64_t value = ((clock >> 12) * 3600 + (clock >> 6 & 63) * 60 + (clock & 63)) * SECOND + part * scale
    return put_signed(out, -value if packed < 0 else value)


cdef int put_float(Buffer* out, const uint8_t* at) except -1:
    """The double nearest to the shortest decimal that gives this float again."""
    cdef float value
    cdef double shortest
    cdef char text[64]
    cdef int digits
    memcpy(&value, at, 4)
    cdef double wide = value
    if wide != wide or wide - wide != 0:
        return put_double(out, wide)
    for digits in range(6 if wide == 0 or wide >= 1.1754943508222875e-38 or wide <= -1.1754943508222875e-38 else 1, 10):
        snprintf(text, 64, b"%.*g", digits, wide)
        shortest = strtod(text, NULL)
        if <float>shortest == value:
            return put_double(out, shortest)
    return put_double(out, wide)


cdef int put_decimal(Buffer* out, const uint8_t* at, int precision, int scale, int size) except -1:
    """Digits as the server prints them. Groups of up to 9 digits are big-endian; a negative value has all bits inverted."""
    cdef char text[160]
    cdef uint8_t raw[64]
    cdef int i, n = 0, start, whole = precision - scale, p = 0, width
    cdef bint negative = not at[0] & 0x80
    for i in range(size):
        raw[i] = at[i] ^ 0xFF if negative else at[i]
    raw[0] ^= 0x80
    if negative:
        text[0] = c"-"
        n = 1
    start = n
    width = DIGIT_BYTES[whole % 9]
    if width:
        n = _put_group(text, n, big(raw, width), whole % 9, start)
        p = width
    for i in range(whole // 9):
        n = _put_group(text, n, big(raw + p, 4), 9, start)
        p += 4
    if n == start:
        text[n] = c"0"
        n += 1
    if scale:
        text[n] = c"."
        n += 1
        for i in range(scale // 9):
            n = _put_digits(text, n, big(raw + p, 4), 9)
            p += 4
        width = DIGIT_BYTES[scale % 9]
        if width:
            n = _put_digits(text, n, big(raw + p, width), scale % 9)
    return put_text(out, <uint8_t*>text, n)


cdef inline int _put_digits(char* text, int n, uint64_t value, int digits) except -1:
    cdef int i
    cdef uint64_t rest = value
    for i in range(digits - 1, -1, -1):
        text[n + i] = <char>(c"0" + rest % 10)
        rest //= 10
    if rest:
        raise ValueError(f"a DECIMAL has {value} where {digits} digits belong")
    return n + digits


cdef inline int _put_group(char* text, int n, uint64_t value, int digits, int start) except -1:
    """One group before the point; leading zeros are left out."""
    cdef char group[24]
    cdef int i = 0
    if n > start:
        return _put_digits(text, n, value, digits)
    _put_digits(group, 0, value, digits)
    while i < digits and group[i] == c"0":
        i += 1
    memcpy(text + n, group + i, digits - i)
    return n + digits - i
