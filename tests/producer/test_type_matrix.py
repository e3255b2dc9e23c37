"""Every column type and its edges: what the decoder makes of the binlog equals what SELECT shows, on real servers.

The oracle is SELECT as text (no converters), turned into a value by rules written here a second time. TIMESTAMPs are selected in
UTC. FLOAT is compared with numpy's shortest form of the float32: the server's own text has only 6 digits (MySQL and MariaDB
print 1.23457 for 1.2345678), so it cannot tell neighbors apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pytest

from shmstore.errors import UnsupportedEvent
from shmstore.event import Column, EventType, TableSchema
from tests.producer.decoding import Log, database_of, reference, run
from tests.producer.oracle import value_of
from tests.producer.selecting import equals_stream
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server

MODE = "SET SESSION sql_mode='ALLOW_INVALID_DATES', time_zone='+00:00'"


class Case(NamedTuple):
    type: str  # as in CREATE TABLE
    values: tuple[str, ...]  # SQL expressions
    only: str = ""  # the flavor that has this type
    name: str = ""  # the type as the schema gives it, where it is not the first word of `type`


def integer(name: str, bits: int) -> list[Case]:
    signed = (str(-(2 ** (bits - 1))), "-1", "0", "1", "127", str(2 ** (bits - 1) - 1))
    return [Case(name, signed), Case(f"{name} unsigned", ("0", "1", str(2 ** (bits - 1)), str(2**bits - 1)))]


def decimal(precision: int, scale: int, *more: str) -> Case:
    nines = "9" * (precision - scale) + ("." + "9" * scale if scale else "")
    one = "0." + "0" * (scale - 1) + "1" if scale else "1"
    return Case(f"decimal({precision},{scale})", ("0", nines, f"-{nines}", one, f"-{one}", *more), name="decimal")


DATES = ("'1970-01-01'", "'1969-12-31'", "'2024-02-29'", "'1000-01-01'", "'9999-12-31'", "'0001-01-01'")
BAD_DATES = ("'0000-00-00'", "'2024-02-31'", "'2024-00-10'", "'2024-05-00'", "'0000-05-07'", "'2023-02-29'")
TIMES = ("'00:00:00'", "'-00:00:01'", "'838:59:59'", "'-838:59:59'", "'23:59:59'", "'-12:34:56'", "'100:00:00'")
FRACTIONS = ("000000", "000001", "999999", "100000", "123456", "500000", "990000", "000100")
STAMPS = (
    "'1970-01-01 00:00:01'",
    "'2038-01-19 03:14:07'",
    "'2024-05-06 07:08:09'",
    "'0000-00-00 00:00:00'",
    "'2000-02-29 23:59:59'",
)
TEXTS = (
    "''",
    "'a'",
    "'Grüße, 世界 😀'",
    "' lead and trail '",
    "'\\0\\n\\r\\t\\\\\"'",
    "repeat('ü', 200)",
    "'NULL'",
    "'nul\\0middle'",
)
BYTES = ("''", "x'00'", "x'ff00ff00'", "x'61620000'", "x'20202020'", "x'80818283'", "x'6100'")


def fractions(kind: str, heads: tuple[str, ...]) -> list[Case]:
    cases = []
    for digits in range(1, 7):
        values = tuple(f"{head[:-1]}.{part[:digits]}'" for head in heads for part in FRACTIONS)
        cases.append(Case(f"{kind}({digits})", values, name=kind))
    return cases


CASES = [
    *integer("tinyint", 8),
    *integer("smallint", 16),
    *integer("mediumint", 24),
    *integer("int", 32),
    *integer("bigint", 64),
    Case("tinyint(1)", ("0", "1", "2"), name="tinyint"),
    Case("int(6) zerofill", ("0", "42"), name="int"),
    Case(
        "float",
        ("0", "1.1", "-1.1", "3.4028234e38", "-3.4028234e38", "1.17549435e-38", "1e-45", "16777216", "0.3333333", "123456.789"),
    ),
    Case("float unsigned", ("0", "1.2345678")),
    Case("float(7,3)", ("0", "1234.567"), name="float"),
    Case(
        "double",
        (
            "0",
            "-0e0",
            "1.1",
            "1.7976931348623157e308",
            "2.2250738585072014e-308",
            "5e-324",
            "1e15",
            "1e16",
            "0.1",
            "123456789012345678",
        ),
    ),
    Case("double(10,3)", ("-1234567.125",), name="double"),
    decimal(1, 0),
    decimal(5, 5),
    decimal(9, 0),
    decimal(10, 2, "1.10", "-0.05"),
    decimal(12, 2),
    decimal(18, 9, "1.000000001", "-100000000.5"),
    decimal(19, 10),
    decimal(30, 15, "123456789.000000001"),
    decimal(38, 10),
    decimal(65, 0),
    decimal(65, 30, "12345678901234567890123456789012345.000000000000000000000000000001"),
    Case("decimal(8,3) unsigned", ("0", "99999.999"), name="decimal"),
    Case("decimal(8,3) zerofill", ("1.5",), name="decimal"),
    *[
        Case(f"bit({n})", ("0", "1", f"{2**n - 1}", f"{2 ** (n - 1)}"), name="bit")
        for n in (1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 48, 63, 64)
    ],
    Case("year", ("1901", "2155", "0", "1970", "2024")),
    Case("date", (*DATES, *BAD_DATES)),
    Case(
        "datetime",
        tuple(f"{day[:-1]} {clock}'" for day in DATES + BAD_DATES for clock in ("00:00:00", "23:59:59", "15:59:59", "16:00:00")),
    ),
    *fractions("datetime", ("'2024-05-06 07:08:09'", "'0000-00-00 00:00:00'", "'2024-02-31 12:00:00'", "'1000-01-01 00:00:00'")),
    Case("time", TIMES),
    *fractions("time", ("'00:00:00'", "'-00:00:00'", "'12:34:56'", "'-12:34:56'", "'-00:00:01'", "'837:59:59'", "'-837:59:59'")),
    Case("timestamp null", STAMPS, name="timestamp"),
    *[Case(case.type + " null", case.values, name="timestamp") for case in fractions("timestamp", STAMPS)],
    Case("char(10)", ("''", "'a'", "'abc   '", "'世界'", "'😀'", "'a\\0'")),
    Case("char(255)", ("repeat('😀', 255)", "repeat('a', 255)", "''", "'x'")),
    Case("char(64)", ("repeat('ü', 64)", "'64 * 4 is over 255'")),
    Case("varchar(1)", ("''", "'😀'")),
    Case("varchar(63)", TEXTS[:5]),
    Case("varchar(64)", TEXTS[:5]),
    Case("varchar(255)", TEXTS),
    Case("varchar(300)", (*TEXTS, "repeat('世', 300)")),
    Case("varchar(16000)", (*TEXTS, "repeat('x', 16000)")),
    Case("tinytext", (*TEXTS[:5], "repeat('x', 255)")),
    Case("text", (*TEXTS, "repeat('世', 20000)")),
    Case("mediumtext", (*TEXTS, "repeat('x', 70000)")),
    Case("longtext", (*TEXTS, "repeat('xyz', 300000)")),
    Case("binary(4)", BYTES),
    Case("binary(16)", BYTES),
    Case("binary(255)", (*BYTES, "repeat(x'00', 255)", "repeat(x'ff', 255)")),
    Case("varbinary(20)", BYTES),
    Case("varbinary(255)", BYTES),
    Case("varbinary(256)", (*BYTES, "repeat(x'ff', 256)")),
    Case("tinyblob", (*BYTES, "repeat(x'00', 255)")),
    Case("blob", (*BYTES, "repeat(x'00', 65535)")),
    Case("mediumblob", (*BYTES, "repeat(x'80', 65536)")),
    Case("longblob", (*BYTES, "repeat(x'81', 1000000)")),
    Case("enum('a','b','c')", ("'a'", "'c'", "2", "'wrong'", "''")),
    Case("enum('','Ünï','a,b','it''s','\\\\','世界',' x')", ("1", "2", "3", "4", "5", "6", "7")),
    Case("enum(" + ",".join(f"'m{i}'" for i in range(300)) + ")", ("'m0'", "'m254'", "'m255'", "'m256'", "'m299'"), name="enum"),
    Case("set('a','b','c')", ("''", "'a'", "'a,c'", "'c,a'", "7")),
    Case("set('Ünï','it''s','世界','\\\\')", ("1", "2", "4", "8", "15")),
    *[
        Case("set(" + ",".join(f"'m{i}'" for i in range(n)) + ")", ("0", "1", str(2**n - 1), str(2 ** (n - 1))), name="set")
        for n in (8, 9, 16, 17, 24, 25, 32, 33, 40, 41, 48, 56, 57, 64)
    ],
    Case(
        "geometry", ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2), LINESTRING(0 0, 1 1))')")
    ),
    Case("point", ("ST_GeomFromText('POINT(-1.5 2.25)')",)),
    Case("linestring", ("ST_GeomFromText('LINESTRING(0 0, 1 1, 2 4)')",)),
    Case(
        "polygon", ("ST_GeomFromText('POLYGON((0 0, 9 0, 9 9, 0 0))')", "ST_GeomFromText('POLYGON((0 0, 9 0, 9 9, 0 0))', 4326)")
    ),
    Case("multipoint", ("ST_GeomFromText('MULTIPOINT(1 1, 2 2)')",)),
    Case("multilinestring", ("ST_GeomFromText('MULTILINESTRING((0 0, 1 1), (2 2, 3 3))')",)),
    Case("multipolygon", ("ST_GeomFromText('MULTIPOLYGON(((0 0, 9 0, 9 9, 0 0)))')",)),
    Case("geometrycollection", ("ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))')",)),
]


def charset(name: str, *values: str, only: str = "") -> list[Case]:
    """A text in CHAR, VARCHAR, TEXT and as members of ENUM and SET of one character set."""
    first = "','".join(
        value[1:-1] for value in values if value.startswith("'") and value != "''" and "\\" not in value and "  " not in value
    )
    cases = [
        Case(f"{type_} character set {name}", values, only=only) for type_ in ("char(20)", "varchar(40)", "text", "longtext")
    ]
    if first:
        count = first.count("','") + 1
        cases.append(
            Case(f"enum('{first}') character set {name}", tuple(str(i + 1) for i in range(count)), only=only, name="enum")
        )
        cases.append(Case(f"set('{first}') character set {name}", (str(2**count - 1), "1"), only=only, name="set"))
    return cases


CASES += [
    *charset("latin1", "'Grüße'", "'€uro'", "''", "unhex('818d8f909d')", "unhex('a0ff')"),
    *charset("gbk", "'世界你好'", "'abc'", "''", "unhex('a2a1')"),
    *charset("sjis", "'日本語テスト'", "'ｱｲｳ'", "''", "unhex('815f')", "unhex('5c7e')"),
    *charset("cp932", "'日本語①㈱'", "''", "unhex('8160')"),
    *charset("ujis", "'日本語テスト'", "''", "unhex('f5a1')"),
    *charset("eucjpms", "'日本語①㈱～'", "''", "unhex('8fa2b7')"),
    *charset("euckr", "'한국어 갂'", "''"),
    *charset("big5", "'繁體中文'", "''", "unhex('f9d6')"),
    *charset("gb2312", "'简体中文'", "''"),
    *charset("gb18030", "'世界😀ḿ'", "''", only="mysql"),
    *charset("ucs2", "'Grüße 世界'", "'†'", "'a'", "''", "unhex('01202020')"),
    *charset("utf16", "'Grüße 世界 😀'", "'†'", "'a'", "''"),
    *charset("utf16le", "'Grüße 世界 😀'", "'a'", "''"),
    *charset("utf32", "'Grüße 世界 😀'", "'†'", "'a'", "''"),
    *charset("utf8mb3", "'Grüße 世界'", "''"),
    *charset("latin2", "'Příliš žluťoučký'", "''"),
    *charset("cp1251", "'Привет'", "''"),
    *charset("koi8r", "'Привет'", "''"),
    *charset("cp866", "'Привет'", "''"),
    *charset("greek", "'Καλημέρα'", "''"),
    *charset("hebrew", "'שלום'", "''"),
    *charset("tis620", "'สวัสดี'", "''"),
    *charset("cp1256", "'مرحبا'", "''"),
    *charset("armscii8", "'Հայերեն'", "''"),
    *charset("geostd8", "'ქართული'", "''"),
    *charset("swe7", "'ÅÄÖ'", "''"),
    *charset("ascii", "'plain'", "''"),
    Case("varchar(20) character set utf8mb4 collate utf8mb4_bin", ("'x'", "'Ü'")),
    Case("varchar(20) character set utf8mb4 collate utf8mb4_0900_as_cs", ("'x'", "'Ü'"), only="mysql"),
    Case("varchar(20) character set utf8mb4 collate utf8mb4_nopad_bin", ("'x'", "'Ü'"), only="mariadb"),
    Case("varchar(20) character set ucs2 collate uca1400_ai_ci", ("'x'", "'Ü'"), only="mariadb"),
]

MYSQL_JSON = (
    "'{}'",
    "'[]'",
    "'null'",
    "'true'",
    "'false'",
    "'0'",
    "'-1'",
    "'32767'",
    "'-32768'",
    "'65535'",
    "'65536'",
    "'2147483647'",
    "'-2147483648'",
    "'4294967295'",
    "'9223372036854775807'",
    "'-9223372036854775808'",
    "'18446744073709551615'",
    "'1.5'",
    "'1e100'",
    "'1e15'",
    "'1e16'",
    "'0.1'",
    "'1e-7'",
    "'-0.0'",
    "'123456789012345680000'",
    "'\"\"'",
    "'\"Gr\\\\u00fc\\\\u00dfe 世界 😀\"'",
    '\'"q\\\\"b\\\\\\\\s/\\\\b\\\\f\\\\n\\\\r\\\\t\\\\u0001\\\\u001f\\\\u007f"\'',
    '\'{"b": 1, "a": {"aa": [1, [2, [3, {"x": null}]]], "": ""}, "ab": 2, "c": [[], {}]}\'',
    "json_object('d', cast('2024-02-29' as date), 't', cast('-12:34:56.789' as time(6)), 'dt', cast('2024-01-02 03:04:05.6' as datetime(6)))",
    "json_array(cast(12.50 as decimal(10,2)), cast(-0.001 as decimal(5,3)), cast(1 as unsigned), 1.5e0, 1e0)",
    "json_array(cast('0000-00-00' as date), cast('838:59:59' as time), cast('-838:59:59.000001' as time(6)))",
    "json_array(x'ff00', cast('abc' as binary), b'101', ST_GeomFromText('POINT(1 2)'))",
    "json_array(timestamp'2024-01-02 03:04:05', cast(2024 as year))",
    "json_array(repeat('x', 127), repeat('x', 128), repeat('y', 70000), 1, 70000, null, true)",
    "(select json_arrayagg(n) from (with recursive s(n) as (select 1 union all select n + 1 from s where n < 900) select n from s) q)",
    "(select json_objectagg(concat('key', n), repeat('v', 100)) from "
    "(with recursive s(n) as (select 1 union all select n + 1 from s where n < 900) select n from s) q)",
    "concat(repeat('[', 99), repeat(']', 99))",
)
CASES += [
    Case("json", MYSQL_JSON, only="mysql"),
    Case("json", ('\'{"b": 1, "a":[1 , 2.50]}\'', "'null'", "' [1] '"), only="mariadb", name="longtext"),
]


def case_id(case: Case) -> str:
    return re.sub(r"[^a-z0-9() ]", "", case.type)[:40]


def check(server: Server, log: Log, connection: Any, case: Case, *, snapshot: bool = True) -> None:
    """Insert, update and delete the case's values; every image equals SELECT of the row, and so does what a snapshot reads."""
    run(connection, "DROP TABLE IF EXISTS t", f"CREATE TABLE t (id int primary key, v {case.type})")
    for i, value in enumerate((*case.values, "NULL")):
        run(connection, f"INSERT INTO t (id, v) VALUES ({i}, {value})")
    inserted = log.seen()
    select = "v * 1e0" if case.type.startswith("float") else "v"
    shown = run(connection, f"SELECT id, {select} FROM t ORDER BY id")
    assert len(shown) == len(case.values) + 1
    if snapshot:
        equals_stream(server, inserted[0].schema.database, "t", inserted)
    run(connection, "UPDATE t SET id = id + 1000 ORDER BY id DESC", "DELETE FROM t ORDER BY id")
    changed = log.seen()
    column = inserted[0].schema.columns[1]
    assert column.type == (case.name or case.type.split()[0].split("(")[0])
    assert column.name == "v"
    assert inserted[0].schema.primary_key == (0,)
    expected = {int(id_): value_of(column.type, text, column.scale) for id_, text in shown}
    by_id = {row.after[0]: row.after[1] for event in inserted for row in event.rows if row.after}
    for id_, value in expected.items():
        got = by_id[id_]
        assert (type(got), got) == (type(value), value), f"{server.version} {case.type}: {(*case.values, 'NULL')[id_]}"
        if isinstance(value, float):
            assert str(got) == str(value)  # -0.0
    moved = {row.after[0] - 1000: row for event in changed if event.type is EventType.UPDATE for row in event.rows if row.after}
    gone = {row.before[0] - 1000: row for event in changed if event.type is EventType.DELETE for row in event.rows if row.before}
    for id_, value in expected.items():
        assert moved[id_].before == (id_, value)
        assert moved[id_].after == (id_ + 1000, value)
        assert gone[id_].before == (id_ + 1000, value)


class Bench(NamedTuple):
    server: Server
    connection: Any
    log: Log


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    server = request.getfixturevalue(request.param)
    with database_of(server, "matrix", conv={}) as (connection, log):
        run(connection, MODE)
        yield Bench(server, connection, log)


EVERY = [
    pytest.param(flavor, case, id=f"{flavor}-{case_id(case)}")
    for flavor in ("mariadb", "mysql")
    for case in CASES
    if case.only in ("", flavor)
]


@pytest.mark.parametrize(("bench", "case"), EVERY, indirect=["bench"])
def test_decoded_values_equal_select(bench: Bench, case: Case) -> None:
    """INSERT, UPDATE (both images) and DELETE of every value give what SELECT shows."""
    check(bench.server, bench.log, bench.connection, case)


# ---------------------------------------------------------------- MariaDB's own types


class Known:
    """A schema history that knows one table."""

    def __init__(self, *columns: Column, key: tuple[int, ...] = (0,)) -> None:
        self.columns = columns
        self.key = key

    def find(self, database: str, table: str) -> TableSchema | None:
        return TableSchema(database, table, self.columns, self.key) if table == "t" else None


@pytest.fixture(scope="module")
def newer() -> Iterator[Bench]:
    """MariaDB 11.8."""
    with start_server("mariadb118") as server, database_of(server, "matrix", conv={}) as (connection, log):
        run(connection, MODE)
        yield Bench(server, connection, log)


UUIDS = (
    "'123e4567-e89b-12d3-a456-426655440000'",
    "'01890a5d-ac96-774b-bcce-b302099a8057'",
    "'00000000-0000-0000-0000-000000000000'",
    "'123e4567-e89b-42d3-a456-426655440020'",
    "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    "'6ba7b810-9dad-81d1-00b4-00c04fd43000'",
)
INET6 = (
    "'1:2:3:4:5:6:7:8'",
    "'0:2:3:4:5:6:7:8'",
    "'1:0:0:4:0:0:0:8'",
    "'1:0:0:4:0:0:7:8'",
    "'::2:3'",
    "'::0.0.0.5'",
    "'0:0:0:0:0:ffff::'",
    "'2001:db8::ff00:42:8329'",
    "'::ffff:1.2.3.4'",
    "'::1'",
    "'::1.2.3.4'",
    "'::'",
    "'1:0:0:2::'",
    "'fe80::20:20:20:2020'",
    "'1:2:3:4:5:6:7:0'",
)
INET4 = ("'10.0.0.0'", "'1.2.3.4'", "'0.0.0.0'", "'255.255.255.255'", "'32.32.32.32'")
COMPRESSED = [
    Case("varchar(100) compressed", ("''", "'a'", "repeat('ü', 100)", "'\\0'")),
    Case("varchar(63) compressed", ("''", "'a'", "repeat('😀', 63)")),
    Case("varchar(254) character set latin1 compressed", ("''", "repeat('é', 254)")),
    Case("varchar(255) character set latin1 compressed", ("''", "repeat('é', 255)")),
    Case("varchar(2000) character set gbk compressed", ("''", "repeat('世', 2000)")),
    Case("varbinary(300) compressed", BYTES),
    Case("tinytext compressed", ("''", "repeat('x', 254)")),
    Case("text compressed", ("''", "'a'", "repeat('world', 1000)", "hex(repeat(sha2('x', 512), 9))")),
    Case("mediumtext compressed", ("''", "repeat('world', 60000)")),
    Case("longtext compressed", ("''", "repeat('w', 2000000)")),
    Case("blob compressed", BYTES),
]


@pytest.mark.parametrize("case", COMPRESSED, ids=case_id)
@pytest.mark.parametrize("wrap", [0, 1])
def test_compressed_columns_equal_select(mariadb: Server, case: Case, wrap: int) -> None:
    """COMPRESSED columns come out uncompressed, with and without zlib's own header."""
    with database_of(mariadb, "squeezed", conv={}) as (connection, log):
        run(connection, f"SET SESSION column_compression_zlib_wrap={wrap}", "SET SESSION column_compression_threshold=2")
        check(mariadb, log, connection, case)


@pytest.mark.parametrize(
    "case",
    [
        Case(
            "timestamp(3) null", ("'2106-02-07 06:28:15.999'", "'2038-01-19 03:14:08'", "'0000-00-00 00:00:00'"), name="timestamp"
        ),
        Case("timestamp null", ("'2106-02-07 06:28:15'", "'2038-01-19 03:14:08'"), name="timestamp"),
        Case("vector(3)", ("vec_fromtext('[1,2,3.5]')", "vec_fromtext('[0,0,0]')"), name="varbinary"),
        *[Case(f"{type_} character set utf32 collate uca1400_ai_ci", ("'x'", "'Ü😀'"), name=type_[:4]) for type_ in ("text",)],
    ],
    ids=case_id,
)
def test_types_of_mariadb_11_8_equal_select(newer: Bench, case: Case) -> None:
    """TIMESTAMP behind 2038, VECTOR (its bytes), and UCA 14 collations."""
    check(newer.server, newer.log, newer.connection, case)


@pytest.mark.parametrize("case", [Case("uuid", UUIDS), Case("inet6", INET6), Case("inet4", INET4)], ids=case_id)
@pytest.mark.parametrize("kind", ["mariadb", "newer"])
def test_types_that_travel_as_binary_are_text_with_a_schema_history(
    request: pytest.FixtureRequest, kind: str, case: Case
) -> None:
    """UUID, INET6 and INET4 are BINARY in the binlog: text where a history names the type, their bytes where none does."""
    server = request.getfixturevalue(kind)
    server = server.server if isinstance(server, Bench) else server
    with database_of(server, "binary_types", conv={}) as (connection, log):
        log.decoder = reference(Known(Column("id", "int"), Column("v", case.type)))
        check(server, log, connection, case)
        log.decoder = reference()
        run(connection, f"INSERT INTO t VALUES (1, {case.values[0]})")
        event = log.seen()[0]
        assert event.schema.columns[1].type == "binary"
        assert len(event.rows[0].after[1]) == event.schema.columns[1].size == (4 if case.type == "inet4" else 16)


@pytest.mark.parametrize("kind", ["mariadb", "newer"])
def test_times_in_the_format_before_5_6_equal_select(request: pytest.FixtureRequest, kind: str) -> None:
    """mysql56_temporal_format=0: plain values need nothing, fractional ones the digits from a schema history."""
    server = request.getfixturevalue(kind)
    server = server.server if isinstance(server, Bench) else server
    with database_of(server, "old_times", conv={}) as (connection, log):
        run(connection, MODE, "SET GLOBAL mysql56_temporal_format=0")
        try:
            for case in CASES:
                head = case.type.split("(")[0].split()[0]
                if head not in ("datetime", "time", "timestamp"):
                    continue
                digits = int(case.type.split("(")[1][0]) if "(" in case.type else 0
                known = Known(Column("id", "int"), Column("v", head, scale=digits))
                log.decoder = reference(known if digits else None)
                check(server, log, connection, case)
        finally:
            run(connection, "SET GLOBAL mysql56_temporal_format=1")


def test_fractional_times_in_the_old_format_without_history_are_refused(mariadb: Server) -> None:
    """The binlog does not say that these columns have fractions: an error that names the column, not a wrong date."""
    with database_of(mariadb, "old_refused", conv={}) as (connection, log):
        run(connection, "SET GLOBAL mysql56_temporal_format=0", "CREATE TABLE t (id int primary key, v datetime(3), w int)")
        run(connection, "SET GLOBAL mysql56_temporal_format=1")
        run(connection, "INSERT INTO t VALUES (1, '2024-05-06 07:08:09.123', 7), (2, '2024-05-06 07:08:09.123', 7)")
        with pytest.raises(UnsupportedEvent, match=r"column 'v' of table old_refused.t .* fractional seconds"):
            log.seen()


# ---------------------------------------------------------------- columns that are not what they seem


def test_generated_invisible_and_default_columns_are_in_the_row(bench: Bench) -> None:
    """Virtual and stored generated columns, invisible ones and defaults come as SELECT of their names shows them."""
    run(bench.connection, "DROP TABLE IF EXISTS t")
    run(
        bench.connection,
        "CREATE TABLE t (id int primary key, g int as (id + 1) virtual, s varchar(20) as (concat('n', id)) stored, "
        "i int invisible default 7, d datetime default '2024-01-02 03:04:05', e varchar(10) default 'dé', n int)",
    )
    bench.log.skip()
    run(bench.connection, "INSERT INTO t (id) VALUES (1), (2)", "UPDATE t SET id = 5 WHERE id = 2")
    inserted, updated = bench.log.seen()
    assert inserted.schema.names == ("id", "g", "s", "i", "d", "e", "n")
    assert inserted.rows[0].after == (1, 2, "n1", 7, datetime(2024, 1, 2, 3, 4, 5), "dé", None)
    assert updated.rows[0].before[:3] == (2, 3, "n2")
    assert updated.rows[0].after[:3] == (5, 6, "n5")


def test_hidden_columns_of_indexes_are_left_out(bench: Bench) -> None:
    """MariaDB's hash column of a UNIQUE over BLOBs and MySQL's columns of functional indexes belong to no SELECT."""
    run(bench.connection, "DROP TABLE IF EXISTS t")
    if bench.server.flavor == "mariadb":
        run(bench.connection, "CREATE TABLE t (id int primary key, b blob, c text, unique(b), unique(c))")
    else:
        run(
            bench.connection,
            "CREATE TABLE t (id int primary key, b blob, c varchar(9), index f ((upper(c))), index g ((id * 2)))",
        )
    bench.log.skip()
    run(
        bench.connection,
        "INSERT INTO t VALUES (1, 'x', 'y'), (2, NULL, NULL)",
        "UPDATE t SET c = 'z' WHERE id = 1",
        "DELETE FROM t",
    )
    inserted, updated, deleted = bench.log.seen()
    assert inserted.schema.names == ("id", "b", "c")
    assert [row.after for row in inserted.rows] == [(1, b"x", "y"), (2, None, None)]
    assert [tuple(row) for row in updated.rows] == [((1, b"x", "y"), (1, b"x", "z"))]
    assert [row.before for row in deleted.rows] == [(1, b"x", "z"), (2, None, None)]


MIXED = (
    "g geometry, a text, b text character set latin1, c text character set gbk, d blob",
    "g geometry, d blob, a text, b text, c text, e text, g2 point",
    "g geometry, a text",
    "a varchar(9) character set latin1, g point, d varbinary(9), h polygon, b varchar(9) character set ucs2, c char(9)",
)


@pytest.mark.parametrize("columns", MIXED)
@pytest.mark.parametrize("known", [True, False])
def test_character_sets_stay_in_step_with_geometry(bench: Bench, columns: str, known: bool) -> None:
    """MariaDB counts GEOMETRY among the columns with a character set, MySQL does not; known or guessed, each text is right."""
    run(bench.connection, "DROP TABLE IF EXISTS t", f"CREATE TABLE t ({columns})")
    bench.log.skip()
    names = [column.split()[0] for column in columns.split(", ")]
    values = {name: "'é'" if name in "abce" else "x'e9'" if name == "d" else "NULL" for name in names}
    run(bench.connection, f"INSERT INTO t ({', '.join(names)}) VALUES ({', '.join(values.values())})")
    bench.log.decoder = reference()
    bench.log.decoder.mariadb = bench.server.flavor == "mariadb" if known else None
    (event,) = bench.log.seen()
    assert event.rows[0].after == tuple("é" if n in "abce" else b"\xe9" if n == "d" else None for n in names)


def test_vector_of_mysql_is_its_bytes(mysql: Server) -> None:
    """VECTOR comes as the float32s that the server stores."""
    with database_of(mysql, "vectors") as (connection, log):
        run(connection, "CREATE TABLE t (id int primary key, v vector(3), w vector)")
        run(connection, "INSERT INTO t VALUES (1, to_vector('[1,2,3.5]'), to_vector('[1]')), (2, NULL, NULL)")
        (event,) = log.seen()
        assert [column.type for column in event.schema.columns] == ["int", "vector", "vector"]
        assert [row.after for row in event.rows] == [
            (1, np.array([1, 2, 3.5], "<f4").tobytes(), np.array([1], "<f4").tobytes()),
            (2, None, None),
        ]


def test_vector_stands_among_text_columns(mysql: Server) -> None:
    """To MySQL a VECTOR has a collation, as text has: columns behind it keep theirs, in both forms that the log has for that."""
    with database_of(mysql, "vectors") as (connection, log):
        for charsets in (["latin1"], ["latin1", "gbk"] * 3):
            columns = "".join(f", t{i} varchar(9) charset {charset}" for i, charset in enumerate(charsets))
            run(connection, "DROP TABLE IF EXISTS t", f"CREATE TABLE t (v vector(2), b varbinary(9){columns})")
            run(connection, "INSERT INTO t VALUES (to_vector('[1,2]'), x'e9'" + ", 'é'" * len(charsets) + ")")
            assert log.seen()[0].rows[0].after == (np.array([1, 2], "<f4").tobytes(), b"\xe9", *["é"] * len(charsets))


def test_system_versioned_rows_keep_their_period(newer: Bench) -> None:
    """The row_end of a current row is 2106 (read unsigned), and history rows come as the server writes them."""
    run(newer.connection, "DROP TABLE IF EXISTS t", "CREATE TABLE t (id int primary key, x int) WITH SYSTEM VERSIONING")
    newer.log.skip()
    run(newer.connection, "INSERT INTO t VALUES (1, 5)", "UPDATE t SET x = 6")
    inserted, updated, history = newer.log.seen()
    end = datetime(2106, 2, 7, 6, 28, 15, 999999, tzinfo=UTC)
    assert inserted.rows[0].after[3] == end
    assert (updated.rows[0].before[1], updated.rows[0].after[1]) == (5, 6)
    assert history.type is EventType.INSERT
    assert history.rows[0].after[1] == 5
    assert history.rows[0].after[3] < end


def test_a_thousand_columns_stay_in_step(bench: Bench) -> None:
    """A thousand columns of mixed types in one table: NULL bits, sign bits and members stay in step."""
    kinds = ("int unsigned", "varchar(9)", "enum('a','b')", "year", "decimal(5,2)", "bit(3)", "tinyint unsigned", "set('x','y')")
    columns = ", ".join(f"c{i} {kinds[i % len(kinds)]}" for i in range(1000))
    run(bench.connection, "DROP TABLE IF EXISTS t", f"CREATE TABLE t ({columns}) CHARACTER SET latin1")
    bench.log.skip()
    literal = ("4294967295", "'é'", "'b'", "2024", "-1.25", "5", "255", "'x,y'")
    expected = (4294967295, "é", "b", 2024, Decimal("-1.25"), 5, 255, "x,y")
    row = ", ".join("NULL" if i % 3 == 1 else literal[i % len(kinds)] for i in range(1000))
    run(bench.connection, f"INSERT INTO t VALUES ({row})")
    (event,) = bench.log.seen()
    assert event.rows[0].after == tuple(None if i % 3 == 1 else expected[i % len(kinds)] for i in range(1000))
