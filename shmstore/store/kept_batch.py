"""Batches of a store with a log: out of the ring while that has the events, else out of the log.

Plan. The producer may overwrite in the ring what the log has, whoever still reads it. So nothing that is given here is a view of the
ring: it is a copy, made, and then found to be whole, because the producer says in `floor` up to where it may overwrite before it
does. What was overwritten meanwhile the log has, as `floor` never passes what is in there. A batch stays valid for as long as it is
held, and is looked up only when its bytes are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shmstore.errors import PositionNotFound, StoreCorrupt
from shmstore.log.files import Content, LogFiles
from shmstore.memory.layout import SLOT, SlotFlag, StoreFlag
from shmstore.memory.ordering import fence
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import FLOOR, LOG_FIRST, LOGGED, Cursor, cursor_at, first_slot
from shmstore.store.batch import Batch

OVERSIZED = int(SlotFlag.OVERSIZED)


class KeptBatch(Batch):
    """A batch of a store with a log. Its payloads are its own, or a mapped file's: valid as long as it is held."""

    __slots__ = ("_found",)

    _found: Content

    def _content(self) -> Content:
        try:
            return self._found
        except AttributeError:
            self._found = read(self._segment, self.first, self.last)
            return self._found

    def _whole(self) -> memoryview:
        content = self._content()
        self._ends = content.ends  # what the compiled look at the payloads goes by
        return content.raw

    @property
    def slots(self) -> NDArray[np.void]:
        """The slot records, dtype `layout.SLOT`, shape (len(batch),)."""
        return self._content().slots

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where each payload ends in `raw`, shape (len(batch),)."""
        if getattr(self, "_ends", None) is not None:
            return np.frombuffer(self._ends, np.int64)  # copied with the payloads, in compiled code
        return self._content().ends

    @property
    def rows(self) -> int:
        """Rows in the batch."""
        return self._content().rows

    @property
    def oversized(self) -> bool:
        """True where the batch is one event larger than the arena."""
        return self.first == self.last and bool(self._flags[0] & OVERSIZED)

    @property
    def _flags(self) -> NDArray[np.uint8]:
        flags: NDArray[np.uint8] = self._content().slots["flags"]
        return flags

    def copy(self) -> Batch:
        """The same batch, its bytes read now."""
        self._content()
        return self


def batch_of(segment: Segment, first: int, last: int, generation: int = -1) -> Batch:
    """Return events `first` to `last` of a store, with a log or without."""
    return (KeptBatch if segment.flags & StoreFlag.LOG else Batch)(segment, first, last, generation)


def read(segment: Segment, first: int, last: int) -> Content:
    """Return events `first` to `last` of a store with a log. Raises `PositionNotFound` where the log keeps them no longer, `StoreCorrupt`."""
    if last < first:
        return Content(first, last, memoryview(b""), np.empty(0, np.int64), np.empty(0, SLOT), 0)
    parts = list(_parts(segment, first, last))
    return parts[0] if len(parts) == 1 else _joined(parts)


def _parts(segment: Segment, first: int, last: int) -> Iterator[Content]:
    """Out of the ring what is there whole; out of the log what is not, and may be followed by what only the ring has yet."""
    while first <= last:
        part = _copied(segment, first, last) or segment.log.read(first, min(last, max(first, segment.words[LOGGED])))
        yield part
        first = part.last + 1


def _copied(segment: Segment, first: int, last: int) -> Content | None:
    """Events out of the ring; None where it has them no longer."""
    if segment.words[FLOOR] >= first:
        return None
    try:
        copy = Batch(segment, first, last, -1).copy()
        found = Content(first, last, copy.raw, copy.ends, copy.slots, copy.rows)
    except StoreCorrupt:
        if segment.words[FLOOR] < first and segment.words[LOGGED] < last:  # an oversized event's segment goes when the log has it
            raise
        return None
    fence()  # the copy, before the look at how far the producer may have overwritten
    return found if segment.words[FLOOR] < first else None


def _joined(parts: list[Content]) -> Content:
    sizes = np.cumsum([0, *(len(part.raw) for part in parts[:-1])])
    return Content(
        parts[0].first,
        parts[-1].last,
        memoryview(b"".join(part.raw for part in parts)),
        np.concatenate([part.ends + size for part, size in zip(parts, sizes, strict=True)]),
        np.concatenate([part.slots for part in parts]),
        sum(part.rows for part in parts),
    )


def slot_of(segment: Segment, sequence: int) -> np.void:
    """The slot of an event of a store: of the ring, or of the log. Raises `PositionNotFound` where it is kept no longer."""
    views = segment.views
    slot: np.void = views.slots[sequence & (views.slot_count - 1)].copy()
    if not segment.flags & StoreFlag.LOG or sequence >= first_slot(views):
        return slot
    record: np.void = segment.log.record_at(sequence)["slot"]
    return record


def cursor_of(segment: Segment, sequence: int) -> Cursor:
    """Return the cursor at `sequence` of a store, with a log or without."""
    if not segment.flags & StoreFlag.LOG:
        return cursor_at(segment.views, sequence)
    if sequence >= first_slot(segment.views):
        found = cursor_at(segment.views, sequence)
        if sequence >= first_slot(segment.views):
            return found
    return totals(segment.log, max(sequence, segment.words[LOG_FIRST] - 1))  # a reader that was let go stands before the oldest


def totals(files: LogFiles, sequence: int) -> Cursor:
    """Return the cursor at `sequence` from the log, which has that event or the next one. Raises `PositionNotFound`."""
    try:
        record = files.record_at(sequence)
    except PositionNotFound:
        found, _ = files.set_of(sequence + 1)
        if found.first != sequence + 1:
            raise
        return Cursor(sequence, found.end, found.rows, int(files.record_at(sequence + 1)["slot"]["time"]))
    return Cursor(sequence, int(record["end"]), int(record["rows"]), int(record["slot"]["time"]))
