"""A server's tables in parts, read next to a store by connections of their own: with the stream from `sequence` on they are the table."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shmstore import Event, EventStore, SourceError, StoreNotFound
from shmstore.encoding.codec import decode
from shmstore.producer import ServerTable, ServerTables, Settings
from shmstore.producer.connection.prepared import SelectRows
from shmstore.producer.snapshot import server_tables
from tests.producer.proxy import CuttingProxy
from tests.producer.running import Running, execute, running, wait_for, wait_for_position
from tests.producer.snapping import Copy, Load, fill, fill_slowly_found, select, waits_for_lock
from tests.producer.snapshot.test_runner import KEYS
from tests.servers.server import Server

pytestmark = pytest.mark.server


@pytest.fixture
def run(any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A producer of the database. Parts are small, and read in many chunks of many pieces."""
    monkeypatch.setattr(server_tables, "LEAST_ROWS", 5)
    monkeypatch.setattr(server_tables, "CHUNK_BYTES", 8 << 10)
    monkeypatch.setattr(server_tables, "PIECE_BYTES", 2 << 10)
    with running(any_server, state=str(tmp_path), include=(f"{database}.*",), retry_first=0.01) as started:
        yield started


def rows_of(table: ServerTable, part: int) -> list[tuple[Any, ...]]:
    """The rows of a part, as READ events give them."""
    found = []
    for raw, ends in table.read(part):
        assert list(ends) == [len(raw)]
        event = decode(raw)
        assert event.table == table.schema
        found += [after for before, after in event.rows if before is None]
    return found


def all_rows(table: ServerTable) -> list[tuple[Any, ...]]:
    """The rows of all parts, read side by side, as they are in other processes: from a pickle."""
    copy = pickle.loads(pickle.dumps(table))
    with ThreadPoolExecutor(4) as pool:
        return [row for part in pool.map(lambda part: rows_of(copy, part), range(copy.parts)) for row in part]


def events_from(run: Running, server: Server, sequence: int) -> list[Event]:
    """What the store holds from `sequence` on, once the producer has read all that the server has logged."""
    with EventStore.attach(run.settings.store, state=run.settings.state) as store:
        wait_for_position(server, store, put=True)
        return list(store.peek(sequence)) if sequence <= store.newest else []


def test_the_rows_and_the_stream_from_there_are_the_table(
    run: Running, any_server: Server, database: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While rows come, go, change and get other keys: a copy that puts each in place of the row with its key equals SELECT."""
    monkeypatch.setattr(server_tables, "LEAST_ROWS", 500)
    fill(any_server, database, 12_000)
    execute(any_server, database, "ANALYZE TABLE t")
    for number in range(3):
        load = Load(any_server, database, seed + number, rows=13_000)
        try:
            wait_for(lambda load=load: load.count > 20, "some load")
            table, begun = ServerTables(run.settings).open(f"{database}.t", parts=8), load.count
            copy = Copy()
            copy.tables["t"] = {row[:1]: row for row in all_rows(table)}
            assert table.parts == 8
            assert load.count > begun
        finally:
            load.stop()
        copy.apply(events_from(run, any_server, table.sequence))
        assert copy.tables["t"] == select(any_server, database, "t"), f"round {number}"


def test_rows_that_move_between_parts_stand_under_their_new_key_alone(run: Running, any_server: Server, database: str) -> None:
    """From a part that was read into one that was not, and the other way round: with the stream, and not without it."""
    fill(any_server, database, 80)
    execute(any_server, database, "ANALYZE TABLE t")
    table = ServerTables(run.settings).open(f"{database}.t", parts=4)
    assert table.parts == 4
    early = rows_of(table, 0) + rows_of(table, 1)
    meanwhile = (
        "UPDATE t SET id = 3 + 1000 WHERE id = 3",  # both reads show it
        "DELETE FROM t WHERE id = 5",
        "UPDATE t SET id = 5 WHERE id = 75",  # neither does
        "INSERT INTO t VALUES (2000, 1, 'new'), (3, 2, 'again')",
        "UPDATE t SET n = 555 WHERE id IN (7, 70, 1003)",
        "DELETE FROM t WHERE id = 78",
    )
    execute(any_server, database, *meanwhile)
    rows = early + [row for part in range(2, table.parts) for row in rows_of(table, part)]
    copy = Copy()
    copy.tables["t"] = {row[:1]: row for row in rows}
    wanted = select(any_server, database, "t")
    assert copy.tables["t"] != wanted
    assert {(3,), (1003,)} <= set(copy.tables["t"])
    assert copy.tables["t"][5,] != wanted[5,]
    copy.apply(events_from(run, any_server, table.sequence))
    assert copy.tables["t"] == wanted


def test_any_key_is_cut_into_parts_that_have_each_row_once(run: Running, any_server: Server, database: str) -> None:
    """Integers by estimates, other keys by a walk over the index, in order; a table without a key is one part."""
    tables = ServerTables(run.settings)
    for name, (columns, values) in KEYS.items():
        execute(any_server, database, f"CREATE TABLE `{name}` ({columns})")
        rows = ", ".join(f"({values.format(i=i)})" for i in range(1, 41))
        execute(any_server, database, f"INSERT IGNORE INTO `{name}` VALUES {rows}", f"ANALYZE TABLE `{name}`")
        table = tables.open(f"{database}.{name}", parts=5)
        found, wanted = all_rows(table), tables.open(f"{database}.{name}", parts=1)
        assert Counter(found) == Counter(rows_of(wanted, 0)), name
        with any_server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM `{name}`")
            assert (len(found),) == cursor.fetchone(), name
        assert (table.parts > 1) == (name not in ("keyless", "nulls")), f"{name} is in {table.parts} parts"


def test_parts_have_about_as_many_rows_where_numbers_have_gaps(
    run: Running, any_server: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of which most values are in a small corner is cut there."""
    monkeypatch.setattr(server_tables, "LEAST_ROWS", 100)
    fill(any_server, database, 4000)
    execute(any_server, database, "INSERT INTO t VALUES (2147483647, 1, 'far'), (-2147483648, 1, 'away')", "ANALYZE TABLE t")
    table = ServerTables(run.settings).open(f"{database}.t", parts=32)
    counts = [len(rows_of(table, part)) for part in range(table.parts)]
    assert sum(counts) == 4002
    assert max(counts) < 1500, counts


@pytest.mark.parametrize("key", ["PRIMARY KEY", "NOT NULL"], ids=["key", "keyless"])
@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
def test_rows_larger_than_every_budget_are_read_one_by_one(
    run: Running, any_server: Server, database: str, monkeypatch: pytest.MonkeyPatch, seed: int, key: str, pure: bool
) -> None:
    """Rows of all sizes around the pieces that are given at a time, those that fill a chunk and one of several megabytes."""
    if pure:
        monkeypatch.setattr(server_tables, "SelectRows", partial(SelectRows, compiled_code=False))
    chosen = random.Random(seed)
    sizes = [3 << 20, 0, *(chosen.choice([0, 10, 2 << 10, 8 << 10, 600 << 10]) + chosen.randrange(5) for _ in range(12))]
    execute(any_server, database, f"CREATE TABLE large (id INT {key}, data LONGTEXT)")
    for i, size in enumerate(sizes):
        execute(any_server, database, f"INSERT INTO large VALUES ({i}, REPEAT('x', {size}))")
    table = ServerTables(run.settings).open(f"{database}.large", parts=2)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(all_rows, table).result(timeout=60)
    assert [(id, len(data)) for id, data in found] == list(enumerate(sizes))


def test_an_empty_table_has_a_part_without_rows(run: Running, any_server: Server, database: str) -> None:
    """It is read as any other, also by a text key."""
    execute(any_server, database, "CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id VARCHAR(9) PRIMARY KEY)")
    for name in ("a", "b"):
        table = ServerTables(run.settings).open(f"{database}.{name}")
        assert (table.parts, all_rows(table)) == (1, [])


def test_a_lost_connection_is_opened_again_behind_the_last_row(run: Running, any_server: Server, database: str) -> None:
    """Rows come once, however often the link breaks in the middle of them."""
    fill(any_server, database, 3000)
    # Before that a MySQL's binlog is read to see where the rows begin, over the link that breaks.
    with EventStore.attach(run.settings.store) as store:
        wait_for_position(any_server, store, put=True)
    budgets = iter([None, *[15_000] * 6])
    proxy = CuttingProxy(any_server.port, lambda: next(budgets, None))
    try:
        table = ServerTables(replace(run.settings, port=proxy.port)).open(f"{database}.t", parts=1)
        rows = rows_of(table, 0)
        assert proxy.cuts >= 3
    finally:
        proxy.close()
    assert [row[0] for row in rows] == list(range(1, 3001))


@pytest.mark.parametrize("change", ["ALTER TABLE t ADD COLUMN more INT", "DROP TABLE t", "ALTER TABLE t MODIFY n BIGINT"])
def test_a_ddl_while_a_table_is_read_is_an_error(run: Running, any_server: Server, database: str, change: str) -> None:
    """In the middle of a part, and before one. Opened again, the table is read as it is then."""
    fill(any_server, database, 3000)
    execute(any_server, database, "ANALYZE TABLE t")
    table = ServerTables(run.settings).open(f"{database}.t", parts=2)
    reading = table.read(0)
    next(reading)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(execute, any_server, database, change)
        wait_for(lambda: waits_for_lock(any_server, database), "the DDL to wait for the read")
        with pytest.raises(SourceError):
            list(reading)
        done.result(60)
    with pytest.raises(SourceError, match="changed by a DDL, or dropped, after it was opened: open it again"):
        rows_of(table, 1)
    if "DROP" not in change:
        assert len(all_rows(ServerTables(run.settings).open(f"{database}.t"))) == 3000


def test_the_stream_has_no_gap_in_front_of_an_empty_store(any_server: Server, database: str, tmp_path: Path) -> None:
    """A store that nothing came into yet: the rows are read behind the place where its producer began."""
    fill(any_server, database, 50)
    with running(any_server, state=str(tmp_path), include=(f"{database}.*",)) as started:
        table = ServerTables(started.settings).open(f"{database}.t")
        copy = Copy()
        copy.tables["t"] = {row[:1]: row for row in all_rows(table)}
        assert len(copy.tables["t"]) == 50
        execute(any_server, database, "UPDATE t SET n = n + 1 WHERE id < 9", "DELETE FROM t WHERE id = 20")
        copy.apply(events_from(started, any_server, table.sequence))
        assert copy.tables["t"] == select(any_server, database, "t")


def test_filters_of_the_producer_hold(run: Running, any_server: Server, database: str) -> None:
    """Rows that do not pass are not read, columns are left out and masked as in the stream."""
    fill(any_server, database, 200)
    given = {
        "row_filter": (f"{database}.t: id > 100",),
        "column_exclude": (f"{database}.t.n",),
        "column_mask": (f"{database}.t.t",),
    }
    table = ServerTables(replace(run.settings, **given)).open(f"{database}.t", parts=4)
    assert table.schema.names == ("id", "t")
    assert all_rows(table) == [(i, "***") for i in range(101, 201)]


def test_few_rows_that_pass_are_looked_for_a_chunk_at_a_time(
    run: Running, any_server: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No SELECT goes through more of the table than a chunk, so that a server is never long silent where few rows pass; those all come."""
    monkeypatch.setattr(server_tables, "CHUNK_BYTES", 1000)
    fill(any_server, database, 300)
    asked: list[str] = []
    make = SelectRows.__init__

    def noted(self: SelectRows, session: Any, sql: str, *rest: Any) -> None:
        asked.append(sql)
        make(self, session, sql, *rest)

    monkeypatch.setattr(SelectRows, "__init__", noted)
    for condition, parts in (("id IN (7, 205, 300)", 1), ("id IN (7, 205, 300)", 3), ("id > 1000", 1)):
        given = replace(run.settings, row_filter=(f"{database}.t: {condition}",))
        table = ServerTables(given).open(f"{database}.t", parts=parts)
        asked.clear()
        assert [row[0] for part in range(table.parts) for row in rows_of(table, part)] == (
            [] if "1000" in condition else [7, 205, 300]
        )
        ends = [sql for sql in asked if sql.endswith(", 1")]
        rows = [sql for sql in asked if sql not in ends]
        assert len(rows) == len(ends) > 2 * parts
        unbound = [sql for sql in rows if "`id` <= " not in sql]
        assert [sql.rpartition(" ")[2].isdigit() for sql in unbound] == [
            True
        ]  # the table's last rows: a LIMIT, and fewer are left


def test_a_table_without_a_key_of_which_few_rows_pass(
    run: Running, any_server: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server, which sends nothing while it looks for a row that passes, is waited for, however long that takes."""
    fill_slowly_found(any_server, database, monkeypatch)
    given = replace(run.settings, row_filter=(f"{database}.t: id = 20",), read_timeout=1.0)
    table = ServerTables(given).open(f"{database}.t")
    assert (table.parts, all_rows(table)) == (1, [(20, 20, "row 20")])


def test_rows_of_a_prepared_transaction_are_waited_for(run: Running, any_server: Server, database: str) -> None:
    """They are in the stream since its XA PREPARE, before `sequence`, and in no read before its XA COMMIT."""
    fill(any_server, database, 20)
    quick = ServerTables(replace(run.settings, read_timeout=1.0))
    with any_server.connect(database=database) as connection, connection.cursor() as cursor:
        for sql in ("XA START 'x'", "INSERT INTO t VALUES (100, 1, 'prepared')", "XA END 'x'", "XA PREPARE 'x'"):
            cursor.execute(sql)
        with EventStore.attach(run.settings.store, state=run.settings.state) as store:
            wait_for_position(any_server, store, put=True)
        with pytest.raises(SourceError, match="1 prepared XA transactions for 1 s"):
            quick.open(f"{database}.t")
        with ThreadPoolExecutor(1) as pool:
            opened = pool.submit(ServerTables(run.settings).open, f"{database}.t")
            wait_for(lambda: opened.running(), "the table to be opened")
            cursor.execute("XA COMMIT 'x'")
            copy = Copy()
            copy.tables["t"] = {row[:1]: row for row in all_rows(opened.result(30))}
    assert copy.tables["t"] == select(any_server, database, "t")


def test_what_cannot_be_read_is_said(run: Running, any_server: Server, database: str, tmp_path: Path) -> None:
    """No such table, one that is filtered out, no store, a store without a log, another server; and no text shows the password."""
    tables = ServerTables(run.settings)
    execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    with pytest.raises(SourceError, match="has no table"):
        tables.open(f"{database}.nothing")
    with pytest.raises(SourceError, match="filters let no table"):
        tables.open("mysql.user")
    with pytest.raises(StoreNotFound):
        ServerTables(replace(run.settings, store="nowhere")).open(f"{database}.t")
    with pytest.raises(SourceError, match="no tables"):
        ServerTables(Settings(store="s", binlog=str(tmp_path)))
    with running(any_server, include=(f"{database}.*",), log="off") as other, pytest.raises(SourceError, match="has no log"):
        ServerTables(other.settings).open(f"{database}.t")
    table = tables.open(f"{database}.t")
    with pytest.raises(SourceError, match="another server"):
        rows_of(replace(table, _identity="other"), 0)
    secret = replace(table, _settings=replace(run.settings, password="s3cret", hash_key="s3cret"))
    assert "s3cret" not in f"{secret!r} {secret} {ServerTables(secret._settings)!r}"
