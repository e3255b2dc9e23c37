"""Changed rows into a copy in PostgreSQL: rows a second from encoded events to committed rows, of a table of a million keys.

Nine of ten rows are new, one is an update of a random key of the million. ``shmstore`` reduces the events and commits, in batches of so many rows;
``by hand`` has the same rows as COPY's text, reduced, and runs COPY into a temporary table and one MERGE. Both begin with a copy that holds the
million, made for each run. Server and client are on this machine; the server has fsync off. ``Debezium`` is its JDBC sink, from a Kafka topic that has
the first batch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg

from scripts.benchmarks import measure, orders
from scripts.benchmarks.orders import BATCH, EVENT, KEYS
from scripts.benchmarks.peers.jdbc_sink import JdbcSink, jdbc_sink
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.copy_set import CopySet
from shmstore.consumer.copies.databases.target import database_target
from shmstore.patterns.table_patterns import Patterns
from tests.servers.postgres import Postgres, start_postgres

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
    there = orders.filled(keys)
    changed = orders.changes(keys, batches, batch)
    events = [[orders.event(*each) for each in events] for events in changed]
    text = [_lines(events) for events in changed]
    found: dict[str, list[float]] = {"shmstore": [], "by hand": []}
    with start_postgres() as server, tempfile.TemporaryDirectory() as state, ExitStack() as peers:
        sink: JdbcSink | None = None
        if size.peers:
            try:
                sink = peers.enter_context(
                    jdbc_sink(orders.row(key) for _, some in orders.changes(keys, 1, batch)[0] for key in some)
                )
                found["Debezium"] = []
            except ImportError as error:
                measure.say(f"database_copies: debezium is not measured: {error}")
        for _ in range(runs):
            for subject in found:
                _run(server, "DROP SCHEMA IF EXISTS shop CASCADE")
                target = database_target(server.url, server.password)
                copies = CopySet(CopiedTables("bench", "bench", Patterns.parse("*"), state=state), target, "{database}.{table}")
                for number, first in enumerate(range(0, len(there), BATCH // EVENT)):
                    copies.apply(there[first : first + BATCH // EVENT], "bench", number)
                _run(server, "VACUUM ANALYZE shop.orders", "CHECKPOINT")
                if subject == "shmstore":
                    rate = _ours(copies, events, batches * batch)
                elif subject == "by hand":
                    rate = _by_hand(server, text, batches * batch)
                else:
                    assert sink is not None
                    target.close()
                    rate = sink.rate(server, keys, 9 * batch // 10)
                found[subject].append(rate)
                target.close()
            last = ", ".join(f"{subject} {rates[-1]:,.0f}" for subject, rates in found.items())
            measure.say(f"database_copies postgresql: {last} rows/s")
    return [
        measure.of("database_copies", "postgresql", subject, "throughput", "rows/s", values) for subject, values in found.items()
    ]


def _run(server: Postgres, *statements: str) -> None:
    with psycopg.connect(server.url, password=server.password, autocommit=True) as connection:
        for sql in statements:
            connection.execute(sql.encode())


def _lines(batch: list[orders.Change]) -> bytes:
    keys = dict.fromkeys(key for _, keys in batch for key in keys)
    return "".join("\t".join(map(str, orders.row(key))) + "\n" for key in keys).encode()


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
