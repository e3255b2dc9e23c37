"""Rows of a SELECT in the server's binary form -> values in stored form, as the stream has them, as MessagePack.

Plan. A prepared statement's rows hold numbers, dates and times in binary and everything else as bytes with a length, so that
nothing is lost to printing (FLOAT prints six digits) and little is parsed. The steps of `row_steps` decode them. `ResultRows` of
`shmstore.producer.native.compiled` runs the steps; the one here is the reference, and runs where there is no compiled one. It reads
packets as they came from the socket:

    packet  size (3 bytes), number (1), 0, a bit for each NULL (from bit 2 on), the values that are not NULL
    number  as in C, little-endian             DATE, DATETIME, TIMESTAMP   0, 4, 7 or 11 bytes, their count before them
    bytes   their count as a packed integer    TIME                        0, 8 or 12 bytes, their count before them

All other values are converted as those of row images are: character sets, FLOAT's shortest form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from functools import lru_cache
from typing import Any, NamedTuple

from shmstore import Column
from shmstore.encoding.codec import pack
from shmstore.producer.binlog import row_interpreter
from shmstore.producer.binlog.packets import missing, whole
from shmstore.producer.binlog.row_program import RowStep, characters
from shmstore.producer.binlog.wire_types import Wire
from shmstore.producer.native_code import COMPILED, compiled
from shmstore.producer.values import scalars
from shmstore.sql.charsets import decoder, python_codec

__all__ = ["Cell", "ResultRows", "new_rows", "row_steps"]

_UNSIGNED, _ZEROFILL = 32, 64
_SECOND = 1_000_000
_EPOCH = date(1970, 1, 1).toordinal()


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


_DATES = scalars.ValueTable(_date, 1 << 16)


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


_FIXED = {"signed", "unsigned", "float", "double"}
_OWN: dict[str, Callable[[RowStep], Callable[[bytes], Any]]] = {
    "date": lambda _: _DATES.__getitem__,
    "datetime": lambda step: _moments(step.a),
    "time": lambda _: _time,
    "bit": lambda _: lambda raw: int.from_bytes(raw, "big"),
}


def _conversion(step: RowStep) -> Callable[[bytes], Any]:
    """The function from a value's bytes: its own where a result has another form of it than a row image."""
    return _OWN.get(step.name, row_interpreter.conversion)(step)


# ---------------------------------------------------------------- the rows of one SELECT


class ResultRows:
    """Receive into `buffer`, say how much came with `took`: rows are decoded as they become whole, and kept until they are put.

    The first `shown` values make a row; the others are kept of the last row only.
    """

    def __init__(self, steps: Sequence[RowStep], shown: int) -> None:
        self._columns = [(step.size if step.name in _FIXED else 0, _conversion(step)) for step in steps]
        self._nulls, self._shown = (len(steps) + 9) // 8, shown
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
        while (packet := whole(d, p)) is not None:
            body, end = packet
            if body[:1] != b"\0":
                self._rest = d[end:]
                return body
            self._row(body)
            p = end
        self._rest = d[p:]
        self._missing = missing(self._rest)
        return None

    def _row(self, d: bytes) -> None:
        """Keep the row that `d` is. Raises ValueError, LookupError or what a conversion raises."""
        p, end = 1 + self._nulls, len(d)
        nulls = int.from_bytes(d[1:p], "little") >> 2
        values: list[Any] = []
        for size, convert in self._columns:
            if nulls & 1:
                values.append(None)
            else:
                if not size:
                    size, p = (d[p], p + 1) if d[p] < 251 else _counted(d, p)
                q = p + size
                if q > end:
                    raise IndexError("a row ends inside a value")
                values.append(convert(d[p:q]))
                p = q
            nulls >>= 1
        if p != end:
            raise ValueError(f"a row of {end} bytes ends {end - p} early")
        self._rows.append(tuple(values[: self._shown]))
        self._extras = tuple(values[self._shown :])

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


def _counted(d: bytes, p: int) -> tuple[int, int]:
    """A count of 251 and more at d[p]: (count, where what it counts begins)."""
    size = {252: 2, 253: 3, 254: 8}[d[p]]
    return int.from_bytes(d[p + 1 : p + 1 + size], "little"), p + 1 + size


# ---------------------------------------------------------------- the steps

_TIMED = {Wire.DATETIME, Wire.DATETIME2, Wire.TIMESTAMP, Wire.TIMESTAMP2}
_NUMBERS = {Wire.TINY: 1, Wire.SHORT: 2, Wire.YEAR: 2, Wire.INT24: 4, Wire.LONG: 4, Wire.LONGLONG: 8}


def row_steps(cells: Sequence[Cell], columns: Sequence[Column]) -> list[RowStep]:
    """Return how `ResultRows` decodes each column; the size says nothing where a count comes before the value."""
    return [_step(cell, column) for cell, column in zip(cells, columns, strict=True)]


def _step(cell: Cell, column: Column) -> RowStep:
    wire = Wire(cell.wire)
    if wire in _NUMBERS:
        return RowStep("unsigned" if cell.flags & _UNSIGNED or wire == Wire.YEAR else "signed", _NUMBERS[wire])
    if wire in (Wire.FLOAT, Wire.DOUBLE):
        return RowStep("float", 4) if wire == Wire.FLOAT else RowStep("double", 8)
    if wire in (Wire.DATE, Wire.NEWDATE):
        return RowStep("date", 1)
    if wire in (Wire.TIME, Wire.TIME2):
        return RowStep("time", 1)
    if wire in _TIMED:
        return RowStep("datetime", 1, column.scale)
    if wire in (Wire.NEWDECIMAL, Wire.DECIMAL):
        return RowStep("call", 1, extra=_filled) if cell.flags & _ZEROFILL else RowStep("text", 1)
    if wire == Wire.BIT:
        return RowStep("bit", 1)
    if column.type in ("json", "uuid", "inet4", "inet6"):
        return RowStep("text", 1)
    if not column.charset:
        return RowStep("bytes", 1)
    if python_codec(column.charset) == "utf-8":
        return RowStep("text", 1)
    table = characters(column.charset)
    return RowStep("table", 1, extra=table) if table else RowStep("call", 1, extra=decoder(column.charset))


def new_rows(cells: Sequence[Cell], columns: Sequence[Column], shown: int, *, compiled_code: bool = COMPILED) -> ResultRows:
    """Return the rows of a SELECT of `columns`, which the server announced as `cells`; compiled where that is there."""
    kind: type[ResultRows] = compiled.ResultRows if compiled_code and COMPILED else ResultRows
    return kind(row_steps(cells, columns), shown)
