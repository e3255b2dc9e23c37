# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The binlog, compiled: what `shmstore.producer.binlog.rows`, `shmstore.producer.binlog.packets` and `shmstore.producer.transactions.buffer` do, without Python objects.

It is optional. Those modules are the reference, run where no compiler was, and share their tests with this one.

    text.pxi    text, copied and checked
    values.pxi  bytes of one value -> MessagePack of its stored form
    json.pxi    MySQL's binary JSON -> its text
    buffer.pxi  TransactionBuffer: encoded events and their slots, until they are put
    image.pxi   Program: the columns of one table layout, and the loop over the rows of an event
    split.pxi   Splitter: packets to runs of events
    condition.pxi  Condition: a row filter, tried on rows
    known.pxi   what a fast path knows of a table
    state.pxi   TransactionState: where the stream stands, and how far its transaction has come
    fast_path.pxi  FastPath: the usual events of a transaction, all else handed to Python
    result.pxi  ResultRows: the rows of a SELECT, for snapshots
    digest.pxi  the numbers of rows, for verify

Every read is checked against the end of the event first. A value that cannot be read raises ValueError or IndexError with
the column's number in `Program.failed`, as the generated Python decoders do; no memory beyond the event is looked at.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.math cimport copysign, fabs, floor, log10
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport strtod
from libc.string cimport memchr, memcmp, memcpy, memmove, memset, strlen

from shmstore.event import Position

include "../../shmstore/native/utf8.pxi"
include "../../shmstore/native/crc32.pxi"
include "../../shmstore/native/pack.pxi"
include "text.pxi"
include "values.pxi"
include "json.pxi"
include "buffer.pxi"
include "image.pxi"
include "split.pxi"
include "condition.pxi"
include "known.pxi"
include "state.pxi"
include "fast_path.pxi"
include "result.pxi"
include "digest.pxi"


def use_width(int size):
    """Use what the processor has for up to `size` bytes at a time: 64, 16, or 8, which is plain C. For tests; it is 64 to begin with."""
    global WIDE, WIDEST, FOLDS, FOLDS_WIDE
    WIDE, WIDEST = size >= 16 and UTF8_WIDE(), size >= 64 and TEXT_WIDE()
    FOLDS = size >= 16 and CRC_FOLDS()
    FOLDS_WIDE = FOLDS and size >= 64 and CRC_WIDE()


use_width(64)


def is_text(const uint8_t[::1] data):
    """Whether `data` is UTF-8."""
    return is_utf8(&data[0] if data.shape[0] else NULL, data.shape[0])


def checksum(const uint8_t[::1] data):
    """Return the CRC-32 of `data`."""
    return crc_of(&data[0] if data.shape[0] else NULL, data.shape[0], 0)
