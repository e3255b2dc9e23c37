"""The memory of a segment, mapped: words, ends, rows, slots and arena, as the ring sees them.

The mapping is made in one reserved range: the fixed part once, each ring twice back to back. It is released when the last view
of it is gone, never earlier: a batch that outlives close(), or a thread that outlives the interpreter, reads memory, not a fault.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmstore.errors import StoreError
from shmstore.memory import layout
from shmstore.memory.layout import Sizes, header_word
from shmstore.memory.ordering import ASYMMETRIC, COMPILED, WEAK_ORDER, OrderedWords, Words, hot

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_PROT_NONE, _PROT_READ, _PROT_RW = 0, 1, 3
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000


class Views(NamedTuple):
    """A mapped segment as the ring sees it. `ends`, `rows`, `slots` and `arena` are twice as long as their ring."""

    words: Words  # of the fixed part
    fixed: memoryview  # its bytes
    ends: memoryview  # int64
    rows: memoryview  # int64
    slots: NDArray[np.void]
    arena: memoryview
    ends_array: NDArray[np.int64]
    rows_array: NDArray[np.int64]
    slot_bytes: memoryview
    slot_count: int
    capacity: int
    limit: int
    arena_size: int
    first: int
    flags: int
    native: Any = None  # hot.Mapped, where the hot path is compiled code


def cursors_sane(views: Views) -> bool:
    """True where floor <= put <= floor + capacity. The store may be moving: put is read on both sides of floor."""
    words = views.words
    before = words[header_word("put")]
    floor = words[header_word("floor")]
    after = words[header_word("put")]
    return views.first - 1 <= floor <= after <= layout.MAX_SEQUENCE and before - floor <= views.capacity


def mapped(fd: int, sizes: Sizes, header: np.void, *, read_only: bool = False) -> Views:
    """Map the segment in `fd`, whose header was checked."""
    protection = _PROT_READ if read_only else _PROT_RW
    rings = (
        (sizes.ends, sizes.rows - sizes.ends),
        (sizes.rows, sizes.slots - sizes.rows),
        (sizes.slots, sizes.arena - sizes.slots),
        (sizes.arena, sizes.arena_size),
    )
    reserved = layout.FIXED_SIZE + 2 * sum(length for _, length in rings)
    base = _mmap(None, reserved, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
    memory = (ctypes.c_ubyte * reserved).from_address(base)
    # Not at exit, where a daemon thread may still look at it: the kernel takes it after the last thread.
    weakref.finalize(memory, _libc.munmap, base, reserved).atexit = False
    _mmap(base, layout.FIXED_SIZE, protection, _MAP_SHARED | _MAP_FIXED, fd, 0)
    whole = memoryview(memory).cast("B")
    if read_only:
        whole = whole.toreadonly()  # a write gets an exception, not a fault
    at = layout.FIXED_SIZE
    views = []
    for offset, length in rings:
        for copy in (at, at + length):
            _mmap(base + copy, length, protection, _MAP_SHARED | _MAP_FIXED, fd, offset)
        views.append(whole[at : at + 2 * length])
        at += 2 * length
    ends, rows, slots, arena = views
    fixed, capacity, native = whole[: layout.FIXED_SIZE], int(header["capacity"]), None
    words: Words = fixed.cast("q")
    logged = bool(int(header["flags"]) & layout.StoreFlag.LOG)
    if COMPILED and not read_only:
        native = hot.Mapped(fixed, ends, rows, slots, arena, sizes.slot_count, capacity, sizes.arena_size, ASYMMETRIC, logged)
        words = hot.Words(native)
    elif WEAK_ORDER:
        words = OrderedWords(fixed.cast("q"))
    return Views(
        words=words,
        fixed=fixed,
        ends=ends.cast("q"),
        rows=rows.cast("q"),
        slots=np.frombuffer(slots, dtype=layout.SLOT),
        arena=arena,
        ends_array=np.frombuffer(ends, dtype=np.int64),
        rows_array=np.frombuffer(rows, dtype=np.int64),
        slot_bytes=slots,
        slot_count=sizes.slot_count,
        capacity=capacity,
        limit=int(header["limit"]),
        arena_size=sizes.arena_size,
        first=int(header["first"]),
        flags=int(header["flags"]),
        native=native,
    )


def _mmap(address: int | None, length: int, protection: int, flags: int, fd: int, offset: int) -> int:
    result = _libc.mmap(address, length, protection, flags, fd, offset)
    if result is None or result == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise StoreError(
            f"cannot map {length} bytes of the segment: {os.strerror(code)}; see the limits of the process, `ulimit -v`"
        )
    return int(result)
