"""producer/start/same_history.py: a server is known by the transactions that it has, not by names and numbers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from shmstore import BinlogPurged, EventStore, EventType, PositionNotFound, StoreNotFound
from shmstore.producer import request_snapshot, snapshot_status
from shmstore.producer.pipeline import retention
from shmstore.producer.settings import Settings
from tests.producer.running import Running, end_of_log, execute, purge, remove, running, store_name, wait_for, wait_for_position
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server

MODES = {
    "mariadb": ("mariadb", [], {}),
    "mariadb-file": ("mariadb", [], {"gtid": "off"}),
    "mysql": ("mysql", [], {}),
    "mysql-file": ("mysql", [], {"gtid": "off"}),
    "mysql-no-gtids": ("mysql", ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"], {}),
    "mysql-compressed": ("mysql", ["--binlog-transaction-compression=ON"], {}),
    "mysql-minimal": ("mysql", ["--binlog-row-metadata=MINIMAL"], {}),
}


def reset(server: Server) -> None:
    """Delete the binlog and let everything count from the beginning."""
    statement = "RESET BINARY LOGS AND GTIDS" if server.flavor == "mysql" else "RESET MASTER"
    execute(server, "mysql", statement)


@contextmanager
def stopped(server: Server, *statements: str, **options: Any) -> Iterator[tuple[Settings, list[Any]]]:
    """A store whose producer has read `statements` and ended; (settings, events)."""
    settings = Settings(
        **{"store": store_name(), "host": server.host, "port": server.port, "user": server.user, "heartbeat": 0.1, **options}
    )
    run = Running(settings)
    try:
        wait_for(lambda: not run.alive or _there(settings.store), "the store")
        if not run.alive:
            run.wait()
        execute(server, "d", *statements)
        with EventStore.attach(settings.store) as store:
            wait_for_position(server, store, put=bool(statements) or options.get("start") == "earliest")
            run.stop()
            yield settings, list(store.peek(store.oldest))
    finally:
        run._stop.set()
        remove(settings.store, settings.state)


def _there(name: str) -> bool:
    try:
        with EventStore.attach(name) as store:
            return bool(store.stat().heartbeat_ms)
    except StoreNotFound:
        return False


def again(settings: Settings, server: Server) -> list[Any]:
    """Read on until the server's end; return all events."""
    with EventStore.attach(settings.store) as store:
        before = store.stat().heartbeat_ms
        run = Running(settings)
        end = end_of_log(server)
        wait_for(lambda: not run.alive or _read(store, before) >= end, f"the producer to read up to {end} or to end")
        if run.alive:
            run.stop()
        run.wait()
        return list(store.peek(store.oldest))


def _read(store: EventStore, before: int) -> tuple[str, int]:
    """Where its producer is, which has said so since `before`: the one before it may have been as far. MariaDB's log grows a little after a FLUSH."""
    stat = store.stat()
    position = stat.source_position
    return ("", 0) if position is None or stat.heartbeat_ms <= before else (position.file, position.offset)


def ids(events: list[Any]) -> list[int]:
    return [row.after[0] for event in events for row in event.rows]


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[[str, list[str]], Server]]:
    """A server with these options and a table, the same one each time."""
    servers: dict[str, Server] = {}
    with ExitStack() as open_:

        def start(kind: str, options: list[str]) -> Server:
            name = " ".join([kind, *options])
            if name not in servers:
                servers[name] = open_.enter_context(start_server(kind, options))
                execute(servers[name], "mysql", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(20))")
            return servers[name]

        yield start


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest, started: Callable[[str, list[str]], Server]) -> tuple[Server, dict[str, Any]]:
    """A server of each mode and the settings that go with it."""
    kind, options, settings = MODES[request.param]
    return started(kind, options), settings


@pytest.fixture(params=["rows", "ddl"])
def last(request: pytest.FixtureRequest, mode: tuple[Server, dict[str, Any]]) -> str:
    """The statement that the store ends with."""
    execute(mode[0], "d", "DELETE FROM t", "DROP TABLE IF EXISTS u")
    return "INSERT INTO t VALUES (5, 'five')" if request.param == "rows" else "CREATE TABLE u (a INT)"


def test_a_restart_goes_on(mode: tuple[Server, dict[str, Any]], last: str) -> None:
    """The same server has what the store ends with, and reading continues."""
    server, options = mode
    with stopped(server, "INSERT INTO t VALUES (1, 'one')", last, **options) as (settings, events):
        execute(server, "d", "INSERT INTO t VALUES (6, 'six')")
        assert ids(again(settings, server)) == [*ids(events), 6]


def test_a_reset_while_the_producer_is_away(mode: tuple[Server, dict[str, Any]], last: str) -> None:
    """The server begins to count again and overtakes what the store has: no row is left out without an error."""
    server, options = mode
    with stopped(server, "INSERT INTO t VALUES (1, 'one')", last, **options) as (settings, _):
        reset(server)
        execute(server, "d", *[f"INSERT INTO t VALUES ({i}, 'x')" for i in range(10, 60)])
        with pytest.raises(PositionNotFound, match=r"(another history|another server|reset)"):
            again(settings, server)


def test_the_same_statements_after_a_reset(mode: tuple[Server, dict[str, Any]]) -> None:
    """As many transactions of the same size, of the same second and with other values, are another history."""
    server, options = mode
    moment = int(time.time())
    execute(server, "d", "DELETE FROM t")
    reset(server)
    written = [f"SET timestamp = {moment}", *[f"INSERT INTO t VALUES ({i}, 'x')" for i in range(10, 20)]]
    with stopped(server, **options) as (settings, _):
        pass
    with stopped(server, *written, **options) as (settings, _):
        execute(server, "d", "DELETE FROM t")
        reset(server)
        execute(server, "d", *[line.replace("'x'", "'y'") for line in written], "INSERT INTO t VALUES (30, 'z')")
        with pytest.raises(PositionNotFound, match="another history"):
            again(settings, server)


def test_a_reset_before_anything_was_put(mode: tuple[Server, dict[str, Any]]) -> None:
    """A store that has nothing yet knows its server by when its binlog file began."""
    server, options = mode
    execute(server, "d", "DELETE FROM t")
    reset(server)
    began = int(time.time())
    written = [f"INSERT INTO t VALUES ({i}, 'x')" for i in range(10, 20)]
    execute(server, "d", *written)
    with stopped(server, start="latest", **options) as (settings, events):
        assert events == []
        execute(server, "d", "DELETE FROM t")
        wait_for(lambda: int(time.time()) > began, "another second: that is what a file says of its beginning")
        reset(server)
        execute(server, "d", *written, "INSERT INTO t VALUES (30, 'z')")
        with pytest.raises(PositionNotFound, match=r"(was reset|no transaction ends at)"):
            again(settings, server)


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
@pytest.mark.parametrize("gtid", ["auto", "off"])
def test_what_is_no_other_history(
    started: Callable[[str, list[str]], Server], flavor: str, gtid: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What filters left out, an option that changed, and a snapshot at the end; of a transaction that was purged alone, the log says so."""
    # A server of this module: other tests expect the first binlog file of the shared ones, and this one purges it.
    server, options = started(flavor, []), {"gtid": gtid}
    execute(
        server, "mysql", "DROP DATABASE IF EXISTS d", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(20))"
    )
    execute(server, "d", "DELETE FROM t", "CREATE TABLE IF NOT EXISTS other (id INT PRIMARY KEY)", "DELETE FROM other")
    with stopped(server, "INSERT INTO t VALUES (1, 'one')", "INSERT INTO other VALUES (1)", include=("d.t",), **options) as (
        settings,
        _,
    ):
        execute(server, "d", "INSERT INTO other VALUES (2)", "INSERT INTO t VALUES (2, 'two')")
        settings = dataclasses.replace(settings, include=("d.*",), column_mask=("d.t.v=?",))
        assert set(ids(again(settings, server))) >= {1, 2}
        request_snapshot(settings.store, tables=["d.t"])
        with EventStore.attach(settings.store) as store:
            run = Running(settings)
            wait_for(lambda: store.latest_event is not None and store.latest_event.type is EventType.READ, "the snapshot")
            wait_for(lambda: (found := snapshot_status(settings.store)) is not None and not found.open, "its end")
            run.stop()
        again(settings, server)
        assert "could not be checked" not in caplog.text
        execute(server, "d", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        again(settings, server)
        purge(server)
        if gtid == "off":
            with pytest.raises(BinlogPurged):
                again(settings, server)
            return
        execute(server, "d", "INSERT INTO t VALUES (3, 'three')")
        assert 3 in ids(again(settings, server))
        assert "could not be checked" in caplog.text


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_another_server_with_equal_files(flavor: str) -> None:
    """Two servers that did the same, with other values, in the same second: the one is not taken for the other."""
    options = ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"] if flavor == "mysql" else []
    with start_server(flavor, options) as one, start_server(flavor, options) as other:
        moment = int(time.time())
        for server, value in ((one, "a"), (other, "b")):
            execute(
                server,
                "mysql",
                f"SET timestamp = {moment}",
                "CREATE DATABASE d",
                "CREATE TABLE d.t (id INT PRIMARY KEY, v CHAR(4))",
                *[f"INSERT INTO d.t VALUES ({i}, '{value}')" for i in range(20)],
            )
        assert end_of_log(one) == end_of_log(other)
        with stopped(one, start="earliest", gtid="off") as (settings, _):
            with EventStore.attach(settings.store) as store:
                assert len(ids(list(store.peek(store.oldest)))) == 20
            execute(other, "d", "INSERT INTO t VALUES (100, 'c')")
            with pytest.raises(PositionNotFound, match="another history"):
                again(dataclasses.replace(settings, port=other.port), other)


@pytest.mark.parametrize("overtakes", [False, True])
def test_a_reset_while_the_producer_is_connected(overtakes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB keeps an old stream and its heartbeats alive: what the server has written since ends it, with the reason."""
    monkeypatch.setattr(retention, "EVERY", 0.5)
    monkeypatch.setattr(retention, "SURE", 1.0)
    with start_server("mariadb") as server:
        execute(
            server,
            "mysql",
            "CREATE DATABASE d",
            "CREATE TABLE d.t (id INT PRIMARY KEY, v CHAR(4))",
            *["FLUSH BINARY LOGS"] * 2 * (not overtakes),
        )
        with running(server) as run, EventStore.attach(run.settings.store) as store:
            execute(server, "d", *[f"INSERT INTO t VALUES ({i}, 'a')" for i in range(5)])
            wait_for_position(server, store)
            time.sleep(3)
            assert run.alive  # an idle server is no reset one
            execute(server, "d", "DELETE FROM t")
            wait_for_position(server, store)
            reset(server)
            execute(server, "d", *[f"INSERT INTO t VALUES ({i}, 'b')" for i in range(200 * overtakes + 5)])
            with pytest.raises(PositionNotFound, match="reset"):
                run.wait(30)
