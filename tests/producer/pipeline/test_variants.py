"""Servers set up in other ways: no GTIDs, no checksums, partial row images, small events. The rows are the same."""

from __future__ import annotations

import dataclasses

import pytest

from shmstore import ABSENT, PositionNotFound, producer
from tests.producer.pipeline.test_cuts import cut_run
from tests.producer.running import Running, events_of, execute, remove, running, store_name
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server
VARIANTS = [
    pytest.param("mysql", [], {"tls": "required"}, id="mysql over TLS"),
    pytest.param(
        "mysql", ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF", "--binlog-checksum=NONE"], {}, id="mysql without GTIDs"
    ),
    pytest.param(
        "mariadb", ["--binlog-checksum=NONE", "--log-bin-compress=ON"], {"gtid": "off"}, id="mariadb by file, compressed"
    ),
    pytest.param(
        "mysql", ["--binlog-transaction-compression=ON"], {"gtid": "off"}, id="mysql by file, compressed", marks=pytest.mark.long
    ),
    pytest.param(
        "mysql",
        ["--max-binlog-size=65536", "--binlog-row-event-max-size=512"],
        {},
        id="mysql, small files",
        marks=pytest.mark.long,
    ),
    pytest.param("mariadb118", ["--max-binlog-size=65536"], {}, id="mariadb 11.8, small files", marks=pytest.mark.long),
]


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("flavor", "options", "settings"), VARIANTS)
def test_cuts(flavor: str, options: list[str], settings: dict[str, str], seed: int) -> None:
    """Links cut at random bytes leave no trace in the rows, however the server logs."""
    with start_server(flavor, options=options) as server:
        execute(server, "mysql", "CREATE DATABASE d")
        cut_run(server, "d", 8, seed, transaction_events=64, transaction_bytes=65536, **settings)


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_partial_images(flavor: str) -> None:
    """With row_image = any, columns that the image lacks are absent, which is not NULL."""
    with start_server(flavor, options=["--binlog-row-image=MINIMAL"]) as server:
        execute(server, "mysql", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, a INT, b INT)")
        with running(server, row_image="any") as run:
            execute(server, "d", "INSERT INTO t VALUES (1, NULL, 3)", "UPDATE t SET b = 4", "DELETE FROM t")
            rows = [row for event in events_of(run, server) for row in event.rows]
    assert [(row.before, row.after) for row in rows] == [
        (None, (1, None, 3)),
        ((1, ABSENT, ABSENT), (ABSENT, ABSENT, 4)),
        ((1, ABSENT, ABSENT), None),
    ]


def test_a_session_may_leave_columns_out(any_server: Server, database: str) -> None:
    """Where the server logs full images, a session that does not is followed: what it leaves out is absent, which is not NULL."""
    with running(any_server) as run:
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
        execute(
            any_server,
            database,
            "INSERT INTO t VALUES (1, NULL, 3)",
            "SET SESSION binlog_row_image = MINIMAL",
            "UPDATE t SET b = 4",
        )
        execute(any_server, database, "UPDATE t SET b = 5")
        rows = [row for event in events_of(run, any_server) for row in event.rows]
    assert [(row.before, row.after) for row in rows] == [
        (None, (1, None, 3)),
        ((1, ABSENT, ABSENT), (ABSENT, ABSENT, 4)),
        ((1, None, 4), (1, None, 5)),
    ]


def test_gtids_are_switched_on() -> None:
    """A producer that follows file and offset lives through gtid_mode becoming ON, and follows GTIDs from then on; what it had
    not read before that the server does not send any more, and the error says what to do."""
    steps = [
        "SET GLOBAL enforce_gtid_consistency = ON",
        "SET GLOBAL gtid_mode = OFF_PERMISSIVE",
        "SET GLOBAL gtid_mode = ON_PERMISSIVE",
    ]
    with start_server("mysql", options=["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"]) as server:
        execute(server, "mysql", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)")
        with running(server) as run:
            execute(server, "d", "INSERT INTO t VALUES (1)")
            late = dataclasses.replace(run.settings, store=store_name(), start=place_of(server))
            assert not events_of(run, server)[-1].position.gtids
            execute(server, "d", "INSERT INTO t VALUES (2)", *steps, "INSERT INTO t VALUES (3)")
            assert events_of(run, server)[-1].position.gtids.endswith(":1")
            run.stop()
            execute(server, "d", "SET GLOBAL gtid_mode = ON", "INSERT INTO t VALUES (4)")
            again = Running(run.settings)
            events = events_of(again, server)
            again.stop()
            assert [row.after for event in events for row in event.rows] == [(1,), (2,), (3,), (4,)]
            assert events[-1].position.gtids.endswith(":1-2")
            with pytest.raises(PositionNotFound, match=r"gtid_mode = ON_PERMISSIVE"):
                producer.run(late, lambda: False)
            execute(server, "d", "SET GLOBAL gtid_mode = ON_PERMISSIVE")
            with running(server, start=late.start) as caught_up:
                events = events_of(caught_up, server)
                assert [row.after for event in events for row in event.rows] == [(2,), (3,), (4,)]
            remove(run.settings.store)


def place_of(server: Server) -> str:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        file, offset = cursor.fetchone()[:2]
    return f"{file}:{offset}"
