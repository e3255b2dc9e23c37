"""Lock, Condition, Ownership, Deadline, fence: what processes agree with.

Plan. Three kinds of agreement, each by what survives a kill -9:

- Ownership is an OFD lock (an "open file description" lock, fcntl(2)) on one byte of the segment. The kernel releases it
  when the process dies, however it dies. It says who the producer is and who owns a subscription.
- Lock guards the few things that several processes write. A Condition is what waiters sleep on, with a time-out;
  an ownership of the table's byte is what excludes. A holder that dies leaves the byte free: whoever comes next takes it,
  and who waits already looks again within LOCK_SLICE; their release wakes the next.
- Condition is a word of the segment that the kernel lets processes sleep on. The waiter writes what it waits for, fences, looks
  again, and only then sleeps; the other side writes its cursor, fences, and then looks for waiters. One of the two sees the other.

Conditions are not named semaphores: those belong to whoever comes first, and opening one can fail. Here whoever may use the
segment may wait and wake; neither needs a descriptor, a name or memory, so that neither can fail; and at whatever path a store in a
file is mounted, they are the same. Whatever a killed process or a damaged file leaves in one is at worst a wait that returns at once.

Order. What processes tell each other without a lock, they tell by the words of the segment's fixed part. A word is stored after
everything before it and loaded before everything after it ("release" and "acquire"); the rings, which words lead to, are
plain memory. x86-64 keeps that order by itself. Elsewhere `hot.Words` does, and where nothing is compiled `OrderedWords`. No
processor keeps a store before a later load: where that matters there is a `fence`, or a `heavy_fence`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
import threading
import time
import weakref
from typing import Final, Protocol

from shmstore.errors import StoreError, refused

try:
    from shmstore import hot as hot  # for segment, ring and batch, too
except ImportError:  # built without a compiler
    hot = None  # type: ignore[assignment]

#: True where the hot path is compiled code; SHMSTORE_PURE=1 in the environment keeps it from that.
COMPILED: Final = hot is not None and os.environ.get("SHMSTORE_PURE", "") in ("", "0")

LOCK_SLICE: Final = 0.25
WAIT_SLICE: Final = 1.0
_FLOCK: Final = struct.Struct("@hhqqi4x")

#: True where the processor may reorder stores, or loads (not x86-64).
WEAK_ORDER: Final = platform.machine().lower() not in ("x86_64", "amd64", "i686")

_barrier = threading.Lock()
_libc = ctypes.CDLL(None, use_errno=True)
_MEMBARRIER: Final = {"x86_64": 324, "amd64": 324, "aarch64": 283}.get(platform.machine().lower(), -1)
_GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 2, 4


def _register() -> bool:
    """Ask the kernel to let other processes' heavy fences act on this one; False where it cannot (membarrier(2))."""
    return _MEMBARRIER >= 0 and _libc.syscall(_MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0


#: True where `heavy_fence` of any process puts a fence into this one: then the frequent side of a handshake needs none.
ASYMMETRIC: Final = _register()


def heavy_fence() -> None:
    """A fence in this process and in every registered one that runs now; costs a microsecond, spares the others theirs.

    Of "store mine, heavy_fence, look at yours" and "store yours, look at mine", at least one sees the other. A put and an
    ack are the second kind: they happen millions of times for each wait. Where the kernel has no membarrier(2), both
    sides fence; a process that alone is kept from it can miss a wake-up, which the bounded waits then make good.
    """
    if not ASYMMETRIC or _libc.syscall(_MEMBARRIER, _GLOBAL_EXPEDITED, 0, 0) != 0:
        fence()


def fence() -> None:
    """Order everything before against everything after, loads included.

    Taking and releasing a lock is an atomic read-modify-write: on x86-64 a full barrier. Elsewhere the release of the
    first round orders what came before, the acquire of the second what comes after, and ARM keeps a release before an acquire.
    """
    if hot is not None and WEAK_ORDER:
        hot.fence()
        return
    with _barrier:
        pass
    if WEAK_ORDER:
        with _barrier:
            pass


class Words(Protocol):
    """The int64 words of a segment's fixed part, in the order that the plan above promises."""

    def __getitem__(self, i: int, /) -> int: ...
    def __setitem__(self, i: int, value: int, /) -> None: ...


class OrderedWords:
    """Words of a memory whose processor may reorder what Python does with it: slow, and right."""

    __slots__ = ("_memory",)

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def __getitem__(self, i: int) -> int:
        value: int = self._memory[i]
        fence()
        return value

    def __setitem__(self, i: int, value: int) -> None:
        fence()
        self._memory[i] = value


class Deadline:
    """A moment on the monotonic clock, made from a time-out in seconds; None never comes."""

    __slots__ = ("_at",)

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is {timeout!r}: give seconds from 0 up, or None to wait without limit")
        self._at = None if timeout is None else time.monotonic() + timeout

    def left(self, most: float) -> float:
        """Seconds left, at most `most`; 0.0 when the moment is past."""
        return most if self._at is None else max(0.0, min(most, self._at - time.monotonic()))

    @property
    def passed(self) -> bool:
        """True once the moment is past."""
        return self._at is not None and time.monotonic() >= self._at


# ---------------------------------------------------------------- processes


def start_time(pid: int) -> int:
    """Start of process `pid` in clock ticks since boot (proc(5), field 22); 0 where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return 0 if fields[0] == b"Z" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0


def is_alive(pid: int, start: int) -> bool:
    """True where process `pid` lives and is the one that started at `start`: a reused pid fools nobody."""
    return pid > 0 and start > 0 and start_time(pid) == start


# ---------------------------------------------------------------- ownership

_held: weakref.WeakSet[Ownership] = weakref.WeakSet()


def is_locked(fd: int, byte: int = 0, count: int = 0) -> bool:
    """True where somebody holds a role among `count` bytes of a segment, or all of them. Needs no right to write."""
    # Nobody holds one through `fd` itself: each role has a description of its own, and of others the kernel tells.
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, count, 0))
    return int(_FLOCK.unpack(answer)[0]) != fcntl.F_UNLCK


class Ownership:
    """A role in a store, held by at most one open file description on the host: byte `byte` of the segment."""

    __slots__ = ("__weakref__", "_byte", "_fd", "_segment_fd")

    def __init__(self, segment_fd: int, byte: int) -> None:
        self._segment_fd = segment_fd
        self._byte = byte
        self._fd = -1

    @property
    def held(self) -> bool:
        """True while this object holds the role."""
        return self._fd >= 0

    def acquire(self) -> bool:
        """Take the role if it is free; True when it is ours."""
        if self._fd >= 0:
            return True
        fd = self._description()
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self._byte, 1, 0))
        except (BlockingIOError, PermissionError):
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        _held.add(self)
        return True

    def release(self) -> None:
        """Give the role up; does nothing when it is not held."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            _held.discard(self)
            # Unlocked before it is closed: a child forked meanwhile has a copy of the description.
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, self._byte, 1, 0))
        finally:
            os.close(fd)

    def __del__(self) -> None:
        self.release()

    def taken(self) -> bool:
        """True where somebody, this object included, holds the role now."""
        return self._fd >= 0 or is_locked(self._segment_fd, self._byte, 1)

    def _description(self) -> int:
        """The segment opened again: the lock must not be shared with other holders of its descriptor. Raises `StoreError`."""
        try:
            return os.open(f"/proc/self/fd/{self._segment_fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise refused("the store cannot ask for a role in it", error) from error

    def _forked(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)  # the parent keeps the lock: it holds the same description


def _after_fork() -> None:
    global _barrier
    _barrier = threading.Lock()  # another thread may have held it
    for ownership in list(_held):
        ownership._forked()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)

# ---------------------------------------------------------------- conditions


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


_FUTEX: Final = {"x86_64": 202, "ppc64le": 221}.get(os.uname().machine, 98)  # the call's number; 98 on all younger processors
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1


class Condition:
    """What a waiter sleeps on: word `word` of a segment's fixed part, 1 once it was notified. Holds the mapping.

    The kernel compares the word once more before it lets the waiter sleep, so that no notice is lost (futex(2)). Several
    notices before a wait are one. The time-out is on the monotonic clock: the wall clock may jump.
    """

    __slots__ = ("_flag",)

    def __init__(self, fixed: memoryview, word: int) -> None:
        self._flag = ctypes.c_uint32.from_buffer(fixed, word * 8)  # futexes have 32 bits: of the word, the lower ones

    def wait(self, timeout: float) -> None:
        """Sleep until notified, `timeout` seconds passed, or a signal came. The caller looks again in any case, behind a fence.

        What a signal's handler raises ends the wait.
        """
        if COMPILED:
            hot.sleep(ctypes.addressof(self._flag), timeout)
            return
        if not self._flag.value:
            left = _Timespec(*divmod(int(timeout * 1e9), 1_000_000_000))
            _libc.syscall(_FUTEX, ctypes.byref(self._flag), _FUTEX_WAIT, 0, ctypes.byref(left), None, 0)
        self._flag.value = 0  # a notice that comes just here is seen by who looks again

    def notify(self) -> None:
        """Wake a waiter, or let the next wait return at once."""
        self._flag.value = 1
        _libc.syscall(_FUTEX, ctypes.byref(self._flag), _FUTEX_WAKE, 1, None, None, 0)

    @property
    def notified(self) -> bool:
        """True where the next wait would return at once."""
        return bool(self._flag.value)


class Lock:
    """Mutual exclusion between processes and threads that a dead holder cannot keep."""

    __slots__ = ("_free", "_owner", "_threads")

    def __init__(self, segment_fd: int, byte: int, free: Condition) -> None:
        self._owner = Ownership(segment_fd, byte)
        self._free = free
        self._threads = threading.Lock()

    def acquire(self, timeout: float | None = 30.0) -> None:
        """Take the lock. Raises `StoreError` at the deadline: only a holder that lives and hangs can cause it."""
        deadline = Deadline(timeout)
        if not self._threads.acquire(timeout=-1 if timeout is None else timeout):
            raise StoreError(
                f"the store's table is locked by another thread for more than {timeout} s: let each thread attach for itself"
            )
        try:
            while not self._owner.acquire():  # the byte is what counts: a dead holder never notifies
                if deadline.passed:
                    raise StoreError(
                        f"the store's table is locked for more than {timeout} s by a living process: see `shmstore stat`"
                    )
                self._free.wait(deadline.left(LOCK_SLICE))
        except BaseException:
            self._owner.release()  # an interrupt may have come after it was acquired
            self._threads.release()
            raise

    def release(self) -> None:
        """Give the lock back and wake one waiter."""
        try:
            self._owner.release()
            if not self._free.notified:  # else the next to wait does not sleep, and whoever does is woken by him
                self._free.notify()
        finally:
            self._threads.release()

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()
