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


class Reader:
    """Follows the store in a thread, and checks each transaction when it is whole."""

    def __init__(self, store: EventStore, passing: set[str]) -> None:
        self.passing, self.changes = passing, 0
        self.numbers: list[int] = []  # of the transactions that came
        self.copies: dict[str, dict[int, tuple[Any, ...]]] = {table: {} for table in TABLES}
        self.read: set[str] = set(passing)  # tables of which the copy has all rows
        self.error: BaseException | None = None
        self._reader, self._stop = store.subscribe("reader", start="earliest"), threading.Event()
        self._inside: dict[str, set[int]] = {}
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
            entered, left, other = (self._tables(event, name) for name in ("tables_in", "tables_out", "tables_changed"))
            assert not other
            assert not entered & self.passing
            assert left <= self.passing
            self.passing = (self.passing | entered) - left
            self.changes += 1
            for table in entered | left:
                self.copies[table].clear()
        elif event.entry is EntryType.BEGIN:
            self._inside = {}
        elif event.entry is EntryType.ROWS:
            assert event.table is not None
            table = event.table.table
            assert table in self.passing, f"a row of {table} at {event.position}, where {sorted(self.passing)} pass"
            for row in event.rows:
                if row.after is not None:
                    self.copies[table][row.after[0]] = row.after
                if event.type is EventType.INSERT and row.after is not None:
                    self._inside.setdefault(table, set()).add(row.after[1])
        elif event.entry is EntryType.END and event.type is not EventType.READ:
            numbers = set().union(*self._inside.values())
            if numbers:
                (number,) = numbers
                assert self._inside.keys() == self.passing, (
                    f"transaction {number} has {sorted(self._inside)}, {sorted(self.passing)} pass"
                )
                self.numbers.append(number)

    @staticmethod
    def _tables(event: Event, name: str) -> set[str]:
        return {each.partition(".")[2] for each in event.props.get(name, "").split(",") if each}

    def has(self, passing: set[str]) -> bool:
        """Whether these tables pass at the newest event, or nothing more comes."""
        return self.error is not None or self.passing == passing

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


def _write(path: Path, server: Server, store: str, database: str, passing: set[str]) -> None:
    options = {
        "store": store,
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "new_tables": "snapshot",
        "transaction_events": 8,
        "include": [f"{database}.{table}" for table in sorted(passing)],
        "retry_longest": 0.2,
    }
    aside = path.with_suffix(".new")
    aside.write_text("[producer]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items()))
    os.replace(aside, path)


def _run(server: Server, database: str, folder: Path, seed: int, changes: int) -> None:
    chance, store, path = random.Random(seed), store_name(), folder / "shmstore.toml"
    print(f"seed {seed}")
    execute(
        server,
        database,
        *[f"CREATE TABLE {table} (id INT PRIMARY KEY AUTO_INCREMENT, number INT, changes INT DEFAULT 0)" for table in TABLES],
    )
    passing = {"t0", "t1"}
    _write(path, server, store, database, passing)
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
            reader, load = Reader(attached, set(passing)), Load(server, database, chance)
            try:
                for _ in range(changes):
                    passing = set(chance.sample(TABLES, chance.randint(1, 3)))
                    _write(path, server, store, database, passing)
                    if chance.random() < 0.5:
                        process.hang_up()
                    else:
                        ControlFiles(Home.of(store)).ask(RELOAD)
                    if chance.random() < 0.6:
                        threading.Event().wait(chance.choice((0.0, 0.3, 0.9, 1.1, 1.3)))
                        process.kill()
                        process.start()
                        # SIGHUP before its handler is there would end it
                        wait_for(lambda: reads() and attached.stat().producer_alive, "the producer to read again")
                    wait_for(partial(reader.has, passing), "the filters to be in force")
            finally:
                load.stop()
                if reader.error is not None:
                    reader.stop()
            wait_for_position(server, attached, put=True)
            wait_for(lambda: not list(Home.of(store).path.glob("*.request")) and _rows_read(store), "the snapshots")
            wait_for(
                lambda: reader.error is not None or attached.stat().subscriptions[0].ack.sequence >= attached.newest, "the reader"
            )
            reader.stop()
        process.check()
        assert process.stop() == 0
        assert reader.passing == passing
        assert reader.numbers == list(range(1, load.number + 1))
        for table in passing:
            assert reader.copies[table] == _select(server, database, table), f"{table}, seed {seed}"
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
    _run(mariadb, database, tmp_path, 7, 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_many_filters_change_while_the_producer_is_killed(any_server: Server, database: str, tmp_path: Path, seed: int) -> None:
    """Many, at random."""
    _run(any_server, database, tmp_path, random.randrange(1 << 30) if seed else 1, 25)
