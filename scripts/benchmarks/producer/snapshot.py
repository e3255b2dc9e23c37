"""A table's rows into a reader: a snapshot through the ring, compared with other ways to read a whole table of the same server.

``shmstore`` is `--snapshot initial` of one table over one connection, the producer in a process of its own; a reader in another counts
the rows of whole batches, from the first batch that it gets to the last; what comes before that is ``first rows``, where MariaDB's
first heartbeat takes a second on its own. ``2 connections`` is the same over two. ``cpu`` is what producer and reader used together,
their start included, and ``server cpu`` what the server did. ``beside writes`` is the same while a client changes rows of another table
as fast as one connection can, through the same producer; the figure is the snapshot's alone, and ``lag`` the longest time from such
a commit's return to its event at the reader. ``SELECT *`` is a loop over PyMySQL's rows, unbuffered, each a tuple of Python values;
``dump`` is the server's own dump program, which writes SQL to /dev/null; ``connectorx`` reads the table into Arrow, over one
connection. narrow and wide are the tables of `loads`.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pymysql.cursors

from scripts.benchmarks import loads, measure
from shmstore import Batch, EventStore, EventType, StoreNotFound
from shmstore.encoding.codec import decode
from tests.servers.programs import find_program
from tests.servers.server import Server, start_server

FORK = multiprocessing.get_context("fork")
_TICKS = os.sysconf("SC_CLK_TCK")
_UNITS = {"throughput": "rows/s", "cpu": "s/M rows", "server cpu": "s/M rows", "first rows": "s", "lag": "s"}
_Read = dict[str, float]  # what one run took, by metric; under "seconds" the time for "rows", or for all where that is not there
ROWS = {"narrow": 2_048_000, "wide": 512_000}


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every case on MariaDB and MySQL; return the measurements."""
    taken: list[measure.Measurement] = []
    for kind in size.kinds:
        cases = [case for case in size.some(ROWS) if measure.wanted(f"{case}/{kind}")]
        if not cases:
            continue
        with start_server(kind) as server:
            for case in cases:
                table, rows = fill(server, case, size.of(ROWS[case]))
                subjects: list[tuple[str, Callable[[Server, str, int], _Read]]] = [
                    ("shmstore", _snapshot),
                    ("shmstore 2 connections", partial(_snapshot, connections=2)),
                    ("shmstore beside writes", _beside_writes),
                ]
                if size.peers:
                    subjects += [("SELECT *", _select), ("connectorx", _connectorx)]
                if size.peers and _dump_program(server):
                    subjects.append(("dump", _dump))
                for subject, read in subjects:
                    found = [metered(server, table, rows, read) for _ in range(runs)]
                    for metric, unit in _UNITS.items():
                        if values := [one[metric] for one in found if metric in one]:
                            taken.append(measure.of("snapshot", f"{case}/{kind}", subject, metric, unit, values))
                            measure.say(f"snapshot {case}/{kind} {subject}: {measure.number(taken[-1].median)} {unit} {metric}")
    return taken


def metered(server: Server, table: str, rows: int, read: Callable[[Server, str, int], _Read]) -> _Read:
    """Read the table; return what that took, by metric."""
    own, theirs = _own_seconds(), _seconds_of(server.pid)
    found = read(server, table, rows)
    per_million = 1e6 / rows
    found["cpu"], found["server cpu"] = (
        (_own_seconds() - own) * per_million,
        (_seconds_of(server.pid) - theirs) * per_million,
    )
    return {**found, "throughput": found.get("rows", rows) / found["seconds"]}


def _own_seconds() -> float:
    """CPU seconds of this process and of those it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def fill(server: Server, case: str, rows: int) -> tuple[str, int]:
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


def _snapshot(server: Server, table: str, rows: int, connections: int = 1, writes: _Writes | None = None) -> _Read:
    """From the producer's start to the first rows at a reader, and from there to the last."""
    store, stop = f"bench-snapshot-{os.getpid()}-{time.monotonic_ns()}", FORK.Event()
    with tempfile.TemporaryDirectory() as state:
        process = FORK.Process(target=produce, args=(server.port, store, table, state, stop, connections))
        try:
            with EventStore.create(store, log=False) as made, made.subscribe("reader") as reader:
                process.start()
                started, began, first, seen, lag = time.perf_counter(), 0.0, 0, 0, 0.0
                while seen < rows:
                    batch = reader.get(timeout=60)
                    if not batch:
                        raise RuntimeError(f"{seen} of {rows} rows came")
                    types = batch.slots["type"]
                    if read := int(batch.slots["rows"][types == EventType.READ].sum()):
                        seen += read
                        if not began:
                            began, first = time.perf_counter(), read
                    if writes is not None and began and (types == EventType.INSERT).any():
                        lag = max(lag, writes.age(batch))
                    reader.ack(batch)
                ended = time.perf_counter()
                if first == seen:  # a small table may come at once: then all of it counts
                    began, first = started, 0
            stop.set()
            process.join(20)
        finally:
            if process.is_alive():
                process.kill()
            with suppress(StoreNotFound):
                EventStore.unlink(store)
    taken = {"first rows": began - started, "seconds": ended - began, "rows": float(rows - first)}
    return {**taken, **({"lag": lag} if writes is not None else {})}


def produce(port: int, store: str, table: str, state: str, stop: Any, connections: int) -> None:
    from shmstore import producer

    tables = (f"bench.{table}", "bench.beside")
    settings = producer.Settings(
        store=store, port=port, snapshot="initial", include=tables, state=state, snapshot_connections=connections
    )
    producer.run(settings, stop.is_set)


def _beside_writes(server: Server, table: str, rows: int) -> _Read:
    with _writing(server) as writes:
        return _snapshot(server, table, rows, 0, writes)


class _Writes:
    """When each row of the table `beside` was committed, by its id."""

    def __init__(self) -> None:
        self.committed: dict[int, float] = {}

    def age(self, batch: Batch) -> float:
        """Seconds since the batch's oldest INSERT was committed."""
        now, slots = time.perf_counter(), batch.slots
        at = np.flatnonzero((slots["type"] == EventType.INSERT) & (slots["rows"] > 0))
        if not len(at):
            return 0.0
        (row,) = decode(next(islice(batch.payloads(), int(at[0]), None))).rows
        first = row.after[0] if row.after else 0
        return now - self.committed.get(first, now)


@contextmanager
def _writing(server: Server) -> Iterator[_Writes]:
    """Single-row transactions on another table, one after the other."""
    done, writes = threading.Event(), _Writes()

    def write() -> None:
        with server.connect(database="bench") as connection, connection.cursor() as cursor:
            while not done.is_set():
                cursor.execute("INSERT INTO beside (n) VALUES (1)")
                writes.committed[cursor.lastrowid] = time.perf_counter()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield writes
    finally:
        done.set()
        writer.join()
        with server.connect(database="bench") as connection, connection.cursor() as cursor:
            cursor.execute("TRUNCATE TABLE beside")


def _connectorx(server: Server, table: str, rows: int) -> _Read:
    """ConnectorX, into an Arrow table, in a process of its own."""
    code = (
        "import sys, connectorx; "
        "print(connectorx.read_sql(sys.argv[1], sys.argv[2], return_type='arrow', protocol='binary').num_rows)"
    )
    where = f"mysql://root@127.0.0.1:{server.port}/bench"
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, where, f"SELECT * FROM {table}"], capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - began
    if done.returncode or int(done.stdout) != rows:
        raise RuntimeError(f"connectorx: {done.stdout}{done.stderr[-300:]}")
    return {"seconds": took}


def _select(server: Server, table: str, rows: int) -> _Read:
    """A plain loop over PyMySQL's unbuffered rows."""
    with server.connect(database="bench", cursorclass=pymysql.cursors.SSCursor) as connection, connection.cursor() as cursor:
        began, seen = time.perf_counter(), 0
        cursor.execute(f"SELECT * FROM {table}")
        for _ in cursor:
            seen += 1
        took = time.perf_counter() - began
    assert seen == rows
    return {"seconds": took}


def _dump_program(server: Server) -> list[str]:
    """The call of the server's own dump program, which is next to its shell, or is installed; empty where there is none."""
    shell, name = find_program(server.flavor).client, {"mariadb": "mariadb-dump", "mysql": "mysqldump"}[server.flavor]
    at = next((i for i, word in enumerate(shell) if Path(word).name == server.flavor), -1)
    beside = Path(shell[at]).with_name(name)
    if at >= 0 and beside.exists():
        call = [*shell[:at], str(beside), *shell[at + 1 :]]
    elif installed := shutil.which(name):
        call = [installed]
    else:
        return []
    own = ["--set-gtid-purged=OFF"] if server.flavor == "mysql" else []
    where = ["--host=127.0.0.1", f"--port={server.port}", "--user=root"]
    return [*call, *where, "--single-transaction", "--quick", *own]


def _dump(server: Server, table: str, rows: int) -> _Read:
    began = time.perf_counter()
    subprocess.run([*_dump_program(server), "bench", table], stdout=subprocess.DEVNULL, check=True)
    return {"seconds": time.perf_counter() - began}
