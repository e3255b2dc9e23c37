"""Revenue by ten-minute window of the order's own time: ``python examples/revenue.py STORE CHECKPOINT``.

New orders only: a window is reported once, when the watermark is behind it.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from shmstore.spark import register, session_settings


def revenue(spark: SparkSession, store: str, **options: str) -> DataFrame:
    """Return the stream of (window, orders, revenue). `after` has the table's real types, so no parsing is needed."""
    orders = spark.readStream.format("shmstore").option("store", store).option("tables", "shop.orders").options(**options).load()
    return (
        orders.where("op in ('c', 'r')")
        .select("after.*")
        # DATETIME has no zone and a watermark wants one: the session's
        .withColumn("placed", F.col("placed").cast("timestamp"))
        .withWatermark("placed", "5 minutes")
        .groupBy(F.window("placed", "10 minutes"))
        .agg(F.count("*").alias("orders"), F.sum("total").alias("revenue"))
    )


if __name__ == "__main__":
    session = SparkSession.builder.master("local[*]").config(map=session_settings()).getOrCreate()
    register(session)
    writer = revenue(session, sys.argv[1], subscription="revenue").writeStream.format("console").outputMode("append")
    writer.option("checkpointLocation", sys.argv[2]).start().awaitTermination()
