# Memory: bytes made here, handed out through the buffer protocol.
#
# A batch's columns take megabytes, and are mostly given back before the next batch's are made. malloc gives such memory to the kernel, and gets it
# again, page by page, each with a fault that costs more than the values that go into it. So blocks from `SPARED` bytes on are kept when they are given
# back, at most `SPARE_BYTES` in all, and taken again. They are malloc's own, of the sizes of `block_class`: four between a power of two and the next.
# Each place holds a block or NULL and is only ever exchanged. So there is no lock, which a fork could leave locked: a child that was forked while
# another thread moved a block has lost that block.

cdef extern from *:
    """
    #include <malloc.h>
    enum {
        SPARED = 1 << 14, LARGEST = 1 << 22,  /* bytes of a block that is kept */
        SPARE_BYTES = 16 << 20,
        BLOCK_CLASSES = 8 * 4 + 1, CLASS_PLACES = 16
    };
    static void *spares[BLOCK_CLASSES][CLASS_PLACES];
    static size_t spare_bytes;
    static unsigned spare_turn;

    /* The class whose blocks have at least `size` bytes, and how many these have. */
    static inline unsigned block_class(size_t size, size_t *bytes) {
        unsigned power = 63 - (unsigned)__builtin_clzll(size), quarter;
        size_t step = (size_t)1 << (power - 2);
        quarter = (unsigned)((size - ((size_t)1 << power) + step - 1) / step);
        *bytes = ((size_t)1 << power) + quarter * step;
        return (power - 14) * 4 + quarter;
    }

    static void *spare_of(unsigned class_) {
        void *block;
        int i;
        for (i = 0; i < CLASS_PLACES; i++)
            if (__atomic_load_n(&spares[class_][i], __ATOMIC_RELAXED) != NULL) {
                block = __atomic_exchange_n(&spares[class_][i], NULL, __ATOMIC_ACQUIRE);
                if (block != NULL) {
                    __atomic_sub_fetch(&spare_bytes, malloc_usable_size(block), __ATOMIC_RELAXED);
                    return block;
                }
            }
        return NULL;
    }

    static void *block_taken(size_t size) {
        size_t bytes;
        unsigned class_;
        void *block;
        if (size < SPARED || size > LARGEST)
            return malloc(size ? size : 1);
        class_ = block_class(size, &bytes);
        block = spare_of(class_);
        return block != NULL ? block : malloc(bytes);
    }

    static void block_given(void *block) {
        size_t usable = block == NULL ? 0 : malloc_usable_size(block), bytes;
        unsigned class_, tries;
        int i;
        if (usable >= SPARED && usable <= LARGEST + LARGEST / 4) {
            class_ = block_class(usable, &bytes);
            if (bytes > usable)
                class_--;  /* of the sizes below */
            if (class_ >= BLOCK_CLASSES)
                class_ = BLOCK_CLASSES - 1;
            /* Counted before it is kept, so that threads together keep no more either. */
            for (tries = 0; __atomic_add_fetch(&spare_bytes, usable, __ATOMIC_RELAXED) > SPARE_BYTES; tries++) {
                __atomic_sub_fetch(&spare_bytes, usable, __ATOMIC_RELAXED);
                if (tries == BLOCK_CLASSES) {
                    free(block);
                    return;
                }
                free(spare_of(__atomic_add_fetch(&spare_turn, 1, __ATOMIC_RELAXED) % BLOCK_CLASSES));
            }
            for (i = 0; i < CLASS_PLACES && block != NULL; i++)  /* what another thread put there meanwhile is looked for another place */
                if (__atomic_load_n(&spares[class_][i], __ATOMIC_RELAXED) == NULL)
                    block = __atomic_exchange_n(&spares[class_][i], block, __ATOMIC_ACQ_REL);
            if (block != NULL)
                __atomic_sub_fetch(&spare_bytes, malloc_usable_size(block), __ATOMIC_RELAXED);
        }
        free(block);
    }
    """
    void* block_taken(size_t size) noexcept nogil
    void block_given(void* block) noexcept nogil


cdef class Memory:
    """Bytes that the owner of this object may read. numpy and Arrow take them without a copy."""

    cdef uint8_t* data
    cdef Py_ssize_t size

    def __dealloc__(self):
        block_given(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data if self.data != NULL else <void*>b"", self.size, 1, flags)

    def __releasebuffer__(self, Py_buffer* view):
        pass


cdef Memory memory_of(uint8_t** data, size_t size):
    """Take over `data`, which is from `allocated`; the caller's pointer becomes NULL."""
    cdef Memory memory = Memory()
    memory.data, memory.size = data[0], size
    data[0] = NULL
    return memory


cdef uint8_t* allocated(size_t size) except NULL:
    """Memory that is to be filled."""
    cdef uint8_t* data = <uint8_t*>block_taken(size)
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
