# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Stored events -> the bytes of Canal's Entry, compiled: what `shmstore.consumer.wire.encoding` does, without Python objects for rows and cells.

It is optional, and it never refuses: what it does not know, or cannot read exactly as that reference would, it gives up, and the reference
encodes the event and has the say about errors. So all that must hold here is: what it does encode is what the reference makes of it.

    out.pxi    a growing buffer, and protobuf's varints
    text.pxi   a stored value -> its text
    stored.pxi a stored event, read but for its rows
    table.pxi  Table: the columns of one table version, and the loop over the rows of an event
    entry.pxi  Entries: a stored event -> its entry

The events may lie in memory that another process can write to. So each read is checked against the end of the event, also where the same
bytes were read before, and text is checked and decoded where it was copied to.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset
from libc.time cimport localtime_r, time_t, tm

include "../../../shmstore/native/utf8.pxi"
include "../../../shmstore/native/text.pxi"
include "../../../shmstore/native/read.pxi"
include "out.pxi"
include "shortest.pxi"
include "text.pxi"
include "stored.pxi"
include "table.pxi"
include "entry.pxi"
