# Memory: bytes made here, handed out through the buffer protocol.

cdef class Memory:
    """Bytes that the owner of this object may read. numpy and Arrow take them without a copy."""

    cdef uint8_t* data
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data if self.data != NULL else <void*>b"", self.size, 1, flags)

    def __releasebuffer__(self, Py_buffer* view):
        pass


cdef Memory memory_of(uint8_t** data, size_t size):
    """Take over `data`, which was allocated with malloc; the caller's pointer becomes NULL."""
    cdef Memory memory = Memory()
    memory.data, memory.size = data[0], size
    data[0] = NULL
    return memory


cdef uint8_t* allocated(size_t size) except NULL:
    """Memory that is to be filled."""
    cdef uint8_t* data = <uint8_t*>malloc(max(1, size))
    if data == NULL:
        raise MemoryError(f"no memory for a column of {size} bytes")
    return data


@cython.no_gc  # as Index
cdef class Numbers:
    """A view of an array of int64 that another object owns."""

    cdef Py_buffer view
    cdef const int64_t* at
    cdef Py_ssize_t count

    def __cinit__(self, array):
        PyObject_GetBuffer(array, &self.view, PyBUF_SIMPLE)
        self.at = <const int64_t*>self.view.buf
        self.count = self.view.len // 8

    def __dealloc__(self):
        PyBuffer_Release(&self.view)
