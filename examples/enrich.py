"""Orders as they come, joined with the newest copy of customers: ``python examples/enrich.py STORE LAKE OUT``.

The copy is what `replicate` keeps (examples/replicate.py). It is read again for every micro-batch, through delta-rs: no jar.
"""

import sys

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from shmstore.spark import register, session_settings


def enrich(spark: SparkSession, store: str, lake: str, out: str, *, once: bool = False) -> StreamingQuery:
    """Append (order, total, customer's name) to Parquet in `out`; one folder a batch, so that a replay overwrites its own."""

    def join(orders: DataFrame, batch: int) -> None:
        customers = spark.createDataFrame(
            DeltaTable(f"{lake}/shop/customers").to_pyarrow_table(columns=["id", "name"]).combine_chunks()
        )
        joined = orders.where("op = 'c'").selectExpr(
            "after.id as `order`", "after.total as total", "after.customer_id as customer"
        )
        rows = joined.join(customers.withColumnsRenamed({"id": "customer"}), "customer", "left")
        rows.write.mode("overwrite").parquet(f"{out}/batch={batch}")

    source = (
        spark.readStream.format("shmstore")
        .option("store", store)
        .option("subscription", "enrich")
        .option("tables", "shop.orders")
    )
    writer = source.load().writeStream.foreachBatch(join).option("checkpointLocation", f"{out}/_checkpoint")
    return writer.trigger(**({"availableNow": True} if once else {"processingTime": "1 second"})).start()


if __name__ == "__main__":
    session = SparkSession.builder.master("local[*]").config(map=session_settings()).getOrCreate()
    register(session)
    enrich(session, *sys.argv[1:4]).awaitTermination()
