"""Condition: what waiting processes sleep on. A binary semaphore in the segment itself, made of one word and futex(2). Why it is not a named
POSIX semaphore: docs/explanation/semaphores.md.

The waiter writes what it waits for, fences, looks again, and only then sleeps; the other side writes its cursor, fences, and then
looks for waiters. One of the two sees the other.

It is part of the segment and as large as one word: every process that may use the segment may wait and wake, no matter who came first; neither needs a
descriptor, a name or memory, so that neither can fail; and it is the same at whatever path a store in a file is mounted. What a
process killed in a wait or a reboot leaves in it is at worst a wait that returns at once.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from shmstore.memory.ordering import COMPILED, hot, libc

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
            libc.syscall(_FUTEX, ctypes.byref(self._flag), _FUTEX_WAIT, 0, ctypes.byref(left), None, 0)
        self._flag.value = 0  # a notice that comes just here is seen by the next look

    def notify(self) -> None:
        """Wake a waiter, or let the next wait return at once."""
        self._flag.value = 1
        libc.syscall(_FUTEX, ctypes.byref(self._flag), _FUTEX_WAKE, 1, None, None, 0)

    @property
    def notified(self) -> bool:
        """True where the next wait would return at once."""
        return bool(self._flag.value)
