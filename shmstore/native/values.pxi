# The rows of a body -> Python values, as `shmstore.encoding.codec` makes them.

cdef enum Make:
    PLAIN = 0       # nil, bool, int, float, str or bytes, as it is
    TO_DECIMAL = 1
    TO_DATE = 2
    TO_DATETIME = 3
    TO_TIMESTAMP = 4
    TO_TIME = 5

DEF DAY = 86400000000

import_datetime()


cdef extern from *:
    """
    #define NEW_TUPLE(kind, size) PyType_GenericAlloc((PyTypeObject*)(kind), size)
    """
    object NEW_TUPLE(type kind, Py_ssize_t size)  # of a subclass of tuple, its items not set yet

# Values are text, bytes, numbers and dates, so that no cycle goes through a row of them. Who holds a batch's events has hundreds of thousands: the collector
# would walk over all of them again and again while the rest is made. So it does not know them.
cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object made)


class _Unusual(Exception):
    """The reference must read this."""


def rows(body, bytes makes, type row, absent, decimal):
    """The rows of an encoded `body` as a tuple of `row`; None where the reference must read it.

    `makes`: a Make for each column of the table; `absent` means a column that the image lacks; `decimal` makes a DECIMAL of
    its digits.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef list before, after
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf
        end = p + view.len
        if p == end or p[0] != 0x94:
            return None
        p += 1
        before = image_rows(&p, end, makes, absent, decimal)
        after = image_rows(&p, end, makes, absent, decimal)
        if p != end:
            return None
        if before is None:
            return () if after is None else tuple([pair(row, None, values) for values in after])
        if after is None:
            return tuple([pair(row, values, None) for values in before])
        if len(before) != len(after):
            return None
        return tuple([pair(row, before[i], after[i]) for i in range(len(before))])
    except (_Unusual, ValueError, ArithmeticError):  # of them, text that is not UTF-8, and dates beyond the calendar
        return None
    finally:
        PyBuffer_Release(&view)


cdef inline void fill_item(object made, Py_ssize_t i, object value):
    """Set an item of a tuple from NEW_TUPLE, which no other code has seen."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(made, i, value)


cdef inline object pair(type kind, object first, object second):
    made = NEW_TUPLE(kind, 2)
    fill_item(made, 0, first)
    fill_item(made, 1, second)
    PyObject_GC_UnTrack(made)
    return made


cdef list image_rows(const uint8_t** at, const uint8_t* end, bytes makes, object absent, object decimal):
    cdef const uint8_t* p = at[0]
    cdef int64_t count, width = PyBytes_GET_SIZE(makes), present, column, i, k
    cdef list found = [], columns = None
    cdef tuple values
    cdef object value
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
        return None
    p = read_array(p, end, &count)
    if p == NULL:
        raise _Unusual
    for k in range(count):
        p = read_array(p, end, &present)
        if p == NULL or present != (width if columns is None else len(columns)):
            raise _Unusual
        values = PyTuple_New(width)
        if columns is not None:
            for i in range(width):
                Py_INCREF(absent)
                PyTuple_SET_ITEM(values, i, absent)
        for i in range(present):
            column = i if columns is None else columns[i]
            value = cell(&p, end, makes[column], decimal)
            Py_INCREF(value)
            if columns is not None:
                Py_DECREF(absent)
            PyTuple_SET_ITEM(values, column, value)
        PyObject_GC_UnTrack(values)
        found.append(values)
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
