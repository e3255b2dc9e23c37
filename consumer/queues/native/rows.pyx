# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Stored events -> messages, compiled: what `shmstore.consumer.queues.messages` makes of rows, without Python objects for rows and cells.

It is optional, and it never refuses: what it does not know, or cannot read exactly as that reference would, it gives up, and the reference makes the
messages and has the say about errors. So all that must hold here is: what it does make is what the reference makes.

    json.pxi   JSON, written
    cell.pxi   RowTable: a stored value -> its JSON, and the images of a row
    shape.pxi  RowMessages: a stored event -> its messages, in each format

The events may lie in memory that another process can write to. So each read is checked against the end of the event, also where the same
bytes were read before, and text is checked and decoded where it was copied to.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset, strlen
from libc.time cimport localtime_r, time_t, tm

include "../../../shmstore/native/utf8.pxi"
include "../../../shmstore/native/text.pxi"
include "../../../shmstore/native/read.pxi"
include "../../wire/native/out.pxi"
include "../../wire/native/shortest.pxi"
include "../../wire/native/text.pxi"
include "../../wire/native/stored.pxi"
include "json.pxi"
include "cell.pxi"
include "shape.pxi"
