"""The sessions of a server's clients: opened when a client asks for something, given back when none of its connections does.

A session holds its client's subscription, which no other client may read meanwhile: not another server of this host, nor a new connection that
a load balancer sent there. So it is given back a moment after the last connection that used it ended, or where a connection is open and
asks nothing, after `CanalSettings.release_after`. The subscription stays, at its ack; the batches that the client holds are in its record file.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from shmstore import (
    EventStore,
    PositionNotFound,
    ProtocolError,
    ShmStoreError,
    StoreError,
    StoreNotFound,
    SubscriptionInUse,
    SubscriptionLost,
    SubscriptionNotFound,
)
from shmstore.consumer.formats.canal_values import Values
from shmstore.consumer.serving.audit import Audit, Incident
from shmstore.consumer.serving.capacity import Capacity, Threads
from shmstore.consumer.wire.encoding.entry import Encoder
from shmstore.consumer.wire.protocol.connection_state import Client
from shmstore.consumer.wire.server.settings import CanalSettings
from shmstore.consumer.wire.session.entry_cache import EntryCache
from shmstore.consumer.wire.session.session import ClientSession, subscription_name
from shmstore.consumer.wire.session.turn import SessionTurn, SharedSession
from shmstore.memory.deadline import begun
from shmstore.memory.layout import SUBSCRIPTIONS

if TYPE_CHECKING:  # kazoo is an extra
    from shmstore.consumer.wire.server.cursors import Cursors

_log = logging.getLogger("shmstore.serve")

#: Seconds after the last connection of a client: it may come back at once.
GRACE: Final = 1.0
#: Seconds that a client waits for another server to give its subscription back.
HANDOVER: Final = 3.0
_LOOK: Final = 0.5
_PAUSE: Final = 0.05
_CACHE_BYTES: Final = 32 << 20


_GTIDS = {"auto": None, "on": True, "off": False}


class SubscriptionRefused(ProtocolError):
    """A new client id that would be one too many."""


class LoggedIn(Protocol):
    """A connection that has logged in, as far as its client ids go."""

    address: str
    #: The clients whose subscriptions it made.
    new_clients: set[Client]
    #: What it has used.
    sessions: set[SharedSession]


class CanalSessions:
    """The sessions of one server."""

    def __init__(self, settings: CanalSettings, capacity: Capacity, threads: Threads, audit: Audit) -> None:
        self._settings = settings
        self._capacity = capacity
        self._in_thread = threads.run
        self._audit = audit
        self._shared: dict[Client, SharedSession] = {}
        self._caches: dict[str, EntryCache] = {}
        #: Of the clients whose sessions were given back, the number that their record files had.
        self._released: dict[Client, int] = {}
        #: Of a server in a cluster.
        self.cursors: Cursors | None = None

    def __contains__(self, client: Client) -> bool:
        return client in self._shared or client in self._released

    def get(self, client: Client) -> SharedSession | None:
        """The shared session of a client, where there is one."""
        return self._shared.get(client)

    async def known(self, client: Client) -> SharedSession | None:
        """The shared session of a client that has subscribed once, in this server's life or before it; None for any other."""
        shared = self._shared.get(client)
        if shared is not None and shared.session is not None and self.current(shared.session):
            return shared
        if not await self._in_thread(self._is_subscribed, client):
            return None
        return await self.open(client, None)

    async def open(self, client: Client, login: LoggedIn | None) -> SharedSession:
        """The shared session of a client; `login` may make its subscription, None may not. Waits for another server that is about to give
        it back. Raises `SubscriptionInUse`, `SubscriptionRefused` and whatever keeps it from being opened."""
        shared = self._shared.setdefault(client, SharedSession())
        async with SessionTurn(shared):
            if shared.session is not None and not self.current(shared.session):
                await self.drop(shared)
            if shared.session is None:
                try:
                    shared.session = await self._opened(client, login)
                except BaseException:
                    if not shared.waiters:  # a name that leads nowhere leaves nothing
                        self._shared.pop(client, None)
                    raise
        return shared

    async def _opened(self, client: Client, login: LoggedIn | None) -> ClientSession:
        self._check_files()
        until = time.monotonic() + HANDOVER
        waited = False
        while True:
            try:
                session, new = await self._in_thread(self._make, client, login)
                break
            except SubscriptionInUse:
                if time.monotonic() >= until:
                    raise
                waited = True
            await asyncio.sleep(_PAUSE)
        if new and login is not None:
            login.new_clients.add(client)
        number = self._released.pop(client, None)
        if not new and (waited or number != session.found_number):
            place = f"{client.destination}/{client.client_id}"
            self._audit.note(
                Incident.TAKEOVER,
                place,
                f"client {client.client_id} of {client.destination!r} continues here, after event {session.acked}, with "
                f"{len(session.outstanding)} batches not acked",
            )
        return session

    def _check_files(self) -> None:
        count = sum(shared.session is not None for shared in self._shared.values())
        if count >= self._capacity.sessions:
            raise SubscriptionRefused(
                f"{count} clients are subscribed through this server, which may have {self._capacity.files} files open: raise its limit "
                "(ulimit -Hn, LimitNOFILE=)"
            )

    def _make(self, client: Client, login: LoggedIn | None) -> tuple[ClientSession, bool]:
        """The session, and whether its subscription is new."""
        settings, cursors = self._settings, self.cursors
        term, cursor = cursors.read(client) if cursors else (0, None)
        new = False

        def made(store: EventStore) -> ClientSession:
            nonlocal new  # also where it was made in a store that was removed then, and is there after all
            stats = {stat.name: stat for stat in store.subscriptions()}
            mine = stats.get(subscription_name(client))
            if mine is None and cursor is None:
                self._check_new(client, login, store, len(stats))
                new = True
            return ClientSession(
                store,
                client,
                Encoder(Values(settings.values), gtids=_GTIDS[settings.gtids]),
                self._cache(store),
                start=settings.start,
                filter=settings.filter,
                transaction_entries=settings.transaction_entries,
                max_outstanding=settings.max_outstanding,
                max_reply=settings.max_reply,
                first=cursors.first_wanted(store, mine, cursor) if cursors and cursor else None,
            )

        session = begun(lambda: self.attach(client.destination), made)
        if cursors:
            try:
                cursors.begin(session, term, cursor)
            except BaseException:
                session.close()
                raise
        return session, new

    def current(self, session: ClientSession) -> bool:
        """False where this server of a cluster was not the active one at some time since the session was opened."""
        return self.cursors is None or self.cursors.current(session)

    def _check_new(self, client: Client, login: LoggedIn | None, store: EventStore, count: int) -> None:
        if login is None:
            raise ProtocolError(f"clientId {client.client_id} of destination {client.destination!r} is not subscribed any more")
        if count >= SUBSCRIPTIONS - 1:
            raise SubscriptionRefused(
                f"store {store.name!r} has {count} subscriptions, the most that it can have: forget one with `shmstore unsubscribe {store.name} NAME`"
            )
        most = self._settings.max_new_clients
        if len(login.new_clients) >= most:
            raise SubscriptionRefused(
                f"this login has begun {most} client ids, all it may (--max-new-clients): continue with one of them, or unsubscribe one"
            )

    def _cache(self, store: EventStore) -> EntryCache:
        """The entry cache of this life of `store`."""
        cache = self._caches.get(store.name)
        if cache is None or cache.epoch != store.epoch:
            cache = self._caches[store.name] = EntryCache(store.epoch, _CACHE_BYTES)
        return cache

    def attach(self, destination: str) -> EventStore:
        """Attach to the store behind `destination`. Raises `StoreNotFound`."""
        name = self._settings.store_of(destination)
        try:
            return EventStore.attach(name, state=self._settings.state)
        except ValueError as error:
            if isinstance(error, ShmStoreError):
                raise
            raise StoreNotFound(f"destination {destination!r} cannot name a store") from error

    def _is_subscribed(self, client: Client) -> bool:
        if self.cursors is not None and self.cursors.exists(client):
            return True
        with self.attach(client.destination) as store:
            return any(stat.name == subscription_name(client) for stat in store.subscriptions())

    # ------------------------------------------------------------ end

    async def drop(self, shared: SharedSession) -> None:
        """Forget a session whose store is lost, so that the next request finds the store's successor. For the client that has the turn."""
        session, shared.session = shared.session, None
        if session is not None:
            self._caches.pop(session.store.name, None)  # what was in its memory alone may come again otherwise
            await self._close(session)

    async def _close(self, session: ClientSession) -> None:
        with suppress(ShmStoreError):
            await self._in_thread(session.close)

    async def forget(self, client: Client, login: LoggedIn) -> None:
        """Remove a client's subscription, where there is one."""
        try:
            shared = await self.known(client)
        except SubscriptionInUse:
            raise
        except (SubscriptionLost, PositionNotFound, StoreError, ProtocolError) as error:
            if self.cursors is None and not isinstance(error, SubscriptionLost):
                raise
            shared = None  # it cannot continue here: all the more it may leave
            await self._in_thread(self._remove, client)
        if self.cursors is not None:
            await self._in_thread(self.cursors.forget, client)
        if shared is None:
            return
        async with SessionTurn(shared):
            if shared.session is not None:
                try:
                    await self._in_thread(shared.session.forget)
                finally:
                    shared.session = None
        login.new_clients.discard(client)
        if not shared.requests:
            self._shared.pop(client, None)

    def _remove(self, client: Client) -> None:
        with self.attach(client.destination) as store, suppress(SubscriptionNotFound):
            store.unsubscribe(subscription_name(client))

    def disconnected(self, login: LoggedIn) -> None:
        """A connection has ended."""
        for shared in login.sessions:
            shared.disconnected(login)
            session = shared.session
            if not shared.users and session is not None and (held := len(session.outstanding)):
                client = session.client
                self._audit.note(
                    Incident.UNACKED,
                    f"{client.destination}/{client.client_id}",
                    f"client {client.client_id} of {client.destination!r} at {login.address} has left with {held} batches not acked",
                )
        login.sessions.clear()

    async def look_after(self) -> None:
        """From time to time, without end: give back what no client uses, and make durable what clients that ask nothing have acked."""
        while True:
            await asyncio.sleep(_LOOK)
            idle = [(client, shared) for client, shared in self._shared.items() if not shared.requests]
            work = [self._release(client, shared, self._unused) for client, shared in idle if self._unused(shared)]
            work += [self._save(shared) for _, shared in idle if shared.session is not None and shared.session.unsaved]
            for error in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(error, BaseException):
                    _log.error("a session could not be looked after: %s", error, exc_info=error)

    async def _save(self, shared: SharedSession) -> None:
        async with shared.lock:
            if shared.session is not None and shared.session.unsaved:
                await self._in_thread(shared.session.save)

    def _unused(self, shared: SharedSession) -> bool:
        grace = self._settings.release_after if shared.users else min(GRACE, self._settings.release_after)
        return not shared.requests and time.monotonic() - shared.used_at >= grace

    async def _release(self, client: Client, shared: SharedSession, still: Callable[[SharedSession], bool]) -> None:
        """Give a session back, if it is `still` to be once no other client has the turn."""
        async with shared.lock:
            if not still(shared):
                return
            session, shared.session = shared.session, None
            if session is not None:
                await self._close(session)
                self._released[client] = session.record_number
        if not shared.requests and shared.session is None:
            self._shared.pop(client, None)

    async def release(self, destination: str) -> None:
        """Give back all of a destination that this server does not serve any more."""
        sessions = [(client, shared) for client, shared in self._shared.items() if client.destination == destination]
        ended = [
            self._release(client, shared, lambda shared: shared.session is not None and not self.current(shared.session))
            for client, shared in sessions
        ]
        await asyncio.gather(*ended)

    async def close(self) -> None:
        """Give all of them back: their clients continue with the next server."""
        await asyncio.gather(*(self._release(client, shared, lambda _: True) for client, shared in self._shared.items()))
