"""Spark in: ``spark.readStream.format("shmstore")``, and copies of tables in one call."""

from typing import NoReturn

from shmstore.consumer.spark import spark_version

_missing: ImportError | None = None
try:
    spark_version.check()
    from shmstore.consumer.spark.replicate.apply_changes import apply_changes
    from shmstore.consumer.spark.replicate.local_checkpoints import checkpoint_location
    from shmstore.consumer.spark.replicate.replicate import Replication, replicate, session_settings
    from shmstore.consumer.spark.source.foreach import each_batch
    from shmstore.consumer.spark.source.frames import changes
    from shmstore.consumer.spark.source.lag import Lag, LagListener
    from shmstore.consumer.spark.source.server_table import read_table
    from shmstore.consumer.spark.source.source import ShmStoreSource, register
except ModuleNotFoundError as error:
    if spark_version.runs_for_spark():
        raise spark_version.lacks(error) from error
    if (error.name or "").partition(".")[0] not in ("pyspark", "py4j", "pyarrow", "pandas"):
        raise
    _missing = error
except spark_version.SparkTooOld as error:
    _missing = error

if _missing is not None:

    def __getattr__(name: str) -> NoReturn:
        """Without pyspark the command line still explains itself, and the error at a name says what is missing."""
        if name in __all__:
            assert _missing is not None
            raise _missing
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Lag",
    "LagListener",
    "Replication",
    "ShmStoreSource",
    "apply_changes",
    "changes",
    "checkpoint_location",
    "each_batch",
    "read_table",
    "register",
    "replicate",
    "session_settings",
]
