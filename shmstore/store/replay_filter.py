"""Passed: what a subscription had acked in an earlier life of its store, and what of a new life's events that is.

Plan. A producer of a rebuilt store begins where the slowest checkpoint stands, so a faster subscription meets events again that
it acked before. Where the checkpoint has GTIDs and the events have, GTIDs decide, in any order: the source may be another server,
whose files have other numbers. Else file and offset do. What carries neither, raw payloads, was never passed.
"""

from __future__ import annotations

import numpy as np

from shmstore.encoding import codec
from shmstore.errors import StoreCorrupt
from shmstore.event import EventType, Position
from shmstore.gtids import Gtids, covers, executed, joined, single
from shmstore.memory.layout import SlotFlag
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import PUT, slowest_ack
from shmstore.sources import place_text
from shmstore.store import lookup
from shmstore.store.batch import Batch


class ReplayFilter:
    """Everything up to `position`, which was acked."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.over = False  #: True once nothing more can come that was passed
        self.runs: dict[int, int] = {}  #: what was left out behind events that are not acked yet: sequence before -> last
        self._gtids = executed(position)

    def __repr__(self) -> str:
        return place_text(self.position)

    def first_after(self, segment: Segment) -> int:
        """Return a sequence before which nothing in the store is new, as late as is known now. Raises `PositionNotFound`."""
        oldest, put = slowest_ack(segment.views) + 1, segment.words[PUT]
        first: tuple[str, Gtids] | None = None
        for sequence in lookup.ack_points(segment, max(oldest - 1, segment.views.first), put) if self._gtids else ():
            known = lookup.readable(segment, sequence) and not lookup.is_read(segment, sequence)
            header = _header(Batch(segment, sequence, sequence, -1).raw) if known else None
            if header and (gtids := executed(header.position)):
                if covers(self._gtids, gtids):
                    return max(sequence + 1, oldest)
                first = header.transaction, gtids
        alone = single(first[0]) if first else None
        if first and alone:
            if oldest > segment.views.first:
                lookup.find(segment, self.position)  # for what it raises: of another server's files it can say no more
            elif not covers(joined(self._gtids, alone), first[1]) and not lookup.begins_at(segment, self.position):
                raise lookup.too_old(segment, self.position)
            return oldest
        return lookup.find(segment, self.position)

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
        transaction = ""
        if int(slot["type"]) == int(EventType.READ):
            return False  # a snapshot's: put where the stream has reached what every reader had acked
        if self._gtids:
            header = _header(payload)
            transaction = header.transaction if header else ""
            alone = single(transaction)
            if alone is not None:
                if int(slot["flags"]) & int(SlotFlag.ACK_POINT):
                    self.over = header is not None and covers(executed(header.position), self._gtids)
                return covers(self._gtids, alone)
        place = int(slot["file"]), int(slot["offset"])
        if place == (0, 0):
            return False
        after = place > self.position.order[:2]
        if after and (transaction or not self._gtids):
            self.over = True
        return not after


def _header(payload: memoryview) -> codec.Header | None:
    """The header of an event; None for raw payloads of other users of the ring."""
    try:
        return codec.decode_stored(payload)[0]
    except StoreCorrupt:
        return None
