"""Spark in: ``spark.readStream.format("shmstore")``, and copies of tables in one call."""

from consumer.spark.checkpoint import checkpoint_location
from consumer.spark.lag import Lag, LagListener
from consumer.spark.loop import each_batch
from consumer.spark.replicate import Replication, replicate, session_settings
from consumer.spark.source import ShmStoreSource, register

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
