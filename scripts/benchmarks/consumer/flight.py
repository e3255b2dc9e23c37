"""`shmstore serve --flight`: bytes of events a second to clients on the same host, compared with their bounds.

The server is a process of its own; the events (rows events of 500 rows, five columns) were put before.

    shmstore                typed rows of the events: decoded by the server, Arrow in the client
    shmstore events         a `Consumer` of a URL; its batches' bytes are in the client's memory
    shmstore local Arrow    `Batch.to_arrow` of the same events by a `Consumer` on the store's host
    bare Flight             a stream of the same bytes out of a Flight server that does nothing else

``64 clients`` are 32 of each of two stores, in 4 processes, each with a subscription of its own; the bytes of all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import flight

from scripts.benchmarks import measure
from scripts.benchmarks.consumer.serve import _WIDE, _transactions
from scripts.benchmarks.stores import new_store
from shmstore import Consumer, EventStore

BATCH_BYTES = 8 << 20  # of a batch, for all of them
_TABLE = f"{_WIDE.database}.{_WIDE.table}"


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Run every case; return the measurements."""
    rows = size.of(1_000_000, 20_000)
    taken: list[measure.Measurement] = []
    with tempfile.TemporaryDirectory(prefix="shmstore-bench-") as state:
        os.environ["SHMSTORE_STATE"] = state
        with (
            _filled("one", rows) as (name, length),
            _filled("two", rows) as (other, _),
            _server() as port,
            _bare_server(length) as bare,
        ):
            cases: dict[tuple[str, str], Callable[[], int]] = {
                ("one client", "shmstore"): lambda: _rows(port, name) and length,
                ("one client", "shmstore events"): lambda: _consume(f"grpc://127.0.0.1:{port}/{name}"),
                ("one client", "shmstore local Arrow"): lambda: _consume(name, arrow=True),
                ("one client", "bare Flight"): lambda: _bytes(bare),
                ("64 clients", "shmstore"): lambda: _many(port, (name, other), 64 if size.peers else 16),
            }
            for (case, subject), run in cases.items():
                if not measure.wanted(case):
                    continue
                rates = []
                for _ in range(runs if case != "64 clients" else 1):
                    began = time.perf_counter()
                    rates.append(run() / (time.perf_counter() - began))
                taken.append(measure.of("flight", case, subject, "throughput", "bytes/s", rates))
                measure.say(f"flight {case} {subject}: {measure.number(taken[-1].median)} bytes/s")
    return taken


@contextmanager
def _filled(name: str, rows: int) -> Iterator[tuple[str, int]]:
    """A store with so many rows in its log, and how many bytes its events have."""
    blob, slots, unit = _transactions(_WIDE, 500, 20_000)
    with new_store(f"flight-{name}") as store:
        for _ in range(rows // unit):
            store.put_encoded(blob, slots)
        store.sync()
        yield store.name, len(blob) * (rows // unit)


@contextmanager
def _server() -> Iterator[int]:
    words = [sys.executable, "-m", "shmstore", "serve", "--flight", "127.0.0.1:0", "--max-new-clients", "100000"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        yield int(process.stderr.readline().split(":")[2].split()[0])
    finally:
        process.terminate()
        process.wait(30)


_BARE = """
import sys, pyarrow as pa
from pyarrow import flight
schema = pa.schema([("payload", pa.large_binary())])
block = pa.record_batch([pa.array([bytes(131072)] * 32, pa.large_binary())], schema=schema)
class Bare(flight.FlightServerBase):
    def do_get(self, context, ticket):
        return flight.GeneratorStream(schema, (block for _ in range(max(1, int(sys.argv[1]) // (4 << 20)))))
server = Bare("grpc://127.0.0.1:0")
print(server.port, flush=True)
sys.stdin.read()
"""


@contextmanager
def _bare_server(size: int) -> Iterator[int]:
    words = [sys.executable, "-c", _BARE, str(size)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.terminate()


def _consume(store: str, *, arrow: bool = False, subscription: str = "") -> int:
    """Read everything; return how many bytes."""
    name = subscription or f"reader-{time.monotonic_ns()}"
    seen = 0
    with Consumer(store, name, timeout=0, limit_bytes=BATCH_BYTES, checkpoint=False) as consumer:
        for batch in consumer:
            seen += len(batch.raw)
            if arrow:
                batch.to_arrow(_TABLE)
    if not subscription:
        with EventStore.attach(store.rpartition("/")[2]) as attached:
            attached.unsubscribe(name)
    return seen


def _rows(port: int, store: str) -> int:
    client = flight.FlightClient(f"grpc://127.0.0.1:{port}")
    ticket = json.dumps({"store": store, "table": _TABLE}).encode()
    return sum(chunk.data.num_rows for chunk in client.do_get(flight.Ticket(ticket)))


def _bytes(port: int) -> int:
    reader: Any = flight.FlightClient(f"grpc://127.0.0.1:{port}").do_get(flight.Ticket(b""))
    return sum(_size(chunk.data) for chunk in reader)


def _size(batch: pa.RecordBatch) -> int:
    return int(batch.column(0).buffers()[2].size)


_MANY = "import sys\nfrom scripts.benchmarks.consumer.flight import read_many\nprint(read_many(sys.argv[1], int(sys.argv[2])))\n"


def _many(port: int, stores: tuple[str, str], clients: int) -> int:
    words = [
        [sys.executable, "-c", _MANY, f"grpc://127.0.0.1:{port}/{stores[first // 32]}", str(first)]
        for first in range(0, clients, 16)
    ]
    readers = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in words]
    return sum(int(reader.communicate()[0]) for reader in readers)


def read_many(url: str, first: int) -> int:
    """Read everything with 16 subscriptions at once; return how many bytes they got together."""
    seen: list[int] = []
    readers = [
        threading.Thread(target=lambda n=n: seen.append(_consume(url, subscription=f"many-{n}")))
        for n in range(first, first + 16)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return sum(seen)
