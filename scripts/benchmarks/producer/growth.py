"""What a row costs as there is more of everything: rows, tables, rows in a transaction.

The cost is the producer's own CPU, in nanoseconds a row: read, decode, encode, put into a store, whose reader acks it unseen.
Each load is written and read twice, by one stream. ``first`` is the first time, from the stream's first read on: in it are the
first reads, the first schema of each table, and the first touch of the store's memory. ``cpu`` is the second time: the same
load comes to a stream that runs already, which is what each further row costs. ``start`` is what the first time took more
than the second, in milliseconds. No table has the columns of another.

``ratio`` is that of ``cpu`` to the best point of the same series: flat is 1. A transaction costs something itself (its begin
and end are events, too), which shows where it has one row only; so does a load of a thousand rows the read and the put that
it takes. How much of it is the server's doing shows another line: ``raw dump`` reads the second load once more, looks at nothing but
the heads of packets (``cpu``), and says how many bytes they are (``size``); ``cpu/byte`` is the producer's cost of one of these.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pymysql

from scripts.benchmarks import loads, measure
from scripts.benchmarks.stores import new_store
from tests.servers.server import Server, start_server

_TABLE = (
    "CREATE TABLE {0} (id INT PRIMARY KEY AUTO_INCREMENT, k_{0} INT NOT NULL, name VARCHAR(60) NOT NULL, at DATETIME NOT NULL)"
)
_INSERT = "INSERT INTO {0} (k_{0}, name, at) SELECT n, CONCAT('row number ', n), '2024-02-29 12:00:00' FROM numbers WHERE n < %s"


class Point(NamedTuple):
    """One point of a series: rows in all, tables, rows a statement, statements a transaction."""

    series: str
    at: int
    rows: int
    tables: int
    statement: int
    transaction: int


def points(size: measure.Size) -> Iterator[Point]:
    """All points: of a quick run with no more than 10^5 rows, of the smallest with no more than 10^3."""
    most = 10**7 if size.scale == 1 else 10**5 if size.peers else 10**3
    for rows in (10**3, 10**4, 10**5, 10**6, 10**7):
        if rows <= most:
            yield Point("rows", rows, rows, 1, 1000, 1)
    for tables in (1, 10, 100, 1000):
        if tables * 100 <= most:
            yield Point("tables", tables, min(most, 200_000), tables, 10, 10)
    for rows in (1, 10, 100, 10**3, 10**4, 10**5, 10**6):
        if rows <= most:
            yield Point("transaction", rows, max(rows, min(20_000 * rows, most, 200_000)), 1, rows, 1)


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every point on MariaDB and MySQL; return the measurements."""
    taken: list[measure.Measurement] = []
    for kind in size.kinds:
        chosen = [point for point in size.some(points(size)) if measure.wanted(f"{point.series}/{point.at}/{kind}")]
        if not chosen:
            continue
        with start_server(kind) as server:
            _numbers(server, 6 if size.peers else 3)
            for point in chosen:
                _create(server, point)
                costs = [_cost(server.port, point) for _ in range(1 if point.rows > 10**6 else runs)]
                first, cpu, dump, bytes_ = zip(*costs, strict=True)
                start = [(a - b) * point.rows / 1e6 for a, b in zip(first, cpu, strict=True)]
                byte = [a / b for a, b in zip(cpu, bytes_, strict=True)]
                for subject, metric, unit, values in (
                    ("shmstore", "cpu", "ns/row", cpu),
                    ("shmstore", "first", "ns/row", first),
                    ("shmstore", "start", "ms", start),
                    ("shmstore", "cpu/byte", "ns/byte", byte),
                    ("raw dump", "cpu", "ns/row", dump),
                    ("raw dump", "size", "bytes/row", bytes_),
                ):
                    taken.append(measure.of("growth", f"{point.series}/{point.at}/{kind}", subject, metric, unit, values))
                    measure.say(f"growth {taken[-1].case} {subject} {metric}: {measure.number(taken[-1].median)} {unit}")
    return taken + ratios(taken)


def ratios(taken: list[measure.Measurement]) -> list[measure.Measurement]:
    """Each point's cost over the lowest of its series."""
    best: dict[tuple[str, str], float] = {}
    taken = [m for m in taken if (m.subject, m.metric) == ("shmstore", "cpu")]
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


def _numbers(server: Server, digits: int = 6) -> None:
    """Fill a table of the numbers of at most so many digits."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
        cursor.execute("CREATE TABLE bench.digits (d INT PRIMARY KEY)")
        cursor.execute("INSERT INTO bench.digits VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)")
        cursor.execute("CREATE TABLE bench.numbers (n INT PRIMARY KEY)")
        terms = " + ".join(f"{10**i} * d{i}.d" for i in range(digits))
        cursor.execute(f"INSERT INTO bench.numbers SELECT {terms} FROM {', '.join(f'bench.digits d{i}' for i in range(digits))}")


def _create(server: Server, point: Point) -> None:
    """Make the tables of a point again."""
    with server.connect(database="bench") as connection, connection.cursor() as cursor:
        for table in range(point.tables):
            cursor.execute(f"DROP TABLE IF EXISTS growth_{table}")
            cursor.execute(_TABLE.format(f"growth_{table}"))


def _new_file(connection: Any) -> tuple[str, int]:
    """Begin a binlog file; return its place."""
    with connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        return loads._place(cursor)


def _write(connection: Any, point: Point) -> tuple[str, int]:
    """Write the rows of a point; return where they end."""
    with connection.cursor() as cursor:
        statements = point.rows // point.statement
        for i in range(statements):
            cursor.execute(_INSERT.format(f"growth_{i % point.tables}"), (point.statement,))
            if i % point.transaction == point.transaction - 1 or i == statements - 1:
                connection.commit()
        return loads._place(cursor)


def _cost(port: int, point: Point) -> tuple[float, float, float, float]:
    """CPU of a load in ns a row: the producer's the first time and the second, the dump's; and bytes a row. In a process of its own."""
    code = f"from scripts.benchmarks.producer import growth; print(*growth.read({port}, growth.{point}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    first, second, dump, size = map(float, done.stdout.split()[-4:])
    return 1e9 * first / point.rows, 1e9 * second / point.rows, 1e9 * dump / point.rows, size / point.rows


def read(port: int, point: Point) -> tuple[float, float, float, int]:
    """Write a load, then read, decode, encode and put it; do so again; then read the second as it is.

    Return the seconds of CPU of each but for the writing, and the bytes of the second.
    """
    from scripts.benchmarks.producer import decode
    from shmstore import Position
    from shmstore.producer.transactions.buffer import new_buffer
    from shmstore.producer.transactions.decoder import EventDecoder

    connection = pymysql.connect(host="127.0.0.1", port=port, user="root", database="bench", autocommit=False)
    file, offset = _new_file(connection)
    end = _write(connection, point)
    with new_store("growth", log=False) as store:
        reader = store.subscribe("reader")
        link, settings = decode._link(port, file, offset)
        buffer = new_buffer(events=settings.transaction_events, size=settings.transaction_bytes)
        decoder = EventDecoder(buffer, settings.table_filter())
        decoder.start(Position(file, offset), None)

        def put() -> int:
            done = 0
            flush: Any
            while (flush := buffer.take()) is not None:
                store.put_encoded(flush.blob, flush.slots, timeout=10)
                done += flush.rows
                reader.ack(reader.get(timeout=0))
            return done

        def go_on() -> float:
            clock, rows = decode._Clock(), 0
            while (decoder.position.file, decoder.position.offset) < end:
                for raw in link.read():
                    decoder.feed(raw)
                    if buffer.full:
                        rows += put()
                rows += put()
            if rows != point.rows:
                raise RuntimeError(f"{rows} rows of {point.rows} came")
            return clock.read()[1]

        first, begin = go_on(), end
        end = _write(connection, point)
        second, place = go_on(), loads.Load(point.series, point.rows, *begin, *end)
        return first, second, decode.read_raw(port, place)[2], end[1] - begin[1]
