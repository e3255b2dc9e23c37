"""The rows of a batch as an Arrow table, for pandas, Polars, DuckDB and whatever else takes Arrow.

column        type                                    what
op            string                                  c, u, d; r: a row of a snapshot
database      string
table         string
before, after struct of the table's columns           the row's images; NULL where there is none (insert, delete)
ts_ms         int64                                   event time, milliseconds since 1970 UTC
server_id     int64
file, offset  string, int64                           the event's end in the binlog
seq           int64                                   number of the event in its store, as `shmstore tail` prints it
row           int32                                   number of the row in its event; seq and row order the rows
transaction   string                                  GTID, or file:offset of the transaction's first event

`Table.flatten()` makes columns of the structs' fields: ``after.id``, ``before.id``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shmstore.encoding.arrow import (
    RECORD,
    Events,
    Images,
    PartialImage,
    ZeroDate,
    arrow_type,
    image_type,
    read_events,
    stored_images,
    widens,
)
from shmstore.encoding.codec import Header, decode_schema, decode_stored
from shmstore.errors import StoreCorrupt
from shmstore.event import EventType, TableSchema

ROWS_PER_CHUNK = 65_536
_OPS = pa.array(["c", "u", "d", "r"])
_OP_CODES = np.zeros(256, np.int64)
_OP_CODES[[EventType.UPDATE, EventType.DELETE, EventType.READ]] = 1, 2, 3
# fields of RECORD, and those of `Header` that fill them in the reference
_HEADER = {"type": "type", "offset": "offset", "time": "time_ms", "server": "server_id", "row": "row"}


@dataclass(frozen=True)
class Options:
    """What to do with values that a column cannot say: refuse them, or make them NULL."""

    zero_dates: Literal["error", "null"] = "error"
    partial: Literal["error", "null"] = "error"

    def __post_init__(self) -> None:
        for name in ("zero_dates", "partial"):
            if getattr(self, name) not in ("error", "null"):
                raise ValueError(f"{name}={getattr(self, name)!r} is neither 'error' nor 'null'")


@dataclass(frozen=True)
class _Run:
    """Events of one table version: which of the batch, in `events` or in their stored forms."""

    schema: bytes
    events: Events | None
    numbers: NDArray[np.int64]
    stored: Sequence[tuple[Header, Any]] = ()


def read_table(
    raw: memoryview, ends: NDArray[np.int64], table: str | TableSchema | None, options: Options, first: int = 0
) -> pa.Table:
    """Return the rows of the events in `raw`, which end at `ends`, as this module's table; `first` is the sequence of the first.

    `Batch.to_arrow` says the rest.
    """
    events = read_events(raw, ends)
    runs = list(_stored_runs(_payloads(raw, ends)) if events is None else _runs(events))
    wanted = table if isinstance(table, str) else None if table is None else f"{table.database}.{table.table}"
    schemas = {schema: _table_of(schema) for schema in {run.schema: None for run in runs}}
    names = {f"{schema.database}.{schema.table}" for schema in schemas.values()}
    if wanted is None and len(names) > 1:
        raise ValueError(f"the batch holds rows of {', '.join(sorted(names))}: name one with table=")
    plan = table if isinstance(table, TableSchema) else TableSchema("", "", ())
    chosen = [run for run in runs if wanted is None or f"{schemas[run.schema].database}.{schemas[run.schema].table}" == wanted]
    if chosen and not isinstance(table, TableSchema):
        plan = schemas[chosen[-1].schema]
    layout = image_type(plan)
    pieces = [_piece(run, schemas[run.schema], _mapping(schemas[run.schema], plan), layout, options, first) for run in chosen]
    return pa.Table.from_batches(pieces, _schema(layout))


def _table_of(schema: bytes) -> TableSchema:
    """The table in `schema`. Raises `StoreCorrupt` where its columns have no Arrow types: a damaged event."""
    table = decode_schema(schema)
    try:
        if not all(type(name) is str for name in (table.database, table.table, *(column.type for column in table.columns))):
            raise TypeError("a name is no text")
        hash(table)
        image_type(table)
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise StoreCorrupt(f"table schema of {len(schema)} bytes cannot be used: {error}") from error
    return table


def _schema(layout: pa.StructType) -> pa.Schema:
    return pa.schema(
        [
            ("op", pa.string()),
            ("database", pa.string()),
            ("table", pa.string()),
            ("before", layout),
            ("after", layout),
            ("ts_ms", pa.int64()),
            ("server_id", pa.int64()),
            ("file", pa.string()),
            ("offset", pa.int64()),
            ("seq", pa.int64()),
            ("row", pa.int32()),
            ("transaction", pa.string()),
        ]
    )


def _payloads(raw: memoryview, ends: NDArray[np.int64]) -> Iterator[memoryview]:
    for start, end in pairwise([0, *ends.tolist()]):
        if not start <= end <= len(raw):
            raise StoreCorrupt(f"an event claims bytes {start} to {end} of {len(raw)}")
        yield raw[start:end]


# ---------------------------------------------------------------- runs


def _runs(events: Events) -> Iterator[_Run]:
    """Cut where the table version changes, and after some rows: the text of a column's chunk has 2 GiB at most."""
    chosen = np.flatnonzero((events.records["schema"] >= 0) & (events.records["rows"] > 0))
    schema, rows = events.records["schema"][chosen], np.cumsum(events.records["rows"][chosen])
    for first, last in pairwise([0, *(np.flatnonzero(np.diff(schema)) + 1).tolist(), len(chosen)]):
        while first < last:
            before = int(rows[first - 1]) if first else 0
            after = min(last, int(np.searchsorted(rows, before + ROWS_PER_CHUNK)) + 1)
            yield _Run(events.schemas[schema[first]], events, chosen[first:after])
            first = after


def _stored_runs(payloads: Iterator[memoryview]) -> Iterator[_Run]:
    """The same by the reference."""
    stored = ((number, event) for number, event in enumerate(map(decode_stored, payloads)) if event[1] is not None)
    for schema, group in groupby(stored, key=lambda event: event[1][1]):
        if type(schema) is not bytes:
            raise StoreCorrupt(f"a table schema is {type(schema).__name__}, not bytes")
        run: list[tuple[Header, Any]] = []
        numbers: list[int] = []
        rows = 0
        for number, (header, _, body) in group:
            if body is not None:
                run.append((header, body))
                numbers.append(number)
                rows += _count(body)
            if rows >= ROWS_PER_CHUNK:
                yield _Run(schema, None, np.array(numbers, np.int64), run)
                run, numbers, rows = [], [], 0
        if rows:
            yield _Run(schema, None, np.array(numbers, np.int64), run)


def _count(body: Any) -> int:
    if type(body) is not list or len(body) != 4:
        raise StoreCorrupt("a rows event has no images")
    there = body[1] if body[3] is None else body[3]
    if there is not None and type(there) is not list:
        raise StoreCorrupt("a rows event has no images")
    return len(there or ())


# ---------------------------------------------------------------- one run


def _mapping(found: TableSchema, plan: TableSchema) -> list[int | None]:
    """For each column of `plan` the index of the column of `found` with its name. Raises ValueError where its type does not fit."""
    if found.columns == plan.columns:
        return list(range(len(plan.columns)))
    there = {column.name: i for i, column in enumerate(found.columns)}
    for column in plan.columns:
        i = there.get(column.name)
        if i is not None and not widens(was := arrow_type(found.columns[i]), becomes := arrow_type(column)):
            raise ValueError(
                f"column {column.name} of {found.database}.{found.table} was {was} in some events of the batch and is {becomes}: "
                "name a TableSchema that holds both, or take smaller batches"
            )
    return [there.get(column.name) for column in plan.columns]


def _piece(
    run: _Run, table: TableSchema, mapping: Sequence[int | None], layout: pa.StructType, options: Options, first: int
) -> pa.RecordBatch:
    seqs = run.numbers + first
    types: list[Any] = [None] * len(table.columns)
    for i, field in zip(mapping, layout, strict=True):
        if i is not None:
            types[i] = field.type
    if run.events is not None:
        counts = run.events.records["rows"][run.numbers]
        images = run.events.images(run.numbers, table, types, options.zero_dates)
        transactions = None if images is None else run.events.transactions(run.numbers, counts)
        if images is not None and transactions is not None:
            return _batch(run.events.records[run.numbers], seqs, run.events.files, transactions, images, table, mapping, layout)
    stored = run.stored
    if run.events is not None:
        stored = [(header, body) for header, _, body in map(decode_stored, map(run.events.payload, run.numbers.tolist()))]
    try:
        return _stored_batch(stored, seqs, table, types, mapping, layout, options)
    except (ZeroDate, PartialImage, StoreCorrupt):
        raise
    except (TypeError, ValueError, LookupError, OverflowError, AttributeError, pa.ArrowException) as error:
        raise StoreCorrupt(f"rows of {table.database}.{table.table} cannot be read: {error}") from error


def _stored_batch(
    stored: Sequence[tuple[Header, Any]],
    seqs: NDArray[np.int64],
    table: TableSchema,
    types: Sequence[Any],
    mapping: Sequence[int | None],
    layout: pa.StructType,
    options: Options,
) -> pa.RecordBatch:
    for header, body in stored:
        if options.partial == "error" and (body[0] is not None or body[2] is not None):
            raise PartialImage(
                f"a row image of {table.database}.{table.table} at {header.file}:{header.offset} lacks columns: "
                "set binlog_row_image=FULL on the server, or read them as NULL with partial='null'"
            )
    records = np.zeros(len(stored), RECORD)
    for name, field in _HEADER.items():
        records[name] = [getattr(header, field) for header, _ in stored]
    records["rows"] = [_count(body) for _, body in stored]
    files = list(dict.fromkeys(header.file for header, _ in stored))
    numbers = {file: i for i, file in enumerate(files)}
    records["file"] = [numbers[header.file] for header, _ in stored]
    transactions = pa.array([header.transaction for header, _ in stored], pa.string())
    counts = records["rows"]
    images = stored_images(table, [body for _, body in stored], counts.tolist(), types, options.zero_dates)
    spread = transactions.take(pa.array(np.repeat(np.arange(len(stored)), counts)))
    return _batch(records, seqs, files, spread, images, table, mapping, layout)


def _batch(
    records: NDArray[np.void],
    seqs: NDArray[np.int64],
    files: Sequence[str],
    transactions: pa.Array,
    images: Images,
    table: TableSchema,
    mapping: Sequence[int | None],
    layout: pa.StructType,
) -> pa.RecordBatch:
    counts = records["rows"]
    ends = np.cumsum(counts)
    count = int(ends[-1])

    def spread(name: str) -> NDArray[np.int64]:
        return np.repeat(records[name], counts)

    before, after = (pa.nulls(count, layout) if image is None else image.struct(mapping, layout) for image in images)
    row = spread("row") + np.arange(count) - np.repeat(ends - counts, counts)
    return pa.RecordBatch.from_arrays(
        [
            _OPS.take(pa.array(_OP_CODES[spread("type") & 255])),
            pa.repeat(table.database, count),
            pa.repeat(table.table, count),
            before,
            after,
            pa.array(spread("time")),
            pa.array(spread("server")),
            pa.array(files, pa.string()).take(pa.array(spread("file"))),
            pa.array(spread("offset")),
            pa.array(np.repeat(seqs, counts)),
            pa.array(row, pa.int32()),
            transactions,
        ],
        schema=_schema(layout),
    )
