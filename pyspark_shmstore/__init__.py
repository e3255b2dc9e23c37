"""Lets Spark find ``format("shmstore")`` by itself: it imports packages named ``pyspark_*`` and takes their DefaultSource."""

from shmstore.consumer.spark.source.source import ShmStoreSource as DefaultSource

__all__ = ["DefaultSource"]
