"""Values of a column whose type a DDL changed, in the type that a query was planned with: schemaChanges=follow.

A value stays what it is where the planned type can hold it: 12 of a BIGINT or a VARCHAR in an INT, a DATE in a DATETIME, anything in a text. FLOAT
and DOUBLE hold the nearest number. What cannot be held is NULL, which the log says once for a column. A moment (TIMESTAMP) and a
time without a zone (DATETIME) are not each other's: which zone a session had, no event says.
"""

from __future__ import annotations

import logging
import math
import re
import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from shmstore.consumer.formats.values import value_text
from shmstore.event import Column

_log = logging.getLogger(__name__)
_said: set[tuple[str, str, str]] = set()
_TIME = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
Convert = Callable[[Any], Any]


class _Unfit(ValueError):
    """The planned type cannot hold the value."""


def converted(array: pa.Array, table: str, column: Column, planned: pa.DataType) -> pa.Array:
    """Return `array`, values of `column` of `table` in the column's own Arrow type, as `planned`; NULL where that cannot hold one."""
    numbers = (pa.types.is_integer, pa.types.is_decimal)
    if any(is_type(array.type) and is_type(planned) for is_type in numbers):
        try:
            return array.cast(planned)
        except pa.ArrowInvalid:
            pass  # some of the values do not fit
    convert, lost, values = _conversion(column, planned), None, []
    for value in array.to_pylist():
        try:
            values.append(None if value is None else convert(value))
        except (ValueError, ArithmeticError, TypeError):
            lost = value if lost is None else lost
            values.append(None)
    key = (table, column.name, str(planned))
    if lost is not None and key not in _said:
        _said.add(key)
        _log.warning(
            "%s: column %s is now %s, and the query was planned with %s, which cannot hold %s: such values are NULL until the query is planned again",
            table,
            column.name,
            column.type,
            planned,
            repr(lost)[:80],
        )
    return pa.array(values, planned)


def _conversion(column: Column, planned: pa.DataType) -> Convert:
    if pa.types.is_integer(planned):
        most = 1 << (planned.bit_width - 1)
        return lambda value: _integer(value, most)
    if pa.types.is_decimal(planned):
        return lambda value: _decimal(value, planned.precision, planned.scale)
    if pa.types.is_floating(planned):
        return _single if pa.types.is_float32(planned) else _double
    if pa.types.is_string(planned):
        text = value_text(column)
        return lambda value: value.decode() if isinstance(value, bytes) else text(value)
    if pa.types.is_binary(planned):
        text = value_text(column)
        return lambda value: value if isinstance(value, bytes) else text(value).encode()
    if pa.types.is_date(planned):
        return _date
    if pa.types.is_timestamp(planned) and planned.tz is None:
        return _datetime
    return _time if pa.types.is_duration(planned) else _unfit


def _unfit(value: Any) -> Any:
    raise _Unfit(value)


def _number(value: Any) -> Decimal:
    """A value as the exact number that it is, or that its text says."""
    try:
        if isinstance(value, float):
            value = repr(value)
        number = Decimal(value.decode() if isinstance(value, bytes) else value)
    except (InvalidOperation, TypeError) as error:
        raise _Unfit(value) from error
    return number if number.is_finite() else _unfit(value)


def _integer(value: Any, most: int) -> int:
    number = _number(value)
    if number != number.to_integral_value() or not -most <= number < most:
        raise _Unfit(value)
    return int(number)


def _decimal(value: Any, precision: int, scale: int) -> Decimal:
    number = _number(value)
    _, digits, exponent = number.normalize().as_tuple()
    if number and (not isinstance(exponent, int) or -exponent > scale or len(digits) + exponent > precision - scale):
        raise _Unfit(value)
    return number


def _double(value: Any) -> float:
    number = value if isinstance(value, float) else float(_number(value))
    return number if math.isfinite(number) else float(_unfit(value))


def _single(value: Any) -> float:
    number = _double(value)
    return float(struct.unpack("<f", struct.pack("<f", number))[0])  # OverflowError where it is too large


def _date(value: Any) -> date:
    if isinstance(value, datetime):
        if value.tzinfo is not None or value.time() != time():
            raise _Unfit(value)
        return value.date()
    return value if isinstance(value, date) else _day(value)


def _day(value: Any) -> date:
    if not isinstance(value, str) or len(value) != 10:
        raise _Unfit(value)
    return date.fromisoformat(value)


def _datetime(value: Any) -> datetime:
    if isinstance(value, str) and len(value) >= 10 and "+" not in value and not value.endswith("Z"):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value if value.tzinfo is None else _unfit(value)
    return datetime.combine(value, time()) if isinstance(value, date) else _unfit(value)


def _time(value: Any) -> timedelta:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _Unfit(value)
    sign, hours, minutes, seconds, fraction = match.groups()
    found = timedelta(
        hours=int(hours), minutes=int(minutes), seconds=int(seconds), microseconds=int((fraction or "").ljust(6, "0"))
    )
    return -found if sign else found
