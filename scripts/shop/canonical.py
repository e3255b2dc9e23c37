"""One text for one value, no matter who keeps it, and a checksum for every column of a table.

Plan. The server's SELECT, the SQLite tables, the Spark tables and the replay of the tail file hold the same value in different
clothes: Decimal or text, aware datetime or text, bytes or hex. `canonical` undresses them to one exact text by the kind of the
server's column; two different values never share a text. A column's checksum is a hash over these texts in the order of the
primary key, each with its length in front, so that a changed, missing, doubled or swapped value shows.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Table(NamedTuple):
    """What one place holds of a table: row count and a checksum (hex text) for every column."""

    rows: int
    columns: dict[str, str]


def _integer(value: Any) -> str:
    return str(int(value))  # int(Decimal) is exact: Spark keeps unsigned 64-bit numbers as decimal(20,0)


def _bits(value: Any) -> str:
    return str(int.from_bytes(value, "big") if isinstance(value, bytes) else int(value))


def _decimal(value: Any) -> str:
    return format(value, "f") if isinstance(value, Decimal) else _expect(value, str)


def _float(value: Any) -> str:
    return repr(float(_expect(value, float)))


def _single(value: Any) -> str:
    """FLOAT has 32 bits, of which 9 digits tell every one; which double represents it (1.1 or 1.10000002384) is all the same."""
    (single,) = struct.unpack("<f", struct.pack("<f", _expect(value, float)))
    return f"{single:.9g}"


def _text(value: Any) -> str:
    return _expect(value, str)


def _bytes(value: Any) -> str:
    return bytes(value).hex() if isinstance(value, bytes | bytearray | memoryview) else _expect(value, str)


def _date(value: Any) -> str:
    return value.isoformat() if isinstance(value, date) and not isinstance(value, datetime) else _expect(value, str)


def _datetime(value: Any) -> str:
    if isinstance(value, str):
        return _six_digits(value)
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise TypeError(f"DATETIME is a wall clock without a zone, got {value!r}")
    return value.isoformat(" ", "microseconds")


def _timestamp(value: Any) -> str:
    if isinstance(value, str):
        return _six_digits(value.replace("T", " ").removesuffix("Z"))
    if not isinstance(value, datetime):
        raise TypeError(f"expected a datetime, got {type(value).__name__} {value!r}")
    if value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
    return value.isoformat(" ", "microseconds")


def _six_digits(text: str) -> str:
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction:0<6}"


_TIME = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


def _time(value: Any) -> str:
    """Signed microseconds: TIME goes from -838 to 838 hours."""
    if isinstance(value, str):
        match = _TIME.fullmatch(value)
        if match is None:
            raise TypeError(f"expected a TIME such as -838:59:59.000, got {value!r}")
        sign, hours, minutes, seconds, fraction = match.groups()
        micros = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int(f"{fraction or '':0<6}")
        return str(-micros if sign else micros)
    if isinstance(value, timedelta):
        value = value // timedelta(microseconds=1)
    return str(_expect(value, int))


def _expect(value: Any, type_: type[T]) -> T:
    if not isinstance(value, type_) or isinstance(value, bool):
        raise TypeError(f"expected {type_.__name__}, got {type(value).__name__} {value!r}")
    return value


#: information_schema's DATA_TYPE -> value -> canonical text
_BY_TYPE: dict[str, Callable[[Any], str]] = (
    dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year"), _integer)
    | dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json", "enum", "set"), _text)
    | dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _bytes)
    | {
        "bit": _bits,
        "decimal": _decimal,
        "float": _single,
        "double": _float,
        "date": _date,
        "datetime": _datetime,
        "timestamp": _timestamp,
        "time": _time,
    }
)


def base_type(type_: str) -> str:
    """Return the DATA_TYPE of a declared type: ``bigint`` of ``bigint unsigned not null``."""
    match = re.match(r"\s*(\w+)", type_)
    return match[1].lower() if match else type_


def canonical(value: Any, data_type: str) -> str | None:
    """Return the canonical text of `value` in a column of information_schema's `data_type`; None for NULL.

    Decimals are digits as declared, TIMESTAMP is UTC and DATETIME the wall clock with six digits, TIME is signed microseconds,
    bytes are hex, JSON is its text, doubles are the shortest repr. Dates, times and decimals may come as the text that MySQL
    prints, bytes as hex. Raises TypeError where a value cannot be of that column: the wrong kind must not pass by looking alike.
    """
    return None if value is None else _BY_TYPE[data_type](value)


def checksum_table(rows: Iterable[Sequence[Any]], columns: Sequence[tuple[str, str]], key: Sequence[str]) -> Table:
    """Return row count and checksums of `rows`, whose values lie in the order of `columns` (name, DATA_TYPE)."""
    functions = [_BY_TYPE[data_type] for _, data_type in columns]
    names = [name for name, _ in columns]
    key_indexes = [names.index(name) for name in key]
    texts = [[None if value is None else function(value) for function, value in zip(functions, row, strict=True)] for row in rows]
    texts.sort(key=lambda row: [row[i] or "" for i in key_indexes])
    sums = {}
    for i, name in enumerate(names):
        hash_ = blake2b(digest_size=6)
        hash_.update("".join("N" if row[i] is None else f"{len(row[i])}:{row[i]}" for row in texts).encode())  # type: ignore[arg-type]
        sums[name] = hash_.hexdigest()
    return Table(len(texts), sums)
