"""How Canal's MySQL parser names and prints things: sqlType, mysqlType, value text.

Two ways of rendering, chosen by `Values`:

    CANAL   what Canal itself sends, quirks included: ENUM as its ordinal and SET as its bit mask, FLOAT and DOUBLE as
            Java (from 19 on) prints them, in JSON too, DECIMAL without a last group of zeros, BINARY without trailing zero bytes,
            TIMESTAMP in the process's local time zone, and sqlTypes that depend on the value and on how the column is defined.
    EXACT   what the server would print: ENUM and SET as text, shortest decimals, TIMESTAMP in UTC, one sqlType a column.

Bytes are always printed as ISO-8859-1 characters, which loses nothing and is what clients undo.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from struct import pack, unpack
from typing import Any, Final, NamedTuple

from shmstore.consumer.formats.values import datetime_text, number_text, plain_text, value_text
from shmstore.event import Column, EventType, TableSchema


class Values(StrEnum):
    """How column values are rendered: as Canal does, or exactly."""

    CANAL = "canal"
    EXACT = "exact"


class Sql:
    """The numbers of ``java.sql.Types`` that Canal uses."""

    BIT: Final = -7
    TINYINT: Final = -6
    BIGINT: Final = -5
    CHAR: Final = 1
    DECIMAL: Final = 3
    INTEGER: Final = 4
    SMALLINT: Final = 5
    REAL: Final = 7
    DOUBLE: Final = 8
    VARCHAR: Final = 12
    DATE: Final = 91
    TIME: Final = 92
    TIMESTAMP: Final = 93
    OTHER: Final = 1111
    BLOB: Final = 2004
    CLOB: Final = 2005


#: The statements that Canal calls DDL; the others go through as queries.
DDL_TYPES: Final = frozenset(
    (
        EventType.CREATE,
        EventType.ALTER,
        EventType.ERASE,
        EventType.TRUNCATE,
        EventType.RENAME,
        EventType.CINDEX,
        EventType.DINDEX,
    )
)


class Rendering(NamedTuple):
    """One column's rendering. `text` prints a value that is not NULL. Where `own`, a str is its own text. Where `own` or `wide`,
    texts may have any characters; else they are ASCII.

    `sql_type` is for ordinary values, `high_type` for unsigned values above `signed_max`, `null_type` for NULL. `form` is what compiled
    code knows `text` by (`consumer/wire/native/text.pxi`).
    """

    text: Callable[[Any], str]
    sql_type: int
    null_type: int
    high_type: int
    signed_max: int | None
    form: str = "text"
    own: bool = True
    wide: bool = False

    def type_of(self, value: Any) -> int:
        """The sqlType that goes with `value` (None is NULL)."""
        if value is None:
            return self.null_type
        return self.high_type if self.signed_max is not None and value > self.signed_max else self.sql_type


# bytes, sqlType, sqlType one size up
_INTEGERS: Final = {
    "tinyint": (1, Sql.TINYINT, Sql.SMALLINT),
    "smallint": (2, Sql.SMALLINT, Sql.INTEGER),
    "mediumint": (3, Sql.INTEGER, Sql.INTEGER),
    "int": (4, Sql.INTEGER, Sql.BIGINT),
    "bigint": (8, Sql.BIGINT, Sql.DECIMAL),
}
_TYPES: Final = {
    "decimal": Sql.DECIMAL,
    "float": Sql.REAL,
    "double": Sql.DOUBLE,
    "bit": Sql.BIT,
    "year": Sql.VARCHAR,
    "date": Sql.DATE,
    "time": Sql.TIME,
    "datetime": Sql.TIMESTAMP,
    "timestamp": Sql.TIMESTAMP,
    "char": Sql.CHAR,
    "varchar": Sql.VARCHAR,
    "json": Sql.VARCHAR,
    "tinytext": Sql.CLOB,
    "text": Sql.CLOB,
    "mediumtext": Sql.CLOB,
    "longtext": Sql.CLOB,
    "uuid": Sql.CHAR,
    "inet4": Sql.CHAR,
    "inet6": Sql.CHAR,
}
#: The forms of what the server prints, where they are not those of plain text.
_FORMS: Final = {"bit": "int", "year": "year", "decimal": "digits", "date": "date", "time": "time"} | dict.fromkeys(
    ("datetime", "timestamp"), "moment"
)


def rendering(column: Column, values: Values) -> Rendering:
    """Return how `column` is rendered."""
    canal = values is Values.CANAL
    kind = column.type
    if kind in _INTEGERS:
        size, plain, up = _INTEGERS[kind]
        if not column.unsigned:
            return _same(str, plain, "int", own=False)
        if canal:
            return Rendering(str, plain, plain, up, (1 << (8 * size - 1)) - 1, "int", own=False)
        return _same(str, up, "int", own=False)
    if kind == "enum":
        return _same(enum_text(column.members), Sql.INTEGER, "enum", own=False) if canal else _same(plain_text, Sql.VARCHAR)
    if kind == "set":
        return (
            Rendering(set_text(column.members), Sql.BIT, Sql.BLOB, Sql.BIT, None, "set", own=False)
            if canal
            else _same(plain_text, Sql.VARCHAR)
        )
    if kind == "json":
        if canal:
            return Rendering(canal_json, Sql.VARCHAR, Sql.OTHER, Sql.VARCHAR, None, "json", own=False, wide=True)
        return Rendering(plain_text, Sql.VARCHAR, Sql.VARCHAR, Sql.VARCHAR, None, wide=True)
    if canal and kind == "decimal" and column.scale:
        return _same(decimal_text(column.scale), Sql.DECIMAL, "grouped", own=False)
    if canal and kind == "binary":
        return _same(_stripped, Sql.BLOB, "stripped")
    if canal and kind in _TEXTS and column.definition and column.definition.lower() not in _TEXTS and column.charset in _UTF8:
        return Rendering(_bytes_text, Sql.BLOB, Sql.BLOB, Sql.BLOB, None, "octets", own=False, wide=True)
    if kind in ("float", "double"):
        return (
            _same(java_float if kind == "float" else java_number, _TYPES[kind], "java", own=False)
            if canal
            else _same(number_text, _TYPES[kind], "number", own=False)
        )
    if kind == "timestamp" and canal:
        return _same(local_text(column.scale), Sql.TIMESTAMP, "local")
    return _same(value_text(column), _TYPES.get(kind, Sql.BLOB), _FORMS.get(kind, "text"))


@lru_cache(maxsize=1024)
def renderings(table: TableSchema, values: Values) -> tuple[Rendering, ...]:
    """Return the renderings of all columns of `table`."""
    return tuple(rendering(column, values) for column in table.columns)


def canal_key(table: TableSchema) -> tuple[int, ...]:
    """The columns that Canal marks as key: those of a primary key alone, not of a UNIQUE key that the server takes for one."""
    return () if table.unique_key else table.primary_key


def _same(text: Callable[[Any], str], sql_type: int, form: str = "text", *, own: bool = True) -> Rendering:
    return Rendering(text, sql_type, sql_type, sql_type, None, form, own)


# ---------------------------------------------------------------- value -> text where Canal's is not the server's

# Canal takes a column of these types for text where its definition is nothing but the name; else, as MariaDB's JSON or TEXT(100), for
# bytes, each a character.
_TEXTS: Final = frozenset(("tinytext", "text", "mediumtext", "longtext"))
_UTF8: Final = frozenset(("utf8mb4", "utf8mb3"))


def _bytes_text(value: Any) -> str:
    return value.encode("utf-8", "replace").decode("latin-1") if type(value) is str else plain_text(value)


def _stripped(value: Any) -> str:
    return plain_text(value).rstrip("\0")


@lru_cache(maxsize=64)
def decimal_text(scale: int) -> Callable[[Any], str]:
    """Return the function that prints a DECIMAL as Canal reads it: digits are stored in groups of nine, and it passes over the last group
    where that is not whole and all zeros."""
    short = scale % 9
    zeros, whole = "0" * short, short == scale

    def text(value: Any) -> str:
        digits = value if type(value) is str else format(value, "f")
        if short and digits.endswith(zeros):
            return f"{digits[:-short]}0" if whole else digits[:-short]
        return digits

    return text


_UNLIKE_JAVA: Final = re.compile(r"\d[.eE]|\\|[\x7f-\xa0]|base64:type")
_JSON_PARTS: Final = re.compile(r'("(?:[^"\\]|\\.)*")(: )?|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?')
_ESCAPED: Final = re.compile(r"\\[bf]|\\.|[\x7f-\xa0]")
_TO_ESCAPE: Final = re.compile(r'["\\\x00-\x1f\x7f-\xa0]')
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Values of SQL types in a document, as MySQL prints them.
_OPAQUE: Final = re.compile(
    r'"(?:base64:type\d+:(?P<bytes>[A-Za-z0-9+/]*={0,2})|0000-00-00 00:00:00\.0{6}|-?00:00:00\.0{6}|(?P<sign>-?)100(?P<rest>:\d\d:\d\d\.\d{6}))"'
)


def canal_json(value: Any) -> str:
    """Print MySQL's JSON as Canal does: doubles as Java prints them, DECIMAL as `decimal_text` does, other escapes and in names of members none,
    zero moments without their fraction, bytes as text up to their first zero."""
    text = plain_text(value)
    return _JSON_PARTS.sub(_json_part, text) if _UNLIKE_JAVA.search(text) else text


def _json_part(match: re.Match[str]) -> str:
    part = match[0]
    if match[2] is not None:
        return f'"{json.loads(match[1], strict=False)}": ' if "\\" in part else part
    if match[1] is not None:
        if (found := _OPAQUE.fullmatch(part)) is not None:
            return _opaque(found)
        return _ESCAPED.sub(_escape, part) if _UNLIKE_JAVA.search(part) else part
    if part.lstrip("-").isdigit():
        return part
    number = float(part)
    # A DECIMAL in JSON has its digits as they were written: that no double would be printed so tells it apart.
    if number_text(number) in (part, part.removesuffix(".0")):
        return java_number(number)
    return decimal_text(len(part.partition(".")[2]))(part) if "e" not in part.lower() else java_number(number)


def _opaque(found: re.Match[str]) -> str:
    if found["bytes"] is not None:
        text = b64decode(found["bytes"]).partition(b"\0")[0].decode("utf-8", "replace")
        return f'"{_TO_ESCAPE.sub(lambda one: _SHORT.get(one[0]) or f"{chr(92)}u{ord(one[0]):04x}", text)}"'
    if found["rest"] is not None:
        return f'"{found["sign"]}00{found["rest"]}"'
    return f'{found[0][:-8]}"'


def _escape(match: re.Match[str]) -> str:
    part = match[0]
    if part in ("\\b", "\\f"):
        return "\\u0008" if part == "\\b" else "\\u000c"
    return part if part[0] == "\\" else f"\\u00{ord(part):x}"


@lru_cache(maxsize=16)
def local_text(scale: int) -> Callable[[Any], str]:
    """Return the function that prints a TIMESTAMP in the process's local time zone, as Canal does in the JVM's."""
    plain = datetime_text(scale)
    dropped, whole = 10 ** (6 - scale), 10**scale  # the 1 before the digits keeps their zeros

    def text(value: Any) -> str:
        if type(value) is int:
            second, micro = divmod(value, 1_000_000)
            return f"{_local(second)}.{str(micro // dropped + whole)[1:]}" if scale else _local(second)
        return plain(value.astimezone().replace(tzinfo=None) if isinstance(value, datetime) else value)

    return text


@lru_cache(maxsize=8192)
def _local(second: int) -> str:
    return datetime.fromtimestamp(second).isoformat(" ")


def enum_text(members: tuple[str, ...]) -> Callable[[Any], str]:
    """Return the function that prints an ENUM as its ordinal; the server's error value '' is 0."""
    ordinals = {"": "0"} | {member: str(i) for i, member in enumerate(members, 1)}
    return ordinals.__getitem__


def set_text(members: tuple[str, ...]) -> Callable[[Any], str]:
    """Return the function that prints a SET as its bit mask."""
    bits = {member: 1 << i for i, member in enumerate(members)}

    @lru_cache(maxsize=4096)
    def text(value: str) -> str:
        return str(sum(bits[member] for member in value.split(","))) if value else "0"

    return text


def java_number(value: Any) -> str:
    """Print a DOUBLE as Java's ``toString``: ``1.0``, ``1.5E10``, ``1.0E-5``."""
    value = float(value)
    return _java(value, value)


def java_float(value: Any) -> str:
    """Print a FLOAT, which has the digits of its shortest text, as Java's ``toString``."""
    value = float(value)
    return _java(value, unpack("f", pack("f", value))[0])


def _java(value: float, exact: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    power = int(exponent) + len(digits) - 1
    if len(text) == 1 and power < -37:  # of numbers so small Java prints the nearest that has two digits
        mantissa, _, power_text = f"{abs(exact):.1e}".partition("e")
        text, power = mantissa.replace(".", "").rstrip("0"), int(power_text)
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{power}"
