"""Changed rows into copies, without Spark: rows a second from encoded events to committed copies, of a table of a million keys.

Nine of ten rows are new, one is an update of a random key of the million. ``shmstore`` reduces the events and commits, as `shmstore replicate`
does, in batches of so many rows; ``by hand`` gets the same rows as Arrow tables, reduced, and runs the target's own statements alone: a DELETE of the
keys and an INSERT (DuckDB), a MERGE (delta-rs). Both begin with a copy that holds the million, made for each run.

``initial`` is a table of a MariaDB server into a new copy in DuckDB: the producer takes a snapshot into a store with a log, and a process like
`shmstore replicate` copies it, from the producer's start to the last row's commit; ``connectorx`` reads the table into Arrow, over one connection, and
DuckDB creates a table of that; ``dlt`` is its sql_database with Arrow into DuckDB, where dlt and SQLAlchemy are installed. The packages of ingestr and Sling
fetch their programs from elsewhere when they first run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from scripts.benchmarks import measure, orders
from scripts.benchmarks.orders import BATCH, EVENT, KEYS
from scripts.benchmarks.producer import snapshot
from shmstore import Consumer, EventStore, StoreNotFound
from shmstore.consumer.copies.change_reduction import Merge, collect
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.copy_set import CopySet
from shmstore.consumer.copies.copying import Copying
from shmstore.consumer.copies.kinds import TargetOptions, open_target
from shmstore.patterns.table_patterns import Patterns
from tests.servers.server import Server, start_server


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure each kind of target; return the measurements."""
    keys, batches, batch = size.of(KEYS, EVENT), 5 if size.scale == 1 else 2, BATCH if size.peers else 10 * EVENT
    taken: list[measure.Measurement] = []
    filled = orders.filled(keys)
    changes = [[orders.event(*each) for each in events] for events in orders.changes(keys, batches, batch)]
    rows = batches * batch
    for kind in ("duckdb", "delta"):
        if not measure.wanted(kind):
            continue
        found: dict[str, list[float]] = {"shmstore": [], "by hand": []}
        for _ in range(runs):
            for subject, change in (("shmstore", _ours), ("by hand", _by_hand)):
                with tempfile.TemporaryDirectory() as folder:
                    copies = _copies(folder, kind)
                    for number, first in enumerate(range(0, len(filled), 200)):
                        copies.apply(filled[first : first + 200], "bench", number)
                    if subject == "by hand":
                        copies.close()
                    found[subject].append(rows / change(copies, kind, Path(folder), changes))
                    copies.close()
            measure.say(f"copies {kind}: {found['shmstore'][-1]:,.0f} rows/s, by hand {found['by hand'][-1]:,.0f}")
        taken += [measure.of("copies", kind, subject, "throughput", "rows/s", values) for subject, values in found.items()]
    return taken + _initial_rows(runs, size)


def _initial_rows(runs: int, size: measure.Size) -> list[measure.Measurement]:
    taken: list[measure.Measurement] = []
    cases = [case for case in size.some(snapshot.ROWS) if measure.wanted(f"initial/{case}")]
    if not cases:
        return taken
    with start_server("mariadb") as server:
        for case in cases:
            table, rows = snapshot.fill(server, case, size.of(snapshot.ROWS[case]))
            subjects = {"shmstore": _snapshot, **(_peers() if size.peers else {})}
            found: dict[str, list[dict[str, float]]] = {subject: [] for subject in subjects}
            for _ in range(runs):  # one after the other, so that what else the machine does meets both
                for subject, read in list(subjects.items()):
                    try:
                        found[subject].append(snapshot.metered(server, table, rows, read))
                    except _PeerFailed as error:  # dlt 1 cannot hold a BIGINT UNSIGNED
                        measure.say(f"copies initial/{case} {subject}: left out, {error}")
                        del subjects[subject], found[subject]
            for subject, ones in found.items():
                for metric, unit in (("throughput", "rows/s"), ("cpu", "s/M rows"), ("server cpu", "s/M rows")):
                    taken.append(measure.of("copies", f"initial/{case}", subject, metric, unit, [one[metric] for one in ones]))
                    measure.say(f"copies initial/{case} {subject}: {measure.number(taken[-1].median)} {unit} {metric}")
    return taken


class _PeerFailed(RuntimeError):
    """A peer cannot read the table."""


def _peers() -> dict[str, Callable[[Server, str, int], dict[str, float]]]:
    """What else reads a table into DuckDB, of what is installed."""
    found: dict[str, Callable[[Server, str, int], dict[str, float]]] = {}
    for subject, code, modules in (("connectorx", _BY_HAND, ("connectorx",)), ("dlt", _DLT, ("dlt", "sqlalchemy"))):
        if missing := [name for name in modules if find_spec(name) is None]:
            measure.say(f"copies initial: {subject} is not measured: pip install {' '.join(missing)}")
        else:
            found[subject] = partial(_peer, code)
    return found


def _snapshot(server: Server, table: str, rows: int) -> dict[str, float]:
    """From the producer's start to the commit of the last row."""
    store, stop = f"bench-copies-{os.getpid()}-{time.monotonic_ns()}", snapshot.FORK.Event()
    with tempfile.TemporaryDirectory() as state:
        process = snapshot.FORK.Process(target=snapshot.produce, args=(server.port, store, table, state, stop, 1))
        opened = open_target(f"duckdb:{state}/copy.duckdb", TargetOptions())
        copies = CopySet(CopiedTables(store, "replicate", Patterns.of_tables("*"), state=state), opened.target, opened.template)
        try:
            with EventStore.create(store, state=state) as made:
                began = time.perf_counter()
                process.start()
                with Consumer(store, "replicate", auto_ack=False, limit_bytes=64 << 20, timeout=0.5, state=state) as reader:
                    copying = Copying(reader, copies, "bench")
                    copying.run(lambda: made.oldest if copying.counters.rows >= rows else None)
                took = time.perf_counter() - began
            stop.set()
            process.join(20)
        finally:
            if process.is_alive():
                process.kill()
            with suppress(StoreNotFound):
                EventStore.unlink(store)
        with duckdb.connect(f"{state}/copy.duckdb") as database:
            assert database.execute(f"SELECT count(*) FROM copy.bench.{table}").fetchall() == [(rows,)]
    return {"seconds": took}


_BY_HAND = """
import sys, connectorx, duckdb
rows = connectorx.read_sql(sys.argv[1], f"SELECT * FROM {sys.argv[2]}", return_type="arrow", protocol="binary")
with duckdb.connect(sys.argv[3]) as database:
    database.execute("SET enable_progress_bar = false")
    database.execute("CREATE TABLE copied AS SELECT * FROM rows")
    print(rows.num_rows)
"""


_DLT = """
import os, sys, dlt, duckdb
from dlt.sources.sql_database import sql_table
where, table, file = sys.argv[1].replace("mysql:", "mysql+pymysql:"), sys.argv[2], sys.argv[3]
rows = sql_table(credentials=where, table=table, backend="pyarrow", chunk_size=50_000)
place = dlt.destinations.duckdb(file)
pipeline = dlt.pipeline("bench", destination=place, dataset_name="copied", pipelines_dir=os.path.dirname(file))
pipeline.run(rows).raise_on_failed_jobs()
with duckdb.connect(file) as database:
    print(database.execute(f"SELECT count(*) FROM copied.{table}").fetchone()[0])
"""


def _peer(code: str, server: Server, table: str, rows: int) -> dict[str, float]:
    """In a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        where = f"mysql://root@127.0.0.1:{server.port}/bench"
        command = [sys.executable, "-c", code, where, table, f"{folder}/copy.duckdb"]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        took = time.perf_counter() - began
    if done.returncode or int(done.stdout) != rows:
        raise _PeerFailed(f"a peer ended with {done.returncode}: {done.stdout}{done.stderr[-300:]}")
    return {"seconds": took}


def _copies(folder: str, kind: str) -> CopySet:
    opened = open_target(f"{kind}:{folder}/copy", TargetOptions())
    copied = CopiedTables("bench", "bench", Patterns.of_tables("*"), state=folder)
    return CopySet(copied, opened.target, opened.template)


def _ours(copies: CopySet, kind: str, folder: Path, changes: list[list[bytes]]) -> float:
    began = time.perf_counter()
    for number, batch in enumerate(changes, KEYS):
        copies.apply(batch, "bench", number)
    copies.close()
    return time.perf_counter() - began


def _by_hand(copies: CopySet, kind: str, folder: Path, changes: list[list[bytes]]) -> float:
    tables = [reduced(batch) for batch in changes]
    began = time.perf_counter()
    if kind == "duckdb":
        with duckdb.connect(str(folder / "copy")) as database:
            for table in tables:
                database.register("fresh", table)
                database.execute("BEGIN").fetchall()
                database.execute("DELETE FROM copy.shop.orders t USING fresh s WHERE t.id = s.id").fetchall()
                database.execute("INSERT INTO copy.shop.orders SELECT * FROM fresh").fetchall()
                database.execute("COMMIT").fetchall()
                database.unregister("fresh")
        return time.perf_counter() - began
    merge_by_hand(folder / "copy/shop/orders", tables)
    return time.perf_counter() - began


def merge_by_hand(path: Path, tables: list[pa.Table]) -> None:
    """Merge rows into the Delta table in `path`, table by table."""
    copy = DeltaTable(path)
    for table in tables:
        values = {name: f"s.{name}" for name in table.column_names}
        merger = copy.merge(table, "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update(values).when_not_matched_insert(values).execute()


def reduced(batch: list[bytes]) -> pa.Table:
    """Return the rows that encoded events write, the last of each key."""
    changed = collect(batch, CopiedTables("bench", "bench", Patterns.of_tables("*")), {}, False, lambda database: [])
    (step,) = changed["shop", "orders"].finish()
    assert isinstance(step, Merge)
    return step.upserts
