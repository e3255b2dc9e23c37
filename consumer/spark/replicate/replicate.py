"""replicate: a copy of every table, kept up to date by one streaming query.

The query carries the events as they are (payload=raw), so that Spark moves bytes; they are decoded, reduced to the last
change of each key and merged in `foreachBatch`, table by table. The copy of a table knows the last batch that it holds,
so that a batch that Spark runs again changes nothing. A table whose rows only the server knows is read again, by a snapshot of
that one table which is asked of the producer; the others continue meanwhile.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from shmstore.consumer.copies.change_reduction import CannotCopy, TableChanges
from shmstore.consumer.copies.copy_set import CopySet
from shmstore.consumer.copies.databases.database import Password
from shmstore.consumer.copies.initial_rows import InitialRows, require_one_source
from shmstore.consumer.spark.callbacks import answering
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.replicate import event_runs, executor_rows
from shmstore.consumer.spark.replicate.executor_rows import SourceTables
from shmstore.consumer.spark.replicate.local_checkpoints import checkpoint_location
from shmstore.consumer.spark.replicate.query_id import QueryId
from shmstore.consumer.spark.replicate.target_choice import chosen_target, is_database
from shmstore.consumer.spark.source.batch_planner import MOST_BYTES
from shmstore.consumer.spark.source.source import register
from shmstore.consumer.spark.spark_version import has_read_limits, is_connect, version
from shmstore.sql.names import folded

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Replication(CopySet):
    """The function that `foreachBatch` calls: brings every table's copy up to date with one micro-batch."""

    def __init__(
        self,
        options: SourceOptions,
        target: str,
        format: str = "",
        *,
        keys: Mapping[str, Sequence[str]] | None = None,
        history: bool = False,
        password: Password = "",
        storage: Mapping[str, str] | None = None,
        checkpoint: str | None = None,
        optimize: int = 0,
        session: SparkSession | None = None,
        remove_dropped: bool = False,
        merge: str = "driver",
    ) -> None:
        held_by, template = chosen_target(format, target, password, storage, optimize, session, merge)
        super().__init__(options.selection, held_by, template, keys=keys, history=history, remove_dropped=remove_dropped)
        self._options, self._format = options, "database" if is_database(target) else format or "delta"
        self._session, self._by_executors = session, merge == "executors"
        self._runs: event_runs.RunSource | None = None
        self._query = QueryId(checkpoint, "Replication")

    def try_target(self) -> None:
        """Raise `TargetFailed` where the target cannot be reached: a wrong URL or account is an error before a query runs."""
        with self._target.transaction():
            pass

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Apply one micro-batch of payload=raw."""
        with answering():
            session = frame.sparkSession
            query = self._query.of(session)
            self.apply_micro_batch(frame.select("sequence", "payload", "source"), query, batch)

    def apply_micro_batch(self, events: DataFrame, query: str, batch: int) -> None:
        """Apply encoded events (sequence, payload, source), each of whose partitions has a stretch of them in order."""
        if self._by_executors:
            # executors reduce the events to runs, which hold the rows, and merge them
            self._runs = event_runs.RunSource(events, event_runs.reducer(self._selection, self._keys, self._history))
            try:
                self.apply_each(self._runs.events(), query, batch)
            finally:
                self._runs.close()
                self._runs = None
            return
        rows = events.toArrow().sort_by("sequence")
        names = rows.column("source").unique().to_pylist()
        found = {name: rows.filter(pc.equal(rows.column("source"), name)) if len(names) > 1 else rows for name in names}
        self.apply_each({name: _payloads(some.column("payload")) for name, some in found.items()}, query, batch)

    def kind_of(self, source: str | None) -> Callable[..., TableChanges]:
        """`CopySet.kind_of`."""
        return TableChanges if self._runs is None else partial(event_runs.RunChanges, self._runs, self._runs.found[source])

    def in_thread(self, work: Callable[[], T]) -> Callable[[], T]:
        """`CopySet.in_thread`: the thread's jobs are the query's, and end with it."""
        if self._session is None or not (self._by_executors or self._format == "iceberg"):
            return work
        inheriting: Callable[[Callable[[], T]], Callable[[], T]] = inheritable_thread_target(self._session)
        return inheriting(work)

    def begin_with(self, spark: SparkSession, tables: SourceTables) -> None:
        """Make copies of the tables that have none, of rows that executors read; call it before the query starts. Raises ValueError, `SourceError`."""
        options = self._options
        executor_rows.check(options, self._format, self._template, history=self._history)
        executor_rows.subscribe(options)
        for database, table in tables.names():
            name = f"{database}.{table}"
            try:
                copy = self._copy(None, database, table)
            except CannotCopy:
                continue  # the query says it, if the table changes
            if not options.wants(database, table) or copy.target.exists:
                continue
            schema = executor_rows.load(spark, tables, name, copy, self._keys.get(name, ()), options.zero_dates)
            if schema is not None:
                known = self._known.setdefault(None, {})
                known[database, table] = {folded(column.name): column for column in schema.columns}


def _payloads(column: pa.ChunkedArray) -> Iterator[memoryview]:
    """Yield the values of a binary column without a Python object of their own for the bytes."""
    for chunk in column.chunks:
        _, offsets, values = chunk.buffers()
        if values is None:
            continue
        ends = memoryview(offsets).cast("q" if pa.types.is_large_binary(chunk.type) else "i")
        raw = memoryview(values)
        for i in range(chunk.offset, chunk.offset + len(chunk)):
            yield raw[ends[i] : ends[i + 1]]


def replicate(
    spark: SparkSession,
    *,
    store: str,
    target: str,
    tables: str | Sequence[str] = "*",
    format: str = "",
    checkpoint: str | None = None,
    subscription: str = "replicate",
    keys: Mapping[str, Sequence[str]] | None = None,
    history: bool = False,
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    name: str | None = None,
    password: Password = "",
    snapshot: bool | SourceTables = False,
    storage: Mapping[str, str] | None = None,
    optimize: int = 0,
    remove_dropped: bool = False,
    merge: str = "driver",
) -> StreamingQuery:
    """Keep a copy of every table of `tables` in `target`; return the running query.

    `target` is a path with ``{database}`` and ``{table}``, and ``{source}`` where the store has several, or a database:
    ``postgresql://USER@HOST/DATABASE#{database}.{table}``, ``mysql://USER@HOST:PORT#{database}.{table}``, ``mariadb://...`` or ``sqlite:///FILE#{table}``;
    `password` is a text, or a function that each connection asks; every micro-batch is one transaction over all tables. `format` is delta (where none
    is given), iceberg or parquet; with iceberg `target` is ``catalog.{database}.{table}`` of a catalog that Spark is configured with. Databases and iceberg
    need a `checkpoint`. `keys` names the key columns of
    tables without a primary key, as ``{"shop.log": ["id"]}``. With `history` every version of a row is kept (SCD type 2:
    ``_valid_from``, ``_valid_to``, ``_current``, ``_seq``). `trigger` is what ``DataStreamWriter.trigger`` takes
    (``{"availableNow": True}``; as fast as it goes by default). `options` are further options of the source.
    The checkpoint is kept in ``_checkpoint`` next to the copies where none is given. With `snapshot` the rows of the tables that have no
    copy yet are asked of the store's producer, and the log (``shmstore``, at INFO) says how far that is. `storage` are delta-rs's storage options, for
    copies in an object store: ``target="s3://lake/{database}/{table}"``, ``storage={"AWS_REGION": ...}``; then `checkpoint` must
    be given. With `remove_dropped` a copy goes when its table is dropped or gets another name; otherwise it stays, without rows. So does
    one that changed filters of the producer leave out; otherwise that stays as it is.
    After each `optimize` commits to a Delta table its small files are put together, and files that no version of the last week needs are removed.
    Where `snapshot` is a `shmstore.producer.ServerTables`, of the producer's settings, Spark's executors read those rows straight from the server, before
    the query starts and this returns: into Delta or Parquet, in folders that driver and executors see.
    Rows are reduced and merged in the driver, or with ``merge="executors"`` by Spark's jobs, and then never come to the driver: into Iceberg, and into Delta
    (in a folder that driver and executors see) where the session has delta-spark.

    Whatever a DDL does, a copy has its table's rows in the end: what only the server knows is read again, by a snapshot that is asked for;
    what cannot be copied is set aside, which the log says, while the others continue. Each batch lands in each table once.
    """
    given = {
        "store": store,
        "subscription": subscription,
        "tables": tables if isinstance(tables, str) else ",".join(tables),
        **(options or {}),
        "payload": "raw",
        "includeDdl": "true",
    }
    parsed = SourceOptions.parse(given)
    if is_database(target) and checkpoint is None:
        raise ValueError("copies in a database need a folder for the query's checkpoint: checkpoint='/path/of/a/folder'")
    if format == "iceberg":
        require_iceberg(spark, target, checkpoint)
    if storage and checkpoint is None:
        raise ValueError("copies in an object store need a place for the query's checkpoint: checkpoint='/path/of/a/folder'")
    trigger = trigger or {"processingTime": "0 seconds"}
    once = bool(trigger.get("availableNow")) and not has_read_limits()
    if not has_read_limits() and parsed.max_rows is None and parsed.max_bytes is None:
        given["maxBytesPerTrigger"] = str(MOST_BYTES)
    if once:  # of a Python source this Spark makes one micro-batch
        given["endingOffsets"] = "latest"
        trigger = {"processingTime": "0 seconds"}
    where = checkpoint or os.path.join(target.split("{", 1)[0], "_checkpoint")
    replication = Replication(
        parsed,
        target,
        format,
        keys=keys,
        history=history,
        password=password,
        storage=storage,
        checkpoint=where,
        optimize=optimize,
        session=spark,
        remove_dropped=remove_dropped,
        merge=merge,
    )
    replication.try_target()
    if snapshot:
        require_one_source(parsed.selection)
    if snapshot is True:
        there = replication.existing()
    elif snapshot:
        replication.begin_with(spark, snapshot)
    register(spark)
    writer = spark.readStream.format("shmstore").options(**given).load().writeStream.foreachBatch(replication)
    writer = writer.option("checkpointLocation", checkpoint_location(spark, where)).trigger(**trigger)
    query = (writer.queryName(name) if name else writer).start()
    if once:
        threading.Thread(target=_stop_at_end, args=(query,), daemon=True).start()
    if snapshot is True:
        InitialRows(parsed.selection, there, lambda: query.isActive).start()
    return query


def require_iceberg(spark: SparkSession, target: str, checkpoint: str | None) -> None:
    """Raise ValueError where copies cannot be kept in Iceberg's tables."""
    if is_connect(spark):
        raise ValueError(
            "format='iceberg' writes through the driver's JVM, which a session of Spark Connect does not reach: use a session of the driver's "
            "own, as SparkSession.builder.master('local[*]') or spark-submit gives, or another format"
        )
    if checkpoint is None:
        raise ValueError("format='iceberg' needs a folder for the query's checkpoint: checkpoint='/path/of/a/folder'")
    from shmstore.consumer.spark.replicate.iceberg import require_runtime

    require_runtime(spark, target)


def _stop_at_end(query: StreamingQuery) -> None:
    """Stop a query that has processed everything up to its endingOffsets, or one that failed, whose error stays its own."""
    with suppress(Exception):
        query.processAllAvailable()
    try:
        query.stop()
    except Exception as error:
        with suppress(Exception):  # the program that waited for the query's end may have ended Spark before stop() returns
            if query.isActive:
                _log.error("the query does not stop at the end of what was in the store: %s", str(error).partition("\n")[0])


def session_settings(*, local_checkpoints: bool = True) -> dict[str, Any]:
    """Return Spark settings that cut a micro-batch's fixed cost to a third, for ``SparkSession.builder.config(map=...)``.

    With `local_checkpoints` checkpoints are written by plain renames, without checksum files: for checkpoints on this host's disks
    alone. `checkpoint_location`, which `replicate` uses, goes further. PYSPARK_PYTHON, where it is not set, becomes
    this interpreter: Spark takes the workers' interpreter from the environment alone, and the first python3 on the PATH often
    lacks the packages.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.python.unix.domain.socket.enabled": "true",  # saves 78 of 180 ms a micro-batch
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        # when a query stops, Spark matches a Python traceback with a regular expression that overflows the usual stack
        "spark.driver.extraJavaOptions": "-Xss4m -XX:-UsePerfData",
    }
    if local_checkpoints:  # saves 44 of the 102 ms that are left
        package = "streaming.checkpointing" if version() >= (4, 1) else "streaming"
        settings["spark.sql.streaming.checkpointFileManagerClass"] = (
            f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
        )
        settings["spark.hadoop.fs.file.impl"] = "org.apache.hadoop.fs.RawLocalFileSystem"
    return settings
