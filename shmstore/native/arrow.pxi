# Arrays for Arrow, those of a record batch at once, through its C data interface (https://arrow.apache.org/docs/format/CDataInterface.html): an import
# for each array, and an object for each of its buffers, took longer than the rows of a small batch.
#
# Their memory is Arrow's own, out of its pool. A batch's columns take megabytes, and are mostly given back before those of the next batch are made. malloc
# gives such memory back to the kernel and takes it again, page by page, each with a fault that costs more than the values that go into it.

cdef extern from *:
    """
    #ifndef ARROW_C_DATA_INTERFACE
    #define ARROW_C_DATA_INTERFACE
    struct ArrowArray {
        int64_t length, null_count, offset, n_buffers, n_children;
        const void **buffers;
        struct ArrowArray **children;
        struct ArrowArray *dictionary;
        void (*release)(struct ArrowArray *);
        void *private_data;
    };
    #endif

    /* What the arrays of a batch share; they lie behind it, in the same memory. Who imports them may keep some for longer than others, and release
       them in any thread, which need not have the GIL. */
    struct shared {
        int64_t kept;       /* arrays that were not released */
        PyObject *buffers;  /* a list of the owners of their memory */
    };

    static void release_array(struct ArrowArray *array) {
        struct shared *shared = array->private_data;
        int64_t i;
        for (i = 0; i < array->n_children; i++)
            if (array->children[i]->release != NULL)
                array->children[i]->release(array->children[i]);
        array->release = NULL;
        if (__atomic_sub_fetch(&shared->kept, 1, __ATOMIC_ACQ_REL) == 0) {  /* the last one sees what all others did before */
            if (Py_IsInitialized()) {
                PyGILState_STATE state = PyGILState_Ensure();
                Py_DECREF(shared->buffers);
                PyGILState_Release(state);
            }
            free(shared);
        }
    }
    """
    struct ArrowArray:
        int64_t length, null_count, n_buffers, n_children
        const void** buffers
        ArrowArray** children
        void (*release)(ArrowArray*) noexcept
        void* private_data

    struct shared:
        int64_t kept
        PyObject* buffers

    void release_array(ArrowArray*) noexcept

cdef enum:
    ALIGNED = 64            # bytes, as Arrow wants its buffers
    FIRST_BLOCK = 1 << 12   # bytes that pieces of memory share, at first; each further block has twice as many
    LAST_BLOCK = 1 << 16

cdef object allocate_buffer = None  # pyarrow's, which may be missing where no columns are made
cdef object import_batch = None


cdef object buffer_of(size_t size, void** data, bint grows=False):
    """A pyarrow.Buffer of `size` bytes that are to be filled, which are at `data`."""
    global allocate_buffer, import_batch
    if allocate_buffer is None:
        import pyarrow
        allocate_buffer, import_batch = pyarrow.allocate_buffer, pyarrow.RecordBatch._import_from_c
    buffer = allocate_buffer(size, None, grows)
    data[0] = <void*><uintptr_t>buffer.address
    return buffer


@cython.no_gc  # of no cycle
cdef class Arrays:
    """The arrays of a record batch in the making, at most `count`, and their memory."""

    cdef ArrowArray root
    cdef shared* common
    cdef ArrowArray* arrays
    cdef ArrowArray** pointers
    cdef const void** slots
    cdef int64_t count, used
    cdef list buffers
    cdef uint8_t* free_at  # memory of the last block that no array has
    cdef size_t free_size, block

    def __cinit__(self, int64_t count):
        cdef size_t each = sizeof(ArrowArray) + sizeof(ArrowArray*) + 3 * sizeof(void*)
        memset(&self.root, 0, sizeof(ArrowArray))
        self.common = <shared*>calloc(1, sizeof(shared) + (count + 1) * each)
        if self.common == NULL:
            raise MemoryError(f"no memory for {count} arrays")
        self.arrays = <ArrowArray*>(self.common + 1)
        self.pointers = <ArrowArray**>(self.arrays + count)
        self.slots = <const void**>(self.pointers + count)
        self.count, self.used, self.buffers, self.block = count, 0, [], FIRST_BLOCK
        self.root.buffers = self.slots + 3 * count  # of the batch itself: that all its rows are there

    def __dealloc__(self):
        free(self.common)

    cdef uint8_t* memory(self, size_t size) except NULL:
        """Bytes that are to be filled."""
        cdef size_t whole = (size + ALIGNED - 1) // ALIGNED * ALIGNED
        cdef uint8_t* found
        if whole > self.free_size:
            if whole >= self.block:
                self.buffers.append(buffer_of(whole, <void**>&found))
                return found
            self.buffers.append(buffer_of(self.block, <void**>&self.free_at))
            self.free_size = self.block
            self.block = min(2 * self.block, <size_t>LAST_BLOCK)
        found = self.free_at
        self.free_at += whole
        self.free_size -= whole
        return found

    cdef ArrowArray* children(self, ArrowArray* parent, int64_t count) except NULL:
        """`count` children of `parent`, one after the other, each for `set_array`."""
        cdef ArrowArray* first = self.arrays + self.used
        cdef int64_t i
        if self.used + count > self.count:
            raise IndexError(f"more than {self.count} arrays")
        parent.n_children, parent.children = count, self.pointers + self.used
        for i in range(self.used, self.used + count):
            self.arrays[i].buffers = self.slots + 3 * i
            self.arrays[i].release, self.arrays[i].private_data = release_array, self.common
            self.pointers[i] = &self.arrays[i]
        self.used += count
        return first

    cdef object batch(self, int64_t rows, schema):
        """The RecordBatch of `schema`. Nothing may be done with this object afterwards."""
        self.root.length, self.root.n_buffers = rows, 1
        self.root.release, self.root.private_data = release_array, self.common
        self.common.kept = self.used + 1
        Py_INCREF(self.buffers)
        self.common.buffers = <PyObject*>self.buffers
        self.common = NULL  # it is the arrays', which are the batch's
        try:
            return import_batch(<uintptr_t>&self.root, schema)
        finally:
            if self.root.release != NULL:  # it was not taken
                self.root.release(&self.root)


cdef void set_array(
    ArrowArray* array, int64_t rows, int64_t nulls, const void* valid, const void* values, const void* text, int64_t buffers
) noexcept:
    """Set an array's `buffers` buffers: `valid` has a bit a row, NULL where no row is; `values`; and `text`."""
    array.length, array.null_count, array.n_buffers = rows, nulls, buffers
    array.buffers[0], array.buffers[1], array.buffers[2] = valid, values, text


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
