"""Filters that change under load, while the producer is killed: of each transaction the store has what the filters let through that were in
force at its position, and a copy that follows the tables that pass is as the server's SELECT."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shmstore import EntryType, Event, EventStore, EventType, StoreNotFound
from shmstore.home.control import RELOAD, ControlFiles
from shmstore.home.home import Home
from tests.producer.merging import caught_up
from tests.producer.running import execute, remove, store_name, wait_for, wait_for_position
from tests.servers.server import Server

pytestmark = pytest.mark.server

TABLES = ("t0", "t1", "t2", "t3")


class Load:
    """One transaction after the other, each with a row of its number in every table; now and then one with many rows and an update."""

    def __init__(self, server: Server, database: str, chance: random.Random) -> None:
        self._server, self._database, self._chance = server, database, chance
        self._stop = threading.Event()
        self.number = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._server.connect(database=self._database, autocommit=False) as connection, connection.cursor() as cursor:
            while not self._stop.is_set():
                self.number += 1
                for _ in range(self._chance.choice((1, 1, 1, 12))):
                    for table in TABLES:
                        cursor.execute(f"INSERT INTO {table} (number) VALUES ({self.number})")
                        cursor.execute(
                            f"UPDATE {table} SET changes = changes + 1 WHERE id % 7 = {self._chance.randrange(7)} LIMIT 3"
                        )
                connection.commit()
                self._stop.wait(0.01)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


class Part:
    """What a reader knows of one source, which has a database of its own."""

    def __init__(self, passing: set[str]) -> None:
        self.passing = set(passing)
        self.numbers: list[int] = []  # of the transactions that came
        self.copies: dict[str, dict[int, tuple[Any, ...]]] = {table: {} for table in TABLES}
        self.whole = set(passing)  # tables that have passed from their beginning on
        self.inside: dict[str, set[int]] = {}


class Reader:
    """Follows the store in a thread, and checks each transaction when it is whole."""

    def __init__(self, store: EventStore, passing: dict[str, set[str]]) -> None:
        self.parts = {database: Part(tables) for database, tables in passing.items()}
        self.changes = 0
        self.error: BaseException | None = None
        self._reader, self._stop = store.subscribe("reader", start="earliest"), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if (batch := self._reader.get(timeout=0.2)) is not None:
                    for event in batch:
                        self._take(event)
                    self._reader.ack(batch)
        except BaseException as error:
            self.error = error

    def _take(self, event: Event) -> None:
        if event.entry is EntryType.HEARTBEAT:
            changed = {name: self._tables(event, name) for name in ("tables_in", "tables_out", "tables_changed")}
            assert not changed["tables_changed"]
            (database,) = {database for names in changed.values() for database, _ in names}
            part, (entered, left, _) = self.parts[database], [{table for _, table in names} for names in changed.values()]
            assert not entered & part.passing
            assert left <= part.passing
            part.passing = (part.passing | entered) - left
            part.whole -= left
            self.changes += 1
            for table in entered | left:
                part.copies[table].clear()
        elif event.entry is EntryType.BEGIN:
            for part in self.parts.values():
                part.inside = {}
        elif event.entry is EntryType.ROWS:
            assert event.table is not None
            part, table = self.parts[event.table.database], event.table.table
            assert table in part.passing, f"a row of {table} at {event.position}, where {sorted(part.passing)} pass"
            for row in event.rows:
                if row.after is not None:
                    part.copies[table][row.after[0]] = row.after
                if event.type is EventType.INSERT and row.after is not None:
                    part.inside.setdefault(table, set()).add(row.after[1])
        elif event.entry is EntryType.END and event.type is not EventType.READ:
            written = [part for part in self.parts.values() if part.inside]
            for part in written:
                (number,) = set().union(*part.inside.values())
                assert part.inside.keys() == part.passing, (
                    f"transaction {number} has {sorted(part.inside)}, {sorted(part.passing)} pass"
                )
                part.numbers.append(number)
            assert len(written) < 2

    @staticmethod
    def _tables(event: Event, name: str) -> set[tuple[str, str]]:
        found = [each.partition(".") for each in event.props.get(name, "").split(",") if each]
        return {(database, table) for database, _, table in found}

    def has(self, passing: dict[str, set[str]]) -> bool:
        """Whether these tables of each database pass at the newest event, or nothing more comes."""
        return self.error is not None or {database: part.passing for database, part in self.parts.items()} == passing

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self._reader.close()
        if self.error is not None:
            raise self.error


class Process:
    """`shmstore run` with a file of options."""

    def __init__(self, path: Path) -> None:
        self._path, self._log = path, open(path.with_suffix(".log"), "ab")  # noqa: SIM115  as long as the test
        self.start()

    def start(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "shmstore", "run", "--config", str(self._path)], stderr=self._log, stdout=self._log
        )

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(30)

    def hang_up(self) -> None:
        self._child.send_signal(signal.SIGHUP)

    def check(self) -> None:
        if self._child.poll() is not None:
            raise AssertionError(f"the producer ended: {self._path.with_suffix('.log').read_text()[-3000:]}")

    def stop(self) -> int:
        self._child.terminate()
        try:
            return self._child.wait(60)
        finally:
            self._child.kill()
            self._log.close()


def _write(path: Path, servers: dict[str, Server], store: str, passing: dict[str, set[str]]) -> None:
    """The file of the sources; each has the name of its database."""
    text = ""
    for database, server in servers.items():
        options = {
            "store": store,
            "host": server.host,
            "port": server.port,
            "user": server.user,
            "transaction_events": 8,
            "include": [f"{database}.{table}" for table in sorted(passing[database])],
            "retry_longest": 0.2,
            **({"new_tables": "snapshot"} if len(servers) == 1 else {"merge_wait": 0.4}),
        }
        text += f"[source.{database}]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
    aside = path.with_suffix(".new")
    aside.write_text(text)
    os.replace(aside, path)


def _run(servers: dict[str, Server], folder: Path, seed: int, changes: int) -> None:
    chance, store, path = random.Random(seed), store_name(), folder / "shmstore.toml"
    print(f"seed {seed}")
    for database, server in servers.items():
        execute(
            server,
            database,
            *[f"CREATE TABLE {table} (id INT PRIMARY KEY AUTO_INCREMENT, number INT, changes INT DEFAULT 0)" for table in TABLES],
        )
    passing = {database: {"t0", "t1"} for database in servers}
    _write(path, servers, store, passing)
    process = Process(path)
    try:

        def reads() -> bool:
            process.check()
            try:
                with EventStore.attach(store) as attached:
                    return attached.stat().stream.connected
            except StoreNotFound:
                return False

        wait_for(reads, "the producer to read")
        with EventStore.attach(store) as attached:
            reader = Reader(attached, passing)
            loads = {database: Load(server, database, random.Random(chance.random())) for database, server in servers.items()}
            kills = 0
            try:
                for _ in range(changes):
                    passing = {
                        database: set(chance.sample(TABLES, chance.randint(1, 3))) if chance.random() < 0.8 else tables
                        for database, tables in passing.items()
                    }
                    _write(path, servers, store, passing)
                    if chance.random() < 0.5:
                        process.hang_up()
                    else:
                        ControlFiles(Home.of(store)).ask(RELOAD)
                    if chance.random() < 0.6:
                        threading.Event().wait(chance.choice((0.0, 0.3, 0.9, 1.1, 1.3)))
                        process.kill()
                        kills += 1
                        process.start()
                        # SIGHUP before its handler is there would end it
                        wait_for(lambda: reads() and attached.stat().producer_alive, "the producer to read again")
                    wait_for(partial(reader.has, passing), "the filters to be in force")
            finally:
                for load in loads.values():
                    load.stop()
                if reader.error is not None:
                    reader.stop()
            if len(servers) == 1:
                (server,) = servers.values()
                wait_for_position(server, attached, put=True)
            else:
                wait_for(lambda: caught_up(list(servers.values()), store), "all to be put")
            wait_for(lambda: not list(Home.of(store).path.glob("*.request")) and _rows_read(store), "the snapshots")
            wait_for(
                lambda: reader.error is not None or attached.stat().subscriptions[0].ack.sequence >= attached.newest, "the reader"
            )
            reader.stop()
        process.check()
        assert process.stop() == 0
        for database, server in servers.items():
            part, load = reader.parts[database], loads[database]
            assert part.passing == passing[database]
            assert part.numbers == list(range(1, load.number + 1)), f"{database}, seed {seed}"
            # several sources have no snapshots: rows of before a table came in are not there
            for table in passing[database] if len(servers) == 1 else part.whole:
                assert part.copies[table] == _select(server, database, table), f"{table}, seed {seed}"
        print(f"{kills} kills, {reader.changes} changes, {sum(load.number for load in loads.values())} transactions")
    finally:
        process._child.kill()
        remove(store)


def _rows_read(store: str) -> bool:
    from shmstore import producer

    found = producer.snapshot_status(store)
    assert found is None or not found.failed, found
    return found is None or not found.open


def _select(server: Server, database: str, table: str) -> dict[int, tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {database}.{table}")
        return {row[0]: tuple(row) for row in cursor.fetchall()}


def test_filters_change_while_the_producer_is_killed(mariadb: Server, database: str, tmp_path: Path) -> None:
    """A few changes and kills."""
    _run({database: mariadb}, tmp_path, 7, 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_many_filters_change_while_the_producer_is_killed(any_server: Server, database: str, tmp_path: Path, seed: int) -> None:
    """Many, at random."""
    _run({database: any_server}, tmp_path, random.randrange(1 << 30) if seed else 1, 25)


def _several(mariadb: Server, mysql: Server) -> dict[str, Server]:
    servers = {"reload_a": mariadb, "reload_b": mysql}
    for database, server in servers.items():
        execute(server, "mysql", f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    return servers


def test_filters_of_several_sources_change_while_the_producer_is_killed(mariadb: Server, mysql: Server, tmp_path: Path) -> None:
    """The same of two sources in one store, each with filters of its own."""
    _run(_several(mariadb, mysql), tmp_path, 19, 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_many_filters_of_several_sources_change(mariadb: Server, mysql: Server, tmp_path: Path, seed: int) -> None:
    """Many, at random."""
    _run(_several(mariadb, mysql), tmp_path, random.randrange(1 << 30) if seed else 1, 25)
