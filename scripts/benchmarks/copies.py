"""Changed rows into copies, without Spark: rows a second from encoded events to committed copies, of a table of a million keys.

Nine of ten rows are new, one is an update of a random key of the million. ``shmstore`` reduces the events and commits, as `shmstore replicate`
does, in batches of so many rows; ``by hand`` gets the same rows as Arrow tables, reduced, and runs the target's own statements alone: a DELETE of the
keys and an INSERT (DuckDB), a MERGE (delta-rs). Both begin with a copy that holds the million, made for each run.
"""

from __future__ import annotations

import random
import tempfile
import time
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from scripts.benchmarks import measure
from shmstore import Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.consumer.copies.change_reduction import Merge, collect
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.copy_set import CopySet
from shmstore.consumer.copies.kinds import TargetOptions, open_target
from shmstore.encoding.codec import encode
from shmstore.patterns.table_patterns import Patterns

KEYS, BATCH, EVENT = 1_000_000, 100_000, 500
TABLE = TableSchema(
    "shop",
    "orders",
    (
        Column("id", "bigint", nullable=False),
        Column("customer", "int", unsigned=True),
        Column("amount", "decimal", size=12, scale=2),
        Column("placed", "datetime", scale=3),
        Column("status", "varchar", size=40, charset="utf8mb4"),
    ),
    (0,),
)


def measure_all(runs: int, quick: bool) -> list[measure.Measurement]:
    """Measure each kind of target; return the measurements."""
    keys, batches = (KEYS // 10, 2) if quick else (KEYS, 5)
    taken: list[measure.Measurement] = []
    filled = [_event(EventType.INSERT, [_row(key) for key in range(first, first + EVENT)]) for first in range(0, keys, EVENT)]
    changes = _changes(keys, batches)
    rows = batches * BATCH
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
                    if subject == "shmstore":
                        found[subject].append(rows / change(copies, kind, Path(folder), changes))
                    else:
                        copies.close()
                        found[subject].append(rows / change(copies, kind, Path(folder), changes))
                    copies.close()
            measure.say(f"copies {kind}: {found['shmstore'][-1]:,.0f} rows/s, by hand {found['by hand'][-1]:,.0f}")
        taken += [measure.of("copies", kind, subject, "rate", "rows/s", values) for subject, values in found.items()]
    return taken


def _copies(folder: str, kind: str) -> CopySet:
    opened = open_target(f"{kind}:{folder}/copy", TargetOptions())
    copied = CopiedTables("bench", "bench", Patterns.of_tables("*"), state=folder)
    return CopySet(copied, opened.target, opened.template)


def _row(key: int) -> tuple[Any, ...]:
    return (key, key % 1000, Decimal(key % 100_000).scaleb(-2), datetime(2026, 1, 1) + timedelta(seconds=key), "new")


def _event(type_: EventType, rows: list[tuple[Any, ...]]) -> bytes:
    images = tuple([Row(row if type_ is EventType.UPDATE else None, row) for row in rows])
    position = Position("binlog.000001", 4)
    return encode(
        Event(EntryType.ROWS, type_, position, 1_700_000_000_000, 1, 100, "0-1-1", 0, database="shop", table=TABLE, rows=images)
    )


def _changes(keys: int, batches: int) -> list[list[bytes]]:
    choose, fresh, found = random.Random(1), keys, []
    for _ in range(batches):
        batch = []
        for number in range(BATCH // EVENT):
            if number % 10 == 0:
                batch.append(_event(EventType.UPDATE, [_row(choose.randrange(keys)) for _ in range(EVENT)]))
            else:
                batch.append(_event(EventType.INSERT, [_row(key) for key in range(fresh, fresh + EVENT)]))
                fresh += EVENT
        found.append(batch)
    return found


def _ours(copies: CopySet, kind: str, folder: Path, changes: list[list[bytes]]) -> float:
    began = time.perf_counter()
    for number, batch in enumerate(changes, KEYS):
        copies.apply(batch, "bench", number)
    copies.close()
    return time.perf_counter() - began


def _by_hand(copies: CopySet, kind: str, folder: Path, changes: list[list[bytes]]) -> float:
    tables = [_reduced(batch) for batch in changes]
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
    copy = DeltaTable(folder / "copy/shop/orders")
    for table in tables:
        values = {name: f"s.{name}" for name in table.column_names}
        merger = copy.merge(table, "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update(values).when_not_matched_insert(values).execute()
    return time.perf_counter() - began


def _reduced(batch: list[bytes]) -> pa.Table:
    changed = collect(batch, CopiedTables("bench", "bench", Patterns.of_tables("*")), {}, False, lambda database: [])
    (step,) = changed["shop", "orders"].finish()
    assert isinstance(step, Merge)
    return step.upserts
