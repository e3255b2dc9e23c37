"""Encoded events -> typed RecordBatches by compiled code, without a Python object for an event, a row or a cell.

What compiled code leaves to the reference (`consumer.spark.batches`) is read there: all of it where there is none, else the
events of a run in which something is unusual. Both give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from consumer.spark.batches import OPS, Decoder
from consumer.spark.offset import seqs
from consumer.spark.schema import SOURCE_TYPE, arrow_schema
from shmstore.arrow import Events, read_events
from shmstore.event import EntryType, Position, TableSchema

ROWS_PER_BATCH = 20_000
_OPS = pa.array(["c", "u", "d", "r"])
_SPREAD = ("type", "file", "offset", "time", "server", "order", "row")
_OP_CODES = np.zeros(256, np.int64)
for _type, _op in OPS.items():
    _OP_CODES[_type] = _OPS.index(_op).as_py()


def batches(decoder: Decoder, raw: memoryview | bytes, ends: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the events in `raw`, which end at `ends`, in order. Raises as `Decoder.batches`."""
    events = None if decoder.table is None else read_events(raw, ends)
    if events is None:
        whole = memoryview(raw)
        yield from decoder.batches(whole[start:end] for start, end in pairwise([0, *ends.tolist()]))
        return
    tables = [decoder.wanted_table(schema) for schema in events.schemas]
    for run in _runs(events, tables, markers=decoder.options.markers):
        table = tables[number] if (number := int(events.records["schema"][run[0]])) >= 0 else None
        batch = None if table is None else _batch(decoder, events, run, table)
        if batch is None:
            yield from decoder.batches(map(events.payload, run.tolist()))
        else:
            yield batch


def _runs(events: Events, tables: Sequence[TableSchema | None], *, markers: bool) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the numbers of the events that belong in one RecordBatch: those of one table version, or those without rows."""
    records = events.records
    schema, entry = records["schema"], records["entry"]
    other = (entry == EntryType.ROWS) | (entry == EntryType.DDL)
    if markers:
        other |= (entry == EntryType.BEGIN) | (entry == EntryType.END)
    wanted = np.array([*(table is not None for table in tables), False])  # the last is schema -1
    chosen = np.flatnonzero(np.where(schema < 0, other, wanted[schema] & (records["rows"] > 0)))
    schema = schema[chosen]
    rows = np.cumsum(records["rows"][chosen])
    cuts = [0, *(np.flatnonzero(np.diff(schema)) + 1).tolist(), len(chosen)]
    for first, last in pairwise(cuts):
        while first < last:
            before = int(rows[first - 1]) if first else 0
            after = min(last, int(np.searchsorted(rows, before + ROWS_PER_BATCH)) + 1)
            yield chosen[first:after]
            first = after


def _batch(decoder: Decoder, events: Events, run: np.ndarray[Any, Any], table: TableSchema) -> pa.RecordBatch | None:
    """The rows of `run`; None where the reference must read them."""
    records = events.records[run]
    if records["sql_size"].any():
        return None
    counts = records["rows"]
    mapping = decoder.mapping(table, f"{events.files[records['file'][0]]}:{records['offset'][0]}")
    images = events.images(run, table, decoder.types(table, mapping), decoder.options.zero_dates)
    transaction = None if images is None else events.transactions(run, counts)
    if images is None or transaction is None:
        return None
    count = int(counts.sum())
    single = count == len(run)
    spread = {name: records[name] if single else np.repeat(records[name], counts) for name in _SPREAD}
    before, after, key = decoder.structs(images, mapping, count)
    ends = np.cumsum(counts)
    rows = spread["row"] + np.arange(count) - np.repeat(ends - counts, counts)
    numbers = np.array([Position(file, 0).file_number for file in events.files])
    source = [
        pa.array(spread["server"]),
        pa.array(events.files, pa.string()).take(pa.array(spread["file"])),
        pa.array(spread["offset"]),
        pa.array(rows, pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(
        [
            seqs(numbers[spread["file"]], spread["offset"], spread["order"], rows),
            _OPS.take(pa.array(_OP_CODES[spread["type"]])),
            pa.repeat(table.database, count),
            pa.repeat(table.table, count),
            before,
            after,
            pa.array(spread["time"]),
            pa.StructArray.from_arrays(source, fields=list(arrow_schema(SOURCE_TYPE))),
            transaction,
            key,
            pa.nulls(count, pa.string()),
        ],
        schema=decoder.schema,
    )
