"""producer/positions/scan.py: places found by reading a server's binlog. The server is idle: no scan may wait for a write."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from shmstore import producer
from shmstore.producer.binlog.events import RawEvent
from shmstore.producer.binlog.files import BinlogFiles
from shmstore.producer.connection.server import binlog_files, read_server
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.positions import scan
from shmstore.producer.positions.gtid_position import current_position
from tests.producer.running import Running, events_of, execute, remove, running, store_name, wait_for
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with a file that ends with its restart, one that ends with a rotation, and one with nothing in it yet."""
    with start_server(request.param) as started:
        execute(started, "mysql", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1)")
        started.restart()
        execute(started, "d", "INSERT INTO t VALUES (2)")
        time.sleep(2.1 - time.time() % 1)  # binlog times are whole seconds
        started.between = time.time()  # type: ignore[attr-defined]
        time.sleep(1.1)
        execute(started, "d", "FLUSH BINARY LOGS")
        yield started


def session_of(server: Server) -> ServerSession:
    settings = producer.Settings(store="unused", port=server.port)
    return connect(settings, settings.endpoints()[0])


def files_of(server: Server) -> list[tuple[str, int]]:
    with closing(session_of(server)) as session:
        return binlog_files(session)


def rows_from(server: Server, start: str, **options: Any) -> list[int]:
    """The rows that a producer reads from `start` on, while nothing is written."""
    with running(server, start=start, include=("d.t",), **options) as run:
        events = events_of(run, server)
    with closing(session_of(server)) as session:
        gtids = current_position(session, read_server(session)).gtids
    assert not events or events[-1].position.gtids == gtids
    return [row.after[0] for event in events for row in event.rows]


@pytest.mark.parametrize("gtid", ["auto", "off"])
def test_the_end_of_each_file_is_a_place(server: Server, gtid: str) -> None:
    """From the beginning of each file, and from its end, behind a rotation or a restart too, comes what follows, and no more."""
    files, rows = files_of(server), {0: [1, 2], 1: [2], 2: []}
    assert len(files) == 3
    for i, (name, size) in enumerate(files):
        assert rows_from(server, f"{name}:4", gtid=gtid) == rows[i]
        assert rows_from(server, f"{name}:{size}", gtid=gtid) == rows[min(i + 1, 2)]


def test_a_time_before_a_rotation(server: Server) -> None:
    """A time after all that was written, be it before the newest file began or still to come, is the end of the log."""
    for when in (server.between, time.time() + 100):  # type: ignore[attr-defined]
        assert rows_from(server, f"time:{datetime.fromtimestamp(when, UTC).isoformat()}") == []


class Silent:
    """A reader whose server says nothing more."""

    def __init__(self) -> None:
        self.reads = 0
        self.closed = False

    def read(self) -> list[Any]:
        self.reads += 1
        time.sleep(0.01)
        return []

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("start", ["time", "place"])
def test_a_scan_ends_when_asked_to_stop(server: Server, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that still looks for its start stops like any other."""
    if server.flavor == "mariadb" and start == "place":
        return  # the server is asked
    silent = Silent()
    monkeypatch.setattr(scan, "dump", lambda session, file, offset: silent)
    name, size = files_of(server)[0]
    begin = f"{name}:{size}" if start == "place" else f"time:{datetime.fromtimestamp(time.time(), UTC).isoformat()}"
    settings = producer.Settings(store=store_name(), port=server.port, start=begin)
    run = Running(settings)
    try:
        wait_for(lambda: silent.reads > 3 or not run.alive, "the scan")
        assert run.stop().rows == 0
        assert silent.closed
    finally:
        remove(settings.store)


def test_a_scan_of_files_ends_when_asked_to_stop(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does one that reads local files."""
    reads: list[BinlogFiles] = []
    read = BinlogFiles.read

    def counted(self: BinlogFiles) -> list[RawEvent] | None:
        reads.append(self)
        return read(self)

    monkeypatch.setattr(BinlogFiles, "read", counted)
    settings = producer.Settings(store=store_name(), binlog=str(server.directory / "data"), start="time:2100-01-01T00:00:00Z")
    try:
        assert producer.run(settings, lambda: bool(reads)).rows == 0
        assert len(reads) == 1
    finally:
        remove(settings.store)
