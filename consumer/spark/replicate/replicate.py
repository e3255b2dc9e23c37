"""replicate: a copy of every table, kept up to date by one streaming query.

The query carries the events as they are (payload=raw), so that Spark moves bytes; they are decoded, reduced to the last
change of each key and merged in `foreachBatch`, table by table. The copy of a table knows the last batch that it holds,
so that a batch that Spark runs again changes nothing. A table whose rows only the server knows is read again, by a snapshot of
that one table which is asked of the producer; the others go on meanwhile.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from shmstore import StoreView
from shmstore.consumer.spark.callbacks import answering
from shmstore.consumer.spark.decode.worker_memory import no_collector
from shmstore.consumer.spark.options import FORMATS, SourceOptions
from shmstore.consumer.spark.replicate import executor_rows
from shmstore.consumer.spark.replicate.change_reduction import OURS, CannotCopy, CannotFollow, Columns, collect
from shmstore.consumer.spark.replicate.copy import Copy, Target
from shmstore.consumer.spark.replicate.executor_rows import SourceTables
from shmstore.consumer.spark.replicate.initial_rows import InitialRows, exactly, require_one_source
from shmstore.consumer.spark.replicate.jdbc_connection import Database
from shmstore.consumer.spark.replicate.local_checkpoints import checkpoint_location
from shmstore.consumer.spark.source.batch_planner import MOST_BYTES
from shmstore.consumer.spark.source.source import register
from shmstore.consumer.spark.spark_version import has_read_limits, is_connect, version
from shmstore.encoding.codec import Header
from shmstore.errors import StoreError, did_you_mean, install
from shmstore.event import Position
from shmstore.home.definitions import DefinitionsFile
from shmstore.home.reader_state import copies_aside, keep_aside
from shmstore.home.snapshots import request_snapshot
from shmstore.sql.names import folded

_log = logging.getLogger(__name__)
# delta-rs takes % for an escape of its own and a backslash for a slash, and panics at some others
_NO_FOLDER = re.compile(r"^[._]|[~%/\\{}\[\]^|\x00-\x1f\x7f]")


def _target(
    format: str, database: Database | None, storage: Mapping[str, str] | None, optimize: int, session: SparkSession | None
) -> Callable[[str, str], Target]:
    if (database is not None) != (format == "jdbc"):
        raise ValueError("url and format='jdbc' go together: format='jdbc', url='jdbc:postgresql://HOST/DATABASE'")
    if storage and format != "delta":
        raise ValueError(f"storage options are for object stores, which format={format!r} does not write to: format='delta' does")
    if optimize and format != "delta":
        raise ValueError(f"optimize={optimize} puts a Delta table's small files together; format={format!r} has none")
    if database is not None:
        from shmstore.consumer.spark.replicate.jdbc import JdbcTarget

        return partial(JdbcTarget, database)
    if format == "iceberg":
        if session is None:
            raise ValueError("format='iceberg' is written by Spark: give its session")
        from shmstore.consumer.spark.replicate.iceberg import IcebergTarget

        return partial(IcebergTarget, session)
    if format == "parquet":
        from shmstore.consumer.spark.replicate.parquet import ParquetTarget

        return ParquetTarget
    if format == "delta":
        try:
            from shmstore.consumer.spark.replicate.delta import DeltaTarget
        except ImportError as error:
            raise ImportError(f"format='delta' needs deltalake, which is not installed: {install('delta')}") from error
        return partial(DeltaTarget, storage=storage, optimize=optimize)
    raise ValueError(f"format {format!r} is unknown; choose from {', '.join(FORMATS)}{did_you_mean(format, FORMATS)}")


def _folder_of_next(path: str, number: int) -> str:
    """A folder inside the copy's own, which readers of the copy do not look at."""
    return f"{path}/_next-{number:x}"


class Replication:
    """The function that `foreachBatch` calls: brings every table's copy up to date with one micro-batch."""

    def __init__(
        self,
        options: SourceOptions,
        target: str,
        format: str = "delta",
        *,
        keys: Mapping[str, Sequence[str]] | None = None,
        history: bool = False,
        database: Database | None = None,
        storage: Mapping[str, str] | None = None,
        checkpoint: str | None = None,
        optimize: int = 0,
        session: SparkSession | None = None,
        remove_dropped: bool = False,
    ) -> None:
        if "{table}" not in target:
            raise ValueError(
                f"target {target!r} must contain {{table}}, and {{database}} if tables of several databases are copied"
            )
        self._options, self._format = options, format
        self._template = target.replace("{schema}", "{database}")
        self._database = database
        self._catalog = session if format == "iceberg" else None
        self._checkpoint = checkpoint
        self._query = ""
        self._open, self._storage = _target(format, database, storage, optimize, session), storage
        self._place_of_next: Callable[[str, int], str] = _folder_of_next
        if database is not None:
            from shmstore.consumer.spark.replicate.jdbc import place_of_next

            self._place_of_next = place_of_next
        elif self._catalog is not None:
            from shmstore.consumer.spark.replicate.iceberg import place_of_next as iceberg_place_of_next

            self._place_of_next = iceberg_place_of_next
        self._keys = {name: tuple(columns) for name, columns in (keys or {}).items()}
        self._history, self._remove_dropped = history, remove_dropped
        if remove_dropped and "://" in target:
            raise ValueError(
                "remove_dropped=True removes copies in folders, databases and catalogs, not in an object store: leave it out"
            )
        self._copies: dict[tuple[str | None, str, str], Copy] = {}
        self._known: dict[str | None, dict[tuple[str, str], Columns]] = {}
        self._asked: set[str] = set()
        self._home = StoreView.home_of(options.store, path=options.store_path, state=options.state_directory)
        self._aside = set(copies_aside(self._home).get(options.subscription, []))  # as the run before left them
        if self._aside:
            _log.warning(
                "copies that do not follow their tables since an earlier run (%s): %s",
                "set aside, or to be read again",
                ", ".join(sorted(self._aside)),
            )

    def path(self, database: str, table: str, source: str | None = None) -> str:
        """Return where the copy of a table is: a path, or a table's name. `source` is its server, in a store of several."""
        return self._template_of(source).replace("{database}", self._named(database)).replace("{table}", self._named(table))

    def _named(self, name: str) -> str:
        """A name as part of a copy's path: one folder, inside the target, that Spark does not take for hidden."""
        if not self._in_names:
            return _NO_FOLDER.sub(lambda found: f"~{ord(found[0]):02X}", name)
        if "." in name or name.lower().startswith(OURS):
            why = (
                "has a dot, which separates schema and table"
                if "." in name
                else f"begins with {OURS}, as tables of replicate's own do"
            )
            raise CannotCopy(f"the name {name!r} {why}: copies in a database or a catalog cannot be called so")
        return name

    @property
    def _in_names(self) -> bool:
        """Whether copies have names, ``schema.table``, and no folders of ours."""
        return self._database is not None or self._catalog is not None

    def _template_of(self, source: str | None) -> str:
        if (source is None) == ("{source}" in self._template):
            raise CannotFollow(
                f"target {self._template!r} contains {{source}}, but the store has one source: leave {{source}} out"
                if source is None
                else f"the store has several sources, whose tables may have the same names: give target a {{source}}, as in {{source}}/{self._template}"
            )
        return self._template.replace("{source}", self._named(source or ""))

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Apply one micro-batch of payload=raw."""
        with answering():
            session = frame.sparkSession
            query = self._query_of(session)
            rows = frame.select("sequence", "payload", "source").toArrow().sort_by("sequence")
            names = rows.column("source").unique().to_pylist()
            found = {name: rows.filter(pc.equal(rows.column("source"), name)) if len(names) > 1 else rows for name in names}
            self.apply_each({name: _payloads(some.column("payload")) for name, some in found.items()}, query, batch)

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

    def _query_of(self, session: SparkSession) -> str:
        """The id of the query that calls: a property of its session, or, under Spark Connect, in its checkpoint."""
        if not is_connect(session):
            return session.sparkContext.getLocalProperty("sql.streaming.queryId") or "shmstore"
        if not self._query:
            if self._checkpoint is None:
                raise ValueError(
                    "under Spark Connect Replication needs the query's checkpoint: Replication(..., checkpoint='/path')"
                )
            (line,) = session.read.text(f"{self._checkpoint}/metadata").collect()
            self._query = str(json.loads(line.value)["id"])
        return self._query

    def apply(self, payloads: Iterable[Any], query: str, batch: int) -> int:
        """Apply encoded events, in order, as one batch of a query; return how many rows changed in them."""
        return self.apply_each({None: payloads}, query, batch)

    def apply_each(self, payloads: Mapping[str | None, Iterable[Any]], query: str, batch: int) -> int:
        """The same with the events of each source, in a store of several."""
        rows, waiting, aside = 0, list[tuple[str, str]](), set(self._aside)
        with self._writing():
            for source, events in payloads.items():
                known = self._known.setdefault(source, {})
                with no_collector():
                    there = partial(self._copied, source)
                    before = partial(self._columns_before, source)
                    changes = collect(events, self._options, self._keys, self._history, there, source, known, before)
                for (database, table), change in changes.items():
                    steps = change.finish()
                    rows += change.rows
                    known[database, table] = change.known
                    if not steps:
                        continue
                    name = _full_name(source, database, table)
                    try:
                        copy = self._copy(source, database, table)
                    except CannotCopy as error:
                        if name not in aside:
                            _log.warning("%s has no copy, and the others continue: %s", name, error)
                        aside.add(name)
                        continue
                    if not copy.done(query, batch):
                        copy.apply(steps, query, batch)
                    (aside.add if copy.aside else aside.discard)(name)
                    if copy.wanted and source is None:
                        waiting.append((name, copy.wanted))
        if aside != self._aside:
            self._aside = aside
            keep_aside(self._home, self._options.subscription, aside)
        for name, request in waiting:  # now that the copies' state is kept; asked for again, it is the same request
            self._ask(name, request)
        return rows

    def _columns_before(self, source: str | None, name: tuple[str, str], ddl: Header, fresh: bool) -> Columns:
        """The columns that a DDL found, as the store's producer wrote them down, or else, where the copy is as it was before it, as that has them."""
        with suppress(StoreError):  # not ours to read
            definitions = DefinitionsFile(self._home, source or "").read()
            before = Position(ddl.file, ddl.offset - 1)  # at its end is what the DDL made of them
            found = [one for one in definitions if one.name == name and one.reached_by(before)]
            if found and found[-1].schema is not None:
                return {folded(column.name): column for column in found[-1].schema.columns}
        return self._copy(source, *name).target.columns if fresh else {}

    def _ask(self, name: str, request: str) -> None:
        if request not in self._asked:
            self._asked.add(request)
            options = self._options
            request_snapshot(options.store, exactly(name), state=self._home.state, reason="reread", id=request)

    @property
    def aside(self) -> list[str]:
        """The tables whose copies do not follow them now, as ``database.table``, with ``SOURCE:`` before it in a store of several."""
        return sorted(self._aside)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A transaction to look at copies in, where they are in a database."""
        with nullcontext() if self._database is None else self._database.transaction():
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction for all tables, where the copies are in a database."""
        try:
            if self._database is None:
                yield
            else:
                with self._database.transaction():
                    yield
        except BaseException:
            self._copies.clear()  # the state that they remember may not be what is there
            self._known.clear()
            raise

    def _copy(self, source: str | None, database: str, table: str) -> Copy:
        copy = self._copies.get((source, database, table))
        if copy is None:
            path, name = self.path(database, table, source), f"{database}.{table}"
            copy = Copy(
                self._open,
                path,
                name,
                self._place_of_next,
                history=self._history,
                store=self._options.store,
                aside=source is None and _full_name(source, database, table) in self._aside,
                reads_again=source is None,
                remove_dropped=self._remove_dropped,
            )
            self._copies[source, database, table] = copy
        return copy

    def existing(self) -> list[str]:
        """Return patterns that match the tables that have a copy."""
        found = self._listed(None)
        if "{database}" not in self._template:
            return [f"regex:.*\\.{exactly(table).removeprefix('regex:')}" for _, table in found]
        return sorted(exactly(f"{database}.{table}") for database, table in found)

    def _copied(self, source: str | None, database: str | None) -> list[tuple[str, str]]:
        """The tables of a database, or with None of all, that have a copy. Raises `CannotFollow` where that is not known."""
        if database is not None:
            return [(database, table) for table in self._existing(self._template_of(source), database)]
        if "{database}" not in self._template or "://" in self._template:
            raise CannotFollow(
                f"which copies in {self._template!r} a rolled back XA transaction, or a statement that cannot be read, concerns is not known: ask for "
                f"the rows of all with shmstore snapshot {self._options.store}, into a new target"
            )
        return self._listed(source)

    def _listed(self, source: str | None) -> list[tuple[str, str]]:
        """The database, where the target says it, and the table of each copy."""
        if "://" in self._template:
            raise ValueError(
                f"copies in {self._template!r} cannot be listed, so which are missing is not known: ask with shmstore snapshot {self._options.store}"
            )
        parts = re.split(r"\{(database|table)\}", self._template_of(source))
        if self._database is not None:
            from shmstore.consumer.spark.replicate.jdbc import all_tables

            names = all_tables(self._database)
        elif self._catalog is not None:
            from shmstore.consumer.spark.replicate.iceberg import all_tables as tables_of_catalog

            names = tables_of_catalog(self._catalog, self._template.split(".")[0])
        else:
            names = glob.glob("".join("*" if i % 2 else glob.escape(part) for i, part in enumerate(parts)))
        pattern = "".join(f"(?P<{part}>[^/]+)" if i % 2 else re.escape(part) for i, part in enumerate(parts))
        found = [match.groupdict() for match in map(re.compile(pattern).fullmatch, names) if match]
        return [
            (self._unnamed(match.get("database", "")), self._unnamed(match["table"]))
            for match in found
            if not match["table"].startswith("_")
        ]

    def _unnamed(self, name: str) -> str:
        """The name that `_named` made this part of a path of."""
        return name if self._in_names else re.sub("~(..)", lambda code: chr(int(code[1], 16)), name)

    def _existing(self, template: str, database: str) -> list[str]:
        """The tables of a database that have a copy: a DROP DATABASE drops them all."""
        try:
            self._named(database)
        except CannotCopy:
            return []
        head, tail = template.replace("{database}", self._named(database)).split("{table}", 1)
        if self._database is not None:
            from shmstore.consumer.spark.replicate.jdbc import tables_like

            return tables_like(self._database, head, tail)
        if self._catalog is not None:
            from shmstore.consumer.spark.replicate.iceberg import tables_like as copies_like

            return copies_like(self._catalog, head, tail)
        if "://" in head:
            from shmstore.consumer.spark.replicate.delta import folders

            parent, _, prefix = head.rpartition("/")
            end = tail.partition("/")[0]
            names = [name for name in folders(f"{parent}/", self._storage) if name.startswith(prefix) and name.endswith(end)]
            return [self._unnamed(name[len(prefix) : len(name) - len(end)]) for name in names if not name.startswith("_")]
        found = glob.glob(glob.escape(head) + "*" + glob.escape(tail))
        names = [path[len(head) : len(path) - len(tail)] for path in found if not os.path.basename(path).startswith("_")]
        return [self._unnamed(name) for name in names]


def _full_name(source: str | None, database: str, table: str) -> str:
    return f"{database}.{table}" if source is None else f"{source}:{database}.{table}"


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
    format: str = "delta",
    checkpoint: str | None = None,
    subscription: str = "replicate",
    keys: Mapping[str, Sequence[str]] | None = None,
    history: bool = False,
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    name: str | None = None,
    url: str | None = None,
    properties: Mapping[str, str] | None = None,
    snapshot: bool | SourceTables = False,
    storage: Mapping[str, str] | None = None,
    optimize: int = 0,
    remove_dropped: bool = False,
) -> StreamingQuery:
    """Keep a copy of every table of `tables` in `target`; return the running query.

    `target` is a path with ``{database}`` and ``{table}``, and ``{source}`` where the store has several. `format` is delta, iceberg, parquet
    or jdbc: with iceberg `target` is ``catalog.{database}.{table}`` of a catalog that Spark is configured with, and `checkpoint` must be given; with jdbc the
    copies are tables of the database (PostgreSQL, MariaDB, MySQL) at `url`, `target` is ``{database}.{table}`` or such, `properties` are those of the
    driver (user, password), `checkpoint` must be given, and every micro-batch is one transaction over all tables. `keys` names the key columns of
    tables without a primary key, as ``{"shop.log": ["id"]}``. With `history` every version of a row is kept (SCD type 2:
    ``_valid_from``, ``_valid_to``, ``_current``, ``_seq``). `trigger` is what ``DataStreamWriter.trigger`` takes
    (``{"availableNow": True}``; as fast as it goes by default). `options` are further options of the source.
    The checkpoint is kept in ``_checkpoint`` next to the copies where none is given. With `snapshot` the rows of the tables that have no
    copy yet are asked of the store's producer, and the log (``shmstore``, at INFO) says how far that is. `storage` are delta-rs's storage options, for
    copies in an object store: ``target="s3://lake/{database}/{table}"``, ``storage={"AWS_REGION": ...}``; then `checkpoint` must
    be given. With `remove_dropped` a copy goes when its table is dropped or gets another name; otherwise it stays, without rows.
    After each `optimize` commits to a Delta table its small files are put together, and files that no version of the last week needs are removed.
    Where `snapshot` is a `shmstore.producer.ServerTables`, of the producer's settings, Spark's executors read those rows straight from the server, before
    the query starts and this returns: into Delta or Parquet, in folders that driver and executors see.

    Whatever a DDL does, a copy has its table's rows in the end: what only the server knows is read again, by a snapshot that is asked for;
    what cannot be copied is set aside, which the log says, while the others go on. Each batch lands in each table once.
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
    if url is not None and checkpoint is None:
        raise ValueError("format='jdbc' needs a folder for the query's checkpoint: checkpoint='/path/of/a/folder'")
    if url is not None and is_connect(spark):
        raise ValueError(
            "format='jdbc' writes through the driver's JVM, which a session of Spark Connect does not reach: use a session of the driver's "
            "own, as SparkSession.builder.master('local[*]') or spark-submit gives, or another format"
        )
    if format == "iceberg":
        _require_iceberg(spark, target, checkpoint)
    if storage and checkpoint is None:
        raise ValueError("copies in an object store need a place for the query's checkpoint: checkpoint='/path/of/a/folder'")
    database = None if url is None else Database(spark, url, properties)
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
        database=database,
        storage=storage,
        checkpoint=where,
        optimize=optimize,
        session=spark,
        remove_dropped=remove_dropped,
    )
    if database is not None:
        database.connect()  # a wrong URL or account is an error before a query runs
    if snapshot:
        require_one_source(parsed)
    if snapshot is True:
        with replication.reading():
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
        InitialRows(parsed, there, lambda: query.isActive).start()
    return query


def _require_iceberg(spark: SparkSession, target: str, checkpoint: str | None) -> None:
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


def session_settings(*, local_checkpoints: bool = True) -> dict[str, bool | float | int | str | None]:
    """Return Spark settings that cut a micro-batch's fixed cost to a third, for ``SparkSession.builder.config(map=...)``.

    With `local_checkpoints` checkpoints are written by plain renames, without checksum files: for checkpoints on this host's disks
    alone. `checkpoint_location`, which `replicate` uses by itself, goes further. PYSPARK_PYTHON, where it is not set, becomes
    this interpreter: Spark takes the workers' interpreter from the environment alone, and the first python3 on the PATH often
    lacks the packages.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings: dict[str, bool | float | int | str | None] = {
        "spark.python.unix.domain.socket.enabled": "true",  # saves 78 of 180 ms a micro-batch
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.ui.enabled": "false",
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
