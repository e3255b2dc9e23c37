"""Appender: copies the events of a ring into the files of its log, one group after the other.

A group is written in the order events, slots, blocks; then LOGGED, entry 0's ack, says so. A process killed between any two lines leaves
bytes behind the last whole block, which recovery cuts off, or a whole block that LOGGED does not tell of yet, which recovery finds.
What the disk refuses leaves the numbers here as they were: the next try writes the same places again.

One thread runs it; another prepares the next set of files (`set_next`), collects those that are full (`retired`) and ends it (`stop`).
The files stay that one's: it opens and closes them. Where compiled code is used, `appender_of` gives `hot.Appender`, which does the same
without the interpreter's lock (native/append.pxi); the class here is its reference.
"""

from __future__ import annotations

import errno
import os
import time
from typing import Any, Final, Protocol

import numpy as np

from shmstore.clock import calendar_ms
from shmstore.errors import StoreCorrupt
from shmstore.log import format
from shmstore.memory.layout import DISARMED, SlotFlag, header_word, subscription_word
from shmstore.memory.mapping import Views
from shmstore.memory.ordering import fence, heavy_fence, hot
from shmstore.memory.semaphores import Condition
from shmstore.ring.cursors import ACK_WANTED, ARMED, FLOOR, LOGGED, LOITERING, PUT, SYNC_WANTED, WANTED_OF

#: What `run` and `append_oversized` answer besides 0 and an errno, which is above 0.
OVERSIZED_NEXT: Final = -1  # the next event lies outside of the ring: give it to `append_oversized`
DAMAGED: Final = -2  # the ring contradicts itself
_SET_WANTED: Final = -3  # inside only: the next set is not prepared, or the last one not collected

MOST_RECORDS: Final = 4096  # events in a group
LOITER: Final = 0.005  # seconds that little waits for more ...
_LOITER_SLICE: Final = 0.001  # ... how often it is looked at meanwhile ...
_FLOW_SLICE: Final = 0.00025  # ... and how often where much has just come
_SLEEP: Final = 1.0
_OVERSIZED: Final = int(SlotFlag.OVERSIZED)

Files = tuple[int, int, int]  # descriptors of the events, slots and blocks of a set


class Appends(Protocol):
    """What both appenders do."""

    def set_current(self, fds: Files, first: int, count: int, at: int, blocks: int, /) -> None:
        """Continue in a set that has `count` events from `first` on, `at` bytes and `blocks` blocks, with its HEADER written.

        LOGGED becomes its last sequence. Raises `StoreCorrupt` where the ring does not have the event after that any more.
        """

    def set_next(self, fds: Files, /) -> None:
        """Give the files of a new empty set named ``next``, for when the current one is full. ValueError where there is one already."""

    @property
    def prepared_set(self) -> bool:
        """Whether the next set is prepared. It becomes the current one just before the old one is `retired`."""

    def retired(self) -> tuple[Files, int, int, int] | None:
        """Return (files, first sequence, events, bytes of events) of the set that became full; once. None where none did.

        Who syncs: read LOGGED, then ask here, then sync the set that is current by then; what is logged by that LOGGED is in the two.
        """

    def stop(self) -> None:
        """Let `run`, and every later call, return after the group that it is at. May be called by any thread."""

    def run(self, seconds: float, /) -> int:
        """Append for so many seconds; after that, only what waits: so with 0 all that was put so far.

        0: it was stopped, or the time is up and nothing waits; above 0: the errno of the disk, nothing was appended, call it again
        later; OVERSIZED_NEXT: the next event is to be given to `append_oversized`; DAMAGED: the ring contradicts itself.
        """

    def append_oversized(self, payload: bytes | memoryview, /) -> int:
        """Append the next event, whose payload lies outside of the ring. 0: done; else an errno, ECANCELED where it was stopped, or DAMAGED."""


class _Set:
    """Where the appender stands in a set."""

    __slots__ = ("at", "blocks", "count", "fds", "first")

    def __init__(self, fds: Files, first: int, count: int = 0, at: int = 0, blocks: int = 0) -> None:
        self.fds, self.first, self.count, self.at, self.blocks = fds, first, count, at, blocks


class Appender:
    """The reference, in Python. `folder` is a descriptor of the log's folder, `file_bytes` and `file_slots` are what a set holds."""

    def __init__(self, views: Views, folder: int, epoch: int, file_bytes: int, file_slots: int) -> None:
        self._views, self._words = views, views.words
        self._mask = views.slot_count - 1
        self._folder, self._epoch, self._file_bytes, self._file_slots = folder, epoch, file_bytes, file_slots
        self._woken = Condition(views.fixed, subscription_word(0, "woken"))
        self._keeper = Condition(views.fixed, header_word("keeper"))
        self._freed = Condition(views.fixed, header_word("freed"))
        self._current = _Set((-1, -1, -1), 0)
        self._prepared: Files | None = None
        self._old: _Set | None = None
        self._renamed = 0  # files of the next set that have their names already
        self._flowing = False  # what was appended last did not have to wait for more
        self._stopping = False

    # ------------------------------------------------------------ the other thread's side

    def set_current(self, fds: Files, first: int, count: int, at: int, blocks: int, /) -> None:
        """As `Appends`."""
        words, logged = self._words, first + count - 1
        if not words[FLOOR] <= logged <= words[PUT]:
            raise StoreCorrupt(
                f"the log ends at event {logged}, the ring has those from {words[FLOOR] + 1} to {words[PUT]}: `shmstore log verify` shows more"
            )
        self._current = _Set(fds, first, count, at, blocks)
        words[LOGGED] = logged

    def set_next(self, fds: Files, /) -> None:
        """As `Appends`."""
        if self._prepared is not None:
            raise ValueError("the next set is prepared already")
        self._renamed = 0
        self._prepared = fds
        self._woken.notify()

    @property
    def prepared_set(self) -> bool:
        """As `Appends`."""
        return self._prepared is not None

    def retired(self) -> tuple[Files, int, int, int] | None:
        """As `Appends`."""
        old = self._old
        if old is None:
            return None
        self._old = None
        self._woken.notify()
        return old.fds, old.first, old.count, old.at

    def stop(self) -> None:
        """As `Appends`."""
        self._stopping = True
        self._woken.notify()

    # ------------------------------------------------------------ the appending thread's

    def run(self, seconds: float, /) -> int:
        """As `Appends`."""
        words, capacity = self._words, self._views.capacity
        until = time.monotonic() + seconds
        while not self._stopping:
            logged = self._current.first + self._current.count - 1
            put = words[PUT]
            if put == logged:
                if time.monotonic() >= until:
                    return 0
                self._rest(logged, until)
                continue
            if not 0 < put - logged <= capacity:
                return DAMAGED
            if not self._is_little(logged, put):
                self._flowing = True
            else:
                self._loiter(logged, until)
                put = words[PUT]
                if not 0 < put - logged <= capacity:
                    return DAMAGED
            result = self._append(logged, put)
            if result == _SET_WANTED:
                result = self._wait_for_set()
            if result:
                return result
        return 0

    def append_oversized(self, payload: bytes | memoryview, /) -> int:
        """As `Appends`."""
        views, size = self._views, memoryview(payload).nbytes
        while not self._stopping:
            logged = self._current.first + self._current.count - 1
            i = (logged + 1) & self._mask
            slot = views.slots[i]
            if self._words[PUT] <= logged or size != slot["size"] or not slot["flags"] & _OVERSIZED:
                return DAMAGED
            result = self._make_space(logged, size)
            if result == _SET_WANTED:
                result = self._wait_for_set()
                if not result:
                    continue
            if result:
                return result
            records = np.zeros(1, format.RECORD)
            records["slot"], records["end"], records["rows"] = slot, views.ends[i], views.rows[i]
            records["at"] = self._current.at
            return self._write_group(logged, records, payload)
        return errno.ECANCELED

    def _rest(self, logged: int, until: float) -> None:
        """Sleep until something was put. No wake-up is lost: wanted, armed, heavy fence, look; the producer publishes, looks at armed."""
        words = self._words
        words[WANTED_OF[0]] = logged + 1
        words[ARMED] = 1
        heavy_fence()
        if words[PUT] == logged and not self._stopping:
            self._woken.wait(max(0.0, min(until - time.monotonic(), _SLEEP)))
        words[WANTED_OF[0]] = DISARMED

    def _is_little(self, logged: int, put: int) -> bool:
        """Whether what waits may become more, so that it is written at once, for less."""
        views = self._views
        waiting = views.ends[put & self._mask] - views.ends[logged & self._mask]
        return put - logged < views.capacity // 8 and waiting < min(format.GROUP_BYTES, views.limit // 8)

    def _loiter(self, logged: int, until: float) -> None:
        """Wait a moment for more, unless a process waits for free space or for the disk. In the order wanted, heavy fence, look, as `_rest`; but
        nothing is armed: a put does not end it, a producer without free space does."""
        words, now = self._words, time.monotonic()
        end, slice_ = min(until, now + LOITER), _FLOW_SLICE if self._flowing else _LOITER_SLICE
        self._flowing = False
        if now >= end:
            return
        words[WANTED_OF[0]] = LOITERING
        heavy_fence()
        while now < end:
            if logged < words[ACK_WANTED] < DISARMED or words[SYNC_WANTED] > logged or self._stopping:
                break
            if not self._is_little(logged, words[PUT]):
                self._flowing = True
                break
            self._woken.wait(min(end - now, slice_))
            now = time.monotonic()
        words[WANTED_OF[0]] = DISARMED

    def _append(self, logged: int, put: int) -> int:
        """Append the next group of events `logged` + 1 to `put`: what one block takes, and what has space in the set."""
        views, current = self._views, self._current
        i = (logged + 1) & self._mask
        if views.slots["flags"][i] & _OVERSIZED:
            return OVERSIZED_NEXT
        result = self._make_space(logged, int(views.slots["size"][i]))
        if result:
            return result
        current = self._current
        most = min(put - logged, MOST_RECORDS, self._file_slots - current.count)
        space = min(self._file_bytes - current.at, format.GROUP_BYTES, views.arena_size)
        slots = views.slots[i : i + most].view(np.uint8).copy().view(views.slots.dtype)
        stops = np.flatnonzero(slots["flags"] & _OVERSIZED)
        behind = np.cumsum(slots["size"], dtype=np.int64)
        n = max(1, int(np.searchsorted(behind, space, side="right")))
        if len(stops):
            n = min(n, int(stops[0]))
        start = views.ends[logged & self._mask]
        slots, behind = slots[:n], behind[:n]
        records = np.zeros(n, format.RECORD)
        records["slot"], records["end"], records["rows"] = slots, views.ends_array[i : i + n], views.rows_array[i : i + n]
        records["at"] = current.at + behind - slots["size"]
        if (
            not n
            or start < 0
            or (slots["size"] == 0).any()
            or (records["end"] != start + behind).any()
            or behind[-1] > views.arena_size
        ):
            return DAMAGED
        at = start % views.arena_size
        return self._write_group(logged, records, views.arena[at : at + int(behind[-1])])

    def _write_group(self, logged: int, records: Any, payload: bytes | memoryview) -> int:
        """Write events, their records and their block, and then let them be known as logged."""
        words, current, n = self._words, self._current, len(records)
        events, slots, blocks = current.fds
        size = memoryview(payload).nbytes
        staged = records.tobytes()
        block = format.block_bytes(logged + 1, current.at, payload, staged, calendar_ms())
        try:
            _write(events, payload, current.at)  # killed after this: bytes that no block covers
            _write(slots, staged, format.slots_size(current.count))  # killed after this: the same
            _write(blocks, block, current.blocks * format.BLOCK.itemsize)
        except OSError as error:  # nothing counts: the next try begins at the same places
            return error.errno or errno.EIO
        last = logged + n
        current.count += (
            n  # killed here: a whole block that LOGGED does not tell of; the next process that opens the log finds it
        )
        current.at += size
        current.blocks += 1
        words[LOGGED] = last
        fence()  # LOGGED, before the looks at who waits for it
        if (
            words[ACK_WANTED] <= last
        ):  # the producer takes its wish back itself: taken back here, it could be the next one already
            self._freed.notify()
        if words[SYNC_WANTED] > logged:
            self._keeper.notify()
        return 0

    def _make_space(self, logged: int, size: int) -> int:
        """Go over to the next set where the current one has no free space for the next event, of `size` bytes. 0: there is space."""
        current = self._current
        if current.count < self._file_slots and (current.count == 0 or size <= self._file_bytes - current.at):
            return 0
        files = self._prepared
        if files is None or self._old is not None:
            return _SET_WANTED
        try:
            if self._renamed == 0:
                i = logged & self._mask
                ends = self._views.ends[i], self._views.rows[i]
                _write(files[1], format.header_bytes(self._epoch, logged + 1, *ends, calendar_ms()), 0)
            name = format.set_name(logged + 1)
            for ending in format.ENDINGS[self._renamed :]:  # killed here: a set without all its files, which recovery removes
                os.rename(format.NEXT + ending, name + ending, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                self._renamed += 1
        except OSError as error:
            return error.errno or errno.EIO
        self._current = _Set(files, logged + 1)  # killed here: an empty set, which recovery removes
        self._prepared = None
        self._old = current
        self._keeper.notify()
        return 0

    def _wait_for_set(self) -> int:
        """Sleep until the other thread has prepared a set and collected the last one, which wakes entry 0. 0: it has, or this is stopped."""
        while not self._stopping and (self._prepared is None or self._old is not None):
            self._keeper.notify()
            self._woken.wait(_SLEEP)
        return 0


def _write(fd: int, raw: bytes | memoryview, at: int) -> None:
    view = memoryview(raw).cast("B")
    while view:
        done = os.pwrite(fd, view[:0x7FFFF000], at)
        if not done:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        view, at = view[done:], at + done


def appender_of(views: Views, folder: int, epoch: int, file_bytes: int, file_slots: int) -> Appends:
    """Return the appender of a ring; as `Appender`."""
    made: Any = Appender if views.native is None else hot.Appender
    appender: Appends = made(views, folder, epoch, file_bytes, file_slots)
    return appender
