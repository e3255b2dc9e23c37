"""Read and search without moving any cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from shmstore.clock import calendar_ms
from shmstore.encoding import codec
from shmstore.errors import PositionNotFound, StoreCorrupt
from shmstore.event import Event, EventType, Position
from shmstore.log import search
from shmstore.log.files import log_of
from shmstore.memory.layout import SLOT, SlotFlag, StoreFlag, header_word
from shmstore.memory.ordering import fence
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import FLOOR, PUT, REACH, first_slot, oldest_kept, slowest_ack
from shmstore.sources import place_text
from shmstore.start_position import Start, parse_start
from shmstore.store.batch import Batch
from shmstore.store.content import copied, in_ring, own, slot_of

CLOCKS_MS: Final = 60_000  # that the server's clock may be ahead of this host's
Found = TypeVar("Found")


def has_log(segment: Segment) -> bool:
    """True where the store keeps its events in a log."""
    return bool(segment.flags & StoreFlag.LOG)


def peek(segment: Segment, first: int, limit_events: int | None, limit_bytes: int | None) -> Batch:
    """Return a copy of the events from `first` on; as `EventStore.peek`."""
    views, newest, oldest = segment.views, segment.words[PUT], oldest_kept(segment.views)
    if not oldest <= first <= newest + 1:
        raise absent(segment, first, oldest, newest)
    last = newest if limit_events is None else min(newest, first + limit_events - 1)
    if has_log(segment):
        if limit_events is None and limit_bytes is None:
            limit_bytes = views.limit  # the log may be larger than the memory of any process
        if limit_bytes is not None and last >= first:
            last = _fitting(segment, first, last, limit_bytes)
        return Batch(segment, first, last, -1).copy()
    if limit_bytes is not None and last >= first:
        last = _fitting_in_ring(segment, first, last, limit_bytes)
    batch = Batch(segment, first, last, -1)
    if batch:
        gone = PositionNotFound(
            f"sequence {first} was acked by all while it was read: see which events store {segment.name!r} keeps, and continue there"
        )
        try:
            batch = Batch._holding(segment, own(in_ring(segment, first, last)), -1)
        except StoreCorrupt:
            if slowest_ack(views) >= first:
                raise gone from None  # an oversized event's segment goes with its ack
            raise
        fence()  # the copy, before the look whether the producer may have written over it
        if segment.words[FLOOR] >= first:
            raise gone
        if segment.flags & StoreFlag.CHECKSUM:
            batch.verify()
    return batch


def _fitting_in_ring(segment: Segment, first: int, last: int, limit_bytes: int) -> int:
    """The last event up to `last` with which those from `first` on have `limit_bytes`, and `first` at least."""
    views = segment.views
    mask = views.slot_count - 1
    ends = views.ends_array[first & mask : (first & mask) + last - first + 1]
    return first - 1 + max(1, int(np.searchsorted(ends, views.ends[(first - 1) & mask] + limit_bytes, side="right")))


def _fitting(segment: Segment, first: int, last: int, limit_bytes: int) -> int:
    """As `_fitting_in_ring`, of a store with a log; perhaps fewer, where the log has them."""
    if segment.words[FLOOR] < first:
        found = _fitting_in_ring(segment, first, last, limit_bytes)
        if first > first_slot(segment.views):
            return found
    found = log_of(segment).extent(first, last - first + 1, limit_bytes, ddl_alone=False)
    return int(found)


def slots_between(segment: Segment, first: int, last: int) -> NDArray[np.void]:
    """Return a copy of the slots of events `first` to `last`, without a look at their payloads; as `StoreView.slots`."""
    views, newest, oldest = segment.views, segment.words[PUT], oldest_kept(segment.views)
    if not oldest <= first <= newest + 1 or last > newest:
        raise absent(segment, first if first < oldest else last, oldest, newest)
    parts = [np.empty(0, SLOT)]
    while first <= last:
        if segment.words[FLOOR] < first:
            i = first & (views.slot_count - 1)
            copy = copied(views.slots[i : i + last - first + 1])
            fence()  # the copy, before the look whether the producer may have written over it
            if (first >= first_slot(views)) if has_log(segment) else segment.words[FLOOR] < first:
                parts.append(copy)
                break
        if not has_log(segment):
            raise absent(segment, first, oldest_kept(views), segment.words[PUT])
        found = log_of(segment).read(first, min(last, segment.words[FLOOR]))
        parts.append(found.slots)
        first = found.last + 1
    return parts[-1] if len(parts) < 3 else np.concatenate(parts)


def absent(segment: Segment, sequence: int, oldest: int, newest: int) -> PositionNotFound:
    """The error that says so, and what exists instead."""
    held = f"it keeps {oldest} to {newest}" if oldest <= newest else f"it is empty, and its next event will be {newest + 1}"
    return PositionNotFound(f"sequence {sequence} is not in store {segment.name!r}: {held}")


def first_wanted(segment: Segment, start: Start) -> int:
    """Return the sequence of the first event from `start` on, one of the forms of `shmstore.start_position`. Raises `PositionNotFound`."""
    oldest, newest = oldest_kept(segment.views), segment.words[PUT]
    start = parse_start(start) if isinstance(start, str) else start
    if start == "earliest":
        return oldest
    if start == "latest":
        return newest + 1
    if isinstance(start, Position):
        return find(segment, start)
    if isinstance(start, datetime):
        return find_time(segment, start)
    if not isinstance(start, int):
        raise ValueError(f"start is {start!r}: give 'earliest', 'latest', a sequence, a Position, a datetime, or the text of one")
    if not oldest <= start <= newest + 1:
        raise absent(segment, start, oldest, newest)
    return start


def first_behind(segment: Segment, start: Start, ack: int, name: str) -> int:
    """`first_wanted` for the subscription `name` that has acked up to `ack`. Raises `PositionNotFound` where that was acked, and there is
    no log that has it still."""
    start = parse_start(start) if isinstance(start, str) else start
    if isinstance(start, Position) and _stands_at(segment, ack, start):
        return ack + 1
    if has_log(segment):
        return first_wanted(segment, start)
    sequence = start if isinstance(start, int) and start <= ack else first_wanted(segment, start)
    if sequence > ack or isinstance(start, str | datetime):
        return max(sequence, ack + 1)
    raise PositionNotFound(
        f"sequence {sequence} was acked by subscription {name!r}, up to {ack}: continue at {ack + 1}, or forget the subscription with "
        f"`shmstore unsubscribe {segment.name} {name}` and begin a new one"
    )


def _stands_at(segment: Segment, sequence: int, position: Position) -> bool:
    """True where an event is at `position`: also one of a snapshot's, of which many stand behind the transaction that ends there."""
    if position.file and not position.of_group:
        try:
            slot = slot_of(segment, sequence)
        except PositionNotFound:
            return False
        return (int(slot["file"]), int(slot["offset"])) == position.order[:2]
    here = position_if_readable(segment, sequence)
    return here is not None and (here.gtids, here.sources) == (position.gtids, position.sources)


def find_time(segment: Segment, moment: datetime) -> int:
    """Return the sequence of the first event of the first transaction that has an event at `moment` or later; UTC without a zone.

    Raises `PositionNotFound` for a moment that has not come yet.
    """
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    wanted = round(moment.timestamp() * 1000)
    found = _searched(segment, lambda slots: search.first_at_time(slots, wanted))
    if found > segment.words[PUT] and wanted > calendar_ms() + CLOCKS_MS:
        raise PositionNotFound(
            f"{moment.isoformat()} is in the future: store {segment.name!r} has no event of that time; give an earlier time, or latest for "
            "what comes from now on"
        )
    return found


def _searched(segment: Segment, look: Callable[[search.Slots], Found], *, back: int = 0) -> Found:
    """Return what `look` finds in the slots of a store, from `back` events before the oldest on where the ring has these."""
    while True:
        oldest = _searched_from(segment, back)
        try:
            return look(_slots(segment, oldest, segment.words[PUT]))
        except PositionNotFound:
            if _searched_from(segment, back) == oldest:  # else retention removed it meanwhile, or the producer wrote over it
                raise


def _searched_from(segment: Segment, back: int) -> int:
    kept = oldest_kept(segment.views)
    return max(kept - back, _oldest_slot(segment, kept))


def _slots(segment: Segment, oldest: int, newest: int) -> search.Slots:
    return search.Slots(segment.name, segment.views, log_of(segment) if has_log(segment) else None, oldest, newest)


def _oldest_slot(segment: Segment, kept: int) -> int:
    """The first event whose slot is still known, though the event itself may be gone: they are kept from `kept` on."""
    views = segment.views
    return min(kept, max(views.first, first_slot(views)))


def find(segment: Segment, position: Position) -> int:
    """Return the sequence of the first event after `position`; newest + 1 where that is the last event.

    Raises `PositionNotFound` where events after it may have been in the store and are gone, or never came.
    """
    if position.of_group or (not position.file and position.gtids):
        return _searched(segment, lambda slots: search.after_gtids(slots, position, lambda point: _place_at(segment, point)))
    last = last_ack_point(segment)
    if last is not None and last.of_group:
        raise PositionNotFound(
            f"store {segment.name!r} holds several sources, so {position.file}:{position.offset} is not a place in it: give the position of a "
            "transaction's end that was read from it, with all its sources, or a sequence"
        )
    oldest = oldest_kept(segment.views)
    # One slot back: an event that is gone still says where it ended, and that is enough to know that nothing is missing.
    found = _searched(segment, lambda slots: search.after_position(slots, *position.order[:2]), back=1)
    if found is not None:
        return max(found, oldest)
    if oldest == segment.views.first and begins_at(segment, position):
        return oldest
    if oldest > segment.words[PUT] and not segment.read_text("start_file"):
        raise PositionNotFound(
            f"store {segment.name!r} is empty, so {position.file}:{position.offset} cannot be found in it: wait for the producer"
        )
    raise too_old(segment, position)


def _place_at(segment: Segment, sequence: int) -> Position | None:
    try:
        return position_at(segment, sequence)
    except StoreCorrupt:
        return None  # bytes that a program put as they are


def begins_at(segment: Segment, position: Position) -> bool:
    """True where the producer of the first event began to read at or before `position`, as it said itself."""
    start = start_position(segment)
    return start is not None and start.order <= position.order


def too_old(segment: Segment, position: Position) -> PositionNotFound:
    """The error that says so."""
    return PositionNotFound(
        f"{place_text(position)[:300]} is older than what store {segment.name!r} keeps: events after it are gone; "
        f"let the producer start from there in a new store, or take a snapshot (`shmstore snapshot {segment.name} --tables ...`)"
    )


def is_read(segment: Segment, sequence: int) -> bool:
    """True where the event belongs to a snapshot, whose rows stand at the place that the stream had reached: none was passed."""
    return bool(slot_of(segment, sequence)["type"] == int(EventType.READ))


def readable(segment: Segment, sequence: int) -> bool:
    """True where the payload of `sequence` is still in the arena, acked or not, or in the log."""
    views, put = segment.views, segment.words[PUT]
    if has_log(segment):
        return oldest_kept(views) <= sequence <= put
    mask = views.slot_count - 1
    oversized = views.slots["flags"][sequence & mask] & int(SlotFlag.OVERSIZED)
    behind = max(views.ends[put & mask], segment.words[REACH]) - views.ends[(sequence - 1) & mask]
    # Both slots that were read, its own and the one before, which says where it begins, must still be theirs.
    if not max(views.first, first_slot(views) + 1) <= sequence <= put:
        return False
    return sequence > slowest_ack(views) if oversized else behind <= views.arena_size


def payload_of(segment: Segment, sequence: int) -> memoryview | None:
    """A copy of one event's payload, acked or not; None where the store has it no longer. Raises `StoreCorrupt`."""
    if not readable(segment, sequence):
        return None
    try:
        if has_log(segment):
            return Batch(segment, sequence, sequence, -1).raw
        payload = own(in_ring(segment, sequence, sequence)).raw
    except (PositionNotFound, StoreCorrupt):
        if readable(segment, sequence):
            raise
        return None
    fence()  # the copy, before the look whether the producer may have written over it
    return payload if readable(segment, sequence) else None


def position_at(segment: Segment, sequence: int) -> Position | None:
    """Binlog position of one event; None where its payload is gone. Raises `StoreCorrupt` where it is no event."""
    payload = payload_of(segment, sequence)
    return None if payload is None else codec.stored_head(payload)[0].position


def event_at(segment: Segment, sequence: int) -> Event | None:
    """One event; None where its payload is gone. Raises `StoreCorrupt` where it is none."""
    payload = payload_of(segment, sequence)
    return None if payload is None else codec.decode(payload, sequence)


def open_transaction(segment: Segment) -> Iterator[memoryview | None]:
    """As `StoreView.open_transaction`."""
    newest, oldest = segment.words[PUT], oldest_kept(segment.views)
    point = last_ack_point_until(segment, newest)
    first = point + 1 if point is not None else oldest if has_log(segment) else _oldest_slot(segment, oldest)
    for sequence in range(first, newest + 1):
        try:
            yield payload_of(segment, sequence)
        except (PositionNotFound, StoreCorrupt):  # damaged: its readers hear of that
            yield None


def note_start(segment: Segment, start: Position) -> None:
    """Write down where the source of an empty store was opened."""
    segment.write_text("start_file", start.file)
    segment.words[header_word("start_offset")] = start.offset


def start_position(segment: Segment) -> Position | None:
    """Where the producer of the first event began to read; None where it did not say."""
    file = segment.read_text("start_file")
    return Position(file, segment.words[header_word("start_offset")]) if file else None


def last_ack_point(segment: Segment) -> Position | None:
    """Position of the newest transaction end or DDL, acked or not; None without one as far back as the slots reach, or the log.

    Where its payload is gone, its slot and the file name that the producer gave still say file and offset, without GTIDs.
    """
    sequence = last_ack_point_until(segment, segment.words[PUT])
    return None if sequence is None else position_at(segment, sequence) or _position_of_slot(segment, sequence)


def _position_of_slot(segment: Segment, sequence: int) -> Position | None:
    """What the slot of an event and the file name that the producer gave say of its position, without GTIDs: its payload is gone."""
    slot = slot_of(segment, sequence)
    base, dot, digits = (segment.read_text("source_file") or segment.read_text("start_file")).rpartition(".")
    return Position(f"{base}{dot}{int(slot['file']):0{len(digits)}d}", int(slot["offset"])) if dot else None


def note_oversized(segment: Segment, payload: bytes | memoryview) -> None:
    """Write down how far the source was read, if no process did, from an event whose payload goes with its ack."""
    if segment.read_text("source_file"):
        return
    with suppress(StoreCorrupt):  # raw bytes have no position
        position = codec.stored_head(payload)[0].position
        if position.file and not position.of_group:
            segment.write_text("source_file", position.file)
            segment.words[header_word("source_offset")] = position.offset


def last_ack_point_if_readable(segment: Segment) -> Position | None:
    """`last_ack_point`, and None where what exists is no event."""
    try:
        return last_ack_point(segment)
    except StoreCorrupt:
        return None


def position_if_readable(segment: Segment, sequence: int) -> Position | None:
    """Position of one event, without GTIDs where its payload is gone with an ack; None where there is none, or it is not an event."""
    try:
        if (position := position_at(segment, sequence)) is not None:
            return position
        there = segment.views.first <= sequence <= segment.words[PUT] and not has_log(segment)
        return _position_of_slot(segment, sequence) if there and slot_of(segment, sequence)["file"] else None
    except (PositionNotFound, StoreCorrupt):
        return None


def ack_points(segment: Segment, oldest: int, put: int) -> Iterator[int]:
    """Yield the sequences of the ack points from `put` back to `oldest`."""
    return (point for point, _ in search.ack_points(_slots(segment, oldest, put), oldest, put))


def last_ack_point_until(segment: Segment, sequence: int) -> int | None:
    """Sequence of the last ack point at or before `sequence`, as far back as the slots reach; in the log up to raw bytes, or damage."""
    while not has_log(segment):
        oldest = _oldest_slot(segment, sequence)
        try:
            return next(ack_points(segment, oldest, sequence), None)
        except PositionNotFound:
            if _oldest_slot(segment, sequence) == oldest:  # else the producer wrote over it meanwhile
                raise
    try:
        return _searched(segment, lambda slots: search.ack_point_until(slots, sequence))
    except PositionNotFound:
        return None
