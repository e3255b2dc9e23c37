"""`verify`: a table and its copy compared, next to the server's own CHECKSUM TABLE of the source alone.

The copy is a table of another database of the same server (``shmstore``), or a Parquet file (``shmstore parquet``). ``throughput`` is rows of the table
a second, both sides read and compared; ``cpu`` what the process that compares used, ``server cpu`` what the server did. narrow and wide are
the tables of `loads`. A producer runs, as `verify` wants, and nothing is written.

The three take turns: the server's buffer pool of 128 MiB holds the wide table, and not its copy next to it, so that CHECKSUM TABLE on its own would read
from memory what the others read from disk.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from scripts.benchmarks import measure
from scripts.benchmarks.producer import snapshot
from shmstore import EventStore, StoreNotFound, StoreView
from shmstore.consumer.copies.reading.arrow_copies import parquet
from shmstore.encoding.arrow import arrow_type
from shmstore.producer import Settings
from shmstore.producer.connection.session import connect
from shmstore.producer.snapshot.tables import read_table
from shmstore.producer.verify.copy import ReadableCopy
from shmstore.producer.verify.server_copy import ServerCopy
from shmstore.producer.verify.verification import Verification
from tests.servers.server import Server, start_server

_ROWS = {"narrow": 1_024_000, "wide": 256_000}
_UNITS = {"throughput": "rows/s", "cpu": "s/M rows", "server cpu": "s/M rows"}


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every case on MariaDB and MySQL; return the measurements."""
    taken: list[measure.Measurement] = []
    for kind in size.kinds:
        cases = [case for case in size.some(_ROWS) if measure.wanted(f"{case}/{kind}")]
        if not cases:
            continue
        with start_server(kind) as server, tempfile.TemporaryDirectory() as state:
            for case in cases:
                table, rows = snapshot.fill(server, case, size.of(_ROWS[case]))
                file = _copy(server, table, state)
                producing = _Producing(server, table, state)
                _let_rest(server)
                try:
                    subjects: dict[str, Callable[[], None]] = {
                        "shmstore": lambda: producing.verify(lambda *_: ServerCopy(producing.settings, "other", table)),  # noqa: B023
                        "CHECKSUM TABLE": lambda: _checksum(server, table),  # noqa: B023
                        "shmstore parquet": lambda: producing.verify(lambda *_: parquet(file)),  # noqa: B023
                    }
                    found: dict[str, list[dict[str, float]]] = {subject: [] for subject in subjects}
                    for _ in range(runs):
                        for subject, run in subjects.items():
                            found[subject].append(_metered(server, rows, run))
                    for subject, each in found.items():
                        for metric, unit in _UNITS.items():
                            values = [one[metric] for one in each]
                            taken.append(measure.of("verify", f"{case}/{kind}", subject, metric, unit, values))
                            measure.say(f"verify {case}/{kind} {subject}: {measure.number(taken[-1].median)} {unit} {metric}")
                finally:
                    producing.close()
    return taken


def _copy(server: Server, table: str, folder: str) -> str:
    """Copy the table into the database `other`, and into a Parquet file, whose path is returned."""
    with server.connect(database="bench") as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS other")
        cursor.execute(f"DROP TABLE IF EXISTS other.{table}")
        cursor.execute(f"CREATE TABLE other.{table} LIKE {table}")
        cursor.execute(f"INSERT INTO other.{table} SELECT * FROM {table}")
        cursor.execute(f"SELECT * FROM {table}")
        columns = list(zip(*cursor.fetchall(), strict=True))
    settings = Settings(store="bench", port=server.port)
    session = connect(settings, settings.endpoints()[0])
    found = read_table(session, "bench", table)
    session.close()
    assert found is not None
    arrays = [pa.array(values, arrow_type(column)) for values, column in zip(columns, found.schema.columns, strict=True)]
    file = str(Path(folder, f"{table}.parquet"))
    pq.write_table(pa.table(arrays, list(found.schema.names)), file)
    return file


class _Producing:
    """A producer of the table in a process of its own."""

    def __init__(self, server: Server, table: str, state: str) -> None:
        name = f"bench-verify-{os.getpid()}-{time.monotonic_ns()}"
        self.table = table
        self.settings = Settings(store=name, port=server.port, include=(f"bench.{table}", f"other.{table}"), state=state)
        self._stop = snapshot.FORK.Event()
        self._process = snapshot.FORK.Process(target=snapshot.produce, args=(server.port, name, table, state, self._stop, 0))
        self._process.start()
        until = time.monotonic() + 120
        while True:
            with suppress(StoreNotFound), StoreView.attach(name, state=state, restore=False) as view:
                if view.stat().stream.connected:
                    return
            if time.monotonic() > until:
                raise RuntimeError("the producer does not read")
            time.sleep(0.05)

    def verify(self, copies: Callable[[str, str], ReadableCopy]) -> None:
        """Compare the table with its copy: they are equal."""
        with Verification(self.settings, copies, subscription=None, max_load=0) as verification:
            found = verification.verify("bench", self.table)
        if found.problem or found.differences:
            raise RuntimeError(f"the copy is not equal: {found}")

    def close(self) -> None:
        """Stop the producer, and remove the store."""
        self._stop.set()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
        with suppress(StoreNotFound):
            EventStore.unlink(self.settings.store, state=self.settings.state, log=True)


def _let_rest(server: Server) -> None:
    """Wait until the server is idle: after a load it writes pages for a while, with the CPU of what is measured."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        before = snapshot._seconds_of(server.pid)
        time.sleep(1)
        if snapshot._seconds_of(server.pid) - before < 0.03:
            return


def _metered(server: Server, rows: int, run: Callable[[], None]) -> dict[str, float]:
    own, theirs, began = time.process_time(), snapshot._seconds_of(server.pid), time.perf_counter()
    run()
    seconds = time.perf_counter() - began
    per_million = 1e6 / rows
    return {
        "throughput": rows / seconds,
        "cpu": (time.process_time() - own) * per_million,
        "server cpu": (snapshot._seconds_of(server.pid) - theirs) * per_million,
    }


def _checksum(server: Server, table: str) -> None:
    with server.connect(database="bench") as connection, connection.cursor() as cursor:
        cursor.execute(f"CHECKSUM TABLE {table} EXTENDED")
        assert cursor.fetchone()[1]
