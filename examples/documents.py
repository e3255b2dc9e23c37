"""All tables in one stream, rows as VARIANT, read by path and without a schema: ``python examples/documents.py STORE CHECKPOINT``.

With a spool (``shmstore spool STORE --directory DIR``) as a third word the stream reads there, and may be away for days.
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from shmstore.spark import register, session_settings


def changes(spark: SparkSession, store: str, **options: str) -> DataFrame:
    """Return (seq, table, op, id, amount): amounts of whichever table has them, with their decimals."""
    source = spark.readStream.format("shmstore").option("store", store).option("payload", "variant").options(**options)
    return source.load().selectExpr(
        "seq",
        "concat(database, '.', `table`) as `table`",
        "op",
        "try_variant_get(coalesce(after, before), '$.id', 'bigint') as id",
        "try_variant_get(after, '$.amount', 'decimal(12,2)') as amount",
    )


if __name__ == "__main__":
    session = SparkSession.builder.master("local[*]").config(map=session_settings()).getOrCreate()
    register(session)
    options = {"spool": sys.argv[3]} if len(sys.argv) > 3 else {}
    stream = changes(session, sys.argv[1], **options).writeStream.format("console")
    stream.option("checkpointLocation", sys.argv[2]).start().awaitTermination()
