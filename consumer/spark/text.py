"""Row images -> JSON text, for the payload that many tables share.

Values are what MySQL prints, where JSON has no type of its own: DECIMAL, DATE, DATETIME, TIME and TIMESTAMP
(``2026-01-31T12:00:00Z``) are strings, binary values are base64. Integers and floats are numbers, unsigned ones right. NULL is null; a column
that the row image lacks is left out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any

from shmstore.event import TableSchema

_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def _bytes(value: Any) -> str:
    return base64.b64encode(value).decode("ascii")


dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_bytes).encode


def _date(value: Any, scale: int) -> Any:
    return date.fromordinal(value + _EPOCH_DAY).isoformat() if type(value) is int else value


def _datetime(value: Any, scale: int) -> Any:
    if type(value) is not int:
        return value
    text = (_EPOCH + timedelta(microseconds=value)).isoformat(" ", "microseconds")
    return text[: 20 + scale] if scale else text[:19]


def _timestamp(value: Any, scale: int) -> Any:
    return _datetime(value, scale).replace(" ", "T") + "Z" if type(value) is int else value


def time_text(value: Any, scale: int) -> Any:
    """Return TIME of `value` microseconds as MySQL prints it with `scale` digits: ``-838:59:59.00``."""
    if type(value) is not int:
        return value
    seconds, micros = divmod(abs(value), 1_000_000)
    text = f"{'-' if value < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{micros:06d}"[: len(text) + 1 + scale] if scale else text


_TEXT: dict[str, Callable[[Any, int], Any]] = {"date": _date, "datetime": _datetime, "timestamp": _timestamp, "time": time_text}


@lru_cache(maxsize=4096)
def printer(table: TableSchema, present: tuple[int, ...] | None) -> Callable[[Sequence[Any]], str]:
    """Return the function that prints a row of `table`, whose image has the columns `present` (None: all), as JSON."""
    columns = table.columns if present is None else [table.columns[i] for i in present]
    names = [column.name for column in columns]
    changed = [(i, _TEXT[column.type], column.scale) for i, column in enumerate(columns) if column.type in _TEXT]

    def print_row(row: Sequence[Any]) -> str:
        values = list(row)
        for i, text, scale in changed:
            values[i] = text(values[i], scale)
        return dumps(dict(zip(names, values, strict=True)))

    return print_row
