"""Spark in: ``spark.readStream.format("shmstore")``, and copies of tables in one call."""

from typing import NoReturn

try:
    from consumer.spark.checkpoint import checkpoint_location
    from consumer.spark.lag import Lag, LagListener
    from consumer.spark.loop import each_batch
    from consumer.spark.replicate import Replication, replicate, session_settings
    from consumer.spark.source import ShmStoreSource, register
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("pyspark", "py4j", "pyarrow", "pandas"):
        raise
    _missing = error

    def __getattr__(name: str) -> NoReturn:
        """Without pyspark the command line still explains itself, and whoever asks for a name is told what is missing."""
        if name in __all__:
            raise _missing
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Lag",
    "LagListener",
    "Replication",
    "ShmStoreSource",
    "checkpoint_location",
    "each_batch",
    "register",
    "replicate",
    "session_settings",
]
