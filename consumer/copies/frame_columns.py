"""Columns of a frame of one's own, as those of a table that a copy can be made of: for each Arrow type a column that holds its values and no other."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from shmstore.consumer.copies.change_reduction import CannotFollow
from shmstore.consumer.formats.values import time_text
from shmstore.event import Column

_MOMENT: Final = pa.timestamp("us", "UTC")
_KEY_CHARACTERS: Final = 255  # of text in a key, where a database has to be given a length
_KINDS: Final = {
    pa.bool_(): "bool",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.string(): "longtext",
    pa.binary(): "longblob",
}
#: Types by whose values rows are found and put in order.
ORDERED: Final = (
    *(pa.types.is_integer, pa.types.is_decimal, pa.types.is_date, pa.types.is_timestamp),
    *(pa.types.is_string, pa.types.is_binary),
)


def column_of(field: pa.Field, *, key: bool = False) -> Column:
    """Return the column that holds the values of `field`. Raises `CannotFollow` where there is none."""
    kind = field.type
    if pa.types.is_timestamp(kind):
        return Column(field.name, "datetime" if kind.tz is None else "timestamp", scale=6)
    if pa.types.is_duration(kind):
        return Column(field.name, "time", scale=6)
    if pa.types.is_decimal128(kind):
        return Column(field.name, "decimal", size=kind.precision, scale=kind.scale)
    if key and pa.types.is_string(kind):
        return Column(field.name, "varchar", size=4 * _KEY_CHARACTERS, charset="utf8mb4")
    if key and pa.types.is_binary(kind):
        return Column(field.name, "varbinary", size=_KEY_CHARACTERS)
    if kind not in _KINDS:
        raise CannotFollow(
            f"column {field.name} has type {kind}, which no target takes: leave it out, take its fields as columns, or give to_json({field.name})"
        )
    return Column(field.name, _KINDS[kind])


def plain(table: pa.Table) -> pa.Table:
    """Return `table` with the types that `column_of` knows, and TIME as text: Spark's frames have moments of its session's zone."""
    for i, field in enumerate(table.schema):
        kind, cells = field.type, table.column(i)
        if pa.types.is_duration(kind):
            text = time_text(6)
            micros = cells.cast(pa.duration("us")).cast(pa.int64()).to_pylist()
            cells = pa.chunked_array([pa.array([None if value is None else text(value) for value in micros], pa.string())])
        elif pa.types.is_timestamp(kind):
            cells = cells.cast(pa.timestamp("us") if kind.tz is None else _MOMENT)
        elif pa.types.is_large_string(kind):
            cells = cells.cast(pa.string())
        elif pa.types.is_large_binary(kind):
            cells = cells.cast(pa.binary())
        if cells.type != kind:
            table = table.set_column(i, field.with_type(cells.type), cells)
    return table
