"""The log's files as a reader sees them: found by their names, mapped, checked block by block, given without a copy.

Only what LOGGED covers is touched: behind it a file may end, or be written again after an append that failed. A set that retention
removes stays readable for as long as it is mapped, and the bytes of a `Content` for as long as that is held.
"""

from __future__ import annotations

import mmap
import os
import threading
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmstore.atomic_file import sync
from shmstore.errors import PositionNotFound, StoreCorrupt, refused
from shmstore.log import format as log_format
from shmstore.log.format import BLOCK, BLOCKS, EVENTS, HEADER, RECORD, SLOTS
from shmstore.memory.layout import SLOT, SlotFlag
from shmstore.memory.ordering import COMPILED, hot

MAPPED_SETS: Final = 4  # at a time
_WINDOW: Final = 4 << 20  # bytes behind a reader that may stay in its memory
_AHEAD: Final = 2 << 20  # bytes checked at once before a compiled reader, so that a cache still has them when they are read
_UNKNOWN, _SOUND, _DAMAGED = 0, 1, 2  # what is known of a block
_DDL: Final = int(SlotFlag.DDL)


#: `format.verify_blocks`, or the compiled one.
verify_blocks: Callable[[Any, Any, Any, int, int, int], int] = (
    getattr(hot, "verify_blocks", log_format.verify_blocks) if COMPILED else log_format.verify_blocks
)


class Content(NamedTuple):
    """Events `first` to `last` of one set, as in a `Batch`: where each payload ends in `raw`, its slot, and how many rows there are."""

    first: int
    last: int
    raw: memoryview
    ends: NDArray[np.int64]
    slots: NDArray[np.void]
    rows: int


class SetStat(NamedTuple):
    """One set: its events (none where ``last == first - 1``), its bytes on disk, event times in ms since 1970, and the path of its .events."""

    first: int
    last: int
    bytes: int
    first_ms: int
    last_ms: int
    path: Path


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
        fd = os.open(self.stem.with_suffix(BLOCKS), os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._identity = _identity(fd)
        finally:
            os.close(fd)
        self._slots, self._events = _mapped(self.stem.with_suffix(SLOTS)), _mapped(self.stem.with_suffix(EVENTS))
        fault = log_format.header_fault(bytes(self._slots[: HEADER.itemsize]), self._epoch, self.first)
        if fault:
            raise StoreCorrupt(f"{self.stem}{SLOTS} cannot be read: {fault}; {_advice(self.stem)}")
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
        fd = os.open(self.stem.with_suffix(BLOCKS), os.O_RDONLY | os.O_CLOEXEC)
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
        if self._spans is not None:
            return self.verify(first, last)
        firsts, raw = self._blocks["first"], _raw(self._blocks).data
        low = bisect_right(firsts, first) - 1
        for i in range(low, bisect_right(firsts, last, low)):
            block = raw[i * BLOCK.itemsize : (i + 1) * BLOCK.itemsize]
            if self._state[i] != _SOUND and not (log_format.block_sound(block) and self._records_sound(i)):
                begin = int(firsts[i])
                return begin - 1 if begin > first else self.verify(first, last)  # which names it
        return last

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
            f"{self.stem}{ending} is damaged: events {first} to {last} of the log are lost, and nothing of them is given; "
            f"{_advice(self.stem)}, `shmstore seek` to {last + 1} goes on behind them"
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

        It is mapped all the same: whoever looks at it again, as at a batch that is still held, gets it from the page cache.
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


def _mapped(path: Path) -> memoryview:
    """The bytes of a file, read-only."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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


def _slots_of(records: NDArray[np.void]) -> NDArray[np.void]:
    """A copy of the slots of records."""
    return _raw(records).reshape(-1, RECORD.itemsize)[:, : SLOT.itemsize].copy().view(SLOT).reshape(-1)


def _behind(blocks: NDArray[np.void]) -> int:
    """The sequence after the last one of `blocks`."""
    return int(blocks["first"][-1]) + int(blocks["count"][-1])


def _advice(stem: Path) -> str:
    return f"`shmstore log verify {stem.parent.parent.name}` names all that is damaged"


class LogFiles:
    """The log in `folder`, of the store's `epoch`; `logged` returns the last sequence that is written there. May be shared by threads."""

    def __init__(self, folder: str | os.PathLike[str], epoch: int, logged: Callable[[], int]) -> None:
        self.folder = Path(folder)
        self.epoch = epoch
        self.logged = logged
        self._firsts: list[int] = []
        self._sets: OrderedDict[int, LogSet] = OrderedDict()
        self._extent: tuple[int, int, LogSet] | None = None  # first, last and set of what `extent` found sound last
        self._lock = threading.Lock()

    # ---------------------------------------------------------------- which sets there are

    def refresh(self) -> list[int]:
        """Read the folder again; return the first sequence of each set, ascending. Raises `StoreError` where the folder cannot be read."""
        self._firsts = firsts = set_firsts(self.folder)
        return firsts

    @property
    def firsts(self) -> list[int]:
        """First sequence of each set, ascending, as when last looked."""
        return self._firsts or self.refresh()

    @property
    def oldest(self) -> int:
        """Sequence of the oldest event kept; the next one to come where there is none."""
        firsts = self._firsts
        if not firsts or not os.path.exists(self._stem(firsts[0]).with_suffix(EVENTS)):
            firsts = self.refresh()
        return firsts[0] if firsts else self.logged() + 1

    def sets(self) -> list[SetStat]:
        """What each set holds and takes, the oldest first."""
        firsts, logged = self.refresh(), self.logged()
        found = []
        for i, first in enumerate(firsts):
            stem, size = self._stem(first), 0
            last = min(firsts[i + 1] - 1, logged) if i + 1 < len(firsts) else max(first - 1, logged)
            try:
                size = sum(os.stat(stem.with_suffix(ending)).st_blocks * 512 for ending in log_format.ENDINGS)
                times = _times(stem, last - first + 1)
            except FileNotFoundError:
                if not os.path.exists(stem.with_suffix(EVENTS)):
                    continue  # removed since
                times = 0, 0
            found.append(SetStat(first, last, size, *times, stem.with_suffix(EVENTS)))
        return found

    def _stem(self, first: int) -> Path:
        return self.folder / log_format.set_name(first)

    def set_of(self, sequence: int, last: int | None = None) -> tuple[LogSet, int]:
        """Return the set that has `sequence`, and the last event up to `last` that is there and known to it.

        Raises `PositionNotFound` where it is not kept, `StoreCorrupt` where it should be and is not.
        """
        logged, again = self.logged(), False
        wanted = logged if last is None else max(sequence, min(last, logged))
        if sequence > logged:
            raise self._absent(sequence)
        while True:
            firsts = self._firsts
            i = bisect_right(firsts, sequence) - 1
            newest = i + 1 == len(firsts)
            behind = logged if newest else firsts[i + 1] - 1  # last event that the set may have
            bound = min(wanted, behind)
            try:
                found = self._open(firsts[i]) if i >= 0 else None
                there = found.cover(bound, behind) if found is not None else -1
            except FileNotFoundError as error:
                found = None
                with self._lock:
                    self._sets.pop(firsts[i], None)
                if again and os.path.exists(self._stem(firsts[i]).with_suffix(EVENTS)):
                    raise StoreCorrupt(
                        f"{error.filename} is missing: events {firsts[i]} to {behind} of the log are lost; {_advice(self._stem(0))}, "
                        f"`shmstore seek` to {behind + 1} goes on behind them"
                    ) from error
            whole = (
                found is not None and there >= bound and not (newest and found.damaged)
            )  # what its last one held, the next set says
            if found is not None and (whole or (again and there >= sequence)):
                return found, min(bound, there)
            if again:
                raise found.missing(sequence, behind) if found is not None else self._absent(sequence)
            again = True
            self.refresh()  # a set may be new, or removed

    def _absent(self, sequence: int) -> PositionNotFound:
        oldest, logged = self.oldest, self.logged()
        held = f"it keeps {oldest} to {logged}" if oldest <= logged else "it is empty"
        return PositionNotFound(f"sequence {sequence} is not in the log of store {self.folder.parent.name!r}: {held}")

    def _open(self, first: int) -> LogSet:
        with self._lock:
            found = self._sets.get(first)
            if found is not None:
                self._sets.move_to_end(first)
                return found
            try:
                found = self._sets[first] = LogSet(self.folder, first, self.epoch)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise refused(f"the log in {self.folder} cannot be read", error, "let this user read there") from error
            while len(self._sets) > MAPPED_SETS:
                self._sets.popitem(last=False)
            return found

    # ---------------------------------------------------------------- read

    def read(self, first: int, last: int) -> Content:
        """Return events from `first` on, up to `last` at most: at least one; it ends with its set, or before a damaged block.

        Raises `PositionNotFound` where `first` is not kept, `StoreCorrupt` where it is damaged: which file, which events are lost, what to do.
        """
        found, last = self._verified(first, last)
        records = found.records(first, last)
        head, tail = records[0], records[-1]
        start, end = int(head["at"]), int(tail["at"]) + int(tail["slot"]["size"])
        ends: NDArray[np.int64] = records["at"] + records["slot"]["size"]
        ends -= start
        slots = _slots_of(records)
        rows = int(tail["rows"]) - int(head["rows"]) + int(head["slot"]["rows"])
        found.pass_over(first, start, last)
        return Content(first, last, found.payload(start, end), ends, slots, rows)

    def slots(self, first: int, last: int) -> NDArray[np.void]:
        """Return the slots of events from `first` on, up to `last` at most: at least one, as `read`, without a look at their payloads."""
        found, last = self.set_of(first, last)
        return _slots_of(found.records(first, found.verify_records(first, last)))

    def _verified(self, first: int, last: int) -> tuple[LogSet, int]:
        """The set that has `first`, and the last event up to `last` that is sound; what `extent` has just found out is not asked again."""
        known = self._extent
        if known is not None and known[:2] == (first, last) and known[2].reaches(last):
            return known[2], last
        found, last = self.set_of(first, last)
        return found, found.verify(first, last)

    def extent(self, first: int, limit_events: int, limit_bytes: int | None, *, ddl_alone: bool) -> int:
        """Return the last event of a batch from `first` on under the limits, as `Reader.take` has them: at least one event, within one set.

        `read` then gives all of it: a damaged block ends it, too. Raises as `read` does.
        """
        found, last = self.set_of(first, first + max(1, limit_events) - 1)
        if limit_bytes is not None and last > first:
            ends = found.records(first, last)["end"]
            last = max(first, first - 1 + bisect_right(ends, found.end_before(first) + limit_bytes))
        last = found.verify(first, last)
        if ddl_alone and last > first:
            ddl = np.flatnonzero(found.records(first, last)["slot"]["flags"] & _DDL)
            if len(ddl):
                last = first + max(1, int(ddl[0])) - 1
        self._extent = first, last, found
        return last

    def window(self, first: int, last: int) -> Any:
        """What `Takes.look_through` takes: events from `first` to `last`, which `extent` found sound, and more where what follows is, too."""
        found, last = self._verified(first, last)
        with suppress(StoreCorrupt):  # the next one says it
            last = max(last, found.verify(first, min(found.ahead(last), self.logged())))
        return found.window(first, last)

    def record_at(self, sequence: int) -> np.void:
        """Return a copy of the RECORD of one event. Raises as `read` does."""
        found, _ = self.set_of(sequence, sequence)
        found.verify(sequence, sequence)
        record: np.void = found.records(sequence, sequence)[0].copy()
        return record


def set_firsts(folder: Path) -> list[int]:
    """First sequence of each set in `folder`, ascending; a set whose .events has no name yet is none. None where there is no such folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refused(f"the log in {folder} cannot be read", error, "let this user read there") from error
    parsed = (log_format.parse_name(name) for name in names if name.endswith(EVENTS))
    return sorted(each[0] for each in parsed if each is not None and each[0] is not None)


def remove_sets(folder: Path, firsts: Iterable[int]) -> None:
    """Remove the sets named by `firsts`, in this order. After a crash at any point the rest of them is there, and nothing of the others.

    Give the oldest first to shorten the log at its beginning. Raises OSError.
    """
    for first in firsts:
        stem = folder / log_format.set_name(first)
        stem.with_suffix(EVENTS).unlink(
            missing_ok=True
        )  # it is no set from here on; what is left of it, the next recovery removes
        sync(folder)
        for ending in (SLOTS, BLOCKS):
            stem.with_suffix(ending).unlink(missing_ok=True)


def _times(stem: Path, count: int) -> tuple[int, int]:
    """Event times of the first and last of `count` events."""
    if count < 1:
        return 0, 0
    fd = os.open(stem.with_suffix(SLOTS), os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw = [os.pread(fd, RECORD.itemsize, log_format.slots_size(i)) for i in (0, count - 1)]
    finally:
        os.close(fd)
    first, last = (int(np.frombuffer(each, RECORD)[0]["slot"]["time"]) if len(each) == RECORD.itemsize else 0 for each in raw)
    return first, last
