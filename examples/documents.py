"""All tables in one stream, rows as VARIANT, read by path and without a schema: ``python examples/documents.py STORE CHECKPOINT``."""

import sys

from pyspark.sql import DataFrame, SparkSession

from shmstore.spark import register, session_settings


def changes(spark: SparkSession, store: str, **options: str) -> DataFrame:
    """Return (seq, table, op, id, total): totals of each table that has them, with their decimals."""
    source = spark.readStream.format("shmstore").option("store", store).option("payload", "variant").options(**options)
    return source.load().selectExpr(
        "seq",
        "concat(database, '.', `table`) as `table`",
        "op",
        "try_variant_get(coalesce(after, before), '$.id', 'bigint') as id",
        "try_variant_get(after, '$.total', 'decimal(14,4)') as total",
    )


if __name__ == "__main__":
    session = SparkSession.builder.master("local[*]").config(map=session_settings()).getOrCreate()
    register(session)
    stream = changes(session, sys.argv[1]).writeStream.format("console")
    stream.option("checkpointLocation", sys.argv[2]).start().awaitTermination()
