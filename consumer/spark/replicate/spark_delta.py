"""Delta tables whose rows Spark's executors merge, by delta-spark. What has no rows (columns, marks, an emptied table) delta-rs commits, as where
the driver merges.

The mark of the query is the transaction of an application in Delta's log (txnAppId, txnVersion): delta-spark commits it with the rows, and does nothing
where it is there already; delta-rs reads it. Both see the same table, one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from shmstore.consumer.copies.change_reduction import HISTORY, RowsElsewhere, Step
from shmstore.consumer.copies.targets.delta import DeltaLakeTable
from shmstore.consumer.copies.targets.folders import AT_ONCE, Folders
from shmstore.consumer.spark.replicate.java_errors import of_one_copy
from shmstore.consumer.spark.replicate.merge_sql import quoted, source_of, viewed, without_rows
from shmstore.consumer.spark.replicate.sessions import Sessions
from shmstore.consumer.spark.spark_version import version

_RELEASE = "4.4.0"
_FOR = ((4, 0), (4, 1), (4, 2))  # that delta-spark of this release is made for
_EXTENSION, _CATALOG = "io.delta.sql.DeltaSparkSessionExtension", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_TXN = "spark.databricks.delta.write.txn"


def require_delta(session: SparkSession) -> None:
    """Raise ValueError where the session has no delta-spark; the message says how to get it."""
    conf = session.conf
    there = _EXTENSION in conf.get("spark.sql.extensions", "") and conf.get("spark.sql.catalog.spark_catalog", "") == _CATALOG  # type: ignore[operator]
    if there:
        return
    found = ".".join(map(str, version()))
    if version() not in _FOR:
        raise ValueError(
            f"merge='executors' into Delta tables needs delta-spark, and there is none for Spark {found}: use Spark 4.0, 4.1 or 4.2 (pip install "
            "'pyspark==4.2.*'), or leave out merge"
        )
    raise ValueError(
        f"merge='executors' into Delta tables needs delta-spark for Spark {found}, which this session does not have: start Spark with --packages "
        f"io.delta:delta-spark_{found}_2.13:{_RELEASE} --conf spark.sql.extensions={_EXTENSION} --conf spark.sql.catalog.spark_catalog={_CATALOG}"
    )


def target(session: SparkSession, optimize: int = 0) -> Folders:
    """Return the target whose copies are Delta tables in folders that driver and executors see."""
    sessions = Sessions(session)
    return Folders(lambda path, name: SparkDeltaTable(path, name, sessions, optimize), at_once=AT_ONCE)


class SparkDeltaTable(DeltaLakeTable):
    """One table's copy, into which `sessions` merge the rows that executors hold."""

    def __init__(self, path: str, name: str, sessions: Sessions, optimize: int = 0) -> None:
        super().__init__(path, name, None, optimize)
        self._sessions = sessions

    def commit(self, step: Step | None, marks: Mapping[str, int]) -> None:
        """`TargetTable.commit`."""
        if not isinstance(step, RowsElsewhere):
            super().commit(step, marks)
            return
        ((query, number),) = [(name, number) for name, number in marks.items() if name != HISTORY]
        if self._table is None:
            super().commit(without_rows(step), {name: number for name, number in marks.items() if name == HISTORY})
        else:
            self._fit(without_rows(step), self._now(marks))
        source = source_of(step, self._sample().column_names, _no_rows)
        marked = {f"{_TXN}AppId": query, f"{_TXN}Version": str(number)}
        with (
            self._writing(),
            of_one_copy(self._path, self._name),
            viewed(source.frame) as rows,
            self._sessions.with_settings(marked) as session,
        ):
            session.sql(source.statement(self._called, rows))
        self._table = self._opened()
        if self.mark(query) < number:
            super().commit(None, {query: number})  # the statement changed nothing
        else:
            self._tidy()

    def _put_together(self) -> None:
        with self._sessions.with_settings({}) as session:
            session.sql(f"OPTIMIZE {self._called}")
            session.sql(f"VACUUM {self._called}")

    @property
    def _called(self) -> str:
        return f"delta.{quoted(os.path.abspath(self._path))}"


def _no_rows(rows: pa.Table) -> DataFrame:
    raise AssertionError(f"{len(rows)} rows came to the driver")
