"""Where in a store a cursor is that another server wrote, which had a store of its own.

With GTIDs in both, they decide: the store may have been read from another server, whose files have other names. Else file and offset do,
and only where both stores were read from one server.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from shmstore import EventStore, Position, PositionNotFound, StoreError
from shmstore.consumer.wire.cluster.cursor import ClusterCursor
from shmstore.gtids import single
from shmstore.store.reader_place import ReaderPlace


class StoreBehind(StoreError):
    """The store has not reached the cursor yet."""


def first_wanted(store: EventStore, cursor: ClusterCursor) -> int:
    """Return the sequence in `store` of the first event behind `cursor`.

    Raises `PositionNotFound` where events behind it are not kept any more, or it cannot be compared, and `StoreBehind`.
    """
    newest = store.ack_point_until(store.newest)
    if cursor.gtids or single(cursor.transaction):
        if newest is None:
            raise _behind(store, cursor)
        place = ReaderPlace(Position(cursor.file, cursor.offset, cursor.gtids), next_=cursor.transaction, files=False)
        if place.is_comparable(store.segment):
            first = place.first_new(store.segment)
            if first > newest and not place.is_reached(store.segment):
                raise _behind(store, cursor)
            return first
    return _by_file(store, cursor)


def _by_file(store: EventStore, cursor: ClusterCursor) -> int:
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


def _place(cursor: ClusterCursor) -> str:
    return cursor.gtids or cursor.transaction or f"{cursor.file}:{cursor.offset}"


def _behind(store: EventStore, cursor: ClusterCursor) -> StoreBehind:
    return StoreBehind(f"store {store.name!r} has not reached the client's cursor, {_place(cursor)[:200]}, yet: try again")
