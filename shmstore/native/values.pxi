# The rows of a body -> Python values, as `shmstore.encoding.codec` makes them.

cdef enum Make:
    PLAIN = 0       # nil, bool, int, float, str or bytes, as it is
    TO_DECIMAL = 1
    TO_DATE = 2
    TO_DATETIME = 3
    TO_TIMESTAMP = 4
    TO_TIME = 5

import_datetime()


cdef extern from *:
    """
    #define DAY 86400000000LL  /* microseconds; as a constant of Cython's it would be a Python integer, and so would what is divided by it */
    #define NEW_TUPLE(kind, size) PyType_GenericAlloc((PyTypeObject*)(kind), size)
    """
    const int64_t DAY
    object NEW_TUPLE(type kind, Py_ssize_t size)  # of a subclass of tuple, its items not set yet

# Values are text, bytes, numbers and dates, so that no cycle goes through a row of them. Who holds a batch's events has hundreds of thousands: the collector
# would walk over all of them again and again while the rest is made. So it does not know them.
cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object made)


class _Unusual(Exception):
    """The reference must read this."""


cdef tuple rows_of(const uint8_t* p, const uint8_t* end, bytes makes, type row, object absent, object decimal):
    """The rows of the body that ends at `end`, as a tuple of `row`. Raises _Unusual where the reference must read it.

    `makes`: a Make for each column of the table; `absent` means a column that the image lacks; `decimal` makes a DECIMAL of
    its digits.
    """
    cdef tuple found
    if p >= end or p[0] != 0x94:
        raise _Unusual
    p += 1
    found = with_images(&p, end, None, 0, makes, row, absent, decimal)
    found = with_images(&p, end, found, 1, makes, row, absent, decimal)
    if p != end:
        raise _Unusual
    return () if found is None else found


cdef inline void fill_item(object made, Py_ssize_t i, object value) noexcept:
    """Set an item of a tuple from NEW_TUPLE, which no other code has seen."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(made, i, value)


cdef tuple with_images(
    const uint8_t** at, const uint8_t* end, tuple found, int which, bytes makes, type row, object absent, object decimal
):
    """The rows with their images before (0) or after (1), as the body has them at `at`: those `found`, or new ones; None where there are none."""
    cdef const uint8_t* p = at[0]
    cdef int64_t count, width = PyBytes_GET_SIZE(makes), present, column, i, k
    cdef list columns = None
    cdef bint alone = found is None
    if p >= end:
        raise _Unusual
    if p[0] == 0xC0:
        p += 1
    else:
        p = read_array(p, end, &present)
        if p == NULL or present > width:
            raise _Unusual
        columns = []
        for i in range(present):
            p = read_signed(p, end, &column)
            if p == NULL or not 0 <= column < width or column in columns:
                raise _Unusual
            columns.append(column)
    if p >= end:
        raise _Unusual
    if p[0] == 0xC0:
        at[0] = p + 1
        return found
    p = read_array(p, end, &count)
    if p == NULL or (not alone and count != PyTuple_GET_SIZE(found)):
        raise _Unusual
    if alone:
        found = PyTuple_New(count)
        PyObject_GC_UnTrack(found)
    for k in range(count):
        p = read_array(p, end, &present)
        if p == NULL or present != (width if columns is None else len(columns)):
            raise _Unusual
        values = PyTuple_New(width)
        PyObject_GC_UnTrack(values)
        if columns is not None:
            for i in range(width):
                fill_item(values, i, absent)
        for i in range(present):
            column = i if columns is None else columns[i]
            value = cell(&p, end, makes[column], decimal)
            if columns is not None:
                Py_DECREF(absent)
            fill_item(values, column, value)
        if alone:
            pair = NEW_TUPLE(row, 2)
            PyObject_GC_UnTrack(pair)
            fill_item(pair, which, values)
            fill_item(pair, 1 - which, None)
            fill_item(found, k, pair)
        else:
            Py_DECREF(None)
            fill_item(<object>PyTuple_GET_ITEM(found, k), which, values)
    at[0] = p
    return found


cdef object cell(const uint8_t** at, const uint8_t* end, int make, object decimal):
    cdef const uint8_t* p = at[0]
    cdef const uint8_t* text
    cdef int64_t number
    cdef uint64_t whole
    cdef double real
    cdef size_t size
    if p >= end:
        raise _Unusual
    if p[0] == 0xC0:
        at[0] = p + 1
        return None
    text = read_text(p, end, &size)
    if text != NULL:
        at[0] = text + size
        value = text_of(text, size)
        return decimal(value) if make == TO_DECIMAL else value
    text = read_signed(p, end, &number)
    if text != NULL:
        at[0] = text
        return number if make <= TO_DECIMAL else moment(number, make)
    text = read_bin(p, end, &size)
    if text != NULL:
        at[0] = text + size
        return PyBytes_FromStringAndSize(<const char*>text, size)
    text = read_double(p, end, &real)
    if text != NULL:
        at[0] = text
        return real
    if p[0] == 0xC2 or p[0] == 0xC3:
        at[0] = p + 1
        return p[0] == 0xC3
    text = read_unsigned(p, end, &whole)
    if text == NULL or make > TO_DECIMAL:
        raise _Unusual
    at[0] = text
    return whole


cdef object moment(int64_t number, int make):
    """A date, a time or both: of days, or of microseconds."""
    cdef int64_t days = number, rest = 0, seconds, era, of_era, year_of_era, of_year, year, month, day
    if make != TO_DATE:
        days = number // DAY - (1 if number % DAY < 0 else 0)  # C's division goes to zero
        rest = number - days * DAY
    seconds = rest // 1000000
    rest = rest % 1000000
    if make == TO_TIME:
        return timedelta_new(<int>days, <int>seconds, <int>rest)
    if not -719162 <= days <= 2932896:
        raise OverflowError  # before the year 1, or after 9999
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
    if make == TO_DATE:
        return date_new(<int>year, <int>month, <int>day)
    return datetime_new(
        <int>year, <int>month, <int>day, <int>(seconds // 3600), <int>(seconds // 60 % 60), <int>(seconds % 60), <int>rest,
        get_utc() if make == TO_TIMESTAMP else None,
    )
