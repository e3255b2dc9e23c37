"""Row images -> JSON text, for the payload that many tables share.

Values are what MySQL prints, where JSON has no type of its own: DECIMAL, DATE, DATETIME, TIME and TIMESTAMP
(``2026-01-31T12:00:00Z``) are strings, binary values are base64. Integers and floats are numbers, unsigned ones right. NULL is null; a column
that the row image lacks is left out.
"""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from shmstore.consumer.formats.values import INTEGERS, base64_text, utc_text, value_text
from shmstore.event import Column, TableSchema

_quote = json.encoder.encode_basestring
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=base64_text).encode


def _cells(column: Column, values: Sequence[Any]) -> list[str]:
    """The JSON of each of `values`, which are stored values of `column`."""
    if column.type in INTEGERS:
        return ["null" if value is None else int.__repr__(value) for value in values]
    if column.type in ("datetime", "timestamp"):
        try:
            return _moments(column, values)
        except pa.ArrowTypeError:
            pass  # a zero date among them, which is text
    if column.type in ("date", "time", "datetime", "timestamp"):
        text = utc_text(column.scale) if column.type == "timestamp" else value_text(column)
        return ["null" if value is None else f'"{text(value)}"' for value in values]
    if column.type == "decimal":
        return ["null" if value is None else f'"{value}"' for value in values]
    return [_quote(value) if type(value) is str else "null" if value is None else _dumps(value) for value in values]


def _moments(column: Column, values: Sequence[Any]) -> list[str]:
    """Arrow prints ``2026-01-31 12:00:00.123456`` many times faster than `datetime`."""
    texts = pa.array(values, pa.timestamp("us")).cast(pa.string()).to_pylist()
    length = 20 + column.scale if column.scale else 19
    if column.type == "datetime":
        return ["null" if text is None else f'"{text[:length]}"' for text in texts]
    return ["null" if text is None else f'"{text[:10]}T{text[11:length]}Z"' for text in texts]


@lru_cache(maxsize=4096)
def printer(table: TableSchema, present: tuple[int, ...] | None) -> Callable[[Sequence[Sequence[Any]]], list[str]]:
    """Return the function that prints rows of `table`, whose images have the columns `present` (None: all), as JSON.

    Column by column: what a type needs is asked once a column, not once a cell.
    """
    columns = table.columns if present is None else tuple(table.columns[i] for i in present)
    template = "{" + ",".join(_quote(column.name).replace("%", "%%") + ":%s" for column in columns) + "}"

    def print_rows(rows: Sequence[Sequence[Any]]) -> list[str]:
        if not columns:
            return ["{}"] * len(rows)
        cells = [_cells(column, values) for column, values in zip(columns, zip(*rows, strict=True), strict=True)]
        return [template % row for row in zip(*cells, strict=True)]

    return print_rows
