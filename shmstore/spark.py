"""Spark in: ``spark.readStream.format("shmstore")``, and copies of tables in one call. The short name of `shmstore.consumer.spark`."""

from shmstore.consumer.spark import *  # noqa: F403
from shmstore.consumer.spark import __all__ as __all__
