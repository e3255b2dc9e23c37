"""What the sessions of a server in a cluster have to do with the clients' cursors in ZooKeeper: begin there, and write there what is acked.

All of it blocks: the server calls it in threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from shmstore import (
    EventStore,
    PositionNotFound,
    ShmStoreError,
    StoreError,
    SubscriptionInUse,
    SubscriptionNotFound,
    SubscriptionStat,
)
from shmstore.consumer.wire.cluster import resume
from shmstore.consumer.wire.cluster.cursor import ClusterCursor, cursor_before, cursor_behind
from shmstore.consumer.wire.cluster.zookeeper import Registration
from shmstore.consumer.wire.protocol.connection_state import Client
from shmstore.consumer.wire.session.session import ClientSession, subscription_name

#: Seconds that a client waits for a store that has not reached its cursor.
PATIENCE: Final = 3.0
_PAUSE: Final = 0.05


class Cursors:
    """The cursors of the clients of one server; `attach` gives the store behind a destination."""

    def __init__(self, attach: Callable[[str], EventStore]) -> None:
        self._attach = attach
        self.registration: Registration
        self._followed: set[Client] = set()

    # ------------------------------------------------------------ of the active server

    def read(self, client: Client) -> tuple[int, ClusterCursor | None]:
        """The term in which this server is the active one, and a client's cursor. Raises as `Registration.read`."""
        return self.registration.term(client.destination), self.registration.read(client)

    def exists(self, client: Client) -> bool:
        """True where a client has a cursor."""
        return self.registration.peek(client) is not None

    def first_wanted(self, store: EventStore, mine: SubscriptionStat | None, cursor: ClusterCursor) -> int | None:
        """The sequence at which a client continues by its cursor; None where its subscription stands there. Raises as `resume.first_wanted`."""
        if mine is not None and cursor.epoch == store.epoch and mine.ack.sequence >= cursor.sequence:
            return None  # written here, and it counts whole transactions only
        until = time.monotonic() + PATIENCE
        while True:
            try:
                first = resume.first_wanted(store, cursor)
                return None if mine is not None and mine.ack.sequence == first - 1 else first
            except resume.StoreBehind:
                if time.monotonic() >= until:
                    raise
            time.sleep(_PAUSE)

    def begin(self, session: ClientSession, term: int, cursor: ClusterCursor | None) -> None:
        """Note what is known of a session that was opened; give its client a cursor, if it has none."""
        session.term = term
        session.reported, session.has_cursor = session.acked, cursor is not None
        self.give(session)

    def give(self, session: ClientSession) -> None:
        """Say where a client begins that has no cursor, as soon as that is known: before anything is delivered to it."""
        if not session.has_cursor:
            cursor = cursor_before(session.store, session.acked + 1)
            if cursor is not None:
                self.registration.begin(session.client, cursor)
                session.has_cursor = True

    def report(self, session: ClientSession) -> None:
        """Say what a client has acked."""
        acked = session.acked
        cursor = cursor_behind(session.store, acked)
        session.reported = acked
        if cursor is not None and self.current(session):
            self.registration.acked(session.client, cursor)

    def current(self, session: ClientSession) -> bool:
        """False where this server was not the active one at some time since the session was opened."""
        return self.registration.term(session.client.destination) == session.term != 0

    def forget(self, client: Client) -> None:
        """Remove a client's cursor. Raises as `Registration.forget`."""
        self.registration.forget(client)

    # ------------------------------------------------------------ of every server

    def usable(self, destination: str) -> str:
        """Why a destination cannot be served here; empty where it can."""
        try:
            with self._attach(destination) as store:
                return (
                    "" if store.has_log else f"store {store.name!r} has no log, so that no client can go back to a cursor in it"
                )
        except ShmStoreError as error:
            return str(error)

    def follow(self, destination: str) -> None:
        """Let the subscriptions of a destination that another server serves stand at the clients' cursors, so that the log here keeps what
        they have not acked, and no more. Raises `ZookeeperSilent`, and what attaching raises."""
        clients = self.registration.clients(destination)
        with self._attach(destination) as store:
            stats = {stat.name: stat for stat in store.subscriptions()}
            for client in self._followed - set(clients):
                if client.destination == destination:  # it has unsubscribed where it is served
                    self._followed.discard(client)
                    with suppress(SubscriptionNotFound, SubscriptionInUse):
                        store.unsubscribe(subscription_name(client))
            for client in clients:
                cursor = self.registration.peek(client)
                if cursor is None or self.registration.serves(destination):
                    continue
                name = subscription_name(client)
                with suppress(PositionNotFound, SubscriptionInUse, StoreError):
                    first = resume.first_wanted(store, cursor)
                    if name not in stats:
                        store.subscribe(name, start=first).close()
                    elif stats[name].ack.sequence != first - 1:
                        store.seek(name, first)
                    self._followed.add(client)
