"""Rows -> Arrow: a MySQL column's Arrow type, columns of stored values, and the columns of a batch's events.

A stored value (`shmstore.encoding.codec`) is already what Arrow keeps inside: DATE is days, DATETIME, TIMESTAMP and TIME are
microseconds, DECIMAL is digits as text. So no Python value is made of it. There are two ways, with the same result:

    `stored_images`     MessagePack to Python lists, a `pa.array` for each column: the reference
    `Events.images`     compiled (`shmstore.native.columns`), bytes to columns; what it cannot read it leaves to the reference

MySQL                                            Arrow
TINYINT, SMALLINT, MEDIUMINT, INT, BIGINT        int8, int16, int32, int32, int64
the same, unsigned                               int16, int32, int32, int64, decimal128(20, 0)
YEAR; BIT(n), BIT(64)                            int32; int64, decimal128(20, 0)
DECIMAL(p, s)                                    decimal128(p, s); more than 38 digits: string
FLOAT, DOUBLE                                    float32, float64
DATE, DATETIME(f), TIMESTAMP(f)                  date32, timestamp[us], timestamp[us, UTC]
TIME(f)                                          duration[us] (it may be negative, and beyond 24 hours)
BINARY, VARBINARY, BLOB, GEOMETRY, VECTOR        binary
CHAR, VARCHAR, TEXT, ENUM, SET, JSON, the rest   string
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shmstore.encoding.codec import Header, decode_stored, split_stored
from shmstore.event import Column, TableSchema
from shmstore.sql.names import places_of

try:
    from shmstore.native import columns as compiled
except ImportError:  # built without a compiler
    compiled = None  # type: ignore[assignment]

#: True where rows become columns by compiled code; SHMSTORE_PURE=1 in the environment keeps it from that.
COMPILED: bool = compiled is not None and os.environ.get("SHMSTORE_PURE", "") in ("", "0")

#: What `Events.records` says of an event: Record in shmstore/native/index.pxi.
RECORD = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("entry", "type", "file", "offset", "length", "time", "server", "transaction", "transaction_size", "order"),
            *("part", "row", "sql_size", "schema", "rows", "images", "body", "end"),
        )
    ]
)


class ZeroDate(ValueError):
    """A zero or impossible date came, which Arrow, Spark and Parquet cannot hold."""


class PartialImage(ValueError):
    """A row image lacks columns (binlog_row_image is not FULL), which a typed row cannot say."""


# ---------------------------------------------------------------- types

_UNSIGNED_LONG = pa.decimal128(20, 0)
_INTEGERS: dict[str, tuple[pa.DataType, pa.DataType]] = {
    "tinyint": (pa.int8(), pa.int16()),
    "smallint": (pa.int16(), pa.int32()),
    "mediumint": (pa.int32(), pa.int32()),
    "year": (pa.int32(), pa.int32()),
    "int": (pa.int32(), pa.int64()),
    "integer": (pa.int32(), pa.int64()),
    "bigint": (pa.int64(), _UNSIGNED_LONG),
}
#: Types whose values are bytes.
BINARY_TYPES = (
    *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector", "geometry", "geometrycollection"),
    *("geomcollection", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
)
_OTHERS: dict[str, pa.DataType] = {
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
    "time": pa.duration("us"),
    **dict.fromkeys(BINARY_TYPES, pa.binary()),
}
_TEMPORAL = frozenset({"date", "datetime", "timestamp"})
MAX_DECIMAL_DIGITS = 38


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type that holds every value of `column` exactly."""
    kind = column.type
    if kind in _INTEGERS:
        return _INTEGERS[kind][column.unsigned]
    if kind == "bit":
        return pa.int64() if column.size < 64 else _UNSIGNED_LONG
    if kind == "decimal":
        return pa.decimal128(column.size, column.scale) if 1 <= column.size <= MAX_DECIMAL_DIGITS else pa.string()
    return _OTHERS.get(kind, pa.string())


def image_type(table: TableSchema) -> pa.StructType:
    """Return the struct type of a row image of `table`."""
    return pa.struct([pa.field(column.name, arrow_type(column)) for column in table.columns])


def widens(found: pa.DataType, planned: pa.DataType) -> bool:
    """True when every value of `found` is one of `planned`, exactly."""
    if found == planned:
        return True
    if pa.types.is_integer(found):
        if pa.types.is_integer(planned):
            return bool(planned.bit_width >= found.bit_width)
        return bool(pa.types.is_decimal(planned) and planned.precision - planned.scale >= 20)
    if pa.types.is_decimal(found) and pa.types.is_decimal(planned):
        return bool(planned.scale >= found.scale and planned.precision - planned.scale >= found.precision - found.scale)
    return bool(pa.types.is_float32(found) and pa.types.is_float64(planned))


class Fit(NamedTuple):
    """How the columns of a table fill planned ones: for each planned one the index of the one of its name; and what differs."""

    mapping: list[int | None]
    added: list[str]
    missing: list[str]
    changed: list[tuple[str, pa.DataType, pa.DataType]]  # name, type found, type planned

    @property
    def narrowed(self) -> list[tuple[str, pa.DataType, pa.DataType]]:
        """What of `changed` may have values that the planned type cannot hold."""
        return [change for change in self.changed if not widens(*change[1:])]


def fit(found: TableSchema, plan: TableSchema) -> Fit:
    """Return how the columns of `found` fill those of `plan`."""
    if found.columns == plan.columns:
        return Fit(list(range(len(plan.columns))), [], [], [])
    mapping = places_of(plan.names, found.names)
    types = [
        (column.name, arrow_type(found.columns[i]), arrow_type(column))
        for column, i in zip(plan.columns, mapping, strict=True)
        if i is not None
    ]
    return Fit(
        mapping,
        [name for i, name in enumerate(found.names) if i not in mapping],
        [name for name, i in zip(plan.names, mapping, strict=True) if i is None],
        [change for change in types if change[1] != change[2]],
    )


# ---------------------------------------------------------------- columns


class Image(NamedTuple):
    """Row images as columns: an array for each column of the table (None: not asked for); a bit for each row that says whether it has an image
    (None: all have), and how many have none.
    """

    arrays: list[Any]
    rows: int
    there: pa.Buffer | None
    absent: int

    def struct(self, mapping: Sequence[int | None], type_: pa.StructType) -> pa.StructArray:
        """Return the images as one struct array; `mapping` says which column fills each field, None that it is NULL."""
        arrays = [
            pa.nulls(self.rows, field.type) if i is None else self.arrays[i] for i, field in zip(mapping, type_, strict=True)
        ]
        return pa.Array.from_buffers(type_, self.rows, [self.there], self.absent, children=arrays)

    def chosen(self) -> NDArray[np.bool_]:
        """Which rows have an image."""
        if self.there is None:
            return np.ones(self.rows, np.bool_)
        return np.unpackbits(np.frombuffer(self.there, np.uint8), count=self.rows, bitorder="little").view(np.bool_)


Images = tuple[Image | None, Image | None]  # before, after; None: no row has it


def column_array(column: Column, type_: pa.DataType, values: Sequence[Any], zero_dates: str) -> pa.Array:
    """Return `values`, the stored values of `column`, as an Arrow array of `type_`.

    Raises `ZeroDate` for a zero or impossible date unless `zero_dates` is ``null``; ValueError naming the column for a
    value that its type cannot hold.
    """
    try:
        if pa.types.is_decimal(type_):
            # Arrow takes no decimals from text, nor from integers fast, but casts both
            return pa.array(values, _uncast(column)).cast(type_)
        return pa.array(values, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as error:
        if column.type in _TEMPORAL:
            wrong = next((value for value in values if type(value) is str), None)
            if wrong is not None:
                if zero_dates == "null":
                    return pa.array([None if type(value) is str else value for value in values], type_)
                raise ZeroDate(
                    f"column {column.name} holds {wrong!r}, a date that does not exist; "
                    "read it as NULL with zero_dates='null' (to_arrow) or zeroDates=null (Spark), or as text with payload=json (Spark)"
                ) from error
        raise ValueError(f"column {column.name} ({column.type}) holds a value that {type_} cannot: {error}") from error


def _uncast(column: Column) -> pa.DataType:
    if column.type == "decimal":
        return pa.string()
    return pa.uint64() if column.unsigned or column.type == "bit" else pa.int64()


def stored_images(
    table: TableSchema,
    bodies: Sequence[Sequence[Any]],
    counts: Sequence[int],
    types: Sequence[Any],
    zero_dates: str,
    before: Sequence[Any] | None = None,
) -> Images:
    """Return the images in `bodies` (`codec.decode_stored`), each of `counts` rows, as columns of `types` (None: not wanted); those before the
    change as columns of `before`, where that is given.

    Columns that an image lacks are NULL. Raises as `column_array`, and ValueError where rows are of different lengths.
    """
    return (
        _stored_image(table, bodies, counts, types if before is None else before, zero_dates, 0),
        _stored_image(table, bodies, counts, types, zero_dates, 2),
    )


def _stored_image(
    table: TableSchema, bodies: Sequence[Any], counts: Sequence[int], types: Sequence[Any], zero_dates: str, part: int
) -> Image | None:
    absent = [body[part + 1] is None for body in bodies]
    if all(absent):
        return None
    width = len(table.columns)
    nothing = [(None,) * width]
    rows: list[Any] = []
    for body, gone, count in zip(bodies, absent, counts, strict=True):
        present, there = body[part], body[part + 1]
        if gone:
            rows.extend(nothing * count)
        elif len(there) != count:
            raise ValueError(f"an event has {len(there)} images of {count} rows")
        elif present is None:
            rows.extend(there)
        else:
            rows.extend(_placed(width, present, row) for row in there)
    values = list(zip(*rows, strict=True)) if rows else [()] * width
    arrays = [
        None if type_ is None else column_array(column, type_, cells, zero_dates)
        for column, type_, cells in zip(table.columns, types, values, strict=True)
    ]
    there = ~np.repeat(np.array(absent), counts)
    missing = int((~there).sum())
    return Image(arrays, len(there), pa.py_buffer(np.packbits(there, bitorder="little")) if missing else None, missing)


def _placed(width: int, present: Sequence[int], values: Sequence[Any]) -> list[Any]:
    row = [None] * width
    for i, value in zip(present, values, strict=True):
        row[i] = value
    return row


# ---------------------------------------------------------------- compiled


class RowPositions(NamedTuple):
    """Where rows are in the binlog, a value a row. `seq` is text that sorts as they do, None where it is not wanted."""

    seq: pa.Array | None
    op: pa.Array
    file: pa.Array
    offset: pa.Array
    time: pa.Array
    server: pa.Array
    row: pa.Array
    transaction: pa.Array


class Events:
    """Encoded events, indexed by compiled code; `records` has a record of dtype `RECORD` for each."""

    __slots__ = ("_index", "ends", "files", "raw", "records", "schemas")

    def __init__(self, index: compiled.Index, raw: memoryview, ends: NDArray[np.int64]) -> None:
        self._index = index
        self.raw = raw
        self.ends = ends
        self.files = index.files
        self.schemas = index.schemas
        self.records: NDArray[np.void] = np.frombuffer(memoryview(index.records).toreadonly(), RECORD)

    def stored(self, events: NDArray[np.int64]) -> list[tuple[Header, Any]]:
        """The header and the body of each of `events`, by the reference."""
        starts = np.where(events > 0, self.ends[events - 1], 0)
        return [decode_stored(self.raw[a:b])[::2] for a, b in zip(starts.tolist(), self.ends[events].tolist(), strict=True)]

    def runs(self, most: int) -> list[NDArray[np.int64]]:
        """The numbers of the events with rows, in order: cut where the schema changes, and after `most` rows."""
        return [np.frombuffer(run, np.int64) for run in self._index.runs(most)]

    def spread(self, events: NDArray[np.int64], values: NDArray[np.int64]) -> pa.Array:
        """What `values` has for each of `events`, once for each of its rows."""
        found = self._index.spread(np.ascontiguousarray(events), np.ascontiguousarray(values))
        return _numbers(pa.int64(), found.size // 8, found)

    def transactions(self, events: NDArray[np.int64]) -> pa.Array | None:
        """The transaction of each of `events`, once for each of its rows; None where the reference must read it."""
        found = self._index.transactions(np.ascontiguousarray(events))
        return None if found is None else _texts(found[0].size // 4 - 1, *found)

    def positions(self, events: NDArray[np.int64], numbers: Sequence[int] | None, ops: bytes) -> RowPositions | None:
        """Where the rows of `events` are in the binlog and what they are. `numbers` has the number of each of `files` (None: `seq` is not
        wanted), `ops` a character for each of the 256 event types. None where the reference must read them.
        """
        found = self._index.positions(np.ascontiguousarray(events), None if numbers is None else np.array(numbers, np.int64), ops)
        transaction = None if found is None else self.transactions(events)
        if found is None or transaction is None:
            return None
        seq, op, file, offset, time, server, row = found
        rows, long = op.size, pa.int64()
        return RowPositions(
            seq=None if seq is None else _texts(rows, compiled.text_ends(seq.size // rows, rows), seq),
            op=_texts(rows, compiled.text_ends(1, rows), op),
            file=repeated(self.files[0], rows) if file is None else _texts(rows, *file),
            offset=_numbers(long, rows, offset),
            time=_numbers(long, rows, time),
            server=_numbers(long, rows, server),
            row=_numbers(pa.int32(), rows, row),
            transaction=transaction,
        )

    def header(self, event: int) -> Header:
        """The header of one event."""
        return split_stored(self.raw[self.ends[event - 1] if event else 0 : self.ends[event]])[0]

    def images(
        self,
        events: NDArray[np.int64],
        table: TableSchema,
        types: Sequence[Any],
        zero_dates: str,
        before: Sequence[Any] | None = None,
    ) -> Images | None:
        """The images of `events`, all of `table`, as columns of `types` and `before` (None: not wanted), as `stored_images` gives them.

        None where the reference must read them: a value is not what its column has, a zero date is refused, an image
        lacks columns.
        """
        both = types if before is None else before, types
        kinds = tuple([(column.type, column.unsigned) for column in table.columns])
        steps_before, steps_after = (_steps(kinds, tuple(some)) for some in both)
        if steps_before is None or steps_after is None:
            return None
        found = self._index.images(np.ascontiguousarray(events), steps_before, steps_after)
        if found is None:
            return None
        rows = int(self.records["rows"][events].sum())
        made: list[Image | None] = []
        for columns, wanted, there in zip(found[:2], both, found[2:], strict=True):
            if columns is None:
                made.append(None)
                continue
            if zero_dates != "null" and any(column is not None and column[1] for column in columns):
                return None
            arrays = [_array(type_, rows, column) for type_, column in zip(wanted, columns, strict=True)]
            made.append(Image(arrays, rows, *(there or (None, 0))))
        return made[0], made[1]


def read_events(raw: memoryview | bytes, ends: NDArray[np.int64]) -> Events | None:
    """Index the events in `raw`, which end at `ends`. None where the reference must read them: there is no compiled code, or an
    event is not as `codec.encode` writes it, perhaps damaged.
    """
    if not COMPILED:
        return None
    index = compiled.Index(raw, np.ascontiguousarray(ends, np.int64))
    return None if index.failed >= 0 else Events(index, memoryview(raw), ends)


def _numbers(type_: pa.DataType, rows: int, values: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(type_, rows, [None, values], 0)


def _texts(rows: int, ends: pa.Buffer | None, text: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), rows, [None, ends, text], 0)


def repeated(text: str, rows: int) -> pa.Array:
    """Return `text`, once for each of `rows`."""
    encoded = text.encode()
    ends = compiled.text_ends(len(encoded), rows) if COMPILED else None
    return pa.repeat(text, rows) if ends is None else _texts(rows, ends, compiled.repeated(encoded, rows))


def _array(type_: pa.DataType, rows: int, column: Any) -> pa.Array | None:
    if column is None:
        return None
    nulls, _, *buffers = column
    return pa.Array.from_buffers(type_, rows, buffers if buffers[2] is not None else buffers[:2], nulls)


@lru_cache(maxsize=1024)
def _steps(kinds: tuple[tuple[str, bool], ...], types: tuple[pa.DataType | None, ...]) -> list[tuple[str, int, int]] | None:
    """How compiled code fills columns of `types` from values of columns of a type and a sign; None where it does not know of one."""
    steps = [step_of(*kind, type_) for kind, type_ in zip(kinds, types, strict=True)]
    return None if None in steps else steps  # type: ignore[return-value]


def step_of(kind: str, unsigned: bool, type_: pa.DataType | None) -> tuple[str, int, int] | None:
    """How compiled code fills a column of `type_` from values of a column of type `kind`; None where it does not know."""
    if type_ is None:
        return ("skip", 0, 0)
    if pa.types.is_signed_integer(type_):
        return ("int", type_.bit_width // 8, 0)
    if pa.types.is_duration(type_):
        return ("int", 8, 0)
    if pa.types.is_decimal128(type_):
        if kind == "decimal":
            return ("decimal", type_.precision, type_.scale) if 0 <= type_.scale <= type_.precision else None
        if type_.scale:
            return None
        return ("unsigned_decimal" if unsigned or kind == "bit" else "signed_decimal", type_.precision, 0)
    if kind in _TEMPORAL and (pa.types.is_date32(type_) or pa.types.is_timestamp(type_)):
        return ("date" if pa.types.is_date32(type_) else "moment", 0, 0)
    for is_type, step in (
        (pa.types.is_string, "text"),
        (pa.types.is_binary, "bytes"),
        (pa.types.is_float64, "double"),
        (pa.types.is_float32, "float"),
    ):
        if is_type(type_):
            return (step, 0, 0)
    return None
