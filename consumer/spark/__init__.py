"""Spark in: ``spark.readStream.format("shmstore")``, and copies of tables in one call."""

from consumer.spark.replicate import Replication, replicate, session_settings
from consumer.spark.source import ShmStoreSource, register

__all__ = ["Replication", "ShmStoreSource", "register", "replicate", "session_settings"]
