# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, binding=False
"""The ring's hot path, compiled: what a put, a get, an ack and a look at the payloads do when nothing is unusual.

It is optional, and it never decides: whatever is unusual (no room known of, an oversized event, a forged or damaged segment, an
option that asks for more) it leaves, with nothing written, to the Python that it stands in for, `shmstore.ring` and
`shmstore.batch`, which are the reference. The cursors that it keeps are the very ones that the Python works on.

Order. Other processes see the segment's words without a lock. A cursor is stored with release: payload, ends, rows and slots,
written before it, are seen by whoever sees it; and what was read of payloads was read before an ack gives their room away. Put
is loaded with acquire: what lies behind it is read after it. On x86-64 both keep the compiler from moving anything across, and
cost nothing else; on ARM they are the instructions stlr and ldar. "Store mine, look at yours" (publish, then ARMED; ack, then
ROOM_WANTED) needs store and load in order, which neither gives. Where the one that waits has a heavy fence (`shmstore.sync`),
keeping the compiler from moving them is enough, because that fence acts on this processor; else `settle` is a full fence.

A process killed between two lines here leaves what one killed between the same lines of the Python leaves: payload, ends, rows
and slots come before the cursor, behind which nobody looks.

Bounds. Whatever comes from the segment may be forged. An index into ends, rows and slots is taken modulo the places, and
each of them is mapped twice; a place in the arena is taken modulo its size, and no length above that size is used.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from shmstore.errors import StoreCorrupt
from shmstore.layout import DISARMED, FIXED_SIZE, SLOT, SUBSCRIPTIONS, StoreState, header_word, subscription_word

cdef extern from *:
    """
    #if defined(PYPY_VERSION) || defined(Py_GIL_DISABLED)
    #error "views are moved on by CPython's rules, under its lock: the Python does without"
    #endif
    #include <semaphore.h>
    #include <time.h>
    #if defined(__x86_64__) || defined(__i386__)
    #define rest_a_moment() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define rest_a_moment() __asm__ volatile("yield")
    #else
    #define rest_a_moment() ((void)0)
    #endif
    static inline int64_t clock_now(void) {
        struct timespec at;
        clock_gettime(CLOCK_MONOTONIC, &at);
        return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
    }
    static inline void sleep_on(sem_t *semaphore, int64_t until) {
        struct timespec at = {until / 1000000000, until % 1000000000};
        sem_clockwait(semaphore, CLOCK_MONOTONIC, &at);
    }
    #define publish(word, value) __atomic_store_n((word), (value), __ATOMIC_RELEASE)
    #define look(word) __atomic_load_n((word), __ATOMIC_ACQUIRE)
    #define settle(asymmetric) \\
        do { \\
            if (asymmetric) __atomic_signal_fence(__ATOMIC_SEQ_CST); \\
            else __atomic_thread_fence(__ATOMIC_SEQ_CST); \\
        } while (0)
    static inline PyObject *new_object(PyObject *cls, PyObject *arguments) {
        return ((PyTypeObject *)cls)->tp_new((PyTypeObject *)cls, arguments, NULL);
    }
    """
    void publish(int64_t* word, int64_t value) noexcept nogil
    int64_t look(const int64_t* word) noexcept nogil
    void settle(bint asymmetric) noexcept nogil
    ctypedef struct sem_t:
        pass
    int sem_post(sem_t* semaphore) noexcept nogil
    int64_t clock_now() noexcept nogil
    void sleep_on(sem_t* semaphore, int64_t until) noexcept nogil
    void rest_a_moment() noexcept nogil
    object new_object(object cls, object arguments)
    const int view_released "_Py_MEMORYVIEW_RELEASED"

cdef extern from "Python.h":
    ctypedef struct Buffer "Py_buffer":
        void* buf
        Py_ssize_t len
        Py_ssize_t* shape
    ctypedef struct View "PyMemoryViewObject":
        int flags
        Buffer view
        PyObject* weakreflist
    object PyMemoryView_FromObject(object)
    Py_ssize_t Py_REFCNT(PyObject*)

cdef packed struct Slot:
    int64_t time
    int64_t offset
    uint32_t file
    uint32_t size
    uint32_t rows
    uint32_t check
    uint64_t rest

if SLOT.itemsize != sizeof(Slot) or [SLOT.fields[field][1] for field in ("size", "rows", "check", "flags")] != [20, 24, 28, 32]:
    raise ImportError("layout.SLOT is not what this was compiled for")

cdef int64_t PUT = header_word("put"), ARMED = header_word("armed"), OVERSIZED = header_word("oversized")
cdef int64_t ROOM_WANTED = header_word("room_wanted"), PLACES = header_word("places"), STATE = header_word("state")
cdef int64_t FIRST_WANTED = subscription_word(0, "wanted"), NEXT_WANTED = subscription_word(1, "wanted") - FIRST_WANTED
cdef int64_t DISARM = DISARMED, LIVE = StoreState.LIVE, MOST = SUBSCRIPTIONS
cdef tuple nothing = ()


cdef class Mapped:
    """Where the parts of a mapped segment lie. Holds the mapping."""

    cdef int64_t* words
    cdef int64_t* ends
    cdef int64_t* rows
    cdef Slot* slots
    cdef uint8_t* arena
    cdef int64_t places, mask, capacity, arena_size
    cdef object window  # the arena, for views of parts of it
    cdef Py_buffer views[5]
    cdef int held
    cdef bint asymmetric

    def __cinit__(
        self, words, ends, rows, slots, arena, int64_t places, int64_t capacity, int64_t arena_size, bint asymmetric
    ):
        self.asymmetric = asymmetric
        for part in (words, ends, rows, slots, arena):
            PyObject_GetBuffer(part, &self.views[self.held], PyBUF_SIMPLE | PyBUF_WRITABLE)
            self.held += 1
        self.words, self.ends, self.rows = <int64_t*>self.views[0].buf, <int64_t*>self.views[1].buf, <int64_t*>self.views[2].buf
        self.slots, self.arena = <Slot*>self.views[3].buf, <uint8_t*>self.views[4].buf
        self.places, self.mask, self.capacity, self.arena_size = places, places - 1, capacity, arena_size
        self.window = arena
        whole = (
            places > 0 and places & (places - 1) == 0 and 0 < 2 * capacity <= places and arena_size > 0
            and self.views[0].len == FIXED_SIZE and self.views[1].len == self.views[2].len == 2 * places * 8
            and self.views[3].len >= 2 * places * <int64_t>sizeof(Slot)
            and self.views[4].len == 2 * arena_size
        )
        if not whole:
            raise ValueError("the parts of the segment do not fit each other")

    def __dealloc__(self):
        while self.held:
            self.held -= 1
            PyBuffer_Release(&self.views[self.held])


# ---------------------------------------------------------------- the producer's end

cdef class Puts:
    """The numbers of a `ring.Writer`, and its usual put."""

    cdef Mapped mapped
    cdef public int64_t put, end, rows, _limit_sequence, _limit_end
    cdef sem_t* readers[64]

    def __cinit__(self, views):
        self.mapped = views.native

    cdef inline void write(self, int64_t i, bytes payload, uint32_t size) noexcept:
        """Write payload, end, rows and slot of the next event, at place `i`; nobody sees it."""
        cdef Mapped at = self.mapped
        cdef Slot* slot = at.slots + i
        memcpy(at.arena + self.end % at.arena_size, PyBytes_AS_STRING(payload), size)
        self.end += size
        self.rows += 1
        at.ends[i] = self.end
        at.rows[i] = self.rows
        memset(slot, 0, sizeof(Slot))
        slot.size = size
        slot.rows = 1

    def put_now(self, events):
        """Publish one payload, or a list of them, of unknown kind with one row each.

        Gives the last sequence; -1 where they must go the long way, nothing was written; -2 where a reader may wait for them.
        """
        cdef Mapped at = self.mapped
        cdef int64_t n = 1, total = 0, size, i, k
        cdef object payload
        if PyBytes_CheckExact(events):
            total = size = PyBytes_GET_SIZE(events)
            if size == 0:
                return -1
        elif PyList_CheckExact(events):
            n = PyList_GET_SIZE(events)
            if not 0 < n <= at.capacity:
                return -1
            for k in range(n):
                payload = <object>PyList_GET_ITEM(events, k)
                if not PyBytes_CheckExact(payload):
                    return -1
                size = PyBytes_GET_SIZE(payload)
                if size == 0:
                    return -1
                total += size
                if total > at.arena_size:
                    return -1
        else:
            return -1
        # self.end is 0 to 2**62, or it would not have been taken over from the segment.
        if total > at.arena_size or total > UINT32_MAX or self.end < 0:
            return -1
        if n > self._limit_sequence - self.put or self.end + total > self._limit_end:
            return -1
        i = (self.put + 1) & at.mask
        if n == 1 and PyBytes_CheckExact(events):
            self.write(i, events, <uint32_t>total)
        else:
            for k in range(n):
                payload = <object>PyList_GET_ITEM(events, k)
                self.write(i + k, payload, <uint32_t>PyBytes_GET_SIZE(payload))
        return self.published(n)

    def put_encoded_now(self, blob, slots):
        """Publish events that lie back to back in `blob`, with their slot records. Answers as `put_now` does."""
        cdef Py_buffer bytes_, records
        if slots.dtype != SLOT:
            return -1
        try:
            PyObject_GetBuffer(blob, &bytes_, PyBUF_SIMPLE)
        except BufferError:
            return -1
        try:
            PyObject_GetBuffer(slots, &records, PyBUF_SIMPLE)
        except (BufferError, ValueError):
            PyBuffer_Release(&bytes_)
            return -1
        try:
            return self.publish_encoded(<const uint8_t*>bytes_.buf, bytes_.len, <const Slot*>records.buf, records.len)
        finally:
            PyBuffer_Release(&records)
            PyBuffer_Release(&bytes_)

    cdef int64_t publish_encoded(self, const uint8_t* blob, int64_t size, const Slot* slots, int64_t length) noexcept:
        cdef Mapped at = self.mapped
        cdef int64_t n = length // <int64_t>sizeof(Slot), total = 0, i, k
        if not 0 < n <= at.capacity or size > at.arena_size or self.end < 0:
            return -1
        if n > self._limit_sequence - self.put or self.end + size > self._limit_end:
            return -1
        for k in range(n):
            if slots[k].size == 0:
                return -1
            total += slots[k].size
        if total != size:
            return -1
        i = (self.put + 1) & at.mask
        memcpy(at.slots + i, slots, length)
        memcpy(at.arena + self.end % at.arena_size, blob, size)
        for k in range(n):
            self.end += slots[k].size
            self.rows += slots[k].rows
            at.ends[i + k] = self.end
            at.rows[i + k] = self.rows
        return self.published(n)

    cdef int64_t published(self, int64_t n) noexcept:
        """Let the next `n` events, which are whole, be seen; the answer of `put_now`."""
        cdef Mapped at = self.mapped
        publish(at.words + PUT, self.put + n)
        self.put += n
        settle(at.asymmetric)
        return -2 if look(at.words + ARMED) and not self.wake() else self.put

    def learn(self, int place, size_t semaphore):
        """Take note of the semaphore of the reader at `place`, which must outlive this object; 0: forget it."""
        if not 0 <= place < 64:
            raise ValueError(f"place {place}")
        self.readers[place] = <sem_t*>semaphore

    cdef bint wake(self) noexcept:
        """As ring.armed_readers: wake the readers that have what they wait for. False: ask that one."""
        cdef int64_t* words = self.mapped.words
        cdef int64_t* wanted
        cdef int64_t places = look(words + PLACES), place
        if look(words + STATE) != LIVE or places > MOST:
            return False
        publish(words + ARMED, 0)
        settle(False)  # a full fence: or a reader that arms itself now could have its flag cleared, and its wish not seen
        for place in range(1, places):
            wanted = words + FIRST_WANTED + place * NEXT_WANTED
            if look(wanted) == DISARM:
                continue
            if look(wanted) > self.put:
                publish(words + ARMED, 1)
            elif self.readers[place] == NULL:
                publish(words + ARMED, 1)
                return False
            else:
                publish(wanted, DISARM)
                sem_post(self.readers[place])
        return True


# ---------------------------------------------------------------- a subscription's end

cdef class Takes:
    """The numbers of a `ring.Reader`, and its usual get and ack."""

    cdef Mapped mapped
    cdef int64_t ack_word, get_word
    cdef public int64_t get, ack, _seen, generation
    cdef public bint gets_now, acks_now  # False: everything goes the long way
    cdef object segment, batch

    def __cinit__(self, views, int place, *, ddl_isolation):
        self.mapped = views.native
        self.get_word, self.ack_word = subscription_word(place, "get"), subscription_word(place, "ack")
        if not 0 <= place < SUBSCRIPTIONS:
            raise ValueError(f"place {place}")

    def tune(self, segment, batch, bint gets_now, bint acks_now):
        """Say what the batches are, a kind of Run of `segment`, and which of the two have nothing unusual about them."""
        if not issubclass(batch, Run):
            raise TypeError(f"{batch!r} is no Run")
        self.segment, self.batch, self.gets_now, self.acks_now = segment, batch, gets_now, acks_now

    def take_now(self, limit_events):
        """Move get over up to `limit_events` (None: all) and return the batch; None where it must go the long way."""
        cdef Mapped at = self.mapped
        cdef int64_t last = self._seen, get = self.get, limit
        cdef Run run
        if not self.gets_now:
            return None
        if last <= get:
            last = look(at.words + PUT)
            # Unsigned: a forged put may be anything.
            if last <= get or <uint64_t>last - <uint64_t>self.ack > <uint64_t>at.capacity:
                return None
            self._seen = last
        if limit_events is not None:
            try:
                limit = limit_events
            except OverflowError:
                return None
            if limit <= 0:
                return None
            if last - get > limit:
                last = get + limit
        run = <Run>new_object(self.batch, nothing)
        run._segment, run.mapped, run.generation = self.segment, at, self.generation
        run.first, run.last = get + 1, last
        publish(at.words + self.get_word, last)
        self.get = last
        return run

    def look_now(self, int64_t n, double seconds):
        """Look at the put cursor for up to `seconds`; True as soon as it seems that `n` events wait."""
        cdef const int64_t* put = self.mapped.words + PUT
        cdef int64_t wanted = self.get + n, until
        cdef int k
        with nogil:
            until = clock_now() + <int64_t>(seconds * 1e9)
            while True:
                for k in range(50):
                    if look(put) >= wanted:
                        break
                    rest_a_moment()
                else:
                    if clock_now() < until:
                        continue
                break
        return look(put) >= wanted

    def ack_now(self, what):
        """Ack a batch. 0: it must go the long way, nothing was done; 1: done; 2: done, and the producer waits for room."""
        cdef Mapped at = self.mapped
        cdef Run run
        cdef int64_t last
        if not self.acks_now or not isinstance(what, Run):
            return 0
        run = what
        last = run.last
        if run.generation != self.generation or last < run.first or not self.ack < last <= self.get:
            return 0
        if look(at.words + OVERSIZED) > self.ack:
            return 0
        publish(at.words + self.ack_word, last)
        self.ack = last
        settle(at.asymmetric)
        return 2 if look(at.words + ROOM_WANTED) <= last else 1


def sleep(size_t semaphore, double seconds):
    """Take one of the POSIX semaphore at that address, or return after `seconds` or a signal."""
    cdef int64_t until = clock_now() + <int64_t>(seconds * 1e9)
    with nogil:
        sleep_on(<sem_t*>semaphore, until)


# ---------------------------------------------------------------- a batch

cdef class Run:
    """The numbers of a `batch.Batch`, and the usual look at its payloads."""

    cdef readonly object _segment
    cdef readonly int64_t first, last, generation
    cdef public object _raw
    cdef Mapped mapped  # None: everything goes the long way

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
    def raw(self):
        """All payloads back to back, without a copy."""
        cdef Mapped at = self.mapped
        cdef int64_t start, end
        if self._raw is None:
            if at is None or look(at.words + OVERSIZED) >= self.first:
                self._raw = self._whole()
            else:
                start, end = at.ends[(self.first - 1) & at.mask], at.ends[self.last & at.mask]
                if start < 0 or end < start or end - start > at.arena_size:
                    self._raw = self._whole()
                else:
                    self._raw = viewed(at.window, at.arena + start % at.arena_size, end - start)
        return self._raw

    def payloads(self):
        """Give the encoded bytes of each event. Raises `StoreCorrupt` where the slots contradict each other."""
        cdef Payloads payloads
        cdef int64_t count = self.last - self.first + 1
        raw = self.raw
        if self.mapped is None or count < 2 or count > self.mapped.capacity or type(raw) is not memoryview:
            return self._each()
        payloads = Payloads.__new__(Payloads)
        payloads.run, payloads.raw, payloads.left = self, raw, count
        payloads.ends = self.mapped.ends + (self.first & self.mapped.mask)
        payloads.start = payloads.begin = self.mapped.ends[(self.first - 1) & self.mapped.mask]
        payloads.size = (<View*>raw).view.len
        return payloads


cdef class Payloads:
    """Views of one payload after the other.

    As zip() does with its tuple, a view that nobody holds any more is moved on instead of made anew; of two in turn, because a
    loop still holds the last one when it asks for the next.
    """

    cdef Run run
    cdef object raw
    cdef const int64_t* ends
    cdef int64_t left, start, begin, size
    cdef object this, that

    def __iter__(self):
        return self

    def __next__(self):
        cdef int64_t start = self.start, end
        cdef uint8_t* at
        cdef View* view
        if not self.left:
            raise StopIteration
        end = self.ends[0]
        if end < start or <uint64_t>end - <uint64_t>self.begin > <uint64_t>self.size:
            self.left = 0
            run = self.run
            raise StoreCorrupt(
                f"an event of batch {run.first}..{run.last} claims bytes {start - self.begin} to {end - self.begin} of {self.size}"
            )
        self.left -= 1
        self.ends += 1
        self.start = end
        at = <uint8_t*>(<View*>self.raw).view.buf + (start - self.begin)
        self.this, self.that = self.that, self.this
        if self.this is not None:
            view = <View*>self.this
            if Py_REFCNT(<PyObject*>view) == 1 and view.weakreflist == NULL and not view.flags & view_released:
                view.view.buf = at
                view.view.len = view.view.shape[0] = end - start
                return self.this
        self.this = viewed(self.raw, at, end - start)
        return self.this


cdef viewed(object whole, uint8_t* at, int64_t size):
    """A view of `size` bytes at `at`, which lie within `whole`, a view of bytes."""
    cdef object part = PyMemoryView_FromObject(whole)
    cdef View* view = <View*>part
    view.view.buf = at
    view.view.len = view.view.shape[0] = size
    return part
