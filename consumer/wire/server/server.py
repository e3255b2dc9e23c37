"""The server: sockets, waiting and time around `protocol` and `session`.

Plan. One task a connection takes its requests one at a time, in order. A session (destination, client id) belongs to no
connection: two connections of one client share it, one call at a time. The only thing that takes long is a GET that
waits; it waits in a thread, of which there are as many as connections, for the store's own wake-up, and gives the session
up when another connection asks for it or its own goes away. Large batches are encoded in steps with the loop running in between. So neither a client that is
slow, nor one that is silent, nor one that wants a lot holds up another.

The bytes of an answer go out in one write, and the next request is looked at when they have left: a client that does
not read costs one answer's memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from shmstore import Batch, ProtocolError, ShmStoreError, StoreClosed, SubscriptionLost
from shmstore.consumer.serving.access import tls_context
from shmstore.consumer.serving.audit import Incident
from shmstore.consumer.serving.capacity import Capacity, Threads
from shmstore.consumer.wire.protocol import connection_state
from shmstore.consumer.wire.protocol.connection_state import (
    Acknowledge,
    Answer,
    Client,
    Connection,
    Get,
    Request,
    Rollback,
    Subscribe,
    Unsubscribe,
)
from shmstore.consumer.wire.protocol.messages import PacketType
from shmstore.consumer.wire.server.connection import ClientSocket
from shmstore.consumer.wire.server.metrics import CanalMetrics, ClientMetrics
from shmstore.consumer.wire.server.sessions import CanalSessions, SubscriptionRefused
from shmstore.consumer.wire.server.settings import CanalSettings
from shmstore.consumer.wire.session.filter import FilterRefused, compile_filter
from shmstore.consumer.wire.session.session import LARGE, SAVING, ClientSession
from shmstore.consumer.wire.session.turn import SessionTurn, SharedSession
from shmstore.memory.deadline import RETURN_SECONDS, retried

if TYPE_CHECKING:  # kazoo is an extra
    from shmstore.consumer.wire.cluster.zookeeper import Registration
    from shmstore.consumer.wire.server.cursors import Cursors

_log = logging.getLogger("shmstore.serve")

_INCIDENTS: Final = {FilterRefused: Incident.FILTER, SubscriptionRefused: Incident.SUBSCRIPTION}

# Longest wait in one call to the store: with entries in hand, how soon it is seen that the producer waits for free space.
_WAIT_EMPTY: Final = 30.0
_WAIT_PARTIAL: Final = 0.1
_IN_A_ROW: Final = 16
_SPARE_THREADS: Final = 8
_FOLLOW: Final = 10.0  # seconds between two looks at the cursors of what another server serves


class CanalServer:
    """A canal server over the stores of this host. `start`, then `close`; `serve` does both."""

    def __init__(self, settings: CanalSettings) -> None:
        self.settings = settings
        self.metrics = CanalMetrics()
        self.address: tuple[str, int] = (settings.host, settings.port)
        self._sockets: set[ClientSocket] = set()
        self._capacity = Capacity.of_process(settings.max_connections)
        # A connection is in one call at a time; those besides give sessions back.
        self._threads = Threads(self._capacity.connections + _SPARE_THREADS)
        self._in_thread = self._threads.run
        self._audit = self.metrics.audit
        self._sessions = CanalSessions(settings, self._capacity, self._threads, self._audit)
        self._tasks: set[asyncio.Task[None]] = set()
        self._registration: Registration | None = None
        self._cursors: Cursors | None = None
        self._listener: asyncio.Server | None = None
        self._closing = False

    async def start(self) -> None:
        """Listen. Raises `OSError` where the address cannot be had or the certificate cannot be read."""
        settings, capacity = self.settings, self._capacity
        if capacity.connections < settings.max_connections:
            _log.warning(
                "takes %s connections, not %s: it may have %s files open; raise the hard limit (ulimit -Hn, LimitNOFILE=)",
                *(capacity.connections, settings.max_connections, capacity.files),
            )
        context = tls_context(settings.tls_cert, settings.tls_key) if settings.tls_cert and settings.tls_key else None
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: ClientSocket(self),
            settings.host,
            settings.port,
            ssl=context,
            ssl_handshake_timeout=settings.auth_timeout if context else None,
            backlog=512,
        )
        self.address = self._listener.sockets[0].getsockname()[:2]
        self._begin(self._sessions.look_after())
        if settings.zookeeper:
            await self._register()

    def _begin(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run something while connections are served, until it ends or the server does."""
        self._keep(asyncio.get_running_loop().create_task(coroutine))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _register(self) -> None:
        """Register in ZooKeeper, and follow what it says. Raises `ImportError` without the extra `zookeeper`."""
        from shmstore.consumer.wire.cluster.zookeeper import Access, Registration, reached_at
        from shmstore.consumer.wire.server.cursors import Cursors

        settings, loop = self.settings, asyncio.get_running_loop()

        def changed(destination: str, active: bool) -> None:
            self.metrics.active[destination] = active
            if not active:
                loop.call_soon_threadsafe(self._deactivate, destination)

        destinations = [destination for destination, _ in settings.destinations]
        self.metrics.active = dict.fromkeys(destinations, False)
        cursors = Cursors(self._sessions.attach)
        access = Access(settings.zookeeper_ca, settings.zookeeper_cert, settings.zookeeper_key, settings.zookeeper_login)
        registration = Registration(settings.zookeeper, destinations, settings.zookeeper_timeout, cursors.usable, changed, access)
        host, _, port = settings.advertise.rpartition(":")
        host = host or await self._in_thread(reached_at, self.address[0], settings.zookeeper)
        self._registration = cursors.registration = registration
        self._cursors = self._sessions.cursors = cursors
        await self._in_thread(registration.start, (host, int(port or self.address[1])))
        self._begin(self._follow(cursors, destinations))

    async def _follow(self, cursors: Cursors, destinations: list[str]) -> None:
        """Keep what is served elsewhere ready here."""
        while True:
            await asyncio.sleep(_FOLLOW)
            for destination in destinations:
                if not cursors.registration.serves(destination):
                    try:
                        await self._in_thread(cursors.follow, destination)
                    except ShmStoreError as error:
                        _log.debug("the cursors of %r cannot be followed: %s", destination, error)

    def _deactivate(self, destination: str) -> None:
        """Another server may serve the destination from here on: end the connections of its clients, give up their subscriptions."""
        for socket in list(self._sockets):
            if any(shared.session is not None and shared.session.client.destination == destination for shared in socket.sessions):
                socket.abort()
        if not self._closing:
            self._begin(self._sessions.release(destination))

    def _check_active(self, destination: str) -> None:
        registration = self._registration
        if registration is not None and not registration.serves(destination):
            where = registration.active_elsewhere(destination)
            raise ProtocolError(
                f"destination {destination!r} is {f'served by {where}' if where else 'not served by any server yet'}: connect there"
            )

    async def close(self) -> None:
        """Close every connection and give up the subscriptions: their clients continue with the next server."""
        self._closing = True
        if self._listener is not None:
            self._listener.close()
        sockets = list(self._sockets)
        for socket in sockets:
            socket.abort()
        await asyncio.gather(*(socket.task for socket in sockets if socket.task is not None), return_exceptions=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._sessions.close()
        if self._registration is not None:
            await self._in_thread(self._registration.close)
        self._threads.close()

    # ------------------------------------------------------------ connections

    def connected(self, socket: ClientSocket) -> bytes | None:
        """Take a connection in and return None, or else what it is sent before it is closed."""
        most = self._capacity.connections
        if self._closing or len(self._sockets) >= most:
            # Clients look for a reason in the answer to their authentication, not in place of the handshake.
            why = (
                "the server ends"
                if self._closing
                else f"{most} connections are open, which is all that the server takes: close one"
            )
            self._audit.note(Incident.CONNECTION, socket.address, f"connection from {socket.address} refused: {why}")
            return connection_state.handshake(os.urandom(connection_state.SEED_BYTES)) + connection_state.refused(
                connection_state.FAILED, why
            )
        self._sockets.add(socket)
        self.metrics.connections += 1
        self.metrics.connections_total += 1
        return None

    def disconnected(self, socket: ClientSocket) -> None:
        """Forget a connection."""
        if socket in self._sockets:
            self._sockets.discard(socket)
            self.metrics.connections -= 1
            self._sessions.disconnected(socket)
            if socket.task is not None:
                self._keep(socket.task)  # it ends on its own, unless the server does before

    async def converse(self, socket: ClientSocket) -> None:
        """Serve one connection until it ends."""
        settings = self.settings
        connection = Connection(self.settings.credentials, os.urandom(connection_state.SEED_BYTES), settings.max_frame)
        socket.write(connection.greeting())
        served = 0
        while True:
            await socket.drained(connection.write_timeout or settings.idle_timeout)
            chunk = socket.take()
            if chunk:
                connection.receive(chunk)
            try:
                found = connection.next()
            except ProtocolError as error:
                self.metrics.client("", "").errors[connection_state.FAILED] += 1
                socket.write(connection_state.refused(connection_state.FAILED, str(error)))
                return
            if found is None:
                if connection.state is connection_state.State.NEW:
                    patience = settings.auth_timeout
                else:
                    patience = min(connection.read_timeout or settings.idle_timeout, settings.idle_timeout)
                if not await socket.readable(patience):
                    return
                continue
            kind, request = found
            if connection.state is connection_state.State.NEW and kind == PacketType.CLIENTAUTHENTICATION:
                who = f"{socket.address}: wrong user name or password for user {connection_state.shown(connection.user)}"
                self._audit.note(Incident.LOGIN, socket.address, f"login refused from {who}")
            await self._answer(socket, kind, request)
            if isinstance(request, Get) and not socket.pending:
                await self._read_ahead(socket, request)
            served += 1
            if not served % _IN_A_ROW:
                await asyncio.sleep(0)  # requests that came together are no reason to keep others waiting

    async def _answer(self, socket: ClientSocket, kind: int, request: Request) -> None:
        began = time.perf_counter()
        waited = 0.0
        client = None if isinstance(request, Answer) else request.client
        if isinstance(request, Answer):
            data, code = request
        else:
            try:
                data, waited = await self._perform(socket, request)
                code = 0
            except ShmStoreError as error:
                code = connection_state.FAILED
                data = connection_state.refused(code, str(error))
                incident = next((found for kind, found in _INCIDENTS.items() if isinstance(error, kind)), None)
                if incident is not None:
                    who = f"client {request.client.client_id} of {request.client.destination!r} at {socket.address}"
                    self._audit.note(incident, socket.address, f"{who} refused: {connection_state.shown(str(error), 300)}")
            except Exception as error:
                _log.exception("%s of %s failed", PacketType(kind).name, client)
                code = connection_state.FAILED
                data = connection_state.refused(code, f"internal error: {type(error).__name__}: see the server's log")
        if client is not None and data and not code and self._registration and not self._registration.serves(client.destination):
            socket.abort()  # what was read here may be another server's to give by now
            return
        metrics = self._metrics_of(client)
        if code:
            metrics.errors[code] += 1
        metrics.bytes_in += socket.counted()
        metrics.bytes_out += len(data)
        metrics.request(kind, max(0.0, time.perf_counter() - began - waited) * 1000)
        if data:
            socket.write(data)

    def _metrics_of(self, client: Client | None) -> ClientMetrics:
        """The client's counters. Names without a subscription share one set: any client can invent them."""
        known = client is not None and client in self._sessions
        return self.metrics.client(client.destination, str(client.client_id)) if known and client else self.metrics.client("", "")

    # ------------------------------------------------------------ requests

    async def _perform(self, socket: ClientSocket, request: Request) -> tuple[bytes, float]:
        """Carry out a request; return (answer, seconds it waited because it asked to)."""
        assert not isinstance(request, Answer)
        self.settings.store_of(request.client.destination)
        self._check_active(request.client.destination)
        if isinstance(request, Subscribe):
            return await self._subscribe(socket, request), 0.0
        if isinstance(request, Unsubscribe):
            await self._sessions.forget(request.client, socket)
            return connection_state.granted(), 0.0
        shared = await self._sessions.known(request.client)
        if shared is None:
            if isinstance(request, Rollback):
                return b"", 0.0  # Python and PHP clients roll back before they subscribe, Java's and Go's right after auth
            if isinstance(request, Acknowledge) and request.batch_id == connection_state.NO_BATCH:
                return b"", 0.0
            raise ProtocolError(
                f"ClientIdentity[destination={request.client.destination},clientId={request.client.client_id}] should subscribe first"
            )
        if isinstance(request, Get):
            return await self._get_again(socket, shared, request)
        if request.batch_id != connection_state.NO_BATCH or isinstance(request, Rollback):
            async with SessionTurn(shared, socket):
                session = self._session(shared, request.client)
                async with self._dropping(shared):
                    if isinstance(request, Acknowledge):
                        session.ack(request.batch_id)
                        await self._save(session)
                    else:
                        session.rollback(request.batch_id)
        return b"", 0.0

    def _session(self, shared: SharedSession, client: Client) -> ClientSession:
        """The session, which a call that came before may have ended."""
        if shared.session is None or not self._sessions.current(shared.session):
            self._check_active(client.destination)
            raise ProtocolError(f"clientId {client.client_id} of destination {client.destination!r} is not subscribed any more")
        return shared.session

    @asynccontextmanager
    async def _dropping(self, shared: SharedSession) -> AsyncIterator[None]:
        """Drop the session where what is done in the block finds its store or subscription missing."""
        try:
            yield
        except (StoreClosed, SubscriptionLost):
            await self._sessions.drop(shared)
            raise

    async def _subscribe(self, socket: ClientSocket, request: Subscribe) -> bytes:
        client = request.client
        # Compiled in a thread, and remembered: a long filter keeps no client waiting.
        await self._in_thread(compile_filter, request.filter)
        shared = await self._sessions.open(client, socket)
        async with SessionTurn(shared, socket), self._dropping(shared):
            self._session(shared, client).filter(request.filter)
        if self._registration is not None:
            await self._in_thread(self._registration.subscribed, client, request.filter)
        return connection_state.granted()

    async def _save(self, session: ClientSession) -> None:
        """Make the client's ack durable where that is due, and known to the cluster: neither delays another client."""
        if session.unsaved:
            await self._in_thread(session.save)
        if self._cursors is not None and session.reported < session.acked:
            await self._in_thread(self._cursors.report, session)

    async def _absorb(self, session: ClientSession, batch: Batch) -> None:
        """Encode a batch, and let others have the loop: a large one (a single event can be) goes to a thread."""
        if batch and len(batch.raw) > LARGE:
            await self._in_thread(session.absorb, batch)
        else:
            session.absorb(batch)
            await asyncio.sleep(0)

    async def _get_again(self, socket: ClientSocket, shared: SharedSession, request: Get) -> tuple[bytes, float]:
        """`_get`, and once more where the store has a log and was removed meanwhile: it is restored from its home."""
        session = shared.session
        try:
            return await self._get(socket, shared, request)
        except StoreClosed:
            if session is None or session is shared.session or not session.store.has_log:
                raise
        store = session.store
        await self._in_thread(lambda: retried(store.attach_again, RETURN_SECONDS, lambda: self._closing).close())
        found = await self._sessions.known(request.client)
        if found is None:
            raise ProtocolError(f"clientId {request.client.client_id} is not subscribed any more")
        _log.info(
            "store %r was removed and is available again: client %s continues",
            request.client.destination,
            request.client.client_id,
        )
        return await self._get(socket, found, request)

    async def _get(self, socket: ClientSocket, shared: SharedSession, request: Get) -> tuple[bytes, float]:
        loop = asyncio.get_running_loop()
        deadline = None if request.wait is None else loop.time() + request.wait
        waited = 0.0
        async with SessionTurn(shared, socket) as turn:
            while True:
                session = self._session(shared, request.client)
                limit = session.limit(request.size)
                async with self._dropping(shared):
                    while (taken := session.take(limit)) is not None:
                        await self._absorb(session, taken)
                    left = _WAIT_EMPTY if deadline is None else deadline - loop.time()
                    if session.full(limit) or request.wait == 0 or left <= 0 or self._closing or socket.lost:
                        break
                    began = loop.time()
                    socket.interrupts = session
                    try:
                        longest = _WAIT_PARTIAL if session.partial else SAVING if session.undurable else _WAIT_EMPTY
                        came = await self._in_thread(session.wait, min(left, longest), limit)
                    finally:
                        socket.interrupts = None
                        waited += loop.time() - began
                    await self._absorb(session, came)
                if not await turn.step_aside(None if deadline is None else deadline - loop.time()):
                    return connection_state.no_batch(), waited
            if socket.lost:
                return b"", waited  # what was taken stays ready for the client's next GET
            await self._save(session)
            if self._cursors is not None and not session.has_cursor:
                await self._in_thread(self._cursors.give, session)
            batch = session.deliver(limit)
        metrics = self._metrics_of(request.client)
        if batch is None:
            metrics.empty_batches += 1
            return connection_state.no_batch(), waited
        batch_id, entries, rows = batch
        metrics.batches += 1
        metrics.entries += len(entries)
        metrics.rows += rows
        return connection_state.batch(batch_id, entries), waited

    async def _read_ahead(self, socket: ClientSocket, request: Get) -> None:
        """Make the client's next batch ready while it is busy with this one; stops as soon as a client has a request."""
        shared = self._sessions.get(request.client)
        if shared is None or shared.lock.locked():
            return
        async with SessionTurn(shared):
            try:
                while shared.session is not None and not (socket.pending or socket.lost or shared.waiters or self._closing):
                    taken = shared.session.take(shared.session.limit(request.size))
                    if taken is None:
                        return
                    await self._absorb(shared.session, taken)
            except ShmStoreError:
                return  # the next request meets it too, and tells the client
