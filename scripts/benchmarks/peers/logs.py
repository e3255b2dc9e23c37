"""Logs on disk side by side: what is put stays there, and a reader that comes later reads it from the beginning.

A subject is made with a folder on the disk that is measured. `produce(events)` puts so many events of `EVENT` bytes, in batches of
`BATCH`, as its users would who want them on disk soon and not each on its own; `consume(events)` then reads them all, in batches too, each
event addressable. Both return (seconds, seconds of CPU of the client). `server` is the process behind it, if there is one.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scripts.benchmarks.peers import kafka, transports
from shmstore import EventStore
from tests.servers.redis import redis_command

EVENT, BATCH = transports.EVENT, 1000
SYNC_SECONDS = 0.5  # as the store's log
_FORK = multiprocessing.get_context("fork")


def apart(act: Callable[..., Any], *arguments: Any) -> Any:
    """Call `act` in a forked process; return what it returns. Raises RuntimeError where it fails."""
    ours, theirs = _FORK.Pipe()

    def run() -> None:
        try:
            theirs.send((act(*arguments), ""))
        except BaseException as error:
            theirs.send((None, repr(error)))
            raise

    process = _FORK.Process(target=run)
    process.start()
    theirs.close()
    try:
        found, failure = ours.recv()
    except EOFError:
        found, failure = None, "it ended"
    process.join()
    if failure:
        raise RuntimeError(f"the measured process failed: {failure}")
    return found


def cpu() -> float:
    """Seconds of CPU of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cpu_of(pid: int) -> float:
    """Seconds of CPU of another process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(act: Callable[[], Any]) -> tuple[float, float]:
    """Call `act`; return (seconds, seconds of CPU of this process)."""
    used, began = cpu(), time.perf_counter()
    act()
    return time.perf_counter() - began, cpu() - used


@contextmanager
def synced(*fds: int) -> Iterator[None]:
    """Put what is written to files on disk twice a second, in a thread; and at the end."""
    over = threading.Event()

    def sync() -> None:
        while not over.wait(SYNC_SECONDS):
            for fd in fds:
                os.fdatasync(fd)

    thread = threading.Thread(target=sync)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    for fd in fds:
        os.fdatasync(fd)


class Store:
    """The store with its log: put(list), get."""

    name, server = "shmstore", None

    def __init__(self, folder: Path) -> None:
        self._folder, self._store = folder, f"bench-log-{os.getpid()}"
        EventStore.create(self._store, state=folder, capacity=65536, memory_unit=256).close()

    def produce(self, events: int) -> tuple[float, float]:
        """As all of them."""

        def put() -> None:
            payloads = [bytes(EVENT)] * BATCH
            for _ in range(events // BATCH):
                store.put(payloads)
            store.sync()

        with EventStore.attach(self._store, state=self._folder) as store:
            store.claim()
            return timed(put)

    def consume(self, events: int) -> tuple[float, float]:
        """As all of them."""

        def get() -> None:
            left = events // BATCH * BATCH
            while left > 0:
                batch = reader.get(limit_events=BATCH)
                for _ in batch.payloads():
                    left -= 1
                reader.ack(batch)

        with EventStore.attach(self._store, state=self._folder) as store:
            reader = store.subscribe("reader")
            return timed(get)

    def close(self) -> None:
        """Remove it."""
        EventStore.unlink(self._store, log=True, state=self._folder)


class Kafka:
    """One broker, one partition, acks=1; its own producer and consumer."""

    name = "Kafka"

    def __init__(self, folder: Path) -> None:
        self._broker = kafka.Broker(folder, EVENT)
        self.server = self._broker.pid

    def produce(self, events: int) -> tuple[float, float]:
        """As all of them."""
        return self._broker.produced(events)

    def consume(self, events: int) -> tuple[float, float]:
        """As all of them."""
        return self._broker.consumed(events)

    def close(self) -> None:
        """End the broker."""
        self._broker.close()


class Redis:
    """A stream in memory with an append-only file, which is synced each second; pipelines of XADD, XREAD COUNT."""

    name = "Redis, AOF"

    def __init__(self, folder: Path) -> None:
        import redis

        command = redis_command()
        self._socket = str(folder / "s")
        options = ["--port", "0", "--unixsocket", self._socket, "--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
        self._process = subprocess.Popen([*command, *options, "--dir", str(folder)], stdout=subprocess.DEVNULL)
        self.server = self._process.pid
        deadline = time.monotonic() + 20
        while not os.path.exists(self._socket):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise ImportError(f"{command[0]} does not start here")
            time.sleep(0.02)
        self._client: Any = lambda: redis.Redis(unix_socket_path=self._socket)

    def produce(self, events: int) -> tuple[float, float]:
        """As all of them."""

        def put() -> None:
            payload = bytes(EVENT)
            for _ in range(events // BATCH):
                pipe = client.pipeline(transaction=False)
                for _ in range(BATCH):
                    pipe.xadd("s", {"e": payload})
                pipe.execute()

        client = self._client()
        return timed(put)

    def consume(self, events: int) -> tuple[float, float]:
        """As all of them."""

        def get() -> None:
            last, left = b"0", events // BATCH * BATCH
            while left > 0:
                found = client.xread({"s": last}, count=BATCH)
                entries = found[0][1] if isinstance(found, list) else next(iter(found.values()))[0]
                last = entries[-1][0]
                left -= len(entries)

        client = self._client()
        return timed(get)

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()


class Sqlite:
    """One table in WAL mode, synchronous=NORMAL; a transaction for each batch, read by key."""

    name, server = "SQLite, WAL", None

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log.db"
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, payload BLOB NOT NULL)")

    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    def produce(self, events: int) -> tuple[float, float]:
        """As all of them."""

        def put() -> None:
            rows = [(bytes(EVENT),)] * BATCH
            for _ in range(events // BATCH):
                connection.execute("BEGIN")
                connection.executemany("INSERT INTO log (payload) VALUES (?)", rows)
                connection.execute("COMMIT")

        connection = self._connection()
        return timed(put)

    def consume(self, events: int) -> tuple[float, float]:
        """As all of them."""

        def get() -> None:
            last, left = 0, events // BATCH * BATCH
            while left > 0:
                rows = connection.execute(
                    "SELECT id, payload FROM log WHERE id > ? ORDER BY id LIMIT ?", (last, BATCH)
                ).fetchall()
                last = rows[-1][0]
                left -= len(rows)

        connection = self._connection()
        return timed(get)

    def close(self) -> None:
        """Nothing is left to end."""


class Plain:
    """The limit: write(2) and read(2) of as many bytes, in pieces of a batch. Nothing of it can be addressed, or trusted after a crash."""

    name, server = "plain write", None

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log"

    def produce(self, events: int) -> tuple[float, float]:
        """As all of them."""

        def put() -> None:
            piece = bytes(EVENT * BATCH)
            with synced(fd):
                for _ in range(events // BATCH):
                    os.write(fd, piece)

        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            return timed(put)
        finally:
            os.close(fd)

    def consume(self, events: int) -> tuple[float, float]:
        """As all of them."""

        def get() -> None:
            while os.read(fd, EVENT * BATCH):
                pass

        fd = os.open(self._path, os.O_RDONLY)
        try:
            return timed(get)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Nothing is left to end."""


ALL: tuple[Any, ...] = (Store, Kafka, Redis, Sqlite, Plain)


def moved(subject: Any, folder: Path, events: int) -> dict[str, tuple[float, float]]:
    """Produce and consume events with a new one of `subject`; return (events/s, CPU seconds per million) of each.

    Raises ImportError where it cannot be had here.
    """
    place = folder / f"peer-{time.monotonic_ns()}"
    place.mkdir()
    found: dict[str, tuple[float, float]] = {}
    try:
        peer = subject(place)
        try:
            for case in ("produce", "consume"):
                before = cpu_of(peer.server) if peer.server else 0.0
                act: Callable[[int], tuple[float, float]] = getattr(peer, case)
                seconds, used = act(events) if subject is Kafka else apart(act, events)
                used += cpu_of(peer.server) - before if peer.server else 0.0
                found[case] = events / seconds, used * 1e6 / events
        finally:
            with suppress(OSError):
                peer.close()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return found
