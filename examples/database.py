"""A copy of every table of a shop in PostgreSQL, MariaDB or MySQL, each micro-batch one transaction:

    SHMSTORE_JDBC_PASSWORD=... spark-submit --packages org.postgresql:postgresql:42.7.8 \\
        examples/database.py STORE jdbc:postgresql://HOST/DATABASE USER CHECKPOINT
"""

import os
import sys

from pyspark.sql import SparkSession

from shmstore.spark import replicate, session_settings


def run(spark: SparkSession, store: str, url: str, account: dict[str, str], checkpoint: str, *, once: bool = False) -> None:
    """Keep the copies up to date, or with `once` bring them up to date and return."""
    query = replicate(
        spark,
        store=store,
        tables="shop.*",
        target="{database}.{table}",
        format="jdbc",
        url=url,
        properties=account,
        checkpoint=checkpoint,
        trigger={"availableNow": True} if once else {"processingTime": "1 second"},
    )
    query.awaitTermination()


if __name__ == "__main__":
    session = SparkSession.builder.config(map=session_settings()).getOrCreate()
    store, url, user, checkpoint = sys.argv[1:5]
    run(session, store, url, {"user": user, "password": os.environ["SHMSTORE_JDBC_PASSWORD"]}, checkpoint)
