# A batch: what `shmstore.store.batch.Batch` does.

cdef class Run:
    """The numbers of a `batch.Batch`, and the usual look at its payloads."""

    cdef readonly object _segment
    cdef readonly int64_t first, last, generation
    cdef public object _raw
    cdef object own_ends
    cdef Mapped mapped  # None: everything goes the long way
    cdef LogWindow window  # None: the ring had the events when they were got, or they go the long way

    def __init__(self, segment, first, last, generation):
        self._segment, self.mapped = segment, segment.views.native
        self.first, self.last, self.generation = first, last, generation

    def __len__(self):
        return self.last - self.first + 1

    @property
    def id(self):
        """The batch's id: its last sequence."""
        return self.last

    @property
    def _ends(self):
        """Where each payload ends in `_raw`, an array of int64; None: as the ring says."""
        if self.own_ends is None and self.window is not None:
            self.own_ends = self.window.ends(self.first, self.last)
        return self.own_ends

    @_ends.setter
    def _ends(self, ends):
        self.own_ends = ends

    @property
    def raw(self):
        """All payloads back to back, without a copy."""
        cdef Mapped at = self.mapped
        cdef int64_t start, end
        if self._raw is None and self.window is not None:
            self._raw = self.window.payloads(self.first, self.last)
        if self._raw is None:
            if at is None or look(at.words + OVERSIZED) >= self.first:
                self._raw = self._whole()
            elif at.logged:
                if not self.copied():
                    self._raw = self._whole()
            else:
                start, end = at.ends[(self.first - 1) & at.mask], at.ends[self.last & at.mask]
                if start < 0 or end < start or end - start > at.arena_size:
                    self._raw = self._whole()
                else:
                    self._raw = viewed(at.window, at.arena + start % at.arena_size, end - start)
        return self._raw

    cdef bint placed(self, int64_t* start, int64_t* size) noexcept:
        """Where the payloads are in the ring of a store with a log, and how many bytes they have. False where they may be written over, or are damaged."""
        cdef Mapped at = self.mapped
        if not 0 < self.last - self.first + 1 <= at.capacity or look(at.words + FLOOR) >= self.first:
            return False
        start[0] = at.ends[(self.first - 1) & at.mask]
        size[0] = at.ends[self.last & at.mask] - start[0]
        return start[0] >= 0 and 0 < size[0] <= at.arena_size  # written over, or damaged: that the long way says

    cdef bytes copied_ends(self, int64_t start):
        """A copy of where each payload ends in the ring, counted from `start`."""
        cdef int64_t n = self.last - self.first + 1, k
        cdef const int64_t* ends = self.mapped.ends + (self.first & self.mapped.mask)
        cdef bytes own = PyBytes_FromStringAndSize(NULL, n * 8)
        cdef int64_t* copies = <int64_t*>PyBytes_AS_STRING(own)
        for k in range(n):
            copies[k] = ends[k] - start
        return own

    cdef bint intact(self) noexcept:
        """False where the ring may have been written over since `placed`."""
        settle(False)  # a full fence: what was read, before the look at the floor, which the producer moves before it writes over anything
        return look(self.mapped.words + FLOOR) < self.first

    cdef bint copied(self) except -1:
        """Copy payloads and ends out of the ring of a store with a log. False where the ring may have been written over meanwhile."""
        cdef int64_t start, size
        cdef bytes raw, own = None
        if not self.placed(&start, &size):
            return False
        raw = PyBytes_FromStringAndSize(NULL, size)
        memcpy(PyBytes_AS_STRING(raw), self.mapped.arena + start % self.mapped.arena_size, size)
        if self.first != self.last:
            own = self.copied_ends(start)
        if not self.intact():
            return False
        self._raw, self.own_ends = PyMemoryView_FromObject(raw), own
        return True

    def _in_ring(self):
        """The payloads where they lie in the ring of a store with a log, and where each ends there, int64: what is made of them holds if
        `_in_ring_still` says so afterwards. None where they were copied already, or go another way.
        """
        cdef Mapped at = self.mapped
        cdef int64_t start, size
        if self._raw is not None or at is None or not at.logged or self.window is not None or look(at.words + OVERSIZED) >= self.first:
            return None
        if not self.placed(&start, &size):
            return None
        return viewed(at.window, at.arena + start % at.arena_size, size), self.copied_ends(start)

    def _in_ring_still(self):
        """Whether the ring was not written over since `_in_ring` gave something."""
        return self.intact()

    def _counted(self):
        """How many rows the batch of a store with a log has, of what is kept next to the payloads: none is looked at, or copied. -1: that the long way says."""
        cdef Mapped at = self.mapped
        cdef int64_t start, size, rows
        if at is None or not at.logged or self.first > self.last:
            return -1
        if self.window is not None:
            return self.window.rows(self.first, self.last)
        if look(at.words + OVERSIZED) >= self.first or not self.placed(&start, &size):
            return -1
        rows = at.rows[self.last & at.mask] - at.rows[(self.first - 1) & at.mask]
        return rows if rows >= 0 and self.intact() else -1

    def payloads(self):
        """Give the encoded bytes of each event. Raises `StoreCorrupt` where the slots contradict each other."""
        cdef Payloads payloads
        cdef int64_t count = self.last - self.first + 1
        raw = self.raw
        if self.mapped is None or count < 2 or type(raw) is not memoryview:
            return self._each()
        payloads = Payloads.__new__(Payloads)
        payloads.run, payloads.raw, payloads.left = self, raw, count
        ends = self._ends
        if ends is not None:
            PyObject_GetBuffer(ends, &payloads.relative, PyBUF_SIMPLE)
            payloads.held = True
            if payloads.relative.len != count * 8:
                return self._each()
            payloads.ends = <const int64_t*>payloads.relative.buf
        elif count > self.mapped.capacity or self.mapped.logged:
            return self._each()
        else:
            payloads.ends = self.mapped.ends + (self.first & self.mapped.mask)
            payloads.start = payloads.begin = self.mapped.ends[(self.first - 1) & self.mapped.mask]
        payloads.size = (<View*>raw).view.len
        payloads.ready = payloads.moved(None)
        return payloads


cdef class Payloads:
    """Views of one payload after the other.

    As zip() does with its tuple, a view that has no other reference is moved on instead of recreated; of three in turn, because a
    loop still holds the last one when it asks for the next, and because the one that it is given was moved on a call earlier:
    what was stored just now, 8 bytes here and there, a processor cannot give at once to who copies it in wider parts.
    """

    cdef Run run
    cdef object raw
    cdef const int64_t* ends
    cdef int64_t left, start, begin, size
    cdef object ready, given, before
    cdef Py_buffer relative  # the ends, where they are not the ring's own
    cdef bint held

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.relative)

    def __iter__(self):
        return self

    def __next__(self):
        cdef object view = self.ready, free = self.before
        if view is None:
            if not self.left:
                raise StopIteration
            self.left = 0
            run = self.run
            raise StoreCorrupt(
                f"an event of batch {run.first}..{run.last} claims bytes {self.start - self.begin} to {self.ends[0] - self.begin} of {self.size}: `shmstore check` shows more"
            )
        self.before, self.given = self.given, view
        self.ready = self.moved(free)
        return view

    cdef object moved(self, object free):
        """`free`, if it has no other reference, or a new view, on the next payload; None where there is none that can be."""
        cdef int64_t start = self.start, end
        cdef int line
        cdef uint8_t* at
        cdef View* view = <View*>free
        if not self.left:
            return None
        end = self.ends[0]
        if end < start or <uint64_t>end - <uint64_t>self.begin > <uint64_t>self.size:
            return None
        self.left -= 1
        self.ends += 1
        self.start = end
        at = <uint8_t*>(<View*>self.raw).view.buf + (start - self.begin)
        for line in range(3):  # what comes in a moment: another processor has written it
            fetch(at + 512 + 64 * line)
        if (
            free is None or Py_REFCNT(<PyObject*>view) != 1 or view.weakreflist != NULL or view.flags & view_released
        ):
            return viewed(self.raw, at, end - start)
        view.view.buf = at
        view.view.len = view.view.shape[0] = end - start
        return free


cdef viewed(object whole, uint8_t* at, int64_t size):
    """A view of `size` bytes at `at`, which lie within `whole`, a view of bytes."""
    cdef object part = PyMemoryView_FromObject(whole)
    cdef View* view = <View*>part
    view.view.buf = at
    view.view.len = view.view.shape[0] = size
    return part
