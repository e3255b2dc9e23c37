"""shmstore.producer.verify on real servers: equal copies are called equal while both change, and no broken one is."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shmstore import Consumer, EventType, StoreError
from shmstore.consumer.copies.change_reduction import Merge
from shmstore.consumer.copies.changed_rows import target_fields
from shmstore.consumer.copies.databases.target import database_target
from shmstore.consumer.copies.reading import called
from shmstore.consumer.copies.reading.arrow_copies import delta, iceberg, parquet
from shmstore.consumer.copies.reading.called import CalledCopy
from shmstore.consumer.copies.reading.databases import postgresql, sqlite
from shmstore.consumer.formats.values import time_text
from shmstore.encoding.arrow import column_array
from shmstore.encoding.codec import unpack_rows
from shmstore.errors import CopyUnreadable
from shmstore.event import Column, TableSchema
from shmstore.producer.connection import prepared
from shmstore.producer.verify import source_rows
from shmstore.producer.verify.changed_rows import ChangedRows
from shmstore.producer.verify.copy import ReadableCopy
from shmstore.producer.verify.digests import Digests, any_point, differing, key_bytes, numbers_of
from shmstore.producer.verify.result import TableResult, VerifyProgress
from shmstore.producer.verify.server_copy import ServerCopy
from shmstore.producer.verify.source_rows import SourceRows
from shmstore.producer.verify.verification import Verification
from tests.producer.running import Running, running, wait_for
from tests.producer.snapping import Load, fill
from tests.servers.postgres import start_postgres
from tests.servers.server import Server

Copies = Callable[[str, str], ReadableCopy]


class Kept:
    """A copy in memory that a consumer keeps up to date, in a thread."""

    def __init__(self, store: str, state: Path, key: int = 0) -> None:
        self.tables: dict[str, dict[Any, dict[str, Any]]] = {}
        self._lock, self._consumer = threading.Lock(), Consumer(store, "copy")
        self._key, self.loses = key, frozenset[Any]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for batch in self._consumer:
            with self._lock:
                for event in batch:
                    self._apply(event)

    def _apply(self, event: Any) -> None:
        if event.table is None:
            return
        rows, names = self.tables.setdefault(event.table.table, {}), event.table.names
        for row in event.rows:
            if (row.before or row.after)[self._key] in self.loses:
                continue
            if event.type in (EventType.UPDATE, EventType.DELETE):
                rows.pop(row.before[self._key], None)
            if row.after is not None:
                rows[row.after[self._key]] = dict(zip(names, row.after, strict=True))

    def read(self, table: TableSchema) -> list[dict[str, Any]]:
        with self._lock:
            return list(self.tables.get(table.table, {}).values())

    def read_slowly(self, table: TableSchema) -> Iterator[dict[str, Any]]:
        """Each row as it is when that is read, in the order of the keys."""
        last = -1
        while True:
            with self._lock:
                rows = self.tables.get(table.table, {})
                last = min((key for key in rows if key > last), default=-1)
                if last < 0:
                    return
                row = rows[last]
            yield row

    def close(self) -> None:
        self._consumer.stop()
        self._thread.join(30)
        self._consumer.close()


def verified(run: Running, copies: Copies, database: str, table: str = "t", **options: Any) -> TableResult:
    given = {"subscription": None, "patience": 60.0, **options}
    with Verification(run.settings, copies, **given) as verification:
        return verification.verify(database, table)


@contextmanager
def kept(server: Server, database: str, state: Path, rows: int) -> Iterator[tuple[Running, Kept]]:
    """A table of so many rows, whose copy a consumer keeps."""
    fill(server, database, rows)
    with running(server, include=(f"{database}.*",), snapshot="initial", state=str(state)) as run:
        copy = Kept(run.settings.store, state)
        with closing(copy):
            wait_for(lambda: len(copy.tables.get("t", ())) == rows, "the rows")
            yield run, copy


def test_a_copy_that_follows_is_equal_while_both_change(any_server: Server, database: str, tmp_path: Path, seed: int) -> None:
    """Under a load that changes, moves and deletes rows all the while: equal, with changes seen; and with one row taken from the
    copy, or one value off, that row is named with both values, whatever else changes."""
    with kept(any_server, database, tmp_path, 5_000) as (run, copy):
        load = Load(any_server, database, seed, 4_000)
        with closing(ExitLoad(load)):
            for _ in range(3):
                found = verified(run, lambda *_: CalledCopy(copy.read), database, subscription="copy")
                assert found.equal, found
            assert found.changed > 0

            def broken(table: TableSchema) -> list[dict[str, Any]]:
                rows = copy.read(table)
                return [{**row, "n": row["n"] + 1} if row["id"] == 4_500 else row for row in rows if row["id"] != 4_800]

            found = verified(run, lambda *_: CalledCopy(broken), database, subscription="copy")
    assert [each.key for each in found.samples] == [[4_500], [4_800]]
    assert found.differences == 2
    assert [(each.source is None, each.copy is None) for each in found.samples] == [(False, False), (False, True)]
    assert found.samples[0].source is not None
    assert found.samples[0].copy == [4_500, found.samples[0].source[1] + 1, "row 4500"]


@pytest.mark.parametrize("part", ["begin", "middle", "end"])
def test_a_change_that_the_copy_loses_meanwhile_is_found(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, part: str
) -> None:
    """Rows that changed behind their reading, and whose change the copy never took in, have equal old values on both sides: they are found all the
    same, and those whose change it did take in are not. The copy has each row as it is when that is read."""
    chosen = random.Random(seed)
    hurried(monkeypatch)
    monkeypatch.setattr(called, "BATCH_ROWS", chosen.randrange(20, 120))
    moment = {"begin": 0, "middle": chosen.randrange(1, 1_199), "end": 1_200}[part]
    with kept(any_server, database, tmp_path, 600) as (run, copy):
        numbers = chosen.sample(range(1, 601), 120)
        statements = {
            number: chosen.choice(("UPDATE t SET n = n + 1", "DELETE FROM t", "UPDATE t SET id = id + 10000"))
            for number in numbers
        }
        new = range(2_000, 2_040)
        lost = {*chosen.sample(numbers, 60), *chosen.sample(new, 20)}
        copy.loses = frozenset(lost)
        done = False

        def meanwhile(progress: VerifyProgress) -> None:
            nonlocal done
            if progress.doing == "reading" and progress.rows + progress.copied >= moment and not done:
                done = True
                with any_server.connect(database=database) as connection, connection.cursor() as cursor:
                    for number in numbers:
                        cursor.execute(f"{statements[number]} WHERE id = {number}")
                    for number in new:
                        cursor.execute(f"INSERT INTO t VALUES ({number}, 1, 'new')")

        found = verified(run, lambda *_: CalledCopy(copy.read_slowly), database, subscription="copy", progress=meanwhile)
    moved = {number + 10_000 for number in lost if "id + 10000" in statements.get(number, "")}
    assert done
    assert sorted([each.key[0] for each in found.samples]) == sorted(lost | moved)


class ExitLoad:
    def __init__(self, load: Load) -> None:
        self.close = load.stop


TYPES = """id INT, b BINARY(3), k VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_swedish_ci, n BIGINT UNSIGNED, d DECIMAL(20, 5), f FLOAT,
    g DOUBLE, s VARCHAR(40), t TIMESTAMP(3) NULL, w DATETIME(6), y DATE, i TIME(2), e ENUM('a', 'b'), m SET('x', 'y'), bits BIT(12), x BLOB,
    PRIMARY KEY (k, id)"""
TEXTS = [
    ("-123456789012345.00010", "2026-01-02 03:04:05.678", "1000-01-01 00:00:00.000001", "0001-01-01", "-838:59:59.00"),
    ("1.50000", "1970-01-01 00:00:01.000", "9999-12-31 23:59:59.999999", "9999-12-31", "00:00:00.01"),
]
ROWS = [
    (1, b"\x00a\xff", "Ö", 2**64 - 1, TEXTS[0][0], 1.1, 0.1, "", *TEXTS[0][1:], "a", "x,y", b"\x0f\xff", b""),
    (2, b"abc", "o", 0, "0.00000", -0.0, 1e300, "x ", *[None] * 8),
    (3, b"   ", "", 7, TEXTS[1][0], 16777217.0, 3.14, "é\U0001f600", *TEXTS[1][1:], "b", "", b"\x00\x00", b"\x00"),
]


@contextmanager
def typed(server: Server, database: str, state: Path) -> Iterator[tuple[Running, dict[str, Any]]]:
    """A table of many types, and its rows as a consumer has them: as values, and as events hold them."""
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE t ({TYPES})")
        cursor.execute("SET time_zone = '+00:00'")
        with running(server, include=(f"{database}.*",), state=str(state)) as run:
            with Consumer(run.settings.store, "all", timeout=20) as consumer:
                cursor.executemany(f"INSERT INTO t VALUES ({','.join(['%s'] * 16)})", ROWS)
                event = next(event for batch in consumer for event in batch if event.table is not None)
                events = [event]
                while sum(len(each.rows) for each in events) < 3:
                    events += [each for each in consumer.get(timeout=20) if each.table is not None]
            yield run, {"schema": event.table, "rows": [row.after for each in events for row in each.rows]}


def _parquet(place: Path, schema: TableSchema, rows: list[Any]) -> ReadableCopy:
    place.mkdir()
    pq.write_table(_copied(schema, rows), place / "one.parquet")
    return parquet(str(place))


def _delta(place: Path, schema: TableSchema, rows: list[Any]) -> ReadableCopy:
    import deltalake

    deltalake.write_deltalake(str(place), _copied(schema, rows))
    return delta(str(place))


def _iceberg(place: Path, schema: TableSchema, rows: list[Any]) -> ReadableCopy:
    from pyiceberg.catalog.sql import SqlCatalog

    place.mkdir()
    catalog = SqlCatalog("copies", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
    catalog.create_namespace("shop")
    table = _copied(schema, rows)
    catalog.create_table("shop.t", schema=table.schema).append(table)
    return iceberg(str(place / "shop" / "t"))


def _copied(schema: TableSchema, rows: list[Any]) -> pa.Table:
    """The rows with the columns that a copy has."""
    arrays = []
    by_column = zip(*_as_stored(schema, rows), strict=True) if rows else [()] * len(schema.columns)
    for column, field, values in zip(schema.columns, target_fields(schema), by_column, strict=True):
        text = time_text(column.scale) if column.type == "time" else None
        cells = [value if text is None or value is None else text(value) for value in values]
        arrays.append(pa.array(cells, field.type) if text else column_array(column, field.type, cells, "error"))
    return pa.Table.from_arrays(arrays, schema=pa.schema(target_fields(schema)))


def _as_stored(schema: TableSchema, rows: list[Any]) -> list[Any]:
    from shmstore.consumer.copies.reading.stored_values import stored

    makes = [stored(column) for column in schema.columns]
    return [[make(value) for make, value in zip(makes, row, strict=True)] for row in rows]


def _sqlite(place: Path, schema: TableSchema, rows: list[Any]) -> ReadableCopy:
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.execute(f"CREATE TABLE t ({', '.join(column.name for column in schema.columns)})")
        wide = (bytes, int, float, str, type(None))
        plain = [
            [
                value if isinstance(value, wide) and not (isinstance(value, int) and value >= 2**63) else str(value)
                for value in row
            ]
            for row in rows
        ]
        for row in plain:
            row[11] = None if row[11] == "None" else _time_text(rows[plain.index(row)][11])
        connection.executemany(f"INSERT INTO t VALUES ({','.join('?' * len(schema.columns))})", plain)
    return sqlite(str(place), "t")


def _time_text(value: Any) -> str | None:
    if value is None:
        return None
    micros = abs(value).total_seconds()
    sign = "-" if value.total_seconds() < 0 else ""
    return f"{sign}{int(micros // 3600)}:{int(micros // 60 % 60):02}:{micros % 60:05.2f}"


def _called(place: Path, schema: TableSchema, rows: list[Any]) -> ReadableCopy:
    return CalledCopy(lambda table: [dict(zip(schema.names, row, strict=True)) for row in rows])


@pytest.mark.parametrize("make", [_parquet, _delta, _iceberg, _sqlite, _called], ids=lambda make: make.__name__[1:])
def test_every_broken_cell_of_a_copy_is_found(
    mariadb: Server, database: str, tmp_path: Path, make: Callable[[Path, TableSchema, list[Any]], ReadableCopy]
) -> None:
    """Every column of every row in turn: another value near it, NULL for a value, a value for NULL; a row missing, one too many, one doubled."""
    with typed(mariadb, database, tmp_path / "state") as (run, copied):
        schema, rows = copied["schema"], copied["rows"]
        key = {schema.names.index("k"), schema.names.index("id")}
        number = iter(range(10_000))

        def found(damaged: list[Any]) -> TableResult:
            return verified(run, lambda *_: make(tmp_path / f"copy-{next(number)}", schema, damaged), database)

        assert found(rows).equal, found(rows)
        assert found(rows[:2]).differences == 1
        assert found([]).differences == 3
        assert found([*rows, ("new", *rows[0][1:]) if isinstance(rows[0][0], str) else (9, *rows[0][1:])]).differences == 1
        assert found([*rows, rows[1]]).differences == 1
        at = random.Random(5).sample([(r, c) for r in range(3) for c in range(16) if c not in key], 12)
        for r, c in at:
            value = rows[r][c]
            other = next(row[c] for row in rows if row[c] is not None and row[c] != value) if value is None else near(value)
            damaged = [list(row) for row in rows]
            damaged[r][c] = other
            result = found([tuple(row) for row in damaged])
            assert result.differences == 1, (schema.columns[c], value, other, result)
            (sample,) = result.samples
            assert sample.source is not None
            assert sample.copy is not None
            assert [i for i in range(16) if sample.source[i] != sample.copy[i]] == [c]


def near(value: Any) -> Any:
    """Another value of the kind, as near as there is one; NULL for what has none."""
    import datetime
    import decimal

    if isinstance(value, str):
        return value.removesuffix(" ") if value.endswith(" ") else None
    if isinstance(value, bytes):
        return value[:-1] + bytes([value[-1] ^ 1]) if value else None
    if isinstance(value, decimal.Decimal):
        return value + decimal.Decimal("0.00001")
    if isinstance(value, datetime.timedelta):
        return value + datetime.timedelta(milliseconds=10)
    if isinstance(value, datetime.datetime):
        return value + datetime.timedelta(milliseconds=1) * (-1 if value.year == 9999 else 1)
    if isinstance(value, datetime.date):
        return value + datetime.timedelta(days=-1 if value.year == 9999 else 1)
    return value * 2 if isinstance(value, float) and value else value ^ 1 if isinstance(value, int) else None


def test_a_copy_in_postgresql(mariadb: Server, database: str, tmp_path: Path) -> None:
    """The types that replicate gives a copy there, every value equal; then one digit off, NULL for an empty text, a row missing."""
    with start_postgres() as postgres, typed(mariadb, database, tmp_path) as (run, copied):
        schema = copied["schema"]
        rows = _copied(schema, copied["rows"])
        keys = tuple([schema.names[i] for i in schema.primary_key])
        url = f"postgresql://{postgres.user}@127.0.0.1:{postgres.port}/postgres"
        with psycopg.connect(url, password=postgres.password, autocommit=True) as connection:
            target = database_target(url, postgres.password)
            with target.transaction():
                target.table("copied", "t").commit(Merge(keys, rows, rows.select(list(keys)).slice(0, 0), schema), {})
            target.close()
            copies = lambda *_: postgresql(url, "copied", postgres.password)  # noqa: E731
            found = verified(run, copies, database)
            assert found.equal, found
            connection.execute("UPDATE copied SET d = d + 0.00001 WHERE id = 1")
            connection.execute("UPDATE copied SET s = NULL WHERE id = 1")
            connection.execute("DELETE FROM copied WHERE id = 2")
            changed, missing = sorted(verified(run, copies, database).samples, key=lambda each: each.copy is None)
            assert (changed.source[4], changed.copy[4], changed.source[7], changed.copy[7]) == (  # type: ignore[index]
                *("-123456789012345.00010", "-123456789012345.00009"),
                *("", None),
            )
            assert missing.key == ["o", 2]
            connection.execute(b'CREATE TABLE "odd%s" ("a%d" INT, "b\'\'\\" INT)')
            connection.execute(b'INSERT INTO "odd%s" VALUES (1, 2), (3, 4)')
            odd = TableSchema("d", "odd%s", (Column("a%d", "int"), Column("b''\\", "int")), (0,))
            with closing(postgresql(url, "odd%s", postgres.password)) as copy:
                assert sorted(row for rows in copy.rows(odd) for row in rows) == [[1, 2], [3, 4]]
                assert list(copy.rows_of(odd, [[3], [5]])) == [[3, 4]]
            connection.execute("DROP TABLE copied")
            assert 'relation "copied" does not exist' in verified(run, copies, database).problem
        with pytest.raises(CopyUnreadable, match="cannot be reached"):
            postgresql(url, "copied", "wrong")


def test_a_copy_on_a_server(any_server: Server, database: str, tmp_path: Path) -> None:
    """A table next to it is its copy: equal, then one value off by a trailing blank, which its collation does not see, then a row more."""
    with (
        typed(any_server, database, tmp_path) as (run, _),
        any_server.connect(database=database) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        cursor.execute("CREATE TABLE copied LIKE t")
        cursor.execute("INSERT INTO copied SELECT * FROM t")
        copies = lambda database, table: ServerCopy(run.settings, database, "copied")  # noqa: E731
        assert verified(run, copies, database).equal
        cursor.execute("UPDATE copied SET s = 'x' WHERE id = 2")
        (difference,) = verified(run, copies, database).samples
        assert (difference.source[7], difference.copy[7]) == ("x ", "x")  # type: ignore[index]
        cursor.execute("INSERT INTO copied SELECT 9, b, k, n, d, f, g, s, t, w, y, i, e, m, bits, x FROM t WHERE id = 1")
        assert verified(run, copies, database).differences == 2
        cursor.execute("ALTER TABLE copied DROP COLUMN g")
        assert "no column g" in verified(run, copies, database).problem


@pytest.mark.parametrize("key", ["PRIMARY KEY (nr)", "PRIMARY KEY (id)", "PRIMARY KEY (id, nr)"])
def test_a_copy_with_a_key_of_its_own_is_asked_by_the_source_s(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """What differs is read by the source's key, not by reading all rows again, whichever key the copy has, and however it writes its columns' names."""
    fill(any_server, database, 400)
    with (
        running(any_server, include=(f"{database}.t",), state=str(tmp_path)) as run,
        any_server.connect(database=database) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"CREATE TABLE copied (T VARCHAR(60), n INT, nr INT, Id INT, {key})")
        cursor.execute("INSERT INTO copied SELECT t, n, 1000 - id, id FROM t WHERE id <> 20")
        cursor.execute("UPDATE copied SET n = n + 1 WHERE id = 7")
        copy = ServerCopy(run.settings, database, "copied")
        pieces, read = SourceRows.pieces, list[SourceRows]()
        monkeypatch.setattr(SourceRows, "pieces", lambda self, *a, **named: read.append(self) or pieces(self, *a, **named))
        table = TableSchema(database, "t", (Column("id", "int"), Column("n", "int"), Column("t", "varchar")), (0,))
        with closing(copy):
            assert sorted(copy.rows_of(table, [[7], [20], [21], [999]])) == [[7, 8, "row 7"], [21, 21, "row 21"]]
        assert not read
        found = verified(run, lambda *_: ServerCopy(run.settings, database, "copied"), database)
        assert [(each.key, each.copy is None) for each in found.samples] == [([7], False), ([20], True)]


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the source in small pieces."""
    monkeypatch.setattr(source_rows, "FIRST_ROWS", 50)
    monkeypatch.setattr(source_rows, "MOST_ROWS", 50)


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("DROP TABLE t", "it was dropped, or renamed, while it was compared"),
        ("RENAME TABLE t TO elsewhere", "it was dropped, or renamed"),
        ("ALTER TABLE t DROP COLUMN n", ""),
    ],
    ids=["drop", "rename", "alter"],
)
def test_a_ddl_while_a_table_is_read_stops_no_other(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ddl: str, says: str
) -> None:
    """A table that goes is reported as not compared, one that changes is read again, and the next one is compared as ever."""
    hurried(monkeypatch)
    for name in ("t", "u"):
        fill(any_server, database, 300, name)
    left = [ddl]

    def meanwhile(progress: VerifyProgress) -> None:
        if left and progress.doing == "reading" and progress.rows == 100:
            with any_server.connect(database=database) as connection, connection.cursor() as cursor:
                cursor.execute(left.pop())

    def read(table: TableSchema) -> Iterator[dict[str, Any]]:
        with any_server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(table.names)} FROM {table.table}")
            yield from [dict(zip(table.names, row, strict=True)) for row in cursor.fetchall()]

    with (
        running(any_server, include=(f"{database}.*",), state=str(tmp_path)) as run,
        Verification(run.settings, lambda *_: CalledCopy(read), subscription=None, progress=meanwhile) as verification,
    ):
        found = [verification.verify(database, name) for name in ("t", "u")]
        assert not left
        assert (says in found[0].problem, bool(found[0].problem), found[0].rows) == (True, bool(says), 0 if says else 300)
        assert (found[1].equal, found[1].rows) == (True, 300)
        assert not list((tmp_path / run.settings.store / "verify").iterdir())


def test_a_copy_that_is_behind_an_alter_is_waited_for(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that takes in the ALTER only when the comparison waits for it lacks a column before; it is not refused for that."""
    fill(any_server, database, 300)
    names = ["id", "n", "t"]

    def read(table: TableSchema) -> Iterator[dict[str, Any]]:
        with any_server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(names)} FROM t")
            yield from [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    with (
        running(any_server, include=(f"{database}.*",), state=str(tmp_path)) as run,
        Consumer(run.settings.store, "copy") as consumer,
    ):

        def follow() -> None:
            for batch in consumer:
                names.extend(["more" for event in batch if event.type is EventType.ALTER])

        with any_server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("ALTER TABLE t ADD COLUMN more INT DEFAULT 5")
        following, wait = threading.Thread(target=follow, daemon=True), Verification._wait

        def waiting(self: Verification, behind: Callable[[], str], changes: ChangedRows) -> None:
            if not following.ident:
                following.start()
            wait(self, behind, changes)

        monkeypatch.setattr(Verification, "_wait", waiting)
        found = verified(run, lambda *_: CalledCopy(read), database, subscription="copy")
        consumer.stop()
        following.join(30)
    assert (found.problem, found.equal, found.rows, found.table.names) == ("", True, 300, ("id", "n", "t", "more"))


@pytest.mark.parametrize("taken", [1, 3, 6, 7])
def test_a_side_that_is_left_early_can_be_asked_again(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """Closed in the middle of a SELECT, or at the end of one, the rows leave the connection free for the next question."""
    monkeypatch.setattr(source_rows, "PIECE_BYTES", 1)
    monkeypatch.setattr(prepared, "RECEIVE", 1 << 10)
    hurried(monkeypatch)
    with copied(any_server, database, tmp_path) as (run, _), closing(ServerCopy(run.settings, database, "copied")) as copy:
        table = TableSchema(database, "t", (Column("id", "int"), Column("n", "int"), Column("t", "varchar")), (0,))
        rows = copy.rows(table)
        before = [row for _ in range(taken) for row in unpack_rows(next(rows))]
        assert 0 < len(before) < 300
        rows.close()
        assert copy.rows_of(table, [[7]]) == [[7, 7, "row 7"]]
        assert sum(len(unpack_rows(some)) for some in copy.rows(table)) == 300


@contextmanager
def copied(server: Server, database: str, state: Path) -> Iterator[tuple[Running, Any]]:
    """A table of 300 rows, its producer, and its copy, the table `copied` next to it, and a cursor."""
    fill(server, database, 300)
    with (
        running(server, include=(f"{database}.t",), state=str(state)) as run,
        server.connect(database=database) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("CREATE TABLE copied LIKE t")
        cursor.execute("INSERT INTO copied SELECT * FROM t")
        yield run, cursor


def test_each_side_is_read_in_the_order_of_its_index(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source and copy on a server are asked alike: a range of the index that the rows stand in, nothing converted, nothing sorted."""
    hurried(monkeypatch)
    asked: list[str] = []
    ask = SourceRows._asked

    def noted(self: SourceRows, sql: str) -> Any:
        asked.append(sql)
        return ask(self, sql)

    monkeypatch.setattr(SourceRows, "_asked", noted)
    with copied(any_server, database, tmp_path) as (run, cursor):
        assert verified(run, lambda *_: ServerCopy(run.settings, database, "copied"), database).equal
        sides = [sorted(sql for sql in asked if f".`{name}`" in sql) for name in ("t", "copied")]
        assert len(sides[0]) > 2
        assert [sql.replace(".`copied`", ".`t`") for sql in sides[1]] == sides[0]
        for sql in asked:
            assert sql.startswith("SELECT `id`, `n`, `t` FROM ")
            form = "FORMAT=TRADITIONAL " if any_server.flavor == "mysql" else ""  # MySQL 9's own is a text
            cursor.execute(f"EXPLAIN {form}{sql}")
            columns = [column[0] for column in cursor.description]
            plan = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
            assert [(each["key"], "filesort" in (each["Extra"] or "")) for each in plan] == [("PRIMARY", False)]


def test_a_filtered_table_is_read_in_parts_of_all_its_rows(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No SELECT goes through more of the table than a part, so that a server is never long silent where few rows pass; those are all compared."""
    hurried(monkeypatch)
    fill(any_server, database, 300)
    asked: list[str] = []
    ask = SourceRows._asked
    monkeypatch.setattr(SourceRows, "_asked", lambda self, sql: asked.append(sql) or ask(self, sql))
    options = {
        "include": (f"{database}.t",),
        "row_filter": (f"{database}.t: n = 20 AND id > 60 OR id = 300",),
        "state": str(tmp_path),
    }
    with (
        running(any_server, **options) as run,
        any_server.connect(database=database) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("CREATE TABLE copied LIKE t")
        cursor.execute("INSERT INTO copied SELECT * FROM t WHERE n = 20 AND id > 60 OR id = 300")
        found = verified(run, lambda *_: ServerCopy(run.settings, database, "copied"), database)
        assert (found.equal, found.rows, found.copied) == (True, 3, 3)
        own = [sql for sql in asked if ".`t`" in sql]
        assert [sql.count("`id` <= ") for sql in own] == [1, 1, 1, 1, 1, 1, 0]
        assert own[-1].endswith("LIMIT 50")
        cursor.execute("UPDATE copied SET n = 21 WHERE id IN (117, 300)")
        cursor.execute("DELETE FROM copied WHERE id = 214")
        found = verified(run, lambda *_: ServerCopy(run.settings, database, "copied"), database)
        assert [each.key for each in found.samples] == [[117], [214], [300]]


def test_a_copy_that_goes_while_it_is_read(
    any_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy on a server that is dropped meanwhile is reported as not compared."""
    hurried(monkeypatch)
    with copied(any_server, database, tmp_path) as (run, cursor):

        def meanwhile(progress: VerifyProgress) -> None:
            if progress.copied == 100:
                cursor.execute("DROP TABLE IF EXISTS copied")

        copies = lambda *_: ServerCopy(run.settings, database, "copied")  # noqa: E731
        assert "the copy cannot be read" in verified(run, copies, database, progress=meanwhile).problem


def test_a_key_that_is_hashed(any_server: Server, database: str, tmp_path: Path) -> None:
    """What differs, and what changed meanwhile, is found though the server cannot be asked for a hash."""
    fill(any_server, database, 200)
    left = ["UPDATE t SET n = n + 1 WHERE id = 100"]
    with running(any_server, include=(f"{database}.t",), column_hash=(f"{database}.t.id",), state=str(tmp_path)) as run:

        def read(table: TableSchema) -> Iterator[dict[str, Any]]:
            with any_server.connect(database=database) as connection, connection.cursor() as cursor:
                while left:
                    cursor.execute(left.pop())
                cursor.execute("SELECT sha2(id, 256), n, t FROM t")
                for key, n, t in cursor.fetchall():
                    yield {"id": key, "n": n + (t == "row 50"), "t": t}

        found = verified(run, lambda *_: CalledCopy(read), database)
        assert [(each.source or each.copy or [])[2] for each in found.samples] == ["row 50"]


def test_what_cannot_be_compared_says_why(mariadb: Server, database: str, tmp_path: Path) -> None:
    """No copy, no key, a column with the wrong kind, a subscription that does not exist, one that does not read on, no producer."""
    with kept(mariadb, database, tmp_path, 100) as (run, copy):
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE keyless (a INT)")
        assert "there is no copy" in verified(run, lambda *_: parquet(str(tmp_path / "none")), database).problem
        assert "no primary key" in verified(run, lambda *_: CalledCopy(copy.read), database, "keyless").problem
        assert "no such table" in verified(run, lambda *_: CalledCopy(copy.read), database, "gone").problem
        wrong = CalledCopy(lambda table: [{**row, "n": "seven"} for row in copy.read(table)])
        assert "'seven' is no integer" in verified(run, lambda *_: wrong, database).problem
        with pytest.raises(ValueError, match="no subscription 'other' that feeds the copies: it has copy"):
            verified(run, lambda *_: CalledCopy(copy.read), database, subscription="other")
        copy.close()
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1000, 1, 'later')")
        with pytest.raises(StoreError, match=r"the copy has not taken in event .*subscription 'copy'.* is its query running\?"):
            verified(run, lambda *_: CalledCopy(copy.read), database, subscription="copy", patience=2.0)
        run.stop()
        with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1001, 1, 'unseen')")
        with pytest.raises(StoreError, match="no producer runs on store"):
            verified(run, lambda *_: CalledCopy(copy.read), database, patience=2.0)


KILLED = """
import json, os, sys
from shmstore import producer
from shmstore.consumer.copies.databases.target import database_target
from shmstore.consumer.copies.reading.arrow_copies import parquet
from shmstore.producer.verify import source_rows, verification
from shmstore.producer.verify.verification import Verification
settings, database, place, most = producer.Settings(**json.loads(sys.argv[1])), sys.argv[2], sys.argv[3], int(sys.argv[4])
source_rows.FIRST_ROWS = source_rows.MOST_ROWS = 1000
verification.SAVE = -1
pieces = []
def progress(done):
    if done.doing == "reading" and done.rows not in pieces:
        pieces.append(done.rows)
    if len(pieces) == most:
        os.kill(os.getpid(), 9)
with Verification(settings, lambda *_: parquet(place), subscription=None, progress=progress) as comparing:
    found = comparing.verify(database, "t")
print(json.dumps([found.rows, found.differences, [each.key for each in found.samples], len(pieces)]))
"""


def test_after_kill_9_it_goes_on_where_it_was(mariadb: Server, database: str, tmp_path: Path) -> None:
    """Killed after 5 of 20 pieces it reads the other 15; what changed between is noted, and what is broken is found."""
    fill(mariadb, database, 20_000)
    options: dict[str, Any] = {"include": (f"{database}.*",), "state": str(tmp_path), "snapshot": "never"}
    with running(mariadb, **options) as run, mariadb.connect(database=database) as connection, connection.cursor() as cursor:
        place = tmp_path / "copy.parquet"

        def copy(broken: bool) -> None:
            cursor.execute("SELECT * FROM t")
            rows = [list(row) for row in cursor.fetchall()]
            rows[777][1] += broken
            ids, n, t = zip(*rows, strict=True)
            pq.write_table(pa.table({"id": pa.array(ids, pa.int32()), "n": pa.array(n, pa.int32()), "t": t}), place)

        own = {**options, "store": run.settings.store, "host": mariadb.host, "port": mariadb.port, "user": mariadb.user}

        def outcome(most: int) -> subprocess.CompletedProcess[str]:
            words = [json.dumps(own), database, str(place), str(most)]
            return subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, text=True, timeout=120)

        copy(broken=False)
        assert outcome(5).returncode == -9
        cursor.execute("UPDATE t SET n = n + 1 WHERE id IN (10, 15000)")  # one is read already, one is not
        cursor.execute("DELETE FROM t WHERE id = 20")
        copy(broken=True)
        done = outcome(0)
        assert done.returncode == 0, done.stderr
        rows, differences, keys, pieces = json.loads(done.stdout)
        assert (rows - 20_000 in (0, -1), differences, keys, pieces) == (True, 1, [[779]], 15)
        assert not list((tmp_path / run.settings.store / "verify").iterdir())


def test_numbers_find_what_differs(tmp_path: Path, seed: int) -> None:
    """Sets of rows in several parts: exactly the keys of rows that are missing, other or doubled on one side, against a dictionary."""
    chance = random.Random(seed)
    point = any_point()
    for number in range(50):
        ours = [(k, chance.randrange(3)) for k in range(chance.randrange(60))]
        theirs = [(k, chance.choice((v, v, v, 9))) for k, v in ours if chance.random() < 0.9] + [
            (k, 1) for k in range(90, 90 + chance.randrange(3))
        ]
        if theirs and chance.random() < 0.3:
            theirs.append(theirs[0])
        chance.shuffle(theirs)
        sides = []
        for name, rows in (("a", ours), ("b", theirs)):
            side = Digests(tmp_path / f"{number}{name}", 3, point)
            for at in range(0, len(rows), 7):
                side.add(rows[at : at + 7], (0,))
            sides.append(side)
        keys = {k for k, _ in [*ours, *theirs] if sorted(r for r in ours if r[0] == k) != sorted(r for r in theirs if r[0] == k)}
        expected = sorted(numbers_of([key_bytes((k,), (0,)) for k in keys], point).tolist())
        assert differing(*sides).tolist() == expected
        for side in sides:
            side.close()
