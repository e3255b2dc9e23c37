"""A Delta copy of every table of a shop: ``python examples/replicate.py STORE LAKE``."""

import sys

from pyspark.sql import SparkSession

from shmstore.spark import LagListener, replicate, session_settings


def run(spark: SparkSession, store: str, lake: str, *, once: bool = False) -> None:
    """Keep the copies up to date, or with `once` bring them up to date and return."""
    query = replicate(
        spark,
        store=store,
        tables="shop.*",
        target=f"{lake}/{{database}}/{{table}}",
        format="delta",
        trigger={"availableNow": True} if once else {"processingTime": "1 second"},
    )
    query.awaitTermination()


if __name__ == "__main__":
    session = SparkSession.builder.master("local[*]").config(map=session_settings()).getOrCreate()
    session.streams.addListener(LagListener(print))
    run(session, *sys.argv[1:3])
