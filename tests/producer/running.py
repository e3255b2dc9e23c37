"""A producer in a thread, a reader that keeps tables, and the comparison with the server's own SELECT."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shmstore import EntryType, Event, EventStore, EventType, StoreNotFound, producer
from shmstore.home import kinds
from shmstore.home.home import Home
from tests.servers.server import Server

_numbers = itertools.count(1)


def store_name() -> str:
    """A store name that no other test has."""
    return f"producer-{os.getpid()}-{next(_numbers)}"


class Running:
    """A producer in a thread. `stop()` gives its summary, or raises what it raised."""

    def __init__(self, settings: producer.Settings, **handlers: Any) -> None:
        self.settings = settings
        self._stop = threading.Event()
        self._result: list[Any] = []
        self._handlers = handlers
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(producer.run(self.settings, self._stop, **self._handlers))
        except BaseException as error:
            self._result.append(error)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float = 30) -> producer.Summary:
        """Wait for it to end without a stop."""
        self._thread.join(seconds)
        assert self._result, "the producer did not end"
        if isinstance(self._result[0], BaseException):
            raise self._result[0]
        return self._result[0]

    def stop(self) -> producer.Summary:
        self._stop.set()
        return self.wait()


@contextmanager
def running(server: Server, **options: Any) -> Iterator[Running]:
    """A producer of `server`'s changes, reading when the block begins, and its store; both gone at the end."""
    handlers = {name: options.pop(name) for name in ("before", "after") if name in options}
    settings = producer.Settings(
        **{"store": store_name(), "host": server.host, "port": server.port, "user": server.user, "heartbeat": 0.1, **options}
    )
    run = Running(settings, **handlers)
    try:
        wait_for(lambda: not run.alive or _reads(settings.store), "the producer to read")
        if not run.alive:
            run.wait()
        yield run
    finally:
        run._stop.set()
        run._thread.join(30)
        remove(settings.store, settings.state)


def _reads(store: str) -> bool:
    try:
        with EventStore.attach(store) as attached:
            return bool(attached.stat().heartbeat_ms)
    except StoreNotFound:
        return False


def remove(store: str, state: str = "") -> None:
    """Remove a store, if it is there, with its log; what else is in its home stays, such as checkpoints of stores without one."""
    with suppress(StoreNotFound):
        EventStore.unlink(store)
    home = Home.of(store, state or None)
    if (epoch := home.epoch_there()) is not None:
        kinds.remove_log(home, epoch)


def wait_for(condition: Any, what: str, seconds: float = 60) -> None:
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def end_of_log(server: Server) -> tuple[str, int]:
    """Where what `server` has logged ends: (file, offset)."""
    with server.connect() as connection, connection.cursor() as cursor:
        try:
            cursor.execute("SHOW BINARY LOG STATUS")
        except Exception:
            cursor.execute("SHOW MASTER STATUS")
        file, offset = cursor.fetchone()[:2]
        return file, offset


def purge(server: Server) -> None:
    """Remove all of the server's binlog files but the newest. It keeps those of a replica whose leaving it has not noticed yet, so it is asked until
    they are gone."""

    def purged() -> bool:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            newest = cursor.fetchall()[-1][0]
            cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")
            cursor.execute("SHOW BINARY LOGS")
            return len(cursor.fetchall()) == 1

    wait_for(purged, "the old files to go")


def wait_for_position(server: Server, store: EventStore, seconds: float = 60, *, put: bool = False) -> None:
    """Wait until the producer has read everything that `server` has logged; with `put`, until all of that is in the store."""
    file, offset = end_of_log(server)

    def arrived() -> bool:
        read = None if put else store.stat().source_position  # a second old, and ahead of the ring while that is full
        return any(
            position is not None and (position.file, position.offset) >= (file, offset)
            for position in (store.latest_position, read)
        )

    wait_for(arrived, f"the producer to reach {file}:{offset}", seconds)


class Mirror:
    """Keeps the tables of one database from events; refuses what could not happen: a row put twice, or one that was left out."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.tables: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {}
        self.events = self.transactions = self.ddls = self.parts = 0
        self.last: Event | None = None
        self._open = ""
        self._order, self._part = -1, 0

    def apply(self, events: list[Event]) -> None:
        for event in events:
            self.events += 1
            self._check_order(event)
            if event.entry is EntryType.ROWS and event.table is not None and event.table.database == self.database:
                self._rows(event)

    def _check_order(self, event: Event) -> None:
        place = f"{event.position} {event.transaction}#{event.order}"
        if event.entry is EntryType.BEGIN:
            assert not self._open, f"BEGIN inside {self._open} at {place}"
            self._open, self._order = event.transaction, event.order
        elif event.entry is EntryType.DDL and "in_transaction" not in event.props:
            assert not self._open, f"DDL inside {self._open} at {place}"
            self.ddls += 1
        else:
            assert event.transaction == self._open, f"{event.entry.name} of {event.transaction} inside {self._open!r} at {place}"
            assert event.order > self._order, f"order {event.order} after {self._order} at {place}"
            self.parts += event.order > 0 and event.part > self._part
            self._order = event.order
            if event.entry is EntryType.END:
                self._open = ""
                self.transactions += 1
        self._part = event.part
        self.last = event

    def _rows(self, event: Event) -> None:
        assert event.table is not None
        table = self.tables.setdefault(event.table.table, {})
        key = event.table.primary_key
        assert key
        for before, after in event.rows:
            old = tuple(before[i] for i in key) if before is not None else None
            new = tuple(after[i] for i in key) if after is not None else None
            where = f"{event.table.table} at {event.position}"
            if event.type is EventType.INSERT:
                assert new not in table, f"row {new} of {where} came twice"
                table[new] = after
            elif event.type is EventType.UPDATE:
                assert table.get(old) == before, f"row {old} of {where}: {table.get(old)} is not {before}"
                del table[old]
                table[new] = after
            else:
                assert table.get(old) == before, f"row {old} of {where}: {table.get(old)} is not {before}"
                del table[old]


class Follower:
    """Reads a store in a thread into a mirror, acking what it got."""

    def __init__(self, store: str, mirror: Mirror, subscription: str = "mirror", limit: int | None = None) -> None:
        self.store, self.mirror, self.subscription, self.limit = EventStore.attach(store), mirror, subscription, limit
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self._reader = self.store.subscribe(subscription)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                batch = self._reader.get(timeout=0.2, limit_events=self.limit)
                if not batch and self._stop.is_set():
                    return
                self.mirror.apply(list(batch))
                if batch:
                    self._reader.ack(batch)
        except BaseException as error:
            self.error = error

    def finish(self) -> Mirror:
        """Read what is left, then give the mirror."""
        self._stop.set()
        self._thread.join(60)
        if self.error is not None:
            raise self.error
        self._reader.close()
        self.store.close()
        return self.mirror


def select_table(server: Server, database: str, table: str, key: int = 0) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The server's rows by their first column."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {database}.{table}")
        return {(row[key],): tuple(row) for row in cursor.fetchall()}


def events_of(run: Running, server: Server) -> list[Event]:
    """What the producer has put by the time it has read all that the server has logged."""
    with EventStore.attach(run.settings.store) as store:
        wait_for(lambda: not run.alive or _has_read(server, store), "the producer")
        if not run.alive:
            run.wait()
        return list(store.peek(store.oldest))


def _has_read(server: Server, store: EventStore) -> bool:
    try:
        wait_for_position(server, store, 0.3)
    except AssertionError:
        return False
    return True


def execute(server: Server, database: str, *statements: str, **options: Any) -> None:
    with server.connect(database=database, **options) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def shape(events: list[Event]) -> list[str]:
    return [event.entry.name if event.entry is not EntryType.ROWS else event.type.name for event in events]
