"""Text of people and for people: bytes, lengths of time and moments; and names that others chose, for one line of a terminal or a log."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

__all__ = ["TextLines", "duration", "lines_of", "moment", "printable", "quantity", "size", "span"]


def quantity(size: float) -> str:
    """Return a number of bytes with a unit that suits it."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:,.1f} {units[0]}"


def span(seconds: float) -> str:
    """Return a length of time in the unit that suits it: 90 s, 30 min, 24 h, 7 days."""
    for unit, size, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds / 86400:,.0f} days"


def moment(time_ms: int) -> str:
    """Return milliseconds since 1970 as date and time, UTC; outside of the years 1 to 9999 as the number."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms after 1970"


def printable(text: str) -> str:
    """Return `text` with an escape (``\\n``, ``\\x1b``, ``\\u202e``) for each character that does not print."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def lines_of(text: str) -> str:
    """Return text of several lines, each as `printable` makes it: not where a name in it may have a line break."""
    return "\n".join(map(printable, text.split("\n")))


class TextLines(logging.Formatter):
    """A line for each record, and a traceback below it, where there is one."""

    def __init__(self, form: str = "%(asctime)s %(levelname)s %(name)s: %(message)s") -> None:
        super().__init__(form)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the record's own line."""
        return printable(super().formatMessage(record))

    def formatException(self, exc_info: object) -> str:
        """Return the traceback."""
        return lines_of(super().formatException(exc_info))  # type: ignore[arg-type]


# ---------------------------------------------------------------- read from text

_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIMES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def size(text: str) -> int:
    """Return the bytes that `text` says: ``10g``, ``512M``, ``4096``. Raises `ValueError`."""
    return int(_quantity(text, _SIZES, "a size: give bytes, or a number with k, m, g or t (10g)"))


def duration(text: str) -> float:
    """Return the seconds that `text` says: ``24h``, ``90m``, ``7d``, ``30``. Raises `ValueError`."""
    return _quantity(text, _TIMES, "a time: give seconds, or a number with s, m, h or d (24h)")


def _quantity(text: str, units: dict[str, int], wanted: str) -> float:
    text = text.strip().lower()
    number, unit = (text[:-1], text[-1:]) if text[-1:] in units else (text, "")
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"{text!r} is not {wanted}") from None
    if not 0 <= value < float("inf"):
        raise ValueError(f"{text!r} is not {wanted}")
    return value * units[unit]
