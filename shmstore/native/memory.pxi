# Memory of what is made here for Arrow: buffers out of its own pool.
#
# A batch's columns take megabytes, and are mostly given back before those of the next batch are made. malloc gives such memory back to the kernel and takes
# it again, page by page, each with a fault that costs more than the values that go into it. Arrow's pool keeps it for a while, and counts it.

cdef object allocate_buffer = None  # pyarrow's, which may be missing where no columns are made


cdef object buffer_of(size_t size, void** data, bint grows=False):
    """A pyarrow.Buffer of `size` bytes that are to be filled, which are at `data`."""
    global allocate_buffer
    if allocate_buffer is None:
        from pyarrow import allocate_buffer
    buffer = allocate_buffer(size, None, grows)
    data[0] = <void*><uintptr_t>buffer.address
    return buffer


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
