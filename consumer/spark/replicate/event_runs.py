"""A micro-batch that Spark's executors reduce: the driver gets what it decides by, and never a row.

Each task has a stretch of the micro-batch's events, in their order, and makes runs of them:

    run     events of one table and one version of its columns, between which nothing came that a decision is about (a DDL, the first or last event of a
            snapshot): reduced, by the same code as in the driver (`TableChanges`), to the last change of each key, or to the versions of a history
    other   an event without rows, as it is

The driver collects the place of each run and an event of it without rows, and decides by them as by all events (`RunChanges`): which steps there are, of
which runs. The rows stay in blocks in Spark's cache, on the executors. What a step is of they put together (`RunSource.rows`): of the runs of a table that
have a key the last one has its last change, for each run is a stretch of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.storagelevel import StorageLevel

from shmstore.consumer.copies.change_reduction import (
    CURRENT,
    HISTORY_FIELDS,
    OF_ONE_TABLE,
    OURS,
    SEQ,
    VALID_TO,
    CopyDiffers,
    Merge,
    Reread,
    RowsElsewhere,
    TableChanges,
    Versions,
    pieces,
)
from shmstore.consumer.copies.changed_rows import Stored, target_fields
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.targets.keyed_rows import BECOMES, DELETE, merge_rows
from shmstore.consumer.spark.decode.schema import arrow_schema
from shmstore.consumer.spark.decode.worker_memory import settle
from shmstore.encoding.arrow_rows import index_events
from shmstore.encoding.codec import Header, decode_schema, encode_stored
from shmstore.event import TableSchema
from shmstore.sql.names import free

_RUNS: Final = "source STRING, first LONG, rows LONG, blocks LONG, event BINARY, error STRING, data BINARY"
_FORM: Final = pa.schema(
    [
        ("source", pa.string()),
        ("first", pa.int64()),  # the event that a run begins with
        ("rows", pa.int64()),  # that changed in it
        ("blocks", pa.int64()),
        ("event", pa.binary()),  # of a run one without rows
        ("error", pa.string()),  # why the event behind the run's rows cannot be taken
        ("data", pa.binary()),  # a block of a run's rows, and then no event
    ]
)
_NO_ROWS: Final = (None, None, None, None)
RUN_BYTES: Final = 16 << 20  # of events, after which a task ends its runs: it holds no more of them than that
BLOCK_ROWS: Final = 1 << 16  # of a run, in one block

Reduce = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


# ---------------------------------------------------------------- in the executors


def reducer(selection: CopiedTables, keys: Mapping[str, tuple[str, ...]], history: bool) -> Reduce:
    """Return what makes runs of a task's events (sequence, payload, source), for `mapInArrow`."""

    def reduce(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        yield from _Reduction(selection, keys, history).of(batches)

    return reduce


class _Reduction:
    """What one task does."""

    def __init__(self, selection: CopiedTables, keys: Mapping[str, tuple[str, ...]], history: bool) -> None:
        self._selection, self._keys, self._history = selection, keys, history

    def of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the runs of a task's events, and its other events."""
        numbers: dict[str | None, list[int]] = {}
        payloads: dict[str | None, list[memoryview]] = {}
        size = 0
        for batch in batches:
            sources = batch.column(2).to_pylist()
            for number, payload, source in zip(batch.column(0).to_pylist(), batch.column(1), sources, strict=True):
                raw = memoryview(payload.as_buffer())
                numbers.setdefault(source, []).append(number)
                payloads.setdefault(source, []).append(raw)
                size += len(raw)
                if size > RUN_BYTES:
                    for name, found in payloads.items():
                        yield from self._reduced(name, numbers[name], found)
                    numbers, payloads, size = {}, {}, 0
        for name, found in payloads.items():
            yield from self._reduced(name, numbers[name], found)

    def _reduced(self, source: str | None, numbers: list[int], payloads: list[memoryview]) -> Iterator[pa.RecordBatch]:
        """The events of one source, which have these numbers."""
        events = index_events(b"".join(payloads), np.cumsum([len(raw) for raw in payloads], dtype=np.int64))
        for piece in pieces(events, self._selection):
            number = piece if isinstance(piece, int) else int(piece[1][0])
            schema = int(events.records["schema"][number])
            if schema < 0:
                yield _row(source, numbers[number], event=bytes(payloads[number]))
                continue
            blob, header = events.schemas[schema], events.header(number)
            table = decode_schema(blob)
            if not self._selection.wants(table.database, table.table) or "snapshot_partial" in header.props:
                continue
            changes, error = self._changes(source, table, events), None
            try:
                if isinstance(piece, int):
                    changes.add_one(table, header, number)
                else:
                    changes.add(*piece)
            except OF_ONE_TABLE as why:
                error = str(why)
            steps = changes.finish()
            error = next((step.reason for step in steps if isinstance(step, Reread)), error)
            found = [merge_rows(step)[0] for step in steps if isinstance(step, Merge | Versions)]
            blocks = [_packed(rows.slice(at, BLOCK_ROWS)) for rows in found for at in range(0, len(rows), BLOCK_ROWS)]
            without_rows = encode_stored(header, bytes(blob), _NO_ROWS)
            yield _row(source, numbers[number], rows=changes.rows, blocks=len(blocks), event=without_rows, error=error)
            for block in blocks:
                yield _row(source, numbers[number], data=block)

    def _changes(self, source: str | None, table: TableSchema, events: Stored) -> TableChanges:
        name, head = (table.database, table.table), "" if source is None else f"{source}/"
        return TableChanges(name, self._keys.get(".".join(name)), self._selection.zero_dates, self._history, events, head)


def _row(source: str | None, first: int, **more: Any) -> pa.RecordBatch:
    given = {"source": source, "first": first, "rows": 0, "blocks": 0, **more}
    return pa.RecordBatch.from_arrays([pa.array([given.get(column.name)], column.type) for column in _FORM], schema=_FORM)


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(rows.combine_chunks())
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _unpacking(form: pa.Schema) -> Reduce:
    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            for first, data in zip(batch.column(0), batch.column(1), strict=True):
                for rows in pa.ipc.open_stream(data.as_buffer()):
                    arrays = [array.cast(field.type) for array, field in zip(rows.columns, form, strict=False)]
                    yield pa.RecordBatch.from_arrays([*arrays, pa.repeat(first, len(rows))], schema=form)

    return unpack


# ---------------------------------------------------------------- in the driver


class RunSource:
    """The runs of one micro-batch: `frame` has its events (sequence, payload, source), in their order in each partition. Close it."""

    def __init__(self, frame: DataFrame, reduce: Reduce) -> None:
        self._frame = frame.mapInArrow(reduce, _RUNS).persist(StorageLevel.MEMORY_AND_DISK)
        self.found: dict[str | None, list[Any]] = {}  # of each source the runs and other events, in their order

    def events(self) -> dict[str | None, list[bytes]]:
        """Return, for each source, its events in their order, of each run one without rows."""
        for row in sorted(self._frame.where("event IS NOT NULL").drop("data").collect(), key=lambda row: row.first):
            self.found.setdefault(row.source, []).append(row)
        return {source: [row.event for row in rows] for source, rows in self.found.items()}

    def rows(self, schema: TableSchema, keys: Sequence[str], runs: Sequence[int], history: bool) -> tuple[DataFrame, str]:
        """Return the rows of a step, put together of its `runs`, in the form of `merge_rows`."""
        fields = target_fields(schema) + HISTORY_FIELDS * history
        names = [column.name for column in fields]
        becomes = free(BECOMES, names)
        order = free(OURS + "order", [*names, becomes])
        form = from_arrow_schema(
            pa.schema([*fields, pa.field(becomes, pa.int32()), pa.field(order, pa.int64())]), prefer_timestamp_ntz=True
        )
        blocks = self._frame.where("data IS NOT NULL").where(F.col("first").isin(list(runs))).select("first", "data")
        rows = blocks.mapInArrow(_unpacking(arrow_schema(form)), form)
        if len(runs) > 1:
            rows = (_whole_history if history else _last_of_each_key)(rows, [_column(key) for key in keys], becomes, order)
        return rows.drop(order), becomes

    def close(self) -> None:
        """Let the executors forget the rows."""
        self._frame.unpersist()


def _last_of_each_key(rows: DataFrame, keys: list[Any], becomes: str, order: str) -> DataFrame:
    number = free(OURS + "number", rows.columns)
    newest = F.row_number().over(Window.partitionBy(*keys).orderBy(F.col(order).desc()))
    return rows.withColumn(number, newest).where(F.col(number) == 1).drop(number)


def _whole_history(rows: DataFrame, keys: list[Any], becomes: str, order: str) -> DataFrame:
    """A version that is the last one of its run ends where the next run's first change of its key is; of the ends the first one counts."""
    number, end = free(OURS + "number", rows.columns), free(OURS + "end", rows.columns)
    ends = F.col(becomes) == DELETE
    of_key = Window.partitionBy(*keys).orderBy(F.col(SEQ), ends.desc())
    following = F.first(F.when(ends, F.col(VALID_TO)), ignorenulls=True).over(of_key.rowsBetween(1, Window.unboundedFollowing))
    first = F.row_number().over(Window.partitionBy(*keys, ends).orderBy(SEQ))
    rows = rows.withColumn(number, first).withColumn(end, following).where(~ends | (F.col(number) == 1))
    until = F.when(ends, F.col(VALID_TO)).otherwise(F.coalesce(F.col(VALID_TO), F.col(end)))
    rows = rows.withColumn(VALID_TO, until).withColumn(CURRENT, F.when(ends, F.lit(None)).otherwise(F.col(VALID_TO).isNull()))
    return rows.drop(number, end)


def _column(name: str) -> Any:
    return F.col("`" + name.replace("`", "``") + "`")


class RunChanges(TableChanges):
    """Collects one table's runs of `source`, as `TableChanges` does its events: `found` is the run of each event."""

    def __init__(self, source: Any, found: Sequence[Any], *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._source, self._found = source, found
        self._waiting: list[int] = []  # of the step that comes
        self._run: Any = None

    def add_one(self, schema: TableSchema, header: Header, number: int) -> None:
        """Take the run of event `number`. Raises `CopyDiffers`."""
        self._run = self._found[number]
        super().add_one(schema, header, number)

    def add(self, schema: TableSchema, run: NDArray[np.int64]) -> None:
        """Take no rows, but what holds them."""
        super().add(schema, run)
        self.rows += self._run.rows
        if self._run.blocks:
            self._waiting.append(self._run.first)
        if self._run.error is not None:
            raise CopyDiffers(self._run.error)

    def _forget(self) -> bool:
        waiting, self._waiting = self._waiting, []
        return bool(waiting)

    def _flush(self) -> None:
        if self._schema is not None and self._waiting:
            step = RowsElsewhere(self._names(), self._schema, self.history, self._source, tuple(self._waiting))
            self.steps.append(step)
            self._waiting = []
