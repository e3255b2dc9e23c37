"""Row images by the steps of `row_program`, in Python: what compiled code must give, and what runs where that is not there.

Plan. A step becomes a size, whether that many bytes are the value or its length, and a function from the value's bytes to its
stored form. `Program.image` is the one loop over them. `Program` and `rows_of` are called as those of
`shmstore.producer.native.compiled` are, which give MessagePack instead of tuples.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Sequence
from typing import Any

from shmstore.producer.binlog.row_program import RowStep
from shmstore.producer.values import scalars
from shmstore.producer.values.json_binary import json_text

__all__ = ["Program", "conversion", "rows_of"]

ImageRow = tuple[Any, ...]
ReadValue = Callable[[bytes], Any]
from_bytes = int.from_bytes


class Program:
    """Decodes the row images of one layout with some of its columns present.

    Only the first `shown` values become part of a row. `failed`: which column an error came from.
    """

    __slots__ = ("_columns", "_nulls", "_shown", "failed")

    def __init__(self, steps: Sequence[RowStep], shown: int | None = None) -> None:
        self._columns = [(step.size, step.name in _WITH_LENGTH, conversion(step)) for step in steps]
        self._nulls = (len(steps) + 7) // 8  # bytes; their unused bits are 0 in MySQL, 1 in MariaDB
        self._shown = len(steps) if shown is None else shown
        self.failed = -1

    def forget(self) -> None:
        """Forget which column failed."""
        self.failed = -1

    def image(self, data: bytes, at: int) -> tuple[ImageRow, int]:
        """Return the row image at data[at:], and where it ends. Raises ValueError, LookupError or what a conversion raises."""
        end = len(data)
        stop = at + self._nulls
        if stop > end:
            raise IndexError("the NULL bits run past the end of the event")
        nulls = from_bytes(data[at:stop], "little")
        values: list[Any] = []
        try:
            for size, with_length, convert in self._columns:
                if nulls & 1:
                    values.append(None)
                else:
                    at, stop = stop, stop + size
                    if with_length:
                        at, stop = stop, stop + from_bytes(data[at:stop], "little")
                    if stop > end:
                        raise IndexError("a value, or its length, runs past the end of the event")
                    values.append(convert(data[at:stop]))
                nulls >>= 1
        except Exception:
            self.failed = len(values)
            raise
        return tuple(values[: self._shown]), stop


def rows_of(
    before: Program | None, after: Program | None, data: bytes, at: int
) -> tuple[int, list[ImageRow] | None, list[ImageRow] | None]:
    """Decode the rows in data[at:] with the programs of their images: (rows, images before, images after)."""
    befores: list[ImageRow] = []
    afters: list[ImageRow] = []
    count = 0
    while at < len(data):
        if before is not None:
            row, at = before.image(data, at)
            befores.append(row)
        if after is not None:
            row, at = after.image(data, at)
            afters.append(row)
        count += 1
    return count, None if before is None else befores, None if after is None else afters


# ---------------------------------------------------------------- bytes of a value -> its stored form, by the name of a step


def _unpacked(code: str) -> ReadValue:
    unpack = struct.Struct("<" + code).unpack
    return lambda raw: unpack(raw)[0]


def _signed(step: RowStep) -> ReadValue:
    if step.size == 3:
        return lambda raw: from_bytes(raw, "little", signed=True)
    return _unpacked({1: "b", 2: "h", 4: "i", 8: "q"}[step.size])


def _unsigned(_: RowStep) -> ReadValue:
    return lambda raw: from_bytes(raw, "little")


def _year(_: RowStep) -> ReadValue:
    return lambda raw: raw[0] and raw[0] + 1900


def _enum(step: RowStep) -> ReadValue:
    members = [member.decode() for member in step.extra]
    return lambda raw: members[from_bytes(raw, "little")]


def _set(step: RowStep) -> ReadValue:
    texts = scalars.members_of_set(tuple([member.decode() for member in step.extra]))
    return lambda raw: texts[from_bytes(raw, "little")]


def _padded(step: RowStep) -> ReadValue:
    return lambda raw: raw.ljust(step.a, b"\0")


def _table(step: RowStep) -> ReadValue:
    characters = b"".join(step.extra).decode()
    return lambda raw: codecs.charmap_decode(raw, "strict", characters)[0]


def conversion(step: RowStep) -> ReadValue:
    """Return the function from the bytes of a step's value to its stored form."""
    return _CONVERSIONS[step.name](step)


_CONVERSIONS: dict[str, Callable[[RowStep], ReadValue]] = {
    "signed": _signed,
    "unsigned": _unsigned,
    "float": lambda _: scalars.FLOATS.__getitem__,
    "double": lambda _: _unpacked("d"),
    "decimal": lambda step: scalars.decimals(step.a, step.b),
    "bit": lambda step: scalars.bits(step.a),
    "year": _year,
    "enum": _enum,
    "set": _set,
    "date": lambda _: scalars.DATES.__getitem__,
    "datetime": lambda step: scalars.datetimes(step.a),
    "timestamp": lambda step: scalars.timestamps(step.a),
    "old_timestamp": lambda _: scalars.old_timestamps(0)[1],
    "time": lambda step: scalars.times(step.a).__getitem__,
    "call_fixed": lambda step: step.extra,
    "text": lambda _: bytes.decode,
    "bytes": lambda _: bytes,
    "padded": _padded,
    "table": _table,
    "json": lambda _: json_text,
    "call": lambda step: step.extra,
}
_WITH_LENGTH = {"text", "bytes", "padded", "table", "json", "call"}
