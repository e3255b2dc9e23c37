"""A table's rows into a reader: a snapshot through the ring, beside what else reads a whole table of the same server.

``shmstore`` is `--snapshot initial` of one table, the producer in a process of its own; a reader in another counts the
rows of whole batches, from the first batch that it gets to the last; what comes before that is ``first rows``, where MariaDB's
first heartbeat takes a second by itself. ``beside writes`` is the same while a client changes rows of another table as fast as one
connection can, through the same producer; the figure is the snapshot's alone. ``SELECT *`` is a loop over PyMySQL's rows, unbuffered,
each a tuple of Python values; ``dump`` is the server's own dump program, which writes SQL to /dev/null. narrow and wide are the tables
of `loads`.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pymysql.cursors

from scripts.benchmarks import loads, measure
from shmstore import EventStore, EventType, StoreNotFound
from tests.servers.programs import find_program
from tests.servers.server import Server, start_server

_FORK = multiprocessing.get_context("fork")
_ROWS = {"narrow": 512_000, "wide": 128_000}


def measure_all(runs: int, quick: bool) -> list[measure.Measurement]:
    """Measure every case on MariaDB and MySQL; return the measurements."""
    taken: list[measure.Measurement] = []
    for kind in ("mariadb", "mysql"):
        cases = [case for case in _ROWS if measure.wanted(f"{case}/{kind}")]
        if not cases:
            continue
        with start_server(kind) as server:
            for case in cases:
                table, rows = _fill(server, case, _ROWS[case] // (8 if quick else 1))
                subjects = [("shmstore", _snapshot), ("shmstore beside writes", _beside_writes), ("SELECT *", _select)]
                if _dump_program(server):
                    subjects.append(("dump", _dump))
                for subject, read in subjects:
                    found = [read(server, table, rows) for _ in range(runs)]
                    rates = [rows / took for _, took in found]
                    taken.append(measure.of("snapshot", f"{case}/{kind}", subject, "throughput", "rows/s", rates))
                    measure.say(f"snapshot {case}/{kind} {subject}: {measure.number(taken[-1].median)} rows/s")
                    if read is _snapshot:
                        first = [seconds for seconds, _ in found]
                        taken.append(measure.of("snapshot", f"{case}/{kind}", subject, "first rows", "s", first))
    return taken


def _fill(server: Server, case: str, rows: int) -> tuple[str, int]:
    """Make the table of `case` with about `rows` rows: a thousand, doubled; return its name and how many they are."""
    chance, table = Random(1), f"snapshot_{case}"
    make, statement = (loads._narrow_row, loads._NARROW) if case == "narrow" else (loads._wide_row, loads._WIDE)
    names, values = loads._columns(case), [make(chance) for _ in range(1000)]
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
        cursor.execute("USE bench")
        cursor.execute("CREATE TABLE IF NOT EXISTS beside (id INT PRIMARY KEY AUTO_INCREMENT, n INT)")
        cursor.execute(f"DROP TABLE IF EXISTS {table}")
        cursor.execute(statement.format(table))
        cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({', '.join(['%s'] * len(values[0]))})", values)
        count = len(values)
        while count < rows:
            count += cursor.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM {table}")
        cursor.execute(f"ANALYZE TABLE {table}")
        cursor.fetchall()
    return table, count


def _snapshot(server: Server, table: str, rows: int) -> tuple[float, float]:
    """Seconds from the producer's start to the first rows at a reader, and from there to the last."""
    store, stop = f"bench-snapshot-{os.getpid()}-{time.monotonic_ns()}", _FORK.Event()
    with tempfile.TemporaryDirectory() as state:
        process = _FORK.Process(target=_produce, args=(server.port, store, table, state, stop))
        try:
            with EventStore.create(store, log=False) as made, made.subscribe("reader") as reader:
                process.start()
                started, began, seen = time.perf_counter(), 0.0, 0
                while seen < rows:
                    batch = reader.get(timeout=60)
                    if not batch:
                        raise RuntimeError(f"{seen} of {rows} rows came")
                    if read := int(batch.slots["rows"][batch.slots["type"] == EventType.READ].sum()):
                        began, seen = began or time.perf_counter(), seen + read
                    reader.ack(batch)
                ended = time.perf_counter()
            stop.set()
            process.join(20)
        finally:
            if process.is_alive():
                process.kill()
            with suppress(StoreNotFound):
                EventStore.unlink(store)
    return began - started, ended - began


def _produce(port: int, store: str, table: str, state: str, stop: Any) -> None:
    from shmstore import producer

    tables = (f"bench.{table}", "bench.beside")
    settings = producer.Settings(store=store, port=port, snapshot="initial", include=tables, state=state)
    producer.run(settings, stop.is_set)


def _beside_writes(server: Server, table: str, rows: int) -> tuple[float, float]:
    with _writes(server):
        return _snapshot(server, table, rows)


@contextmanager
def _writes(server: Server) -> Iterator[None]:
    """Single-row transactions on another table, one after the other."""
    done = threading.Event()

    def write() -> None:
        with server.connect(database="bench") as connection, connection.cursor() as cursor:
            while not done.is_set():
                cursor.execute("INSERT INTO beside (n) VALUES (1)")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()
        with server.connect(database="bench") as connection, connection.cursor() as cursor:
            cursor.execute("TRUNCATE TABLE beside")


def _select(server: Server, table: str, rows: int) -> tuple[float, float]:
    """Seconds of a plain loop over PyMySQL's unbuffered rows."""
    with server.connect(database="bench", cursorclass=pymysql.cursors.SSCursor) as connection, connection.cursor() as cursor:
        began, seen = time.perf_counter(), 0
        cursor.execute(f"SELECT * FROM {table}")
        for _ in cursor:
            seen += 1
        took = time.perf_counter() - began
    assert seen == rows
    return 0.0, took


def _dump_program(server: Server) -> list[str]:
    """The call of the server's own dump program, which lies beside its shell; empty where there is none."""
    shell = find_program(server.flavor).client
    for i, word in enumerate(shell):
        program = Path(word).with_name({"mariadb": "mariadb-dump", "mysql": "mysqldump"}[server.flavor])
        if Path(word).name == server.flavor and program.exists():
            own = ["--set-gtid-purged=OFF"] if server.flavor == "mysql" else []
            where = ["--host=127.0.0.1", f"--port={server.port}", "--user=root"]
            return [*shell[:i], str(program), *shell[i + 1 :], *where, "--single-transaction", "--quick", *own]
    return []


def _dump(server: Server, table: str, rows: int) -> tuple[float, float]:
    began = time.perf_counter()
    subprocess.run([*_dump_program(server), "bench", table], stdout=subprocess.DEVNULL, check=True)
    return 0.0, time.perf_counter() - began
