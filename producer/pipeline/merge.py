"""Which source's transaction comes next: the order of several sources in one store. No thread, no clock, no store.

By event time, in whole seconds as the binlog has it, and never behind what the same source gave before. The transaction with
the lowest time goes once no other source can have an older one: each of them has something newer waiting, has reached that
time already, or said that it has nothing (a heartbeat) after the transaction came. A source that says nothing holds the
others up for `wait` seconds at most. What is late, older than what was put, goes in the order in which it came, and so does
what has waited for `wait` seconds: the process that floods the store gets no more than its turn. A transaction that left a part behind
owns the store until its last part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from shmstore import SlotFlag
from shmstore.producer.transactions.buffer import Flush


class Piece(NamedTuple):
    """A transaction or a DDL, or a part of a large one."""

    payloads: memoryview
    slots: bytes
    size: int
    last: int  # bytes of the last event
    events: int
    second: int  # event time
    ends: bool  # nothing more of it comes
    arrived: float
    record: Callable[[int], None] | None = None  # of a change of filters: to be called with its sequence before it is put


class Lane:
    """What one source has brought and the store has not yet."""

    __slots__ = ("bytes", "drained", "ended", "events", "floor", "heard", "name", "pieces")

    def __init__(self, name: str) -> None:
        self.name = name
        self.pieces: deque[Piece] = deque()
        self.bytes = self.events = 0
        self.heard = float("-inf")  # when the source last said anything
        self.drained = float("-inf")  # when it last had nothing more
        self.floor = 0  # no older second comes from it in its own order
        self.ended = False

    def add(self, flush: Flush, now: float, today: int, record: Callable[[int], None] | None = None) -> None:
        """Take what one put of the source would take. `today`: seconds since 1970; a time after it is not believed. `record`: as a piece has it."""
        slots, view, raw, width = flush.slots, memoryview(flush.blob), flush.slots.tobytes(), flush.slots.itemsize
        sizes, times = slots["size"].tolist(), slots["time"].tolist()
        ends = np.cumsum(slots["size"], dtype=np.int64).tolist()
        points = (np.flatnonzero(slots["flags"] & int(SlotFlag.ACK_POINT)) + 1).tolist()
        whole = len(points)
        if not points or points[-1] < len(slots):
            points.append(len(slots))
        first, at = 0, 0
        for i, after in enumerate(points):
            end = ends[after - 1]
            if record is None:  # a change of filters has the present time, whatever the source's is
                self.floor = max(self.floor, min(times[after - 1] // 1000, today))
            self.pieces.append(
                Piece(
                    view[at:end],
                    raw[first * width : after * width],
                    end - at,
                    sizes[after - 1],
                    after - first,
                    self.floor,
                    i < whole,
                    now,
                    record,
                )
            )
            first, at = after, end
        self.bytes += at
        self.events += first

    def take(self) -> Piece:
        """Remove and return the oldest piece."""
        piece = self.pieces.popleft()
        self.bytes -= piece.size
        self.events -= piece.events
        return piece


class SourceMerge:
    """Chooses among `lanes`. `wait`: seconds for which one may hold the others up."""

    def __init__(self, lanes: Sequence[Lane], wait: float, owner: Lane | None = None) -> None:
        self._lanes, self._wait = lanes, wait
        self.owner = owner  # the lane whose transaction stands half in the store
        self._reached = 0  # the newest second that was chosen

    def next(self, now: float) -> Lane | None:
        """Return the lane whose oldest piece goes now; None while that is not known or nothing is there."""
        if self.owner is not None:
            return self.owner if self.owner.pieces else None
        due: Lane | None = None  # the piece that came first, of those that are late or have waited
        first: Lane | None = None
        for lane in self._lanes:
            if not lane.pieces:
                continue
            head = lane.pieces[0]
            is_due = head.second < self._reached or now - head.arrived >= self._wait
            if is_due and (due is None or head.arrived < due.pieces[0].arrived):
                due = lane
            if head.second >= self._reached and (first is None or _order(head) < _order(first.pieces[0])):
                first = lane
        if first is None or (due is not None and due.pieces[0].arrived <= first.pieces[0].arrived):
            return due
        return first if self._may_go(first, now) else due

    def _may_go(self, lane: Lane, now: float) -> bool:
        head = lane.pieces[0]
        return all(
            other is lane
            or other.pieces
            or other.ended
            or other.floor >= head.second
            or other.drained >= head.arrived
            or now - other.heard >= self._wait
            for other in self._lanes
        )

    def took(self, lane: Lane, piece: Piece) -> None:
        """`piece` was taken from `lane`."""
        self._reached = max(self._reached, piece.second)
        self.owner = None if piece.ends else lane

    def until(self, now: float) -> float:
        """Return the seconds after which `next` may answer otherwise though nothing came."""
        moments = [lane.pieces[0].arrived if lane.pieces else lane.heard for lane in self._lanes]
        return min((left for moment in moments if (left := moment + self._wait - now) > 0), default=float("inf"))


def _order(piece: Piece) -> tuple[int, float]:
    return piece.second, piece.arrived
