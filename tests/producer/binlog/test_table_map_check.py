"""A table map against the table as it is followed: never a contradiction where they fit, always one where the bytes can show it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import pymysql
import pytest

from shmstore.errors import SchemaUnknown
from shmstore.event import Column, Position, TableSchema
from shmstore.producer.binlog.table_map import Layout, parse_layout
from shmstore.producer.schema.history import SchemaHistory
from shmstore.sql.columns import column_of_type
from tests.producer.decoding import TABLE_MAP, Log, database_of, run
from tests.producer.test_type_matrix import CASES, COMPRESSED
from tests.servers.server import start_server

# server, options: how little it logs of a table, and in which form it stores times
SERVERS = {
    "mariadb": ["--binlog-row-metadata=NO_LOG"],
    "mariadb105": ["--binlog-row-metadata=NO_LOG", "--mysql56-temporal-format=0", "--explicit-defaults-for-timestamp=0"],
    "mariadb118": ["--binlog-row-metadata=MINIMAL"],
    "mysql": ["--binlog-row-metadata=MINIMAL"],
}
TYPES = sorted({case.type for case in CASES + COMPRESSED})
TYPES += [
    "bool",
    "serial",
    "char",
    "binary",
    "bit",
    "decimal",
    "numeric(7)",
    "dec(0)",
    "fixed(9,4) unsigned",
    "real",
    "float(20)",
    "float(30)",
]
TYPES += ["text(63)", "text(64)", "text(255)", "text(20000)", "blob(255)", "blob(256)", "blob(70000)", "long", "long varbinary"]
TYPES += [
    "char byte",
    "char(0)",
    "varchar(0)",
    "national varchar(3)",
    "nchar(4)",
    "varchar(5) unicode",
    "varchar(70000)",
    "varchar(20000)",
]
TYPES += [
    "text character set binary",
    "enum('a','b') character set binary",
    "timestamp",
    "timestamp null",
    "timestamp(3) not null",
]
TYPES += ["int as (1 + 1) virtual", "int as (1 + 1) stored", "int invisible default 3", "vector(3)", "uuid", "inet6", "inet4"]
SCHEMA = "tablemaps"


def map_of(connection: Any, log: Log, table: str) -> bytes:
    """The table map of a row that is put into the table."""
    log.skip()
    try:
        run(connection, f"INSERT INTO {table} (id) VALUES (1)")
    except pymysql.MySQLError:  # a NOT NULL that has no default
        return b""
    return next(body for code, body in log.events() if code == TABLE_MAP)


def layout_of(body: bytes, schema: TableSchema, mariadb: bool, hidden: int | None = 0) -> Layout:
    return parse_layout(body, lambda database, table: schema, mariadb, hidden=lambda database, table: hidden)


SHOWN = re.compile(r"column \d+ is .* in the event and|the event has \d+ columns \(.*\), the table as it is followed")


def contradicts(body: bytes, columns: Sequence[Column], mariadb: bool) -> bool:
    layout = layout_of(body, TableSchema(SCHEMA, "t", tuple(columns)), mariadb)
    try:
        _ = layout.fields
    except SchemaUnknown as error:
        return SHOWN.search(str(error)) is not None
    return False


def known(history: SchemaHistory, table: str) -> TableSchema:
    schema = history.find(SCHEMA, table)
    assert schema is not None
    return schema


def query(connection: Any) -> Callable[[str], list[tuple[Any, ...]]]:
    return lambda sql: run(connection, sql)


@pytest.mark.server
@pytest.mark.parametrize("kind", SERVERS)
def test_what_a_server_logs_fits_what_was_followed(kind: str, seed: int) -> None:
    """Every type in random tables: by information_schema and by the DDL there is no contradiction; two columns that were exchanged are
    one exactly where their bytes differ, and so is a column that is added, dropped, or NULL or not."""
    rng, mariadb = random.Random(seed), kind != "mysql"
    with start_server(kind, options=SERVERS[kind]) as server, database_of(server, SCHEMA) as (connection, log):
        run(connection, "SET sql_mode = 'ALLOW_INVALID_DATES'")
        followed = SchemaHistory()
        followed.snapshot(query(connection), Position("binlog.000001", 1))
        left = [type_ for type_ in TYPES if _takes(connection, type_)]
        assert len(left) > 0.8 * len(TYPES)
        rng.shuffle(left)
        tables: dict[str, bytes] = {}
        swaps = shown = 0
        while left:
            types, left = left[:8], left[8:]
            name = f"t{len(left)}"
            columns = [f"c{i} {type_}{_null(rng, type_)}" for i, type_ in enumerate(types)]
            for sql in (
                f"CREATE TABLE {name} (id int, {', '.join(columns)}){' PARTITION BY HASH (id)' if rng.random() < 0.2 and 'serial' not in types else ''}",
                f"ALTER TABLE {name} ADD {rng.choice(types).replace('serial', 'int')} FIRST".replace("ADD ", "ADD z "),
            ):
                try:
                    run(connection, sql)
                except pymysql.MySQLError:
                    continue
                followed.follow(Position("binlog.000001", 10 + 2 * (len(TYPES) - len(left)) + (sql[0] == "A")), SCHEMA, sql)
            if _exists(connection, name) and (body := map_of(connection, log, name)):
                tables[name] = body
        now = SchemaHistory()
        now.snapshot(query(connection), Position("binlog.000001", 1), database=SCHEMA)
        for name, body in tables.items():
            for history in (now, followed):
                _ = layout_of(
                    body, known(history, name), mariadb, history.hidden(SCHEMA, name)
                ).fields  # raises where they contradict
            schema = known(now, name)
            columns_ = list(schema.columns)
            fields = layout_of(body, schema, mariadb).fields
            wires = [(field.wire, field.meta, field.column.nullable, *_logged(field.column, kind)) for field in fields]
            for i, j in combinations(range(len(columns_)), 2):
                if {wires[i][0], wires[j][0]} & {7, 11, 12, 140, 141}:
                    continue  # forms that a definition leaves open
                exchanged = columns_.copy()
                exchanged[i], exchanged[j] = columns_[j], columns_[i]
                same = wires[i] == wires[j]
                assert contradicts(body, exchanged, mariadb) != same, (columns_[i], columns_[j], wires[i], wires[j])
                swaps += 1
                shown += not same
            for mutated in (columns_[:-1], columns_[1:], [*columns_, Column("more", "int", definition="int")]):
                assert contradicts(body, mutated, mariadb)
            for i, column in enumerate(columns_):
                mutated = [*columns_[:i], column._replace(nullable=not column.nullable), *columns_[i + 1 :]]
                assert contradicts(body, mutated, mariadb)
    assert shown > 0.7 * swaps > 500


def _takes(connection: Any, type_: str) -> bool:
    try:
        run(connection, "DROP TABLE IF EXISTS tried", f"CREATE TABLE tried (id int, v {type_})")
    except pymysql.MySQLError:
        return False
    return True


def _exists(connection: Any, name: str) -> bool:
    return bool(
        run(connection, ("SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s", (SCHEMA, name)))
    )


def _null(rng: random.Random, type_: str) -> str:
    if "null" in type_ or " as (" in type_ or type_ == "serial":
        return ""
    return rng.choice(["", " NULL", " NOT NULL"]) if "json" not in type_ else ""


def _logged(column: Column, kind: str) -> tuple[Any, ...]:
    """What else the log has of a column: sign, character set and kind of geometry with MINIMAL."""
    if SERVERS[kind][0].endswith("NO_LOG"):
        return ()
    charset = column.charset if column.type not in ("enum", "set") else ""
    shape = column.type if column.type.startswith(("geom", "point", "line", "poly", "multi")) else ""
    return column.unsigned, charset, shape, column.type in ("json", "vector")


# ---------------------------------------------------------------- without a server


def test_an_exchange_is_shown_with_both_forms() -> None:
    """The message has the column's form in the event, and its name and definition as followed, for each column that differs."""
    columns = [
        column_of_type("id", "int"),
        column_of_type("name", "varchar(20)", "utf8mb4"),
        column_of_type("price", "decimal(10,2)"),
    ]
    body = bytes(8) + b"\x01d\0\x01t\0\x03\x03\xf6\x0f\x04\x0a\x02\x50\x00\x07"
    schema = TableSchema("d", "t", tuple(columns))
    with pytest.raises(SchemaUnknown) as caught:
        _ = layout_of(body, schema, True).fields
    message = str(caught.value)
    assert message.count("table d.t") == 1
    assert "column 2 is decimal(10,2) in the event and name varchar(20) utf8mb4 in the table as it is followed" in message
    assert "column 3 is varchar/varbinary of 80 bytes in the event and price decimal(10,2)" in message
    assert "column 1" not in message
    fits = schema._replace(columns=(columns[0], columns[2], columns[1]))
    assert layout_of(body, fits, True).schema.names == ("id", "price", "name")
