"""Where a stream goes on: at the end of what the store holds, else at the lowest of its readers' checkpoints.

The tail of the ring is the truth: it says what was put, whatever else was lost. Where it stands inside a transaction, the
transaction is read again from its beginning and what is in the store already is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

from shmstore import Event, EventStore, Position, PositionNotFound
from shmstore.producer import gtid
from shmstore.producer.errors import SettingsError
from shmstore.producer.gtid import ExecutedSet
from shmstore.producer.transactions.state import HalfTransaction


class StreamStart(NamedTuple):
    """A position to start from. With `by_gtid` the server finds it by `executed`, else by file and offset."""

    position: Position
    executed: ExecutedSet | None
    by_gtid: bool = False
    tail: HalfTransaction | None = None
    lost: Position | None = None  # where it should have been; what came between is lost


class Resume(NamedTuple):
    """Where a store ends: the end of its last whole transaction, and its tail where that is inside of another."""

    position: Position
    tail: HalfTransaction | None


def resume_point(store: EventStore) -> Resume | None:
    """Return where `store` ends; None when it is empty. Raises `PositionNotFound` where that cannot be known any more."""
    position = store.last_ack_point()
    if position is not None and position == store.latest_position:
        return Resume(position, None)
    if store.newest < store.oldest and position is None and store.latest_position is None:
        return None
    event = store.latest_event
    if event is None:
        raise PositionNotFound(
            f"store {store.name!r} ends inside a transaction that cannot be read any more: remove it and start again"
        )
    if "resume" in event.props:
        return _inside(event)
    if position is not None:
        return Resume(position, None)  # put by somebody else: a snapshot
    return None


def _inside(event: Event) -> Resume:
    """Return where to go on behind `event`, which ends a part of a transaction: at the transaction's beginning."""
    props = event.props
    position, _, gtids = props["resume"].partition(" ")
    file, _, offset = position.rpartition(":")
    order = int(props.get("resume_order", event.order))
    row = int(props.get("resume_row", event.position.row))
    tail = HalfTransaction(event.transaction, order, event.part, props.get("source", ""), props.get("checksum", ""), row)
    return Resume(Position(file, int(offset), gtids), tail)


def require_one_source(store: str, position: Position) -> None:
    """Raise `SettingsError` where `position` is one of several sources: one alone cannot go on there."""
    if position.of_group:
        raise SettingsError(
            f"store {store!r}, or a checkpoint of it, is of several sources: run them together, with a [source.NAME] for each and shmstore "
            "run, or give this one a store of its own"
        )


def lowest(positions: Iterable[Position]) -> Position | None:
    """Return the position that all others have passed; None of none. Of GTID sets that have neither, what they share."""
    return reduce(_lower, positions, None)


def _lower(a: Position | None, b: Position) -> Position:
    if a is None:
        return b
    if a.gtids and b.gtids and a.gtids != b.gtids:
        ours, others = gtid.parse(a.gtids), gtid.parse(b.gtids)
        if type(ours) is type(others):
            if ours.covers(others):
                return b
            return a if others.covers(ours) else Position("", 0, str(ours.shared(others)))
    return min(a, b, key=lambda position: position.order)
