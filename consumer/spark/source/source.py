"""ShmStoreSource: ``spark.readStream.format("shmstore")`` and ``spark.read.format("shmstore")``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, MutableMapping
from functools import cached_property

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from shmstore import EventStore, PositionNotFound
from shmstore.consumer.remote.events import RemoteEvents
from shmstore.consumer.spark.callbacks import readable
from shmstore.consumer.spark.decode.decoder import Decoder, SchemaChanged
from shmstore.consumer.spark.decode.schema import schema_of
from shmstore.consumer.spark.decode.table_scan import TableScan
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.query_errors import shown_last
from shmstore.consumer.spark.source.batch_planner import events_between
from shmstore.consumer.spark.source.call_order import CallOrderReader
from shmstore.consumer.spark.source.multi_source import Sources, is_group, located
from shmstore.consumer.spark.source.offset import Offset
from shmstore.consumer.spark.source.partition import (
    INLINE_BYTES,
    InlinePartition,
    Range,
    Renamed,
    SharedPartition,
    record_batches,
    split,
)
from shmstore.consumer.spark.source.schema_lookup import find_table
from shmstore.consumer.spark.source.subscription_owner import attach
from shmstore.consumer.spark.spark_version import has_read_limits

INLINE_MOST = 64 << 20  # bytes of a batch read that travel in its plan, of a store with a log


class ShmStoreSource(DataSource):
    """A store as a Spark data source. The options are listed by `shmstore.consumer.spark.options.HELP`."""

    @readable()
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = SourceOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "shmstore"

    @cached_property
    def _decoder(self) -> Decoder:
        if self._parsed.payload != "typed":
            return Decoder(self._parsed)
        return Decoder(self._parsed, *find_table(self._parsed))

    @readable()
    def schema(self) -> StructType:
        """Return the columns of the payload asked for. Raises `SchemaUnknown` where a typed table was never seen."""
        return schema_of(self._parsed.payload, self._decoder.table)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of micro-batches."""
        if has_read_limits():
            from shmstore.consumer.spark.source.admission_control import AdmissionControlReader

            return AdmissionControlReader(self._decoder)
        return CallOrderReader(self._decoder)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of what the store holds now."""
        return BatchReader(self._decoder)


class BatchReader(DataSourceReader):
    """Reads the whole transactions that the store holds at this moment; moves nothing and holds nothing back.

    The events of a store without a log are copied when the read is planned: later they could be overwritten, since no subscription keeps
    them. Of a store with a log only little is copied, for executors on any host: from `INLINE_MOST` bytes on (with transport=shm always)
    executors read them where they are, and the log keeps them for that long.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    @readable()
    def partitions(self) -> list[InputPartition]:
        """Return the events from startingOffsets (earliest by default) to endingOffsets."""
        options = self._decoder.options
        with attach(options) as store:
            first, last = store.oldest, store.newest
            start, end = options.start, options.end
            if start.kind == "offset":
                first = _located(store, Offset.of(start.value)) + 1
            elif start.kind != "committed":
                first = store.find(start.place)
            if end is not None and end.kind == "offset":
                last = _located(store, Offset.of(end.value), end=True)
            if last < first or (point := store.ack_point_until(last)) is None or point < first:
                return [InlinePartition([])]
            after, until = (Offset.of(one.value) if one is not None and one.kind == "offset" else None for one in (start, end))
            sources = Sources.of(store, after, until, first, point) if is_group(store) else None
            names = self._names(store, first, point)
            if store.has_log:
                begin = store.cursor_at(first - 1).bytes
                size = store.cursor_at(point).bytes - begin
                if options.transport == "shm" or (options.transport == "auto" and size > INLINE_MOST):
                    parts = max(min(options.partitions, 1 + size // options.partition_bytes), -(-size // INLINE_MOST))
                    return [SharedPartition(Range.of(store, a, b), sources, names) for a, b in _cut(store, first, point, parts)]
            events = events_between(store, first, point)
            size = int(events.ends[-1])
            parts = max(min(options.partitions, 1 + size // options.partition_bytes), -(-size // INLINE_BYTES))
            return [
                InlinePartition([RemoteEvents.of(events_between(store, a, b))], sources, names)
                for a, b in split(first, events.ends, parts)
            ]

    def _names(self, store: EventStore, first: int, last: int) -> Renamed:
        """The names of the planned columns, where DDLs are read over."""
        scan = TableScan(self._decoder)
        if not scan.follows:
            return ()
        if (turn := scan.look(store, first, last).turn) is not None:
            raise SchemaChanged(
                f"the columns of {turn.table.database}.{turn.table.table} at {turn.where} cannot be followed: {turn.why}. Read up to there and "
                "from there on (endingOffsets, startingOffsets), or with payload=json"
            )
        return scan.names(first, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in an executor."""
        return record_batches(partition.chunks(), self._decoder, partition.sources, partition.names)  # type: ignore[attr-defined]


def _cut(store: EventStore, first: int, last: int, parts: int) -> list[tuple[int, int]]:
    """Return up to `parts` ranges (first, last) of events, about the same bytes in each; found by their totals, not by a look at each."""
    begin = store.cursor_at(first - 1).bytes
    size = store.cursor_at(last).bytes - begin
    ranges, start = [], first
    for part in range(1, parts):
        wanted = begin + size * part // parts
        at = bisect_left(range(start, last), wanted, key=lambda sequence: store.cursor_at(sequence).bytes) + start
        if at < last:
            ranges.append((start, at))
            start = at + 1
    return [*ranges, (start, last)]


def _located(store: EventStore, offset: Offset, *, end: bool = False) -> int:
    """The last event of a read that ends at `offset`, or before a read that begins there. Raises `PositionNotFound`."""
    if offset.epoch == store.epoch or offset.position is None:
        return offset.seq
    found = located(store, offset, end=end)
    if found is None:
        raise PositionNotFound(f"store {store.name!r} has not reached {offset} yet: read again when its producer has")
    return found


def register(spark: SparkSession) -> None:
    """Make ``format("shmstore")`` known to `spark`, where the package ``pyspark_shmstore`` is not installed. An error of a query that ends the program then
    has its cause as its last line.
    """
    shown_last()
    try:
        spark.dataSource.register(ShmStoreSource)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark 4.0 says so where it has found that package
            raise
