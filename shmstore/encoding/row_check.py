"""Whether a table's schema is one, and the rows of an event are values of its columns, as the table in docs/reference/events.md has them: asked before
an event of one's own is stored, because the process that reads it later could only say that it is damaged. A schema is asked there too, by the same
rules: all that reads a store relies on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from shmstore.event import ABSENT, Column, Row, TableSchema

MAX_SIZE: Final = 2**32 - 1  # of LONGTEXT and LONGBLOB
MAX_SCALE: Final = 255  # servers keep it in a byte
_FIELDS: Final = (str, str, int, int, int, int, str, tuple, str)  # types of the fields of `Column`; a flag may be a number
_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32}
_BYTES: Final = (bytes, bytearray, memoryview)
_TEXT: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "uuid", "inet4", "inet6")
_BINARY: Final = (
    *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector", "geometry", "geometrycollection"),
    *("geomcollection", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
)


class ColumnKind(NamedTuple):
    """What a column takes: values of `types`, which `fits` says more of; `wanted` in words; `take`, `low` and `high` for compiled code, which
    checks the usual values itself (Take in shmstore/native/write.pxi)."""

    types: tuple[type, ...]
    wanted: str
    take: int
    fits: Callable[[Any], bool] = lambda value: True
    low: int = 0
    high: int = 0


def _integers(low: int, high: int) -> ColumnKind:
    return ColumnKind((int,), f"an int from {low} to {high}", 1, lambda value: low <= value <= high, low, high)


_KINDS: Final[dict[str, ColumnKind]] = {
    "year": _integers(0, 2155),
    "bit": _integers(0, 2**64 - 1),
    "bigint": _integers(-(2**63), 2**64 - 1),
    **dict.fromkeys(("float", "double"), ColumnKind((float, int), "a float", 2)),
    "decimal": ColumnKind((Decimal,), "a finite decimal.Decimal", 3, Decimal.is_finite),
    "date": ColumnKind((date, str), "a date, or the text of a zero date", 4, lambda value: not isinstance(value, datetime)),
    "datetime": ColumnKind(
        (datetime, str),
        "a naive datetime, or the text of a zero date",
        5,
        lambda value: isinstance(value, str) or value.tzinfo is None,
    ),
    "timestamp": ColumnKind(
        (datetime, str),
        "an aware datetime, or the text of a zero date",
        6,
        lambda value: isinstance(value, str) or value.tzinfo is not None,
    ),
    "time": ColumnKind((timedelta,), "a timedelta", 7),
    **dict.fromkeys(_TEXT, ColumnKind((str,), "a str", 8)),
    **dict.fromkeys(_BINARY, ColumnKind(_BYTES, "bytes", 9)),
}


def _kind_of(column: Column) -> ColumnKind | None:
    bits = _BITS.get(column.type)
    if bits is None:
        return _KINDS.get(column.type)
    return _integers(0, 2**bits - 1) if column.unsigned else _integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@lru_cache(maxsize=4096)
def kinds_of(table: TableSchema) -> tuple[ColumnKind | None, ...]:
    """Return what each column of `table` takes; None for a column of a type that is not known."""
    return tuple([_kind_of(column) for column in table.columns])


def check_schema(table: TableSchema) -> None:
    """Raise TypeError where a field of `table` is of another type than `TableSchema` and `Column` say, ValueError where it cannot be."""
    fields = [(table.database, str, "database"), (table.table, str, "table"), (table.unique_key, int, "unique_key")]
    for number, column in enumerate(table.columns):
        fields += [
            (value, kind, f"{name} of column {number}") for value, name, kind in zip(column, Column._fields, _FIELDS, strict=True)
        ]
        fields += [(member, str, f"a member of column {number}") for member in column.members]
    fields += [(index, int, "an index of primary_key") for index in table.primary_key]
    for value, kind, what in fields:
        if not isinstance(value, kind):
            raise TypeError(f"table {_name(table)}: {what} is {value!r:.80}, a {type(value).__name__}: it is a {kind.__name__}")
    for column in table.columns:
        if not (0 <= column.size <= (64 if column.type == "bit" else MAX_SIZE) and 0 <= column.scale <= MAX_SCALE):
            raise ValueError(
                f"table {_name(table)}: column {column.name} ({column.type}) has size {column.size} and scale {column.scale}, which no column has"
            )
    key, width = table.primary_key, len(table.columns)
    if len(set(key)) != len(key) or not all(0 <= index < width for index in key):
        raise ValueError(
            f"table {_name(table)}: primary_key is {key!r:.80}, and there are {width} columns: give indexes of columns, each once"
        )


def check_rows(table: TableSchema, rows: Iterable[Row]) -> None:
    """Raise ValueError where a row of `table` is none: too short or too long, a value that is not of its column (TypeError where its type is
    not), an image that the first row does not have, or that lacks other columns."""
    images: tuple[list[bool] | None, list[bool] | None] | None = None
    for number, row in enumerate(rows):
        absent = _absent(table, number, row.before), _absent(table, number, row.after)
        if images is None:
            images = absent
        elif absent != images:
            raise ValueError(
                f"row {number} of table {_name(table)} has other images, or other columns in them, than row 0: put it into an event of its own"
            )


def _absent(table: TableSchema, number: int, image: tuple[Any, ...] | None) -> list[bool] | None:
    """Which columns an image lacks; None for no image."""
    if image is None:
        return None
    kinds = kinds_of(table)
    if len(image) != len(kinds):
        raise ValueError(f"row {number} of table {_name(table)} has {len(image)} values, the table has {len(kinds)} columns")
    for i, (kind, value) in enumerate(zip(kinds, image, strict=True)):
        if kind is None or value is None or value is ABSENT:
            continue
        typed = isinstance(value, kind.types)
        if not (typed and kind.fits(value)):
            column = table.columns[i]
            raise (ValueError if typed else TypeError)(
                f"row {number} of table {_name(table)}: column {column.name} ({column.type}) cannot hold {value!r:.80}, a "
                f"{type(value).__name__}: give {kind.wanted}"
            )
    return [value is ABSENT for value in image]


def _name(table: TableSchema) -> str:
    return f"{table.database}.{table.table}"
