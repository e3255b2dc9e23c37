"""What a copy holds, as the value that an event would have for it (`shmstore.encoding.codec`).

A copy may keep a value in its own clothes: a DECIMAL as text, a TIME as text, a DATETIME with a zone. Two values of a column never become one here;
what cannot stand for a value of the column raises TypeError or ValueError, for the wrong kind must not pass by looking alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shmstore.encoding.arrow import BINARY_TYPES, arrow_type
from shmstore.encoding.conversions import FROM_PYTHON
from shmstore.event import Column, TableSchema

Stored = Callable[[Any], Any]

_DIGITS: Final = Context(prec=80)
_TIME: Final = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_INTEGERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year"})


def stored(column: Column) -> Stored:
    """Return the function that makes a stored value of a Python value of `column`; NULL is None."""
    make = _stored(column)

    def value_of(value: Any) -> Any:
        return None if value is None else make(value)

    return value_of


def stored_column(column: Column, cells: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Return an Arrow column as stored values."""
    kind, wanted = cells.type, arrow_type(column)
    if column.type in _INTEGERS or column.type == "bit":
        if pa.types.is_integer(kind):
            return list(cells.to_pylist())
        if pa.types.is_decimal(kind) and kind.scale == 0:  # as BIGINT UNSIGNED is kept; what has more digits raises below
            with suppress(pa.ArrowInvalid):
                return list(cells.cast(pa.uint64() if column.unsigned or column.type == "bit" else pa.int64()).to_pylist())
    elif kind == wanted or (
        (pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)) and not pa.types.is_decimal(wanted)
    ):
        if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
            return list(cells.cast(pa.int64()).to_pylist())
        if pa.types.is_date32(kind):
            return list(cells.cast(pa.int32()).to_pylist())
        if pa.types.is_float64(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
            return list(cells.to_pylist())
        if pa.types.is_decimal(kind):
            texts = list(cells.cast(pa.string()).to_pylist())
            if kind.scale > 6 and any(text is not None and "E" in text for text in texts):  # below a millionth Arrow writes 1E-7
                return [None if value is None else format(value, "f") for value in cells.to_pylist()]
            return texts
    make = stored(column)
    return [make(value) for value in cells.to_pylist()]


def stored_rows(columns: Sequence[Column], table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return the rows of a table, whose columns have the values of `columns` in their order, in stored form."""
    return list(zip(*[stored_column(column, table.column(i)) for i, column in enumerate(columns)], strict=True))


def rows_with(
    keys: Sequence[Sequence[Any]], table: TableSchema, pieces: Iterable[Sequence[Sequence[Any]]]
) -> list[Sequence[Any]]:
    """Return the rows among `pieces` that have these values in the columns of the table's key."""
    wanted = {tuple(key) for key in keys}
    return [row for rows in pieces for row in rows if tuple([row[i] for i in table.primary_key]) in wanted]


def _stored(column: Column) -> Stored:
    kind = column.type
    if kind in _INTEGERS:
        return _integer
    if kind == "bit":
        return lambda value: int.from_bytes(value, "big") if isinstance(value, bytes) else _integer(value)
    if kind == "decimal":
        return lambda value: _decimal(value, column.scale)
    if kind == "float":
        return lambda value: float(str(np.float32(_number(value))))  # the shortest decimal that gives the 32 bits
    if kind == "double":
        return lambda value: float(_number(value))
    if kind in BINARY_TYPES:
        return _bytes
    return {"date": _date, "datetime": _datetime, "timestamp": _timestamp, "time": _time}.get(kind, _text)


def _wrong(wanted: str, value: Any) -> TypeError:
    shown = repr(value)
    return TypeError(f"{shown if len(shown) <= 60 else shown[:57] + '...'} is no {wanted}")


def _integer(value: Any) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | Decimal | str)
        or (isinstance(value, Decimal) and value != int(value))
    ):
        raise _wrong("integer", value)
    try:
        return int(value)
    except ValueError:
        raise _wrong("integer", value) from None


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | np.floating):
        raise _wrong("number", value)
    return value


def _decimal(value: Any, scale: int) -> str:
    """Digits with as many behind the point as the column has; a value that has more, which the column could not hold, keeps them."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise _wrong("DECIMAL", value)
    try:
        number = Decimal(repr(value) if isinstance(value, float) else value)
        whole = number.quantize(Decimal(1).scaleb(-scale), context=_DIGITS)
    except InvalidOperation:
        raise _wrong("DECIMAL", value) from None
    return format(whole if whole == number else number, "f")


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _wrong("bytes", value)
    return bytes(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong("text", value)
    return value


def _date(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            return value  # a zero or impossible date
    if isinstance(value, datetime) or not isinstance(value, date):
        raise _wrong("DATE", value)
    return FROM_PYTHON["date"](value)


def _datetime(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return value
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise _wrong("DATETIME, which has no zone", value)
    return FROM_PYTHON["datetime"](value)


def _timestamp(value: Any) -> Any:
    """A moment; without a zone it is taken for UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return value
    if not isinstance(value, datetime):
        raise _wrong("TIMESTAMP", value)
    return FROM_PYTHON["timestamp"](value if value.tzinfo is not None else value.replace(tzinfo=UTC))


def _time(value: Any) -> Any:
    """Signed microseconds: TIME goes from -838 to 838 hours."""
    if isinstance(value, timedelta):
        return FROM_PYTHON["time"](value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _wrong("TIME such as -838:59:59.000", value)
    sign, hours, minutes, seconds, fraction = match.groups()
    micros = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int(f"{fraction or '':0<6}")
    return -micros if sign else micros
