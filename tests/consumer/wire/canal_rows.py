"""Random tables and rows of every column type, as SQL: what Canal's server and ours are compared on."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from datetime import date, timedelta

#: A column: how it is defined, and what makes one value of it, as SQL.
_Make = Callable[[random.Random], str]

_INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_LETTERS = "ab Z09'\\\"\n\t\x01\x1f\x7fé\xa0中𝄞́"
#: Columns of these names have another character set than UTF-8.
OTHER_CHARSETS = ("latin", "gbk")


def statements(seed: int, flavor: str, *, rows: int = 6, tables: int = 3) -> Iterator[str]:
    """Yield statements: tables, then rows that are inserted, updated and deleted, under every row image."""
    source = random.Random(seed)
    yield f"CREATE DATABASE random_{seed}"
    yield f"USE random_{seed}"
    yield "SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'"
    for number in range(tables):
        columns = _columns(source, flavor)
        names = [name for name, _, _ in columns]
        # A key whose columns are not in the table's order.
        key = source.choice((", primary key (id)", ", primary key (id2, id)", ", unique key (id)", ""))
        fields = ", ".join(f"{name} {definition}" for name, definition, _ in columns)
        yield f"create table t{number} (id int not null, {fields}, id2 int not null default 1{key})"
        for i in range(rows):
            values = [", ".join([str(2 * i + k), *[_value(source, make) for _, _, make in columns]]) for k in range(2)]
            yield f"insert into t{number} (id, {', '.join(names)}) values ({values[0]}), ({values[1]})"
        for _ in range(rows):
            yield f"SET SESSION binlog_row_image = {source.choice(('FULL', 'MINIMAL', 'NOBLOB'))}"
            changed = source.sample(columns, source.randint(1, len(columns)))
            sets = ", ".join(f"{name} = {_value(source, make)}" for name, _, make in changed)
            yield f"update t{number} set {sets} where id >= {source.randrange(2 * rows)} limit {source.randint(1, 3)}"
        yield f"delete from t{number} where id < {source.randrange(2 * rows)}"
        yield "SET SESSION binlog_row_image = FULL"


def _value(source: random.Random, make: _Make) -> str:
    return "NULL" if source.random() < 0.15 else make(source)


def _columns(source: random.Random, flavor: str) -> list[tuple[str, str, _Make]]:
    kinds = [_integer, _bit, _float, _decimal, _text, _text, _bytes, _moment, _clock, _year, _member, _members, _other_text]
    kinds += [_json, _json, _json, _point] if flavor == "mysql" else [_own]
    found = []
    for number in range(source.randint(8, 14)):
        kind = source.choice(kinds)
        definition, make = kind(source)
        name = {_other_text: definition.split("character set ")[-1][:5]}.get(kind, kind.__name__.strip("_"))
        found.append((f"{name}_{number}", f"{definition} null", make))
    return found


def _integer(source: random.Random) -> tuple[str, _Make]:
    kind, unsigned = source.choice(list(_INTEGERS)), source.random() < 0.6
    bits = 8 * _INTEGERS[kind]
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    width = source.choice(("", "(3)", "(20)"))
    sign = source.choice((" unsigned", " unsigned zerofill")) if unsigned else ""
    return f"{kind}{width}{sign}", lambda s: str(s.choice((low, high, high // 2, high // 2 + 1, 0, 1, s.randint(low, high))))


def _bit(source: random.Random) -> tuple[str, _Make]:
    size = source.choice((1, 2, 7, 8, 9, 16, 17, 24, 31, 32, 33, 48, 63, 64, source.randint(1, 64)))
    return f"bit({size})", lambda s: str(s.choice((0, 1, 2**size - 1, 2 ** (size - 1), s.getrandbits(size))))


def _float(source: random.Random) -> tuple[str, _Make]:
    kind = source.choice(("float", "double", "float(7,3)", "double(20,5)", "real", "double unsigned"))

    def make(s: random.Random) -> str:
        if "(" in kind:
            return f"{s.uniform(-999, 999):.4f}"
        if kind == "float":
            value = s.choice(
                (1e-45, 2e-45, 1.17549435e-38, 3.4028234e38, 1e10, 0.001, 1e7, 16777217.0, s.uniform(-9, 9), _bits(s, "f"))
            )
        else:
            value = s.choice(
                (5e-324, 1e-323, 1.7976931348623157e308, 1e23, 2e-3, 1e7, 123456789.5, s.uniform(-9, 9), _bits(s, "d"))
            )
        return repr(value if "unsigned" not in kind else abs(value))

    return kind, lambda s: s.choice(("0", "-0e0", make(s), make(s), make(s)))


def _bits(source: random.Random, kind: str) -> float:
    """A float or a double of any bits that is a number."""
    while True:
        value: float = struct.unpack(kind, source.randbytes(struct.calcsize(kind)))[0]
        if value - value == 0:
            return value


def _decimal(source: random.Random) -> tuple[str, _Make]:
    precision = source.randint(1, 65)
    scale = source.randint(0, min(30, precision))

    def make(s: random.Random) -> str:
        digits = "".join(s.choice("0000123456789") for _ in range(precision))
        whole, fraction = digits[: precision - scale] or "0", digits[precision - scale :]
        if s.random() < 0.5:
            fraction = fraction[: s.randint(0, scale)].ljust(scale, "0")
        return f"{s.choice(('', '-'))}{whole}{'.' if scale else ''}{fraction}"

    return f"decimal({precision},{scale})", make


def _string(source: random.Random, most: int, letters: str = _LETTERS) -> str:
    return "".join(source.choice(letters) for _ in range(source.choice((0, 1, source.randint(0, most)))))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _text(source: random.Random) -> tuple[str, _Make]:
    kind = source.choice(("char(20)", "varchar(20)", "tinytext", "text", "mediumtext", "longtext", "text(300)", "varchar(300)"))
    return f"{kind} character set utf8mb4", lambda s: _quoted(_string(s, 20))


def _other_text(source: random.Random) -> tuple[str, _Make]:
    charset, letters = source.choice((("latin1", "aé ßÿ"), ("gbk", "a中文b")))
    return f"varchar(20) character set {charset}", lambda s: _quoted(_string(s, 10, letters))


def _bytes(source: random.Random) -> tuple[str, _Make]:
    size = source.choice((1, 5, 20, 255))
    kind = source.choice(
        (f"binary({size})", f"binary({size})", f"varbinary({size})", "tinyblob", "blob", "mediumblob", "longblob")
    )
    most = size if "(" in kind else 30

    def make(s: random.Random) -> str:
        value = bytes(s.choice((0, 0, 0x20, 0x41, 0x7F, 0x80, 0xFF)) for _ in range(s.randint(0, most)))
        return f"x'{value.hex()}'"

    return kind, make


def _fraction(source: random.Random, scale: int) -> str:
    if not scale:
        return ""
    return "." + source.choice(("0" * scale, "9" * scale, "0" * (scale - 1) + "1", str(source.randrange(10**scale)).zfill(scale)))


def _day(source: random.Random) -> str:
    return source.choice(
        (
            "0000-00-00",
            "2024-00-10",
            "2024-10-00",
            "2023-02-30",
            "0001-01-01",
            "9999-12-31",
            "1582-10-10",
            "0000-01-01",
            "0099-02-03",
        )
        + (str(date(1000, 1, 1) + timedelta(source.randrange(3_000_000))),) * 3
    )


def _moment(source: random.Random) -> tuple[str, _Make]:
    scale = source.randint(0, 6)
    kind = source.choice(("date", f"datetime({scale})", f"timestamp({scale})", "datetime", "timestamp"))
    digits = scale if "(" in kind else 0

    def make(s: random.Random) -> str:
        if kind == "date":
            return f"'{_day(s)}'"
        if kind.startswith("timestamp"):
            day = s.choice(
                (
                    "0000-00-00",
                    "1970-01-01 00:00:01",
                    "2038-01-19 03:14:07",
                    str(date(1990, 1, 1) + timedelta(s.randrange(15000))),
                )
            )
        else:
            day = _day(s)
        clock = "" if " " in day or day == "0000-00-00" else f" {s.randrange(24):02}:{s.randrange(60):02}:{s.randrange(60):02}"
        return f"'{day}{clock}{_fraction(s, digits) if clock or ' ' in day else ''}'"

    return kind, make


def _clock(source: random.Random) -> tuple[str, _Make]:
    scale = source.randint(0, 6)

    def make(s: random.Random) -> str:
        hour = s.choice((0, 0, 1, 99, 100, 101, 838, s.randrange(839)))
        minute, second = s.choice(((0, 0), (59, 59), (s.randrange(60), s.randrange(60))))
        fraction = "" if (hour, minute, second) == (838, 59, 59) else _fraction(s, scale)
        return f"'{s.choice(('', '-'))}{hour:02}:{minute:02}:{second:02}{fraction}'"

    return f"time({scale})", make


def _year(source: random.Random) -> tuple[str, _Make]:
    return "year", lambda s: str(s.choice((0, 1901, 2155, s.randint(1901, 2155))))


def _member(source: random.Random) -> tuple[str, _Make]:
    names = source.choice((["a", "b''c", "d,e", "é"], [f"m{i}" for i in range(300)]))
    listed = ",".join(f"'{name}'" for name in names)
    return f"enum({listed}) character set utf8mb4", lambda s: s.choice((f"'{s.choice(names)}'", "'no member'", "''"))


def _members(source: random.Random) -> tuple[str, _Make]:
    names = [f"s{i}" for i in range(source.choice((1, 3, 8, 9, 17, 33, 63, 64)))]
    listed = ",".join(f"'{name}'" for name in names)
    return f"set({listed})", lambda s: f"'{','.join(s.sample(names, s.randint(0, len(names))))}'"


def _point(source: random.Random) -> tuple[str, _Make]:
    kind = source.choice(("geometry", "point"))
    return kind, lambda s: f"ST_GeomFromText('POINT({s.randint(-9, 9)} {s.random()})', {s.choice((0, 4326))})"


def _own(source: random.Random) -> tuple[str, _Make]:
    """What MariaDB alone has."""
    kind, make = source.choice(
        (
            ("json", lambda s: _quoted(json.dumps({"a": s.random(), "é": _string(s, 5)}, ensure_ascii=s.random() < 0.5))),
            ("geometry", lambda s: f"ST_GeomFromText('POINT({s.randint(-9, 9)} {s.random()})')"),
        )
    )
    return kind, make


def _json(source: random.Random) -> tuple[str, _Make]:
    return "json", lambda s: f"{_node(s, 0)}" if s.random() < 0.8 else f"json_extract(json_array({_leaf(s)}), '$[0]')"


def _node(source: random.Random, depth: int) -> str:
    """A JSON document, put together by the server's own functions, so that it may hold values of SQL types."""
    what = source.random()
    if what < 0.3 or depth == 0:
        pairs = [f"{_quoted(_string(source, 6) + str(i))}, {_child(source, depth)}" for i in range(source.randint(0, 4))]
        return f"json_object({', '.join(pairs)})"
    return f"json_array({', '.join([_child(source, depth) for _ in range(source.randint(0, 4))])})"


def _child(source: random.Random, depth: int) -> str:
    return _node(source, depth + 1) if depth < 3 and source.random() < 0.3 else _leaf(source)


def _leaf(source: random.Random) -> str:
    number = source.choice(("0", "-1", "32767", "-32769", "65536", "-2147483649", "18446744073709551615", "-9223372036854775808"))
    real = source.choice(
        ("1e0", "1e10", "-0e0", "1.5e0", "2e-3", "1e7", "123456789.125e0", "5e-324", repr(_bits(source, "d")), "1e15", "1e16")
    )
    if "e" not in real:
        real += "e0"
    scale = source.choice((0, 1, 3, 9, 10, 12, 18))
    digits = "." + "".join(source.choice("0001") for _ in range(scale)) if scale else ""
    exact = f"cast('{source.choice(('', '-'))}{source.choice((0, 7, 1234567890))}{digits}' as decimal(40,{scale}))"
    fine = source.randint(0, 6)
    day = source.choice(("2024-02-29", "0001-01-01", "9999-12-31", "0000-00-00"))
    clock = f"{source.choice(('', '-'))}{source.choice((0, 1, 99, 100, 101, 838))}:{source.choice(('00:00', '10:59'))}{_fraction(source, fine)}"
    return source.choice(
        (
            number,
            real,
            exact,
            "NULL",
            "true",
            "false",
            _quoted(_string(source, 8)),
            _quoted(_string(source, 200)),
            f"cast('{day}' as date)",
            f"cast('{day} 01:02:03{_fraction(source, fine)}' as datetime({fine}))",
            f"cast('{day} 00:00:00' as datetime)",
            f"cast('{clock}' as time({fine}))",
            "cast('00:00:00' as time)",
            "timestamp'2024-05-06 07:08:09.5'",
            "cast(2024 as year)",
            _quoted("2024-02-29"),
            "b'101'",
            "x'00ff41'",
            "cast('ab' as binary(5))",
            "cast('é' as binary)",
        )
    )
