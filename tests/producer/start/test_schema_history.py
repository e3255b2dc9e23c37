"""Schema histories in a running producer, on real servers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from uuid import UUID

import pytest

from shmstore import BinlogDisabled, EventStore, SchemaUnknown, SourceError, producer
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.schema import current
from shmstore.producer.settings import ServerAddress
from tests.producer.running import Running, events_of, execute, remove, running, store_name
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_metadata_minimal(flavor: str, tmp_path: Path) -> None:
    """Without names in the log they come from the history: right for old events after an ALTER, and after a restart."""
    level = "NO_LOG" if flavor == "mariadb" else "MINIMAL"
    with start_server(flavor, options=[f"--binlog-row-metadata={level}"]) as server:
        execute(
            server,
            "mysql",
            "CREATE DATABASE d",
            "CREATE TABLE d.t (id INT UNSIGNED PRIMARY KEY, a ENUM('x','y'), b INT UNSIGNED)",
        )
        with pytest.raises(BinlogDisabled, match="schema_history = auto"):
            producer.run(producer.Settings(store=store_name(), port=server.port, schema_history="off"), lambda: False)
        with running(server, state=str(tmp_path)) as run:
            execute(server, "d", "INSERT INTO t VALUES (4294967295, 'y', 4000000000)")
            events_of(run, server)
            run.stop()
            execute(
                server,
                "d",
                "INSERT INTO t VALUES (1, 'x', 2)",
                "ALTER TABLE t DROP COLUMN a, ADD COLUMN c SET('p','q') FIRST",
                "INSERT INTO t VALUES ('p,q', 2, 3)",
                "CREATE TABLE u (name VARCHAR(9) PRIMARY KEY)",
                "INSERT INTO u VALUES ('größe')",
            )
            again = Running(run.settings)
            events = events_of(again, server)
            again.stop()
            records = [after for event in events for _, after in event.records()]
            assert records == [
                {"id": 4294967295, "a": "y", "b": 4000000000},
                {"id": 1, "a": "x", "b": 2},
                {"c": "p,q", "id": 2, "b": 3},
                {"name": "größe"},
            ]
            remove(run.settings.store)
        # from the beginning of the log again: the history does not go back that far, and says so
        early = dataclasses.replace(run.settings, start="earliest")
        with pytest.raises(SchemaUnknown, match="begins at"):
            producer.run(early, lambda: False)
        assert early.store not in EventStore.names()


def test_a_gap_in_the_history_is_noticed(tmp_path: Path) -> None:
    """DDLs that no producer followed: start = latest takes the tables again, a position behind what is known is refused; a
    MariaDB that was made again is not read with the tables of the old one."""
    options = {"store": store_name(), "schema_history": "on", "state": str(tmp_path), "log": "off"}
    for made in range(2):
        with start_server("mariadb", options=["--binlog-row-metadata=NO_LOG"]) as server:
            execute(
                server,
                "mysql",
                "CREATE DATABASE d",
                f"CREATE TABLE d.{'t' * (made + 1)} (id INT PRIMARY KEY)",
                "CREATE TABLE d.x (a INT)",
            )
            if made == 1:
                with pytest.raises(SchemaUnknown, match="another server"):
                    producer.run(producer.Settings(**options, port=server.port, start=place_of(server)), lambda: False)
                return
            with running(server, **options):
                pass
            execute(server, "d", "ALTER TABLE x CHANGE a b INT")
            with pytest.raises(SchemaUnknown, match="DDLs between are unknown"):
                producer.run(producer.Settings(**options, port=server.port, start=place_of(server)), lambda: False)
            with running(server, **options) as run:
                execute(server, "d", "INSERT INTO x VALUES (5)")
                assert list(events_of(run, server)[1].records()) == [(None, {"b": 5})]


def place_of(server: Server) -> str:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, offset = cursor.fetchone()[:2]
    return f"{file}:{offset}"


def test_mariadb_types_that_look_like_binary(mariadb: Server, database: str) -> None:
    """UUID and INET columns, BINARY in the log, are known by asking the server; also after an ALTER that adds one."""
    with running(mariadb) as run:
        execute(mariadb, database, "CREATE TABLE t (id INT PRIMARY KEY, u UUID, b BINARY(16))")
        value = "123e4567-e89b-12d3-a456-426655440000"
        execute(mariadb, database, f"INSERT INTO t VALUES (1, '{value}', 'x')", "ALTER TABLE t ADD COLUMN i INET6")
        execute(mariadb, database, f"INSERT INTO t VALUES (2, '{value}', 'x', '::1')")
        events = [event for event in events_of(run, mariadb) if event.table]
    assert [column.type for column in events[-1].table.columns] == ["int", "uuid", "binary", "inet6"]
    assert events[0].rows[0].after == (1, value, b"x" + bytes(15))
    assert events[1].rows[0].after == (2, value, b"x" + bytes(15), "::1")
    assert UUID(value)


@pytest.mark.parametrize("kind", [producer.ServerUnreachable, producer.LoginRefused, producer.LinkLost])
def test_types_that_cannot_be_asked_now(
    mariadb: Server, database: str, kind: type[SourceError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row goes out with bytes for a UUID because the one connection that asks failed: the link begins again, until it is known."""
    asked: list[str] = []

    def connect(settings: producer.Settings, endpoint: ServerAddress) -> ServerSession:
        asked.append(settings.store)
        if len(asked) <= 2:
            raise kind("not now")
        return ask(settings, endpoint)

    ask = current.connect
    monkeypatch.setattr(current, "connect", connect)
    value = "123e4567-e89b-12d3-a456-426655440000"
    execute(mariadb, database, "CREATE TABLE t (id INT PRIMARY KEY, u UUID)")
    with running(mariadb, retry_first=0.01, retry_longest=0.1) as run:
        execute(mariadb, database, *[f"INSERT INTO t VALUES ({i}, '{value}')" for i in (1, 2)])
        events = [event for event in events_of(run, mariadb) if event.table]
        assert [event.rows[0].after for event in events] == [(1, value), (2, value)]
        assert run.stop().reconnects == 2
    assert len(asked) == 3


def test_types_that_nobody_needs(mariadb: Server, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is left out may stay unknown, and is not asked for again and again; what can never be asked ends the producer."""
    asked: list[str] = []

    def connect(settings: producer.Settings, endpoint: ServerAddress) -> ServerSession:
        asked.append(settings.store)
        raise SourceError("never")

    monkeypatch.setattr(current, "connect", connect)
    execute(mariadb, database, "CREATE TABLE t (id INT PRIMARY KEY, u UUID)", "CREATE TABLE v LIKE t")
    with running(mariadb, exclude=(f"{database}.t",)) as run:
        execute(mariadb, database, *[f"INSERT INTO t VALUES ({i}, UUID())" for i in range(5)])
        assert not [event for event in events_of(run, mariadb) if event.table]
        assert len(asked) == 1
        execute(mariadb, database, "INSERT INTO v VALUES (1, UUID())")
        with pytest.raises(
            SourceError, match=rf"table {database}\.v: how its columns are defined .* never; with schema_history = off"
        ):
            run.wait()


@pytest.mark.parametrize("shown", ["id", "a", "u", "id, u", "a, u"])
def test_columns_that_the_account_may_not_read(any_server: Server, database: str, shown: str) -> None:
    """The log has them all, and names them: what the server hides from the account stops no stream, through DDLs, too."""
    account = f"'{database[-30:]}'@'%'"
    kind, word = ("UUID", "BINLOG MONITOR") if any_server.flavor == "mariadb" else ("CHAR(36)", "REPLICATION CLIENT")
    value = "123e4567-e89b-12d3-a456-426655440000"
    execute(
        any_server,
        database,
        f"CREATE TABLE t (id INT PRIMARY KEY, a INT, u {kind})",
        f"CREATE USER {account} IDENTIFIED BY 'x'",
        f"GRANT REPLICATION SLAVE, {word} ON *.* TO {account}",
        f"GRANT SELECT ({shown}) ON t TO {account}",
    )
    try:
        with running(any_server, include=(f"{database}.*",), user=account.split("'")[1], password="x") as run:
            execute(
                any_server,
                database,
                f"INSERT INTO t VALUES (1, 2, '{value}')",
                "ALTER TABLE t ADD c INT NOT NULL DEFAULT 7 AFTER id",
                f"INSERT INTO t VALUES (2, 3, 4, '{value}')",
                "ALTER TABLE t DROP PRIMARY KEY, CHANGE id n BIGINT, ADD PRIMARY KEY (c, n)",
                f"INSERT INTO t VALUES (3, 4, 5, '{value}')",
            )
            rows = [
                (list(after.items()), event.table.primary_key)
                for event in events_of(run, any_server)
                for _, after in event.records()
            ]
    finally:
        execute(any_server, database, f"DROP USER {account}")
    as_logged = value if "u" in shown or kind != "UUID" else UUID(value).bytes
    assert rows == [
        ([("id", 1), ("a", 2), ("u", as_logged)], (0,)),
        ([("id", 2), ("c", 3), ("a", 4), ("u", as_logged)], (0,)),
        ([("n", 3), ("c", 4), ("a", 5), ("u", as_logged)], (1, 0)),
    ]


def test_history_off(mariadb: Server, database: str) -> None:
    """With schema_history = off nothing is asked, and such columns are BINARY."""
    with running(mariadb, schema_history="off") as run:
        execute(mariadb, database, "CREATE TABLE t (id INT PRIMARY KEY, u UUID)", "INSERT INTO t VALUES (1, UUID())")
        (event,) = [event for event in events_of(run, mariadb) if event.table]
    assert event.table.columns[1].type == "binary"


LESS = {"mariadb": "NO_LOG", "mysql": "MINIMAL"}


def records(run: Running, server: Server) -> list[dict[str, object] | None]:
    return [after for event in events_of(run, server) for _, after in event.records()]


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_full_metadata_is_lost(flavor: str, tmp_path: Path) -> None:
    """What was known of tables while the log named columns is used where it does not any more: at once, after DDLs, after a restart
    of the producer, and of tables that had no row before; and FULL again continues, too."""
    lose, gain = (f"SET GLOBAL binlog_row_metadata = {level}" for level in (LESS[flavor], "FULL"))
    with start_server(flavor) as server:
        execute(
            server,
            "mysql",
            "CREATE DATABASE d CHARACTER SET latin1",
            "CREATE TABLE d.t (id INT UNSIGNED PRIMARY KEY, a ENUM('x','y'), b VARCHAR(9))",
            "CREATE TABLE d.u (id INT PRIMARY KEY, s SET('p','q') NOT NULL)",
        )
        with running(server, state=str(tmp_path)) as run:
            execute(server, "d", "INSERT INTO t VALUES (4294967295, 'y', 'ä')", "CREATE TABLE v (n BIGINT UNSIGNED, w TEXT)")
            execute(server, "d", lose)
            execute(server, "d", "INSERT INTO t VALUES (1, 'x', 'ö')", "INSERT INTO u VALUES (1, 'p,q')")
            execute(server, "d", "INSERT INTO v VALUES (18446744073709551615, 'ü')")
            found = records(run, server)
            run.stop()
            execute(
                server,
                "d",
                "ALTER TABLE t MODIFY b VARCHAR(9) FIRST, ADD z ENUM('m','n')",
                "INSERT INTO t VALUES ('ß', 2, 'y', 'n')",
            )
            again = Running(run.settings)
            execute(server, "d", gain)
            execute(server, "d", "INSERT INTO t VALUES ('é', 3, 'x', 'm')", lose)
            execute(server, "d", "INSERT INTO t VALUES ('è', 4, 'x', 'm')")
            found = records(again, server)
            again.stop()
            assert found == [
                {"id": 4294967295, "a": "y", "b": "ä"},
                {"id": 1, "a": "x", "b": "ö"},
                {"id": 1, "s": "p,q"},
                {"n": 18446744073709551615, "w": "ü"},
                {"b": "ß", "id": 2, "a": "y", "z": "n"},
                {"b": "é", "id": 3, "a": "x", "z": "m"},
                {"b": "è", "id": 4, "a": "x", "z": "m"},
            ]


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_a_ddl_that_was_not_logged(flavor: str, tmp_path: Path) -> None:
    """It stops with the two forms, and says that the present definition fits; --schema-history now continues with that, which is kept."""
    with start_server(flavor, options=[f"--binlog-row-metadata={LESS[flavor]}"]) as server:
        execute(
            server, "mysql", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, price DECIMAL(10,2), name VARCHAR(20))"
        )
        with running(server, state=str(tmp_path)) as run:
            execute(server, "d", "INSERT INTO t VALUES (1, 1.5, 'a')")
            events_of(run, server)
            execute(server, "d", "SET sql_log_bin = 0", "ALTER TABLE t MODIFY name VARCHAR(20) AFTER id")
            execute(server, "d", "INSERT INTO t VALUES (2, 'b', 2.5)")
            with pytest.raises(SchemaUnknown) as stopped:
                run.wait()
            message = str(stopped.value)
            assert "column 2 is varchar/varbinary of 80 bytes" in message
            assert "price decimal(10,2) in the table as it is followed" in message
            assert "--schema-history now" in message
            for option, rows in (("now", 2), ("auto", 3)):
                again = Running(dataclasses.replace(run.settings, schema_history=option))
                if option == "auto":
                    execute(server, "d", "INSERT INTO t VALUES (3, 'c', 3.5)")
                found = records(again, server)
                again.stop()
                assert [(row["id"], row["name"], str(row["price"])) for row in found if row] == [
                    (1, "a", "1.50"),
                    (2, "b", "2.50"),
                    (3, "c", "3.50"),
                ][:rows]
