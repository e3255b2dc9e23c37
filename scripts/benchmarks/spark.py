"""Spark: rows a second and time a micro-batch, beside the ceiling of Spark's hand-off and the other ways into a DataFrame.

Events are updates of one row of six columns, about 260 bytes each, all of a micro-batch in one transaction. ``noop/N`` and
``parquet/N`` are micro-batches of N events. Subjects: shmstore typed (1 and 2 partitions) and raw; "arrow ready", a
source of the same schema whose rows lie in /dev/shm as Arrow already, which is the most that Spark's hand-off gives;
createDataFrame from tuples, pandas and Arrow of the same rows, a new DataFrame a batch, written to the same sink.
``fixed`` is a micro-batch of one event: ours, a trivial Python source's, Spark's own rate source's, without and with the
settings that `replicate` recommends.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scripts.benchmarks import measure
from shmstore import SLOT, Column, EntryType, Event, EventStore, EventType, Position, Row, SlotFlag, TableSchema
from shmstore.codec import encode, encode_batch

ORDERS = TableSchema(
    "shop",
    "orders",
    (
        Column("id", "bigint", nullable=False),
        Column("customer", "int", unsigned=True),
        Column("amount", "decimal", size=12, scale=2),
        Column("placed", "datetime", scale=3),
        Column("status", "varchar", size=40),
        Column("note", "varchar", size=80),
    ),
    (0,),
)
_TUPLES_AT_MOST = 100_000
_WARM = 3  # batches that are not counted: the JVM compiles while they run
_numbers = itertools.count(1)


def _row(number: int, status: str) -> tuple[Any, ...]:
    placed = datetime(2026, 1, 1) + timedelta(seconds=number)
    return (number, number % 1000, Decimal(number % 100_000).scaleb(-2), placed, status, f"left with the neighbour {number % 97}")


def _event(number: int) -> Event:
    rows = (Row(_row(number, "new"), _row(number, "shipped")),)
    position = Position("binlog.000001", 4 + 300 * number)
    return Event(
        EntryType.ROWS,
        EventType.UPDATE,
        position,
        1_700_000_000_000,
        1,
        300,
        "0-1-1",
        1,
        database="shop",
        table=ORDERS,
        rows=rows,
    )


class Feed:
    """A store and its producer: puts micro-batches of one transaction each."""

    def __init__(self, name: str, largest: int) -> None:
        capacity = 1 << (4 * largest).bit_length() - 1
        self.store = EventStore.create(name, capacity=max(4096, capacity), memory_unit=300)
        self.blob = b""
        self.slots = np.zeros(0, SLOT)
        self.end = encode(Event(EntryType.END, EventType.NONE, Position("binlog.000001", 2**40, "0-1-1"), 1_700_000_000_000))

    def prepare(self, count: int) -> None:
        """Encode the events of a micro-batch, once for all runs."""
        self.blob, self.slots = encode_batch(_event(number) for number in range(count))

    def put(self) -> None:
        """Put the prepared micro-batch."""
        end = np.zeros(1, SLOT)
        end["size"], end["flags"], end["entry"], end["offset"] = len(self.end), SlotFlag.TRANSACTION_END, EntryType.END, 2**40
        self.store.put_encoded(self.blob + self.end, np.concatenate((self.slots, end)), timeout=60)

    def arrow(self) -> pa.Table:
        """The prepared rows as the source's typed payload has them."""
        from consumer.spark.batches import Decoder
        from consumer.spark.options import Options

        ends = np.cumsum(self.slots["size"]).tolist()
        payloads = [self.blob[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        return pa.Table.from_batches(Decoder(Options.parse({"store": "s", "tables": "shop.orders"}), ORDERS).batches(payloads))


def _session(fast: bool) -> Any:
    from pyspark.sql import SparkSession

    from consumer.spark import register, session_settings

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "3g").config("spark.ui.enabled", "false")
    if fast:
        builder = builder.config(map=session_settings())
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    _register_peers(spark)
    return spark


def _register_peers(spark: Any) -> None:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.types import StructType

    class Ready(DataSourceStreamReader):
        """Rows that are Arrow already, in files of /dev/shm; a batch for every file `go.N`."""

        def __init__(self, folder: str, partitions: int) -> None:
            self.folder, self.partitions_ = folder, partitions

        def initialOffset(self) -> dict[str, Any]:
            return {"n": 0}

        def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
            return {"n": len([name for name in os.listdir(self.folder) if name.startswith("go.")])}

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            return [InputPartition(i) for i in range(self.partitions_)] if end != start else []

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            with pa.memory_map(f"{self.folder}/part.{partition.value}") as file:
                yield from pa.ipc.open_stream(file)

    class ReadySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "arrowready"

        def schema(self) -> StructType:
            return StructType.fromJson(__import__("json").loads(Path(self.options["folder"], "schema").read_text()))

        def streamReader(self, schema: StructType) -> Ready:
            return Ready(self.options["folder"], int(self.options["partitions"]))

    spark.dataSource.register(ReadySource)


class Query:
    """A running query whose micro-batches are waited for, one by one."""

    def __init__(self, frame: Any, sink: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="shmstore-bench-")
        self.done: list[tuple[int, float]] = []
        writer = frame.writeStream.option("checkpointLocation", f"{self.folder.name}/checkpoint").format(sink)
        if sink == "parquet":
            writer = writer.option("path", f"{self.folder.name}/out")
        self.query = writer.trigger(processingTime="0 seconds").start()

    def batch(self, go: Callable[[], None], rows: int) -> float:
        """Have one micro-batch made by `go`; return the seconds that Spark says its trigger took."""
        last = self._last()
        go()
        seconds, got = 0.0, 0
        until = time.monotonic() + 180
        while got < rows:
            for progress in self.query.recentProgress:
                if progress["batchId"] > last and progress["numInputRows"]:
                    last = progress["batchId"]
                    got += progress["numInputRows"]
                    seconds += progress["durationMs"]["triggerExecution"] / 1000
            if self.query.exception() is not None:
                raise self.query.exception()
            if time.monotonic() > until:
                raise TimeoutError(f"{got} of {rows} rows: {self.query.status}")
            time.sleep(0.01)
        return seconds

    def _last(self) -> int:
        return max((progress["batchId"] for progress in self.query.recentProgress if progress["numInputRows"]), default=-1)

    def stop(self) -> None:
        self.query.stop()
        self.folder.cleanup()


def measure_all(runs: int, quick: bool) -> list[measure.Measurement]:
    """Run every case; return the measurements."""
    sizes = (1_000, 10_000, 100_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    name = f"bench-spark-{os.getpid()}"
    feed = Feed(name, sizes[-1])
    taken: list[measure.Measurement] = []
    state = tempfile.TemporaryDirectory(prefix="shmstore-bench-")
    os.environ["SHMSTORE_STATE"] = state.name
    try:
        for fast in (False, True):
            spark = _session(fast)
            spark.range(10).count()
            taken += _fixed(spark, feed, runs, "recommended settings" if fast else "default settings")
            if fast:
                for size in sizes:
                    feed.prepare(size)
                    for sink in ("noop", "parquet"):
                        measure.say(f"spark: {sink}/{size}")
                        taken += _sizes(spark, feed, runs, size, sink)
            spark.stop()
            spark.sparkContext._gateway.shutdown()  # the next session is to have a JVM, and settings, of its own
            from pyspark import SparkContext

            SparkContext._gateway = SparkContext._jvm = None
    finally:
        feed.store.close()
        EventStore.unlink(name)
        state.cleanup()
    return taken


def _stream(spark: Any, feed: Feed, payload: str, partitions: int) -> Any:
    source = (
        spark.readStream.format("shmstore")
        .option("store", feed.store.name)
        .option("subscription", f"bench{next(_numbers)}")
        .option("startingOffsets", "latest")
    )
    return (
        source.option("tables", "shop.orders")
        .option("payload", payload)
        .option("partitions", str(partitions))
        .option("transport", "shm")
        .load()
    )


def _sizes(spark: Any, feed: Feed, runs: int, size: int, sink: str) -> list[measure.Measurement]:
    case = f"{sink}/{size}"
    found = []

    def add(subject: str, seconds: list[float]) -> None:
        rates = [size / second for second in seconds]
        found.append(measure.of("spark", case, subject, "throughput", "rows/s", rates))
        found.append(measure.of("spark", case, subject, "trigger", "ms", [second * 1000 for second in seconds]))

    if not feed.store.newest > 0:
        feed.put()
    for subject, payload, partitions in (
        ("shmstore", "typed", 2),
        ("shmstore 1 partition", "typed", 1),
        ("shmstore raw", "raw", 2),
    ):
        _forget(feed)
        feed.put()  # a typed query finds its columns in the ring
        query = Query(_stream(spark, feed, payload, partitions), sink)
        try:
            _settle(feed)
            for _ in range(_WARM):
                query.batch(feed.put, size)
            add(subject, [query.batch(feed.put, size) for _ in range(runs)])
        finally:
            query.stop()
    _forget(feed)
    table = feed.arrow()
    add("arrow ready", _arrow_ready(spark, table, runs, size, sink))
    for subject, made in _frames(spark, table, size).items():
        times = []
        for _ in range(runs + 1):
            with tempfile.TemporaryDirectory(prefix="shmstore-bench-") as folder:
                began = time.monotonic()
                writer = made().write.mode("append")
                writer.format("noop").save() if sink == "noop" else writer.parquet(f"{folder}/out")
                times.append(time.monotonic() - began)
        add(subject, times[1:])
    return found


def _forget(feed: Feed) -> None:
    """The next query begins at the end: nothing of the last one is left."""
    until = time.monotonic() + 20
    while any(stat.alive for stat in feed.store.subscriptions()) and time.monotonic() < until:
        time.sleep(0.05)
    for stat in feed.store.subscriptions():
        feed.store.unsubscribe(stat.name)
    feed.store.clear()


def _settle(feed: Feed) -> None:
    """Wait until the query stands at the end."""
    until = time.monotonic() + 60
    while not feed.store.subscriptions() and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.5)


def _arrow_ready(spark: Any, table: pa.Table, runs: int, size: int, sink: str) -> list[float]:
    from consumer.spark.schema import typed_schema

    with tempfile.TemporaryDirectory(prefix="shmstore-bench-", dir="/dev/shm") as folder:
        Path(folder, "schema").write_text(typed_schema(ORDERS).json())
        half = -(-size // 2)
        for i in range(2):
            with pa.OSFile(f"{folder}/part.{i}", "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                for batch in table.slice(i * half, half).to_batches(max_chunksize=20_000):
                    writer.write_batch(batch)
        query = Query(spark.readStream.format("arrowready").option("folder", folder).option("partitions", "2").load(), sink)
        count = iter(range(10_000))

        def go() -> None:
            Path(folder, f"go.{next(count)}").touch()

        try:
            time.sleep(0.5)
            for _ in range(_WARM):
                query.batch(go, size)
            return [query.batch(go, size) for _ in range(runs)]
        finally:
            query.stop()


def _frames(spark: Any, table: pa.Table, size: int) -> dict[str, Callable[[], Any]]:
    """createDataFrame of the same rows, from what a consumer without a source would have in hand."""
    from consumer.spark.schema import typed_schema

    schema = typed_schema(ORDERS)
    made: dict[str, Callable[[], Any]] = {"createDataFrame Arrow": lambda: spark.createDataFrame(table)}
    if size <= _TUPLES_AT_MOST:
        rows = [tuple(row.values()) for row in table.to_pylist()]
        made["createDataFrame tuples"] = lambda: spark.createDataFrame(rows, schema)
        frame = table.to_pandas()
        made["createDataFrame pandas"] = lambda: spark.createDataFrame(frame, schema)
    return made


def _fixed(spark: Any, feed: Feed, runs: int, settings: str) -> list[measure.Measurement]:
    measure.say(f"spark: fixed cost, {settings}")
    found = []
    feed.prepare(1)
    _forget(feed)
    feed.put()
    count = max(10, 4 * runs)

    def add(subject: str, seconds: list[float]) -> None:
        found.append(
            measure.of("spark", "fixed", f"{subject}, {settings}", "trigger", "ms", [second * 1000 for second in seconds])
        )

    query = Query(_stream(spark, feed, "typed", 2), "noop")
    _settle(feed)
    for _ in range(5):
        query.batch(feed.put, 1)
    add("shmstore", [query.batch(feed.put, 1) for _ in range(count)])
    query.stop()
    add("trivial Python source", _arrow_ready(spark, feed.arrow(), count, 1, "noop"))
    rate = spark.readStream.format("rate").option("rowsPerSecond", "20").load().writeStream.format("noop")
    with tempfile.TemporaryDirectory(prefix="shmstore-bench-") as folder:
        query_ = rate.option("checkpointLocation", folder).trigger(processingTime="0 seconds").start()
        time.sleep(6)
        seconds = [p["durationMs"]["triggerExecution"] / 1000 for p in query_.recentProgress if p["numInputRows"]]
        query_.stop()
    add("Spark's rate source", seconds[len(seconds) // 3 :] or [float("nan")])
    return found
