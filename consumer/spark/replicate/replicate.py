"""replicate: a copy of every table, kept up to date by one streaming query.

The query carries the events as they are (payload=raw), so that Spark moves bytes; they are decoded, reduced to the last
change of each key and merged in `foreachBatch`, table by table. The copy of a table knows the last batch that it holds,
so that a batch that Spark runs again changes nothing.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from shmstore.consumer.spark.decode.gc_pause import no_collector
from shmstore.consumer.spark.options import FORMATS, Options
from shmstore.consumer.spark.replicate.change_reduction import CannotFollow, Step, collect
from shmstore.consumer.spark.replicate.jdbc_connection import Database
from shmstore.consumer.spark.replicate.local_checkpoints import checkpoint_location
from shmstore.consumer.spark.source.source import register
from shmstore.errors import did_you_mean, install

_NO_FOLDER = re.compile(r"^[._]|[~%/{}\[\]\x00-\x1f]")  # delta-rs takes % for an escape of its own, and no brackets


class Target(Protocol):
    """The copy of one table."""

    def done(self, query: str, batch: int) -> bool:
        """True when this batch is in the copy."""

    def apply(self, steps: Sequence[Step], query: str, batch: int) -> None:
        """Bring the copy up to date; a batch that is done changes nothing."""


def _target(format: str, database: Database | None) -> Callable[[str, str], Target]:
    if (database is not None) != (format == "jdbc"):
        raise ValueError("url and format='jdbc' go together: format='jdbc', url='jdbc:postgresql://HOST/DATABASE'")
    if database is not None:
        from shmstore.consumer.spark.replicate.jdbc import JdbcTarget

        return partial(JdbcTarget, database)
    if format == "parquet":
        from shmstore.consumer.spark.replicate.parquet import ParquetTarget

        return ParquetTarget
    if format == "delta":
        try:
            from shmstore.consumer.spark.replicate.delta import DeltaTarget
        except ImportError as error:
            raise ImportError(f"format='delta' needs deltalake, which is not installed: {install('delta')}") from error
        return DeltaTarget
    raise ValueError(f"format {format!r} is unknown; choose from {', '.join(FORMATS)}{did_you_mean(format, FORMATS)}")


class Replication:
    """The function that `foreachBatch` calls: brings every table's copy up to date with one micro-batch."""

    def __init__(
        self,
        options: Options,
        target: str,
        format: str = "delta",
        *,
        keys: Mapping[str, Sequence[str]] | None = None,
        history: bool = False,
        database: Database | None = None,
    ) -> None:
        if "{table}" not in target:
            raise ValueError(
                f"target {target!r} must contain {{table}}, and {{database}} if tables of several databases are copied"
            )
        self._options = options
        self._template = target.replace("{schema}", "{database}")
        self._database = database
        self._open = _target(format, database)
        self._keys = {name: tuple(columns) for name, columns in (keys or {}).items()}
        self._history = history
        self._targets: dict[tuple[str | None, str, str], Target] = {}

    def path(self, database: str, table: str, source: str | None = None) -> str:
        """Return where the copy of a table is: a path, or a table's name. `source` is its server, in a store of several."""
        return self._template_of(source).replace("{database}", self._named(database)).replace("{table}", self._named(table))

    def _named(self, name: str) -> str:
        """A name as part of a copy's path: one folder, inside the target, that Spark does not take for hidden."""
        if self._database is None:
            return _NO_FOLDER.sub(lambda found: f"~{ord(found[0]):02X}", name)
        if "." in name:
            raise CannotFollow(
                f"the name {name!r} has a dot, which separates schema and table in a database: leave the table out (tables='*,!*.{name}')"
            )
        return name

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
        session = frame.sparkSession
        query = session.sparkContext.getLocalProperty("sql.streaming.queryId") or "shmstore"
        rows = frame.select("sequence", "payload", "source").toArrow().sort_by("sequence")
        names = rows.column("source").unique().to_pylist()
        found = {name: rows.filter(pc.equal(rows.column("source"), name)) if len(names) > 1 else rows for name in names}
        self.apply_each({name: _payloads(some.column("payload")) for name, some in found.items()}, query, batch)

    def apply(self, payloads: Iterable[Any], query: str, batch: int) -> int:
        """Apply encoded events, in order, as one batch of a query; return how many rows changed in them."""
        return self.apply_each({None: payloads}, query, batch)

    def apply_each(self, payloads: Mapping[str | None, Iterable[Any]], query: str, batch: int) -> int:
        """The same with the events of each source, in a store of several."""
        rows = 0
        with self._writing():
            for source, events in payloads.items():
                with no_collector():
                    copies = partial(self._copies, self._template_of(source))
                    changes = collect(events, self._options, self._keys, self._history, copies, source)
                for (database, table), change in changes.items():
                    steps = change.finish()
                    rows += change.rows
                    if steps:
                        self._target(source, database, table).apply(steps, query, batch)
        return rows

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction for all tables, where the copies are in a database."""
        if self._database is None:
            yield
            return
        try:
            with self._database.transaction():
                yield
        except BaseException:
            self._targets.clear()  # the state that they remember was rolled back
            raise

    def _target(self, source: str | None, database: str, table: str) -> Target:
        target = self._targets.get((source, database, table))
        if target is None:
            target = self._open(self.path(database, table, source), f"{database}.{table}")
            self._targets[source, database, table] = target
        return target

    def _copies(self, template: str, database: str) -> list[str]:
        """The tables of a database that have a copy: a DROP DATABASE drops them all."""
        head, tail = template.replace("{database}", self._named(database)).split("{table}", 1)
        if self._database is not None:
            from shmstore.consumer.spark.replicate.jdbc import tables_like

            return tables_like(self._database, head, tail)
        found = glob.glob(glob.escape(head) + "*" + glob.escape(tail))
        names = [path[len(head) : len(path) - len(tail)] for path in found if not os.path.basename(path).startswith("_")]
        return [re.sub("~(..)", lambda code: chr(int(code[1], 16)), name) for name in names]


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
) -> StreamingQuery:
    """Keep a copy of every table of `tables` in `target`; return the running query.

    `target` is a path with ``{database}`` and ``{table}``, and ``{source}`` where the store has several. `format` is delta, parquet or jdbc: with jdbc the
    copies are tables of the database (PostgreSQL, MariaDB, MySQL) at `url`, `target` is ``{database}.{table}`` or such, `properties` are those of the
    driver (user, password), `checkpoint` must be given, and every micro-batch is one transaction over all tables. `keys` names the key columns of
    tables without a primary key, as ``{"shop.log": ["id"]}``. With `history` every version of a row is kept (SCD type 2:
    ``_valid_from``, ``_valid_to``, ``_current``, ``_seq``). `trigger` is what ``DataStreamWriter.trigger`` takes
    (``{"availableNow": True}``; as fast as it goes by default). `options` are further options of the source.
    The checkpoint is kept in ``_checkpoint`` next to the copies where none is given.

    Deletes, changed keys of rows, another primary key, TRUNCATE, DROP, and ADD, DROP, RENAME, CHANGE and MODIFY COLUMN are
    followed; what cannot be followed stops the query with a message that says what to do. Each batch lands in each table once.
    """
    given = {
        "store": store,
        "subscription": subscription,
        "tables": tables if isinstance(tables, str) else ",".join(tables),
        **(options or {}),
        "payload": "raw",
        "includeDdl": "true",
    }
    parsed = Options.parse(given)
    if url is not None and checkpoint is None:
        raise ValueError("format='jdbc' needs a folder for the query's checkpoint: checkpoint='/path/of/a/folder'")
    database = None if url is None else Database(spark, url, properties)
    replication = Replication(parsed, target, format, keys=keys, history=history, database=database)
    if database is not None:
        database.connect()  # a wrong URL or account is an error before a query runs
    register(spark)
    where = checkpoint or os.path.join(target.split("{", 1)[0], "_checkpoint")
    writer = spark.readStream.format("shmstore").options(**given).load().writeStream.foreachBatch(replication)
    writer = writer.option("checkpointLocation", checkpoint_location(spark, where)).trigger(
        **(trigger or {"processingTime": "0 seconds"})
    )
    return (writer.queryName(name) if name else writer).start()


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
        settings["spark.sql.streaming.checkpointFileManagerClass"] = (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        )
        settings["spark.hadoop.fs.file.impl"] = "org.apache.hadoop.fs.RawLocalFileSystem"
    return settings
