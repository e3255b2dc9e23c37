"""producer/pipeline/retention.py and vitals.py: a stream's figures as its store tells them, on real servers."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from shmstore import Checkpoint, CheckpointFile, EventStore, Position, StoreClosed
from shmstore.consumer.monitoring.metrics import problems
from shmstore.producer.connection.server import SourceServer as Source
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.pipeline import retention
from shmstore.producer.settings import ServerAddress, Settings
from tests.producer.proxy import CuttingProxy
from tests.producer.running import execute, running, wait_for
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_a_purge_is_told_before_it_comes(
    flavor: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path
) -> None:
    """While a reader's checkpoint needs a file that the server soon removes, stat has the moment, and the log says who needs what."""
    monkeypatch.setattr(retention, "EVERY", 0.1)
    caplog.set_level(logging.WARNING, "producer")
    with start_server(flavor, ["--binlog-expire-logs-seconds=3600"]) as server:
        execute(server, "mysql", "CREATE DATABASE d", "FLUSH BINARY LOGS")
        began = time.time()
        with running(server, state=str(tmp_path)) as run, EventStore.attach(run.settings.store) as store:
            execute(server, "mysql", "CREATE TABLE d.t (a INT)")
            wait_for(lambda: store.latest_position is not None, "a put")
            time.sleep(0.5)
            assert store.stat().stream.purge_ms == 0  # the newest file is never removed
            saved = CheckpointFile(tmp_path, run.settings.store, "audit")
            saved.save(Checkpoint(Position("binlog.000001", 4), 1, 0))
            wait_for(lambda: store.stat().stream.purge_ms, "the moment of the purge")
            assert abs(store.stat().stream.purge_ms / 1000 - began - 3600) < 60
            assert "purge" not in caplog.text
            execute(server, "mysql", "SET GLOBAL binlog_expire_logs_seconds = 864000")
            wait_for(lambda: store.stat().stream.purge_ms / 1000 > began + 860_000, "the setting to be seen")
            monkeypatch.setattr(time, "time", lambda: began + 864000 - 1800)
            wait_for(lambda: "purge binlog.000001 in 0.5 hours" in caplog.text, "the warning")
            assert "binlog.000001:4 is needed (checkpoint of 'audit')" in caplog.text


def test_what_a_stream_tells(any_server: Server, database: str) -> None:
    """Link, transactions, lag and reconnects are in the store's figures; health follows the link and comes back with it."""
    with (
        CuttingProxy(any_server.port, lambda: None) as proxy,
        running(any_server, port=proxy.port, retry_longest=0.2, include=(f"{database}.*",)) as run,
        EventStore.attach(run.settings.store) as store,
    ):
        execute(any_server, database, "CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
        wait_for(lambda: store.stat().stream.transactions == 3, "three transactions")
        wait_for(lambda: store.stat().stream.behind_ms == 0, "the server to say that there is nothing more")
        stat = store.stat()
        assert stat.stream.connected
        assert abs(stat.stream.heard_ms - time.time() * 1000) < 30_000
        assert stat.put_position is not None
        assert stat.put_position.gtids
        assert problems([stat]) == []
        proxy.away.set()
        proxy.hang_up()
        wait_for(lambda: not store.stat().stream.connected, "the link to be lost")
        (problem,) = problems([store.stat()])
        proxy.away.clear()
        assert problem.startswith(f"store {store.name!r}: its producer has no link to {store.source}: ")
        wait_for(lambda: store.stat().stream.connected, "the next link")
        assert store.stat().stream.reconnects == 1
        assert problems([store.stat()]) == []


def test_a_full_ring_tells_its_lag(mariadb: Server, database: str) -> None:
    """While what is to be put waits for free space, lag and blocked time grow, and the producer still counts as one that lives."""
    with (
        running(mariadb, capacity=4, include=(f"{database}.*",), log="off") as run,
        EventStore.attach(run.settings.store) as store,
    ):
        execute(mariadb, database, "CREATE TABLE t (a INT)", *["INSERT INTO t VALUES (1)"] * 3)
        wait_for(lambda: store.stat().space_wanted is not None, "the ring to be full")
        wait_for(lambda: store.stat().stream.behind_ms > 2000, "the lag to grow")
        # Not as long as the lag: the server dates an event by whole seconds, up to one before it was written.
        wait_for(lambda: store.stat().stream.blocked_ms > 1000, "the blocked time to grow")
        assert problems([store.stat()]) == []


@pytest.mark.parametrize("hours", [10, -10])
def test_the_lag_is_by_the_sources_calendar(
    any_server: Server, database: str, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """A host whose calendar is hours ahead of the server's, or behind, is as far behind the server as it is."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + hours * 3600 * 10**9)
    with (
        running(any_server, capacity=4, include=(f"{database}.*",), log="off") as run,
        EventStore.attach(run.settings.store) as store,
    ):
        execute(any_server, database, "CREATE TABLE t (a INT)", *["INSERT INTO t VALUES (1)"] * 3)
        wait_for(lambda: store.stat().space_wanted is not None, "the ring to be full")
        wait_for(lambda: store.stat().stream.behind_ms > 2000, "the lag to grow")
        assert store.stat().stream.behind_ms < 120_000


def test_a_store_that_is_removed_ends_its_producer(mariadb: Server, database: str) -> None:
    """A producer that has nothing to put notices, too, that its store is gone: it ends, and says so, instead of reading on for no reader."""
    with running(mariadb, include=(f"{database}.*",)) as run:
        EventStore.unlink(run.settings.store)
        with pytest.raises(StoreClosed, match="was removed"):
            run.wait()


def test_a_producer_that_ends_leaves_no_look_under_way(mariadb: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that ends while it looks how long the binlog is kept waits for the look, whose connection is closed by then."""
    looking, closing, ended = threading.Event(), threading.Event(), threading.Event()
    close = retention.Retention.close

    def slowly(settings: Settings, endpoint: ServerAddress, stop: Callable[[], bool]) -> ServerSession:
        looking.set()
        assert closing.wait(60)
        session = connect(settings, endpoint, stop)
        end = session.close
        session.close = lambda: (end(), ended.set())  # type: ignore[method-assign,func-returns-value,assignment,return-value]
        return session

    monkeypatch.setattr(retention, "connect", slowly)
    monkeypatch.setattr(retention.Retention, "close", lambda looks: (closing.set(), close(looks)))
    with running(mariadb) as run:
        wait_for(looking.is_set, "a look")
        run.stop()
        assert ended.is_set()


def test_a_server_that_does_not_answer_holds_no_producer_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who ends waits for a look at a server that takes the connection and says nothing only for as long as a look may take."""
    monkeypatch.setattr(retention, "PATIENCE", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoint = ServerAddress(*mute.getsockname())
        looks = retention.Retention(Settings(store="none", host=endpoint.host, port=endpoint.port), logging.getLogger("producer"))
        looks.look(Position("binlog.000001", 4))  # of no server yet
        assert _looking() == 0
        looks.use(Source(endpoint, "mute", True, {}))
        looks.look(Position("binlog.000001", 4))
        link = mute.accept()[0]
        looks.close()
        assert _looking() == 0
        assert link.recv(1) == b""  # closed
        looks.use(Source(endpoint, "mute", True, {}))
        looks.look(Position("binlog.000001", 4))
        assert _looking() == 0
        link.close()


@pytest.mark.parametrize("read", ["binlog.000001", "binlog.000009"])  # before, and behind where the server before writes
def test_a_look_at_the_server_before_says_nothing_of_the_next(monkeypatch: pytest.MonkeyPatch, read: str) -> None:
    """A look under way while the stream goes over to another server ends no stream of that one."""
    before, after = (Source(ServerAddress("localhost", port), str(port), True, {}) for port in (3306, 3307))
    looks = retention.Retention(Settings(store="none"), logging.getLogger("producer"))

    def log_end(session: ServerSession, server: Source) -> Position:
        looks.use(after)
        return Position("binlog.000005", 4)

    monkeypatch.setattr(retention, "connect", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(retention, "read_server", lambda _: before)
    monkeypatch.setattr(retention, "log_end", log_end)
    monkeypatch.setattr(retention, "kept_seconds", lambda *_: None)
    monkeypatch.setattr(retention, "binlog_files", lambda _: [])
    monkeypatch.setattr(retention, "SURE", -1.0)
    looks.use(before)
    looks.look(Position(read, 4))
    looks.close()
    for _ in range(3):
        looks.heartbeat(Position(read, 4))


def _looking() -> int:
    return sum(thread.name == "producer-retention" for thread in threading.enumerate())
