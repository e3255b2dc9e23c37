"""Changed rows into a copy in PostgreSQL: rows a second from encoded events to committed rows, of a table of a million keys.

Nine of ten rows are new, one is an update of a random key of the million. ``shmstore`` reduces the events and commits, in batches of so many rows;
``by hand`` has the same rows as COPY's text, reduced, and runs COPY into a temporary table and one MERGE. Both begin with a copy that holds the
million, made for each run. Server and client are on this machine; the server has fsync off.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg

from scripts.benchmarks import measure
from shmstore import Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.copy_set import CopySet
from shmstore.consumer.copies.databases.target import database_target
from shmstore.encoding.codec import encode
from shmstore.patterns.table_patterns import Patterns
from tests.servers.postgres import Postgres, start_postgres

KEYS, BATCH, EVENT = 1_000_000, 100_000, 500
_TABLE = TableSchema(
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
_STAGE = "CREATE TEMPORARY TABLE stage ON COMMIT DROP AS SELECT * FROM shop.orders WHERE false"
_MERGE = """
MERGE INTO shop.orders t USING stage s ON t.id = s.id
WHEN MATCHED THEN UPDATE SET customer = s.customer, amount = s.amount, placed = s.placed, status = s.status
WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.customer, s.amount, s.placed, s.status)
"""


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure PostgreSQL; return the measurements."""
    if not measure.wanted("postgresql"):
        return []
    keys, batches, batch = size.of(KEYS, EVENT), 4 if size.scale == 1 else 2, BATCH if size.peers else 10 * EVENT
    there = [_event(EventType.INSERT, range(first, first + EVENT)) for first in range(0, keys, EVENT)]
    changed = _changes(keys, batches, batch)
    events = [[_event(*each) for each in events] for events in changed]
    text = [_lines(events) for events in changed]
    found: dict[str, list[float]] = {"shmstore": [], "by hand": []}
    with start_postgres() as server, tempfile.TemporaryDirectory() as state:
        for _ in range(runs):
            for subject in found:
                _run(server, "DROP SCHEMA IF EXISTS shop CASCADE")
                target = database_target(server.url, server.password)
                copies = CopySet(CopiedTables("bench", "bench", Patterns.parse("*"), state=state), target, "{database}.{table}")
                for number, first in enumerate(range(0, len(there), BATCH // EVENT)):
                    copies.apply(there[first : first + BATCH // EVENT], "bench", number)
                _run(server, "VACUUM ANALYZE shop.orders", "CHECKPOINT")
                rate = (
                    _ours(copies, events, batches * batch) if subject == "shmstore" else _by_hand(server, text, batches * batch)
                )
                found[subject].append(rate)
                target.close()
            measure.say(f"database_copies postgresql: {found['shmstore'][-1]:,.0f} rows/s, by hand {found['by hand'][-1]:,.0f}")
    return [measure.of("database_copies", "postgresql", subject, "rate", "rows/s", values) for subject, values in found.items()]


def _run(server: Postgres, *statements: str) -> None:
    with psycopg.connect(server.url, password=server.password, autocommit=True) as connection:
        for sql in statements:
            connection.execute(sql.encode())


def _row(key: int) -> tuple[Any, ...]:
    return (key, key % 1000, Decimal(key % 100_000).scaleb(-2), datetime(2026, 1, 1) + timedelta(seconds=key), "new")


def _event(type_: EventType, keys: Any) -> bytes:
    rows = [_row(key) for key in keys]
    images = tuple([Row(row if type_ is EventType.UPDATE else None, row) for row in rows])
    place = Position("binlog.000001", 4)
    return encode(
        Event(EntryType.ROWS, type_, place, 1_700_000_000_000, 1, 100, "0-1-1", 0, database="shop", table=_TABLE, rows=images)
    )


def _changes(keys: int, batches: int, batch: int) -> list[list[tuple[EventType, list[int]]]]:
    """Batches of events: of each its kind, and the keys of its rows."""
    choose, fresh, found = random.Random(1), keys, []
    for _ in range(batches):
        events = []
        for number in range(batch // EVENT):
            if number % 10 == 0:
                events.append((EventType.UPDATE, [choose.randrange(keys) for _ in range(EVENT)]))
            else:
                events.append((EventType.INSERT, list(range(fresh, fresh + EVENT))))
                fresh += EVENT
        found.append(events)
    return found


def _lines(batch: list[tuple[EventType, list[int]]]) -> bytes:
    keys = dict.fromkeys(key for _, keys in batch for key in keys)
    return "".join("\t".join(map(str, _row(key))) + "\n" for key in keys).encode()


def _rate(changes: list[Any], rows: int, apply: Callable[[int, Any], object]) -> float:
    began = time.perf_counter()
    for number, batch in enumerate(changes, KEYS):
        apply(number, batch)
    return rows / (time.perf_counter() - began)


def _ours(copies: CopySet, events: list[list[bytes]], rows: int) -> float:
    return _rate(events, rows, lambda number, batch: copies.apply(batch, "bench", number))


def _by_hand(server: Postgres, text: list[bytes], rows: int) -> float:
    with psycopg.connect(server.url, password=server.password) as connection:

        def apply(number: int, lines: bytes) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(_STAGE)
                with cursor.copy("COPY stage FROM STDIN") as copy:
                    copy.write(lines)
                cursor.execute(_MERGE)

        return _rate(text, rows, apply)
