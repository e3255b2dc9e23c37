"""Spark in: ``spark.readStream.format("shmstore")``."""

from consumer.spark.source import ShmStoreSource, register

__all__ = ["ShmStoreSource", "register"]
