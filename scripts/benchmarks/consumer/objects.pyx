# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Creates the objects of events that were read before once more: tuples, texts, numbers and dates from values that lie ready.

Nothing is parsed or looked up. Each object is created by the function that CPython has for it; a text out of UTF-8 (utf8), or as a copy (text).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.datetime cimport date_new, datetime_new, get_utc, import_datetime
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import_datetime()

cdef extern from *:
    """
    #define NEW_TUPLE(kind, size) PyType_GenericAlloc((PyTypeObject*)(kind), size)
    """
    object NEW_TUPLE(type kind, Py_ssize_t size)

cdef extern from "Python.h":
    object PyUnicode_New(Py_ssize_t size, uint32_t limit)
    void* PyUnicode_DATA(object text)
    int PyObject_GenericSetDict(object owner, object value, void* unused) except -1

cdef enum Make:
    SAME, UTF8, TEXT, BYTES, SIGNED, UNSIGNED, REAL, DECIMAL, DATE, MOMENT, UTC, DICT, TUPLE, NAMED, EVENT

NAMES = {
    "same": SAME, "utf8": UTF8, "text": TEXT, "bytes": BYTES, "signed": SIGNED, "unsigned": UNSIGNED, "real": REAL, "decimal": DECIMAL,
    "date": DATE, "moment": MOMENT, "utc": UTC, "dict": DICT, "tuple": TUPLE, "named": NAMED, "event": EVENT,
}

cdef union Value:
    void* object
    const char* text
    int64_t signed
    uint64_t unsigned
    double real

cdef struct Piece:
    uint8_t make
    uint8_t month, day, hour, minute, second
    uint8_t width    # bytes of a character
    uint32_t size    # characters of a text; bytes; items of a tuple; pairs of a dict; microseconds
    uint32_t limit   # of a text's characters
    Value value      # of a date the year


cdef class Ready:
    """The objects of some events: each a `Piece`, before those that it holds."""

    cdef Piece* pieces
    cdef Piece* at
    cdef Piece* end
    cdef list held  # what pieces point to
    cdef object decimal
    cdef int64_t sequence

    def __cinit__(self, list pieces, decimal):
        """`pieces`: (name of a Make, size, value)."""
        cdef Py_ssize_t i
        cdef Piece* piece
        self.held, self.decimal = [], decimal
        self.pieces = <Piece*>PyMem_Malloc(max(1, len(pieces)) * sizeof(Piece))
        if self.pieces == NULL:
            raise MemoryError
        self.end = self.pieces + len(pieces)
        for i in range(len(pieces)):
            piece = &self.pieces[i]
            name, size, value = pieces[i]
            piece.make, piece.size = NAMES[name], size
            if piece.make in (TEXT, DECIMAL):
                most = max(map(ord, value))
                piece.limit = 0x7F if most < 0x80 else 0xFF if most < 0x100 else 0xFFFF if most < 0x10000 else 0x10FFFF
                piece.width = 1 if most < 0x100 else 2 if most < 0x10000 else 4
                piece.size = len(value)
                value = value.encode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[piece.width])
            if piece.make in (UTF8, TEXT, DECIMAL, BYTES):
                self.held.append(value)
                piece.value.text = PyBytes_AS_STRING(value)
            elif piece.make == SIGNED:
                piece.value.signed = value
            elif piece.make == UNSIGNED:
                piece.value.unsigned = value
            elif piece.make == REAL:
                piece.value.real = value
            elif piece.make in (DATE, MOMENT, UTC):
                piece.value.signed, piece.month, piece.day = value.year, value.month, value.day
                if piece.make != DATE:
                    piece.hour, piece.minute, piece.second, piece.size = value.hour, value.minute, value.second, value.microsecond
            elif piece.make in (SAME, NAMED, EVENT):
                self.held.append(value)
                piece.value.object = <void*>value

    def __dealloc__(self):
        PyMem_Free(self.pieces)

    def events(self, int64_t sequence):
        """Iterate over the events; `sequence` is that of the first."""
        self.at, self.sequence = self.pieces, sequence
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.end:
            raise StopIteration
        made = self.one()
        own = {}
        own["sequence"] = self.sequence
        PyObject_GenericSetDict(made, own, NULL)
        self.sequence += 1
        return made

    cdef inline object leaf(self, const Piece* piece):
        cdef const Value* value = &piece.value
        if piece.make == SAME:
            return <object>value.object
        if piece.make == UTF8:
            return PyUnicode_DecodeUTF8(value.text, piece.size, NULL)
        if piece.make == TEXT:
            return text_of(piece)
        if piece.make == BYTES:
            return PyBytes_FromStringAndSize(value.text, piece.size)
        if piece.make == SIGNED:
            return value.signed
        if piece.make == UNSIGNED:
            return value.unsigned
        if piece.make == REAL:
            return value.real
        if piece.make == DECIMAL:
            return self.decimal(text_of(piece))
        if piece.make == DATE:
            return date_new(<int>value.signed, piece.month, piece.day)
        return datetime_new(
            <int>value.signed, piece.month, piece.day, piece.hour, piece.minute, piece.second, <int>piece.size,
            get_utc() if piece.make == UTC else None,
        )

    cdef object one(self):
        cdef Piece* piece = self.at
        cdef Py_ssize_t i
        self.at += 1
        if piece.make < DICT:
            return self.leaf(piece)
        if piece.make == DICT:
            pairs = {}
            for i in range(piece.size):
                key = self.one()
                pairs[key] = self.one()
            return pairs
        made = PyTuple_New(piece.size) if piece.make == TUPLE else NEW_TUPLE(<type>piece.value.object, piece.size)
        for i in range(piece.size):
            if self.at.make < DICT:
                item = self.leaf(self.at)
                self.at += 1
            else:
                item = self.one()
            Py_INCREF(item)
            PyTuple_SET_ITEM(made, i, item)
        return made


cdef inline object text_of(const Piece* piece):
    text = PyUnicode_New(piece.size, piece.limit)
    memcpy(PyUnicode_DATA(text), piece.value.text, piece.size * piece.width)
    return text
