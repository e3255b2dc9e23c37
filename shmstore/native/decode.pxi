# The bytes of an event -> the event, as `shmstore.encoding.codec` makes it.

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    int PyDict_SetItem(object made, object key, object value) except -1
    int PyObject_GenericSetDict(object owner, object value, void* unused) except -1
    ctypedef struct View "PyMemoryViewObject":
        int flags
        Py_buffer view
    const int view_contiguous "_Py_MEMORYVIEW_C"
    const int view_released "_Py_MEMORYVIEW_RELEASED"


cdef class EventReader:
    """Makes events. What an event has in common with the one before is the same object: its table, and the names that most of a batch share.

    An event that it cannot read exactly as the reference would is `reference(payload, sequence)`.
    """

    cdef type kind, position, row, header
    cdef object absent, decimal, known, unpack, reference
    cdef tuple entries, types
    # Of the event before. Each is set as a whole, and by one assignment: whatever Python code runs in between, in another thread too, finds it whole.
    cdef tuple table  # (its bytes, (the table, a Make for each column))
    cdef str file, transaction, database
    cdef list keys  # of its props

    def __init__(self, event, position, row, header, absent, decimal, entries, types, known, unpack, reference):
        """`entries` and `types`: the members by their numbers, None where there is none. `known`: gives what `table` has of a schema's bytes."""
        self.kind, self.position, self.row, self.header = event, position, row, header
        self.absent, self.decimal, self.known, self.unpack, self.reference = absent, decimal, known, unpack, reference
        self.entries, self.types = entries, types
        self.table, self.keys = (b"", None), [""] * 16
        self.file = self.transaction = self.database = ""

    def event(self, payload, sequence):
        """The event in `payload`, which has `sequence` in its store."""
        cdef Py_buffer view
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            return self.event_of(payload, <const uint8_t*>view.buf, view.len, sequence)
        finally:
            PyBuffer_Release(&view)

    def events(self, payloads, sequences):
        """The event of each payload and its sequence."""
        cdef Events events = Events.__new__(Events)
        events.reader, events.payloads, events.sequences = self, iter(payloads), iter(sequences)
        return events

    cdef object event_of(self, object payload, const uint8_t* at, Py_ssize_t size, object sequence):
        """The event in `payload`, whose bytes are at `at`."""
        try:
            return self.made(at, at + size, sequence)
        except (_Unusual, ValueError, TypeError, LookupError, ArithmeticError):
            pass  # of them, text that is not UTF-8, and dates beyond the calendar
        return self.reference(payload, sequence)

    cdef object made(self, const uint8_t* p, const uint8_t* end, object sequence):
        cdef int64_t entry, kind, offset, length, time, server, order, part, row
        cdef const uint8_t* at
        cdef size_t size
        cdef tuple table = None
        cdef object cut = None
        if end - p < 5 or p[0] != 0x95 or p[1] != 2 or p[2] != 0x90 | HEADER_FIELDS:
            raise _Unusual
        p = number(number(p + 3, end, &entry), end, &kind)
        if not 0 <= entry < PyTuple_GET_SIZE(self.entries) or not 0 <= kind < PyTuple_GET_SIZE(self.types):
            raise _Unusual
        entry_type, event_type = <object>PyTuple_GET_ITEM(self.entries, entry), <object>PyTuple_GET_ITEM(self.types, kind)
        if entry_type is None or event_type is None:
            raise _Unusual
        file = self.file = name(&p, end, self.file)
        p = number(number(number(number(p, end, &offset), end, &length), end, &time), end, &server)
        transaction = self.transaction = name(&p, end, self.transaction)
        p = number(number(p, end, &order), end, &part)
        gtids = name(&p, end, transaction)
        p = number(p, end, &row)
        database = self.database = name(&p, end, self.database)
        sql = name(&p, end, "")
        props = self.props(&p, end)
        at = p
        p = skip_resume(p, end)
        if p == NULL or p >= end:
            raise _Unusual
        if at[0] == 0xC0:
            position = NEW_TUPLE(self.position, 5)
            PyObject_GC_UnTrack(position)
            fill_item(position, 0, file)
            fill_item(position, 1, offset)
            fill_item(position, 2, gtids)
            fill_item(position, 3, row)
            fill_item(position, 4, ())
        else:
            whole = self.header(
                entry, kind, file, offset, length, time, server, transaction, order, part, gtids, row, database, sql, props,
                self.unpack(PyBytes_FromStringAndSize(<const char*>at, p - at)),
            )
            position, cut = whole.position, whole.cut
        if p[0] == 0xC0:
            if end - p != 2 or p[1] != 0xC0:  # neither a table nor rows
                raise _Unusual
            rows = ()
        else:
            p = read_bin(p, end, &size)
            if p == NULL:
                raise _Unusual
            table = self.table_of(p, size)
            rows = rows_of(p + size, end, <bytes>table[1], self.row, self.absent, self.decimal)
        made = NEW_TUPLE(self.kind, 15)
        fill_item(made, 0, entry_type)
        fill_item(made, 1, event_type)
        fill_item(made, 2, position)
        fill_item(made, 3, time)
        fill_item(made, 4, server)
        fill_item(made, 5, length)
        fill_item(made, 6, transaction)
        fill_item(made, 7, order)
        fill_item(made, 8, part)
        fill_item(made, 9, database)
        fill_item(made, 10, None if table is None else table[0])
        fill_item(made, 11, rows)
        fill_item(made, 12, sql)
        fill_item(made, 13, props)
        fill_item(made, 14, cut)
        own = {}
        PyDict_SetItem(own, "sequence", sequence)
        PyObject_GenericSetDict(made, own, NULL)
        return made

    cdef dict props(self, const uint8_t** at, const uint8_t* end):
        cdef dict made = {}
        cdef int count, i
        if at[0] >= end or at[0][0] & 0xF0 != 0x80:
            raise _Unusual
        count = at[0][0] & 0x0F
        at[0] += 1
        for i in range(count):
            key = name(at, end, <str>self.keys[i])
            self.keys[i] = key
            PyDict_SetItem(made, key, name(at, end, ""))
        return made

    cdef tuple table_of(self, const uint8_t* at, size_t size):
        """(the table, a Make for each column) of a schema's bytes."""
        cdef tuple last = self.table
        cdef bytes blob = <bytes>last[0]
        if <size_t>PyBytes_GET_SIZE(blob) != size or memcmp(PyBytes_AS_STRING(blob), at, size) != 0:
            blob = PyBytes_FromStringAndSize(<const char*>at, size)
            self.table = last = (blob, self.known(blob))
        return <tuple>last[1]


cdef class Events:
    """The events of some payloads, one after the other."""

    cdef EventReader reader
    cdef object payloads, sequences

    def __iter__(self):
        return self

    def __next__(self):
        cdef View* view
        payload, sequence = next(self.payloads), next(self.sequences)
        view = <View*>payload
        if type(payload) is memoryview and view.flags & view_contiguous and not view.flags & view_released:
            return self.reader.event_of(payload, <const uint8_t*>view.view.buf, view.view.len, sequence)
        return self.reader.event(payload, sequence)


cdef inline const uint8_t* number(const uint8_t* p, const uint8_t* end, int64_t* value) except NULL:
    if p < end and p[0] < 0x80:
        value[0] = p[0]
        return p + 1
    p = read_signed(p, end, value)
    if p == NULL:
        raise _Unusual
    return p


cdef inline str name(const uint8_t** at, const uint8_t* end, str last):
    """A text, and `at` behind it: `last`, if it is that. Only ASCII is compared."""
    cdef size_t size
    cdef const uint8_t* p = read_text(at[0], end, &size)
    if p == NULL:
        raise _Unusual
    at[0] = p + size
    if size == 0:
        return ""
    if <size_t>PyUnicode_GET_LENGTH(last) == size and PyUnicode_IS_COMPACT_ASCII(last) and memcmp(PyUnicode_DATA(last), p, size) == 0:
        return last
    return text_of(p, size)
