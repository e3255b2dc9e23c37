"""Several servers, one store: a group in a thread or a process of its own, random load, and what must come out."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shmstore import EntryType, Event, EventStore, producer
from tests.producer.running import Mirror, execute, remove, store_name, wait_for
from tests.servers.server import Server

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"retry_first": 0.05, "retry_longest": 0.2, "merge_wait": 0.4}


def settings_of(servers: dict[str, Server], store: str, **options: Any) -> list[producer.Settings]:
    """A source for each server, by name; `ports`: of other doors to them."""
    ports = options.pop("ports", {})
    return [
        producer.Settings(**{"store": store, "name": name, "port": ports.get(name, server.port), **QUICK, **options})
        for name, server in servers.items()
    ]


class RunningGroup:
    """A group in a thread."""

    def __init__(self, settings: Sequence[producer.Settings], reloads: producer.Reloads | None = None) -> None:
        self.settings, self.store, self._reloads = list(settings), settings[0].store, reloads
        self._stop = threading.Event()
        self._result: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(producer.run_all(self.settings, self._stop, reloads=self._reloads))
        except BaseException as error:
            self._result.append(error)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> list[producer.Summary]:
        self._stop.set()
        self._thread.join(60)
        assert self._result, "the group did not end"
        if isinstance(self._result[0], BaseException):
            raise self._result[0]
        return self._result[0]


@contextmanager
def running_group(servers: dict[str, Server], **options: Any) -> Iterator[RunningGroup]:
    """A group that reads when the block begins; it and its store are gone at the end."""
    run = RunningGroup(settings_of(servers, options.pop("store", None) or store_name(), **options))
    try:
        wait_for(lambda: not run.alive or reads(run.store), "the group to read")
        if not run.alive:
            run.stop()
        yield run
    finally:
        run._stop.set()
        run._thread.join(60)
        remove(run.store)


def reads(store: str) -> bool:
    if store not in EventStore.names():
        return False
    with EventStore.attach(store) as attached:
        return bool(attached.stat().heartbeat_ms)


class Producer:
    """`shmstore run` in a process that can be killed."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.config.with_suffix(".log").open("ab") as log:
            command = [sys.executable, "-m", "shmstore", "run", "--config", str(self.config)]
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=log, stdout=log, env={**os.environ, "SHMSTORE_DEBUG": "1"})

    def end(self, number: int = signal.SIGKILL) -> int:
        assert self.process
        self.process.send_signal(number)
        return self.process.wait(60)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> str:
        return self.config.with_suffix(".log").read_text()


def config_text(settings: Sequence[producer.Settings], **options: Any) -> str:
    """The TOML file of `settings`."""
    lines = []
    for one in settings:
        lines.append(f"[source.{one.name}]")
        values = {"store": one.store, "port": one.port, "host": one.host, **QUICK, **options}
        lines += [f"{key} = {value!r}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def write(server: Server, database: str, rng: random.Random, transactions: int, *, large: int = 900) -> None:
    """Random transactions on table t, small and large ones."""
    with server.connect(database=database, autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COALESCE(MAX(id), 0) FROM t")
        number = cursor.fetchone()[0]
        for _ in range(transactions):
            for _ in range(rng.choice((1, 1, 2, 4))):
                what = rng.random()
                if what < 0.7 or not number:
                    count = rng.choice((1, 1, 1, 5, 40, large))
                    rows = [(number + i + 1, rng.randrange(10**6), rng.randbytes(rng.randrange(40)).hex()) for i in range(count)]
                    cursor.executemany("INSERT INTO t VALUES (%s, %s, %s)", rows)
                    number += count
                elif what < 0.9:
                    cursor.execute("UPDATE t SET a = a + 1 WHERE id >= %s LIMIT 50", (rng.randrange(number),))
                else:
                    cursor.execute("DELETE FROM t WHERE id < %s LIMIT 9", (rng.randrange(number + 1),))
            connection.commit()


def create(server: Server, *databases: str) -> None:
    for database in databases:
        execute(
            server,
            "mysql",
            f"DROP DATABASE IF EXISTS {database}",
            f"CREATE DATABASE {database}",
            f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a INT, b VARCHAR(200))",
        )


class Mirrors:
    """A mirror for each source, by its database; all of them see every event, so that transactions never interleave."""

    def __init__(self, databases: Sequence[str]) -> None:
        self.mirrors = [Mirror(database) for database in databases]
        self.ends: list[Event] = []

    def apply(self, events: list[Event]) -> None:
        self.ends += [event for event in events if event.ends_transaction and event.props.get("source")]
        self.ends = self.ends[-20000:]
        for mirror in self.mirrors:
            mirror.apply(events)

    def rows(self, database: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        return next(mirror.tables.get("t", {}) for mirror in self.mirrors if mirror.database == database)

    @property
    def parts(self) -> int:
        return self.mirrors[0].parts


def caught_up(servers: Sequence[Server], store: str) -> bool:
    """Whether the last transaction of each server is in the store."""
    with EventStore.attach(store) as attached:
        position = attached.last_ack_point()
    known = {at.gtids for _, at in position.sources} if position is not None else set()
    return all(any(covers(server, gtids) for gtids in known) for server in servers)


def covers(server: Server, gtids: str) -> bool:
    with server.connect() as connection, connection.cursor() as cursor:
        if server.flavor == "mysql":
            if gtids[8:9] != "-":
                return False
            cursor.execute("SELECT GTID_SUBSET(@@global.gtid_executed, %s)", (gtids,))
            return bool(cursor.fetchone()[0])
        cursor.execute("SELECT @@global.gtid_binlog_pos")
        return set(cursor.fetchone()[0].split(",")) <= set(gtids.split(","))


def entries(events: Sequence[Event]) -> list[EntryType]:
    return [event.entry for event in events]
