"""Every column type and its edges: what the decoder makes of the binlog equals what SELECT shows, on real servers.

The oracle is SELECT as text (no converters), turned into a value by rules written here a second time. TIMESTAMPs are selected in
UTC. FLOAT is compared with numpy's shortest form of the float32: the server's own text has only 6 digits (MySQL and MariaDB
print 1.23457 for 1.2345678), so it cannot tell neighbours apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pytest

from shmstore.event import EventType
from tests.producer.decoding import Log, database_of, run
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
STAMPS = ("'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'2024-05-06 07:08:09'", "'0000-00-00 00:00:00'", "'2000-02-29 23:59:59'")
TEXTS = ("''", "'a'", "'Grüße, 世界 😀'", "' lead and trail '", "'\\0\\n\\r\\t\\\\\"'", "repeat('ü', 200)", "'NULL'", "'nul\\0middle'")
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
    Case("float", ("0", "1.1", "-1.1", "3.4028234e38", "-3.4028234e38", "1.17549435e-38", "1e-45", "16777216", "0.3333333", "123456.789")),
    Case("float unsigned", ("0", "1.2345678")),
    Case("float(7,3)", ("0", "1234.567"), name="float"),
    Case("double", ("0", "-0e0", "1.1", "1.7976931348623157e308", "2.2250738585072014e-308", "5e-324", "1e15", "1e16", "0.1", "123456789012345678")),
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
    *[Case(f"bit({n})", ("0", "1", f"{2**n - 1}", f"{2 ** (n - 1)}"), name="bit") for n in (1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 48, 63, 64)],
    Case("year", ("1901", "2155", "0", "1970", "2024")),
    Case("date", (*DATES, *BAD_DATES)),
    Case("datetime", tuple(f"{day[:-1]} {clock}'" for day in DATES + BAD_DATES for clock in ("00:00:00", "23:59:59", "15:59:59", "16:00:00"))),
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
    Case("geometry", ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2), LINESTRING(0 0, 1 1))')")),
    Case("point", ("ST_GeomFromText('POINT(-1.5 2.25)')",)),
    Case("linestring", ("ST_GeomFromText('LINESTRING(0 0, 1 1, 2 4)')",)),
    Case("polygon", ("ST_GeomFromText('POLYGON((0 0, 9 0, 9 9, 0 0))')", "ST_GeomFromText('POLYGON((0 0, 9 0, 9 9, 0 0))', 4326)")),
    Case("multipoint", ("ST_GeomFromText('MULTIPOINT(1 1, 2 2)')",)),
    Case("multilinestring", ("ST_GeomFromText('MULTILINESTRING((0 0, 1 1), (2 2, 3 3))')",)),
    Case("multipolygon", ("ST_GeomFromText('MULTIPOLYGON(((0 0, 9 0, 9 9, 0 0)))')",)),
    Case("geometrycollection", ("ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))')",)),
]


def charset(name: str, *values: str, only: str = "") -> list[Case]:
    """A text in CHAR, VARCHAR, TEXT and as members of ENUM and SET of one character set."""
    first = "','".join(value[1:-1] for value in values if value.startswith("'") and value != "''" and "\\" not in value and "  " not in value)
    cases = [Case(f"{type_} character set {name}", values, only=only) for type_ in ("char(20)", "varchar(40)", "text", "longtext")]
    if first:
        count = first.count("','") + 1
        cases.append(Case(f"enum('{first}') character set {name}", tuple(str(i + 1) for i in range(count)), only=only, name="enum"))
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
    "'{}'", "'[]'", "'null'", "'true'", "'false'", "'0'", "'-1'", "'32767'", "'-32768'", "'65535'", "'65536'", "'2147483647'",
    "'-2147483648'", "'4294967295'", "'9223372036854775807'", "'-9223372036854775808'", "'18446744073709551615'", "'1.5'", "'1e100'",
    "'1e15'", "'1e16'", "'0.1'", "'1e-7'", "'-0.0'", "'123456789012345680000'", "'\"\"'", "'\"Gr\\\\u00fc\\\\u00dfe 世界 😀\"'",
    "'\"q\\\\\"b\\\\\\\\s/\\\\b\\\\f\\\\n\\\\r\\\\t\\\\u0001\\\\u001f\\\\u007f\"'",
    "'{\"b\": 1, \"a\": {\"aa\": [1, [2, [3, {\"x\": null}]]], \"\": \"\"}, \"ab\": 2, \"c\": [[], {}]}'",
    "json_object('d', cast('2024-02-29' as date), 't', cast('-12:34:56.789' as time(6)), 'dt', cast('2024-01-02 03:04:05.6' as datetime(6)))",
    "json_array(cast(12.50 as decimal(10,2)), cast(-0.001 as decimal(5,3)), cast(1 as unsigned), 1.5e0, 1e0)",
    "json_array(cast('0000-00-00' as date), cast('838:59:59' as time), cast('-838:59:59.000001' as time(6)))",
    "json_array(x'ff00', cast('abc' as binary), b'101', ST_GeomFromText('POINT(1 2)'))",
    "json_array(timestamp'2024-01-02 03:04:05', cast(2024 as year))",
    "json_array(repeat('x', 127), repeat('x', 128), repeat('y', 70000), 1, 70000, null, true)",
    "(select json_arrayagg(n) from (with recursive s(n) as (select 1 union all select n + 1 from s where n < 900) select n from s) q)",
    "(select json_objectagg(concat('key', n), repeat('v', 100)) from (with recursive s(n) as (select 1 union all select n + 1 from s where n < 900) select n from s) q)",
    "concat(repeat('[', 99), repeat(']', 99))",
)
CASES += [
    Case("json", MYSQL_JSON, only="mysql"),
    Case("json", ("'{\"b\": 1, \"a\":[1 , 2.50]}'", "'null'", "' [1] '"), only="mariadb", name="longtext"),
]


def case_id(case: Case) -> str:
    return re.sub(r"[^a-z0-9() ]", "", case.type)[:40]


# ---------------------------------------------------------------- the oracle

EPOCH = datetime(1970, 1, 1)


def value_of(type_: str, text: Any, scale: int) -> Any:
    """What SELECT's text means, written independently of the decoder."""
    if text is None:
        return None
    if type_ in ("tinyint", "smallint", "mediumint", "int", "bigint", "year"):
        return int(text)
    if type_ == "decimal":
        return Decimal(text)
    if type_ == "double":
        return float(text)
    if type_ == "float":
        return float(str(np.float32(text)))
    if type_ == "bit":
        return int.from_bytes(text if isinstance(text, bytes) else text.encode("latin-1"), "big")
    if type_ == "time":
        sign, hours, minutes, seconds, fraction = re.fullmatch(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?", text).groups()
        value = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds), microseconds=int((fraction or "").ljust(6, "0")))
        return -value if sign else value
    if type_ in ("date", "datetime", "timestamp"):
        try:
            value = date.fromisoformat(text) if type_ == "date" else datetime.fromisoformat(text)
        except ValueError:
            return text
        return value.replace(tzinfo=UTC) if type_ == "timestamp" else value
    return text


def check(server: Server, log: Log, connection: Any, case: Case, columns: str = "") -> None:
    """Insert, update and delete the case's values; every image equals SELECT of the row."""
    run(connection, "DROP TABLE IF EXISTS t", f"CREATE TABLE t (id int primary key, v {case.type} {columns})")
    for i, value in enumerate((*case.values, "NULL")):
        run(connection, f"INSERT INTO t (id, v) VALUES ({i}, {value})")
    inserted = log.seen()
    select = "v * 1e0" if case.type.startswith("float") else "v"
    shown = run(connection, f"SELECT id, {select} FROM t ORDER BY id")
    assert len(shown) == len(case.values) + 1
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


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_decoded_values_equal_select(bench: Bench, case: Case) -> None:
    """INSERT, UPDATE (both images) and DELETE of every value give what SELECT shows."""
    if case.only and case.only != bench.server.flavor:
        pytest.skip(f"{case.only} only")
    check(bench.server, bench.log, bench.connection, case)
