"""StreamReader: the store as a source of micro-batches, without the call that plans one, which is another one in each version of Spark.

Nothing here removes events: `partitions` and `read` peek at sequences, as often as Spark asks, and only `commit` and
`plan` ack. Spark runs one reader in a process of its own next to the driver (it plans and owns the
subscription) and sends a pickled copy to the executors (they only read), so the subscription is taken on first use.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from shmstore import PositionNotFound, StoreError, SubscriptionLost
from shmstore.consumer.remote.events import RemoteEvents
from shmstore.consumer.spark.callbacks import readable
from shmstore.consumer.spark.decode.decoder import Decoder, SchemaChanged
from shmstore.consumer.spark.decode.table_scan import TableScan
from shmstore.consumer.spark.options import Start
from shmstore.consumer.spark.source.batch_planner import BatchLimit, BatchPlanner, events_between
from shmstore.consumer.spark.source.multi_source import Sources
from shmstore.consumer.spark.source.offset import Offset
from shmstore.consumer.spark.source.partition import (
    INLINE_BYTES,
    InlinePartition,
    Range,
    RemotePartition,
    SharedPartition,
    record_batches,
    split,
)
from shmstore.consumer.spark.source.schema_lookup import holdup_of
from shmstore.consumer.spark.source.subscription_owner import SubscriptionOwner

LOOK_SECONDS = 10.0
_LOCAL = re.compile(rb"\0(?:--master\0|spark\.master=)local(?:\[[^\0]*)?\0")
Answer = TypeVar("Answer")


class StreamReader(DataSourceStreamReader):
    """Plans micro-batches that end at transaction boundaries, and acks those that Spark has logged as done.

    `AdmissionControlReader` (from Spark 4.2 on) and `CallOrderReader` (before) have the method that Spark plans with.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._options = decoder.options
        self._owner = SubscriptionOwner(self._options)
        reads_all = self._options.all_tables or self._options.payload == "raw"
        self._planner = BatchPlanner(self._owner, None if reads_all else TableScan(decoder))
        self._has_planned = False
        self._frozen: tuple[int, int] | None = None
        self._looked = 0.0

    def __reduce__(self) -> tuple[type[StreamReader], tuple[Decoder]]:
        return type(self), (self._decoder,)

    # ---------------------------------------------------------------- offsets

    @readable()
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins. Spark asks twice, and again when batch 0 is run again: the answer stays."""
        return self._again(lambda: self._owner.first_offset().to_dict())

    @readable()
    def plan(self, start: dict[str, Any], limit: BatchLimit, committed: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ack what ends at `committed` (by default `start`), and return the end of the micro-batch after `start`: `start` itself when
        nothing is new.

        In a store with a log that is never behind what is on disk.
        """
        return self._again(lambda: self._plan(start, limit, committed or start))

    def _plan(self, start: dict[str, Any], limit: BatchLimit, committed: dict[str, Any]) -> dict[str, Any]:
        after, done = Offset.of(start), Offset.of(committed)
        base = self._owner.locate(done)
        if base is None:
            self._owner.ack_replayed(done)
            return start
        self._planner.follow_to(base)
        acked = base = self._owner.ack(base)
        if after != done:
            found = self._owner.locate(after)
            if found is None:
                return start
            base = max(base, found)
        if self._options.end is not None and self._frozen is None:
            self._freeze(self._options.end)
        try:
            end = self._planner.end_after(base, limit, self._end())
        except SchemaChanged:
            self._owner.keep_planned(None)  # what is acked says where the query is
            if (
                self._end() is not None and self._has_planned
            ):  # as Trigger.AvailableNow: this run ends here, and the next one continues
                return start
            raise
        if end == base:
            self._report_holdup()
            return start
        self._has_planned = True
        if self._planner.ends_at_turn:
            self._owner.keep_planned(end)
        self._owner.save_start(acked)
        return self._owner.offset_at(end, after).to_dict()

    def _report_holdup(self) -> None:
        """Log now and then that nothing comes because another reader makes no progress."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            if text := holdup_of(self._owner.store, but=self._owner.name):
                logging.getLogger(__name__).warning("the query with subscription %r gets no events%s", self._owner.name, text)

    def _freeze(self, end: Start) -> None:
        """Plan nothing behind `end`: what comes later is for the next run."""
        store = self._owner.store
        last = self._owner.wait_for(Offset.of(end.value), end=True) if end.kind == "offset" else store.newest
        self._frozen = (store.epoch, last)

    def _end(self) -> int | None:
        if self._frozen is None or self._frozen[0] != self._owner.store.epoch:
            return None
        return self._frozen[1]

    # ---------------------------------------------------------------- partitions

    @readable()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of the events after `start` up to `end`; the same events each time it is asked."""
        after, until = Offset.of(start), Offset.of(end)
        if (
            after == until
        ):  # Spark says where a restarted query is, which may be behind a batch that it runs again: take no subscription there
            return []
        return self._again(lambda: self._partitions(after, until))

    def _partitions(self, after: Offset, until: Offset) -> list[InputPartition]:
        base = self._owner.wait_for(after)
        last = self._owner.wait_for(until, end=True)
        if last <= base:
            return []
        options, store = self._options, self._owner.store
        ends = self._planner.ends(base + 1, last)
        size = int(ends[-1])
        parts = min(options.partitions, 1 + size // options.partition_bytes)
        sources = Sources.of(store, after, until, base + 1, last) if until.of_group else None
        inline = options.transport == "inline"
        if inline:
            parts = max(parts, -(-size // INLINE_BYTES))
        ranges = split(base + 1, ends, parts)
        try:
            names = self._planner.names(base + 1, last)
        except SchemaChanged:
            self._owner.keep_planned(None)
            raise
        if inline:
            return [InlinePartition([RemoteEvents.of(events_between(store, a, b))], sources, names) for a, b in ranges]
        given = [Range.of(store, a, b, fails=options.fail_on_data_loss) for a, b in ranges]
        if options.transport == "shm" or (options.transport == "auto" and executors_are_here()):
            return [SharedPartition(one, sources, names) for one in given]
        address = self._owner.serve().executors_address
        return [RemotePartition(one, address, sources, names, nearby=options.transport == "auto") for one in given]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in an executor."""
        return record_batches(partition.chunks(), self._decoder, partition.sources, partition.names)  # type: ignore[attr-defined]

    def _again(self, call: Callable[[], Answer]) -> Answer:
        """Return what `call` returns, of one life of the store: it is called again where the store was removed meanwhile, and is there again.

        The same holds, once, for failOnDataLoss=false where events went, or the subscription was evicted, while it ran: it then begins at the
        oldest event.
        """
        has_continued = False
        while True:
            self._owner.renew()
            try:
                return call()
            except (StoreError, PositionNotFound) as error:
                if self._owner.lost:  # nothing that its last life said counts
                    continue
                gone = isinstance(error, SubscriptionLost | PositionNotFound)
                if not gone or has_continued or self._options.fail_on_data_loss:
                    raise
                has_continued = True
                if isinstance(error, SubscriptionLost):
                    self._owner.leave()

    # ---------------------------------------------------------------- end

    @readable()
    def commit(self, end: dict[str, Any]) -> None:
        """Ack up to `end`: Spark has logged its batch."""
        self._again(lambda: self._commit(Offset.of(end)))

    def _commit(self, end: Offset) -> None:
        sequence = self._owner.locate(end)
        if sequence is not None:
            self._owner.ack(sequence)

    def stop(self) -> None:
        """Release the subscription."""
        self._owner.close()


def executors_are_here() -> bool:
    """True where Spark runs with a local master, as the JVM's command line, that of this process's parent, says."""
    with open(f"/proc/{os.getppid()}/cmdline", "rb") as line:
        return _LOCAL.search(line.read()) is not None
