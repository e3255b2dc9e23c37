"""producer/positions/gtid_position.py: places of a server whose binlog holds an event that it cannot read itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shmstore import Position, PositionNotFound, producer
from shmstore.producer.connection.server import read_server
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.positions.gtid_position import current_position, gtid_at
from tests.producer.running import Running, events_of, execute, running, store_name
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server
SIZE = 700_000


@pytest.fixture(scope="module", params=["mariadb", "mariadb118", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server whose current binlog file holds an event larger than its max_allowed_packet, and something before and behind."""
    with start_server(request.param, ["--max-allowed-packet=1M"]) as started:
        execute(started, "mysql", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, b LONGBLOB)", "FLUSH BINARY LOGS")
        execute(started, "d", f"INSERT INTO t VALUES (1, REPEAT('x', {SIZE}))", f"UPDATE t SET b = REPEAT('y', {SIZE})")
        execute(started, "d", "INSERT INTO t VALUES (2, 'behind')", "CREATE TABLE u (id INT PRIMARY KEY)")
        yield started


def session_of(server: Server) -> ServerSession:
    settings = producer.Settings(store="unused", port=server.port, user=server.user)
    return connect(settings, settings.endpoints()[0])


def now(server: Server) -> Position:
    with closing(session_of(server)) as session:
        return current_position(session, read_server(session))


def starts(server: Server, **options: Any) -> None:
    """A producer with these options continues with exactly the next change, and says the server's own GTID set behind it."""
    with running(server, include=("d.u",), **options) as run:
        execute(server, "d", "DELETE FROM u", "INSERT INTO u VALUES (7)")
        events = [event for event in events_of(run, server) if event.rows]
        assert events[-1].rows[-1].after == (7,)
    assert events_gtids(server) == now(server).gtids


def events_gtids(server: Server) -> str:
    name = "gtid_executed" if server.flavor == "mysql" else "gtid_binlog_pos"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT @@global.{name}")
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize("gtid", ["auto", "off"])
def test_it_starts_behind_a_large_event(server: Server, gtid: str, caplog: pytest.LogCaptureFixture) -> None:
    """At the latest place, at FILE:OFFSET, at a time, and with a snapshot of the tables."""
    starts(server, gtid=gtid)
    place = now(server)
    starts(server, gtid=gtid, start=f"{place.file}:{place.offset}")
    starts(server, gtid=gtid, start=f"time:{datetime.fromtimestamp(time.time() + 30, UTC).isoformat()}")
    assert "a future time" in caplog.text
    if gtid == "auto":
        starts(server, snapshot="initial")


def test_a_schema_history_behind_a_large_event(server: Server, tmp_path: Path) -> None:
    """A history that begins behind the event is known for this server's own by a producer that starts again."""
    with running(server, schema_history="on", state=str(tmp_path), include=("d.u",)) as run:
        execute(server, "d", "DELETE FROM u", "INSERT INTO u VALUES (1)")
        events_of(run, server)
        run.stop()
        again = Running(run.settings)
        execute(server, "d", "INSERT INTO u VALUES (2)")
        rows = [row.after for event in events_of(again, server) for row in event.rows]
        again.stop()
    assert rows[-2:] == [(1,), (2,)]


def test_the_place_is_what_the_server_would_say(server: Server) -> None:
    """What is read from the binlog is what the server answers where it can; what is no place stays none."""
    with closing(session_of(server)) as session:
        if not session.mariadb:
            return
        place = now(server)
        assert gtid_at(session, place.file, place.offset) == place.gtids == events_gtids(server)
        with pytest.raises(PositionNotFound, match=rf"no transaction ends at {place.file}:{place.offset - 1}"):
            gtid_at(session, place.file, place.offset - 1)
        with pytest.raises(PositionNotFound, match=r"has no file nowhere\.000001"):
            gtid_at(session, "nowhere.000001", 4)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL max_allowed_packet = 1073741824")
        try:
            with closing(session_of(server)) as able:
                answer = able.query("SELECT BINLOG_GTID_POS(%s, %s)", (place.file, place.offset))[0][0]
        finally:
            execute(server, "d", "SET GLOBAL max_allowed_packet = 1048576")
        assert place.gtids == str(answer.decode() if isinstance(answer, bytes) else answer)


def test_the_doctor_says_so(server: Server) -> None:
    """The doctor names the server's limit where the current file holds what is larger; its SQL helps."""

    def finding() -> producer.Finding | None:
        settings = producer.Settings(store=store_name(), port=server.port)
        return {one.check: one for one in producer.check_server(settings)}.get("max_allowed_packet")

    found = finding()
    if server.flavor == "mysql":
        assert found is None
        return
    assert found is not None
    if not server.version.startswith("10."):
        assert found.state == "ok"
        return
    assert (found.state, found.fix) == ("warn", "SET GLOBAL max_allowed_packet = 1073741824;")
    assert found.found.startswith("1048576")
    try:
        execute(server, "d", found.fix)
        again = finding()
        assert again is not None
        assert again.state == "ok"
    finally:
        execute(server, "d", "SET GLOBAL max_allowed_packet = 1048576")


def test_purged_behind_a_large_event(server: Server) -> None:
    """With on_purged = latest a producer whose place is purged continues behind the event."""
    starts(server, start="binlog.000000:4", on_purged="latest")
