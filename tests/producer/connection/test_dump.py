"""Where a producer starts, what it refuses, and local files, on real servers."""

from __future__ import annotations

import itertools
import re
import shutil
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shmstore import (
    BinlogDisabled,
    BinlogPurged,
    Checkpoint,
    CheckpointFile,
    Event,
    EventStore,
    Position,
    PositionNotFound,
    ShmStoreError,
    TableSchema,
    UnsupportedEvent,
    producer,
)
from shmstore.producer.connection.server import read_server
from shmstore.producer.connection.session import connect
from shmstore.producer.positions.gtid_position import current_position
from shmstore.producer.start.resume import lowest
from tests.producer.running import Mirror, Running, events_of, execute, remove, running, shape, store_name, wait_for
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server


def settings_of(server: Server, **options: Any) -> producer.Settings:
    return producer.Settings(**{"store": store_name(), "port": server.port, "user": server.user, "heartbeat": 0.1, **options})


def now(server: Server) -> Position:
    settings = settings_of(server)
    session = connect(settings, settings.endpoints()[0])
    try:
        return current_position(session, read_server(session))
    finally:
        session.close()


def refused(settings: producer.Settings) -> str:
    """The one line that a producer ends with; it must leave no store behind."""
    began = time.monotonic()
    with pytest.raises(ShmStoreError) as caught:
        producer.run(settings, lambda: time.monotonic() - began > 20)
    assert settings.store not in EventStore.names()
    assert "\n" not in str(caught.value)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(("how", "gtid"), [("place", "auto"), ("place", "off"), ("gtid", "auto"), ("time", "off")])
def test_starts_at_a_place(any_server: Server, database: str, how: str, gtid: str) -> None:
    """From FILE:OFFSET, a GTID set or a time the stream begins with exactly the next transaction, its GTID set complete."""
    execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    if how == "time":
        time.sleep(1.1 - time.time() % 1)  # binlog times are whole seconds
    position = now(any_server)
    start = {
        "place": f"{position.file}:{position.offset}",
        "gtid": f"gtid:{position.gtids}",
        "time": f"time:{datetime.fromtimestamp(time.time(), UTC).isoformat()}",
    }[how]
    if how == "time":
        time.sleep(1.1)
    execute(any_server, database, "INSERT INTO t VALUES (3)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (4)")
    with running(any_server, start=start, gtid=gtid, statements="pass", store=store_name()) as run:
        events = events_of(run, any_server)
    assert [row.after for event in events for row in event.rows] == [(3,), (4,)]
    assert events[-1].position.gtids == now(any_server).gtids


def test_starts_at_the_earliest(any_server: Server, database: str) -> None:
    """start = earliest begins with the oldest file; the GTID set is then what the server itself says."""
    execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with running(any_server, start="earliest", include=(f"{database}.*",), statements="pass") as run:
        events = events_of(run, any_server)
    assert shape(events)[-4:] == ["DDL", "BEGIN", "INSERT", "END"]
    assert events[-1].position.gtids == now(any_server).gtids


def test_starts_at_the_lowest_checkpoint(any_server: Server, database: str, tmp_path: Path) -> None:
    """A new store is filled from the lowest of its subscriptions' checkpoints; `start` does not count then."""
    execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    positions = []
    for i in range(3):
        execute(any_server, database, f"INSERT INTO t VALUES ({i})")
        positions.append(now(any_server))
    settings = settings_of(any_server, state=str(tmp_path))
    for name, position in zip(("b", "a", "c"), positions, strict=True):
        CheckpointFile(tmp_path, settings.store, name).save(Checkpoint(position, 1, 1))
    run = Running(settings)
    try:
        wait_for(lambda: settings.store in EventStore.names() and run.alive, "the store")
        wait_for(lambda: len(events_of(run, any_server)) >= 6, "two transactions")
        assert [row.after for event in events_of(run, any_server) for row in event.rows] == [(1,), (2,)]
    finally:
        run.stop()
        remove(settings.store)


def test_a_checkpoint_of_another_server(mariadb: Server, tmp_path: Path) -> None:
    """Where a checkpoint is of no use on this server, the error says whose it is and how to forget it: a new store would not help."""
    settings = settings_of(mariadb, state=str(tmp_path))
    CheckpointFile(tmp_path, settings.store, "audit").save(Checkpoint(Position("binlog.000001", 10**9), 1, 1))
    with pytest.raises(
        PositionNotFound, match=rf"readers \(audit\) of an earlier store .* shmstore rm {settings.store} --forget"
    ):
        producer.run(settings, lambda: False)


def test_lowest() -> None:
    """Of positions the one that all others have passed is the lowest; files compare as numbers, GTID sets as sets."""
    a, b = Position("binlog.999999", 900), Position("binlog.1000000", 4)
    assert lowest([b, a]) == a
    assert lowest([]) is None
    uuid = "00000000-0000-0000-0000-00000000000"
    sets = [Position("x.1", 50, f"{uuid}1:1-9"), Position("y.7", 4, f"{uuid}1:1-5"), Position("x.1", 40, f"{uuid}1:1-7")]
    for order in itertools.permutations(sets):
        assert lowest(order) == sets[1]
    neither = lowest([Position("x.1", 50, f"{uuid}1:1-9,{uuid}2:1-2"), Position("x.1", 50, f"{uuid}1:1-3,{uuid}2:1-8")])
    assert neither is not None
    assert neither.gtids == f"{uuid}1:1-3,{uuid}2:1-2"
    assert lowest([Position("x.1", 50, "0-1-9"), Position("x.2", 4, "0-1-10")]).gtids == "0-1-9"
    assert lowest([Position("x.1", 50, "0-1-9,1-2-3"), Position("y.2", 4, "0-1-8,1-2-4")]) == Position("", 0, "0-1-8,1-2-3")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"port": 1}, r"ServerUnreachable: .*127\.0\.0\.1:1: .*is the server running"),
        ({"password": "wrong"}, r"LoginRefused: .*refused 'root'.*check user, password"),
        ({"start": "binlog.000001:77"}, r"PositionNotFound: .*binlog\.000001:77"),
        ({"start": "binlog.000099:4"}, r"PositionNotFound: .*no file binlog\.000099: it has binlog\.000001"),
        ({"start": "binlog.000001:99999999"}, r"PositionNotFound: .*binlog\.000001 has \d+ bytes"),
        ({"start": "binlog.000000:4"}, r"BinlogPurged: .*no longer has binlog\.000000.*on_purged"),
        (
            {"start": "gtid:11111111-2222-3333-4444-555555555555:1-9"},
            r"(ServerBehind: .*has not executed 1111|SettingsError: .*a mariadb server)",
        ),
        ({"start": "gtid:0-1-999999"}, r"(ServerBehind: .*is at GTID |SettingsError: .*a mysql server)"),
        ({"password_file": "/does/not/exist"}, r"SettingsError: password_file '/does/not/exist' cannot be read"),
        ({"tls": "verify-ca", "tls_ca": "/does/not/exist"}, r"LoginRefused: .*TLS files"),
        ({"binlog": "/does/not/exist"}, r"SettingsError: binlog is '/does/not/exist'"),
    ],
)
def test_bad_input_is_one_line(any_server: Server, options: dict[str, Any], says: str) -> None:
    """What cannot work is refused at once with one line that names the fix; the store it created is gone again."""
    import re

    message = refused(settings_of(any_server, **options))
    assert re.match(says, message), message
    assert "wrong" not in message.split("check user")[0]  # the password is never shown


@pytest.mark.parametrize(
    ("variable", "value", "options", "fixes"),
    [
        ("binlog_format", "MIXED", {}, {"statements": "pass"}),
        ("binlog_row_image", "MINIMAL", {}, {"row_image": "any"}),
        ("binlog_row_metadata", "MINIMAL", {"schema_history": "off"}, {}),
    ],
)
def test_servers_that_log_too_little_are_refused(
    any_server: Server, variable: str, value: str, options: dict[str, str], fixes: dict[str, str]
) -> None:
    """The wrong format, image or metadata stops the producer at the start with the SQL that fixes it, and so says the doctor."""
    with any_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT @@global.{variable}")
        (saved,) = cursor.fetchone()
        cursor.execute(f"SET GLOBAL {variable} = {value}")
        try:
            message = refused(settings_of(any_server, **options))
            assert message.startswith(f"BinlogDisabled: 127.0.0.1:{any_server.port} has {variable} = {value}")
            assert f"SET GLOBAL {variable} = " in message
            findings = {finding.check: finding for finding in producer.check_server(settings_of(any_server, **options))}
            assert findings[variable].state == "fail"
            assert re.match(f"SET (GLOBAL|PERSIST) {variable} = ", findings[variable].fix)
            cursor.execute(findings[variable].fix)  # what it says does fix it
            assert {f.state for f in producer.check_server(settings_of(any_server, **options)) if f.check == variable} == {"ok"}
            cursor.execute(f"SET GLOBAL {variable} = {value}")
            with running(any_server, **fixes) as run:
                assert run.alive
        finally:
            cursor.execute(f"SET GLOBAL {variable} = {saved}")


def test_a_server_without_binlog_is_refused() -> None:
    """A server that writes no binlog is an error, with the lines for its configuration."""
    with start_server("mariadb", options=["--skip-log-bin"]) as server:
        with pytest.raises(BinlogDisabled, match="set log_bin = binlog"):
            producer.run(settings_of(server), lambda: False)
        findings = {finding.check: finding for finding in producer.check_server(settings_of(server))}
        assert findings["log_bin"].state == "fail"


def test_privileges(any_server: Server, database: str) -> None:
    """An account without the privileges is an error that says which to grant; with exactly those it works, and the doctor agrees."""
    name = f"p{database}"
    positions = "BINLOG MONITOR" if any_server.flavor == "mariadb" else "REPLICATION CLIENT"
    with any_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {name}@'%' IDENTIFIED BY 'secret'")
        try:
            options = {"user": name, "password": "secret"}
            assert "PrivilegeMissing" in (message := refused(settings_of(any_server, **options)))
            assert "GRANT REPLICATION SLAVE" in message
            failed = [finding for finding in producer.check_server(settings_of(any_server, **options)) if finding.state == "fail"]
            assert [finding.check for finding in failed] == ["privilege to see positions"]
            cursor.execute(failed[0].fix)
            assert "PrivilegeMissing" in refused(settings_of(any_server, **options))
            failed = [finding for finding in producer.check_server(settings_of(any_server, **options)) if finding.state == "fail"]
            assert [finding.check for finding in failed] == ["privilege to read the binlog"]
            cursor.execute(failed[0].fix)
            assert positions
            assert not [f for f in producer.check_server(settings_of(any_server, **options)) if f.state == "fail"]
            with running(any_server, **options) as run:
                execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
                assert shape(events_of(run, any_server))[-1] == "DDL"
        finally:
            cursor.execute(f"DROP USER {name}@'%'")


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_purged_positions(flavor: str) -> None:
    """A purged position is an error that names what was lost; with on_purged = latest or earliest the producer continues there."""
    with start_server(flavor) as server:
        execute(server, "mysql", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)")
        for gtid in ("auto",) if flavor == "mysql" else ("auto", "off"):
            with running(server, gtid=gtid) as run:
                execute(server, "d", "REPLACE INTO t VALUES (1)")
                events_of(run, server)
                run.stop()
                execute(server, "d", "INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
                newest = now(server).file

                def purged(newest: str = newest) -> bool:
                    execute(server, "d", f"PURGE BINARY LOGS TO '{newest}'")
                    return min((server.directory / "data").glob("binlog.0*")).name == newest

                wait_for(purged, "the files to go, when nobody reads them any more")
                execute(server, "d", "INSERT INTO t VALUES (3)")
                with pytest.raises(BinlogPurged, match="on_purged"):
                    producer.run(run.settings, lambda: False)
                import dataclasses

                again = Running(dataclasses.replace(run.settings, on_purged="earliest"))
                rows = [row.after for event in events_of(again, server) for row in event.rows if event.table]
                again.stop()
                assert (3,) in rows
                assert (2,) not in rows
                remove(run.settings.store)
            execute(server, "d", "DELETE FROM t")
        assert server.flavor == flavor
        # another server, or this one after RESET: the position means nothing
        with running(server) as run:
            execute(server, "d", "INSERT INTO t VALUES (8)", "INSERT INTO t VALUES (9)")
            events_of(run, server)
            run.stop()
            execute(server, "d", "RESET BINARY LOGS AND GTIDS" if flavor == "mysql" else "RESET MASTER", "DELETE FROM t")
            with pytest.raises(PositionNotFound, match="reset"):
                producer.run(run.settings, lambda: False)
            remove(run.settings.store)


def undefined(events: Iterable[Event]) -> list[Event]:
    """The events without what only a server or a schema history says of their tables: how the columns were defined, and what names mean."""

    def bare(table: TableSchema) -> TableSchema:
        return table._replace(columns=tuple(column._replace(definition="") for column in table.columns), unique_key=False)

    def stripped(event: Event) -> Event:
        props = {name: value for name, value in event.props.items() if name != "lower_case_table_names"}
        return event._replace(props=props, table=None if event.table is None else bare(event.table))

    return [stripped(event) for event in events]


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_local_files(flavor: str, tmp_path: Path) -> None:
    """A folder of binlog files gives the events that the server's stream gave; it ends alone, and continues with new files.
    The server's own data folder will do, too."""
    with start_server(flavor) as server:
        execute(server, "mysql", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, b VARCHAR(50))")
        with running(server, start="earliest") as run:
            for i in range(18):
                execute(server, "d", f"INSERT INTO t VALUES ({i}, 'x')", *(["FLUSH BINARY LOGS"] if i % 6 == 5 else []))
            streamed = undefined(events_of(run, server))
        with EventStore.create(store_name(), log=False) as store:
            name = store.name
        settings = producer.Settings(store=name, binlog=str(tmp_path))
        try:
            for file in sorted((server.directory / "data").glob("binlog.0*"))[:2]:
                shutil.copy(file, tmp_path)
            producer.run(settings, lambda: False)
            with EventStore.attach(name) as store:
                half = list(store.peek(store.oldest))
            assert 0 < len(half) < len(streamed)
            for file in sorted((server.directory / "data").glob("binlog.0*")):
                shutil.copy(file, tmp_path)
            summary = producer.run(settings, lambda: False)
            with EventStore.attach(name) as store:
                assert undefined(store.peek(store.oldest)) == streamed
            assert summary.events == len(streamed) - len(half)
        finally:
            remove(name)
        later = producer.Settings(
            store=store_name(), binlog=str(tmp_path), start=f"{half[-1].position.file}:{half[-1].position.offset}"
        )
        try:
            producer.run(later, lambda: False)
            with EventStore.attach(later.store) as store:
                assert undefined(store.peek(store.oldest)) == streamed[len(half) :]
        finally:
            remove(later.store)
        there = producer.Settings(store=store_name(), binlog=str(server.directory / "data"))
        try:
            producer.run(there, lambda: False)
            with EventStore.attach(there.store) as store:
                assert undefined(store.peek(store.oldest))[-len(streamed) :] == streamed
        finally:
            remove(there.store)
    last = sorted(tmp_path.glob("binlog.0*"))[-2]
    damaged = bytearray(last.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    last.write_bytes(damaged)
    broken = producer.Settings(store=store_name(), binlog=str(last))
    with pytest.raises((UnsupportedEvent, producer.LinkLost), match=r"checksum|damaged"):
        producer.run(broken, lambda: False)
    remove(broken.store)
    (tmp_path / "noise.000001").write_bytes(b"not a binlog at all")
    with pytest.raises(UnsupportedEvent, match="is not a binlog file"):
        producer.run(producer.Settings(store=store_name(), binlog=str(tmp_path / "noise.000001")), lambda: False)


def test_mirror_notices_a_row_put_twice() -> None:
    """The mirror that other tests rely on refuses a repeated row."""
    from shmstore import Column, EntryType, Event, EventType, Row, TableSchema

    schema = TableSchema("d", "t", (Column("id", "int"),), (0,))
    begin = Event(EntryType.BEGIN, EventType.NONE, Position("f.1", 1), 0, transaction="x")
    row = Event(
        EntryType.ROWS, EventType.INSERT, Position("f.1", 2), 0, transaction="x", order=1, table=schema, rows=(Row(None, (1,)),)
    )
    mirror = Mirror("d")
    mirror.apply([begin, row])
    with pytest.raises(AssertionError, match="came twice"):
        mirror.apply([row._replace(order=2)])
    with pytest.raises(AssertionError, match="order"):
        mirror.apply([row])
