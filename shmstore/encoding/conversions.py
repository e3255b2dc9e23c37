"""Values as an event stores them, and as Python has them: exact numbers as text, dates as days and times as microseconds since 1970."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from shmstore.event import TableSchema

__all__ = ["FROM_PYTHON", "MAKES", "TO_PYTHON", "conversions"]

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# ---------------------------------------------------------------- stored value -> Python value


def _to_decimal(value: Any) -> Any:
    return Decimal(value) if type(value) is str else value


def _to_date(value: Any) -> Any:
    return date.fromordinal(value + _EPOCH_DAY) if type(value) is int else value


def _to_datetime(value: Any) -> Any:
    return _EPOCH + timedelta(microseconds=value) if type(value) is int else value


def _to_timestamp(value: Any) -> Any:
    return _EPOCH_UTC + timedelta(microseconds=value) if type(value) is int else value


def _to_time(value: Any) -> Any:
    return timedelta(microseconds=value) if type(value) is int else value


#: Type of a column -> what makes a Python value of its stored value; of other types both are the same.
TO_PYTHON: dict[str, Callable[[Any], Any]] = {
    "decimal": _to_decimal,
    "date": _to_date,
    "datetime": _to_datetime,
    "timestamp": _to_timestamp,
    "time": _to_time,
}

#: Type of a column -> the number by which compiled code knows what to make of it: Make in shmstore/native/values.pxi.
MAKES = {name: number for number, name in enumerate(TO_PYTHON, 1)}


# ---------------------------------------------------------------- Python value -> stored value


def _from_decimal(value: Any) -> Any:
    return format(value, "f") if isinstance(value, Decimal) else value


def _from_date(value: Any) -> Any:
    return value.toordinal() - _EPOCH_DAY if isinstance(value, date) else value


def _from_datetime(value: Any) -> Any:
    return (value - _EPOCH) // _MICROSECOND if isinstance(value, datetime) else value


def _from_timestamp(value: Any) -> Any:
    return (value - _EPOCH_UTC) // _MICROSECOND if isinstance(value, datetime) else value


def _from_time(value: Any) -> Any:
    return value // _MICROSECOND if isinstance(value, timedelta) else value


#: Type of a column -> what makes a stored value of its Python value; of other types both are the same.
FROM_PYTHON: dict[str, Callable[[Any], Any]] = {
    "decimal": _from_decimal,
    "date": _from_date,
    "datetime": _from_datetime,
    "timestamp": _from_timestamp,
    "time": _from_time,
}


@lru_cache(maxsize=4096)
def conversions(table: TableSchema) -> tuple[tuple[tuple[int, Any], ...], tuple[tuple[int, Any], ...]]:
    """The columns of `table` whose values change on the way in and out: ((index, to Python), ...), ((index, from) ...)."""
    to = tuple((i, TO_PYTHON[c.type]) for i, c in enumerate(table.columns) if c.type in TO_PYTHON)
    from_ = tuple((i, FROM_PYTHON[c.type]) for i, c in enumerate(table.columns) if c.type in FROM_PYTHON)
    return to, from_
