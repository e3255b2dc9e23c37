"""From the server's binlog to a canal client: our producer and server, and Canal's own server, with the same client on the same binlog.

The client reads packets, counts rows by the entries' headers and acks; it parses no columns. The first quarter of a load is not counted:
a JVM compiles while it runs. CPU is that of the servers alone: producer and `shmstore serve`, or the JVM. Neither keeps a log on disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from scripts.benchmarks import loads, measure
from shmstore import EventStore, StoreNotFound
from tests.servers.canal import DESTINATION, canal_server
from tests.servers.server import Server, ServerUnavailable, start_server

Client = Callable[[int, str], Any]


def measure_all(
    runs: int, size: measure.Size, client: Client, count: Callable[[Any], int], serving: Any
) -> list[measure.Measurement]:
    """Measure every load; `client` connects one to (port, destination), `count` gives the rows of an answer, `serving` starts our server.

    Says why Canal is left out where it cannot be had.
    """
    taken: list[measure.Measurement] = []
    cases = [case for case in size.some(loads.CASES) if measure.wanted(f"binlog/{case}")]
    if not cases:
        return taken
    with start_server("mariadb") as server:
        for case in cases:
            load = loads.write(server, case, size.scale)
            for subject, run in (("shmstore", _ours), ("Canal", _canals))[: None if size.peers else 1]:
                try:
                    pairs = [run(server, load, client, count, serving) for _ in range(runs)]
                except ServerUnavailable as error:
                    measure.say(f"serve: {subject} is left out: {error}")
                    continue
                for metric, unit, values in (
                    ("throughput", "rows/s", [rate for rate, _ in pairs]),
                    ("cpu", "us/row", [cpu * 1e6 for _, cpu in pairs]),
                ):
                    taken.append(measure.of("serve", f"binlog {case}", subject, metric, unit, values))
                    measure.say(f"serve binlog {case} {subject} {metric}: {measure.number(taken[-1].median)} {unit}")
    return taken


def _ours(server: Server, load: loads.Load, client: Client, count: Any, serving: Any) -> tuple[float, float]:
    name = f"bench-canal-{os.getpid()}-{time.monotonic_ns()}"
    EventStore.create(name, log=False).close()
    try:
        with serving(name, server.port, f"{load.file}:{load.offset}") as (port, produce, pids):
            connected = client(port, name)
            pids.append(produce())
            return _timed(connected, load.rows, pids, count)
    finally:
        with suppress(StoreNotFound):
            EventStore.unlink(name)


def _canals(server: Server, load: loads.Load, client: Client, count: Any, serving: Any) -> tuple[float, float]:
    with canal_server(server, load.file, load.offset, 1000) as canal:
        return _timed(client(canal.port, DESTINATION), load.rows, [canal.pid], count)


def _timed(client: Any, rows: int, pids: list[int], count: Callable[[Any], int]) -> tuple[float, float]:
    seen = 0

    def came() -> int:
        nonlocal seen
        batch_id, body = client.get()
        if batch_id > 0:
            seen += count(body)
            client.ack(batch_id)
        return seen

    try:
        return measure.timed(came, rows, pids)
    finally:
        client.socket.close()
