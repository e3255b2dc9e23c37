"""Bytes of one value in a row image -> the value in stored form (`shmstore.encoding.codec`).

Plan. Functions here take the raw bytes of one value; those that depend on a column's digits or members are made once for it.
Dates, times of day, floats and SETs come out of tables that fill themselves: a dict whose `__missing__` computes the value
once; a hit costs a third of a call. Tables are bounded: a table that grows past its limit is emptied.

    DATE            int, days since 1970        TIME        int, microseconds, signed
    DATETIME        int, microseconds           TIMESTAMP   int, microseconds UTC
    zero or impossible DATE, DATETIME, TIMESTAMP    str, as the server shows it
    DECIMAL         str, digits as the server prints them
    FLOAT           float: the double nearest to the shortest decimal that gives this float again (1.1, not 1.10000002384)
                    MySQL's and MariaDB's own SELECT prints 6 digits of it (1.23457 for 1.2345678), which is not always this float
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date
from functools import lru_cache
from typing import Any

from shmstore.producer.errors import ValueRefused

__all__ = [
    "DATES",
    "FLOATS",
    "bits",
    "datetimes",
    "decimal_size",
    "decimals",
    "fraction_text",
    "inet6_text",
    "members_of_set",
    "old_datetimes",
    "old_times",
    "old_timestamps",
    "times",
    "timestamps",
    "uuid_text",
]

_EPOCH = date(1970, 1, 1).toordinal()
_SECOND = 1_000_000


class ValueTable(dict[Any, Any]):
    """A dict that computes what it lacks, and keeps at most `limit` values."""

    __slots__ = ("compute", "limit")

    def __init__(self, compute: Callable[[Any], Any], limit: int) -> None:
        super().__init__()
        self.compute = compute
        self.limit = limit

    def __missing__(self, key: Any) -> Any:
        if len(self) >= self.limit:
            self.clear()
        value = self[key] = self.compute(key)
        return value


def _day(year: int, month: int, day: int) -> int | None:
    """Days since 1970, or None for a zero or impossible date."""
    try:
        return date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        return None


# ---------------------------------------------------------------- DATE


def _date(raw: bytes) -> int | str:
    packed = raw[0] | raw[1] << 8 | raw[2] << 16
    year, month, day = packed >> 9, packed >> 5 & 15, packed & 31
    if year > 9999 or month > 12:
        raise ValueError(f"DATE {year}-{month}-{day}")
    days = _day(year, month, day)
    return f"{year:04}-{month:02}-{day:02}" if days is None else days


DATES = ValueTable(_date, 1 << 16)  # 3 bytes -> days or text

# ---------------------------------------------------------------- DATETIME, TIMESTAMP
# A DATETIME's first 5 bytes are a big-endian number: sign 1, year * 13 + month 17, day 5, hour 5, minute 6, second 6. A TIMESTAMP's
# first 4 are seconds. The fraction follows, big-endian, in units of its bytes.

_UNITS = (1_000_000, 10_000, 100, 1)  # microseconds, by bytes of the fraction


def _midnight(packed: int) -> int | None:
    months, day = packed >> 5, packed & 31
    if not 0 <= months <= 9999 * 13 + 12:
        raise ValueError(f"DATETIME of year {months // 13}")
    days = _day(months // 13, months % 13, day)
    return None if days is None else days * 86400 * _SECOND


def _clock(packed: int) -> int:
    hour, minute, second = packed >> 12, packed >> 6 & 63, packed & 63
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"DATETIME of {hour}:{minute}:{second} o'clock")
    return (hour * 3600 + minute * 60 + second) * _SECOND


_MIDNIGHTS = ValueTable(_midnight, 1 << 16)  # year, month and day -> microseconds, or None where there is no such day
_CLOCKS = ValueTable(_clock, 1 << 17)  # hour, minute and second -> microseconds


@lru_cache(maxsize=8)
def datetimes(digits: int) -> Callable[[bytes], int | str]:
    """Return the function from the 5 to 8 bytes of a DATETIME(digits) to microseconds, or text where there is no such day."""
    part = (digits + 1) // 2
    bits, unit = 8 * part, _UNITS[part]
    mask = (1 << bits) - 1

    def datetime(raw: bytes) -> int | str:
        number = int.from_bytes(raw, "big")
        packed, microseconds = (number >> bits) - 0x8000000000, (number & mask) * unit
        midnight, clock = _MIDNIGHTS[packed >> 17], _CLOCKS[packed & 0x1FFFF]
        if midnight is not None:
            value: int = midnight + clock + microseconds
            return value
        months, day = packed >> 22, packed >> 17 & 31
        hour, minute, second = packed >> 12 & 31, packed >> 6 & 63, packed & 63
        text = f"{months // 13:04}-{months % 13:02}-{day:02} {hour:02}:{minute:02}:{second:02}"
        return text + fraction_text(microseconds, digits)

    return datetime


@lru_cache(maxsize=8)
def timestamps(digits: int) -> Callable[[bytes], int | str]:
    """Return the function from the 4 to 7 bytes of a TIMESTAMP(digits) to microseconds; 0 is the zero date."""
    part = (digits + 1) // 2
    bits, unit = 8 * part, _UNITS[part]
    mask = (1 << bits) - 1
    zero = _zero(digits)

    def timestamp(raw: bytes) -> int | str:
        number = int.from_bytes(raw, "big")
        return (number >> bits) * _SECOND + (number & mask) * unit or zero

    return timestamp


def fraction_text(microseconds: int, digits: int) -> str:
    """Return ".123" for 123000 microseconds and 3 digits; nothing for 0 digits."""
    return f".{microseconds:06}"[: digits + 1] if digits else ""


def _zero(digits: int) -> str:
    return "0000-00-00 00:00:00" + fraction_text(0, digits)


# ---------------------------------------------------------------- the same before MySQL 5.6


def _moment(year: int, month: int, day: int, hour: int, minute: int, second: int, microseconds: int, digits: int) -> int | str:
    if year > 9999 or month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        raise ValueRefused(
            f"DATETIME {year}-{month}-{day} {hour}:{minute}:{second} in the old format; if the column has fractional seconds, the "
            "binlog does not say so: ALTER TABLE ... FORCE with mysql56_temporal_format=ON, or keep a schema history"
        )
    days = _day(year, month, day)
    if days is None:
        return f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}" + fraction_text(microseconds, digits)
    return (days * 86400 + hour * 3600 + minute * 60 + second) * _SECOND + microseconds


# Bytes of MariaDB's DATETIME(n) and TIME(n) with mysql56_temporal_format=0.
_OLD_DATETIME_BYTES = (8, 6, 6, 7, 7, 7, 8)
_OLD_TIME_BYTES = (3, 4, 4, 5, 5, 5, 6)


@lru_cache(maxsize=8)
def old_datetimes(digits: int) -> tuple[int, ValueTable]:
    """Return (bytes, table) of DATETIME(digits) before MySQL 5.6, and in MariaDB with mysql56_temporal_format=0.

    Without fraction it is the decimal number YYYYMMDDhhmmss, little-endian; with one, a mixed-radix number, big-endian.
    """
    scale: int = 10**digits

    def plain(raw: bytes) -> int | str:
        day, clock = divmod(int.from_bytes(raw, "little"), 1_000_000)
        return _moment(day // 10000, day // 100 % 100, day % 100, clock // 10000, clock // 100 % 100, clock % 100, 0, 0)

    def fractional(raw: bytes) -> int | str:
        rest, fraction = divmod(int.from_bytes(raw, "big"), scale)
        rest, second = divmod(rest, 60)
        rest, minute = divmod(rest, 60)
        rest, hour = divmod(rest, 24)
        rest, day = divmod(rest, 32)
        return _moment(rest // 13, rest % 13, day, hour, minute, second, fraction * (_SECOND // scale), digits)

    return _OLD_DATETIME_BYTES[digits], ValueTable(fractional if digits else plain, 1 << 12)


@lru_cache(maxsize=8)
def old_timestamps(digits: int) -> tuple[int, Callable[[bytes], int | str]]:
    """Return (bytes, function) of TIMESTAMP(digits) in the old format: little-endian; with a fraction, two big-endian numbers."""
    zero, unit = _zero(digits), 10 ** (6 - digits)

    def plain(raw: bytes) -> int | str:
        return int.from_bytes(raw, "little") * _SECOND or zero

    def fractional(raw: bytes) -> int | str:
        return int.from_bytes(raw[:4], "big") * _SECOND + int.from_bytes(raw[4:], "big") * unit or zero

    return 4 + (digits + 1) // 2, fractional if digits else plain


# ---------------------------------------------------------------- TIME


@lru_cache(maxsize=8)
def times(digits: int) -> ValueTable:
    """Return the table of TIME(digits): its 3 to 6 bytes -> signed microseconds.

    The bytes are one big-endian number around 0x80...: hours 10 bits, minutes 6, seconds 6, then the fraction.
    """
    bits = (digits + 1) // 2 * 8
    middle = 0x800000 << bits
    scale = _UNITS[bits // 8]

    def time(raw: bytes) -> int:
        packed = int.from_bytes(raw, "big") - middle
        size = -packed if packed < 0 else packed
        clock, fraction = size >> bits, size & (1 << bits) - 1
        if clock >> 6 & 63 > 59 or clock & 63 > 59 or fraction * scale >= _SECOND:
            raise ValueError(f"TIME 0x{raw.hex()}")
        value = ((clock >> 12) * 3600 + (clock >> 6 & 63) * 60 + (clock & 63)) * _SECOND + fraction * scale
        return -value if packed < 0 else value

    return ValueTable(time, 1 << 14)


@lru_cache(maxsize=8)
def old_times(digits: int) -> tuple[int, ValueTable]:
    """Return (bytes, table) of TIME(digits) in the old format: hhmmss, or units of the fraction from -838:59:60 on."""
    scale: int = 10**digits
    zero = 3020400 * scale

    def plain(raw: bytes) -> int:
        number = int.from_bytes(raw, "little", signed=True)
        size = abs(number)
        if size // 100 % 100 > 59 or size % 100 > 59:
            raise ValueRefused(f"TIME {number} in the old format; with fractional seconds it takes a schema history to read it")
        value = (size // 10000 * 3600 + size // 100 % 100 * 60 + size % 100) * _SECOND
        return -value if number < 0 else value

    def fractional(raw: bytes) -> int:
        return (int.from_bytes(raw, "big") - zero) * (_SECOND // scale)

    return _OLD_TIME_BYTES[digits], ValueTable(fractional if digits else plain, 1 << 12)


# ---------------------------------------------------------------- FLOAT


def _float(raw: bytes) -> float:
    value: float = struct.unpack("<f", raw)[0]
    if value != value or value in (float("inf"), float("-inf")):
        return value
    # Six digits always survive a float; where they give it back they are its shortest form. Below the normal range
    # there are fewer, so that all lengths are tried.
    for digits in range(6 if abs(value) >= 1.1754943508222875e-38 or not value else 1, 10):
        shortest = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", shortest) == raw:
                return shortest
        except OverflowError:
            continue  # rounded up past the largest float
    return value


FLOATS = ValueTable(_float, 1 << 14)  # 4 bytes -> float

# ---------------------------------------------------------------- DECIMAL

_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_size(precision: int, scale: int) -> int:
    """Bytes of a DECIMAL(precision, scale): 4 for each 9 digits on either side of the point, fewer for what is left."""
    whole = precision - scale
    return whole // 9 * 4 + _DIGIT_BYTES[whole % 9] + scale // 9 * 4 + _DIGIT_BYTES[scale % 9]


@lru_cache(maxsize=1024)
def decimals(precision: int, scale: int) -> Callable[[bytes], str]:
    """Return the function from the bytes of a DECIMAL(precision, scale) to its digits.

    Groups of up to 9 digits are big-endian numbers; the highest bit is 1 for positive values, and a negative value has
    all bits of its positive inverted.
    """
    whole = precision - scale
    groups = [(_DIGIT_BYTES[whole % 9], whole % 9)] if whole % 9 else []
    groups += [(4, 9)] * (whole // 9)
    point = len(groups)
    groups += [(4, 9)] * (scale // 9)
    groups += [(_DIGIT_BYTES[scale % 9], scale % 9)] if scale % 9 else []
    size = sum(width for width, _ in groups)
    top = 1 << (8 * size - 1)
    ones = (top << 1) - 1
    if point <= 1 and len(groups) - point <= 1:  # up to 9 digits on each side: two numbers
        shift = 8 * (groups[point][0] if len(groups) > point else 0)
        mask = (1 << shift) - 1
        most, most_after = 10**whole, 10**scale
        positive = f"%d.%0{scale}d" if scale else "%d"
        negative = "-" + positive

        def short(raw: bytes) -> str:
            number = int.from_bytes(raw, "big")
            if number & top:
                pattern = positive
                number ^= top
            else:
                pattern = negative
                number ^= ones ^ top
            before, after = number >> shift, number & mask
            if before >= most or after >= most_after:
                raise ValueError(f"DECIMAL({precision},{scale}) 0x{raw.hex()}")
            return pattern % (before, after) if scale else pattern % before

        return short

    shifts: list[tuple[int, int, int]] = []  # (shift, mask, least number that has too many digits), from the left
    left = 8 * size
    for width, digits in groups:
        left -= 8 * width
        shifts.append((left, (1 << 8 * width) - 1, 10**digits))
    fraction = "".join(f"%0{digits}d" for _, digits in groups[point:])

    def long(raw: bytes) -> str:
        number = int.from_bytes(raw, "big")
        sign = ""
        if number & top:
            number ^= top
        else:
            number ^= ones ^ top
            sign = "-"
        parts = []
        for shift, mask, most in shifts:
            part = number >> shift & mask
            if part >= most:
                raise ValueError(f"DECIMAL({precision},{scale}) 0x{raw.hex()}")
            parts.append(part)
        value = 0
        for part in parts[:point]:
            value = value * 1_000_000_000 + part
        return f"{sign}{value}." + fraction % tuple(parts[point:]) if scale else f"{sign}{value}"

    return long


@lru_cache(maxsize=64)
def bits(count: int) -> Callable[[bytes], int]:
    """Return the function from the bytes of a BIT(count) to its number."""

    def value(raw: bytes) -> int:
        number = int.from_bytes(raw, "big")
        if number >> count:
            raise ValueError(f"BIT({count}) {number:#x}")
        return number

    return value


# ---------------------------------------------------------------- SET, UUID


@lru_cache(maxsize=1024)
def members_of_set(members: tuple[str, ...]) -> ValueTable:
    """Return the table of a SET: its number -> members in definition order, comma separated."""

    def joined(bits: int) -> str:
        if bits >> len(members):
            raise ValueError(f"SET value {bits:#x} with {len(members)} members")
        return ",".join([member for i, member in enumerate(members) if bits >> i & 1])

    return ValueTable(joined, 1 << 12)


def uuid_text(raw: bytes) -> str:
    """Return MariaDB's UUID from its 16 bytes, which the binlog holds in the order of the text."""
    text = raw.ljust(16, b"\0").hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def inet6_text(raw: bytes) -> str:
    """Return MariaDB's INET6 from its 16 bytes: the first longest run of zero groups, even a single one, is "::"."""
    raw = raw.ljust(16, b"\0")
    groups = [int.from_bytes(raw[i : i + 2], "big") for i in range(0, 16, 2)]
    start = length = 0
    for i in range(8):
        run = next((n for n, group in enumerate(groups[i:]) if group), 8 - i)
        if run > length:
            start, length = i, run
    if start == 0 and (length == 6 or (length == 5 and groups[5] == 0xFFFF)):
        tail = ".".join([str(byte) for byte in raw[12:]])
        return f"::{tail}" if length == 6 else f"::ffff:{tail}"
    texts = [f"{group:x}" for group in groups]
    return f"{':'.join(texts[:start])}::{':'.join(texts[start + length :])}" if length else ":".join(texts)
