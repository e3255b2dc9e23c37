# The head of an event as Python values, and Python values as MessagePack: what `shmstore.encoding.codec` does with the package msgpack.

cdef enum:
    MOST_PACKED = 2     # of a body: the rows before, and those after
    DEPTH = 32          # of arrays and maps; the deepest that is stored has four

# The kind of each field of a header, in its order: n a number, t text, m a map of text to text.
cdef const char* KINDS = b"nntnnnntnntnttm"


cdef struct Parts:
    # What is MessagePack already is not copied into `scratch`: each part, and the size of `scratch` where it belongs.
    Py_buffer[MOST_PACKED] views
    size_t[MOST_PACKED] places
    int count


# Where values are written before their size is known. One is enough: while it is in use no Python code runs, so no other thread
# does. `put_value` makes no object that the garbage collector tracks, unless it gives up, and looks at none that could call back.
cdef Buffer scratch


def pack(value, type packed):
    """Return `value` as MessagePack, the bytes that msgpack would write; None where msgpack is to write it, or to say why it cannot.

    An object of the class `packed` has `data`, bytes or a memoryview that are MessagePack already.
    """
    cdef Parts parts
    cdef size_t total, at = 0, copied = 0
    cdef uint8_t* to
    cdef int i
    parts.count = 0
    scratch.size = 0
    try:
        if not put_value(value, packed, &parts, 0):
            return None
        total = scratch.size
        for i in range(parts.count):
            total += parts.views[i].len
        out = PyBytes_FromStringAndSize(NULL, total)
        to = <uint8_t*>PyBytes_AS_STRING(out)
        for i in range(parts.count):
            to = write_raw(to, scratch.data + copied, parts.places[i] - copied)
            to = write_raw(to, <const uint8_t*>parts.views[i].buf, parts.views[i].len)
            copied = parts.places[i]
        write_raw(to, scratch.data + copied, scratch.size - copied)
        return out
    finally:
        for i in range(parts.count):
            PyBuffer_Release(&parts.views[i])
        if scratch.capacity > LARGE:
            free_buffer(&scratch)


cdef int put_value(object value, type packed, Parts* parts, int depth) except -1:
    """Write a value into `scratch`; 0 where msgpack is to write it."""
    cdef const char* text
    cdef Py_ssize_t size, i
    cdef int64_t number
    cdef uint64_t whole
    cdef int overflow
    cdef PyObject* key
    cdef PyObject* item
    if value is None:
        return 1 + put_byte(&scratch, 0xC0)
    if isinstance(value, str):
        text = PyUnicode_AsUTF8AndSize(value, &size)
        if size > <Py_ssize_t>0xFFFFFFFF:
            return 0
        return 1 + put_text(&scratch, <const uint8_t*>text, size)
    if value is True or value is False:
        return 1 + put_byte(&scratch, 0xC3 if value is True else 0xC2)
    if isinstance(value, int):
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        reserve(&scratch, 9)
        if overflow == 0:
            scratch.size = write_signed(scratch.data + scratch.size, number) - scratch.data
            return 1
        if overflow < 0:
            return 0
        try:
            whole = PyLong_AsUnsignedLongLong(value)
        except OverflowError:
            return 0
        scratch.size = write_unsigned(scratch.data + scratch.size, whole) - scratch.data
        return 1
    if isinstance(value, bytes):
        size = PyBytes_GET_SIZE(value)
        if size > <Py_ssize_t>0xFFFFFFFF:
            return 0
        put_bin_head(&scratch, size)
        return 1 + put_raw(&scratch, <const uint8_t*>PyBytes_AS_STRING(value), size)
    if isinstance(value, float):
        reserve(&scratch, 9)
        scratch.size = write_double(scratch.data + scratch.size, PyFloat_AS_DOUBLE(value)) - scratch.data
        return 1
    if type(value) is packed:
        data = value.data
        if parts.count == MOST_PACKED or not (isinstance(data, bytes) or isinstance(data, memoryview)):
            return 0
        PyObject_GetBuffer(data, &parts.views[parts.count], PyBUF_SIMPLE)
        parts.places[parts.count] = scratch.size
        parts.count += 1
        return 1
    if depth == DEPTH:
        return 0
    if isinstance(value, list):
        put_array_head(&scratch, PyList_GET_SIZE(value))
        for i in range(PyList_GET_SIZE(value)):
            if not put_value(<object>PyList_GET_ITEM(value, i), packed, parts, depth + 1):
                return 0
        return 1
    if isinstance(value, tuple):
        put_array_head(&scratch, PyTuple_GET_SIZE(value))
        for i in range(PyTuple_GET_SIZE(value)):
            if not put_value(<object>PyTuple_GET_ITEM(value, i), packed, parts, depth + 1):
                return 0
        return 1
    if isinstance(value, dict):
        put_map_head(&scratch, PyDict_Size(value))
        i = 0
        while PyDict_Next(value, &i, &key, &item):
            if not put_value(<object>key, packed, parts, depth + 1) or not put_value(<object>item, packed, parts, depth + 1):
                return 0
        return 1
    return 0


def head(payload, type header, unpack):
    """Return (`header` of the event's fields, schema bytes or None, where the body begins); None where msgpack is to read it."""
    return parts_of(payload, header, unpack, None)


def split(payload, type header, unpack, type packed):
    """As `head`, with the body as a `packed`, a tuple of one."""
    return parts_of(payload, header, unpack, packed)


cdef tuple parts_of(object payload, type header, object unpack, type packed):
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef size_t size
    cdef int i
    fields = NEW_TUPLE(header, HEADER_FIELDS + 1)
    schema = None
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        p = <const uint8_t*>view.buf
        end = p + view.len
        if end - p < 5 or p[0] != 0x95 or p[1] != 2 or p[2] != 0x90 | HEADER_FIELDS:  # five values; the format; the header
            return None
        p += 3
        for i in range(HEADER_FIELDS):
            fill_item(fields, i, field(&p, end, KINDS[i]))
        at = p
        p = skip_resume(p, end)
        if p == NULL or p >= end:
            return None
        fill_item(fields, HEADER_FIELDS, None if at[0] == 0xC0 else unpack(PyBytes_FromStringAndSize(<const char*>at, p - at)))
        if p[0] == 0xC0:
            p += 1
        else:
            p = read_bin(p, end, &size)
            if p == NULL:
                return None
            schema = PyBytes_FromStringAndSize(<const char*>p, size)
            p += size
        if p >= end:
            return None
        if packed is None:
            return fields, schema, p - <const uint8_t*>view.buf
        body = NEW_TUPLE(packed, 1)
        fill_item(body, 0, PyMemoryView_FromObject(payload)[p - <const uint8_t*>view.buf:])
        return fields, schema, body
    except (_Unusual, UnicodeDecodeError):
        return None
    finally:
        PyBuffer_Release(&view)


cdef object field(const uint8_t** at, const uint8_t* end, char kind):
    """A field of a header, and `at` behind it."""
    cdef const uint8_t* p = at[0]
    cdef int64_t number
    cdef size_t size
    cdef dict props
    if kind == b"n":
        p = read_signed(p, end, &number)
        if p == NULL:
            raise _Unusual
        at[0] = p
        return number
    if kind == b"t":
        p = read_text(p, end, &size)
        if p == NULL:
            raise _Unusual
        at[0] = p + size
        return text_of(p, size)
    if p >= end or p[0] & 0xF0 != 0x80:
        raise _Unusual
    props, at[0] = {}, p + 1
    for number in range(p[0] & 0x0F):
        name = field(at, end, b"t")
        props[name] = field(at, end, b"t")
    return props
