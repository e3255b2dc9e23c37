"""Read and search without moving any cursor."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import numpy as np

from shmstore.encoding import codec
from shmstore.errors import PositionNotFound, StoreCorrupt
from shmstore.event import Event, EventType, Position
from shmstore.gtids import well_formed
from shmstore.memory.layout import SlotFlag, StoreFlag, header_word
from shmstore.memory.ordering import fence
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import FLOOR, PUT, slowest_ack
from shmstore.start_position import Start, parse_start
from shmstore.store.batch import Batch


def peek(segment: Segment, first: int, limit_events: int | None, limit_bytes: int | None) -> Batch:
    """Return a copy of the events from `first` on; as `EventStore.peek`."""
    views, newest, oldest = segment.views, segment.words[PUT], slowest_ack(segment.views) + 1
    if not oldest <= first <= newest + 1:
        raise absent(segment, first, oldest, newest)
    last = newest if limit_events is None else min(newest, first + limit_events - 1)
    if limit_bytes is not None and last >= first:
        mask = views.slot_count - 1
        ends = views.ends_array[first & mask : (first & mask) + last - first + 1]
        last = first - 1 + max(1, int(np.searchsorted(ends, views.ends[(first - 1) & mask] + limit_bytes, side="right")))
    batch = Batch(segment, first, last, -1)
    if batch:
        gone = PositionNotFound(
            f"sequence {first} was acked by all while it was read: see what store {segment.name!r} keeps, and read on there"
        )
        try:
            batch = batch.copy()
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


def absent(segment: Segment, sequence: int, oldest: int, newest: int) -> PositionNotFound:
    """The error that says so, and what is there instead."""
    held = f"it keeps {oldest} to {newest}" if oldest <= newest else f"it is empty, and its next event will be {newest + 1}"
    return PositionNotFound(f"sequence {sequence} is not in store {segment.name!r}: {held}")


def first_wanted(segment: Segment, start: Start) -> int:
    """Return the sequence of the first event from `start` on, one of the forms of `shmstore.start_position`. Raises `PositionNotFound`."""
    oldest, newest = slowest_ack(segment.views) + 1, segment.words[PUT]
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
    """`first_wanted` for the subscription `name` that has acked up to `ack`. Raises `PositionNotFound` where that lies behind it."""
    start = parse_start(start) if isinstance(start, str) else start
    if isinstance(start, Position) and _stands_at(segment, ack, start):
        return ack + 1
    sequence = start if isinstance(start, int) and start <= ack else first_wanted(segment, start)
    if sequence > ack or isinstance(start, str | datetime):
        return max(sequence, ack + 1)
    raise PositionNotFound(
        f"sequence {sequence} was acked by subscription {name!r}, up to {ack}: go on at {ack + 1}, or forget the subscription with "
        f"`shmstore unsubscribe {segment.name} {name}` and begin a new one"
    )


def _stands_at(segment: Segment, sequence: int, position: Position) -> bool:
    """True where an event is at `position`: also one of a snapshot's, of which many stand behind the transaction that ends there."""
    if position.file and not position.of_group:
        slot = segment.views.slots[sequence & (segment.views.slot_count - 1)]
        return (int(slot["file"]), int(slot["offset"])) == position.order[:2]
    here = position_if_readable(segment, sequence)
    return here is not None and here.gtids == position.gtids


def find_time(segment: Segment, moment: datetime) -> int:
    """Return the sequence of the first event of the first transaction that ends at `moment` or later; UTC without a zone."""
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    oldest, put = slowest_ack(segment.views) + 1, segment.words[PUT]
    i = oldest & (segment.views.slot_count - 1)
    slots = segment.views.slots[i : i + put - oldest + 1]
    later = np.flatnonzero(slots["time"] >= round(moment.timestamp() * 1000))
    if not len(later):
        return put + 1
    points = np.flatnonzero(slots["flags"][: later[0]] & int(SlotFlag.ACK_POINT))
    return oldest + (int(points[-1]) + 1 if len(points) else 0)


def find(segment: Segment, position: Position) -> int:
    """Return the sequence of the first event after `position`; newest + 1 where that is the last event.

    Raises `PositionNotFound` where events after it may have been in the store and are gone, or never came.
    """
    views = segment.views
    oldest, put = slowest_ack(views) + 1, segment.words[PUT]
    if position.of_group or (not position.file and position.gtids):
        return _find_gtids(segment, oldest, put, position)
    last = last_ack_point(segment)
    if last is not None and last.of_group:
        raise PositionNotFound(
            f"store {segment.name!r} holds several sources, so {position.file}:{position.offset} is no place in it: give the position of a "
            "transaction's end that was read from it, GTIDs and all, or a sequence"
        )
    # One slot back: an event that is gone still says where it ended, and that is enough to know that nothing is missing.
    known = max(oldest - 1, views.first)
    i = known & (views.slot_count - 1)
    slots = views.slots[i : i + put - known + 1]
    file, offset = position.order[:2]
    here = (slots["offset"] == offset) & (slots["type"] == int(EventType.READ))  # a snapshot's rows, put at that place: behind it
    later = (slots["file"] > file) | ((slots["file"] == file) & ((slots["offset"] > offset) | here))
    first = known + (int(np.argmax(later)) if later.any() else len(slots))
    if first > known and len(slots):
        return max(first, oldest)
    if known == oldest == views.first and begins_at(segment, position):
        return oldest
    if not len(slots) and not segment.read_text("start_file"):
        raise PositionNotFound(
            f"store {segment.name!r} is empty, so {position.file}:{position.offset} cannot be found in it: wait for the producer"
        )
    raise too_old(segment, position)


def begins_at(segment: Segment, position: Position) -> bool:
    """True where the producer of the first event began to read at or before `position`, as it said itself."""
    start = start_position(segment)
    return start is not None and start.order <= position.order


def too_old(segment: Segment, position: Position) -> PositionNotFound:
    """The error that says so."""
    return PositionNotFound(
        f"{position.file}:{position.offset} is older than what store {segment.name!r} keeps: events after it are gone; "
        f"let the producer start from there in a new store, or take a snapshot (`shmstore snapshot {segment.name} --tables ...`)"
    )


def _find_gtids(segment: Segment, oldest: int, put: int, position: Position) -> int:
    snapshot = False  # whether rows of a snapshot stand at the position: they come after it
    for sequence in ack_points(segment, oldest, put):
        here, read = position_at(segment, sequence).gtids == position.gtids, is_read(segment, sequence)
        if (here and not read) or (snapshot and not here):
            return sequence + 1
        snapshot = here
    if snapshot:
        return oldest
    if not position.of_group and not well_formed(position.gtids):
        raise PositionNotFound(
            f"{position.gtids!r} is no GTID set: write UUID:1-4711 as MySQL does, or 0-1-4711 as MariaDB does, several with commas between"
        )
    raise PositionNotFound(
        f"no transaction kept in store {segment.name!r} ends at GTID set {position.gtids!r}: give the position of one that was read from it, or a sequence"
    )


def is_read(segment: Segment, sequence: int) -> bool:
    """True where the event belongs to a snapshot, whose rows stand at the place that the stream had reached: none was passed."""
    return bool(segment.views.slots["type"][sequence & (segment.views.slot_count - 1)] == int(EventType.READ))


def readable(segment: Segment, sequence: int) -> bool:
    """True where the payload of `sequence` is still in the arena, acked or not."""
    views, put = segment.views, segment.words[PUT]
    mask = views.slot_count - 1
    if not views.first <= sequence <= put or put - sequence >= views.slot_count - 1:
        return False
    if views.slots["flags"][sequence & mask] & int(SlotFlag.OVERSIZED):
        return sequence > slowest_ack(views)
    return views.ends[put & mask] - views.ends[(sequence - 1) & mask] <= views.arena_size


def position_at(segment: Segment, sequence: int) -> Position:
    """Binlog position of one event, which must be `readable`."""
    return Batch(segment, sequence, sequence, 0).position_of(sequence)


def event_at(segment: Segment, sequence: int) -> Event:
    """One event, which must be `readable`."""
    return next(iter(Batch(segment, sequence, sequence, 0)))


def note_start(segment: Segment, start: Position) -> None:
    """Write down where the source of an empty store was opened."""
    segment.write_text("start_file", start.file)
    segment.words[header_word("start_offset")] = start.offset


def start_position(segment: Segment) -> Position | None:
    """Where the producer of the first event began to read; None where it did not say."""
    file = segment.read_text("start_file")
    return Position(file, segment.words[header_word("start_offset")]) if file else None


def last_ack_point(segment: Segment) -> Position | None:
    """Position of the newest transaction end or DDL, acked or not; None without one as far back as the slots reach.

    Where its payload is gone, its slot and the file name that the producer gave still say file and offset, without GTIDs.
    """
    views, put = segment.views, segment.words[PUT]
    for sequence in ack_points(segment, max(views.first, put - views.slot_count + 2), put):
        return position_at(segment, sequence) if readable(segment, sequence) else _position_of_slot(segment, sequence)
    return None


def _position_of_slot(segment: Segment, sequence: int) -> Position | None:
    """What the slot of an event and the file name that the producer gave say of its position, without GTIDs: its payload is gone."""
    slot = segment.views.slots[sequence & (segment.views.slot_count - 1)]
    base, dot, digits = (segment.read_text("source_file") or segment.read_text("start_file")).rpartition(".")
    return Position(f"{base}{dot}{int(slot['file']):0{len(digits)}d}", int(slot["offset"])) if dot else None


def note_oversized(segment: Segment, payload: bytes | memoryview) -> None:
    """Write down how far the source was read, if nobody did, from an event whose payload goes with its ack."""
    if segment.read_text("source_file"):
        return
    with suppress(StoreCorrupt):  # raw bytes have no position
        position = codec.split_stored(payload)[0].position
        if position.file and not position.of_group:
            segment.write_text("source_file", position.file)
            segment.words[header_word("source_offset")] = position.offset


def last_ack_point_if_readable(segment: Segment) -> Position | None:
    """`last_ack_point`, and None where what is there is no event."""
    try:
        return last_ack_point(segment)
    except StoreCorrupt:
        return None


def position_if_readable(segment: Segment, sequence: int) -> Position | None:
    """Position of one event, without GTIDs where its payload is gone with an ack; None where there is none, or it is not an event."""
    views, put = segment.views, segment.words[PUT]
    try:
        if readable(segment, sequence):
            return position_at(segment, sequence)
    except StoreCorrupt:
        return None
    there = views.first <= sequence <= put and put - sequence < views.slot_count - 1
    return _position_of_slot(segment, sequence) if there and views.slots["file"][sequence & (views.slot_count - 1)] else None


def ack_points(segment: Segment, oldest: int, put: int) -> list[int]:
    """Sequences of the ack points from `oldest` to `put`, newest first."""
    if put < oldest:
        return []
    views = segment.views
    i = oldest & (views.slot_count - 1)
    found = np.flatnonzero(views.slots["flags"][i : i + put - oldest + 1] & int(SlotFlag.ACK_POINT))
    return [oldest + int(offset) for offset in found[::-1]]


def last_ack_point_until(segment: Segment, sequence: int) -> int | None:
    """Sequence of the last ack point at or before `sequence`, as far back as the slots reach."""
    put = segment.words[PUT]
    points = ack_points(segment, max(segment.views.first, put - segment.views.slot_count + 2), sequence)
    return points[0] if points else None
