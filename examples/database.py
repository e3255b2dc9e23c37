"""A copy of every table of a shop in PostgreSQL, MariaDB, MySQL or SQLite, each micro-batch one transaction:

SHMSTORE_COPY_PASSWORD=... spark-submit examples/database.py STORE 'postgresql://USER@HOST/DATABASE#{database}.{table}' CHECKPOINT
"""

import os
import sys

from pyspark.sql import SparkSession

from shmstore.spark import replicate, session_settings


def run(spark: SparkSession, store: str, target: str, password: str, checkpoint: str, *, once: bool = False) -> None:
    """Keep the copies up to date, or with `once` bring them up to date and return."""
    query = replicate(
        spark,
        store=store,
        tables="shop.*",
        target=target,
        password=password,
        checkpoint=checkpoint,
        trigger={"availableNow": True} if once else {"processingTime": "1 second"},
    )
    query.awaitTermination()


if __name__ == "__main__":
    session = SparkSession.builder.config(map=session_settings()).getOrCreate()
    store, target, checkpoint = sys.argv[1:4]
    run(session, store, target, os.environ.get("SHMSTORE_COPY_PASSWORD", ""), checkpoint)
