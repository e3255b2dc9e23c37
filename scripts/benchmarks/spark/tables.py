"""A server's table into Spark: rows a second from the read's start until Spark has them all, written to its sink without effect (noop).

``shmstore`` is `read_table`, whose executors read two parts of the table straight from the server; ``1 partition`` is the same
in one part. ``through the ring`` is what `replicate(snapshot=True)` does: a snapshot through a store with its log, and a typed query that reads it,
the producer in a process of its own, over one connection. ``jdbc`` is Spark's own JDBC reader with the server's connector, rows fetched
10,000 at a time, in 1 partition and in 2, cut by the key. All on one host, in one session of two threads; narrow and wide are the tables
of `loads`. ``cpu`` and ``server cpu`` are as in the bench snapshot; what Spark's JVM and its Python workers used counts as ``cpu``.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from scripts.benchmarks import measure
from scripts.benchmarks.producer.snapshot import _seconds_of, fill
from scripts.benchmarks.spark.spark import _session
from shmstore import EventStore, StoreNotFound, producer
from shmstore.consumer.spark import read_table
from shmstore.producer.snapshot import server_tables
from tests.servers.server import Server, start_server

_SPAWN = multiprocessing.get_context("spawn")  # a fork would have the JVM's sockets
_ROWS = {"narrow": 2_048_000, "wide": 512_000}
_URLS = {
    "mariadb": "jdbc:mysql://127.0.0.1:{}/bench?permitMysqlScheme",
    "mysql": "jdbc:mysql://127.0.0.1:{}/bench?useCursorFetch=true&sslMode=DISABLED&allowPublicKeyRetrieval=true",
}
_DRIVERS = {
    "mariadb": ("org.mariadb.jdbc.Driver", "org.mariadb.jdbc:mariadb-java-client:3.5.6"),
    "mysql": ("com.mysql.cj.jdbc.Driver", "com.mysql:mysql-connector-j:9.5.0"),
}
_Read = Callable[["_Case"], float]


class _Case:
    """A server with a table, and a producer of it in a process of its own."""

    def __init__(self, spark: Any, server: Server, table: str, rows: int, state: str) -> None:
        self.spark, self.server, self.table, self.rows, self.state = spark, server, table, rows, state
        self.store = f"bench-tables-{os.getpid()}-{time.monotonic_ns()}"
        self.settings = producer.Settings(
            store=self.store, port=server.port, include=(f"bench.{table}",), state=state, snapshot_connections=1
        )
        self._stop = _SPAWN.Event()
        self._process = _SPAWN.Process(target=produce, args=(self.settings, self._stop))

    def __enter__(self) -> _Case:
        self._process.start()
        until = time.monotonic() + 60
        while True:
            with suppress(StoreNotFound), EventStore.attach(self.store, state=self.state) as store:
                if store.stat().heartbeat_ms:
                    return self
            if time.monotonic() > until:
                raise RuntimeError("the producer did not start")
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
        with suppress(StoreNotFound):
            EventStore.unlink(self.store, log=True)


def produce(settings: producer.Settings, stop: Any) -> None:
    """Run a producer, as a process of its own, until `stop` is set."""
    producer.run(settings, stop.is_set)


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every case on MariaDB and MySQL; return the measurements."""
    taken: list[measure.Measurement] = []
    with _session(fast=True) as spark:
        for kind in size.kinds:
            cases = [case for case in size.some(_ROWS) if measure.wanted(f"{case}/{kind}")]
            if not cases:
                continue
            if size.peers:
                spark.sql(f"ADD JAR 'ivy://{_DRIVERS[kind][1]}?transitive=false'")
            with start_server(kind) as server:
                for case in cases:
                    taken += _measure(spark, server, kind, case, runs, size)
    return taken


def _measure(spark: Any, server: Server, kind: str, case: str, runs: int, size: measure.Size) -> list[measure.Measurement]:
    subjects: dict[str, _Read] = {
        "shmstore": partial(_parts, parts=2),
        "shmstore through the ring": _ring,
    }
    if size.peers:
        subjects["shmstore 1 partition"] = partial(_parts, parts=1)
        subjects |= {f"jdbc {parts} partition{'s' * (parts > 1)}": partial(_jdbc, kind=kind, parts=parts) for parts in (2, 1)}
    table, rows = fill(server, case, size.of(_ROWS[case]))
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in subjects}
    with tempfile.TemporaryDirectory() as state, _Case(spark, server, table, rows, state) as about:
        for run in range(runs + size.peers):  # the first warms the JVM; they take turns
            for name, read in subjects.items():
                own, theirs = _family_seconds(), _seconds_of(server.pid)
                seconds = read(about)
                used = _family_seconds() - own, _seconds_of(server.pid) - theirs
                if run or not size.peers:
                    found[name].append((rows / seconds, used[0] * 1e6 / rows, used[1] * 1e6 / rows))
    taken = []
    for name, figures in found.items():
        for metric, unit, values in zip(
            ("throughput", "cpu", "server cpu"), ("rows/s", "s/M rows", "s/M rows"), zip(*figures, strict=True), strict=True
        ):
            taken.append(measure.of("tables", f"{case}/{kind}", name, metric, unit, values))
            measure.say(f"tables {case}/{kind} {name}: {measure.number(taken[-1].median)} {unit} {metric}")
    return taken


def _family_seconds() -> float:
    """CPU seconds of this process and of all its descendants that live, Spark's JVM and Python workers among them."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                used[int(entry.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(used.get(pid, 0.0) for pid in family)


def _parts(case: _Case, parts: int) -> float:
    server_tables.LEAST_ROWS = 1
    began = time.perf_counter()
    table = producer.ServerTables(case.settings).open(f"bench.{case.table}", parts=parts)
    read_table(case.spark, table).write.format("noop").mode("overwrite").save()
    assert table.parts == parts
    return time.perf_counter() - began


def _jdbc(case: _Case, kind: str, parts: int) -> float:
    began = time.perf_counter()
    given = {"url": _URLS[kind].format(case.server.port), "dbtable": case.table, "user": "root", "password": ""}
    reader = case.spark.read.format("jdbc").options(**given, driver=_DRIVERS[kind][0], fetchsize="10000")
    if parts > 1:
        reader = reader.options(partitionColumn="id", lowerBound="1", upperBound=str(case.rows), numPartitions=str(parts))
    reader.load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def _ring(case: _Case) -> float:
    name = f"ring{time.monotonic_ns()}"
    given = {"store": case.store, "stateDirectory": case.state, "subscription": name, "tables": f"bench.{case.table}"}
    frame = case.spark.readStream.format("shmstore").options(**given, startingOffsets="latest").load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            query.processAllAvailable()
            began = time.perf_counter()
            producer.request_snapshot(case.store, f"bench.{case.table}", state=case.state, id=name[-8:])
            while not _done(case, name[-8:]):
                if query.exception():
                    raise RuntimeError(query.exception())
                time.sleep(0.02)
            query.processAllAvailable()
            taken = time.perf_counter() - began
        finally:
            query.stop()
    with EventStore.attach(case.store, state=case.state) as store:
        while any(each.name == name and each.alive for each in store.subscriptions()):
            time.sleep(0.05)  # its process ends behind the query
        store.unsubscribe(name)
    return taken


def _done(case: _Case, request: str) -> bool:
    progress = producer.snapshot_status(case.store, state=case.state)
    tasks = [task for task in progress.tasks if task.request == request] if progress is not None else []
    if any(task.progress.state == "failed" for task in tasks):
        raise RuntimeError(tasks)
    return bool(tasks) and not any(task.open for task in tasks)
