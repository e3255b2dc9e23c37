"""Copies in Delta that executors merge, compared with the driver's way: changed rows a second of a micro-batch.

``1M/1%`` is an update of a hundredth of a million rows, chosen over the whole table, in one micro-batch that is read from a file; ``10M/10%`` is one of
a tenth of ten million. Both copies have the same rows in the same files, and take turns. One host and two threads: what more hosts bring is not in it.
It runs on Spark 4.0, which there is a delta-spark for, whatever is installed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from scripts.benchmarks import measure
from shmstore import Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.encoding.codec import encode
from tests.consumer.spark.versions import environment
from tests.servers.maven import jars

BIG = TableSchema(
    "shop",
    "big",
    (Column("id", "bigint", nullable=False), Column("customer", "int"), Column("price", "double"), Column("status", "varchar", size=40)),
    (0,),
)  # fmt: skip
ROWS = {"1M": 1_000_000, "10M": 10_000_000}
SHARES = {"1%": 100, "10%": 10}
SUBJECTS = {"driver": "shmstore", "executors": "shmstore executors"}
VERSION, DELTA = "4.0", ("io.delta:delta-spark_4.0_2.13:4.4.0:", "io.delta:delta-storage:4.4.0:")
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
}
_AT_ONCE = 1_000_000  # rows of a file of the copy
_IN_EVENT = 1000  # rows of an event


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every case; return the measurements."""
    root, taken = Path(__file__).resolve().parents[3], []
    with tempfile.TemporaryDirectory() as folder:
        python = environment(VERSION, Path(folder) / "python")
        for rows in size.some(ROWS):
            shares = [share for share in size.some(SHARES) if measure.wanted(f"{rows}/{share}")]
            if not shares:
                continue
            given = [folder, str(size.of(ROWS[rows], 1000)), str(runs), *(str(SHARES[share]) for share in shares)]
            kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_HOME"))}
            done = subprocess.run(
                [python, "-m", __name__, *given], cwd=root, env={**kept, "PYTHONPATH": str(root)}, stdout=subprocess.PIPE, text=True, check=True
            )  # fmt: skip
            found = json.loads(done.stdout.splitlines()[-1])
            for share in shares:
                for name, rates in found[str(SHARES[share])].items():
                    taken.append(measure.of("merges", f"{rows}/{share}", SUBJECTS[name], "throughput", "rows/s", rates))
                    measure.say(f"merges {rows}/{share} {name}: {measure.number(taken[-1].median)} changed rows/s")
    return taken


def main() -> None:
    """Arguments: folder, rows, runs, and what the rows are divided by for each share of them that changes. Prints the rates by share and way as JSON."""
    from pyspark.sql import SparkSession

    from shmstore.consumer.spark import Replication, session_settings
    from shmstore.consumer.spark.options import SourceOptions

    folder, rows, runs, *divisors = sys.argv[1:]
    settings = {**SETTINGS, "spark.jars": ",".join(map(str, jars("delta-spark-4.0-4.4.0-alone", *DELTA).glob("*.jar")))}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config(map=session_settings() | settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    copies, choose = {}, random.Random(1)

    def replication(way: str) -> Replication:
        target = f"{folder}/{rows}/{way}/{{table}}"
        return Replication(SourceOptions.parse({"store": "none"}), target, "delta", session=spark, merge=way)

    _fill(replication("driver"), int(rows))
    shutil.copytree(f"{folder}/{rows}/driver", f"{folder}/{rows}/executors")
    for way in SUBJECTS:
        copies[way] = replication(way)
    found: dict[str, dict[str, list[float]]] = {divisor: {way: [] for way in SUBJECTS} for divisor in divisors}
    batch = 0
    for divisor in divisors:
        count = int(rows) // int(divisor)
        for run in range(int(runs) + 1):  # the first warms the JVM
            batch += 1
            frame = _changes(spark, f"{folder}/changes", choose.sample(range(1, int(rows) + 1), count), batch)
            for way, copy in copies.items():
                began = time.perf_counter()
                copy.apply_micro_batch(frame, "bench", batch)
                if run:
                    found[divisor][way].append(count / (time.perf_counter() - began))
            seen = [
                DeltaTable(copy.path("shop", "big")).to_pyarrow_table(columns=["id", "status"]).sort_by("id")
                for copy in copies.values()
            ]
            assert seen[0] == seen[1]
            assert len(seen[0]) == int(rows)
    spark.stop()
    print(json.dumps(found))


def _fill(copy: Any, rows: int) -> None:
    """A copy with `rows` rows, in files of a million."""
    copy.apply(_payloads([1], 0), "bench", 0)
    path = copy.path("shop", "big")
    types = DeltaTable(path).to_pyarrow_table().schema
    for first in range(2, rows + 1, _AT_ONCE):
        ids = pa.array(range(first, min(rows, first + _AT_ONCE - 1) + 1), pa.int64())
        cells = {"id": ids, "customer": ids, "price": ids, "status": pa.array(["new"] * len(ids))}
        write_deltalake(path, pa.table([cells[name].cast(types.field(name).type) for name in types.names], types), mode="append")


def _changes(spark: Any, path: str, keys: list[int], batch: int) -> Any:
    """The frame of a micro-batch that updates the rows with these keys, in two partitions."""
    payloads = list(_payloads(keys, batch))
    names = {"sequence": pa.array(range(len(payloads)), pa.int64()), "payload": pa.array(payloads, pa.binary())}
    table = pa.table({**names, "source": pa.nulls(len(payloads), pa.string())})
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    half = (len(payloads) + 1) // 2
    for number, first in enumerate((0, half)):
        pq.write_table(table.slice(first, half), f"{path}/{number}.parquet")
    return spark.read.parquet(path)


def _payloads(keys: list[int], batch: int) -> Iterator[bytes]:
    """Events of one transaction with the rows of `keys`: inserts in batch 0, else updates."""
    kind, named = EventType.UPDATE if batch else EventType.INSERT, f"0-1-{batch + 1}"

    def event(entry: EntryType, order: int, **given: Any) -> bytes:
        position = Position("binlog.000001", (batch + 1) * 10_000_000 + order, named if entry is EntryType.END else "")
        type_ = kind if entry is EntryType.ROWS else EventType.NONE
        return encode(Event(entry, type_, position, 1_700_000_000_000, 1, 100, named, order, **given))

    yield event(EntryType.BEGIN, 0)
    order = 0
    for order, first in enumerate(range(0, len(keys), _IN_EVENT), 1):
        images = [(key, key % 2**31, float(key), f"changed {batch}") for key in keys[first : first + _IN_EVENT]]
        rows = tuple(Row((*image[:3], "new") if batch else None, image) for image in images)
        yield event(EntryType.ROWS, order, database="shop", table=BIG, rows=rows)
    yield event(EntryType.END, order + 1)


if __name__ == "__main__":
    main()
