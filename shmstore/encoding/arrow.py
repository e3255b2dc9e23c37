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


#: Row images before and after the change: structs of the columns that were asked for, in the table's order, all of them NULL where a row has no such image.
Images = tuple[pa.StructArray, pa.StructArray]


def wanted(table: TableSchema, types: Sequence[Any]) -> pa.StructType:
    """Return the type of an image that is read as `types`, one for each column of the table (None: not asked for)."""
    return pa.struct([(column.name, type_) for column, type_ in zip(table.columns, types, strict=True) if type_ is not None])


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
    """Return the images in `bodies` (`codec.decode_stored`), each of `counts` rows, as columns of `types` (None: not asked for); those before the
    change as columns of `before`, where that is given.

    Columns that an image lacks are NULL. Raises as `column_array`, and ValueError where rows are of different lengths.
    """
    return (
        _stored_image(table, bodies, counts, types if before is None else before, zero_dates, 0),
        _stored_image(table, bodies, counts, types, zero_dates, 2),
    )


def _stored_image(
    table: TableSchema, bodies: Sequence[Any], counts: Sequence[int], types: Sequence[Any], zero_dates: str, part: int
) -> pa.StructArray:
    type_ = wanted(table, types)
    absent = [body[part + 1] is None for body in bodies]
    if all(absent):
        return pa.nulls(sum(counts), type_)
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
        column_array(column, each, cells, zero_dates)
        for column, each, cells in zip(table.columns, types, values, strict=True)
        if each is not None
    ]
    there = ~np.repeat(np.array(absent), counts)
    bits = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(type_, len(there), [bits], int((~there).sum()), children=arrays)


def _placed(width: int, present: Sequence[int], values: Sequence[Any]) -> list[Any]:
    row = [None] * width
    for i, value in zip(present, values, strict=True):
        row[i] = value
    return row


def row_layout(before: pa.StructType, after: pa.StructType, seq: pa.DataType) -> pa.Schema:
    """Return the schema of rows: what its event says of each, and its images. See `shmstore.encoding.arrow_table`."""
    return pa.schema(
        [
            ("op", pa.string()),
            ("database", pa.string()),
            ("table", pa.string()),
            ("before", before),
            ("after", after),
            ("ts_ms", pa.int64()),
            ("server_id", pa.int64()),
            ("file", pa.string()),
            ("offset", pa.int64()),
            ("seq", seq),
            ("row", pa.int32()),
            ("transaction", pa.string()),
        ]
    )


# ---------------------------------------------------------------- compiled


class ReadingPlan(NamedTuple):
    """How compiled code reads the rows of a table."""

    steps_before: list[tuple[str, int, int]]
    steps_after: list[tuple[str, int, int]]
    images: pa.Schema
    rows: pa.Schema  # their `seq` is a number
    rows_by_seq: pa.Schema  # it is text


def plan_of(table: TableSchema, before: Sequence[Any], after: Sequence[Any]) -> ReadingPlan | None:
    """Return how to read images as columns of these types (None: not asked for); None where compiled code does not know of one."""
    steps_before, steps_after = _steps(table, before), _steps(table, after)
    if steps_before is None or steps_after is None:
        return None
    images = wanted(table, before), wanted(table, after)
    return ReadingPlan(
        steps_before,
        steps_after,
        pa.schema([("before", images[0]), ("after", images[1])]),
        row_layout(*images, pa.int64()),
        row_layout(*images, pa.string()),
    )


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
        """The images of `events`, all of `table`, as `stored_images` gives them.

        None where the reference must read them: a value is not what its column has, a zero date is refused, an image
        lacks columns.
        """
        plan = plan_of(table, types if before is None else before, types)
        if plan is None:
            return None
        found = self._index.images(
            np.ascontiguousarray(events), plan.steps_before, plan.steps_after, zero_dates == "null", plan.images
        )
        return None if found is None else (found.column(0), found.column(1))

    def rows(
        self,
        events: NDArray[np.int64],
        table: TableSchema,
        plan: ReadingPlan,
        zero_dates: str,
        ops: bytes,
        seqs: NDArray[np.int64] | Sequence[int],
    ) -> pa.RecordBatch | None:
        """The rows of `events`, all of `table`, as a batch of `row_layout`. `ops` has a character for each of the 256 event types.

        `seqs` are an array of what `seq` is for each event, or a list of the numbers of `files`: then it is text that sorts as the rows do. None where
        the reference must read them.
        """
        numbers = None if isinstance(seqs, np.ndarray) else np.array(seqs, np.int64)
        return self._index.rows(
            np.ascontiguousarray(events),
            plan.steps_before,
            plan.steps_after,
            zero_dates == "null",
            numbers,
            np.ascontiguousarray(seqs) if numbers is None else None,
            ops,
            table.database.encode(),
            table.table.encode(),
            plan.rows if numbers is None else plan.rows_by_seq,
        )


def read_events(raw: memoryview | bytes, ends: NDArray[np.int64]) -> Events | None:
    """Index the events in `raw`, which end at `ends`. None where the reference must read them: there is no compiled code, or an
    event is not as `codec.encode` writes it, perhaps damaged.
    """
    if not COMPILED:
        return None
    index = compiled.Index(raw, np.ascontiguousarray(ends, np.int64))
    return None if index.failed >= 0 else Events(index, memoryview(raw), ends)


def _steps(table: TableSchema, types: Sequence[Any]) -> list[tuple[str, int, int]] | None:
    steps = [step_of(column.type, column.unsigned, type_) for column, type_ in zip(table.columns, types, strict=True)]
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
