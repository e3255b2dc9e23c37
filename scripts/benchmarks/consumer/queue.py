"""`shmstore queue`: rows a second from a server's binlog into a Kafka topic, and seconds of CPU a row.

All write into one broker on this host, whose CPU is not counted. The first quarter of a load is not counted either: a JVM compiles while it runs. A case
is a load in a format: json, debezium, canal. The sender without what comes before it is in `queue_full`.

    shmstore     `shmstore produce` and `shmstore queue --format ...`, exactly once, with headers but for canal
    Canal        Canal's own server with its own Kafka producer, flat messages, the settings that it ships with (canal)
    Debezium     Debezium's engine with a handler that only counts: without Kafka, so in its favor (debezium, MySQL)
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress

from scripts.benchmarks import loads, measure
from scripts.benchmarks.peers import debezium
from scripts.benchmarks.producer import decode
from shmstore import EventStore, StoreNotFound
from tests.servers import canal
from tests.servers.kafka import Broker, kafka
from tests.servers.packages import ServerUnavailable
from tests.servers.ports import free_port
from tests.servers.server import Server, start_server

FORMATS = ("json", "debezium", "canal")
_Rates = tuple[float, float]  # rows a second, seconds of CPU a row


def measure_all(runs: int, size: measure.Size) -> list[measure.Measurement]:
    """Measure every load on MySQL, the smallest on MariaDB; return the measurements."""
    taken: list[measure.Measurement] = []
    with closing(written(size)) as found:
        for case, load, server, broker in found:
            for form in size.some(FORMATS):
                _add(taken, f"{case}/{form}", "shmstore", [_ours(server, broker, load, form) for _ in range(runs)])
            if not size.peers:
                continue
            try:
                _add(taken, f"{case}/canal", "Canal", [_canals(server, broker, load) for _ in range(runs)])
            except ServerUnavailable as error:
                measure.say(f"queue: Canal is left out: {error}")
            if not (why := debezium.missing()):
                rates = [(rate, 0.0) for rate, _ in decode.several(runs, debezium.read, server.port, load)]
                _add(taken, f"{case}/debezium", "Debezium", rates)
            else:
                measure.say(f"queue: Debezium is left out: {why}")
    return taken


def written(size: measure.Size) -> Generator[tuple[str, loads.Load, Server, Broker]]:
    """Yield each case that is wanted, with its load, the server that has it, and the broker to send it to."""
    cases = [case for case in size.some(loads.CASES) if measure.wanted(case)]
    if not cases:
        return
    with start_server(size.kinds[-1]) as server, kafka(options={"num.partitions": "1"}, java=()) as broker:
        for case in cases:
            yield case, loads.write(server, case, size.scale), server, broker


def _add(taken: list[measure.Measurement], case: str, subject: str, pairs: list[_Rates]) -> None:
    taken.append(measure.of("queue", case, subject, "throughput", "rows/s", [rate for rate, _ in pairs]))
    measure.say(f"queue {case} {subject}: {measure.number(taken[-1].median)} rows/s")
    if any(cpu for _, cpu in pairs):
        taken.append(measure.of("queue", case, subject, "cpu", "us/row", [cpu * 1e6 for _, cpu in pairs]))


@contextmanager
def filling(server: Server, load: loads.Load, state: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A producer that reads a load into a store: (the store's name, its process)."""
    name = f"bench-queue-{os.getpid()}-{time.monotonic_ns()}"
    words = ["--host", "127.0.0.1", "--port", str(server.port), "--user", "root", "--store", name, "--state", state]
    words += ["--start", f"{load.file}:{load.offset}", "--include", "bench.*"]
    process = subprocess.Popen([sys.executable, "-m", "shmstore", "produce", *words], stderr=subprocess.DEVNULL)
    try:
        yield name, process
    finally:
        process.kill()
        process.wait()
        with suppress(StoreNotFound):
            EventStore.unlink(name, log=True, state=state)


def _ours(server: Server, broker: Broker, load: loads.Load, form: str) -> _Rates:
    with tempfile.TemporaryDirectory() as state, filling(server, load, state) as (name, producer):
        wait_for(lambda: attached(name, state))
        port = free_port()
        words = ["--brokers", broker.address, "--state", state, "--format", form, "--metrics-port", str(port)]
        words += [] if form != "canal" else ["--no-headers"]
        queue = subprocess.Popen([sys.executable, "-m", "shmstore", "queue", name, *words], stderr=subprocess.DEVNULL)
        try:
            with EventStore.attach(name, state=state) as store:

                def sent() -> int:
                    """Rows of the events that the queue has."""
                    time.sleep(0.005)
                    stat = next((each for each in store.stat().subscriptions if each.name == "queue"), None)
                    return 0 if stat is None else stat.ack.rows

                return measure.timed(sent, load.rows, [producer.pid, queue.pid])
        finally:
            queue.kill()
            queue.wait()


def attached(name: str, state: str) -> bool:
    try:
        EventStore.attach(name, state=state).close()
        return True
    except StoreNotFound:
        return False


def _canals(server: Server, broker: Broker, load: loads.Load) -> _Rates:
    topic = f"canal-{time.monotonic_ns()}"
    with canal.to_kafka(server, load.file, load.offset, broker.address, topic) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        seen = 0

        def sent() -> int:
            nonlocal seen
            time.sleep(0.005)
            for line in (process.stdout.read() or b"").splitlines():  # type: ignore[union-attr]
                with suppress(ValueError):
                    seen = int(line.removeprefix(b"rows "))
            return seen

        return measure.timed(sent, load.rows, [process.pid])


def wait_for(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        if time.monotonic() > deadline:
            raise RuntimeError("the store did not come")
        time.sleep(0.02)
