"""Where a reader of one store is in another store of the same source: one that was made again, or one of another host.

Plan. GTIDs decide where the reader's place and the store's events have them, in whatever order the other store has the transactions, and
whatever the files of its server are called. A store's set of executed transactions only grows, so what the reader has read of it, and what
it needs, begins and ends at transactions that are found by bisection. Where the sets do not show that nothing between is missing, or there
are none, file and offset decide, of one server. What carries neither, raw payloads, was never read.

A producer of a store that was made again begins where its slowest reader was, so the others meet again what they had acked: `ReplayFilter`
leaves that out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from shmstore.encoding import codec
from shmstore.errors import PositionNotFound, StoreCorrupt
from shmstore.event import EventType, Position
from shmstore.gtids import Gtids, covers, executed, joined, parse, single
from shmstore.memory.layout import SlotFlag
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import PUT, oldest_kept
from shmstore.sources import place_text
from shmstore.store import lookup
from shmstore.store.batch import Batch

_single = lru_cache(maxsize=64)(single)
_LOOK = 64  # ack points in a row without GTIDs, before they count as older than any


class ReaderPlace:
    """What a reader has read: everything up to `position`, and `ahead`, transactions that it has read besides.

    `inside`: the GTID of a transaction that it has read up to file and offset of `position`. `next_`: of a reader that has read nothing, the
    GTID of the transaction that it begins with. `files`: whether the other store was read from the same server's files.
    """

    def __init__(self, position: Position, *, ahead: str = "", inside: str = "", next_: str = "", files: bool = True) -> None:
        self.position, self.inside = position, inside
        self.gtids = joined(executed(position), parse(ahead))
        self._next, self._files = single(next_), files
        self._says = bool(self.gtids or self._next or position.sources)

    def __repr__(self) -> str:
        return place_text(self.position)

    def has(self, transaction: str, position: Position) -> bool | None:
        """Whether it has read an event of `transaction` at `position`; None where that transaction has no GTID."""
        alone = _single(transaction)
        if alone is None:
            return None
        return covers(self.gtids, alone) or (transaction == self.inside and position.order <= self.position.order)

    def is_comparable(self, segment: Segment) -> bool:
        """Whether GTIDs say where it is in a store."""
        return self._says and _point(segment, segment.words[PUT]) is not None

    def first_new(self, segment: Segment) -> int:
        """Return a sequence before which the store has nothing new for the reader, as late as is known now. Raises `PositionNotFound` where
        events that are new may be gone."""
        oldest, newest = oldest_kept(segment.views), segment.words[PUT]
        before = _point(segment, newest) if self._says else None
        if before is None:
            return lookup.find(segment, self.position)
        if self._needs(before[1]):
            point = _first(segment, self._needs)
            before = _point(segment, point - 1)
            if before is None:
                self._require_whole(segment, point)
        return oldest if before is None else max(before[0] + 1, oldest)

    def is_reached(self, segment: Segment) -> bool:
        """Whether the store has all that was read, or the transaction to begin with."""
        end = _point(segment, segment.words[PUT])
        return end is not None and covers(end[1], self.gtids or self._next or {})

    def reached(self, segment: Segment) -> int | None:
        """Return the first event by which the store has everything that the reader has read; None while it has not."""
        ends = [_reaches(segment, self.gtids)]
        own = single(self.inside)
        if own is not None:
            ends.append(self._reaches_inside(segment, own))
        return None if None in ends else max(end for end in ends if end is not None)

    def _needs(self, there: Gtids) -> bool:
        """Whether a transaction that is new is in `there`."""
        return covers(there, self._next) if self._next and not self.gtids else not covers(self.gtids, there)

    def _require_whole(self, segment: Segment, point: int) -> None:
        """The transaction that ends at `point`, the first with GTIDs that is kept, is new: raise where another may have been before it."""
        event = lookup.event_at(segment, point)
        if event is None:
            raise lookup.too_old(segment, self.position)
        alone, there = single(event.transaction), executed(event.position)
        if alone is not None and (
            alone == self._next if self._next and not self.gtids else covers(joined(self.gtids, alone), there)
        ):
            return
        if not self._files or not self.position.file or self.position.sources:
            raise lookup.too_old(segment, self.position)
        if alone is None or oldest_kept(segment.views) > segment.views.first:
            lookup.find(segment, self.position)  # for what it raises: of another server's files it can say no more
        elif not lookup.begins_at(segment, self.position):
            raise lookup.too_old(segment, self.position)

    def _reaches_inside(self, segment: Segment, own: Gtids) -> int | None:
        """Where the store has as much of the transaction `inside` as the reader has read."""
        newest = segment.words[PUT]
        end = _reaches(segment, own)
        before = _point(segment, (newest + 1 if end is None else end) - 1)
        first = oldest_kept(segment.views) if before is None else before[0] + 1
        for sequence in range(first, newest + 1 if end is None else end):
            payload = lookup.payload_of(segment, sequence)
            if payload is None:
                continue
            header = codec.stored_head(payload)[0]
            if header.cut is not None and header.transaction == self.inside and header.position.order >= self.position.order:
                return sequence
        return end


def _reaches(segment: Segment, wanted: Gtids) -> int | None:
    end = _point(segment, segment.words[PUT])
    return None if end is None or not covers(end[1], wanted) else _first(segment, lambda there: covers(there, wanted))


def _first(segment: Segment, test: Callable[[Gtids], bool]) -> int:
    """The first ack point whose set passes `test`, which the newest does, and all after the first."""
    oldest = oldest_kept(segment.views)

    def passes(sequence: int) -> bool:
        point = _point(segment, sequence)
        return point is not None and test(point[1])

    return oldest + bisect_left(range(oldest, segment.words[PUT]), True, key=passes)


def _point(segment: Segment, sequence: int) -> tuple[int, Gtids] | None:
    """The last ack point at or before `sequence` that says what was executed, and that. A snapshot's do not count: its rows are at the place
    that the stream had reached, and new to every reader."""
    for _ in range(_LOOK):
        point = lookup.last_ack_point_until(segment, sequence) if sequence >= 0 else None
        if point is None:
            return None
        try:
            position = None if lookup.is_read(segment, point) else lookup.position_at(segment, point)
            if position is not None and (position.gtids or position.sources):
                return point, executed(position)
        except (PositionNotFound, StoreCorrupt):
            pass  # gone meanwhile; or bytes of another user of the ring
        sequence = point - 1
    return None


class ReplayFilter:
    """What a subscription had acked in an earlier life of its store, up to `position`; and what of a new life's events that is."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.over = False  #: True once nothing more can come that was passed
        self.runs: dict[int, int] = {}  #: what was left out behind events that are not acked yet: sequence before -> last
        self.place = ReaderPlace(position)

    def split(self, batch: Batch) -> tuple[int, int]:
        """Return how many events at the start of `batch` were passed, and how many after them, in a row, were not."""
        slots, lead, fresh = batch.slots, 0, 0
        for slot, payload in zip(slots, batch.payloads(), strict=True):
            if self.over:
                return lead, len(batch) - lead
            if self._has(slot, payload):
                if fresh:
                    break
                lead += 1
            else:
                fresh += 1
        return lead, fresh

    def behind(self, sequence: int, get: int) -> int:
        """Return where an ack of `sequence` leads: behind what was left out after it, as far as that was got."""
        while (last := self.runs.get(sequence, -1)) >= 0 and last <= get:
            del self.runs[sequence]
            sequence = last
        return sequence

    def _has(self, slot: np.void, payload: memoryview) -> bool:
        if int(slot["type"]) == int(EventType.READ):
            return False  # a snapshot's: put where the stream has reached what every reader had acked
        transaction = ""
        if self.place.gtids:
            header = _header(payload)
            transaction = header.transaction if header else ""
            passed = self.place.has(transaction, self.position)
            if header is not None and passed is not None:
                if int(slot["flags"]) & int(SlotFlag.ACK_POINT):
                    self.over = covers(executed(header.position), self.place.gtids)
                return passed
        place = int(slot["file"]), int(slot["offset"])
        if place == (0, 0):
            return False
        after = place > self.position.order[:2]
        if after and (transaction or not self.place.gtids):
            self.over = True
        return not after


def _header(payload: memoryview) -> codec.Header | None:
    """The header of an event; None for raw payloads of other users of the ring."""
    try:
        return codec.decode_stored(payload)[0]
    except StoreCorrupt:
        return None
