"""What a run of events holds: out of the ring while that has them, else out of the log.

Plan. In a store with a log the producer may overwrite in the ring what the log has, no matter who still reads it. So nothing that is given here
is a view of that ring: it is a copy, made, and then found to be whole, because the producer says in `floor` up to where it may overwrite
before it does. What was overwritten meanwhile the log has, as `floor` never passes what is in there. Without a log nothing is overwritten
before every subscription has acked it, so there the payloads are views of the ring.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shmstore.encoding.codec import decode_schema, stored_head
from shmstore.errors import PositionNotFound, StoreCorrupt, refused
from shmstore.event import TableSchema
from shmstore.log.files import Content, LogFiles, log_of
from shmstore.memory.layout import SLOT, SlotFlag
from shmstore.memory.ordering import fence
from shmstore.memory.segment import Segment
from shmstore.ring import overflow
from shmstore.ring.cursors import FLOOR, LOG, LOG_FIRST, LOGGED, PUT, Cursor, cursor_at, first_slot, oldest_kept

RESOURCE_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)  # they say nothing about the event
LOOK: Final = 1 << 8  # events looked at at once
OVERSIZED: Final = int(SlotFlag.OVERSIZED)  # an IntFlag costs microseconds against a numpy value


def read(segment: Segment, first: int, last: int) -> Content:
    """Return events `first` to `last` of a store. Raises `PositionNotFound` where its log keeps them no longer, `StoreCorrupt`."""
    if last < first:
        return Content(first, last, memoryview(b""), np.empty(0, np.int64), np.empty(0, SLOT), 0)
    if not segment.views.flags & LOG:  # an int: an IntFlag costs microseconds
        return in_ring(segment, first, last)
    parts = list(_parts(segment, first, last))
    return parts[0] if len(parts) == 1 else _joined(parts)


def in_ring(segment: Segment, first: int, last: int) -> Content:
    """Return events that the ring has; their payloads and slots are views of it. Raises `StoreCorrupt`."""
    views, mask, n = segment.views, segment.views.slot_count - 1, last - first + 1
    i, raw = first & mask, payloads_in_ring(segment, first, last)
    ends = np.array([len(raw)], np.int64) if n == 1 else views.ends_array[i : i + n] - views.ends[(first - 1) & mask]
    rows = views.rows[last & mask] - views.rows[(first - 1) & mask]
    return Content(first, last, raw, ends, views.slots[i : i + n], rows, own=False)


def payloads_in_ring(segment: Segment, first: int, last: int) -> memoryview:
    """Return the payloads of events that the ring has, a view of it. Raises `StoreCorrupt`."""
    views, mask = segment.views, segment.views.slot_count - 1
    if first == last and views.slots["flags"][first & mask] & OVERSIZED:
        return _oversized(segment, first, int(views.slots["size"][first & mask]))
    start = views.ends[(first - 1) & mask]
    span = views.ends[last & mask] - start
    if not 0 <= span <= views.arena_size or last - first >= views.slot_count:
        raise StoreCorrupt(
            f"events {first} to {last} claim {span} bytes, the arena has {views.arena_size}: `shmstore check` shows more"
        )
    at = start % views.arena_size
    return views.arena[at : at + span]


def own(content: Content) -> Content:
    """Return a copy of what `in_ring` returned, in memory of its own."""
    oversized = content.first == content.last and content.slots["flags"][0] & OVERSIZED
    raw = content.raw if oversized else memoryview(bytes(content.raw))  # a segment of its own is never written over
    return Content(content.first, content.last, raw, content.ends, copied(content.slots), content.rows)


def copied(slots: NDArray[np.void]) -> NDArray[np.void]:
    """Return a copy of slots: numpy copies records field by field."""
    return slots.view(np.uint8).copy().view(SLOT)


def _oversized(segment: Segment, sequence: int, size: int) -> memoryview:
    """The bytes of an event that is larger than the arena, out of its own segment."""
    path = f"{segment.overflow_prefix}.{sequence}"
    try:
        mapped = overflow.read(segment, sequence)
    except OSError as error:
        if error.errno in RESOURCE_ERRNOS:
            raise refused(f"event {sequence} is in {path}, which cannot be read now", error, "see who may read it") from error
        raise StoreCorrupt(
            f"event {sequence} is in {path}, which cannot be read: {error}; `shmstore check` shows more"
        ) from error
    if len(mapped) != size:
        raise StoreCorrupt(f"event {sequence} has {size} bytes, {path} has {len(mapped)}: `shmstore check` shows more")
    return mapped


def _parts(segment: Segment, first: int, last: int) -> Iterator[Content]:
    """Out of the ring what exists whole; out of the log what is not, and may be followed by what only the ring has yet."""
    while first <= last:
        part = copy_of_ring(segment, first, last)
        if part is None:
            part = log_of(segment).read(first, min(last, max(first, segment.words[LOGGED])))
        yield part
        first = part.last + 1


def copy_of_ring(segment: Segment, first: int, last: int) -> Content | None:
    """Return a copy of events of a store with a log out of its ring; None where the ring has them no longer, or wrote over one meanwhile."""
    if segment.words[FLOOR] >= first:
        return None
    try:
        found = own(in_ring(segment, first, last))
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


def newest_schema(segment: Segment, table: str) -> TableSchema | None:
    """Return the columns of the newest rows of `table` (``database.table``) that the store keeps; None where it has none. It looks at all events."""
    oldest, last = oldest_kept(segment.views), segment.words[PUT]
    while last >= oldest:
        first = max(oldest, last - LOOK + 1)
        try:
            content = own(read(segment, first, last))
            starts = [0, *content.ends.tolist()]
            schemas = [stored_head(content.raw[start:end])[1] for start, end in pairwise(starts)]
        except (PositionNotFound, StoreCorrupt):  # older ones are gone by now, or damaged
            return None
        for schema in map(decode_schema, dict.fromkeys(bytes(one) for one in reversed(schemas) if one is not None)):
            if f"{schema.database}.{schema.table}" == table:
                return schema
        last = first - 1
    return None


# ---------------------------------------------------------------- of one event, or up to it


def slot_of(segment: Segment, sequence: int) -> np.void:
    """The slot of an event of a store: of the ring, or of the log. Raises `PositionNotFound` where it is kept no longer."""
    views = segment.views
    slot: np.void = views.slots[sequence & (views.slot_count - 1)].copy()
    if sequence >= first_slot(views):
        return slot
    if not views.flags & LOG:
        raise PositionNotFound(f"event {sequence} of store {segment.name!r} was acked by all and is gone")
    record: np.void = log_of(segment).record_at(sequence)["slot"]
    return record


def cursor_of(segment: Segment, sequence: int) -> Cursor:
    """Return the cursor at `sequence` of a store, with a log or without."""
    if sequence >= first_slot(segment.views):
        found = cursor_at(segment.views, sequence)
        if sequence >= first_slot(segment.views):
            return found
    if not segment.views.flags & LOG:
        raise PositionNotFound(f"event {sequence} of store {segment.name!r} was acked by all and is gone")
    return totals(
        log_of(segment), max(sequence, segment.words[LOG_FIRST] - 1)
    )  # a reader that was let go stands before the oldest


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
