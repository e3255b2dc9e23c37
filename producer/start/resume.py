"""Where a stream continues: at the end of what the store holds, else at the lowest of its readers' checkpoints.

The tail of the ring is the truth: it says what was put, whatever else was lost. Where it is inside a transaction, its last event says
where that began (`Cut`): the transaction is read again from there, and what is in the store already is compared and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import NamedTuple

from shmstore import EventStore, Position, PositionNotFound
from shmstore.producer import gtid
from shmstore.producer.errors import SettingsError
from shmstore.producer.gtid import ExecutedSet
from shmstore.producer.transactions.replay import Replay
from shmstore.producer.transactions.state import HalfTransaction

Positions = dict[str, Position]  # of several sources, by name


class StreamStart(NamedTuple):
    """A position to start from. With `by_gtid` the server finds it by `executed`, else by file and offset."""

    position: Position
    executed: ExecutedSet | None
    by_gtid: bool = False
    tail: HalfTransaction | None = None
    lost: Position | None = None  # where it should have been; what came between is lost


class Resume(NamedTuple):
    """Where to continue after the end of a store: where its last transaction ends; or begins, where it ends inside of that: its tail."""

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
    if event.cut is not None:
        sources = event.cut.sources
        begun = Position("", 0, sources=sources) if sources[0][0] else sources[0][1]
        return Resume(begun, HalfTransaction.of(event, Replay(store.open_transaction(), event.transaction)))
    if position is not None:
        return Resume(position, None)  # put by another: a snapshot
    return None


def require_one_source(store: str, position: Position) -> None:
    """Raise `SettingsError` where `position` is one of several sources: one alone cannot continue there."""
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


def by_source(position: Position) -> Positions:
    """Return where each of several sources is at `position`. Raises `PositionNotFound` where that is of a store of one source."""
    if not position.sources:
        raise PositionNotFound(
            f"{position.file}:{position.offset} does not say where each of several sources is: it is from a store of one source; "
            "give the group a store, and checkpoints, of its own"
        )
    return dict(position.sources)


def lowest_by_source(found: Mapping[str, Position]) -> Positions:
    """Return for each source the position that all of `found`, the checkpoints by reader, have passed.

    Raises `PositionNotFound` where one of them is from before a source was added: what it missed of that source is not known.
    """
    known = {reader: by_source(position) for reader, position in found.items()}
    names = {name for positions in known.values() for name in positions}
    for reader, positions in known.items():
        if missing := sorted(names - positions.keys()):
            raise PositionNotFound(
                f"the checkpoint of {reader!r} is from before source {missing[0]!r} came to the store, other checkpoints are from after: "
                f"forget that checkpoint with `shmstore unsubscribe STORE {reader}`, or those of the others"
            )
    return {name: reduce(_lower, [positions[name] for positions in known.values()]) for name in names}
