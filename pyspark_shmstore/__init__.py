"""Lets Spark find ``format("shmstore")`` on its own: it imports packages named ``pyspark_*`` and takes their DefaultSource."""

from shmstore.consumer.spark.source.source import ShmStoreSource as DefaultSource

__all__ = ["DefaultSource"]
