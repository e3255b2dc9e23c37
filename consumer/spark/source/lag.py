"""How far a query is behind its store: in events, in bytes, in seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from shmstore import EventStore, PositionNotFound, StoreError
from shmstore.consumer.spark.callbacks import answering
from shmstore.consumer.spark.source.offset import Offset


class Lag(NamedTuple):
    """What a query has not processed yet. `seconds` is the age difference of the events at both ends, by the server's clock."""

    query: str
    store: str
    events: int
    size: int
    seconds: float


def lag_of(query: str, end: dict[str, Any], latest: dict[str, Any] | None) -> Lag | None:
    """Return the lag between a source's end offset and the newest event; None for a source that is not shmstore.

    Bytes and seconds are read from the shared memory: on a host other than the store's they are 0, and only the events count.
    Raises nothing: a lag that cannot be computed must not stop a query.
    """
    try:
        done = Offset.of(end)
        newest = Offset.of(latest) if latest else done
    except ValueError:
        return None
    events = newest.seq - done.seq if newest.epoch == done.epoch else 0
    try:
        with EventStore.attach(done.store, restore=False) as store:
            if store.epoch != done.epoch:
                return Lag(query, done.store, 0, 0, 0.0)
            events = max(0, store.newest - done.seq)
            if not events:
                return Lag(query, done.store, 0, 0, 0.0)
            last = store.cursor_at(store.newest)
            events = last.sequence - done.seq
            began = int(store.slots(done.seq + 1, done.seq + 1)["time"][0])
            size = last.bytes - store.cursor_at(done.seq).bytes
            return Lag(query, done.store, events, size, max(0.0, (last.time_ms - began) / 1000))
    except (StoreError, PositionNotFound, OSError):
        return Lag(query, done.store, events, 0, 0.0)


class LagListener(StreamingQueryListener):
    """Calls `report` with each shmstore query's `Lag` after every micro-batch: ``spark.streams.addListener(LagListener(print))``."""

    def __init__(self, report: Callable[[Lag], None]) -> None:
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """There is nothing to report yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the lag of each source."""
        with answering():
            for source in event.progress.sources:
                end, latest = _offset(source.endOffset), _offset(source.latestOffset)
                lag = lag_of(str(event.progress.id), end, latest) if end else None
                if lag is not None:
                    self._report(lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """An idle query has processed every whole transaction."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """There is nothing more to report."""


def _offset(text: str | None) -> dict[str, Any] | None:
    try:
        value = json.loads(text) if text else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
