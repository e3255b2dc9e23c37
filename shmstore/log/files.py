"""The log's files as a reader sees them: its sets, found by their names and mapped while they are read."""

from __future__ import annotations

import os
import threading
import time
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from shmstore.atomic_file import sync
from shmstore.errors import PositionNotFound, StoreCorrupt, refused
from shmstore.log import format as log_format
from shmstore.log.format import BLOCKS, EVENTS, RECORD, SLOTS
from shmstore.log.log_set import LogSet, advice, opened
from shmstore.memory.layout import SLOT, SlotFlag
from shmstore.memory.segment import Segment

MAPPED_SETS: Final = 4  # at a time
RELEASE_SECONDS: Final = 2.0  # that a removed set may stay mapped
_DDL: Final = int(SlotFlag.DDL)


class Content(NamedTuple):
    """Events `first` to `last`, as in a `Batch`: where each payload ends in `raw`, its slot, and how many rows there are.

    `raw` and `slots` are valid for as long as they are held, or, where they are not its `own`, as long as the ring has the events.
    """

    first: int
    last: int
    raw: memoryview
    ends: NDArray[np.int64]
    slots: NDArray[np.void]
    rows: int
    own: bool = True


class SetStat(NamedTuple):
    """One set: its events (none where ``last == first - 1``), its bytes on disk, event times in ms since 1970, and the path of its .events."""

    first: int
    last: int
    bytes: int
    first_ms: int
    last_ms: int
    path: Path


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

    # ---------------------------------------------------------------- which sets are mapped

    @property
    def maps(self) -> bool:
        """True while a set is mapped through this object."""
        return bool(self._sets)

    def release(self, *, everything: bool = False) -> None:
        """Let go of the sets that are removed, or of all, as far as no batch holds them: until then the disk does not get their space."""
        with self._lock:
            for first in list(self._sets):
                if everything or not os.path.exists(self._stem(first).with_suffix(EVENTS)):
                    del self._sets[first]
            known = self._extent
            if known is not None and known[2].first not in self._sets:
                self._extent = None

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
                        f"{error.filename} is missing: events {firsts[i]} to {behind} of the log are lost; {advice(self._stem(0))}, "
                        f"`shmstore seek` to {behind + 1} continues after them"
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
        return PositionNotFound(f"sequence {sequence} is not in the log of store {log_format.store_of(self.folder)!r}: {held}")

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
        _released.add(self)
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
        slots = slots_of(records)
        rows = int(tail["rows"]) - int(head["rows"]) + int(head["slot"]["rows"])
        found.pass_over(first, start, last)
        return Content(first, last, found.payload(start, end), ends, slots, rows)

    def slots(self, first: int, last: int) -> NDArray[np.void]:
        """Return the slots of events from `first` on, up to `last` at most: at least one, as `read`, without a look at their payloads."""
        return slots_of(self.records(first, last))

    def records(self, first: int, last: int) -> NDArray[np.void]:
        """As `slots`, the whole RECORDs, in the mapping."""
        found, last = self.set_of(first, last)
        return found.records(first, found.verify_records(first, last))

    def sound_from(self, first: int, last: int, *, payloads: bool = True) -> int:
        """Return the first event, from `first` on, from which all up to `last` are there and sound; the one after `last` where that is not.

        Without `payloads` these are looked at only in a set whose records are damaged.
        """
        at = first
        while at <= last:
            try:
                found, end = self.set_of(at, last)
                sound = not payloads and found.records_sound(at, end) == end
                damage = None if sound else found.damage(at, end)
                at = end + 1
                if damage is not None:
                    first = at = damage.last + 1
            except (PositionNotFound, StoreCorrupt):  # a set that is missing, or cannot be read at all
                following = bisect_right(self.firsts, at)
                first = at = self.firsts[following] if following < len(self.firsts) else last + 1
        return first

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


def log_of(segment: Segment) -> LogFiles:
    """Return the log behind the ring of a store that has one."""
    return cast(LogFiles, segment.log)


class _Released:
    """Lets all `LogFiles` of this process go of removed sets, every `RELEASE_SECONDS`, in a thread that runs while one is mapped.

    A removed file keeps its space on the disk for as long as a process has it mapped. That process alone can end this: were a file cut
    or punched by the process that removes it, a reader would find zeros in a batch that it holds, or die of SIGBUS. And a reader that is idle, or busy
    with what it has read, calls nothing here; so a thread does it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: weakref.WeakSet[LogFiles] = weakref.WeakSet()
        self._running = False
        os.register_at_fork(after_in_child=self._after_fork)

    def add(self, files: LogFiles) -> None:
        with self._lock:
            self._files.add(files)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="log-release", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(RELEASE_SECONDS)
            with self._lock:
                found = [each for each in self._files if each.maps]
                self._files = weakref.WeakSet(found)  # the process that maps a set again adds itself again
                if not found:
                    self._running = False
                    return
            for files in found:
                files.release()
            del files, found  # a process that closes a store meanwhile releases them at once

    def _after_fork(self) -> None:
        self._lock, self._running = threading.Lock(), False
        for files in self._files:
            files._lock = threading.Lock()  # the thread, which is not in the child, may have held it


_released: Final = _Released()


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
    fd = opened(stem.with_suffix(SLOTS))
    try:
        raw = [os.pread(fd, RECORD.itemsize, log_format.slots_size(i)) for i in (0, count - 1)]
    finally:
        os.close(fd)
    first, last = (int(np.frombuffer(each, RECORD)[0]["slot"]["time"]) if len(each) == RECORD.itemsize else 0 for each in raw)
    return first, last


def slots_of(records: NDArray[np.void]) -> NDArray[np.void]:
    """A copy of the slots of records."""
    return records.view(np.uint8).reshape(-1, RECORD.itemsize)[:, : SLOT.itemsize].copy().view(SLOT).reshape(-1)
