"""`shmstore serve`: rows a second over the canal protocol, compared with the store's own reader.

Three processes: one that puts stored events (already encoded, as the producer leaves them), the server, and the clients.

    bulk          rows events of 500 rows (five columns: bigint, varchar, decimal, datetime, int), a transaction each
    bulk/4 cols   the same with a row of four narrow columns, as in Canal's own published test
    single        single-row changes, each a transaction of its own: begin, row, end

``not parsing`` is a client that reads packets and acks them, as Canal's own figures were taken; ``parsing`` also takes
every entry and column apart with the protobuf package (upb). ``64 clients`` is 64 connections of 62 client ids, not parsing,
all rows of all of them counted. ``shmstore reader`` is a plain `Subscription` of the same store that decodes nothing. ``binlog`` is the
whole way from a server's binlog to the client, of `shmstore serve` and of Canal's own server (`canal`).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any

from scripts.benchmarks import measure
from scripts.benchmarks.peers import canal
from scripts.benchmarks.stores import new_store
from shmstore import Column, EntryType, Event, EventStore, EventType, Position, Row, TableSchema
from shmstore.encoding.codec import encode_batch

_FORK = multiprocessing.get_context("fork")
_WIDE = TableSchema(
    "shop",
    "orders",
    (
        Column("id", "bigint", nullable=False),
        Column("name", "varchar", size=120, charset="utf8mb4"),
        Column("total", "decimal", size=12, scale=2),
        Column("created", "datetime", scale=6),
        Column("quantity", "int"),
    ),
    (0,),
)
_NARROW = TableSchema(
    "shop", "points", (Column("id", "int"), Column("a", "int"), Column("b", "int"), Column("c", "varchar", size=32)), (0,)
)
_FETCH_KIB = 1024


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Run every case; return the measurements."""
    taken: list[measure.Measurement] = []

    def add(case: str, subject: str, unit: str, rates: list[float]) -> None:
        taken.append(measure.of("serve", case, subject, "throughput", unit, rates))
        measure.say(f"serve {case} {subject}: {measure.number(taken[-1].median)} {unit}")

    taken += canal.measure_all(max(1, runs // 2), size, lambda port, name: _Client(port, name, 1001), _count, _serving)
    for case, table, rows, count in (
        ("bulk", _WIDE, 500, 600_000),
        ("bulk/4 cols", _NARROW, 500, 600_000),
        ("single", _WIDE, 1, 150_000),
    ):
        if not measure.wanted(case):
            continue
        total = size.of(count, 4)
        for subject, kind in (("shmstore", "plain"), ("shmstore parsing", "parsing"), ("shmstore reader", "own")):
            if kind == "parsing":
                total //= 4
            add(case, subject, "rows/s", [_one_case(table, rows, total, kind, 1) for _ in range(runs)])
            if kind == "parsing":
                total *= 4
    if not measure.wanted("64 clients"):
        return taken
    add(
        "64 clients",
        "shmstore",
        "rows/s",
        [_one_case(_WIDE, 500, size.of(60_000), "plain", 62 if size.peers else 3) for _ in range(max(1, runs // 2))],
    )
    return taken


def measure_one(case: str = "bulk", rows: int = 200_000) -> float:
    """Rows a second of one case with one client that does not parse, once: for a look."""
    table, batch = {"bulk": (_WIDE, 500), "bulk/4 cols": (_NARROW, 500), "single": (_WIDE, 1)}[case]
    return _one_case(table, batch, rows, "plain", 1)


def _transactions(table: TableSchema, rows: int, changes: int) -> tuple[bytes, Any, int]:
    """Encoded transactions of `rows` rows each, about `changes` rows in all: (blob, slots, rows)."""
    events = []
    number = 0
    while number < changes:
        images = []
        for _ in range(rows):
            number += 1
            if table is _WIDE:
                created = datetime(2024, 1, 1 + number % 28, 12, number % 60, 7, number % 10**6)
                images.append(Row(None, (number, f"customer number {number}", Decimal(number) / 100, created, number % 1000)))
            else:
                images.append(Row(None, (number, number * 7 % 1000, number * 13 % 1000, f"value {number % 5000}")))
        place = Position("binlog.000001", 1000 + number * 60)
        head: dict[str, Any] = {"time_ms": 1700000000000 + number // 1000, "server_id": 1, "transaction": f"0-1-{number}"}
        events.append(Event(EntryType.BEGIN, EventType.NONE, place, length=42, props={"thread_id": "7"}, **head))
        events.append(Event(EntryType.ROWS, EventType.INSERT, place, length=60 * rows, table=table, rows=tuple(images), **head))
        events.append(Event(EntryType.END, EventType.NONE, place, length=31, props={"xid": str(number)}, **head))
    return (*encode_batch(events), number)


def _one_case(table: TableSchema, rows: int, total: int, kind: str, clients: int) -> float:
    """Rows a second that arrive at all clients together."""
    unit_rows = min(total, 20_000)
    blob, slots, unit = _transactions(table, rows, unit_rows)
    repeats = max(1, total // unit)
    with tempfile.TemporaryDirectory() as state, new_store("serve", log=False) as store:
        name = store.name
        server, port = (None, 0) if kind == "own" else _start_server(state)
        own = store.subscribe("own") if kind == "own" else None
        results = _FORK.SimpleQueue()
        readers = []
        if kind != "own":
            readers = [_spawn(_read_all, results, port, name, 100 + n, repeats * unit, kind == "parsing") for n in range(clients)]
            for _ in range(clients):
                assert results.get() == "subscribed"
        producer = _spawn(_produce, name, blob, slots, repeats)
        began = time.perf_counter()
        if own is not None:
            seen = 0
            while seen < repeats * unit:
                batch = own.get(timeout=30)
                seen += batch.rows
                own.ack(batch)
        for _ in readers:
            assert results.get() == repeats * unit
        took = time.perf_counter() - began
        for process in (producer, *readers):
            process.join(30)
        if server is not None:
            server.terminate()
            server.join(30)
        return repeats * unit * max(1, len(readers)) / took


def _spawn(target: Callable[..., None], *arguments: Any) -> Any:
    process = _FORK.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def _start_server(state: str) -> tuple[Any, int]:
    from shmstore.consumer.wire import CanalProcess, CanalSettings

    ready = _FORK.SimpleQueue()
    settings = CanalSettings(port=0, state=state, ready=lambda address: ready.put(address[1]))
    process = _spawn(CanalProcess(settings).run)
    return process, ready.get()


@contextmanager
def _serving(store: str, port: int, start: str) -> Iterator[tuple[int, Callable[[], int], list[int]]]:
    """(port, what starts the producer and returns its pid, pids of the servers) of `store`, to be filled from a server at `port`."""

    def run() -> None:
        from shmstore import producer

        settings = producer.Settings(store=store, host="127.0.0.1", port=port, user="root", start=start, state=state)
        producer.run(settings, lambda: os.getppid() != parent)

    parent, started = os.getpid(), []
    with tempfile.TemporaryDirectory() as state:
        server, served = _start_server(state)

        def produce() -> int:
            started.append(_spawn(run))
            return int(started[0].pid)

        try:
            yield served, produce, [server.pid]
        finally:
            for process in (*started, server):
                process.terminate()
                process.join(30)


def _produce(name: str, blob: bytes, slots: Any, repeats: int) -> None:
    """Put the transactions over and over, in portions that fit the ring."""
    import numpy as np

    with EventStore.attach(name) as store:
        ends = np.cumsum(slots["size"], dtype=np.int64)
        cuts, start = [], 0
        step = max(3, 3 * (len(slots) // 3 // max(1, int(ends[-1]) // (256 * 1024))))
        for stop in range(step, len(slots) + step, step):
            stop = min(stop, len(slots))
            if stop > start:
                cuts.append((blob[int(ends[start - 1]) if start else 0 : int(ends[stop - 1])], slots[start:stop]))
                start = stop
        for _ in range(repeats):
            for part, records in cuts:
                store.put_encoded(part, records)


def _read_all(results: Any, port: int, destination: str, client_id: int, rows: int, parsing: bool) -> None:
    """Subscribe, then get and ack until all rows have come. Not parsing, rows are counted from the headers' rowsCount."""
    asyncio.set_event_loop(None)
    client = _Client(port, destination, client_id)
    results.put("subscribed")
    seen = 0
    while seen < rows:
        batch_id, body = client.get()
        if batch_id > 0:
            seen += _parse(body) if parsing else _count(body)
            client.ack(batch_id)
    results.put(seen)


class _Client:
    """A canal client with nothing but sockets."""

    def __init__(self, port: int, destination: str, client_id: int) -> None:
        from shmstore.consumer.wire.protocol import messages as m

        self.m = m
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.name = {"destination": destination, "client_id": str(client_id)}
        self._read()
        self._send(m.PacketType.CLIENTAUTHENTICATION, m.ClientAuth())
        self._read()
        self._send(m.PacketType.SUBSCRIPTION, m.Sub(**self.name))
        self._read()
        self._get = self._packet(m.PacketType.GET, m.Get(**self.name, fetch_size=_FETCH_KIB, timeout=100, unit=2))

    def _packet(self, kind: int, message: Any) -> bytes:
        packet: bytes = self.m.Packet(type=kind, body=message.SerializeToString()).SerializeToString()
        return struct.pack(">i", len(packet)) + packet

    def _send(self, kind: int, message: Any) -> None:
        self.socket.sendall(self._packet(kind, message))

    def _read(self) -> memoryview:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> memoryview:
        data = memoryview(bytearray(size))
        got = 0
        while got < size:
            got += self.socket.recv_into(data[got:])
        return data

    def get(self) -> tuple[int, memoryview]:
        self.socket.sendall(self._get)
        body = self.m.Packet.FromString(self._read()).body
        return _batch_id(body), memoryview(body)

    def ack(self, batch_id: int) -> None:
        self._send(self.m.PacketType.CLIENTACK, self.m.ClientAck(**self.name, batch_id=batch_id))


def _varint(data: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _batch_id(body: Any) -> int:
    value, _ = _varint(body, 1)
    return value if value < 1 << 63 else value - (1 << 64)


def _count(body: memoryview) -> int:
    """Rows in a Messages: of every entry its header is looked at, for rowsCount, and nothing else."""
    data = body.tobytes()
    found, at = 0, 0
    while (at := data.find(b"\x0a\x09rowsCount\x12", at)) >= 0:
        size = data[at + 12]
        found += int(data[at + 13 : at + 13 + size])
        at += 13 + size
    return found


def _parse(body: memoryview) -> int:
    """Rows in a Messages, every column taken apart."""
    from shmstore.consumer.wire.protocol import messages as m

    rows = 0
    for data in m.Messages.FromString(body.tobytes()).messages:
        entry = m.Entry.FromString(data)
        if entry.entryType == 2:
            for row in m.RowChange.FromString(entry.storeValue).rowDatas:
                rows += 1
                for column in row.afterColumns:
                    _ = column.name, column.value
    return rows
