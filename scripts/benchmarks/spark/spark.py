"""Spark: rows a second and time a micro-batch, compared with the ceiling of Spark's hand-off and the other ways into a DataFrame.

Events are updates of one row of six columns, about 310 bytes each, all of a micro-batch in one transaction. ``noop/N`` and
``parquet/N`` are micro-batches of N events. Subjects: shmstore typed (2 partitions at most, and 1) and raw; "arrow ready", a
source of the same schema whose rows lie in /dev/shm as Arrow already, which is the most that Spark's hand-off gives;
createDataFrame from tuples, pandas and Arrow of the same rows, a new DataFrame a batch, written to the same sink.
``fixed`` is a micro-batch of one event: ours, a trivial Python source's, Spark's own rate-micro-batch source's, with the
settings that `replicate` recommends, and without (``fixed default``). Sources take turns, so that none has the warmer JVM.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scripts.benchmarks import measure, orders
from shmstore import SLOT, Column, EntryType, Event, EventStore, EventType, Position, Row, SlotFlag
from shmstore.encoding.codec import encode, encode_batch

ORDERS = orders.TABLE._replace(columns=(*orders.TABLE.columns, Column("note", "varchar", size=80)))
_FRAMES_AT_MOST = 100_000  # beyond it a task is larger than Spark sends
_WARM = 10  # batches that are not counted: the JVM compiles while they run, and long after 3 of a million rows
_numbers = itertools.count(1)


def _row(number: int, status: str) -> tuple[Any, ...]:
    return (*orders.row(number, status), f"left with the neighbour {number % 97}")


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
        self.store = EventStore.create(name, capacity=max(4096, capacity), memory_unit=400, log=False)
        self.blob = b""
        self.slots = np.zeros(0, SLOT)
        self._put = (b"", self.slots)
        self.end = encode(Event(EntryType.END, EventType.NONE, Position("binlog.000001", 2**40, "0-1-1"), 1_700_000_000_000))

    def prepare(self, count: int) -> None:
        """Encode the events of a micro-batch, once for all runs."""
        self.blob, self.slots = encode_batch(_event(number) for number in range(count))
        end = np.zeros(1, SLOT)
        end["size"], end["flags"], end["entry"], end["offset"] = len(self.end), SlotFlag.TRANSACTION_END, EntryType.END, 2**40
        self._put = (self.blob + self.end, np.concatenate((self.slots, end)))

    def put(self) -> None:
        """Put the prepared micro-batch."""
        self.store.put_encoded(*self._put, timeout=60)

    def arrow(self) -> pa.Table:
        """The prepared rows as the source's typed payload has them."""
        from shmstore.consumer.spark.decode.decoder import Decoder
        from shmstore.consumer.spark.options import SourceOptions

        decoder = Decoder(SourceOptions.parse({"store": "s", "tables": "shop.orders"}), ORDERS)
        return pa.Table.from_batches(decoder.batches(self.blob, np.cumsum(self.slots["size"])))


@contextmanager
def _session(*, fast: bool) -> Iterator[Any]:
    """A Spark session, with the settings that `replicate` recommends or without."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from shmstore.consumer.spark import register, session_settings

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "3g").config("spark.ui.enabled", "false")
    if fast:
        builder = builder.config(map=session_settings())
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    _register_peers(spark)
    try:
        yield spark
    finally:
        spark.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()  # the next session is to have a JVM, and settings, of its own
        SparkContext._gateway = SparkContext._jvm = None


def _register_peers(spark: Any) -> None:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.types import StructType

    class Reader(DataSourceStreamReader):
        """Rows that are Arrow already, in files of /dev/shm; a batch for every file `go.N`."""

        def __init__(self, folder: str, partitions: int) -> None:
            self.folder, self.partitions_ = folder, partitions

        def initialOffset(self) -> dict[str, Any]:
            return {"n": 0}

        def latestOffset(self, *_: Any) -> dict[str, Any]:  # (start, limit), which Spark before 4.2 does not give
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

        def streamReader(self, schema: StructType) -> Reader:
            return Reader(self.options["folder"], int(self.options["partitions"]))

    spark.dataSource.register(ReadySource)


def _checkpoint(frame: Any, folder: str) -> str:
    """Where a query keeps its checkpoint: as `replicate` has it, in a session with the settings for that."""
    from shmstore.consumer.spark import checkpoint_location, session_settings

    folder, spark, key = f"{folder}/checkpoint", frame.sparkSession, "spark.sql.streaming.checkpointFileManagerClass"
    return checkpoint_location(spark, folder) if spark.conf.get(key, "") == session_settings()[key] else folder


class Query:
    """A running query whose micro-batches are waited for, one by one."""

    def __init__(self, frame: Any, sink: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="shmstore-bench-")
        writer = frame.writeStream.option("checkpointLocation", _checkpoint(frame, self.folder.name)).format(sink)
        if sink == "parquet":
            writer = writer.option("path", f"{self.folder.name}/out")
        self.query = writer.trigger(processingTime="0 seconds").start()

    def batch(self, go: Callable[[], None], rows: int) -> float:
        """Have one micro-batch made by `go`; return the seconds that Spark says its trigger took."""
        last = self._last()[0]
        go()
        until = time.monotonic() + 180
        while True:
            number, got, seconds = self._last()
            if number > last and got:
                break
            if self.query.exception() is not None:
                raise self.query.exception()
            if time.monotonic() > until:
                raise TimeoutError(f"no batch after {last}: {self.query.status}")
            time.sleep(0.02)
        if got != rows:
            raise RuntimeError(f"a micro-batch of {got} rows, not of {rows}")
        return seconds

    def _last(self) -> tuple[int, int, float]:
        """Number, rows and seconds of the last micro-batch. What Python has for it makes JSON of a hundred, and disturbs."""
        progress = self.query._jsq.lastProgress()
        if progress is None:
            return -1, 0, 0.0
        return progress.batchId(), progress.numInputRows(), progress.durationMs().get("triggerExecution") / 1000

    def stop(self) -> None:
        self.query.stop()
        self.folder.cleanup()


class Ours:
    """The shmstore source, asked for `payload` in so many partitions."""

    def __init__(self, spark: Any, feed: Feed, payload: str = "typed", partitions: int = 2) -> None:
        self._spark, self._feed, self._payload, self._partitions = spark, feed, payload, partitions

    def start(self, sink: str) -> Query:
        feed = self._feed
        _forget(feed)
        feed.put()  # a typed query finds its columns in the ring
        options = {
            "store": feed.store.name,
            "subscription": f"bench{next(_numbers)}",
            "startingOffsets": "latest",
            "tables": "shop.orders",
            "payload": self._payload,
            "partitions": str(self._partitions),
        }
        query = Query(self._spark.readStream.format("shmstore").options(**options).load(), sink)
        until = time.monotonic() + 60
        while not feed.store.subscriptions() and time.monotonic() < until:
            if query.query.exception() is not None:
                raise query.query.exception()
            time.sleep(0.02)
        time.sleep(0.5)
        return query

    def go(self) -> None:
        self._feed.put()


class Ready:
    """A source whose rows are Arrow already."""

    def __init__(self, spark: Any, folder: str, partitions: int = 2) -> None:
        self._spark, self._folder, self._partitions = spark, folder, partitions
        self._batches = itertools.count()

    def write(self, table: pa.Table) -> None:
        from shmstore.consumer.spark.decode.schema import typed_schema

        Path(self._folder, "schema").write_text(typed_schema(ORDERS).json())
        part = -(-table.num_rows // self._partitions)
        for i in range(self._partitions):
            path = f"{self._folder}/part.{i}"
            with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                for batch in table.slice(i * part, part).combine_chunks().to_batches(max_chunksize=20_000):
                    writer.write_batch(batch)

    def start(self, sink: str) -> Query:
        for path in Path(self._folder).glob("go.*"):
            path.unlink()
        options = {"folder": self._folder, "partitions": str(self._partitions)}
        query = Query(self._spark.readStream.format("arrowready").options(**options).load(), sink)
        time.sleep(0.5)
        return query

    def go(self) -> None:
        Path(self._folder, f"go.{next(self._batches)}").touch()


def cases(size: measure.Size) -> list[str]:
    """Return the names of all cases."""
    if not size.peers:
        return ["noop/1000"]
    sizes = (1_000, 10_000, 100_000) if size.scale < 1 else (1_000, 10_000, 100_000, 1_000_000)
    return ["fixed default", "fixed", *(f"{sink}/{size}" for size in sizes for sink in ("noop", "parquet"))]


def measure_all(runs: int, extent: measure.Size, chosen: Sequence[str] = ()) -> list[measure.Measurement]:
    """Run every case, or those in `chosen`; return the measurements."""
    unknown = [case for case in chosen if case not in cases(extent)]
    if unknown:
        raise SystemExit(f"scripts/bench: spark has no case {', '.join(unknown)}: choose from {', '.join(cases(extent))}")
    chosen = [case for case in cases(extent) if not chosen or case in chosen]
    largest = max([1_000, *(int(case.partition("/")[2]) for case in chosen if "/" in case)])
    name = f"bench-spark-{os.getpid()}"
    feed = Feed(name, largest)
    taken: list[measure.Measurement] = []
    state = tempfile.TemporaryDirectory(prefix="shmstore-bench-")
    os.environ["SHMSTORE_STATE"] = state.name
    try:
        if "fixed default" in chosen:
            with _session(fast=False) as spark:
                taken += _fixed(spark, feed, runs, "default settings")
        rest = [case for case in chosen if case != "fixed default"]
        if rest:
            with _session(fast=True) as spark:
                for case in rest:
                    measure.say(f"spark: {case}")
                    sink, _, size = case.partition("/")
                    taken += (
                        _sizes(spark, feed, runs, int(size), sink, extent.peers)
                        if size
                        else _fixed(spark, feed, runs, "replicate's settings")
                    )
    finally:
        feed.store.close()
        EventStore.unlink(name)
        state.cleanup()
    return taken


def _rounds(subjects: dict[str, Any], sink: str, size: int, counts: tuple[int, ...], warm: int = _WARM) -> dict[str, list[float]]:
    """Seconds of each subject's micro-batches, so many a round, taken in turns: in a round of 0, after `warm` of them, the JVM compiles."""
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for count in counts:
        for name, subject in subjects.items():
            query = subject.start(sink)
            try:
                for _ in range(min(1, warm) if count else warm):
                    query.batch(subject.go, size)
                seconds[name] += [query.batch(subject.go, size) for _ in range(count)]
            finally:
                query.stop()
    return seconds


def _sizes(spark: Any, feed: Feed, runs: int, size: int, sink: str, peers: bool) -> list[measure.Measurement]:
    case = f"{sink}/{size}"
    feed.prepare(size)
    table = feed.arrow()
    with tempfile.TemporaryDirectory(prefix="shmstore-bench-", dir="/dev/shm") as two:
        subjects: dict[str, Any] = {"shmstore": Ours(spark, feed), "shmstore raw": Ours(spark, feed, "raw")}
        if peers:
            ready = Ready(spark, two)
            ready.write(table)
            subjects |= {"arrow ready": ready, "shmstore 1 partition": Ours(spark, feed, partitions=1)}
        counts = (runs // 2, runs - runs // 2) if runs > 1 else (1,)
        taken = _rounds(subjects, sink, size, (0, *counts) if peers else counts, _WARM if peers else 0)
    for subject, made in _frames(spark, table, size).items() if peers else ():
        times = []
        for _ in range(runs + 1):
            with tempfile.TemporaryDirectory(prefix="shmstore-bench-") as folder:
                began = time.monotonic()
                writer = made().write.mode("append")
                writer.format("noop").save() if sink == "noop" else writer.parquet(f"{folder}/out")
                times.append(time.monotonic() - began)
        taken[subject] = times[1:]
    found = []
    for subject, seconds in taken.items():
        found.append(measure.of("spark", case, subject, "throughput", "rows/s", [size / second for second in seconds]))
        found.append(measure.of("spark", case, subject, "trigger", "ms", [second * 1000 for second in seconds]))
    return found


def _forget(feed: Feed) -> None:
    """The next query begins at the end: nothing of the last one is left."""
    until = time.monotonic() + 20
    while any(stat.alive for stat in feed.store.subscriptions()) and time.monotonic() < until:
        time.sleep(0.05)
    for stat in feed.store.subscriptions():
        feed.store.unsubscribe(stat.name)
    feed.store.clear()


def _frames(spark: Any, table: pa.Table, size: int) -> dict[str, Callable[[], Any]]:
    """createDataFrame of the same rows, from what a consumer without a source would have in hand."""
    from shmstore.consumer.spark.decode.schema import typed_schema

    if size > _FRAMES_AT_MOST:
        return {}
    schema = typed_schema(ORDERS)
    rows, frame = [tuple(row.values()) for row in table.to_pylist()], table.to_pandas()
    return {
        "createDataFrame tuples": lambda: spark.createDataFrame(rows, schema),
        "createDataFrame pandas": lambda: spark.createDataFrame(frame, schema),
        "createDataFrame Arrow": lambda: spark.createDataFrame(table),
    }


def _fixed(spark: Any, feed: Feed, runs: int, settings: str) -> list[measure.Measurement]:
    feed.prepare(1)
    with tempfile.TemporaryDirectory(prefix="shmstore-bench-", dir="/dev/shm") as folder:
        trivial = Ready(spark, folder, 1)
        trivial.write(feed.arrow())
        taken = _rounds({"shmstore": Ours(spark, feed), "trivial Python source": trivial}, "noop", 1, (0, 6 * runs, 6 * runs))
    rate = Query(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load(), "noop")
    time.sleep(8)
    progress = [p["durationMs"]["triggerExecution"] / 1000 for p in rate.query.recentProgress if p["numInputRows"]]
    rate.stop()
    taken["Spark's rate-micro-batch source"] = progress[len(progress) // 2 :]
    return [
        measure.of("spark", "fixed", f"{subject}, {settings}", "trigger", "ms", [second * 1000 for second in seconds])
        for subject, seconds in taken.items()
    ]
