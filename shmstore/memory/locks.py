"""Ownership and Lock: what only one process may hold at a time, and a dead one cannot keep.

- Ownership is an OFD lock (an "open file description" lock, fcntl(2)) on one byte of the segment. The kernel releases it
  when the process dies, however it dies. It shows which process is the producer and which one owns a subscription.
- Lock guards the few things that several processes write. A `Condition` is what waiters sleep on, with a time-out;
  an ownership of the table's byte is what excludes. A holder that dies leaves the byte free: the process that comes next takes it,
  and who waits already looks again within LOCK_SLICE; their release puts the semaphore right again.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import weakref
from typing import TYPE_CHECKING, Final

from shmstore.errors import StoreError, refused
from shmstore.memory.deadline import Deadline
from shmstore.memory.semaphores import Condition

if TYPE_CHECKING:
    from shmstore.memory.ordering import Words

LOCK_SLICE: Final = 0.25
WAIT_SLICE: Final = 1.0
_FLOCK: Final = struct.Struct("@hhqqi4x")


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
    """True where process `pid` lives and is the one that started at `start`: a reused pid is not taken for the old one."""
    return pid > 0 and start > 0 and start_time(pid) == start


# ---------------------------------------------------------------- ownership


def holder(pid: int) -> str:
    """What a message calls the process that has a role, by the pid that it noted: none yet, or no more, where that is 0."""
    return f"pid {pid}" if pid else "a process that begins or ends"


_held: weakref.WeakSet[Ownership] = weakref.WeakSet()


def is_locked(fd: int, byte: int = 0, count: int = 0) -> bool:
    """True where a process holds a role among `count` bytes of a segment, or all of them. Needs no right to write."""
    # No process holds one through `fd` itself: each role has a description of its own, and of others the kernel tells.
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, count, 0))
    return int(_FLOCK.unpack(answer)[0]) != fcntl.F_UNLCK


def take_bytes(fd: int, byte: int = 0, count: int = 0, *, free: bool = False) -> bool:
    """Lock `count` bytes of a file (0: all from there on) for its open description, or `free` them; False where another holds one. Raises OSError."""
    kind = fcntl.F_UNLCK if free else fcntl.F_WRLCK
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, count, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


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
            if not take_bytes(fd, self._byte, 1):
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
            take_bytes(fd, self._byte, 1, free=True)
        finally:
            os.close(fd)

    def __del__(self) -> None:
        self.release()

    def taken(self) -> bool:
        """True where a process, this object included, holds the role now."""
        return self._fd >= 0 or is_locked(self._segment_fd, self._byte, 1)

    def noted(self, words: Words, word: int) -> tuple[int, bool]:
        """The pid that the role's owner has noted in `word`, 0 for none, and whether the role is taken, both of one moment.

        An owner that ends well notes 0, then lets the role go. Between two looks that find one pid the role is that owner's, or free: with one look
        before, an owner that ends well meanwhile is called dead, with one behind, an owner that begins.
        """
        while True:
            pid, taken = words[word], self.taken()
            if words[word] == pid:
                return pid, taken

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
    for ownership in list(_held):
        ownership._forked()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)


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
            if not self._free.notified:  # else the next to wait does not sleep, and the process that does is woken by him
                self._free.notify()
        finally:
            self._threads.release()

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()
