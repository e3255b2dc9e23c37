"""Columns of stored values -> Arrow arrays, without a Python object for each cell beyond what MessagePack made.

A stored value (`shmstore.codec`) is already what Arrow keeps inside: DATE is days, DATETIME, TIMESTAMP and TIME are
microseconds, DECIMAL is digits as text that Arrow parses by itself. So a column is one `pa.array` over a tuple.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from consumer.spark.schema import arrow_schema, image_type
from shmstore.event import Column, TableSchema


class ZeroDate(ValueError):
    """A zero or impossible date came, which Arrow, Spark and Parquet cannot hold."""


_TEMPORAL = frozenset({"date", "datetime", "timestamp"})


def column_array(column: Column, type_: pa.DataType, values: Sequence[Any], zero_dates: str) -> pa.Array:
    """Return `values`, the stored values of `column`, as an Arrow array of `type_`.

    Raises `ZeroDate` for a zero or impossible date unless `zero_dates` is ``null``; ValueError naming the column for a
    value that its type cannot hold.
    """
    try:
        if pa.types.is_decimal(type_):
            # Arrow takes no decimals from text, nor from integers fast, but casts both
            return pa.array(values, _uncast(column)).cast(type_)
        return pa.array(values, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as error:
        if column.type in _TEMPORAL:
            wrong = next((value for value in values if type(value) is str), None)
            if wrong is not None:
                if zero_dates == "null":
                    return pa.array([None if type(value) is str else value for value in values], type_)
                raise ZeroDate(
                    f"column {column.name} holds {wrong!r}, a date that does not exist; "
                    "read it as NULL with zeroDates=null, or as text with payload=json"
                ) from error
        raise ValueError(f"column {column.name} ({column.type}) holds a value that {type_} cannot: {error}") from error


def _uncast(column: Column) -> pa.DataType:
    if column.type == "decimal":
        return pa.string()
    return pa.uint64() if column.unsigned or column.type == "bit" else pa.int64()


def image_columns(table: TableSchema, rows: Sequence[Sequence[Any]], zero_dates: str) -> list[pa.Array]:
    """Return one Arrow array a column of `rows`, which are stored values in the column order of `table`."""
    types = arrow_schema(image_type(table)).types
    if not rows:
        return [pa.array([], type_) for type_ in types]
    return [
        column_array(column, type_, values, zero_dates)
        for column, type_, values in zip(table.columns, types, zip(*rows, strict=True), strict=True)
    ]
