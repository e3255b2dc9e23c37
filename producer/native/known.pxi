# What a fast path knows of a table: its map, and the plans for its rows; and texts in growing buffers.

cdef class Plan:
    """What a rows event of one kind, with certain columns present, becomes."""

    cdef bytes bits                  # of the columns present, as in the event
    cdef int code
    cdef Program before, after
    cdef bytes before_columns, after_columns  # MessagePack
    cdef int type
    cdef int head        # bytes of the number of rows that the last event had


cdef class Table:
    """A table map seen before: its bytes, and the plans for its rows."""

    cdef uint64_t id
    cdef bytes body
    cdef bytes head      # MessagePack: database, sql "" and no props, which end an event's header
    cdef bytes schema    # MessagePack: the schema as bin
    cdef bint passes, plain
    cdef int columns
    cdef list plans
    cdef object map
    cdef Condition condition  # which rows pass; None: all


cdef inline int set_text(Buffer* out, bytes text) except -1:
    out.size = 0
    return put_raw(out, <const uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef inline bytes text_of(Buffer* text):
    return PyBytes_FromStringAndSize(<char*>text.data, text.size)


cdef inline int put_digits(Buffer* out, uint64_t value) except -1:
    """Append a number as decimal text."""
    reserve(out, 20)
    out.size += write_digits(<char*>out.data + out.size, value)
    return 0


cdef inline int put_prop(Buffer* out, const char* name, uint64_t value) except -1:
    """Append a prop whose value is a number's text."""
    cdef size_t size = strlen(name), head
    put_text(out, <const uint8_t*>name, size)
    head = out.size
    put_byte(out, 0xA0)
    put_digits(out, value)
    out.data[head] = <uint8_t>(0xA0 | out.size - head - 1)
    return 0
