"""The store that a command line names, its home, and a subscription in it before its reader comes.

In the home of a store that does not exist yet, a subscription is a checkpoint, as a reader of an earlier store leaves one: the producer begins
at the lowest of them, and each reader is given what comes after its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shmstore import EventStore, Position, StoreView
    from shmstore.consumer.live.actions import Named
    from shmstore.home.home import Home
    from shmstore.start_position import Start


def attach(options: argparse.Namespace) -> EventStore:
    """Attach to the store; one that is in its home alone is restored."""
    from shmstore import EventStore

    return EventStore.attach(options.store, path=options.path, state=options.state)


def look(options: argparse.Namespace) -> StoreView:
    """Attach to the store read-only: it need not be writable. One that is in its home alone is restored."""
    from shmstore import StoreView

    return StoreView.attach(options.store, path=options.path, state=options.state)


def named(options: argparse.Namespace) -> Named:
    """Return the store as an action takes it."""
    from shmstore.consumer.live.actions import Named

    return Named(options.store, options.path, options.state)


def home_of(options: argparse.Namespace) -> Home:
    """Return the store's home: of one in memory that has a log its own, else where it would be."""
    from shmstore import StoreView

    return StoreView.home_of(options.store, path=options.path, state=options.state)


def subscribe_at(
    store: str,
    name: str,
    start: Start,
    *,
    first: Callable[[EventStore], int] | None = None,
    filter: str = "",
    path: str | None = None,
    state: str | None = None,
) -> bool:
    """Make the subscription `name` at `start`; return whether the store exists already.

    `first`: what finds the first event wanted in a store that exists; with it, a subscription that exists is moved. `filter`: of a client of
    canal's protocol. Raises `PositionNotFound`, `SubscriptionInUse`, `StoreError`, ValueError.
    """
    from shmstore import Checkpoint, CheckpointFile, EventStore, StoreError, StoreNotFound
    from shmstore.home.home import Home
    from shmstore.store.subscription_table import check_subscription_name

    check_subscription_name(name)
    try:
        attached = EventStore.attach(store, path=path, state=state)
    except StoreNotFound:
        home = Home.of(store, state)
        CheckpointFile.of(home, name).save(Checkpoint(_of_source(store, start), 0, -1))
        _keep_filter(home, name, filter)
        return False
    with attached:
        known = any(stat.name == name for stat in attached.subscriptions())
        if known and first is None:
            raise StoreError(f"store {store!r} has subscription {name!r} already: move it with `shmstore seek`")
        begin = start if first is None else first(attached)
        if known:
            attached.seek(name, begin)
        else:
            attached.subscribe(name, start=begin).close()
        _keep_filter(attached.home, name, filter)
    return True


def _of_source(store: str, start: Start) -> Position:
    """Where the reader of a store that does not exist yet begins, which only a place in the source's binlog can say."""
    from shmstore import Position, PositionNotFound
    from shmstore.start_position import parse_start

    found = parse_start(start) if isinstance(start, str) else start
    if not isinstance(found, Position) or found.sources:
        raise PositionNotFound(
            f"store {store!r} does not exist yet, so {start} is not a place in it: give FILE:OFFSET or a GTID set, or start its producer first"
        )
    return found._replace(file="", offset=0) if found.gtids else found


def _keep_filter(home: Home, name: str, filter: str) -> None:
    if filter:
        from shmstore.consumer.wire.session.filter import expressions
        from shmstore.consumer.wire.session.unacked import RecordFile
        from shmstore.home.reader_state import keep_filter

        file = RecordFile(home, name)
        file.write(file.record._replace(filter=filter))
        keep_filter(home, name, expressions(filter))
