"""Every version of every row (SCD type 2): ``python examples/history.py STORE LAKE``."""

import sys
from datetime import datetime

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from shmstore.spark import replicate, session_settings


def keep(spark: SparkSession, store: str, lake: str, *, once: bool = False) -> None:
    """Keep the history of all tables of the shop."""
    trigger = {"availableNow": True} if once else {"processingTime": "1 second"}
    target = f"{lake}/history/{{database}}/{{table}}"
    query = replicate(spark, store=store, tables="shop.*", target=target, subscription="history", history=True, trigger=trigger)
    query.awaitTermination()


def as_of(lake: str, table: str, moment: datetime) -> pa.Table:
    """Return a table as it was at `moment` (aware)."""
    versions = DeltaTable(f"{lake}/history/shop/{table}").to_pyarrow_table()
    begun, ended = versions.column("_valid_from").to_pylist(), versions.column("_valid_to").to_pylist()
    there = [start <= moment and (end is None or moment < end) for start, end in zip(begun, ended, strict=True)]
    return versions.filter(pa.array(there)).drop_columns(["_valid_from", "_valid_to", "_current", "_seq"])


if __name__ == "__main__":
    session = SparkSession.builder.master("local[*]").config(map=session_settings()).getOrCreate()
    keep(session, *sys.argv[1:3])
