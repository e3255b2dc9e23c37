"""Values of a copy's columns as text, in Arrow's own loops: one string array for a column, and one text for a run of rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shmstore.consumer.copies.change_reduction import CopyRefuses
from shmstore.event import Column

PIECE_BYTES = 4 << 20  # of rows that become text at a time, as Arrow has them
_HEX = np.array([f"{byte:02x}".encode() for byte in range(256)], "S2").view(np.uint16)
_MOST_BYTES = (1 << 30) - 1  # of one piece's binary values: as hexadecimal digits they fit Arrow's 32-bit offsets


def plain(array: pa.Array) -> pa.Array:
    """Return numbers, dates and moments as text. A DECIMAL has no exponent, a moment has no zone and as many digits as its unit."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp(kind.unit))
    text = array.cast(pa.string())
    if pa.types.is_decimal(kind) and pc.any(pc.match_substring(text, "E")).as_py():
        return pa.array([None if value is None else format(value, "f") for value in array.to_pylist()], pa.string())
    return text


def hexadecimal(array: pa.Array) -> pa.Array:
    """Return bytes as hexadecimal digits. Raises `CopyRefuses` where they are too many."""
    array = array.cast(pa.binary())
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(array) else (0, 0)
    if last - first > _MOST_BYTES:
        raise CopyRefuses(
            f"a value has {last - first:,} bytes, and a database takes {_MOST_BYTES:,} at most: filter the column out"
        )
    held = array.buffers()[2]
    raw = np.frombuffer(held, np.uint8)[first:last] if held is not None else np.empty(0, np.uint8)
    ends = ((offsets - first) * 2).astype(np.int32)
    digits = pa.StringArray.from_buffers(len(array), pa.py_buffer(ends), pa.py_buffer(_HEX[raw]))
    return pc.if_else(array.is_valid(), digits, pa.scalar(None, pa.string())) if array.null_count else digits


def replaced(array: pa.Array, pairs: tuple[tuple[str, str], ...]) -> pa.Array:
    """Return text with one piece after the other replaced."""
    for old, new in pairs:
        if pc.any(pc.match_substring(array, old)).as_py():
            array = pc.replace_substring(array, old, new)
    return array


def around(before: str, array: pa.Array, after: str = "") -> pa.Array:
    """Return each text between two others; NULL stays NULL."""
    return pc.binary_join_element_wise(before, array, after, "")


def joined(
    table: pa.Table, as_text: Callable[[pa.Array], pa.Array], *, between: str, null: str, before: str = "", after: str = ""
) -> Iterator[tuple[memoryview, np.ndarray]]:
    """Yield rows as one text, some at a time, with the offset at which each row begins and the last one ends."""
    rows = max(1, len(table) * PIECE_BYTES // max(1, table.nbytes))
    for first in range(0, len(table), rows):
        some = table.slice(first, rows).combine_chunks()
        columns = [as_text(column.chunk(0)) for column in some.columns]
        row = pc.binary_join_element_wise(*columns, between, null_handling="replace", null_replacement=null)
        row = around(before, row, after)
        offsets = np.frombuffer(row.buffers()[1], np.int32)[row.offset : row.offset + len(row) + 1]
        yield memoryview(row.buffers()[2]), offsets


def arrow_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of what a driver gives for it: what a database has no type for is text, and a moment without a zone is of UTC."""
    if pa.types.is_boolean(kind):
        return pa.array([None if value is None else bool(value) for value in values], kind)
    given = [value for value in values if value is not None]
    if given and not pa.types.is_string(kind) and all(isinstance(value, str | int) for value in given):
        text = pa.array([None if value is None else str(value) for value in values], pa.string())
        if not pa.types.is_timestamp(kind):
            return text.cast(kind)
        return text.cast(pa.timestamp("us")).cast(kind)  # which takes a moment without a zone for UTC
    return pa.array([bytes(value) if isinstance(value, memoryview) else value for value in values], kind)


_KNOWN = re.compile(
    r"(tinyint|smallint|mediumint|int|integer|bigint|date|numeric|decimal)(?:\((\d+)(?:,(\d+))?\))?( unsigned)?", re.IGNORECASE
)


def known_column(name: str, type_: str) -> Column | None:
    """Return the source's column that holds every value of a copy's column of `type_`, as its database writes that, and no other; None where it is
    not known."""
    match = _KNOWN.fullmatch(type_)
    if match is None:
        return None
    kind, size, scale, unsigned = match.groups()
    kind = {"integer": "int", "numeric": "decimal"}.get(kind.lower(), kind.lower())
    if kind != "decimal":
        return Column(name, kind, unsigned=unsigned is not None)
    return Column(name, kind, size=int(size), scale=int(scale)) if size and int(scale or 0) and not unsigned else None
