"""The server of Arrow Flight: which request is answered how. `remote.protocol` has the requests, docs/how-to/flight.md what clients do with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from shmstore import Position, ProtocolError, StoreError, StoreNotFound, StoreView
from shmstore.consumer.flight.endpoint import Caller, FlightEndpoint, Reply, certificate
from shmstore.consumer.flight.sessions import FlightSession, FlightSessions
from shmstore.consumer.flight.settings import FlightSettings
from shmstore.consumer.flight.tables import Tables, read_events, read_rows
from shmstore.consumer.remote import events
from shmstore.consumer.remote.protocol import GET, Request, pack, unpack_start
from shmstore.consumer.serving.access import Login
from shmstore.consumer.serving.audit import Audit

MOST_WAIT: Final = 60.0  # seconds that one request waits for events
MOST_SYNC: Final = 1.0  # seconds that one request waits for the disk
BATCH_BYTES: Final = 8 << 20  # of one without limits
ACTIONS: Final = {
    "store": "what a store is: {store}",
    "subscribe": "own a subscription: {store, subscription, session, start, lease, checkpoint}",
    "ack": "everything up to a sequence is done: {session, sequence}",
    "seek": "continue elsewhere: {session, start}",
    "state": "where a subscription stands: {session}",
    "cursor": "bytes, rows and time up to an event: {session, sequence}",
    "save": "make the ack durable now: {session}",
    "sync": "wait until the log has a sequence on disk: {session, sequence, timeout}",
    "renew": "the client lives: {session}",
    "close": "give a subscription back: {session}",
}
_TYPED: Final[tuple[str, ...]] = ("zero_dates", "partial")


class FlightServer(FlightEndpoint):
    """A server over the stores of this host, until `close`. Raises `OSError` where the address or the certificate cannot be had."""

    def __init__(self, settings: FlightSettings) -> None:
        self._settings = settings
        self._tables: dict[str, Tables] = {}
        audit = Audit()
        self._sessions = FlightSessions(
            settings.store_of, settings.state, audit, settings.max_lease, settings.max_new_subscriptions
        )
        super().__init__(
            settings.host,
            settings.port,
            Login(settings.user, settings.password),
            audit,
            tls=certificate(settings.tls_cert, settings.tls_key),
            max_connections=settings.max_connections,
            max_calls=settings.max_calls,
            idle_timeout=settings.idle_timeout,
        )

    def _view(self, name: str) -> StoreView:
        try:
            return StoreView.attach(self._settings.store_of(name), state=self._settings.state)
        except ValueError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreNotFound(f"{name!r} cannot name a store") from error

    # ------------------------------------------------------------ what there is

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        """Called by Flight: the stores and their tables; with criteria those of one store."""
        with self.call(context):
            found = []
            for name in [criteria.decode()] if criteria else self._settings.served or StoreView.names():
                try:
                    with self._view(name) as store:
                        found.append(self._described(name, "", events.SCHEMA))
                        tables = self._tables_of(name).columns(store)
                        found += [self._described(name, table, self._schema(store, tables[table])) for table in sorted(tables)]
                except StoreError:
                    if criteria:
                        raise
            return iter(found)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Called by Flight: the path STORE or STORE, DATABASE.TABLE; or a ticket as the command."""
        with self.call(context):
            if descriptor.command:
                raise ProtocolError("give a path (STORE, or STORE and DATABASE.TABLE) instead of a command, or a ticket to DoGet")
            name, table = (*(part.decode() for part in descriptor.path), "")[:2]
            with self._view(name) as store:
                schema = self._schema(store, self._tables_of(name).column(store, table)) if table else events.SCHEMA
            return self._described(name, table, schema)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Called by Flight."""
        return flight.SchemaResult(self.get_flight_info(context, descriptor).schema)

    def _described(self, name: str, table: str, schema: pa.Schema) -> Any:
        path, ticket = [name], {"store": name}
        if table:
            path, ticket = [name, table], {"store": name, "table": table}
        endpoint = flight.FlightEndpoint(pack(ticket), [])  # no location: the server that was asked
        return flight.FlightInfo(schema, flight.FlightDescriptor.for_path(*path), [endpoint], -1, -1)

    def _tables_of(self, name: str) -> Tables:
        return self._tables.setdefault(name, Tables())

    def _schema(self, store: StoreView, table: Any) -> pa.Schema:
        return store.peek(store.newest + 1, limit_events=1).to_arrow(table).schema

    def list_actions(self, context: Any) -> list[Any]:
        """Called by Flight."""
        with self.call(context):
            return [flight.ActionType(*each) for each in ACTIONS.items()]

    # ------------------------------------------------------------ reading

    def answer(self, ticket: Request, caller: Caller) -> Reply:
        """A range of a store, or the next events of a session."""
        if "session" in ticket:
            return self._next(ticket, caller)
        unknown = set(ticket) - {"store", "table", "first", "last", *_TYPED}
        if unknown or "store" not in ticket:
            raise ProtocolError(
                f"a ticket has store, and table, first, last, {', '.join(_TYPED)} besides; this one {sorted(ticket)}"
            )
        store = self._view(str(ticket["store"]))
        try:
            first = store.find(unpack_start(ticket.get("first", "earliest")))
            last = min(store.newest, int(ticket.get("last", store.newest)))
            if "table" not in ticket:
                return events.SCHEMA, self._counted(_closing(store, read_events(store, first, last)), store.name)
            table = self._tables_of(str(ticket["store"])).column(store, str(ticket["table"]))
            options = _options(ticket)
            rows = _closing(store, read_rows(store, first, last, table, options))
            return self._schema(store, table), self._counted(rows, store.name)
        except BaseException:
            store.close()
            raise

    def _next(self, ticket: Request, caller: Caller) -> Reply:
        unknown = set(ticket) - {"session", *GET}
        if unknown:
            raise ProtocolError(f"a ticket of a session has {', '.join(GET)}; not {', '.join(sorted(unknown))}")
        session = self._sessions.get(str(ticket["session"]))
        if "table" in ticket:
            state, batch = self._taken(session, ticket, caller)
            rows = batch.to_arrow(str(ticket["table"]), **_options(ticket))
            schema = rows.schema.with_metadata({key: str(state[key]) for key in ("first", "last")})
            return schema, self._counted(rows.replace_schema_metadata(schema.metadata).to_batches(), *session.names)
        return events.SCHEMA, self._counted(self._following(session, ticket, caller), *session.names)

    def _counted(self, content: Iterable[Any], store: str, subscription: str = "") -> Iterator[Any]:
        with self.metrics.stream(store, subscription) as sent:
            for each in content:
                self.metrics.count(sent, each[0] if isinstance(each, tuple) else each)
                yield each

    def _following(self, session: FlightSession, ticket: Request, caller: Caller) -> Iterator[tuple[pa.RecordBatch, Request]]:
        """The schema goes out before the wait, so that a client can cancel it."""
        state, batch = self._taken(session, ticket, caller)
        for each in events.pack(events.RemoteEvents.of(batch)):
            yield each, state

    def _taken(self, session: FlightSession, ticket: Request, caller: Caller) -> tuple[Request, Any]:
        if not any(name in ticket for name in ("limit_events", "limit_bytes")):
            ticket = {**ticket, "limit_bytes": BATCH_BYTES}

        def take(again: bool) -> tuple[Request, Any]:
            ack = int(ticket.get("ack", -1))
            if again:  # what was not acked is given again, as to a reader on this host; what this request acks the client has
                ack = min(ack, session.attached.newest)
                session.align(ack)
            else:
                session.align(ticket.get("got"))
            if ack > session.subscription.ack_cursor.sequence:
                session.subscription.ack(ack)
            before = session.cursors()
            batch, whole = session.get(ticket, caller.gone, MOST_WAIT)
            state = {"before": before, **session.cursors(), "first": batch.first, "last": batch.last, "whole": whole}
            return state, batch

        with session.turn(caller.place):
            found: tuple[Request, Any] = session.reattached(take)
            return found

    # ------------------------------------------------------------ actions

    def act(self, action: str, request: Request, caller: Caller) -> Request:
        """Carry out an action."""
        if action not in ACTIONS:
            raise ProtocolError(f"there is no action {action[:64]!r}; there are {', '.join(ACTIONS)}")
        self.metrics.action(action)
        if action == "store":
            with self._view(str(request["store"])) as store:
                return {
                    "name": store.name,
                    "epoch": store.epoch,
                    "capacity": store.capacity,
                    "memory_unit": store.memory_unit,
                    "limit_bytes": store.limit_bytes,
                    "batch_mode": int(store.batch_mode),
                    "ddl_isolation": store.ddl_isolation,
                    "has_log": store.has_log,
                    "oldest": store.oldest,
                    "newest": store.newest,
                }
        if action == "subscribe":
            if "resume" in request:  # first: a subscription that was made for one that is refused would hold the log
                self._sessions.check_resume(request)
            session, new = self._sessions.subscribe(request, caller.place)
            with session.turn(caller.place):
                if "resume" in request:
                    session.reattached(lambda _: session.resume(request["resume"]))
                return {**session.cursors(), "epoch": session.attached.epoch, "new": new}
        session = self._sessions.get(str(request["session"]))
        if action == "renew":
            session.renew(caller.place)
            return {}
        if action == "close":
            self._sessions.close(str(request["session"]))
            return {}
        with session.turn(caller.place):
            return session.reattached(lambda again: _carried_out(session, action, request, again))  # type: ignore[no-any-return]

    # ------------------------------------------------------------ counters, end

    def exposition(self) -> str:
        """The counters, in Prometheus' text format."""
        return self.metrics.exposition(store for store, _ in self._sessions.names())

    def look_after(self, connected: set[Any]) -> None:
        """Give back the subscriptions that no client holds any more."""
        self._sessions.look_after(connected)
        if self._settings.beat is not None:
            self._settings.beat()

    def close(self) -> None:
        """End every call, and give up the subscriptions: their clients continue with the next server."""
        super().close()
        self._sessions.close_all()


def _carried_out(session: FlightSession, action: str, request: Request, again: bool) -> Request:
    subscription = session.subscription
    session.align(request.get("got"))
    if action == "ack":
        what = unpack_start(request["position"] if "position" in request else request["sequence"])
        if not isinstance(what, int | Position):
            raise ProtocolError(f"{what!r} is neither a sequence nor a position")
        if not (again and isinstance(what, int) and what <= subscription.ack_cursor.sequence):  # else it counted the first time
            subscription.ack(what)
    elif action == "seek":
        subscription.seek(unpack_start(request["start"]))
    elif action == "save":
        subscription.save_checkpoint()
    elif action == "sync":
        wait = min(max(0.0, float(request.get("timeout", 0.0))), MOST_SYNC)
        return {"synced": session.attached.sync(min(int(request["sequence"]), session.attached.newest), wait)}
    elif action == "cursor":
        return {"cursor": list(session.attached.cursor_at(int(request["sequence"])))}
    return {**session.cursors(), "newest": session.attached.newest}


def _options(ticket: Request) -> dict[str, Any]:
    return {name: str(ticket[name]) for name in _TYPED if name in ticket}


def _closing(store: StoreView, content: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with store:
        yield from content
