"""Spark in: ``spark.readStream.format("shmstore")``."""
