"""Where in a store a cursor is that another server wrote, which had a store of its own.

With GTIDs in both, they decide: the store may have been read from another server, whose files have other names. Else file and offset do,
and only where both stores were read from one server.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from shmstore import EventStore, Position, PositionNotFound, StoreError
from shmstore.consumer.wire.cluster.cursor import Cursor
from shmstore.gtids import Gtids, covers, joined, parse, single


class StoreBehind(StoreError):
    """The store has not reached the cursor yet."""


def first_wanted(store: EventStore, cursor: Cursor) -> int:
    """Return the sequence in `store` of the first event behind `cursor`.

    Raises `PositionNotFound` where events behind it are not kept any more, or it cannot be compared, and `StoreBehind`.
    """
    newest = store.ack_point_until(store.newest)
    if cursor.gtids or single(cursor.transaction):
        if newest is None:
            raise _behind(store, cursor)
        known = parse(_gtids_at(store, newest))
        if known:
            return _by_gtids(store, cursor, newest, known)
    return _by_file(store, cursor)


def _gtids_at(store: EventStore, sequence: int) -> str:
    return store.peek(sequence, limit_events=1).events[0].position.gtids


def _by_gtids(store: EventStore, cursor: Cursor, newest: int, known: Gtids) -> int:
    have, first = parse(cursor.gtids), single(cursor.transaction)

    def reached(gtids: Gtids) -> bool:
        """True where a transaction that is wanted is in `gtids`. What a store has executed only grows."""
        return not covers(have, gtids) if have or first is None else covers(gtids, first)

    if not reached(known):
        if not have or not covers(known, have):
            raise _behind(store, cursor)
        return newest + 1
    found, before = _bisect(store, newest, lambda sequence: reached(parse(_gtids_at(store, sequence))))
    if before is None:
        # The oldest that is kept: is what it has behind it known, but for itself?
        event = store.peek(found, limit_events=1).events[0]
        alone, there = single(event.transaction), parse(event.position.gtids)
        whole = covers(joined(have, alone), there) if have and alone else event.transaction == cursor.transaction
        if not whole:
            raise _too_old(store, cursor)
    return store.oldest if before is None else before + 1


def _bisect(store: EventStore, newest: int, reached: Callable[[int], bool]) -> tuple[int, int | None]:
    """The first ack point that is reached, given that `newest` is, and the ack point before it, if one is kept."""
    low, high, before = store.oldest - 1, newest, None
    while high - low > 1:
        middle = (low + high) // 2
        point = store.ack_point_until(middle) if middle >= store.oldest else None
        if point is None or point <= low:
            low = middle
        elif reached(point):
            high = point
        else:
            low, before = middle, point
    return high, before


def _by_file(store: EventStore, cursor: Cursor) -> int:
    if cursor.source and store.source and not _same_server(cursor.source, store.source):
        raise PositionNotFound(
            f"the client's cursor is {_place(cursor)} of {cursor.source}, and store {store.name!r} is read from {store.source}: "
            "files of two servers cannot be compared; give both servers GTIDs, or let the client unsubscribe and begin again"
        )
    position = Position(cursor.file, cursor.offset)
    read = (store.last_ack_point(), store.stat().source_position)
    if all(place is None or place.order < position.order for place in read):
        raise _behind(store, cursor)
    try:
        return store.find(position)
    except PositionNotFound:
        event = next(iter(store.peek(store.oldest, limit_events=1)), None)
        if event is not None and event.position._replace(offset=event.position.offset - event.length).order == position.order:
            return store.oldest  # it begins there
        raise


def _same_server(one: str, other: str) -> bool:
    """By what the server says it is, ``flavor://host:port/IDENTITY``; where Canal wrote the cursor, by its address."""
    here, there = urlsplit(one), urlsplit(other)
    if here.path.strip("/") and there.path.strip("/"):
        return here.path == there.path
    return (here.netloc or one) == (there.netloc or other)


def _place(cursor: Cursor) -> str:
    return cursor.gtids or cursor.transaction or f"{cursor.file}:{cursor.offset}"


def _behind(store: EventStore, cursor: Cursor) -> StoreBehind:
    return StoreBehind(f"store {store.name!r} has not reached the client's cursor, {_place(cursor)[:200]}, yet: try again")


def _too_old(store: EventStore, cursor: Cursor) -> PositionNotFound:
    return PositionNotFound(
        f"the client's cursor, {_place(cursor)[:200]}, is older than what store {store.name!r} keeps: events behind it are lost here; let a server "
        "that has them serve, or let the client unsubscribe, and begin again"
    )
