"""CallOrderReader: the stream reader of Spark 4.0 and 4.1, which do not say where a micro-batch starts, how large it may be, or what is done.

Which batch is in Spark's commit log follows from the order of its calls (MicroBatchExecution and PythonMicroBatchStream of both
versions; one thread makes them all, and a failure ends this process). After a restart `seen`, the end of the last batch in the offset
log, comes first:

    partitions(seen, seen)               only after a restart; the batch may be in the commit log or not
    [partitions(x, seen), its sink,      if it is not
     commit log]
    latestOffset() -> end                so by now it is
    offset log: end                      if end is not where the batch before ended
    commit(end of the batch before)
    [initialOffset()]                    in batch 0
    partitions(start, end)               may not come, if the sink ignores its rows, or more than once
    sink, commit log
    latestOffset() -> ...                so the batch of the partitions is done

With spark.sql.streaming.triggerAvailableNowWrapper.enabled (off by default) Trigger.AvailableNow asks `latestOffset()` before all else, and
again for its progress report before the first batch runs. So that call alone proves nothing: the end that partitions were made for before it
is done, an end that was only planned is not.

There is no limit but the options': without them a micro-batch has everything. Trigger.AvailableNow is one micro-batch.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql.datasource import InputPartition

from shmstore.consumer.spark.options import OptionError
from shmstore.consumer.spark.source.batch_planner import BatchLimit
from shmstore.consumer.spark.source.offset import Offset
from shmstore.consumer.spark.source.stream_reader import StreamReader


class CallOrderReader(StreamReader):
    """A `StreamReader` that remembers what it planned, and knows by the order of calls what of it is done."""

    _planned: dict[str, Any] | None = None  # the end of the last micro-batch: the next one starts there
    _running: dict[str, Any] | None = None  # the end of the micro-batch that has partitions
    _committed: dict[str, Any] | None = None  # the end of the last one that is known to be in Spark's commit log

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Ack what is known to be done, and return the end of the next micro-batch: where the one before ended, when nothing is new."""
        if self._running is not None:
            self._committed, self._running = self._running, None
        if self._committed is None:
            self._committed = self.initialOffset()
        if self._planned is None:
            self._planned = self._committed
        rows, size = self._options.max_rows, self._options.max_bytes
        limit = BatchLimit(rows, sys.maxsize if rows is None and size is None else size)
        self._planned = self.plan(self._planned, limit, self._committed)
        return self._planned

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of the events after `start` up to `end`; the same events each time it is asked."""
        self._running = end
        if start == end and self._planned is not None and _order(self._planned) < _order(end):
            raise OptionError(
                f"this Spark planned to {Offset.of(self._planned)} before it said that the query is at {Offset.of(end)}: set "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled=false, or leave out maxRowsPerTrigger and maxBytesPerTrigger"
            )
        return super().partitions(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        """Ack up to `end`: Spark has logged its batch."""
        self._committed = end
        super().commit(end)


def _order(offset: dict[str, Any]) -> tuple[int, int]:
    return offset["epoch"], offset["seq"]
