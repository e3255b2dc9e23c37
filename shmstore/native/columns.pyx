# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Encoded events, compiled: to columns in Arrow's layout, without a Python object for an event, a row or a cell; to rows; and back.

It is optional, and it never refuses: what it cannot read exactly as the reference would (`shmstore.encoding.codec`, and Arrow's own
conversions in `shmstore.encoding.arrow`) it gives up, and the reference reads that piece and has the say about errors. So all that
must hold here is: what it does read is what the reference reads.

    text.pxi   UTF-8 as a str
    read.pxi   MessagePack, one value at a time, each against the end of its event
    arrow.pxi  arrays in Arrow's memory, made together
    fill.pxi   one value -> one place in a column
    values.pxi rows as Python values, for who wants those
    index.pxi  Index: the headers of a run of events as records; the rows of some of them as columns
    pack.pxi   MessagePack, written
    events.pxi one event's head as Python values, and Python values as MessagePack
    decode.pxi an event as Python has it
    write.pxi  an event of one's own, checked and written in one pass

The events may lie in memory that another process can write to. Nothing read once is trusted when it is read again: places
and sizes are kept here and checked before use, and text is checked where it was copied to.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.datetime cimport (
    PyDate_CheckExact, PyDateTime_CheckExact, PyDelta_CheckExact, date_day, date_month, date_new, date_year, datetime_day, datetime_hour,
    datetime_microsecond, datetime_minute, datetime_month, datetime_new, datetime_second, datetime_tzinfo, datetime_year, get_utc,
    import_datetime, timedelta_days, timedelta_microseconds, timedelta_new, timedelta_seconds,
)
from cpython.dict cimport PyDict_Next, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_AsUnsignedLongLong
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.ref cimport Py_CLEAR, Py_DECREF, Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

include "utf8.pxi"
include "text.pxi"
include "read.pxi"
include "arrow.pxi"
include "fill.pxi"
include "values.pxi"
include "index.pxi"
include "pack.pxi"
include "events.pxi"
include "decode.pxi"
include "write.pxi"
