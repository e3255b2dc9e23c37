"""Copies of Spark's `replicate`: changed rows a second into Delta, and how long a row waits for Delta and for Iceberg.

``delta/N`` are micro-batches of N changed rows of a table of a million keys, as the bench `copies` has them, from the store's ring to the commit:
Spark's own figure for the whole micro-batch. ``by hand`` merges the same rows, reduced and in Arrow already, into such a copy with delta-rs alone, and
takes turns. The first batches, in which the JVM compiles, are not counted.

``lag`` is the time from a row's COMMIT on a MariaDB server until the table's version with that row is written, while 50 transactions a second insert a
row and update 20 others, random ones of a hundred thousand. The copies are kept one after the other, in one session of Spark 4.0, which there is an
Iceberg runtime for, with the same load; Iceberg in a catalog that is a folder. When a version was written is the time of its file in the log of
versions. The first third of the load is not counted.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from scripts.benchmarks import measure, orders
from scripts.benchmarks.copies import copies
from scripts.benchmarks.spark import tables
from scripts.benchmarks.spark.spark import _session
from scripts.benchmarks.stores import new_store
from shmstore import EntryType, Event, EventStore, EventType, Position, StoreNotFound, producer
from shmstore.consumer.spark import replicate, session_settings
from tests.consumer.spark.replicate.iceberg_cases import POSTGRESQL, RUNTIME
from tests.consumer.spark.versions import environment
from tests.servers.maven import jars
from tests.servers.server import Server, start_server

BATCHES = {"delta/100000": 100_000, "delta/500000": 500_000}
VERSION = "4.0"
TARGETS = {"delta": "shmstore into Delta", "iceberg": "shmstore into Iceberg"}
ROWS, UPDATED, TRANSACTIONS, SECONDS = 100_000, 20, 50, 45
_WARM = 3  # micro-batches that are not counted
_SPAWN = multiprocessing.get_context("spawn")  # a fork would have the JVM's sockets


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every case; return the measurements."""
    cases = [case for case in size.some(BATCHES) if measure.wanted(case)]
    taken = _rates(cases, runs, size) if cases else []
    return taken + (_lags(runs, size) if measure.wanted("lag") else [])


# ---------------------------------------------------------------- rows a second


def _rates(cases: Iterable[str], runs: int, size: measure.Size) -> list[measure.Measurement]:
    taken = []
    keys, warm = size.of(orders.KEYS, orders.EVENT), _WARM if size.peers else 1
    with tempfile.TemporaryDirectory(prefix="shmstore-bench-") as folder, _session(fast=True) as spark:
        os.environ["SHMSTORE_STATE"] = folder
        for number, case in enumerate(cases):
            count, place = size.of(BATCHES[case], 10 * orders.EVENT), Path(folder) / str(number)
            batches = orders.changes(keys, runs + warm, count)
            with new_store("replicate", capacity=1 << 14, memory_unit=16_384, log=False) as store:
                found = _turns(spark, store, place, keys, batches)
            for subject, seconds in found.items():
                rates = [count / each for each in seconds[warm:]]
                taken.append(measure.of("replicate", case, subject, "throughput", "rows/s", rates))
                measure.say(f"replicate {case} {subject}: {measure.number(taken[-1].median)} rows/s")
    return taken


def _turns(spark: Any, store: EventStore, place: Path, keys: int, batches: list[list[orders.Change]]) -> dict[str, list[float]]:
    """Seconds of each batch, of our query's micro-batch and of the merge by hand."""
    found: dict[str, list[float]] = {"shmstore": [], "by hand": []}
    target, checkpoint = f"{place}/ours/{{database}}/{{table}}", f"{place}/checkpoint"
    query = replicate(spark, store=store.name, target=target, checkpoint=checkpoint, subscription=place.name)
    try:
        _micro_batch(
            store, query, [(EventType.INSERT, range(first, first + orders.EVENT)) for first in range(0, keys, orders.EVENT)]
        )
        shutil.copytree(place / "ours", place / "hand")
        for changes in batches:
            found["shmstore"].append(_micro_batch(store, query, changes))
            rows = copies.reduced([orders.event(*each) for each in changes])
            began = time.perf_counter()
            copies.merge_by_hand(place / "hand/shop/orders", [rows])
            found["by hand"].append(time.perf_counter() - began)
    finally:
        query.stop()
    seen = [DeltaTable(place / whose / "shop/orders").to_pyarrow_table().sort_by("id") for whose in ("ours", "hand")]
    assert seen[0] == seen[1]
    return found


def _micro_batch(store: EventStore, query: Any, changes: list[orders.Change]) -> float:
    """Put a transaction; return the seconds of the micro-batches that bring it."""
    end = Event(EntryType.END, EventType.NONE, Position("binlog.000001", 4, "0-1-1"), 1_700_000_000_000)
    events = [*(orders.rows_event(*each) for each in changes), end]
    number, seconds, left = _last(query)[0], 0.0, len(changes)
    store.put(events, timeout=60)
    until = time.monotonic() + 600
    while left:
        newest, got, took = _last(query)
        if newest > number:
            number, seconds, left = newest, seconds + took, left - got
        if query.exception() is not None:
            raise query.exception()
        if time.monotonic() > until:
            raise TimeoutError(f"{left} events did not come: {query.status}")
        time.sleep(0.02)
    return seconds


def _last(query: Any) -> tuple[int, int, float]:
    """Number, events and seconds of the last micro-batch with events; -1 where there was none."""
    progress = query._jsq.lastProgress()
    if progress is None or not progress.numInputRows():
        return -1, 0, 0.0
    return progress.batchId(), progress.numInputRows(), progress.durationMs().get("triggerExecution") / 1000


# ---------------------------------------------------------------- lag


def _lags(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Lags of all rows of all runs, of which each run has a percentile."""
    root, taken = Path(__file__).resolve().parents[3], []
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_HOME"))}
    with tempfile.TemporaryDirectory(prefix="shmstore-bench-") as folder:
        python = environment(VERSION, Path(folder) / "python")
        given = [folder, str(runs), str(size.of(ROWS, 1000)), str(max(2, int(SECONDS * size.scale)))]
        environ = {**kept, "PYTHONPATH": str(root), "SHMSTORE_STATE": folder}
        done = subprocess.run(
            [python, "-m", __name__, *given], cwd=root, env=environ, stdout=subprocess.PIPE, text=True, check=True
        )
    for format, found in json.loads(done.stdout.splitlines()[-1]).items():
        for metric, values in zip(("lag p50", "lag p99", "version every"), zip(*found, strict=True), strict=True):
            taken.append(measure.of("replicate", "lag", TARGETS[format], metric, "ms", values))
            measure.say(f"replicate lag {format}: {measure.number(taken[-1].median)} ms {metric}")
    return taken


def main() -> None:
    """Arguments: folder, runs, rows, seconds. Prints of each format and run the percentiles of the lag, and the time between two versions, as JSON."""
    folder, runs, rows, seconds = sys.argv[1], *map(int, sys.argv[2:])
    found: dict[str, list[tuple[float, float, float]]] = {format: [] for format in TARGETS}
    stop, store = _SPAWN.Event(), f"bench-lag-{os.getpid()}"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    catalog = "spark.sql.catalog.lake"
    settings = {
        "spark.jars": ",".join(map(str, jars("iceberg-spark-4.0-1.11.0-postgresql", RUNTIME, POSTGRESQL).glob("*.jar"))),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": f"{folder}/lake",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
    }
    spark = SparkSession.builder.master("local[2]").config(map=session_settings(local_checkpoints=False) | settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    with start_server("mariadb") as server:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE bench")
        process = _SPAWN.Process(
            target=tables.produce, args=(producer.Settings(store=store, port=server.port, include=("bench.*",)), stop)
        )
        process.start()
        try:
            for run in range(runs):
                for format in TARGETS:
                    found[format].append(_lag(spark, server, store, folder, format, f"{format}{run}", rows, seconds))
        finally:
            stop.set()
            process.join(20)
            if process.is_alive():
                process.kill()
            with suppress(StoreNotFound):
                EventStore.unlink(store, log=True)
    spark.stop()
    print(json.dumps(found))


def _lag(
    spark: Any, server: Server, store: str, folder: str, format: str, table: str, rows: int, seconds: int
) -> tuple[float, float, float]:
    place = Path(folder, "lake", "bench", table)
    target = "lake.{database}.{table}" if format == "iceberg" else f"{folder}/lake/{{database}}/{{table}}"
    versions = _IcebergVersions(spark, place) if format == "iceberg" else _DeltaVersions(place)
    choose, committed = random.Random(1), list[float]()
    with server.connect(database="bench", autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, customer INT, amount DECIMAL(12,2), status VARCHAR(40))")
        given: dict[str, Any] = {"tables": f"bench.{table}", "checkpoint": f"{folder}/{table}", "subscription": table}
        query = replicate(spark, store=store, target=target, format=format, **given)
        try:
            cursor.execute(f"INSERT INTO {table} SELECT seq, seq % 1000, seq / 100, 'new' FROM seq_1_to_{rows}")
            connection.commit()
            _await(query, lambda: versions.newest() == rows)
            began = time.time()
            for number in range(1, seconds * TRANSACTIONS + 1):
                time.sleep(max(0.0, began + number / TRANSACTIONS - time.time()))
                keys = ", ".join(str(choose.randint(1, rows)) for _ in range(UPDATED))
                cursor.execute(f"UPDATE {table} SET amount = amount + 1, status = 'changed {number}' WHERE id IN ({keys})")
                cursor.execute(f"INSERT INTO {table} VALUES ({rows + number}, 1, 2.5, 'fresh')")
                connection.commit()
                committed.append(time.time())
            _await(query, lambda: versions.newest() == rows + len(committed))
        finally:
            query.stop()
    written, warm = versions.written(), len(committed) // 3  # the JVM compiles meanwhile
    at_work = [key for key, _ in written if key > rows + warm]
    lags = [(written[bisect_left(written, (rows + i,))][1] - at) * 1000 for i, at in enumerate(committed, 1) if i > warm]
    lags.sort()
    return statistics.median(lags), lags[len(lags) * 99 // 100], len(lags) * 1000 / TRANSACTIONS / len(at_work)


class _DeltaVersions:
    """Of each version of a Delta table the largest key, and when it was written."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._known: dict[Path, tuple[int, float]] = {}

    def newest(self) -> int:
        """The largest key now."""
        return max((key for key, _ in self.written()), default=0)

    def written(self) -> list[tuple[int, float]]:
        """The first version with each largest key: (key, when), by key."""
        for file in self._files():
            if file not in self._known:
                self._known[file] = (self._largest(file), file.stat().st_mtime)
        first: dict[int, float] = {}
        for key, at in self._known.values():
            first[key] = min(at, first.get(key, at))
        return sorted(first.items())

    def _files(self) -> Iterable[Path]:
        return self._place.glob("_delta_log/*[0-9].json")

    def _largest(self, file: Path) -> int:
        actions = pa.table(DeltaTable(self._place, version=int(file.stem)).get_add_actions(flatten=True))
        return max(actions.column("max.id").to_pylist(), default=0) if len(actions) else 0


class _IcebergVersions(_DeltaVersions):
    """The same of an Iceberg table in a catalog that is a folder."""

    def __init__(self, spark: Any, place: Path) -> None:
        super().__init__(place)
        self._spark = spark

    def _files(self) -> Iterable[Path]:
        return self._place.glob("metadata/v*.metadata.json")

    def _largest(self, file: Path) -> int:
        snapshot = json.loads(file.read_text()).get("current-snapshot-id") or -1
        if snapshot == -1:
            return 0
        rows = self._spark.read.option("snapshot-id", snapshot).table(f"lake.bench.{self._place.name}")
        return rows.agg({"id": "max"}).first()[0] or 0


def _await(query: Any, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not condition():
        if query.exception() is not None:
            raise query.exception()
        if time.monotonic() > until:
            raise TimeoutError(f"the copy does not come: {query.status}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
