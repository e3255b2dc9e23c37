"""Which target a name is: ``/lake/{database}/{table}`` with a format, or a database's URL."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from shmstore.consumer.copies.database_url import KINDS as DATABASES
from shmstore.consumer.copies.databases.database import Password
from shmstore.consumer.copies.databases.target import database_target
from shmstore.consumer.copies.kinds import TargetOptions, duckdb
from shmstore.consumer.copies.reading.address import parse
from shmstore.consumer.copies.target import Target
from shmstore.consumer.copies.targets.folders import AT_ONCE, Folders
from shmstore.consumer.spark.options import FORMATS, MERGES
from shmstore.consumer.spark.spark_version import is_connect
from shmstore.errors import did_you_mean, install

_DUCKDB = ("duckdb", "ducklake")


def is_database(target: str) -> bool:
    """Whether a target is the URL of a database."""
    return target.partition(":")[0] in (*DATABASES, *_DUCKDB)


def chosen_target(
    format: str,
    target: str,
    password: Password,
    storage: Mapping[str, str] | None,
    optimize: int,
    session: SparkSession | None,
    merge: str = "driver",
) -> tuple[Target, str]:
    """Return what holds the copies, and the template of their paths in it. Raises ValueError, and ImportError where a package is missing."""
    if merge not in MERGES:
        raise ValueError(f"merge={merge!r} is unknown; choose from {', '.join(MERGES)}{did_you_mean(merge, MERGES)}")
    if merge == "executors":
        _check_executors(format, target, storage, session)
    if is_database(target):
        if format or storage or optimize:
            raise ValueError(
                "copies in a database have no format, storage options or files: leave out format, storage and optimize"
            )
        kind, _, place = target.partition(":")
        if kind in _DUCKDB:
            opened = duckdb(place, TargetOptions(), kind)
            return opened.target, opened.template
        address = parse(target)
        return database_target(address.url, password), address.name
    if storage and format not in ("", "delta"):
        raise ValueError(f"storage options are for object stores, which format={format!r} does not write to: format='delta' does")
    if optimize and format not in ("", "delta"):
        raise ValueError(f"optimize={optimize} puts a Delta table's small files together; format={format!r} has none")
    return _files(format or "delta", storage, optimize, session, merge), target


def _check_executors(format: str, target: str, storage: Mapping[str, str] | None, session: SparkSession | None) -> None:
    """Raise ValueError where executors cannot merge the rows."""
    if is_database(target) or format not in ("", "delta", "iceberg"):
        raise ValueError(
            "merge='executors' is for copies in Delta and Iceberg, which Spark's executors can write to: give format='delta' or 'iceberg', or leave out "
            "merge"
        )
    if session is None or is_connect(session):
        raise ValueError(
            "merge='executors' runs statements in the driver's JVM, which a session of Spark Connect does not reach: use a session of the driver's own, "
            "or leave out merge"
        )
    if format != "iceberg" and (storage or "://" in target):
        raise ValueError(
            "merge='executors' writes Delta tables in a folder that driver and executors see, such as a mounted one; in an object store "
            "format='iceberg' does, or leave out merge"
        )


def _files(format: str, storage: Mapping[str, str] | None, optimize: int, session: SparkSession | None, merge: str) -> Target:
    if format == "iceberg":
        if session is None:
            raise ValueError("format='iceberg' is written by Spark: give its session")
        from shmstore.consumer.spark.replicate.iceberg import IcebergTarget

        return IcebergTarget(session)
    if format == "parquet":
        from shmstore.consumer.copies.targets.parquet import ParquetTable

        return Folders(ParquetTable, at_once=AT_ONCE)
    if format == "delta":
        try:
            from shmstore.consumer.copies.targets import delta
        except ImportError as error:
            raise ImportError(f"format='delta' needs deltalake, which is not installed: {install('delta')}") from error
        if merge == "executors" and session is not None:
            from shmstore.consumer.spark.replicate import spark_delta

            spark_delta.require_delta(session)
            return spark_delta.target(session, optimize)
        return delta.target(storage, optimize)
    databases = ", and a database is named by its URL: target='postgresql://USER@HOST/DATABASE#{database}.{table}'"
    raise ValueError(
        f"format {format!r} is unknown; choose from {', '.join(FORMATS)}{databases if format == 'jdbc' else did_you_mean(format, FORMATS)}"
    )
