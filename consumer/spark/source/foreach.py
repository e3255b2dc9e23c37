"""A driver loop: a DataFrame for every batch of a subscription, without Structured Streaming's fixed cost of a micro-batch.

For the lowest latency. The loop acks after the function returned, so a crash in between gives the batch again: at least
once, where a streaming query with an idempotent sink is exactly once. All decode is done in the driver, which bounds the
rate; events must fit into its memory, batch by batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from shmstore import CheckpointFile, EventStore, Subscription
from shmstore.consumer.remote.events import RemoteEvents
from shmstore.consumer.spark.decode.arrow_frame import whole
from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.decode.table_scan import TableScan
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source.multi_source import Sources, is_group
from shmstore.consumer.spark.source.partition import part, rows_of
from shmstore.consumer.spark.source.schema_lookup import find_table
from shmstore.memory.deadline import begun


def each_batch(
    spark: SparkSession,
    function: Callable[[DataFrame, int], None],
    *,
    store: str,
    subscription: str = "loop",
    tables: str = "*",
    payload: str | None = None,
    limit_events: int = 10_000,
    stop: Callable[[], bool] = lambda: False,
    timeout: float = 0.2,
    state: str | os.PathLike[str] | None = None,
) -> int:
    """Call ``function(frame, last sequence)`` for every batch with rows until `stop()` is true; return the number of calls.

    `frame` has the columns of the streaming source with the same `tables` and `payload`; behind a DDL that changes a typed table's columns the next one has
    those, and a batch with rows of both sides is two calls, of which the last one is acked. `stop` is asked after every batch,
    and every `timeout` seconds while nothing comes. `state` is the folder of the store's home. What `function` raises ends the loop; its batch is not acked.
    """
    given = {"store": store, "subscription": subscription, "tables": tables, **({"payload": payload} if payload else {})}
    options = SourceOptions.parse(given)
    decoder = Decoder(options, *(find_table(options) if options.payload == "typed" else ()))
    calls, several = 0, None

    def begin(source: EventStore) -> tuple[EventStore, Subscription]:
        return source, source.subscribe(subscription, checkpoint=CheckpointFile.of(source.home, subscription))

    source, reader = begun(lambda: EventStore.attach(store, state=state), begin)
    with source, reader:
        while not stop():
            batch = reader.get(limit_events=limit_events, timeout=timeout)
            if not batch:
                continue
            several = is_group(source) if several is None else several
            sources = Sources.of(source, None, None, batch.first, batch.last) if several else None
            events = RemoteEvents.of(batch)
            while len(events.ends):
                turn = None if decoder.table is None else TableScan(decoder).look_at(events.raw, events.ends, events.first).turn
                end = batch.last if turn is None else turn.sequence - 1
                found = list(rows_of(part(events, events.first, end), decoder, sources))
                if found:
                    function(spark.createDataFrame(whole(pa.Table.from_batches(found))), end)
                    calls += 1
                if turn is None:
                    break
                decoder, events = Decoder(options, turn.table), part(events, turn.sequence, batch.last)
            reader.ack(batch)
    return calls
