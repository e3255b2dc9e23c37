# An event of one's own as MessagePack: what `encoding.row_check` asks of its values is asked while they are written.

cdef enum Take:
    # What a column takes: the numbers of `row_check.ColumnKind`.
    TAKE_OTHER = 0  # a type that is not known
    TAKE_INTEGER = 1
    TAKE_FLOAT = 2
    TAKE_DECIMAL = 3
    TAKE_DATE = 4
    TAKE_DATETIME = 5
    TAKE_TIMESTAMP = 6
    TAKE_TIME = 7
    TAKE_TEXT = 8
    TAKE_BINARY = 9


cdef struct Taken:
    int take
    int64_t low      # of an integer
    uint64_t high


cdef extern from "Python.h":
    object PyObject_Format(object value, object spec)


cdef class EventWriter:
    """Writes events of a table, or of none: `schema` is its schema's bytes, or None; `kinds` has (Take, low, high) for each column."""

    cdef object schema, absent, utc
    cdef type row, decimal
    cdef Taken* columns
    cdef Py_ssize_t width

    def __cinit__(self, schema, kinds, type row, absent, type decimal, utc):
        cdef Py_ssize_t i
        self.schema, self.row, self.absent, self.decimal, self.utc = schema, row, absent, decimal, utc
        self.width = len(kinds)
        self.columns = <Taken*>calloc(self.width or 1, sizeof(Taken))
        if self.columns == NULL:
            raise MemoryError
        for i, (take, low, high) in enumerate(kinds):
            self.columns[i] = Taken(take, low, high)

    def __dealloc__(self):
        free(self.columns)

    def event(self, tuple header, rows):
        """The bytes of an event that says no sources: `header` are the fields, as `codec.Header` has them, without the last.

        None where the reference must write it, or refuse it: a value of another class than the usual one, for example.
        """
        cdef Buffer out
        cdef int i
        cdef bint whole
        out.data, out.size, out.capacity = NULL, 0, 0
        if PyTuple_GET_SIZE(header) != HEADER_FIELDS or (self.schema is not None and type(rows) is not tuple):
            return None
        try:
            reserve(&out, 16)
            out.data[0], out.data[1], out.data[2] = 0x95, 2, 0x90 | HEADER_FIELDS
            out.size = 3
            for i in range(HEADER_FIELDS):
                if not put_field(&out, <object>PyTuple_GET_ITEM(header, i), KINDS[i]):
                    return None
            put_byte(&out, 0xC0)
            if self.schema is None:
                put_byte(&out, 0xC0)
                put_byte(&out, 0xC0)
            else:
                put_bin_head(&out, PyBytes_GET_SIZE(self.schema))
                put_raw(&out, <const uint8_t*>PyBytes_AS_STRING(self.schema), PyBytes_GET_SIZE(self.schema))
                put_byte(&out, 0x94)
                if not self.put_images(&out, rows, 0) or not self.put_images(&out, rows, 1):
                    return None
            return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
        except (ValueError, OverflowError):  # text that is not Unicode, a number of more than 64 bits
            return None
        finally:
            free_buffer(&out)

    cdef bint put_images(self, Buffer* out, tuple rows, int which) except -1:
        """The columns and the rows of the images before (0) or after (1); False where the reference must write them."""
        cdef Py_ssize_t count = PyTuple_GET_SIZE(rows), present = 0, k, i
        cdef object row, image, first, value
        if count > <Py_ssize_t>0xFFFFFFFF:
            return False
        for k in range(count):
            row = <object>PyTuple_GET_ITEM(rows, k)
            if type(row) is not self.row:
                return False
            image = <object>PyTuple_GET_ITEM(row, which)
            if k == 0:
                first = image
                if first is None:
                    break
                if type(first) is not tuple or PyTuple_GET_SIZE(first) != self.width:
                    return False
                for i in range(self.width):
                    present += <object>PyTuple_GET_ITEM(first, i) is not self.absent
                if present == self.width:
                    put_byte(out, 0xC0)
                else:
                    put_array_head(out, present)
                    for i in range(self.width):
                        if <object>PyTuple_GET_ITEM(first, i) is not self.absent:
                            put_unsigned(out, i)
                put_array_head(out, count)
            if type(image) is not tuple or PyTuple_GET_SIZE(image) != self.width:
                return False
            put_array_head(out, present)
            for i in range(self.width):
                value = <object>PyTuple_GET_ITEM(image, i)
                if <object>PyTuple_GET_ITEM(first, i) is self.absent:
                    if value is not self.absent:
                        return False
                elif not self.put_cell(out, self.columns + i, value):
                    return False
        if count == 0 or first is None:
            for k in range(1, count):  # in the others, too
                row = <object>PyTuple_GET_ITEM(rows, k)
                if type(row) is not self.row or <object>PyTuple_GET_ITEM(row, which) is not None:
                    return False
            put_byte(out, 0xC0)
            put_byte(out, 0xC0)
        return True

    cdef bint put_cell(self, Buffer* out, Taken* column, object value) except -1:
        """A value of a column; False where the reference must write it, or refuse it."""
        cdef int take = column.take
        cdef int64_t number
        if value is None:
            put_byte(out, 0xC0)
            return True
        if take == TAKE_INTEGER:
            return type(value) is int and put_integer(out, value, column.low, column.high)
        if take == TAKE_TEXT:
            return type(value) is str and put_string(out, value)
        if take == TAKE_DECIMAL:
            return type(value) is self.decimal and put_decimal(out, value)
        if take == TAKE_FLOAT:
            if type(value) is not float:
                return False
            reserve(out, 9)
            out.size = write_double(out.data + out.size, PyFloat_AS_DOUBLE(value)) - out.data
            return True
        if take == TAKE_BINARY:
            if type(value) is not bytes or PyBytes_GET_SIZE(value) > <Py_ssize_t>0xFFFFFFFF:
                return False
            put_bin_head(out, PyBytes_GET_SIZE(value))
            put_raw(out, <const uint8_t*>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
            return True
        if take == TAKE_DATETIME or take == TAKE_TIMESTAMP:
            if not PyDateTime_CheckExact(value):
                return False
            zone = datetime_tzinfo(value)
            if zone is not (None if take == TAKE_DATETIME else self.utc):
                return False
            number = days_of(datetime_year(value), datetime_month(value), datetime_day(value)) * DAY + 1000000 * <int64_t>(
                datetime_hour(value) * 3600 + datetime_minute(value) * 60 + datetime_second(value)
            ) + datetime_microsecond(value)
        elif take == TAKE_DATE:
            if not PyDate_CheckExact(value):
                return False
            number = days_of(date_year(value), date_month(value), date_day(value))
        elif take == TAKE_TIME:
            if not PyDelta_CheckExact(value) or not -10000000 < timedelta_days(value) < 10000000:
                return False
            number = timedelta_days(value) * DAY + 1000000 * <int64_t>timedelta_seconds(value) + timedelta_microseconds(value)
        else:
            return False
        reserve(out, 9)
        out.size = write_signed(out.data + out.size, number) - out.data
        return True


cdef bint put_field(Buffer* out, object value, char kind) except -1:
    """A field of a header; False where it is not of its kind."""
    cdef Py_ssize_t i = 0
    cdef PyObject* key
    cdef PyObject* item
    if kind == b"n":
        return type(value) is int and put_integer(out, value, -<int64_t>0x7FFFFFFFFFFFFFFF - 1, <uint64_t>0xFFFFFFFFFFFFFFFF)
    if kind == b"t":
        return type(value) is str and put_string(out, value)
    if type(value) is not dict:
        return False
    put_map_head(out, PyDict_Size(value))
    while PyDict_Next(value, &i, &key, &item):
        if type(<object>key) is not str or type(<object>item) is not str:
            return False
        if not put_string(out, <object>key) or not put_string(out, <object>item):
            return False
    return True


cdef bint put_string(Buffer* out, object value) except -1:
    cdef Py_ssize_t size
    cdef const char* text = PyUnicode_AsUTF8AndSize(value, &size)
    if size > <Py_ssize_t>0xFFFFFFFF:
        return False
    put_text(out, <const uint8_t*>text, size)
    return True


cdef bint put_integer(Buffer* out, object value, int64_t low, uint64_t high) except -1:
    cdef int overflow
    cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
    cdef uint64_t whole
    reserve(out, 9)
    if overflow < 0 or (overflow == 0 and number < low):
        return False
    if overflow == 0 and number < 0:
        out.size = write_signed(out.data + out.size, number) - out.data
        return True
    whole = <uint64_t>number if overflow == 0 else PyLong_AsUnsignedLongLong(value)
    if whole > high:
        return False
    out.size = write_unsigned(out.data + out.size, whole) - out.data
    return True


cdef bint put_decimal(Buffer* out, object value) except -1:
    """Its digits; False of what is not finite."""
    cdef Py_ssize_t size
    cdef str digits = PyObject_Format(value, "f")
    cdef const char* text = PyUnicode_AsUTF8AndSize(digits, &size)
    if size == 0 or not (b"0" <= text[0] <= b"9" or (text[0] == b"-" and size > 1 and b"0" <= text[1] <= b"9")):
        return False
    put_text(out, <const uint8_t*>text, size)
    return True


cdef int64_t days_of(int year, int month, int day) noexcept:
    """Days since 1970-01-01, counted as `moment` does."""
    cdef int64_t years = year - (1 if month <= 2 else 0)
    cdef int64_t era = years // 400, of_era = years - era * 400
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1 - 719468
