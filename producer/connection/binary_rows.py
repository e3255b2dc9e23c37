"""Rows of a SELECT in the server's binary form -> values in stored form, as the stream has them.

Plan. A prepared statement's rows hold numbers, dates and times in binary and everything else as bytes with a length, so that
nothing is lost to printing (FLOAT prints six digits) and little is parsed. One function is written as Python source for each
list of columns, because there is no compiled one: interpreted, as row images are in Python, rows took 1.3 to 2.2 times as long,
which makes a snapshot a sixth to a third slower. It reads packets from d[p:end] as they came from the socket:

    packet  size (3 bytes), number (1), 0, a bit for each NULL (from bit 2 on), the values that are not NULL
    number  as in C, little-endian             DATE, DATETIME, TIMESTAMP   0, 4, 7 or 11 bytes, their count before them
    bytes   their count as a packed integer    TIME                        0, 8 or 12 bytes, their count before them

The values' own code is that of the row decoder: character sets, FLOAT's shortest form, what is done with zero dates.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import date
from functools import lru_cache
from typing import Any, NamedTuple

from shmstore import Column
from shmstore.producer.binlog.table_map import Wire
from shmstore.producer.values import scalars
from shmstore.producer.values.charsets import decoder, python_codec

__all__ = ["BIG", "Cell", "Decode", "compile_rows"]

BIG = 0xFFFFFF  # bytes of a packet that the next one goes on with
_UNSIGNED, _ZEROFILL = 32, 64
_SECOND = 1_000_000
_EPOCH = date(1970, 1, 1).toordinal()

#: decode(d, p, end, whole, add) -> where it stopped: at `end`, before a packet that is not whole, too big, or no row.
#: With `whole`, d[p:end] is one row without a packet's header.
Decode = Callable[[bytes, int, int, bool, Callable[[tuple[Any, ...]], None]], int]


class Cell(NamedTuple):
    """A column of a result, as the server announces it."""

    wire: int
    flags: int


# ---------------------------------------------------------------- dates and times


def _date(raw: bytes) -> int | str:
    if not raw:
        return "0000-00-00"
    year, month, day = raw[0] | raw[1] << 8, raw[2], raw[3]
    try:
        return date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        return f"{year:04}-{month:02}-{day:02}"


_DATES = scalars.Table(_date, 1 << 16)


@lru_cache(maxsize=8)
def _moments(digits: int) -> Callable[[bytes], int | str]:
    """Return the function from the bytes of a DATETIME(digits) or TIMESTAMP(digits) to microseconds, or text."""
    zero = "0000-00-00 00:00:00" + scalars.fraction_text(0, digits)

    def moment(raw: bytes) -> int | str:
        if not raw:
            return zero
        day: Any = _DATES[raw[:4]]
        hour, minute, second = (raw[4], raw[5], raw[6]) if len(raw) > 4 else (0, 0, 0)
        micros = int.from_bytes(raw[7:11], "little")
        if type(day) is str:
            return f"{day} {hour:02}:{minute:02}:{second:02}" + scalars.fraction_text(micros, digits)
        value: int = (day * 86400 + hour * 3600 + minute * 60 + second) * _SECOND + micros
        return value

    return moment


def _time(raw: bytes) -> int:
    if not raw:
        return 0
    seconds = int.from_bytes(raw[1:5], "little") * 86400 + raw[5] * 3600 + raw[6] * 60 + raw[7]
    value = seconds * _SECOND + int.from_bytes(raw[8:12], "little")
    return -value if raw[0] else value


def _filled(raw: bytes) -> str:
    """A DECIMAL with ZEROFILL: as it is without."""
    text = raw.decode().lstrip("0")
    return text if text[:1].isdigit() else "0" + text


# ---------------------------------------------------------------- one column

_FIXED = {Wire.TINY: ("b", "B"), Wire.SHORT: ("h", "H"), Wire.YEAR: ("H", "H"), Wire.INT24: ("i", "I")}
_FIXED |= {Wire.LONG: ("i", "I"), Wire.LONGLONG: ("q", "Q"), Wire.FLOAT: ("4s", "4s"), Wire.DOUBLE: ("d", "d")}
_TIMED = {Wire.DATE, Wire.NEWDATE, Wire.DATETIME, Wire.DATETIME2, Wire.TIMESTAMP, Wire.TIMESTAMP2, Wire.TIME, Wire.TIME2}


def _value(cell: Cell, column: Column) -> tuple[str, Any]:
    """How the bytes of a value become it: (expression over {0} and {f}, f)."""
    wire = cell.wire
    if wire in (Wire.DATE, Wire.NEWDATE):
        return "{f}[{0}]", _DATES
    if wire in (Wire.TIME, Wire.TIME2):
        return "{f}({0})", _time
    if wire in _TIMED:
        return "{f}({0})", _moments(column.scale)
    if wire == Wire.FLOAT:
        return "{f}[{0}]", scalars.FLOATS
    if wire in _FIXED:
        return "{0}", None
    if wire in (Wire.NEWDECIMAL, Wire.DECIMAL):
        return ("{f}({0})", _filled) if cell.flags & _ZEROFILL else ("{0}.decode()", None)
    if wire == Wire.BIT:
        return "{f}({0}, 'big')", int.from_bytes
    if column.type in ("json", "uuid", "inet4", "inet6"):
        return "{0}.decode()", None
    if not column.charset:
        return "{0}", None
    codec = python_codec(column.charset)
    decode = (lambda raw: raw.decode(codec)) if codec else decoder(column.charset)
    if column.type in ("enum", "set"):
        return "{f}[{0}]", scalars.Table(decode, 1 << 12)
    return ("{0}.decode()", None) if codec == "utf-8" else ("{f}({0})", decode)


# ---------------------------------------------------------------- the function


def _packed(d: bytes, p: int) -> tuple[int, int]:
    """A count of 251 and more at d[p]: (count, where what it counts begins)."""
    size = {252: 2, 253: 3, 254: 8}[d[p]]
    return int.from_bytes(d[p + 1 : p + 1 + size], "little"), p + 1 + size


class _Source:
    def __init__(self, cells: Sequence[Cell], columns: Sequence[Column]) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"packed": _packed, "u32": struct.Struct("<I").unpack_from}
        self.cells, self.columns = cells, columns

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def value(self, i: int, raw: str) -> str:
        expression, function = _value(self.cells[i], self.columns[i])
        self.names[f"f{i}"] = function
        return expression.format(raw, f=f"f{i}")

    def codes(self, i: int) -> str:
        cell = self.cells[i]
        return _FIXED[Wire(cell.wire)][bool(cell.flags & _UNSIGNED)] if cell.wire in _FIXED else ""

    def fixed(self, depth: int, run: Sequence[int]) -> None:
        """Read neighbours of fixed width with one call."""
        if not run:
            return
        layout = struct.Struct("<" + "".join(self.codes(i) for i in run))
        name = f"unpack{run[0]}_{len(run)}"
        self.names[name] = layout.unpack_from
        self.line(depth, f"{', '.join(f'v{i}' for i in run)}, = {name}(d, p)")
        self.line(depth, f"p += {layout.size}")
        for i in run:
            if (made := self.value(i, f"v{i}")) != f"v{i}":
                self.line(depth, f"v{i} = {made}")

    def variable(self, depth: int, i: int) -> None:
        self.line(depth, "n = d[p]")
        if self.cells[i].wire in _TIMED:
            self.line(depth, "p += 1")
        else:
            self.line(depth, "if n < 251: p += 1")
            self.line(depth, "else: n, p = packed(d, p)")
        self.line(depth, "q = p + n")
        self.line(depth, f"v{i} = {self.value(i, 'd[p:q]')}")
        self.line(depth, "p = q")

    def row(self, depth: int, wanted: Sequence[int]) -> None:
        run: list[int] = []
        for i in wanted:
            if self.codes(i):
                run.append(i)
                continue
            self.fixed(depth, run)
            run = []
            self.variable(depth, i)
        self.fixed(depth, run)


def compile_rows(cells: Sequence[Cell], columns: Sequence[Column]) -> Decode:
    """Return the function that reads rows of `columns`, which the server announced as `cells`."""
    return _compile(tuple(cells), tuple(columns))


@lru_cache(maxsize=256)
def _compile(cells: tuple[Cell, ...], columns: tuple[Column, ...]) -> Decode:
    source = _Source(cells, columns)
    line, count = source.line, len(cells)
    width = (count + 9) // 8
    source.names["none"] = bytes(width)
    line(0, "def decode(d, p, end, whole, add):")
    line(1, "while p < end:")
    line(2, "start = p")
    line(2, "if whole:")
    line(3, "stop = end")
    line(2, "else:")
    line(3, "if p + 4 > end: return start")
    line(3, f"n = u32(d, p)[0] & {BIG:#x}")
    line(3, "p += 4")
    line(3, "stop = p + n")
    line(3, f"if stop > end or n == {BIG:#x}: return start")
    line(2, "if d[p]: return start")
    line(2, f"nulls = d[p + 1 : p + {1 + width}]")
    line(2, f"p += {1 + width}")
    line(2, "if nulls == none:")
    source.row(3, range(count))
    line(2, "else:")
    line(3, 'nulls = int.from_bytes(nulls, "little") >> 2')
    for i in range(count):
        line(3, f"if nulls & {1 << i:#x}: v{i} = None")
        line(3, "else:")
        source.row(4, [i])
    line(2, 'if p != stop: raise ValueError(f"a row of {stop - start} bytes ends after {p - start}")')
    line(2, f"add(({''.join(f'v{i}, ' for i in range(count))}))")
    line(1, "return p")
    exec(compile("\n".join(source.lines) + "\n", "<rows of a select>", "exec"), source.names)
    made: Decode = source.names["decode"]
    return made
