"""The rows of encoded events as columns: what its event says of each row, and its images.

The events of a batch are indexed and cut into runs that one RecordBatch holds; each run is read in one of two ways, with the same
result: by compiled code (`Events`), or by the reference, which decodes each event to its stored form. What compiled code cannot read,
a batch or a run, it leaves to the reference, which has the say about errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shmstore.encoding.arrow import (
    RECORD,
    Events,
    Images,
    PartialImage,
    ReadingPlan,
    ZeroDate,
    plan_of,
    read_events,
    row_layout,
    stored_images,
    wanted,
)
from shmstore.encoding.codec import Header, decode_stored
from shmstore.encoding.row_order import seqs
from shmstore.errors import StoreCorrupt
from shmstore.event import EventType, Position, TableSchema

_OPS = {int(EventType.UPDATE): "u", int(EventType.DELETE): "d", int(EventType.READ): "r"}
#: A row's op by the type of its event: c (create), u (update), d (delete), r (read, a row of a snapshot).
OPS = "".join(_OPS.get(type_, "c") for type_ in range(256))
_OPS_BYTES = OPS.encode()


class StoredEvents:
    """Events as `Events` has them, by the reference; of the records what says which rows they have, and where these are, is filled."""

    __slots__ = ("_events", "files", "partial", "records", "schemas")

    def __init__(self, raw: memoryview | bytes, ends: NDArray[np.int64]) -> None:
        self._events = [decode_stored(payload) for payload in _payloads(memoryview(raw), ends)]
        numbers: dict[bytes, int] = {}
        self.records = np.zeros(len(self._events), RECORD)
        headers = [header for header, _, _ in self._events]
        files: dict[str, int] = {}
        try:
            for name, values in (
                ("entry", [header.entry & 255 for header in headers]),
                ("type", [header.type & 255 for header in headers]),
                ("file", [files.setdefault(header.file, len(files)) for header in headers]),
                ("offset", [header.offset for header in headers]),
                ("time", [header.time_ms for header in headers]),
                ("order", [header.order for header in headers]),
                ("row", [header.row for header in headers]),
            ):
                self.records[name] = values
        except OverflowError as error:
            raise StoreCorrupt(f"an event's header has a number of more than 64 bits: {error}") from error
        self.files = list(files)
        self.records["schema"] = [
            -1 if schema is None or body is None else numbers.setdefault(schema, len(numbers)) for _, schema, body in self._events
        ]
        self.records["rows"] = [0 if schema is None or body is None else _count(body) for _, schema, body in self._events]
        self.schemas = list(numbers)
        bodies = [None if schema is None else body for _, schema, body in self._events]
        self.records["images"] = [0 if body is None else (body[1] is not None) + 2 * (body[3] is not None) for body in bodies]
        #: Which have an image that lacks columns.
        self.partial: NDArray[np.bool_] = np.array(
            [body is not None and (body[0] is not None or body[2] is not None) for body in bodies], np.bool_
        )

    def header(self, event: int) -> Header:
        """The header of one event."""
        return self._events[event][0]

    def stored(self, events: NDArray[np.int64]) -> list[tuple[Header, Any]]:
        """The header and the body of each of `events`."""
        return [(self._events[event][0], self._events[event][2]) for event in events.tolist()]


def partial_images(events: Events | StoredEvents) -> NDArray[np.bool_]:
    """Which of the events have an image that lacks columns."""
    return np.zeros(len(events.records), np.bool_) if isinstance(events, Events) else events.partial


def partial_reads(events: Events | StoredEvents) -> NDArray[np.bool_]:
    """Which of the events are rows of a snapshot that was asked for some columns: typed rows cannot say which they have."""
    partial = partial_images(events)
    if partial.any():
        partial = partial & (events.records["type"] == EventType.READ)
    return partial


def read_images(
    events: Events | StoredEvents,
    run: NDArray[np.int64],
    table: TableSchema,
    before: Sequence[Any],
    after: Sequence[Any],
    zero_dates: str,
) -> Images:
    """Return the images of `run`, events of `table` with whole images, as columns of types: `before` and `after` the change (None: not asked for).

    Raises as `stored_images`.
    """
    found = events.images(run, table, after, zero_dates, before) if isinstance(events, Events) else None
    if found is None:
        counts = events.records["rows"][run].tolist()
        found = stored_images(table, [body for _, body in events.stored(run)], counts, after, zero_dates, before)
    return found


def index_events(raw: memoryview | bytes, ends: NDArray[np.int64]) -> Events | StoredEvents:
    """Index the events in `raw`, which end at `ends`. Raises `StoreCorrupt` where one cannot be read."""
    return read_events(raw, ends) or StoredEvents(raw, ends)


def _payloads(raw: memoryview, ends: NDArray[np.int64]) -> Iterator[memoryview]:
    for start, end in pairwise([0, *ends.tolist()]):
        if not start <= end <= len(raw):
            raise StoreCorrupt(f"an event claims bytes {start} to {end} of {len(raw)}")
        yield raw[start:end]


def _count(body: Any) -> int:
    if type(body) is not list or len(body) != 4:
        raise StoreCorrupt("a rows event has no images")
    rows = body[1] if body[3] is None else body[3]
    if rows is not None and type(rows) is not list:
        raise StoreCorrupt("a rows event has no images")
    return len(rows or ())


def runs(
    events: Events | StoredEvents, wanted: NDArray[np.bool_], most: int, *, mixed: bool = False
) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of the events that are `wanted`, in order: cut where the schema changes, unless `mixed`, and after `most` rows,
    or the event that holds the last of these.
    """
    chosen = np.flatnonzero(wanted)
    schema, rows = events.records["schema"][chosen], np.cumsum(events.records["rows"][chosen])
    cuts = [] if mixed else (np.flatnonzero(schema[1:] != schema[:-1]) + 1).tolist()
    for first, last in pairwise([0, *cuts, len(chosen)]):
        while first < last:
            before = int(rows[first - 1]) if first else 0
            after = min(last, int(np.searchsorted(rows, before + most)) + 1)
            yield chosen[first:after]
            first = after


def typed_runs(events: Events | StoredEvents, most: int, *, partial: bool) -> list[NDArray[np.int64]]:
    """Return the numbers of all events with rows, as `runs` gives them; without `partial_reads` unless `partial`."""
    if isinstance(events, Events):
        return events.runs(most)
    wanted = (events.records["schema"] >= 0) & (events.records["rows"] > 0)
    return list(runs(events, wanted if partial else wanted & ~partial_reads(events), most))


def read_rows(
    events: Events | StoredEvents,
    run: NDArray[np.int64],
    table: TableSchema,
    mapping: Sequence[int | None],
    image: pa.StructType,
    *,
    zero_dates: str,
    partial: str = "error",
    sequences: NDArray[np.int64] | None = None,
) -> pa.RecordBatch:
    """Return the rows of `run`, events of `table`, as a batch of `row_layout`. `mapping` has for each field of `image` the column that fills it, None where
    it is NULL. `seq` is what `sequences` has for the event; without them, text that sorts as the rows do.

    Raises `ZeroDate`, unless `zero_dates` is ``null``; `PartialImage`, unless `partial` is; `StoreCorrupt`.
    """
    types, plan, placed = _plan(table, tuple(mapping), image)
    found = None
    if isinstance(events, Events) and plan is not None:
        seqs_of = [_file_number(file) for file in events.files] if sequences is None else sequences
        found = events.rows(run, table, plan, zero_dates, _OPS_BYTES, seqs_of)
    if found is None:
        try:
            found = _reference(events, run, table, types, zero_dates, partial, sequences)
        except (ZeroDate, PartialImage, StoreCorrupt):
            raise
        except (TypeError, ValueError, LookupError, OverflowError, AttributeError, pa.ArrowException) as error:
            raise StoreCorrupt(f"rows of {table.database}.{table.table} cannot be read: {error}") from error
    return found if placed else _placed(found, mapping, image)


@lru_cache(maxsize=1024)
def _plan(
    table: TableSchema, mapping: tuple[int | None, ...], image: pa.StructType
) -> tuple[list[Any], ReadingPlan | None, bool]:
    """The type that each column of the table is read as (None: it is not), how compiled code does it, and whether the image is then as it should be."""
    types: list[Any] = [None] * len(table.columns)
    for i, field in zip(mapping, image, strict=True):
        if i is not None:
            types[i] = field.type
    read = [i for i, type_ in enumerate(types) if type_ is not None]
    return types, plan_of(table, types, types), list(mapping) == read and wanted(table, types) == image


def _placed(rows: pa.RecordBatch, mapping: Sequence[int | None], image: pa.StructType) -> pa.RecordBatch:
    """`rows` with images of the type `image`."""
    columns, count = rows.columns, len(rows)
    child = {k: i for i, k in enumerate(sorted(k for k in mapping if k is not None))}  # it has the columns in the table's order
    for i in (3, 4):
        fields = [
            pa.nulls(count, field.type) if k is None else columns[i].field(child[k])
            for k, field in zip(mapping, image, strict=True)
        ]
        columns[i] = pa.Array.from_buffers(image, count, columns[i].buffers()[:1], columns[i].null_count, children=fields)
    return pa.RecordBatch.from_arrays(columns, schema=row_layout(image, image, rows.schema.field("seq").type))


def _reference(
    events: Events | StoredEvents,
    run: NDArray[np.int64],
    table: TableSchema,
    types: Sequence[Any],
    zero_dates: str,
    partial: str,
    sequences: NDArray[np.int64] | None,
) -> pa.RecordBatch:
    stored = events.stored(run)
    bodies = [body for _, body in stored]
    for header, body in stored:
        if partial == "error" and (body[0] is not None or body[2] is not None):
            raise PartialImage(
                f"a row image of {table.database}.{table.table} at {header.file}:{header.offset} lacks columns, which would show as NULL: "
                "set binlog_row_image=FULL on the server; or read them as NULL with partial='null' (to_arrow), or with payload=json, "
                "which leaves them out (Spark)"
            )
    counts = [_count(body) for body in bodies]
    spread = Spread(counts)
    seq = None if sequences is None else pa.array(spread.numbers(sequences[run]), pa.int64())
    at = stored_positions([header for header, _ in stored], [OPS[header.type & 255] for header, _ in stored], spread, seq)
    before, after = stored_images(table, bodies, counts, types, zero_dates)
    names = (pa.repeat(name, spread.total) for name in (table.database, table.table))
    columns = [at.op, *names, before, after, at.time, at.server, at.file, at.offset, at.seq, at.row, at.transaction]
    return pa.RecordBatch.from_arrays(columns, schema=row_layout(before.type, after.type, at.seq.type))


# ---------------------------------------------------------------- what its event says of a row, by the reference


class RowPositions(NamedTuple):
    """Where rows are in the binlog, a value a row; `seq` as in `read_rows`."""

    seq: pa.Array
    op: pa.Array
    file: pa.Array
    offset: pa.Array
    time: pa.Array
    server: pa.Array
    row: pa.Array
    transaction: pa.Array


class Spread:
    """Repeats what there is once an event to once a row."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = np.array(counts, np.int64)
        self.total = int(self.counts.sum())
        once = bool((self.counts == 1).all())
        self._index = None if once else pa.array(np.repeat(np.arange(len(counts)), self.counts))

    def __call__(self, values: Sequence[Any], type_: pa.DataType) -> pa.Array:
        """Return `values`, one an event, as an array."""
        array = pa.array(values, type_)
        return array if self._index is None else array.take(self._index)

    def numbers(self, values: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """The same as numbers."""
        return np.repeat(np.array(values, np.int64), self.counts)

    def within(self) -> NDArray[np.int64]:
        """The number of each row in its event."""
        return np.arange(self.total) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)


def stored_positions(headers: Sequence[Header], ops: Sequence[str], spread: Spread, seq: pa.Array | None = None) -> RowPositions:
    """Return where the rows of events with these headers and ops are; `seq` in place of the text that sorts as they do."""
    _, _, file, offset, _, time, server, transaction, order, _, _, row, *_ = zip(*headers, strict=True)
    rows = spread.numbers(row) + spread.within()
    if seq is None:
        number = {name: _file_number(name) for name in set(file)}
        seq = seqs(spread.numbers([number[name] for name in file]), spread.numbers(offset), spread.numbers(order), rows)
    return RowPositions(
        seq=seq,
        op=spread(ops, pa.string()),
        file=spread(file, pa.string()),
        offset=spread(offset, pa.int64()),
        time=spread(time, pa.int64()),
        server=spread(server, pa.int64()),
        row=pa.array(rows, pa.int32()),
        transaction=spread(transaction, pa.string()),
    )


def _file_number(file: str) -> int:
    """The number of a binlog file, cut to what a `seq` has of it."""
    return Position(file, 0).file_number & 0xFFFFFFFF
