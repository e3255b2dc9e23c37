"""A client of Spark Connect for test_connect: a stream, a batch read and copies of one store; prints what came, as JSON."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from pyspark.sql import SparkSession

from shmstore.consumer.spark import register, replicate


def main() -> None:
    """Arguments: store, a folder for what is written."""
    store, folder = sys.argv[1:]
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    found: dict[str, Any] = {}
    try:
        register(spark)
        options = {"store": store, "subscription": "stream", "tables": "shop.orders"}
        stream = spark.readStream.format("shmstore").options(**options).load().selectExpr("after.id").writeStream.format("memory")
        query = stream.queryName("seen").option("checkpointLocation", f"{folder}/stream").trigger(availableNow=True).start()
        query.awaitTermination(120)
        found["stream"] = [row.id for row in spark.table("seen").collect()]
        found["batch"] = spark.read.format("shmstore").option("store", store).load().count()
        try:
            replicate(
                spark,
                store=store,
                target="lake.{database}.{table}",
                format="iceberg",
                checkpoint=folder,
                subscription="iceberg",
            )
        except ValueError as error:
            found["iceberg"] = str(error)
        database = {"target": f"sqlite:{folder}/copies.db", "subscription": "database", "checkpoint": f"{folder}/database"}
        replicate(spark, store=store, **database, trigger={"availableNow": True}).awaitTermination(120)
        target = f"{folder}/{{database}}/{{table}}"
        for _ in range(2):  # the second run has nothing to do
            replicate(spark, store=store, target=target, trigger={"availableNow": True}).awaitTermination(120)
    except BaseException:
        traceback.print_exc()
    finally:
        print(json.dumps(found), flush=True)
        os._exit(0)  # the server is this process's child, and ends with it


if __name__ == "__main__":
    main()
