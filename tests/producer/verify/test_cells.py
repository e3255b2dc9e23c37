"""Copies of each kind, with columns of many types: a broken cell, a row too few and one too many are found."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shmstore import Consumer
from shmstore.consumer.copies.change_reduction import Merge
from shmstore.consumer.copies.changed_rows import target_fields
from shmstore.consumer.copies.databases.target import database_target
from shmstore.consumer.copies.reading.arrow_copies import delta, iceberg, parquet
from shmstore.consumer.copies.reading.called import CalledCopy
from shmstore.consumer.copies.reading.databases import postgresql, sqlite
from shmstore.consumer.formats.values import time_text
from shmstore.encoding.arrow import column_array
from shmstore.errors import CopyUnreadable
from shmstore.event import Column, TableSchema
from shmstore.producer.verify.copy import ReadableCopy
from shmstore.producer.verify.result import TableResult
from shmstore.producer.verify.server_copy import ServerCopy
from tests.producer.running import Running, running
from tests.producer.verify.verifying import verified
from tests.servers.postgres import start_postgres
from tests.servers.server import Server

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
