"""Find events of a store: by time, by position, by GTID set, and the ack point before one.

One search, over the slots of events (`Slots`): these come out of the ring while it has them, else out of the log. Positions and GTID
sets only grow along a store, so they are found by bisection; event times may go back, so they are looked through, in the log only
those of blocks that may have the time. Damage does not hide from a reader: where what is looked for may be in a damaged block, the
sequence given is the first one of that block, so that reading from there says what is lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmstore import gtids as gtid_sets
from shmstore.errors import PositionNotFound
from shmstore.event import EventType, Position
from shmstore.log.files import LogFiles, slots_of
from shmstore.memory.layout import SLOT, SlotFlag
from shmstore.memory.mapping import Views
from shmstore.ring.cursors import first_slot
from shmstore.sources import sources_text

_ACK_POINT: Final = int(SlotFlag.ACK_POINT)
_READ: Final = int(EventType.READ)
_CHUNK: Final = 1 << 16  # events looked at in one go
_WITHOUT_GTIDS: Final = 64  # ack points in a row that have none, before they count as older than any GTID set
Test = Callable[[NDArray[np.void]], NDArray[np.bool_]]  # of slots


class SlotRun(NamedTuple):
    """Events `first` to `last` and a copy of their slots; None where these are lost, to damage."""

    first: int
    last: int
    slots: NDArray[np.void] | None


class Slots:
    """The slots of events `oldest` to `newest` of the store `name`, in runs: out of the ring `views` while that has them, else out of the
    log's `files`. A store without a log has no files, the log alone has no views.

    Retention, or without a log the producer, may have removed the run that is asked for: `PositionNotFound`.
    """

    def __init__(self, name: str, views: Views | None, files: LogFiles | None, oldest: int, newest: int) -> None:
        self.name, self.oldest, self.newest = name, oldest, newest
        self._views, self._files = views, files

    def run(self, first: int, last: int) -> SlotRun:
        """Events from `first` on, up to `last` at most: at least one."""
        if first < self._in_ring():
            return self._logged(first, last)
        copy = self._copied(first, last)
        if copy is None:
            return self.run(first, last)  # it has left the ring
        if self._files is not None and not copy["size"].all():  # the ring that was restored lacks what is damaged
            known = int(np.argmin(copy["size"]))
            return SlotRun(first, first + known - 1, copy[:known]) if known else self._logged(first, last)
        return SlotRun(first, last, copy)

    def run_until(self, first: int, last: int) -> SlotRun:
        """Events up to `last`, from `first` on at most: at least one. Those that are lost may begin before `first`."""
        begin = max(first, self._in_ring())
        if last < begin:
            return self._logged_until(first, last)
        copy = self._copied(begin, last)
        if copy is None:
            return self.run_until(first, last)
        if self._files is not None and not copy["size"].all():
            known = int(np.argmin(copy["size"][::-1]))
            return SlotRun(last - known + 1, last, copy[-known:]) if known else self._logged_until(first, last)
        return SlotRun(begin, last, copy)

    def not_before(self, first: int, moment_ms: int) -> int:
        """The first event, from `first` on, that may have happened at `moment_ms` or later, as the blocks of the log tell; `newest` + 1
        where none can have."""
        while first <= self.newest and first < (known := self._in_ring()):
            found, last = self._log(first).set_of(first, known - 1)
            at = found.block_since(first, last, moment_ms)
            if at <= last:
                return at
            first = last + 1
        return first

    def _in_ring(self) -> int:
        """The first event whose slot is in the ring now; what is before it, the log has. It only grows."""
        return self.newest + 1 if self._views is None else first_slot(self._views)

    def _copied(self, first: int, last: int) -> NDArray[np.void] | None:
        """A copy of slots out of the ring; None where the producer may have written over them meanwhile."""
        assert self._views is not None
        i = first & (self._views.slot_count - 1)
        copy = self._views.slots[i : i + last - first + 1].view(np.uint8).copy().view(SLOT)  # numpy copies records field by field
        return copy if first >= self._in_ring() else None  # looked at after the copy: `first_slot` fences

    def _log(self, sequence: int) -> LogFiles:
        if self._files is None:
            raise PositionNotFound(f"event {sequence} of store {self.name!r} was acked by all and is gone")
        return self._files

    def _logged(self, first: int, last: int) -> SlotRun:
        found, last = self._log(first).set_of(first, min(last, first + _CHUNK - 1))
        damage = found.damage(first, last)
        if damage is None or damage.first > first:
            last = last if damage is None else damage.first - 1
            return SlotRun(first, last, slots_of(found.records(first, last)))
        return SlotRun(first, damage.last, None)

    def _logged_until(self, first: int, last: int) -> SlotRun:
        found, _ = self._log(last).set_of(last, last)
        first = max(first, found.first)
        start, lost = first, None
        while start <= last and (damage := found.damage(start, last)) is not None:
            start, lost = damage.last + 1, damage
        if lost is not None and start > last:
            return SlotRun(lost.first, last, None)
        return SlotRun(start, last, slots_of(found.records(start, last)))


# ---------------------------------------------------------------- ack points


def ack_point_until(slots: Slots, sequence: int) -> int | None:
    """Return the last ack point at or before `sequence`; None where there is none, or damage or raw bytes hide it."""
    found, _ = _last_where(slots, sequence, ends_unit, over_damage=False)
    return None if found is None else next((point for point, _ in ack_points(slots, found, found)), None)


def ends_unit(slots: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which events are ack points, or bytes that a program put as they are (no entry, no type): these are in no transaction."""
    ends: NDArray[np.bool_] = ((slots["flags"] & _ACK_POINT) != 0) | ((slots["entry"] == 0) & (slots["type"] == 0))
    return ends


def _is_ack_point(slots: NDArray[np.void]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (slots["flags"] & _ACK_POINT) != 0
    return found


def _last_where(slots: Slots, sequence: int, test: Test, *, over_damage: bool) -> tuple[int | None, int]:
    """Return the last event at or before `sequence` that passes `test`, and the first event of what was looked at.

    None where there is none. Damage is passed over, or ends the search: then the second number is the first event that is lost.
    """
    at, most = sequence, 64
    while at >= slots.oldest:
        run = slots.run_until(max(slots.oldest, at - most + 1), at)
        if run.slots is not None:
            passing = np.flatnonzero(test(run.slots))
            if len(passing):
                return run.first + int(passing[-1]), run.first
        elif not over_damage:
            return None, run.first
        at, most = run.first - 1, min(most * 4, _CHUNK)
    return None, slots.oldest


def _first_of_unit(slots: Slots, sequence: int) -> int:
    """The first event of the transaction that `sequence` is in, or of what is left of it."""
    point, start = _last_where(slots, sequence - 1, ends_unit, over_damage=False)
    return start if point is None else point + 1


# ---------------------------------------------------------------- time


def first_at_time(slots: Slots, moment_ms: int) -> int:
    """Return the first event of the first transaction that has an event at `moment_ms` (since 1970 UTC) or later; the next sequence where
    none has.

    Event times may jump back: a statement is older than the end of the transaction before it, and clocks are set. So no bisection finds
    it; but a block of the log says what the latest time in it is.
    """
    at = slots.oldest
    lost: SlotRun | None = None  # the damage just before
    while (at := slots.not_before(at, moment_ms)) <= slots.newest:
        run = slots.run(at, min(slots.newest, at + _CHUNK - 1))
        before = lost.first if lost is not None and lost.last + 1 == run.first else None
        if run.slots is None:
            lost = SlotRun(run.first if before is None else before, run.last, None)
        else:
            later = np.flatnonzero(run.slots["time"] >= moment_ms)
            if len(later):
                return before if not later[0] and before is not None else _first_of_unit(slots, run.first + int(later[0]))
        at = run.last + 1
    return slots.newest + 1 if lost is None or lost.last < slots.newest else lost.first


# ---------------------------------------------------------------- position


def after_position(slots: Slots, file_number: int, offset: int) -> int | None:
    """Return the first event after a place in the binlog; the next sequence where that is the last event, None where all events are after
    it, so that there may have been more, and where there are none.

    Rows of a snapshot that stand at that very place come after it.
    """

    def later(sequence: int) -> bool:
        while sequence >= slots.oldest:
            run = slots.run_until(sequence, sequence)
            if run.slots is not None:
                slot = run.slots[0]
                here = (int(slot["file"]), int(slot["offset"]))
                return here > (file_number, offset) or (here == (file_number, offset) and int(slot["type"]) == _READ)
            sequence = run.first - 1
        return False

    first = slots.oldest + bisect_left(range(slots.oldest, slots.newest + 1), True, key=later)
    if first == slots.oldest:
        return None
    before = slots.run_until(first - 1, first - 1)
    return first if before.slots is not None else before.first


# ---------------------------------------------------------------- GTID sets


def after_gtids(slots: Slots, place: Position, place_at: Callable[[int], Position | None]) -> int:
    """Return what follows the transaction that ends with the GTID set, or the sources, of `place`; the next sequence where that is the last
    event. `place_at` reads that of an event, None where it has none.

    Rows of a snapshot that stand there come after it. Raises `PositionNotFound` where no transaction that is kept ends there.
    """
    try:
        wanted = gtid_sets.executed(place)
    except ValueError:
        wanted = {}
    if not wanted and not place.sources:
        raise _no_transaction(slots, place)
    known: dict[int, Position | None] = {}

    def at_point(point: int) -> Position | None:
        if point not in known:
            known[point] = place_at(point)
        return known[point]

    def at(sequence: int) -> gtid_sets.Gtids:
        """The set of the last ack point at or before an event that has one."""
        for point, _ in islice(ack_points(slots, slots.oldest, sequence), _WITHOUT_GTIDS):
            if (here := at_point(point)) is not None and (here.gtids or here.sources):
                return gtid_sets.executed(here)
        return {}

    first, last = slots.oldest, slots.newest
    if wanted:  # else nothing compares them
        events = range(first, last + 1)
        first = slots.oldest + bisect_left(events, True, key=lambda each: gtid_sets.covers(at(each), wanted))
        behind = bisect_left(events, True, first - slots.oldest, key=lambda each: not gtid_sets.covers(wanted, at(each)))
        last = slots.oldest + behind - 1
    snapshot = False  # whether rows of a snapshot stand at the place: they come after it
    for point, type_ in ack_points(slots, first, last):
        here = at_point(point)
        if here is not None and (place.sources or here.sources):
            there = here.sources == place.sources  # of two in a row the sets may be the same
        else:
            there = here is not None and bool(here.gtids) and gtid_sets.parse(here.gtids) == wanted
        if (there and type_ != _READ) or (snapshot and not there):
            return point + 1
        snapshot = there
    if snapshot:
        return _first_of_unit(slots, first)
    raise _no_transaction(slots, place)


def _no_transaction(slots: Slots, place: Position) -> PositionNotFound:
    gtids = sources_text(place.sources) or place.gtids
    if not place.sources and not gtid_sets.well_formed(gtids):
        return PositionNotFound(
            f"{gtids!r} is not a GTID set: write UUID:1-4711 as MySQL does, or 0-1-4711 as MariaDB does, several with commas between"
        )
    return PositionNotFound(
        f"no transaction kept in store {slots.name!r} ends at GTID set {gtids!r}: give the position of one that was read from it, or a sequence"
    )


def ack_points(slots: Slots, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the ack points from `last` back to `first`, each with its type; those that are damaged are passed over."""
    at, most = last, 16
    while at >= first:
        run = slots.run_until(max(first, at - most + 1), at)
        if run.slots is not None:
            for i in np.flatnonzero(_is_ack_point(run.slots))[::-1]:
                yield run.first + int(i), int(run.slots["type"][i])
        at, most = run.first - 1, min(most * 4, _CHUNK)
