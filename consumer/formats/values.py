"""Column values as text, as the server prints them.

Values are accepted in stored form (`shmstore.encoding.codec`: days, microseconds, digits) and as Python values alike.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from shmstore.event import Column

#: Types whose values are numbers, in JSON too.
INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit")
NUMBERS: Final = (*INTEGERS, "float", "double")

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)


def value_text(column: Column) -> Callable[[Any], str]:
    """Return the function that prints a value of `column` as the server would; TIMESTAMP in UTC, bytes as ISO-8859-1."""
    kind = column.type
    if kind == "decimal":
        return _decimal
    if kind == "date":
        return _date
    if kind in ("datetime", "timestamp"):
        return datetime_text(column.scale)
    if kind == "time":
        return time_text(column.scale)
    if kind in ("float", "double"):
        return number_text
    if kind == "year":
        return _year
    if kind in INTEGERS:
        return str
    return plain_text


def plain_text(value: Any) -> str:
    """Return text as it is, and bytes as ISO-8859-1 characters, which loses nothing."""
    return value if type(value) is str else str(value, "latin-1")


def _decimal(value: Any) -> str:
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _year(value: Any) -> str:
    return f"{value:04d}"


@lru_cache(maxsize=8192)
def _day(days: int) -> str:
    return date.fromordinal(days + _EPOCH_DAY).isoformat()


def _date(value: Any) -> str:
    return _day(value) if type(value) is int else str(value)


@lru_cache(maxsize=16)
def datetime_text(scale: int) -> Callable[[Any], str]:
    """Return the function that prints a DATETIME or TIMESTAMP with `scale` digits of a second."""
    timespec, cut = ("microseconds", 20 + scale) if scale else ("seconds", 19)
    dropped, whole = 10 ** (6 - scale), 10**scale  # the 1 before the digits keeps their zeros

    def text(value: Any) -> str:
        if type(value) is int:
            # Of days and of seconds of a day there are few: what differs from row to row is the fraction.
            second, micro = divmod(value, 1_000_000)
            days, second = divmod(second, 86400)
            return (
                f"{_day(days)}{_clock[second]}.{str(micro // dropped + whole)[1:]}" if scale else f"{_day(days)}{_clock[second]}"
            )
        if not isinstance(value, datetime):
            return str(value)  # a zero or impossible date, kept as the server shows it
        return str(value.isoformat(" ", timespec))[:cut]

    return text


@lru_cache(maxsize=16)
def utc_text(scale: int) -> Callable[[Any], str]:
    """Return the function that prints a TIMESTAMP as ISO 8601 in UTC; a zero timestamp, which has no zone, as it is."""
    plain = datetime_text(scale)
    return lambda value: value if type(value) is str else plain(value).replace(" ", "T") + "Z"


class _Clock(dict[int, str]):
    """The time of day by its second, with the space before it."""

    def __missing__(self, second: int) -> str:
        minute, rest = divmod(second, 60)
        hour, minute = divmod(minute, 60)
        text = self[second] = f" {hour:02d}:{minute:02d}:{rest:02d}"
        return text


_clock: Final = _Clock()


@lru_cache(maxsize=16)
def time_text(scale: int) -> Callable[[Any], str]:
    """Return the function that prints a TIME with `scale` digits of a second: ``-838:59:59.000000``."""
    cut = 6 - scale

    def text(value: Any) -> str:
        micros = value if type(value) is int else value // _MICROSECOND
        sign, micros = ("-", -micros) if micros < 0 else ("", micros)
        seconds, micro = divmod(micros, 1_000_000)
        minutes, second = divmod(seconds, 60)
        hour, minute = divmod(minutes, 60)
        whole = f"{sign}{hour:02d}:{minute:02d}:{second:02d}"
        return f"{whole}.{micro:06d}"[: -cut or None] if scale else whole

    return text


def number_text(value: Any) -> str:
    """Print a FLOAT or DOUBLE as the shortest decimal, as MySQL writes it: ``1``, ``0.00001``, ``1e20``."""
    mantissa, _, exponent = repr(float(value)).partition("e")
    if not exponent:
        return mantissa.removesuffix(".0")
    power = int(exponent)
    return f"{mantissa}e{power}" if power > 0 or power < -15 else format(Decimal(mantissa).scaleb(power), "f")


def base64_text(value: Any) -> str:
    """Return bytes as base64."""
    return base64.b64encode(value).decode("ascii")


def text_or_base64(value: Any) -> str:
    """Return text as it is, and bytes as base64."""
    return value if type(value) is str else base64_text(value)
