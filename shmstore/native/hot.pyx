# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, binding=False
"""The ring's hot path, compiled: what a put, a get, an ack and a look at the payloads do when nothing is unusual.

It is optional, and it never decides: whatever is unusual (no free space known of, an oversized event, a forged or damaged segment, an
option that asks for more) it leaves, with nothing written, to the Python that it stands in for, `shmstore.ring.cursors` and
`shmstore.store.batch`, which are the reference. The cursors that it keeps are the very ones that the Python works on.

Order. Other processes see the segment's words without a lock. A word is stored with release: payload, ends, rows and slots,
written before a cursor, are seen by every process that sees it; and what was read of payloads was read before an ack gives their space away.
It is loaded with acquire: what lies behind a cursor is read after it. On x86-64 both keep the compiler from moving anything across,
and cost nothing else; on ARM they are the instructions stlr and ldar. `Words` does the same for Python. "Store mine, look at
yours" (publish, then ARMED; ack, then ACK_WANTED) needs store and load in order, which neither gives. Where the one that waits
has a heavy fence (`shmstore.memory.ordering`), keeping the compiler from moving them is enough, because that fence acts on this processor;
else `settle` is a full fence.
The rare sides have theirs between the same lines as the Python: a wait (wanted, armed, heavy fence, put), a wake-up (armed cleared,
full fence, wanted), and a look for space (floor, full fence, the acks), while a subscriber joins (state, fence, floor).
tests/interleavings/test_compiled_order.py holds both to the same steps.

A process killed between two lines here leaves what one killed between the same lines of the Python leaves: payload, ends, rows
and slots come before the cursor, behind which no reader looks.

Bounds. Whatever comes from the segment may be forged. An index into ends, rows and slots is taken modulo the number of slots, and
each of them is mapped twice; an offset in the arena is taken modulo its size, and no length above that size is used.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from shmstore.errors import StoreCorrupt
from shmstore.log.format import BLOCK, GROUP_BYTES, HEADER, MAGIC, RECORD, VERSION
from shmstore.memory.layout import ABSURD, DISARMED, FIXED_SIZE, MAX_SEQUENCE, SLOT, SUBSCRIPTIONS, SlotFlag, StoreState, SubscriptionState, header_word, subscription_word

cdef extern from *:
    """
    #if defined(PYPY_VERSION) || defined(Py_GIL_DISABLED)
    #error "views are moved on by CPython's rules, under its lock: the Python does without"
    #endif
    #include <linux/futex.h>
    #include <linux/membarrier.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    #if defined(__x86_64__) || defined(__i386__)
    #define rest_a_moment() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define rest_a_moment() __asm__ volatile("yield")
    #else
    #define rest_a_moment() ((void)0)
    #endif
    static inline int64_t nanoseconds(clockid_t clock) {
        struct timespec at;
        clock_gettime(clock, &at);
        return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
    }
    #define clock_now() nanoseconds(CLOCK_MONOTONIC)
    #define coarse_now() nanoseconds(CLOCK_MONOTONIC_COARSE)
    #define wall_now() nanoseconds(CLOCK_REALTIME)
    #define boot_now() nanoseconds(CLOCK_BOOTTIME)
    /* as memory.semaphores.Condition: the lower half of a word, 1 once it was notified */
    static inline void sleep_on(uint32_t *flag, int64_t until) {
        struct timespec at = {until / 1000000000, until % 1000000000};
        if (!__atomic_load_n(flag, __ATOMIC_ACQUIRE))
            syscall(SYS_futex, flag, FUTEX_WAIT_BITSET, 0, &at, NULL, FUTEX_BITSET_MATCH_ANY);
        __atomic_store_n(flag, 0, __ATOMIC_SEQ_CST);
    }
    static inline void wake_one(uint32_t *flag) {
        __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, flag, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    #ifdef SHMSTORE_TRACED  /* tests/interleavings/test_compiled_order.py hears of each step before it is done */
    void (*shmstore_traced)(int step, const int64_t *word, int64_t value);
    #define trace(step, word, value) (shmstore_traced ? shmstore_traced((step), (word), (value)) : (void)0)
    #else
    #define trace(step, word, value) ((void)0)
    #endif
    #define store_released(word, value) __atomic_store_n((word), (value), __ATOMIC_RELEASE)
    #define publish(word, value) (trace('s', (word), (value)), store_released((word), (value)))
    #define look(word) (trace('l', (word), 0), __atomic_load_n((word), __ATOMIC_ACQUIRE))
    #define wake_up(word) (trace('p', NULL, 0), wake_one((uint32_t *)(word)))
    #define full_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    #define before_writes() __atomic_thread_fence(__ATOMIC_RELEASE)  /* what was stored comes before what is stored from here on */
    #define settle(asymmetric) \\
        do { \\
            if (asymmetric) __atomic_signal_fence(__ATOMIC_SEQ_CST); \\
            else trace('f', NULL, 0), full_fence(); \\
        } while (0)
    static inline void settle_heavily(int asymmetric) {
        trace('h', NULL, 0);
        if (!asymmetric || syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) != 0)
            full_fence();
    }
    static inline PyObject *new_object(PyObject *cls, PyObject *arguments) {
        return ((PyTypeObject *)cls)->tp_new((PyTypeObject *)cls, arguments, NULL);
    }
    """
    void store_released(int64_t* word, int64_t value) noexcept nogil
    void publish(int64_t* word, int64_t value) noexcept nogil
    void before_writes() noexcept nogil
    void full_fence() noexcept nogil
    int64_t look(const int64_t* word) noexcept nogil
    void settle(bint asymmetric) noexcept nogil
    void settle_heavily(bint asymmetric) noexcept nogil
    void wake_up(int64_t* word) noexcept nogil
    int64_t clock_now() noexcept nogil
    int64_t coarse_now() noexcept nogil
    int64_t wall_now() noexcept nogil
    int64_t boot_now() noexcept nogil
    void sleep_on(uint32_t* flag, int64_t until) noexcept nogil
    void rest_a_moment() noexcept nogil
    void fetch "__builtin_prefetch"(const void*) noexcept nogil
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
    object PyNumber_Index(object)
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
    raise ImportError("layout is not what this was compiled for")

cdef int64_t PUT = header_word("put"), ARMED = header_word("armed"), OVERSIZED = header_word("oversized")
cdef int64_t ACK_WANTED = header_word("ack_wanted"), ENTRIES = header_word("entries"), STATE = header_word("state")
cdef int64_t FLOOR = header_word("floor"), REACH = header_word("reach"), LAST_SEQUENCE = MAX_SEQUENCE, FAR = ABSURD
cdef int64_t FIRST_WANTED = subscription_word(0, "wanted"), NEXT_ENTRY = subscription_word(1, "wanted") - FIRST_WANTED
cdef int64_t FIRST_WOKEN = subscription_word(0, "woken")
cdef int64_t FIRST_STATE = subscription_word(0, "state"), FIRST_ACK = subscription_word(0, "ack")
cdef int64_t DISARM = DISARMED, LIVE = StoreState.LIVE, ACTIVE = SubscriptionState.ACTIVE, MOST = SUBSCRIPTIONS
cdef Py_ssize_t FIXED_WORDS = FIXED_SIZE // 8
cdef int64_t LOITERING = DISARMED - 1  # cursors.LOITERING, entry 0's wish while the appender waits for more: no put wakes it
cdef tuple nothing = ()


cdef class Mapped:
    """Where the parts of a mapped segment lie. Holds the mapping."""

    cdef int64_t* words
    cdef int64_t* ends
    cdef int64_t* rows
    cdef Slot* slots
    cdef uint8_t* arena
    cdef int64_t slot_count, mask, capacity, arena_size
    cdef object window  # the arena, for views of parts of it
    cdef Py_buffer views[5]
    cdef int held
    cdef bint asymmetric, logged  # logged: entry 0 is that of a log, and its ack what the ring may give up

    def __cinit__(
        self, words, ends, rows, slots, arena, int64_t slot_count, int64_t capacity, int64_t arena_size, bint asymmetric, bint logged=False
    ):
        self.asymmetric, self.logged = asymmetric, logged
        for part in (words, ends, rows, slots, arena):
            PyObject_GetBuffer(part, &self.views[self.held], PyBUF_SIMPLE | PyBUF_WRITABLE)
            self.held += 1
        self.words, self.ends, self.rows = <int64_t*>self.views[0].buf, <int64_t*>self.views[1].buf, <int64_t*>self.views[2].buf
        self.slots, self.arena = <Slot*>self.views[3].buf, <uint8_t*>self.views[4].buf
        self.slot_count, self.mask, self.capacity, self.arena_size = slot_count, slot_count - 1, capacity, arena_size
        self.window = arena
        whole = (
            slot_count > 0 and slot_count & (slot_count - 1) == 0 and 0 < 2 * capacity <= slot_count and arena_size > 0
            and self.views[0].len == FIXED_SIZE and self.views[1].len == self.views[2].len == 2 * slot_count * 8
            and self.views[3].len >= 2 * slot_count * <int64_t>sizeof(Slot)
            and self.views[4].len == 2 * arena_size
        )
        if not whole:
            raise ValueError("the parts of the segment do not fit each other")

    def __dealloc__(self):
        while self.held:
            self.held -= 1
            PyBuffer_Release(&self.views[self.held])


cdef class Words:
    """The words of a segment for Python, each stored with release and loaded with acquire."""

    cdef Mapped at

    def __init__(self, Mapped at not None):
        self.at = at

    def __len__(self):
        return FIXED_WORDS

    def __getitem__(self, Py_ssize_t i):
        if not 0 <= i < FIXED_WORDS:
            raise IndexError(f"word {i} of {FIXED_WORDS}")
        return look(self.at.words + i)

    def __setitem__(self, Py_ssize_t i, value):
        cdef int64_t number = PyNumber_Index(value)  # no float is cut off
        if not 0 <= i < FIXED_WORDS:
            raise IndexError(f"word {i} of {FIXED_WORDS}")
        store_released(self.at.words + i, number)


def fence():
    """A full fence: everything before comes before everything after, loads included."""
    full_fence()


include "puts.pxi"
include "log_window.pxi"
include "takes.pxi"
include "batch.pxi"
include "crc32.pxi"
include "append.pxi"
