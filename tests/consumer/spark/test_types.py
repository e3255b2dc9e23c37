"""Every MySQL type on real servers: in Spark, by the ring and straight from the server, and in each kind of copy, with its type and SELECT's value."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from shmstore import EntryType, EventStore
from shmstore.consumer.copies.reading.databases import postgresql, sqlite
from shmstore.consumer.spark import read_table
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.replicate.replicate import Replication
from shmstore.producer import ServerTables, Settings
from tests.consumer.copies.databases.servers import Copies, copies, text
from tests.servers.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.server]

# declaration, Spark's type, (literal, value) for two rows; a third row is all NULL
TYPES: list[tuple[str, str, tuple[str, Any], tuple[str, Any]]] = [
    ("TINYINT", "tinyint", ("-128", -128), ("127", 127)),
    ("TINYINT UNSIGNED", "smallint", ("0", 0), ("255", 255)),
    ("BOOLEAN", "tinyint", ("TRUE", 1), ("FALSE", 0)),
    ("SMALLINT", "smallint", ("-32768", -32768), ("32767", 32767)),
    ("SMALLINT UNSIGNED", "int", ("0", 0), ("65535", 65535)),
    ("MEDIUMINT", "int", ("-8388608", -8388608), ("8388607", 8388607)),
    ("MEDIUMINT UNSIGNED", "int", ("0", 0), ("16777215", 16777215)),
    ("INT", "int", ("-2147483648", -(2**31)), ("2147483647", 2**31 - 1)),
    ("INT UNSIGNED", "bigint", ("0", 0), ("4294967295", 2**32 - 1)),
    ("BIGINT", "bigint", ("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)),
    ("BIGINT UNSIGNED", "decimal(20,0)", ("0", Decimal(0)), ("18446744073709551615", Decimal(2**64 - 1))),
    ("YEAR", "int", ("1901", 1901), ("2155", 2155)),
    ("BIT(1)", "bigint", ("b'0'", 0), ("b'1'", 1)),
    ("BIT(64)", "decimal(20,0)", ("0", Decimal(0)), ("18446744073709551615", Decimal(2**64 - 1))),
    ("DECIMAL(5,2)", "decimal(5,2)", ("-999.99", Decimal("-999.99")), ("0.01", Decimal("0.01"))),
    ("DECIMAL(38,0)", "decimal(38,0)", ("9" * 38, Decimal("9" * 38)), ("-1", Decimal(-1))),
    ("DECIMAL(65,30)", "string", ("1", "1." + "0" * 30), ("-0.5", "-0.5" + "0" * 29)),
    ("FLOAT", "float", ("0.5", 0.5), ("-1e38", pytest.approx(-1e38, rel=1e-6))),
    ("DOUBLE", "double", ("1e-300", 1e-300), ("-0.1", -0.1)),
    ("DATE", "date", ("'1000-01-01'", date(1000, 1, 1)), ("'9999-12-31'", date(9999, 12, 31))),
    ("DATETIME", "timestamp_ntz", ("'1000-01-01 00:00:00'", datetime(1000, 1, 1)), ("'9999-12-31 23:59:59'", datetime(9999, 12, 31, 23, 59, 59))),
    ("DATETIME(6)", "timestamp_ntz",
     ("'2026-01-02 03:04:05.000001'", datetime(2026, 1, 2, 3, 4, 5, 1)), ("'1969-12-31 23:59:59.5'", datetime(1969, 12, 31, 23, 59, 59, 500000))),
    ("TIMESTAMP(3) NULL", "timestamp",
     ("'1970-01-01 00:00:01'", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)), ("'2038-01-19 03:14:07.999'", datetime(2038, 1, 19, 3, 14, 7, 999000, tzinfo=UTC))),
    ("TIME", "interval day to second", ("'-838:59:59'", -timedelta(hours=838, minutes=59, seconds=59)), ("'00:00:00'", timedelta(0))),
    ("TIME(6)", "interval day to second", ("'-00:00:00.000001'", -timedelta(microseconds=1)), ("'100:00:00.5'", timedelta(hours=100, milliseconds=500))),
    ("CHAR(5)", "string", ("'a '", "a"), ("'ä😀'", "ä😀")),
    ("VARCHAR(20) CHARACTER SET latin1", "string", ("''", ""), ("'é'", "é")),
    ("LONGTEXT", "string", ("''", ""), ("REPEAT('x', 70000)", "x" * 70000)),
    ("ENUM('a','ö')", "string", ("'a'", "a"), ("'ö'", "ö")),
    ("SET('a','b','c')", "string", ("''", ""), ("'c,a'", "a,c")),
    ("BINARY(4)", "binary", ("x'00'", b"\0\0\0\0"), ("x'FF00FF00'", b"\xff\0\xff\0")),
    ("VARBINARY(4)", "binary", ("x''", b""), ("x'00FF'", b"\0\xff")),
    ("BLOB", "binary", ("x''", b""), ("x'0001'", b"\0\1")),
    ("TINYTEXT", "string", ("'ä'", "ä"), ("''", "")),
    ("MEDIUMTEXT", "string", ("'\\'\\\\\\n'", "'\\\n"), ("' '", " ")),
    ("JSON", "string", ("'{\"a\": [1, \"ö\"]}'", '{"a": [1, "ö"]}'), ("'null'", "null")),
    ("INT(5) ZEROFILL", "bigint", ("7", 7), ("99999", 99999)),
    ("POINT", "binary", ("ST_GeomFromText('POINT(0 0)')", bytes(4) + b"\1\1" + bytes(19)), ("ST_GeomFromText('POINT(1 2)')", None)),
]  # fmt: skip
OWN: dict[str, list[tuple[str, str, tuple[str, Any], tuple[str, Any]]]] = {
    "mysql": [
        ("VECTOR(2)", "binary", ("to_vector('[1,2]')", b"\0\0\x80\x3f\0\0\0\x40"), ("to_vector('[0,0]')", bytes(8))),
    ],
    "mariadb": [
        (
            "UUID",
            "string",
            ("'123e4567-e89b-12d3-a456-426655440000'", "123e4567-e89b-12d3-a456-426655440000"),
            ("'00000000-0000-0000-0000-000000000001'", "00000000-0000-0000-0000-000000000001"),
        ),
        ("INET6", "string", ("'2001:db8::ff00:42:8329'", "2001:db8::ff00:42:8329"), ("'::'", "::")),
    ],
}


@pytest.mark.every_spark
def test_every_type(spark: Any, any_server: Server, database: str, store_name: str, tmp_path: Path) -> None:
    """Types are those of the table in `shmstore.consumer.spark.decode.schema`, values those that SELECT gives, NULL is NULL; in every copy as well."""
    types = TYPES + OWN[any_server.flavor]
    columns = ", ".join(f"c{i} {declared}" for i, (declared, *_) in enumerate(types))
    with any_server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SHOW BINARY LOG STATUS" if any_server.flavor == "mysql" and any_server.version >= "8.4" else "SHOW MASTER STATUS"
        )
        file, offset = cursor.fetchone()[:2]
        cursor.execute("SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'")
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
        for number in (0, 1):
            cursor.execute(f"INSERT INTO t VALUES ({number}, {', '.join(row[2 + number][0] for row in types)})")
        cursor.execute("INSERT INTO t (id) VALUES (2)")
    program = "import sys; from shmstore.cli.main import main; sys.exit(main())"
    arguments = f"produce --store {store_name} --port {any_server.port} --start {file}:{offset} --include {database}.*"
    with subprocess.Popen([sys.executable, "-c", program, *arguments.split()], stderr=subprocess.PIPE) as producer:
        try:
            _await_rows(store_name, 3, producer)
        finally:
            producer.terminate()
            producer.communicate(timeout=30)
    frame = spark.read.format("shmstore").option("store", store_name).option("tables", f"{database}.t").load()
    after = {field.name: field.dataType.simpleString() for field in frame.schema["after"].dataType.fields}
    assert {declared: after[f"c{i}"] for i, (declared, *_) in enumerate(types)} == {
        declared: spark_type for declared, spark_type, *_ in types
    }
    table = frame.select("after").toArrow().column("after").combine_chunks()
    found = {row["id"]: row for row in table.to_pylist()}
    for number in (0, 1):
        for i, (declared, _, *values) in enumerate(types):
            wanted = values[number][1]
            if wanted is not None:
                assert found[number][f"c{i}"] == wanted, f"{declared} {values[number][0]}"
    assert {name: value for name, value in found[2].items() if value is not None} == {"id": 2}
    direct = read_table(spark, ServerTables(Settings(store=store_name, port=any_server.port)).open(f"{database}.t"))
    assert direct.schema == frame.schema["after"].dataType
    assert {row["id"]: row for row in direct.toArrow().to_pylist()} == found
    source = spark.read.format("shmstore").option("store", store_name).option("tables", f"{database}.t")
    _check_variant(types, source.option("payload", "variant").load())
    payloads = [bytes(row.payload) for row in source.option("payload", "raw").load().orderBy("sequence").collect()]
    for format in ("delta", "parquet"):
        copy = Replication(SourceOptions.parse({"store": store_name}), str(tmp_path / format / "{table}"), format)
        copy.apply(payloads, "q", 0)
        path = copy.path("", "t")
        kept = DeltaTable(path).to_pyarrow_table() if format == "delta" else pq.read_table(path)
        _check_rows(types, {row["id"]: row for row in kept.to_pylist()}, format)
    with any_server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        # PyMySQL cannot read a VECTOR as it is.
        chosen = (f"CAST(c{i} AS BINARY)" if declared.startswith("VECTOR") else f"c{i}" for i, (declared, *_) in enumerate(types))
        select = f"SELECT id, {', '.join(chosen)} FROM {{}}.t ORDER BY id"
        cursor.execute(select.format(database))
        selected = list(cursor.fetchall())
    for kind in (any_server.flavor, "postgresql"):
        with copies(kind, any_server, f"{database}_copy", tmp_path) as target:
            made = Replication(SourceOptions.parse({"store": store_name}), target.address, password=target.password)
            made.apply(payloads, "q", 0)
            if kind == "postgresql":
                _check_postgres(types, target, selected)
                _check_sqlite(payloads, made, target, tmp_path)
            else:
                assert target.query(select.format(f"{database}_copy")) == selected


def _check_rows(types: Any, found: dict[int, dict[str, Any]], what: str) -> None:
    """TIME is text in copies, as MySQL prints it."""
    for number in (0, 1):
        for i, (declared, _, *values) in enumerate(types):
            literal, wanted = values[number]
            got = found[number][f"c{i}"]
            if isinstance(wanted, timedelta):
                assert got.rstrip("0").rstrip(".").rstrip(":0") == literal.strip("'").rstrip(":0"), f"{what} {declared} {got}"
            elif wanted is not None:
                assert got == wanted, f"{what} {declared} {literal}"
    assert {name: value for name, value in found[2].items() if value is not None} == {"id": 2}


def _check_variant(types: Any, frame: Any) -> None:
    with localcontext(prec=80):  # pyspark's own arithmetic rounds to the context's digits
        found = {row["id"]: row for row in (row.after.toPython() for row in frame.select("after").collect())}
    for row in found.values():
        for i, (_, spark_type, *_) in enumerate(types):
            name = f"c{i}"
            if spark_type == "string" and types[i][0].startswith("DECIMAL") and row[name] is not None:
                row[name] = format(row[name], "f") if isinstance(row[name], Decimal) else row[name]
    for i, (declared, *_) in enumerate(types):
        if declared.startswith("DECIMAL(65"):
            for number in (0, 1):
                assert Decimal(found[number].pop(f"c{i}")) == Decimal(types[i][2 + number][1])
                found[number][f"c{i}"] = types[i][2 + number][1]
    _check_rows(types, found, "variant")


def _check_postgres(types: Any, target: Copies, selected: Any) -> None:
    rows = {int(row[0]): row for row in target.query(f"SELECT * FROM {target.schema}.t")}
    for number in (0, 1):
        for i, (declared, _, *values) in enumerate(types):
            literal, wanted = values[number]
            got = rows[number][i + 1]
            if isinstance(wanted, float) or (wanted is not None and "approx" in type(wanted).__name__.lower()):
                assert float(got) == wanted, f"postgresql {declared} {literal}"
            elif isinstance(wanted, timedelta):
                assert text(got).rstrip(":0") == literal.strip("'").rstrip(":0"), f"postgresql {declared} {got}"
            elif wanted is not None:
                assert text(got) == text(wanted.replace(tzinfo=None) if isinstance(wanted, datetime) else wanted), (
                    f"postgresql {declared} {got}"
                )
    assert list(rows[2][1:]) == [None] * len(types)
    assert len(selected) == len(rows)


def _check_sqlite(payloads: list[bytes], made: Replication, target: Copies, folder: Path) -> None:
    """Values in SQLite, as an event has them, are those in PostgreSQL."""
    (copy,) = made._copies.values()
    schema = copy.target._fitted  # type: ignore[attr-defined]
    with copies("sqlite", None, "", folder) as file:
        held = Replication(made._options, file.address)
        held.apply(payloads, "q", 0)
        with (
            closing(sqlite(file.server, "t")) as one,
            closing(postgresql(target.url, f"{target.schema}.t", target.password)) as other,
        ):
            found, wanted = ([row for rows in each.rows(schema) for row in rows] for each in (one, other))
    assert sorted(found) == sorted(wanted)
    assert len(found) == 3


def _await_rows(name: str, rows: int, producer: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if producer.poll() is not None:
            raise AssertionError(producer.communicate()[1].decode())
        if name in EventStore.names():
            with EventStore.attach(name) as store:
                if store.newest >= store.oldest:
                    slots = store.peek(store.oldest).slots
                    if int(slots["rows"][slots["entry"] == EntryType.ROWS].sum()) >= rows and slots["entry"][-1] == EntryType.END:
                        return
        time.sleep(0.05)
    raise AssertionError("the rows did not come")
