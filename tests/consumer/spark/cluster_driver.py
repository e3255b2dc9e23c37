"""A driver program for test_cluster: runs one query for each transport asked for and prints what came, as JSON lines."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from shmstore.consumer.spark import register


def namespace(_: str) -> str:
    """The mount namespace of the worker process that runs this: it tells /dev/shm apart."""
    import os

    return os.readlink("/proc/self/ns/mnt")


def main() -> None:
    """Arguments: master, store, transports."""
    master, store, *transports = sys.argv[1:]
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.memory", "1g")
        .config("spark.executor.memory", "600m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.locality.wait", "0s")
        .config("spark.task.maxFailures", "1")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "60s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    where = udf(namespace, "string")
    for transport in transports:
        rows: list[Any] = []
        source = (
            spark.readStream.format("shmstore")
            .option("store", store)
            .option("subscription", transport)
            .option("transport", transport)
        )
        frame = source.option("transportHost", "127.0.0.1").option("partitions", "6").option("partitionBytes", "500").load()
        query = frame.writeStream.foreachBatch(
            lambda batch, _, rows=rows: rows.extend(batch.select("pk", where("seq").alias("ns")).collect())
        )
        error = ""
        try:
            query.option("checkpointLocation", tempfile.mkdtemp()).trigger(availableNow=True).start().awaitTermination()
        except Exception as failure:
            error = str(failure)
        print(
            json.dumps(
                {"transport": transport, "keys": [row.pk for row in rows], "ns": [row.ns for row in rows], "error": error}
            ),
            flush=True,
        )
    spark.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
