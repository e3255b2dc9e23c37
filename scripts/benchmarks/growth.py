"""What a row costs as there is more of everything: rows, tables, rows in a transaction.

The cost is the producer's own CPU from its first read to its last put, in nanoseconds a row: read, decode, encode, put into a
store, whose reader acks it unseen. ``ratio`` is to the best point of the same series: flat is 1. A transaction costs
something itself (its begin and end are events, too), which shows where it has one row only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from scripts.benchmarks import loads, measure
from tests.servers.server import Server, start_server

_TABLE = "CREATE TABLE {} (id INT PRIMARY KEY AUTO_INCREMENT, k INT NOT NULL, name VARCHAR(60) NOT NULL, at DATETIME NOT NULL)"
_INSERT = "INSERT INTO {} (k, name, at) SELECT n, CONCAT('row number ', n), '2024-02-29 12:00:00' FROM numbers WHERE n < %s"


class Point(NamedTuple):
    """One point of a series: rows in all, tables, rows a statement, statements a transaction."""

    series: str
    at: int
    rows: int
    tables: int
    statement: int
    transaction: int


def points(quick: bool) -> Iterator[Point]:
    """All points; `quick`: no more than 10^5 rows."""
    most = 10**5 if quick else 10**7
    for rows in (10**3, 10**4, 10**5, 10**6, 10**7):
        if rows <= most:
            yield Point("rows", rows, rows, 1, 1000, 1)
    for tables in (1, 10, 100, 1000):
        yield Point("tables", tables, min(most, 200_000), tables, 10, 10)
    for size in (1, 10, 100, 10**3, 10**4, 10**5, 10**6):
        if size <= most:
            yield Point("transaction", size, max(size, min(20_000 * size, 200_000)), 1, size, 1)


def measure_all(runs: int, quick: bool) -> list[measure.Measurement]:
    """Measure every point on MariaDB and MySQL; return the measurements."""
    taken: list[measure.Measurement] = []
    for kind in ("mariadb", "mysql"):
        chosen = [point for point in points(quick) if measure.wanted(f"{point.series}/{point.at}/{kind}")]
        if not chosen:
            continue
        with start_server(kind) as server:
            _numbers(server)
            for point in chosen:
                load = _write(server, point)
                costs = [_cost(server.port, load) for _ in range(1 if load.rows > 10**6 else runs)]
                taken.append(measure.of("growth", f"{point.series}/{point.at}/{kind}", "shmstore", "cpu", "ns/row", costs))
                measure.say(f"growth {taken[-1].case}: {measure.number(taken[-1].median)} ns/row")
    return taken + ratios(taken)


def ratios(taken: list[measure.Measurement]) -> list[measure.Measurement]:
    """Each point's cost over the lowest of its series."""
    best: dict[tuple[str, str], float] = {}
    for m in taken:
        series = _series(m.case)
        best[series] = min(best.get(series, m.median), m.median)
    return [
        measure.of(
            "growth",
            m.case,
            m.subject,
            "ratio",
            "x the best",
            [value / best[_series(m.case)] for value in (m.min, m.median, m.max)],
        )
        for m in taken
    ]


def _series(case: str) -> tuple[str, str]:
    series, _, kind = case.split("/")
    return series, kind


def _numbers(server: Server) -> None:
    """Fill a table of the numbers below 10^6."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
        cursor.execute("CREATE TABLE bench.digits (d INT PRIMARY KEY)")
        cursor.execute("INSERT INTO bench.digits VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)")
        cursor.execute("CREATE TABLE bench.numbers (n INT PRIMARY KEY)")
        terms = " + ".join(f"{10**i} * d{i}.d" for i in range(6))
        cursor.execute(f"INSERT INTO bench.numbers SELECT {terms} FROM {', '.join(f'bench.digits d{i}' for i in range(6))}")


def _write(server: Server, point: Point) -> loads.Load:
    """Write the rows of a point into a binlog file of their own."""
    connection = server.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("USE bench")
        for table in range(point.tables):
            cursor.execute(f"DROP TABLE IF EXISTS growth_{table}")
            cursor.execute(_TABLE.format(f"growth_{table}"))
        cursor.execute("FLUSH BINARY LOGS")
        file, offset = loads._place(cursor)
        statements = point.rows // point.statement
        for i in range(statements):
            cursor.execute(_INSERT.format(f"growth_{i % point.tables}"), (point.statement,))
            if i % point.transaction == point.transaction - 1 or i == statements - 1:
                connection.commit()
        end_file, end_offset = loads._place(cursor)
    connection.close()
    return loads.Load(point.series, statements * point.statement, file, offset, end_file, end_offset)


def _cost(port: int, load: loads.Load) -> float:
    """Producer CPU of a load, in ns a row."""
    from scripts.benchmarks import decode

    return 1e9 / decode.read("growth:read", port, load)[1]


def read(port: int, load: loads.Load) -> tuple[int, float, float]:
    """Read, decode, encode and put a load; the store's reader acks what comes. (rows, seconds, seconds of CPU)."""
    from producer.decoder import EventDecoder
    from producer.stream import new_buffer
    from scripts.benchmarks import decode
    from shmstore import EventStore, Position

    name = f"bench-growth-{os.getpid()}-{time.monotonic_ns()}"
    with EventStore.create(name) as store:
        try:
            reader = store.subscribe("reader")
            link, settings = decode._link(port, load.file, load.offset)
            buffer = new_buffer(events=settings.transaction_events, size=settings.transaction_bytes)
            decoder = EventDecoder(buffer, settings.table_filter())
            decoder.start(Position(load.file, load.offset), None)
            clock, rows = decode._Clock(), 0

            def put() -> int:
                done = 0
                flush: Any
                while (flush := buffer.take()) is not None:
                    store.put_encoded(flush.blob, flush.slots, timeout=10)
                    done += flush.rows
                    reader.ack(reader.get(timeout=0))
                return done

            while True:
                for raw in link.read():
                    decoder.feed(raw)
                    if buffer.full:
                        rows += put()
                rows += put()
                position = decoder.position
                if (position.file, position.offset) >= (load.end_file, load.end_offset):
                    return rows, *clock.read()
        finally:
            EventStore.unlink(name)
