"""AdmissionControlReader: the stream reader of Spark 4.2 and later, which says where a batch starts and how large it may be."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from shmstore.consumer.spark.options import SourceOptions, Start
from shmstore.consumer.spark.source.batch_planner import BatchLimit
from shmstore.consumer.spark.source.offset import Offset
from shmstore.consumer.spark.source.stream_reader import StreamReader


class AdmissionControlReader(StreamReader, SupportsTriggerAvailableNow):
    """A `StreamReader` that Spark gives the start and the limit of each micro-batch."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Ack what ends at `start`, and return the end of the next micro-batch: `start` itself when nothing is new.

        Spark asks only after the batch that ends at `start` is in its commit log.
        """
        return self.plan(start, limit_of(limit, self._options))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options ask for."""
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest event of the store, for the query's progress report."""
        return self._again(self._newest).to_dict()

    def _newest(self) -> Offset:
        store = self._owner.store
        return Offset.at(store.name, store.epoch, store.newest, store.latest_position)

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the end: what comes later is for the next run."""
        self._again(lambda: self._freeze(Start("latest")))


def limit_of(limit: ReadLimit, options: SourceOptions) -> BatchLimit:
    """Return the limits of Spark's `limit` and the options: Spark gives rows or bytes, or asks for everything."""
    if isinstance(limit, ReadAllAvailable):
        return BatchLimit()
    rows = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_rows
    return BatchLimit(rows, limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes)
