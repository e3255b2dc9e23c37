"""A driver program for test_cluster: a query whose tasks wait, on request, so that an executor can be killed within a micro-batch.

    FOLDER/hold            holds the name of a round: a task that comes to its first row waits while the file is there
    FOLDER/held/ROUND/PID  such a task's Python process; the content is its mount namespace
    FOLDER/batches/NUMBER  the keys of a micro-batch's rows, a line each; complete when it is there

It ends when its input does.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from shmstore.consumer.spark import register


def main() -> None:
    """Arguments: master, store, folder."""
    master, store, folder = sys.argv[1:]

    def passed(key: str) -> str:
        import os
        import time

        hold = f"{folder}/hold"
        while os.path.exists(hold):
            with open(hold) as file:
                held = f"{folder}/held/{file.read()}"
            os.makedirs(held, exist_ok=True)
            with open(f"{held}/.{os.getpid()}", "w") as file:
                file.write(os.readlink("/proc/self/ns/mnt"))
            os.rename(f"{held}/.{os.getpid()}", f"{held}/{os.getpid()}")
            time.sleep(0.05)
        return key

    spark = (
        SparkSession.builder.master(master)
        .config("spark.executor.memory", "600m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.locality.wait", "0s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    batches = Path(folder) / "batches"
    batches.mkdir()

    def write(batch: DataFrame, number: int) -> None:
        keys = [row.key for row in batch.select(udf(passed, "string")("pk").alias("key")).collect()]
        made = batches / f".{number}"
        made.write_text("".join(f"{key}\n" for key in keys))
        made.rename(batches / str(number))

    source = spark.readStream.format("shmstore").option("store", store).option("transportHost", "127.0.0.1")
    frame = source.option("partitions", "6").option("partitionBytes", "100000").load()
    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint").start()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.is_set():
        query.awaitTermination(1)  # raises its error
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
