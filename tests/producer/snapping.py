"""What the snapshot tests share: a reader that keeps rows by key, a load that never rests, and waiting for a snapshot's end."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from shmstore import EntryType, Event, EventStore, EventType, producer
from shmstore.producer.snapshot import server_tables, shape
from shmstore.producer.snapshot.runner import Snapshot
from shmstore.producer.snapshot.select import Selection, selection
from tests.producer.running import Running, end_of_log, events_of, execute, wait_for
from tests.servers.server import Server

DEADLOCK = 1213


class Copy:
    """Tables as a reader has them that puts each row in place of the one with its key, whatever the event says."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {}
        self.reads = self.chunks = 0
        self._place = (0, 0, -1, 0)
        self._open = False

    def apply(self, events: list[Event]) -> None:
        for event in events:
            at = event.position
            # the row last: from MariaDB 11.4 on the events of a transaction may share an offset
            place = (at.file_number, at.offset, event.order, at.row)
            assert place > self._place, f"{place} after {self._place}: {event}"
            self._place = place
            if event.entry is EntryType.BEGIN:
                assert not self._open
                self._open = True
            elif event.entry is EntryType.END:
                assert self._open
                self._open = False
                assert event.position.gtids
                self.chunks += event.type is EventType.READ
            elif event.entry is EntryType.DDL:
                self._statement(event)
            elif event.entry is EntryType.ROWS:
                self._rows(event)

    def _statement(self, event: Event) -> None:
        if event.type is EventType.TRUNCATE:
            self.tables.get(event.props["table"], {}).clear()
        elif event.type is EventType.ALTER and "ADD COLUMN" in event.sql:
            table = self.tables.get(event.props["table"], {})
            for key in list(table):
                table[key] = (*table[key], 7)

    def _rows(self, event: Event) -> None:
        assert event.table is not None
        table = self.tables.setdefault(event.table.table, {})
        key = event.table.primary_key
        for before, after in event.rows:
            if before is not None:
                table.pop(tuple(before[i] for i in key), None)
            if after is not None:
                table[tuple(after[i] for i in key)] = after
        self.reads += len(event.rows) * (event.type is EventType.READ)


def select(
    server: Server, database: str, table: str, key: tuple[int, ...] = (0,), where: str = "TRUE"
) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The server's rows by key."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {database}.{table} WHERE {where}")
        return {tuple(row[i] for i in key): tuple(row) for row in cursor.fetchall()}


class Load:
    """Random transactions over one table (id, n, t), in a thread, until it is stopped: also key changes and rollbacks."""

    def __init__(
        self, server: Server, database: str, seed: int, rows: int, pause: float = 0.0, table: str = "t", moves: bool = True
    ) -> None:
        self._moves = moves  # whether keys change
        self._random, self._rows, self._pause, self._table = random.Random(seed), rows, pause, table
        self._connection = server.connect(database=database, autocommit=False)
        self._stop = threading.Event()
        self.count, self.error = 0, None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        r, table = self._random, self._table
        try:
            with self._connection.cursor() as cursor:
                while not self._stop.wait(self._pause):
                    for _ in range(r.randint(1, 5)):
                        id_, other = r.randint(1, self._rows), r.randint(1, self._rows)
                        sql = r.choice(
                            [
                                f"INSERT INTO {table} (id, n, t) VALUES ({id_}, {r.randint(0, 99)}, 'new') ON DUPLICATE KEY UPDATE n = n + 1",
                                f"UPDATE {table} SET n = n + 1, t = concat('u', n) WHERE id BETWEEN {id_} AND {id_ + 3}",
                                f"DELETE FROM {table} WHERE id = {id_}",
                                *[f"UPDATE IGNORE {table} SET id = {other} WHERE id = {id_}"] * self._moves,
                            ]
                        )
                        with suppress(pymysql.err.IntegrityError):
                            try:
                                cursor.execute(sql)
                            except pymysql.err.OperationalError as error:
                                if error.args[0] != DEADLOCK:
                                    raise
                                break  # the transaction is rolled back
                    if r.random() < 0.1:
                        self._connection.rollback()
                    else:
                        self._connection.commit()
                    self.count += 1
        except pymysql.MySQLError as error:
            self.error = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self._connection.close()
        assert self.error is None, self.error


def fill(server: Server, database: str, rows: int, table: str = "t") -> None:
    """A table (id, n, t) of so many rows."""
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (id int primary key, n int, t varchar(60))")
        for at in range(1, rows + 1, 5000):
            values = ",".join(f"({i},{i % 97},'row {i}')" for i in range(at, min(at + 5000, rows + 1)))
            cursor.execute(f"INSERT INTO {table} VALUES {values}")


def waits_for_lock(server: Server, database: str) -> bool:
    """Whether a statement in the database waits for a table that is read."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE db = %s AND state LIKE 'Waiting for table metadata lock'",
            (database,),
        )
        return bool(cursor.fetchone()[0])


def fill_slowly_found(server: Server, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table t of 20 rows without a key, which the server takes two seconds to look through where only some rows are wanted."""
    fill(server, database, 20)
    execute(server, database, "ALTER TABLE t DROP PRIMARY KEY, MODIFY id INT NULL")

    def slow(*arguments: Any, **options: Any) -> Selection:
        made = selection(*arguments, **options)
        return made._replace(condition=f"IF(SLEEP(0.1) = 0, {made.condition}, 0)") if made.condition else made

    for module in (server_tables, shape):
        monkeypatch.setattr(module, "selection", slow)


@contextmanager
def killable(server: Server, store: str, state: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`shmstore produce` in a process of its own; killed at the end."""
    where = ["--host", server.host, "--port", str(server.port), "--user", server.user, "--store", store, "--state", str(state)]
    with subprocess.Popen([sys.executable, "-m", "shmstore", "produce", *where, *words]) as process:
        try:
            yield process
        finally:
            process.kill()


def lately(monkeypatch: pytest.MonkeyPatch, server: Server, *changes: Callable[[], Any]) -> None:
    """Let one of `changes` happen between the read of each chunk and its put, which waits until the stream has brought it."""
    left, logged = list(changes), dict[Any, tuple[str, int]]()
    place = Snapshot._place

    def late(self: Snapshot, chunk: Any) -> None:
        if chunk not in logged:
            if left:
                left.pop(0)()
            logged[chunk] = end_of_log(server)
        reached = self._decoder.position
        if (reached.file, reached.offset) >= logged[chunk]:
            place(self, chunk)

    monkeypatch.setattr(Snapshot, "_place", late)


def finished(run: Running) -> bool:
    """Whether nothing of a snapshot is left to do."""
    progress = producer.snapshot_status(run.settings.store, state=run.settings.state or None)
    return not run.alive or (
        progress is not None
        and bool(progress.requests)
        and not progress.open
        and not list((Path(run.settings.state) / run.settings.store).glob("*.request"))
    )


def copied(run: Running, server: Server) -> Copy:
    """What a reader has that read everything from the beginning, once the snapshot is done and the stream has caught up."""
    wait_for(lambda: finished(run), "the snapshot")
    if not run.alive:
        run.wait()
    copy = Copy()
    copy.apply(events_of(run, server))
    return copy


def states(run: Running) -> dict[str, str]:
    """The state of each table of the snapshot."""
    progress = producer.snapshot_status(run.settings.store, state=run.settings.state)
    assert progress is not None
    return {task.table: task.progress.state for task in progress.tasks}


__all__ = ["Copy", "EventStore", "Load", "copied", "fill", "finished", "killable", "lately", "select", "states"]
