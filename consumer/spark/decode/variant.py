"""Row images -> VARIANT, for the payload that many tables share: an object of the row's columns, each with its own type.

MySQL                                            VARIANT
integers, YEAR, BIT                              the smallest integer; above 63 bits: decimal
DECIMAL                                          decimal; more than 38 digits: string
FLOAT, DOUBLE                                    float, double
DATE, DATETIME, TIMESTAMP                        date, timestamp_ntz, timestamp; a date that does not exist: string
TIME                                             string, as MySQL prints it
BINARY, VARBINARY, BLOB, GEOMETRY, VECTOR        binary
CHAR, VARCHAR, TEXT, ENUM, SET, JSON, the rest   string (``parse_json(after:doc::string)`` opens a document)

NULL is a VARIANT null; a column that the row image lacks is left out. The bytes are those of Spark's and Parquet's open format: a
dictionary of names (`metadata`), one for all rows of a table, and for each row an object of (name's number, offset) and values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate
from typing import Any

import pyarrow as pa

from shmstore.consumer.formats.values import time_text
from shmstore.event import Column, TableSchema

_NULL = b"\0"
_INTEGERS = ((1 << 7, struct.Struct("<Bb"), 3), (1 << 15, struct.Struct("<Bh"), 4), (1 << 31, struct.Struct("<Bi"), 5))
_LONG, _INT, _DOUBLE, _FLOAT = struct.Struct("<Bq"), struct.Struct("<Bi"), struct.Struct("<Bd"), struct.Struct("<Bf")
_INT8, _DOUBLE_TYPE, _DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _FLOAT_TYPE, _BINARY, _STRING = 6, 7, 11, 12, 13, 14, 15, 16
_DECIMALS = ((9, 8, 4), (18, 9, 8), (38, 10, 16))  # digits, type, bytes
_SHORT = 64


def _integer(value: int) -> bytes:
    for bound, form, type_ in _INTEGERS:
        if -bound <= value < bound:
            return form.pack(type_ << 2, value)
    return _LONG.pack(_INT8 << 2, value) if value < 1 << 63 else _decimal(str(value))


def _decimal(text: str) -> bytes:
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    unscaled: int = int("".join(map(str, digits))) * 10 ** max(0, exponent) * (-1 if sign else 1)
    scale = max(0, -exponent)
    for most, type_, size in _DECIMALS:
        if abs(unscaled) < 10**most and scale <= most:
            return bytes((type_ << 2, scale)) + unscaled.to_bytes(size, "little", signed=True)
    return _text(text)


def _text(value: str) -> bytes:
    raw = value.encode()
    size = len(raw)
    return bytes((size << 2 | 1,)) + raw if size < _SHORT else bytes((_STRING << 2,)) + size.to_bytes(4, "little") + raw


def _other(value: Any) -> bytes:
    if isinstance(value, str):
        return _text(value)
    return bytes((_BINARY << 2,)) + len(value).to_bytes(4, "little") + bytes(value)


def _cell(column: Column) -> Callable[[Any], bytes]:
    """The function that encodes a stored value of `column` that is not NULL."""

    def moment(type_: int, form: struct.Struct) -> Callable[[Any], bytes]:
        return lambda value: form.pack(type_ << 2, value) if type(value) is int else _text(value)

    kind, scale = column.type, column.scale
    if kind == "date":
        return moment(_DATE, _INT)
    if kind in ("datetime", "timestamp"):
        return moment(_TIMESTAMP if kind == "timestamp" else _TIMESTAMP_NTZ, _LONG)
    if kind == "time":
        text = time_text(scale)
        return lambda value: _text(text(value))
    if kind == "decimal":
        return _decimal
    if kind == "double":
        return lambda value: _DOUBLE.pack(_DOUBLE_TYPE << 2, value)
    if kind == "float":
        return lambda value: _FLOAT.pack(_FLOAT_TYPE << 2, value)
    return lambda value: _integer(value) if type(value) is int else _other(value)


def _width(value: int) -> int:
    """How many bytes hold `value`: 1 to 4."""
    return max(1, (value.bit_length() + 7) // 8)


def _numbers(values: Sequence[int], width: int) -> bytes:
    return bytes(values) if width == 1 else b"".join(value.to_bytes(width, "little") for value in values)


@lru_cache(maxsize=4096)
def encoder(
    table: TableSchema, present: tuple[int, ...] | None
) -> tuple[bytes, Callable[[Sequence[Sequence[Any]]], list[bytes]]]:
    """Return the metadata of rows of `table`, whose images have the columns `present` (None: all), and what encodes the rows."""
    columns = table.columns if present is None else tuple(table.columns[i] for i in present)
    order = sorted(range(len(columns)), key=lambda i: columns[i].name.encode("utf-16-be"))  # as Java compares strings
    names = [columns[i].name.encode() for i in order]
    cells = [_cell(columns[i]) for i in order]
    ends = [0, *accumulate(map(len, names))]
    width = _width(max(ends[-1], len(names)))
    metadata = bytes((1 | (width - 1) << 6,)) + _numbers([len(names), *ends], width) + b"".join(names)
    count, large = len(names), len(names) > 255
    id_width = _width(max(0, count - 1))
    ids = count.to_bytes(4 if large else 1, "little") + _numbers(range(count), id_width)
    heads = [bytes((large << 6 | (id_width - 1) << 4 | (size - 1) << 2 | 2,)) + ids for size in (1, 2, 3, 4)]

    def encode(rows: Sequence[Sequence[Any]]) -> list[bytes]:
        if not rows or not columns:
            return [heads[0] + b"\0"] * len(rows)
        whole = list(zip(*rows, strict=True))
        encoded = [[_NULL if v is None else cell(v) for v in whole[i]] for i, cell in zip(order, cells, strict=True)]
        found = []
        for row in zip(*encoded, strict=True):
            offsets = [0, *accumulate(map(len, row))]
            size = _width(offsets[-1])
            found.append(heads[size - 1] + _numbers(offsets, size) + b"".join(row))
        return found

    return metadata, encode


Groups = Mapping[tuple[int, tuple[int, ...] | None], tuple[TableSchema, list[int], list[Any]]]


def variant_array(groups: Groups, count: int, type_: pa.StructType) -> pa.Array:
    """Return `count` values of Spark's Arrow `type_` of VARIANT: of each group's rows at their indexes, NULL elsewhere."""
    values, metadata, absent = [b""] * count, [b""] * count, [True] * count
    for (_, present), (table, at, rows) in groups.items():
        names, encode = encoder(table, present)
        for i, value in zip(at, encode(rows), strict=True):
            values[i], metadata[i], absent[i] = value, names, False
    arrays = [pa.array(values, pa.binary()), pa.array(metadata, pa.binary())]
    return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=pa.array(absent))
