"""In what order processes see what others wrote: fences, and the words of a segment's fixed part.

What processes tell each other without a lock, they tell by the words of the segment's fixed part. A word is stored after
everything before it and loaded before everything after it ("release" and "acquire"); the rings, which words lead to, are
plain memory. x86-64 keeps that order on its own. Elsewhere `hot.Words` does, and where nothing is compiled `OrderedWords`. No
processor keeps a store before a later load: where that matters there is a `fence`, or a `heavy_fence`.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Final, Protocol

try:
    from shmstore.native import hot as hot  # for segment, ring and batch, too
except ImportError:  # built without a compiler
    hot = None  # type: ignore[assignment]

#: True where the hot path is compiled code; SHMSTORE_PURE=1 in the environment keeps it from that.
COMPILED: Final = hot is not None and os.environ.get("SHMSTORE_PURE", "") in ("", "0")

#: True where the processor may reorder stores, or loads (not x86-64).
WEAK_ORDER: Final = os.uname().machine.lower() not in ("x86_64", "amd64", "i686")

_barrier = threading.Lock()
libc = ctypes.CDLL(None, use_errno=True)
_MEMBARRIER: Final = {"x86_64": 324, "amd64": 324, "aarch64": 283}.get(os.uname().machine.lower(), -1)
_GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 2, 4


def _register() -> bool:
    """Ask the kernel to let other processes' heavy fences act on this one; False where it cannot (membarrier(2))."""
    return _MEMBARRIER >= 0 and libc.syscall(_MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0


#: True where `heavy_fence` of any process puts a fence into this one: then the frequent side of a handshake needs none.
ASYMMETRIC: Final = _register()


def heavy_fence() -> None:
    """A fence in this process and in every registered one that runs now; costs a microsecond, spares the others theirs.

    Of "store mine, heavy_fence, look at yours" and "store yours, look at mine", at least one sees the other. A put and an
    ack are the second kind: they happen millions of times for each wait. Where the kernel has no membarrier(2), both
    sides fence; a process that alone is kept from it can miss a wake-up, which the bounded waits then make good.
    """
    if not ASYMMETRIC or libc.syscall(_MEMBARRIER, _GLOBAL_EXPEDITED, 0, 0) != 0:
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


def _forget_barrier() -> None:
    global _barrier
    _barrier = threading.Lock()  # another thread may have held it


os.register_at_fork(after_in_child=_forget_barrier)
