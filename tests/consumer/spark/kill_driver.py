"""A driver program for tests with kills: a query into each of several targets, until it is killed or one of them fails."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from shmstore.consumer.spark import apply_changes, changes, replicate, session_settings
from shmstore.producer import ServerTables, Settings


def main() -> None:
    """Arguments: master, store, tables, and as JSON the session's settings, and of each target what `replicate` is given, or where that names a `table`
    what `changes` and `apply_changes` are; the port of the store's server,
    where executors read the rows that are there.
    """
    master, store, tables, settings, targets, *port = sys.argv[1:]
    more = (
        {"snapshot": ServerTables(Settings(store=store, host="127.0.0.1", port=int(port[0]), include=(tables,)))} if port else {}
    )
    builder = SparkSession.builder.master(master).config(map=session_settings(local_checkpoints=False) | json.loads(settings))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for name, given in json.loads(targets).items():
        if table := given.pop("table", ""):
            asked = {"startingOffsets": "earliest", "schemaChanges": "follow", "tableTimeout": 300, "transportHost": "127.0.0.1"}
            apply_changes(changes(spark, store, table, subscription=name, **asked), **given)
        else:
            replicate(
                spark, store=store, tables=tables, subscription=name, options={"transportHost": "127.0.0.1"}, **more, **given
            )
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
