"""One set of the log's files as a reader sees it: mapped, checked block by block, given without a copy.

Only what LOGGED covers is touched: behind it a file may end, or be written again after an append that failed. A set that retention
removes stays readable for as long as it is mapped, and a view of its bytes for as long as that is held.
"""

from __future__ import annotations

import mmap
import os
import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmstore.errors import StoreCorrupt
from shmstore.log import format as log_format
from shmstore.log.format import BLOCK, BLOCKS, EVENTS, HEADER, RECORD, SLOTS
from shmstore.memory.ordering import COMPILED, hot
from shmstore.stored_json import open_regular

_WINDOW: Final = 4 << 20  # bytes behind a reader that may stay in its memory
_AHEAD: Final = 2 << 20  # bytes checked at once before a compiled reader, so that a cache still has them when they are read
_UNKNOWN, _SOUND, _DAMAGED = 0, 1, 2  # what is known of a block


#: `format.verify_blocks`, or the compiled one.
verify_blocks: Callable[[Any, Any, Any, int, int, int], int] = (
    getattr(hot, "verify_blocks", log_format.verify_blocks) if COMPILED else log_format.verify_blocks
)


class Damage(NamedTuple):
    """Events `first` to `last` that are lost, and the error that says so."""

    first: int
    last: int
    error: StoreCorrupt


class LogSet:
    """One set of files, mapped. Raises FileNotFoundError where one of them is missing, `StoreCorrupt` where they are no set of this log.

    `.slots` and `.events` are mapped whole; `.blocks`, which grows, is read as far as events are asked for. Where blocks do not follow
    from each other, `_spans` says which events are in none, so that the others can be read.
    """

    def __init__(self, folder: Path, first: int, epoch: int) -> None:
        self.first = first
        self.stem = folder / log_format.set_name(first)
        self._epoch = epoch
        self._lock = threading.Lock()
        self._map()
        header = np.frombuffer(self._slots, HEADER, 1)[0]
        self.end, self.rows = int(header["end"]), int(header["rows"])  # of the ring before the first event

    def _map(self) -> None:
        fd = opened(self.stem.with_suffix(BLOCKS))
        try:
            self._identity = _identity(fd)
        finally:
            os.close(fd)
        self._slots, self._events = _mapped(self.stem.with_suffix(SLOTS)), _mapped(self.stem.with_suffix(EVENTS))
        fault = log_format.header_fault(bytes(self._slots[: HEADER.itemsize]), self._epoch, self.first)
        if fault:
            raise StoreCorrupt(f"{self.stem}{SLOTS} cannot be read: {fault}; {advice(self.stem)}")
        self._record_bytes = self._slots[HEADER.itemsize :]
        self._records = np.frombuffer(self._record_bytes, RECORD, len(self._record_bytes) // RECORD.itemsize)
        self.covered = self.first - 1  # last event of the blocks read
        self._space = np.empty(0, BLOCK)  # the blocks read, and free space behind them
        self._blocks = self._space
        self._state = bytearray()  # what is known of each
        self._passed = self.first, 0, self.first  # event and byte that memory is in use from, and the event to read next
        self._spans: list[tuple[int, int, int]] | None = None  # (first, count, index of the block or -1), where some are damaged

    # ---------------------------------------------------------------- which blocks there are

    @property
    def blocks(self) -> int:
        """How many blocks were read."""
        return len(self._blocks)

    def holds(self, block: np.void) -> bool:
        """True where the bytes that `block` is about are what it says; it need not be one that was read."""
        events, records = self._events[: _size(self._events)], self._slots[HEADER.itemsize : _size(self._slots)]
        return verify_blocks(events, records, memoryview(block.tobytes()), 0, 0, self.first) < 0

    @property
    def damaged(self) -> bool:
        """True where blocks do not follow from each other."""
        return self._spans is not None

    def cover(self, last: int, logged: int) -> int:
        """Read blocks so that `last` is in one, of those that hold nothing behind `logged`; return the last event that is."""
        if last > self.covered or (self.damaged and self.covered > logged):
            with self._lock:
                self._read_blocks(logged)
                if self._outgrown():
                    self._map()
                    self._read_blocks(logged)
        return min(self.covered, self.first - 1 + (_size(self._slots) - HEADER.itemsize) // RECORD.itemsize)

    def _outgrown(self) -> bool:
        """True where what the blocks say is longer than a mapping: an event larger than a set, or files cut by a recovery."""
        if self._spans is not None or not len(self._blocks):
            return False
        block = self._blocks[-1]
        if int(block["at"]) + int(block["size"]) <= len(self._events) and self.covered - self.first < len(self._records):
            return False
        return len(self._events) < os.stat(self.stem.with_suffix(EVENTS)).st_size or (
            len(self._slots) < os.stat(self.stem.with_suffix(SLOTS)).st_size
        )

    def _read_blocks(self, logged: int) -> None:
        """Take in the blocks that begin at or before `logged`. Behind them may be one that is written just now, or again."""
        fd = opened(self.stem.with_suffix(BLOCKS))
        try:
            if _identity(fd) != self._identity:  # a recovery removed this set, which had no event, and another has its name
                self._map()
            there = _blocks_from(fd, len(self._blocks))
            fresh = there[: bisect_right(there["first"], logged)]
            if self._spans is None and len(fresh) and self._follow(fresh) and _behind(fresh) <= logged + 1:
                self._keep(fresh)
                there = there[len(fresh) :]
            if self._spans is not None or (self.covered < logged and len(there)):
                self._find_spans(_blocks_from(fd, 0), logged)
        finally:
            os.close(fd)

    def _follow(self, fresh: NDArray[np.void]) -> bool:
        """True where each block begins where the one before it ends."""
        before = self._blocks[-1:]
        start = (_behind(before), int(before["at"][0] + before["size"][0])) if len(before) else (self.first, 0)
        firsts, ats, counts, sizes = fresh["first"], fresh["at"], fresh["count"], fresh["size"]
        return (
            (int(firsts[0]), int(ats[0])) == start
            and bool((counts > 0).all() and (sizes > 0).all())
            and np.array_equal(firsts[1:], firsts[:-1] + counts[:-1])
            and np.array_equal(ats[1:], ats[:-1] + sizes[:-1])
        )

    def _keep(self, fresh: NDArray[np.void]) -> None:
        known = len(self._blocks)
        count = known + len(fresh)
        if count > len(self._space):
            space = np.zeros(max(64, 2 * count), BLOCK)
            _raw(space)[: known * BLOCK.itemsize] = _raw(self._blocks)
            self._space = space
        _raw(self._space)[known * BLOCK.itemsize : count * BLOCK.itemsize] = _raw(fresh)
        self._state.extend(bytes(len(fresh)))
        self._blocks, self.covered = self._space[:count], _behind(fresh) - 1

    def _find_spans(self, blocks: NDArray[np.void], logged: int) -> None:
        """Where blocks up to `logged` are damaged, find which events the others hold. Where none is, the file just ends."""
        spans: list[tuple[int, int, int]] = []
        behind, unread = self.first, False
        for i, block in enumerate(blocks):
            first, count = int(block["first"]), int(block["count"])
            if behind > logged:
                break
            if not (log_format.block_sound(block.tobytes()) and count > 0 and behind <= first and first + count - 1 <= logged):
                unread = True  # what it held is before the next one that can be read
                continue
            if first > behind:
                spans.append((behind, first - behind, -1))
            spans.append((first, count, i))
            behind, unread = first + count, False
        if unread:
            spans.append((behind, logged + 1 - behind, -1))
            behind = logged + 1
        self._blocks, self._state = blocks, bytearray(len(blocks))
        self._spans, self.covered = spans, behind - 1

    # ---------------------------------------------------------------- what they hold

    def verify(self, first: int, last: int) -> int:
        """Check the blocks of events `first` to `last`, which must be covered, each once; return the last event that may be given.

        That is one before `last` where a damaged block follows. Raises `StoreCorrupt` where `first` itself is in one.
        """
        damage = self.damage(first, last)
        if damage is None:
            return last
        if first < damage.first:
            return damage.first - 1
        raise damage.error

    def verify_records(self, first: int, last: int) -> int:
        """As `verify`, but their payloads are not looked at, where none of their blocks is known to be damaged."""
        sound = self.records_sound(first, last)
        return sound if sound >= first else self.verify(first, last)  # which names the damage

    def records_sound(self, first: int, last: int) -> int:
        """Return the last event up to `last` that follows `first` with sound records alone, `first` - 1 where there is none or blocks are damaged."""
        if self._spans is not None:
            return first - 1
        firsts, raw = self._blocks["first"], _raw(self._blocks).data
        low = bisect_right(firsts, first) - 1
        for i in range(low, bisect_right(firsts, last, low)):
            block = raw[i * BLOCK.itemsize : (i + 1) * BLOCK.itemsize]
            if self._state[i] != _SOUND and not (log_format.block_sound(block) and self._records_sound(i)):
                return max(first, int(firsts[i])) - 1
        return last

    def block_since(self, first: int, last: int, moment_ms: int) -> int:
        """Return the first event, from `first` to `last`, of the first block that may have one at `moment_ms` or later; `last` + 1 where none
        has. Where blocks are damaged, all may. What a block says is taken unchecked: it only says where to look.
        """
        if self._spans is not None:
            return first
        low = bisect_right(self._blocks["first"], first) - 1
        newest = self._blocks["newest_ms"][low:]
        found = np.flatnonzero((newest >= moment_ms) | (newest == 0))
        return min(last + 1, max(first, int(self._blocks["first"][low + int(found[0])]))) if len(found) else last + 1

    def damage(self, first: int, last: int) -> Damage | None:
        """Return the first damage of what holds events `first` to `last`, which must be covered; None where all of it is sound."""
        if self._spans is not None:
            return self._damaged_span(self._spans, first, last)
        firsts = self._blocks["first"]
        low = bisect_right(firsts, first) - 1
        high = bisect_right(firsts, last, low) - 1
        bad = self._first_damaged(low, high)
        if bad >= 0:
            return self._damage(self._damaged_file(bad), int(firsts[bad]), _behind(self._blocks[bad : bad + 1]) - 1)
        return None if self.reaches(last) else self._damage(EVENTS, first, last)  # it was cut after it was checked

    def reaches(self, last: int) -> bool:
        """True where the files still have all that event `last` claims."""
        record = self._records[last - self.first]
        return int(record["at"]) + int(record["slot"]["size"]) <= _size(self._events)

    def _damaged_span(self, spans: list[tuple[int, int, int]], first: int, last: int) -> Damage | None:
        low = bisect_right(spans, first, key=lambda span: span[0]) - 1
        for begin, count, block in spans[low:]:
            if begin > last:
                break
            if block < 0 or self._first_damaged(block, block) >= 0:
                return self._damage(BLOCKS if block < 0 else self._damaged_file(block), begin, begin + count - 1)
        return None

    def _first_damaged(self, low: int, high: int) -> int:
        """Index of the first damaged block from `low` to `high`, or -1."""
        state = self._state
        damaged = state.find(_DAMAGED, low, high + 1)
        end = high if damaged < 0 else damaged - 1
        start = state.find(_UNKNOWN, low, end + 1)
        if start < 0:
            return damaged
        found = self._check(start, end)
        behind = end + 1 if found < 0 else found
        state[start:behind] = bytes((_SOUND,)) * (behind - start)
        if found < 0:
            return damaged
        state[found] = _DAMAGED
        return found

    def _check(self, low: int, high: int) -> int:
        """Index of the first block from `low` to `high` whose bytes are not those that were written, or -1."""
        events, records = self._events[: _size(self._events)], self._slots[HEADER.itemsize : _size(self._slots)]
        return verify_blocks(events, records, _raw(self._blocks).data, low, high, self.first)

    def _damaged_file(self, index: int) -> str:
        """Ending of the file to which a damaged block's damage was done."""
        if not log_format.block_sound(self._blocks[index].tobytes()):
            return BLOCKS
        return EVENTS if self._records_sound(index) else SLOTS

    def _records_sound(self, index: int) -> bool:
        """True where the records are those that a block, which is sound itself, was written with."""
        block = self._blocks[index]
        low = (int(block["first"]) - self.first) * RECORD.itemsize
        high = low + int(block["count"]) * RECORD.itemsize
        return high <= _size(self._slots) - HEADER.itemsize and zlib.crc32(self._record_bytes[low:high]) == block["slots_check"]

    def _damage(self, ending: str, first: int, last: int) -> Damage:
        error = StoreCorrupt(
            f"{self.stem}{ending} is damaged: events {first} to {last} of the log are lost, and none of them is returned; "
            f"{advice(self.stem)}, `shmstore seek` to {last + 1} continues after them"
        )
        return Damage(first, last, error)

    def ahead(self, last: int) -> int:
        """Return the last event of the blocks that begin within _AHEAD of the one that has event `last`; `last` where blocks are damaged."""
        if self._spans is not None:
            return last
        blocks = self._blocks
        i = bisect_right(blocks["first"], last) - 1
        behind = bisect_right(blocks["at"], int(blocks["at"][i]) + _AHEAD, i + 1)
        return _behind(blocks[i:behind]) - 1

    def window(self, first: int, last: int) -> Any:
        """Events from `first` to `last`, which are sound, for the compiled get."""
        self.pass_over(first, int(self._records["at"][first - self.first]), last)
        return hot.LogWindow(self._events, self._record_bytes, self.first, first, last)

    def pass_over(self, first: int, start: int, last: int) -> None:
        """Note that events `first` to `last`, from byte `start` on, are read now; let go of the memory of what was read before, in order.

        It is mapped all the same: a viewer that looks at it again, as at a batch that is still held, gets it from the page cache.
        """
        passed_first, passed_start, read = self._passed
        if not passed_first <= first <= read:
            self._passed = first, start, last + 1
        elif start - passed_start + (first - passed_first) * RECORD.itemsize < _WINDOW:
            self._passed = passed_first, passed_start, max(read, last + 1)
        else:
            _let_go(self._events, passed_start, start)
            _let_go(self._slots, *(log_format.slots_size(each - self.first) for each in (passed_first, first)))
            self._passed = first, start, last + 1

    def missing(self, first: int, last: int) -> StoreCorrupt:
        """The error that says that the files end before `first`."""
        return self._damage(BLOCKS if self.covered < first else SLOTS, first, last).error

    def records(self, first: int, last: int) -> NDArray[np.void]:
        """The records of events `first` to `last`, in the mapping. Check them with `verify` before."""
        records: NDArray[np.void] = self._records[first - self.first : last - self.first + 1]
        return records

    def end_before(self, sequence: int) -> int:
        """The ring's `ends` before one event."""
        return self.end if sequence == self.first else int(self._records["end"][sequence - self.first - 1])

    def payload(self, start: int, end: int) -> memoryview:
        """Bytes `start` to `end` of the payloads, in the mapping."""
        return self._events[start:end]


def opened(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a file of a log, as the `opener` of `open`, too. Raises OSError, and `StoreCorrupt` for what is not a regular file, at which it does not wait."""
    try:
        return open_regular(os.fspath(path), flags)
    except ValueError as error:
        raise StoreCorrupt(f"{path} cannot be read: {error}; {advice(Path(path))}") from error


def _mapped(path: Path) -> memoryview:
    """The bytes of a file, read-only."""
    fd = opened(path)
    try:
        return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ)) if os.fstat(fd).st_size else memoryview(b"")
    finally:
        os.close(fd)


def _let_go(view: memoryview, start: int, end: int) -> None:
    """Take the whole pages between two bytes of a mapping out of this process's memory."""
    start, end = (each // mmap.PAGESIZE * mmap.PAGESIZE for each in (start, end))
    if end > start and isinstance(view.obj, mmap.mmap):
        with suppress(OSError, ValueError):  # the file was cut: nothing is there to let go of
            view.obj.madvise(mmap.MADV_DONTNEED, start, end - start)


def _size(view: memoryview) -> int:
    """Bytes of a mapping that may be touched: the file may have been cut since."""
    return min(len(view), view.obj.size()) if isinstance(view.obj, mmap.mmap) else 0


def _identity(fd: int) -> tuple[int, int]:
    stat = os.fstat(fd)
    return stat.st_dev, stat.st_ino


def _blocks_from(fd: int, index: int) -> NDArray[np.void]:
    parts, offset = [], index * BLOCK.itemsize
    while part := os.pread(fd, 1 << 26, offset):
        parts.append(part)
        offset += len(part)
    raw = b"".join(parts)
    return np.frombuffer(raw, BLOCK, len(raw) // BLOCK.itemsize)


def _raw(records: NDArray[np.void]) -> NDArray[np.uint8]:
    """The bytes of a contiguous array; numpy copies records field by field."""
    return records.view(np.uint8)


def _behind(blocks: NDArray[np.void]) -> int:
    """The sequence after the last one of `blocks`."""
    return int(blocks["first"][-1]) + int(blocks["count"][-1])


def advice(stem: Path) -> str:
    """What to do where the set of that path, without an ending, is damaged."""
    return f"`shmstore log verify {log_format.store_of(stem.parent)}` names all that is damaged"
