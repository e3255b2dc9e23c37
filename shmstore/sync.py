"""Lock, Condition, Ownership, Deadline, fence: what processes agree with.

Plan. Three kinds of agreement, each by what survives a kill -9:

- Ownership is an OFD lock (an "open file description" lock, fcntl(2)) on one byte of the segment. The kernel releases it
  when the process dies, however it dies. It says who the producer is and who owns a subscription.
- Lock guards the few things that several processes write. A POSIX semaphore is what waiters sleep on, with a time-out;
  an ownership of the table's byte is what excludes. A holder that dies leaves the byte free: whoever comes next takes it,
  and who waits already looks again within LOCK_SLICE; their release puts the semaphore right again.
- Condition is a POSIX semaphore that one waiter sleeps on. The waiter writes what it waits for, fences, looks again, and
  only then sleeps; the other side writes its cursor, fences, and then looks for waiters. One of the two sees the other.

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
from contextlib import suppress
from typing import Final, Protocol

import posix_ipc

from shmstore.errors import StoreClosed, StoreError

try:
    from shmstore import hot as hot  # for segment, ring and batch, too
except ImportError:  # built without a compiler
    hot = None  # type: ignore[assignment]

#: True where the hot path is compiled code; SHMSTORE_PURE=1 in the environment keeps it from that.
COMPILED: Final = hot is not None and os.environ.get("SHMSTORE_PURE", "") in ("", "0")

LOCK_SLICE: Final = 0.25
WAIT_SLICE: Final = 1.0
_FLOCK: Final = struct.Struct("@hhqqi4x")
_SHM: Final = "/dev/shm"

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
        # A description of its own: the lock must not be shared with other holders of the segment's descriptor.
        fd = os.open(f"/proc/self/fd/{self._segment_fd}", os.O_RDWR | os.O_CLOEXEC)
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
        if self._fd >= 0:
            return True
        fd = os.open(f"/proc/self/fd/{self._segment_fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, self._byte, 1, 0))
        finally:
            os.close(fd)
        return int(_FLOCK.unpack(answer)[0]) != fcntl.F_UNLCK

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

# ---------------------------------------------------------------- semaphores


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


_libc.sem_open.restype = ctypes.c_void_p
_libc.sem_open.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.sem_close.argtypes = [ctypes.c_void_p]
_libc.sem_clockwait.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Timespec)]


class Semaphore:
    """A named POSIX semaphore; opened, or made with value `initial`: the first to come decides.

    `segment_fd` is the descriptor of the segment that it belongs to. Where that has lost its name, the semaphore loses its own,
    too: who removed the store may have looked for semaphores before this one was there.

    The wait is libc's own: posix_ipc drops what a signal's handler raises, unless it is KeyboardInterrupt, and its time-out
    is on the wall clock, which may jump.
    """

    __slots__ = ("_semaphore", "address")

    def __init__(self, name: str, initial: int, mode: int = 0o600, gid: int = -1, segment_fd: int = -1) -> None:
        self._semaphore = _opened(name, initial, mode, gid)
        self.address: int = _libc.sem_open(name.encode(), 0)
        if not self.address:
            self._semaphore.close()
            raise StoreClosed(f"semaphore {name} was removed: attach again")
        if segment_fd >= 0 and os.fstat(segment_fd).st_nlink == 0:
            unlink_semaphore(name[1:])

    @property
    def value(self) -> int:
        """How many waits would return at once."""
        return int(self._semaphore.value)

    def wait(self, timeout: float) -> None:
        """Take one, or return after `timeout` seconds or a signal. What a signal's handler raises ends the wait."""
        if COMPILED:
            hot.sleep(self.address, timeout)
            return
        at = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(timeout * 1e9)
        _libc.sem_clockwait(self.address, time.CLOCK_MONOTONIC, _Timespec(*divmod(at, 1_000_000_000)))

    def release(self) -> None:
        """Give one."""
        self._semaphore.release()

    def close(self) -> None:
        """Forget the semaphore; it stays for others."""
        self._semaphore.close()
        _libc.sem_close(self.address)


def _opened(name: str, initial: int, mode: int, gid: int) -> posix_ipc.Semaphore:
    for _ in range(50):
        with suppress(posix_ipc.ExistentialError):
            return posix_ipc.Semaphore(name)
        try:
            semaphore = posix_ipc.Semaphore(name, posix_ipc.O_CREX, mode, initial)
        except posix_ipc.ExistentialError:
            continue
        except posix_ipc.PermissionsError:
            time.sleep(0.01)  # another of the group makes it: between sem_open(3) and the lines below it is not yet ours
            continue
        if mode != 0o600 or gid >= 0:  # sem_open(3) applies the umask, and knows no group
            path = f"{_SHM}/sem.{name.lstrip('/')}"
            os.chown(path, -1, gid)
            os.chmod(path, mode)
        return semaphore
    raise StoreError(
        f"cannot open semaphore {name}: it belongs to somebody else; be that user, or create the store for a group of both"
    )


def semaphore_names(prefix: str) -> list[str]:
    """Names of the semaphores on this host that start with `prefix` (no slash)."""
    return sorted(entry[4:] for entry in os.listdir(_SHM) if entry.startswith(f"sem.{prefix}"))


def unlink_semaphore(name: str) -> None:
    """Remove the named semaphore; no error where it is gone."""
    with suppress(posix_ipc.ExistentialError):
        posix_ipc.unlink_semaphore(f"/{name}")


class Condition:
    """What one waiter sleeps on. Opened at first use, so that attaching costs nothing."""

    __slots__ = ("_name", "_rights", "_semaphore")

    def __init__(self, name: str, mode: int = 0o600, gid: int = -1, segment_fd: int = -1) -> None:
        self._name = name
        self._rights = mode, gid, segment_fd
        self._semaphore: Semaphore | None = None

    def wait(self, timeout: float) -> None:
        """Sleep until notified, `timeout` seconds passed, or a signal came. The caller looks again in any case."""
        (self._semaphore or self._open()).wait(timeout)

    def notify(self) -> None:
        """Wake the waiter, or let its next wait return at once."""
        (self._semaphore or self._open()).release()

    @property
    def address(self) -> int:
        """Where the semaphore lies in this process."""
        return (self._semaphore or self._open()).address

    def _open(self) -> Semaphore:
        self._semaphore = Semaphore(self._name, 0, *self._rights)
        return self._semaphore

    def close(self) -> None:
        """Forget the semaphore; it stays for others."""
        if self._semaphore is not None:
            self._semaphore.close()
            self._semaphore = None


class Lock:
    """Mutual exclusion between processes and threads that a dead holder cannot keep."""

    __slots__ = ("_name", "_owner", "_rights", "_semaphore", "_threads")

    def __init__(self, segment_fd: int, byte: int, name: str, mode: int = 0o600, gid: int = -1) -> None:
        self._owner = Ownership(segment_fd, byte)
        self._name = name
        self._rights = mode, gid, segment_fd
        self._semaphore: Semaphore | None = None
        self._threads = threading.Lock()

    def acquire(self, timeout: float | None = 30.0) -> None:
        """Take the lock. Raises `StoreError` at the deadline: only a holder that lives and hangs can cause it."""
        deadline = Deadline(timeout)
        if not self._threads.acquire(timeout=-1 if timeout is None else timeout):
            raise StoreError(
                f"the store's table is locked by another thread for more than {timeout} s: let each thread attach for itself"
            )
        try:
            if self._semaphore is None:
                self._semaphore = Semaphore(self._name, 1, *self._rights)
            while not self._owner.acquire():  # the byte is what counts: a dead holder never releases the semaphore
                if deadline.passed:
                    raise StoreError(
                        f"the store's table is locked for more than {timeout} s by a living process: see `shmstore stat`"
                    )
                self._semaphore.wait(deadline.left(LOCK_SLICE))
        except BaseException:
            self._owner.release()  # an interrupt may have come after it was acquired
            self._threads.release()
            raise

    def release(self) -> None:
        """Give the lock back and wake one waiter."""
        try:
            self._owner.release()
            # Not above 1, or waiters would all wake for nothing. Two that see 0 at once make it 2; that is harmless,
            # since the byte excludes.
            if self._semaphore is not None and self._semaphore.value == 0:
                self._semaphore.release()
        finally:
            self._threads.release()

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def close(self) -> None:
        """Forget the semaphore; it stays for others."""
        if self._semaphore is not None:
            self._semaphore.close()
            self._semaphore = None
