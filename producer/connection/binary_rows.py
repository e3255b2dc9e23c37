"""Rows of a SELECT in the server's binary form -> values in stored form, as the stream has them, as MessagePack.

Plan. A prepared statement's rows hold numbers, dates and times in binary and everything else as bytes with a length, so that
nothing is lost to printing (FLOAT prints six digits) and little is parsed. `ResultRows` of `shmstore.producer.native.compiled`
decodes them by the steps of `row_steps`; the one here is the reference, and runs where there is no compiled one. For it one function
is written as Python source for each list of columns: interpreted, as row images are in Python, rows took 1.3 to 2.2 times as long.
It reads packets from d[p:end] as they came from the socket:

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
from shmstore.encoding.codec import pack
from shmstore.producer.binlog.row_program import Step, characters
from shmstore.producer.binlog.wire_types import Wire
from shmstore.producer.native_code import COMPILED, compiled
from shmstore.producer.values import scalars
from shmstore.sql.charsets import decoder, python_codec

__all__ = ["BIG", "Cell", "ResultRows", "new_rows", "row_steps"]

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


# ---------------------------------------------------------------- the rows of one SELECT


class ResultRows:
    """Receive into `buffer`, say how much came with `took`: rows are decoded as they become whole, and kept until they are put.

    The first `shown` values make a row; the others are kept of the last row only.
    """

    def __init__(self, cells: Sequence[Cell], columns: Sequence[Column], shown: int) -> None:
        self._decode, self._shown = _compile(tuple(cells), tuple(columns)), shown
        self._rows: list[tuple[Any, ...]] = []
        self._extras: tuple[Any, ...] = ()
        self._rest = b""  # what is not decoded yet
        self._pieces: list[bytes] = []  # what came since, while less than a whole packet
        self._missing = 0
        self._space = bytearray()

    def __len__(self) -> int:
        return len(self._rows)

    def buffer(self, size: int) -> memoryview:
        """Return memory for `size` bytes, to receive into."""
        if len(self._space) != size:
            self._space = bytearray(size)
        return memoryview(self._space)

    def took(self, size: int) -> bytes | None:
        """Decode what is whole, now that `size` more bytes are there; return the packet behind the last row, None before it came."""
        self._pieces.append(bytes(self._space[:size]))
        self._missing -= size
        if self._missing > 0:
            return None
        d, p = b"".join((self._rest, *self._pieces)), 0
        self._pieces.clear()
        p = self._decode(d, 0, len(d), False, self._add)
        while p + 4 <= len(d):
            length = int.from_bytes(d[p : p + 3], "little")
            if length == BIG:
                whole = _joined(d, p)
                if whole is None:
                    break
                body, p = whole
                self._decode(body, 0, len(body), True, self._add)
                p = self._decode(d, p, len(d), False, self._add)
                continue
            body = d[p + 4 : p + 4 + length]
            if len(body) < length:
                break
            self._rest = d[p:]
            return body
        self._rest = d[p:]
        if len(self._rest) >= 4:
            self._missing = 4 + int.from_bytes(self._rest[:3], "little") - len(self._rest)
        return None

    def _add(self, values: tuple[Any, ...]) -> None:
        self._rows.append(values[: self._shown])
        self._extras = values[self._shown :]

    @property
    def last(self) -> tuple[bytes, bytes]:
        """The last row and its extras, both as MessagePack."""
        return pack(self._rows[-1]), pack(self._extras)

    def array(self, first: int, count: int) -> bytes:
        """Return `count` rows from `first` on, fewer at the end, as one MessagePack array."""
        return pack(self._rows[first : first + count])

    def leave_out(self, keys: Sequence[set[bytes]], indexes: tuple[int, ...]) -> None:
        """Take out the rows whose values at `indexes`, as MessagePack one behind the other, are in one of the sets `keys`."""

        def stays(row: tuple[Any, ...]) -> bool:
            found = b"".join([pack(row[i]) for i in indexes])
            return not any(found in one for one in keys)

        self._rows = [row for row in self._rows if stays(row)]

    def clear(self) -> None:
        """Forget the rows that came so far."""
        self._rows.clear()


def _joined(d: bytes, p: int) -> tuple[bytes, int] | None:
    """A row over several packets, and where it ends; None while it is not whole."""
    parts = []
    while p + 4 <= len(d):
        size = int.from_bytes(d[p : p + 3], "little")
        part = d[p + 4 : p + 4 + size]
        if len(part) < size:
            return None
        parts.append(part)
        p += 4 + size
        if size < BIG:
            return b"".join(parts), p
    return None


_NUMBERS = {Wire.TINY: 1, Wire.SHORT: 2, Wire.YEAR: 2, Wire.INT24: 4, Wire.LONG: 4, Wire.LONGLONG: 8}


def row_steps(cells: Sequence[Cell], columns: Sequence[Column]) -> list[Step]:
    """Return how the compiled `ResultRows` decodes each column; a size that is 1 says nothing where a length stands before the value."""
    return [_step(cell, column) for cell, column in zip(cells, columns, strict=True)]


def _step(cell: Cell, column: Column) -> Step:
    wire = Wire(cell.wire)
    if wire in _NUMBERS:
        return Step("unsigned" if cell.flags & _UNSIGNED or wire == Wire.YEAR else "signed", _NUMBERS[wire])
    if wire in (Wire.FLOAT, Wire.DOUBLE):
        return Step("float", 4) if wire == Wire.FLOAT else Step("double", 8)
    if wire in (Wire.DATE, Wire.NEWDATE):
        return Step("date", 1)
    if wire in (Wire.TIME, Wire.TIME2):
        return Step("time", 1)
    if wire in _TIMED:
        return Step("datetime", 1, column.scale)
    if wire in (Wire.NEWDECIMAL, Wire.DECIMAL):
        return Step("call", 1, extra=_filled) if cell.flags & _ZEROFILL else Step("text", 1)
    if wire == Wire.BIT:
        return Step("bit", 1)
    if column.type in ("json", "uuid", "inet4", "inet6"):
        return Step("text", 1)
    if not column.charset:
        return Step("bytes", 1)
    if python_codec(column.charset) == "utf-8":
        return Step("text", 1)
    table = characters(column.charset)
    return Step("table", 1, extra=table) if table else Step("call", 1, extra=decoder(column.charset))


def new_rows(cells: Sequence[Cell], columns: Sequence[Column], shown: int, *, compiled_code: bool = COMPILED) -> ResultRows:
    """Return the rows of a SELECT of `columns`, which the server announced as `cells`; compiled where that is there."""
    if not (compiled_code and COMPILED):
        return ResultRows(cells, columns, shown)
    made: ResultRows = compiled.ResultRows(row_steps(cells, columns), shown)
    return made
