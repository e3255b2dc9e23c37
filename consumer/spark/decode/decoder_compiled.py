"""Encoded events -> typed RecordBatches by compiled code, without a Python object for an event, a row or a cell.

What compiled code leaves to the reference (`shmstore.consumer.spark.decode.decoder_reference`) is read there: all of it where there is none, else the
events of a run in which something is unusual. Both give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from shmstore.consumer.spark.decode.decoder_reference import OPS, Decoder
from shmstore.consumer.spark.decode.schema import SOURCE_TYPE, arrow_schema
from shmstore.encoding.arrow import Events, read_events
from shmstore.event import EntryType, Position, TableSchema

ROWS_PER_BATCH = 20_000
_OPS = bytes(ord(OPS.get(type_, "c")) for type_ in range(256))
_SOURCE = list(arrow_schema(SOURCE_TYPE))


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


def wanted(decoder: Decoder, raw: memoryview | bytes, ends: np.ndarray[Any, Any], asked: np.ndarray[Any, Any]) -> Any:
    """Which of the events that are `asked` for (booleans) pass the options' filters: `Decoder.wanted` of each."""
    events = read_events(raw, ends)
    if events is None:
        starts = [0, *ends.tolist()]
        return np.array(
            [bool(ask) and decoder.wanted(raw[a:b]) for ask, a, b in zip(asked, starts, starts[1:], strict=False)], bool
        )
    tables = np.array([*(decoder.wanted_table(schema) is not None for schema in events.schemas), False])
    schema = events.records["schema"]
    passed = asked & tables[schema]
    for event in np.flatnonzero(asked & (schema < 0)).tolist():
        passed[event] = decoder.wanted(events.payload(event))
    return passed


def _runs(events: Events, tables: Sequence[TableSchema | None], *, markers: bool) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the numbers of the events that belong in one RecordBatch: those of one table version, or those without rows."""
    records = events.records
    schema, entry, counts = (np.ascontiguousarray(records[name]) for name in ("schema", "entry", "rows"))
    other = (entry == EntryType.ROWS) | (entry == EntryType.DDL)
    if markers:
        other |= (entry == EntryType.BEGIN) | (entry == EntryType.END)
    other &= schema < 0
    if all(table is not None for table in tables):
        other |= counts > 0
    else:
        wanted = np.array([*(table is not None for table in tables), False])  # the last is schema -1
        other |= wanted[schema] & (counts > 0)
    chosen = np.flatnonzero(other)
    schema = schema[chosen]
    rows = np.cumsum(counts[chosen])
    cuts = [0, *(np.flatnonzero(schema[1:] != schema[:-1]) + 1).tolist(), len(chosen)]
    for first, last in pairwise(cuts):
        while first < last:
            before = int(rows[first - 1]) if first else 0
            after = min(last, int(np.searchsorted(rows, before + ROWS_PER_BATCH)) + 1)
            yield chosen[first:after]
            first = after


def _batch(decoder: Decoder, events: Events, run: np.ndarray[Any, Any], table: TableSchema) -> pa.RecordBatch | None:
    """The rows of `run`; None where the reference must read them."""
    first = events.records[run[0]]
    mapping = decoder.mapping(table, f"{events.files[first['file']]}:{first['offset']}")
    images = events.images(run, table, decoder.types(table, mapping), decoder.options.zero_dates)
    if images is None:
        return None
    places = events.places(run, [Position(file, 0).file_number for file in events.files], _OPS)
    transaction = events.transactions(run, events.records["rows"][run])
    if places is None or transaction is None:
        return None
    count = len(places.row)
    before, after, key = decoder.structs(images, mapping, count)
    return pa.RecordBatch.from_arrays(
        [
            places.seq,
            places.op,
            pa.repeat(table.database, count),
            pa.repeat(table.table, count),
            before,
            after,
            places.time,
            pa.StructArray.from_arrays(
                [places.server, places.file, places.offset, places.row, pa.nulls(count, pa.string())], fields=_SOURCE
            ),
            transaction,
            key,
            pa.nulls(count, pa.string()),
        ],
        schema=decoder.schema,
    )
