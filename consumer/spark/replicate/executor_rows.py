"""The rows that were there before, read by Spark's executors straight from the server: they do not pass through the store, nor the driver.

Plan. It is done before the query starts, table by table, of those that have no copy yet:

    subscribe   the query's subscription, at the end of the last transaction in the store: from there on nothing is lost, however long the
                rows take. It is done once; a second call finds it where it was
    read        each executor writes its parts of the table into files, next to or in the copy's folder. All of them are read behind the
                place where the store stood then (`shmstore.producer.snapshot.server_tables`), so the query's first event is not newer
    take        one commit makes a copy of the files. Before it there is none, and a driver that was killed reads the table again
    stream      the query brings all changes since the subscription's place. Where a row is newer than they are, it goes back to what they say,
                and is what its table has when the query has passed the reads

A DDL while a table is read makes the read fail, and the table is opened and read again as it is then.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from shmstore import EventStore
from shmstore.consumer.copies.change_reduction import HISTORY
from shmstore.consumer.copies.changed_rows import target_fields
from shmstore.consumer.copies.copy import Copy
from shmstore.consumer.copies.target import FileTable, RowFile
from shmstore.consumer.copies.targets.parquet import TableFlow, write
from shmstore.consumer.formats.values import time_text
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source.server_table import PartedTable, numbers, partitions, rows_of
from shmstore.consumer.spark.source.subscription_owner import attach, handover
from shmstore.event import TableSchema
from shmstore.memory.deadline import begun

ATTEMPTS = 5  # of a table that DDLs change meanwhile
_FILES = "name STRING, rows LONG, size LONG, stats STRING"
_log = logging.getLogger(__name__)


class SourceTables(Protocol):
    """The tables of the store's server: `shmstore.producer.ServerTables`."""

    def names(self) -> Sequence[tuple[str, str]]:
        """Return (database, table) of each."""

    def open(self, name: str) -> PartedTable:
        """Return the table ``DATABASE.TABLE`` in parts."""


def subscribe(options: SourceOptions) -> None:
    """Make the query's subscription, unless it is there, so that the store keeps all that comes from now on."""

    def begin(store: EventStore) -> None:
        point = store.ack_point_until(store.newest)
        first = store.oldest if point is None else point + 1
        place = first if options.start.kind in ("committed", "latest") else options.start.place
        handover(lambda: store.subscribe(options.subscription, start=place)).close()
        store.close()

    begun(lambda: attach(options), begin)


def check(options: SourceOptions, format: str, target: str, *, history: bool) -> None:
    """Raise ValueError where copies cannot begin with rows that executors read."""
    if format not in ("delta", "parquet") or "://" in target:
        raise ValueError(
            "executors write the rows that they read into files: snapshot=ServerTables(...) needs format='delta' or 'parquet' and a target in a "
            "folder; others begin with snapshot=True"
        )
    if history:
        raise ValueError("a history begins with rows of the stream: give history=True and snapshot=True")
    if options.start.kind == "offset":
        raise ValueError("where the query begins is found by snapshot=ServerTables(...): leave out startingOffsets")


def load(
    spark: SparkSession, tables: SourceTables, name: str, copy: Copy, keys: Sequence[str], zero_dates: str
) -> TableSchema | None:
    """Make `copy` of the table `name`'s rows; return its columns. None where its rows have no key, so that no copy could follow them."""
    target = copy.target
    assert isinstance(target, FileTable)
    folder = Path(target.folder)
    table = tables.open(name)
    for attempt in range(ATTEMPTS):
        names = list(keys) or [table.schema.columns[i].name for i in table.schema.primary_key]
        if not names:
            _log.warning("initial rows: %s has no primary key, and is left to the stream", name)
            return None
        began = time.monotonic()
        _log.info("initial rows: %s: executors read %d parts", name, table.parts)
        folder.mkdir(parents=True, exist_ok=True)
        _clean(folder)  # of a driver that was killed
        try:
            files = _written(spark, table, folder, names[0], zero_dates)
        except Exception:
            again = tables.open(name)
            if attempt == ATTEMPTS - 1 or again.schema == table.schema:
                raise
            _log.info("initial rows: %s: a DDL changed it: it is read again", name)
            table = again
            continue
        _clean(folder, {file.name for file in files})  # of tasks that failed, and were done again
        target.take(table.schema, files, {HISTORY: 0})
        rows = sum(file.rows for file in files)
        _log.info("initial rows: %s: %s rows in %.1f s", name, f"{rows:,}", time.monotonic() - began)
        return table.schema
    raise AssertionError


def _clean(folder: Path, wanted: set[str] | None = None) -> None:
    for left in folder.glob("part-*.parquet"):
        if left.name not in (wanted or ()):
            left.unlink(missing_ok=True)


def _written(spark: SparkSession, table: PartedTable, folder: Path, key: str, zero_dates: str) -> list[RowFile]:
    """Have the executors write the table's rows; return the files. Raises OSError where this host does not see them."""

    def work(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in numbers(parts):
            file = _write_part(table, part, folder, key, zero_dates)
            yield pa.RecordBatch.from_pydict({name: [value] for name, value in file._asdict().items()})

    files = [RowFile(*row) for row in partitions(spark, table.parts, work, _FILES).collect()]
    for file in files:
        if not (folder / file.name).exists():
            raise FileNotFoundError(
                f"an executor wrote {folder / file.name}, which is not there on the driver's host: give a target in a folder that both see"
            )
    return sorted(files)


def _write_part(table: PartedTable, part: int, folder: Path, key: str, zero_dates: str) -> RowFile:
    """Write a part's rows into a file of its own, in an executor."""
    schema = table.schema
    fields = pa.schema(target_fields(schema))
    name = f"part-{part:05d}-{uuid.uuid4()}.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / name, TableFlow(fields, _as_copied(schema, fields, rows_of(table, part, zero_dates))), {})
    found = pq.read_metadata(folder / name)
    stats = json.dumps({"numRecords": found.num_rows, **_range(found, key)})
    return RowFile(name, found.num_rows, (folder / name).stat().st_size, stats)


def _as_copied(schema: TableSchema, fields: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows with the columns of a copy: TIME is text there."""
    for batch in batches:
        arrays = []
        for column, array in zip(schema.columns, batch.columns, strict=True):
            if column.type == "time":
                text = time_text(column.scale)
                values = array.cast(pa.int64()).to_pylist()
                array = pa.array([None if value is None else text(value) for value in values], pa.string())
            arrays.append(array)
        yield pa.Table.from_arrays(arrays, schema=fields)


def _range(found: pq.FileMetaData, key: str) -> Mapping[str, Mapping[str, int]]:
    """The least and the greatest value of a column of integers, by which a merge knows which files it need not read."""
    at = found.schema.names.index(key) if key in found.schema.names else -1
    ranges = [found.row_group(i).column(at).statistics for i in range(found.num_row_groups)] if at >= 0 else []
    if not ranges or not all(each is not None and each.has_min_max and type(each.min) is int for each in ranges):
        return {}
    return {"minValues": {key: min(each.min for each in ranges)}, "maxValues": {key: max(each.max for each in ranges)}}
