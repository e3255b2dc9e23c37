"""What a log may hold besides plain rows: DDL in transactions, XA, statements, savepoints, compression, tags."""

from __future__ import annotations

import pytest

from shmstore import EntryType, EventStore, EventType, UnsupportedEvent
from tests.producer.running import Mirror, Running, events_of, execute, remove, running, select_table, shape
from tests.servers.server import Server

pytestmark = pytest.mark.server


def test_create_table_select(any_server: Server, database: str) -> None:
    """CREATE TABLE ... SELECT is one transaction that holds the DDL; the DDL inside it is no ack point."""
    with running(any_server) as run:
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        execute(any_server, database, "CREATE TABLE u AS SELECT * FROM t")
        events = events_of(run, any_server)[-4:]
        assert shape(events) == ["BEGIN", "DDL", "INSERT", "END"]
        assert events[1].type is EventType.CREATE
        assert events[1].props["in_transaction"] == "1"
        with EventStore.attach(run.settings.store) as store:
            assert [int(flags) for flags in store.peek(store.newest - 3).slots["flags"]] == [0, 0, 0, 1]


def test_xa_transactions(any_server: Server, database: str) -> None:
    """Rows of an XA transaction come at PREPARE, named; the decision comes later as an event of its own."""
    with running(any_server) as run:
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
        for name, decision in (("a", "COMMIT"), ("b", "ROLLBACK")):
            execute(
                any_server,
                database,
                f"XA START '{name}'",
                f"INSERT INTO t VALUES ({ord(name)})",
                f"XA END '{name}'",
                f"XA PREPARE '{name}'",
            )
            execute(any_server, database, f"XA {decision} '{name}'")
        events = events_of(run, any_server)[1:]
    assert shape(events) == ["BEGIN", "INSERT", "END", "DDL"] * 2
    for prepared, decided, type_ in ((events[2], events[3], EventType.XACOMMIT), (events[6], events[7], EventType.XAROLLBACK)):
        assert prepared.props["xa"] == "prepare"
        assert decided.type is type_
        assert decided.props["xa_xid"] == prepared.props["xa_xid"] != ""


def test_statements_are_refused(any_server: Server, database: str) -> None:
    """A change logged as a statement stops the producer; the error quotes it and names binlog_format."""
    with running(any_server) as run:
        execute(
            any_server,
            database,
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "SET SESSION binlog_format = 'STATEMENT'",
            "INSERT INTO t VALUES (7)",
        )
        with pytest.raises(UnsupportedEvent, match=r"binlog\.\d+:\d+: .*INSERT INTO t VALUES \(7\).*binlog_format = ROW"):
            run.wait()


def test_statements_pass_when_asked(any_server: Server, database: str) -> None:
    """With statements = pass they come as QUERY with their text, inside their transaction."""
    with running(any_server, statements="pass") as run:
        execute(
            any_server,
            database,
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "SET SESSION binlog_format = 'STATEMENT'",
            "INSERT INTO t VALUES (7)",
        )
        events = events_of(run, any_server)[1:]
    assert shape(events) == ["BEGIN", "QUERY", "END"]
    assert (events[1].sql, events[1].table, events[1].database) == ("INSERT INTO t VALUES (7)", None, database)


def test_errors_are_skipped_when_asked(any_server: Server, database: str) -> None:
    """With on_error = skip what cannot be decoded is counted and the rest comes."""
    with running(any_server, on_error="skip") as run:
        execute(
            any_server,
            database,
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "SET SESSION binlog_format = 'STATEMENT'",
            "INSERT INTO t VALUES (7)",
        )
        execute(any_server, database, "INSERT INTO t VALUES (8)")
        events = events_of(run, any_server)
        assert [row.after for event in events for row in event.rows] == [(8,)]
        assert run.stop().skipped == 1


def test_rollback_to_a_savepoint_of_mixed_engines(mariadb: Server, database: str) -> None:
    """Where the log holds what a savepoint took back, because another engine's rows came after it, it is taken back here too."""
    with running(mariadb) as run:
        execute(
            mariadb,
            database,
            "CREATE TABLE i (id INT PRIMARY KEY) ENGINE = InnoDB",
            "CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM",
        )
        execute(
            mariadb,
            database,
            "INSERT INTO i VALUES (1)",
            "SAVEPOINT s",
            "INSERT INTO i VALUES (2)",
            "INSERT INTO m VALUES (2)",
            "ROLLBACK TO s",
            "INSERT INTO i VALUES (3)",
            "COMMIT",
            "INSERT INTO i VALUES (4)",
            "INSERT INTO m VALUES (4)",
            "ROLLBACK",
            autocommit=False,
        )
        mirror = Mirror(database)
        mirror.apply(events_of(run, mariadb))
    for table in ("i", "m"):
        assert mirror.tables[table] == select_table(mariadb, database, table)


def test_rows_query(any_server: Server, database: str) -> None:
    """With rows_query = true a rows event carries the statement behind it, where the server logs it."""
    with running(any_server, rows_query=True) as run:
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, b TEXT)")
        setting = "binlog_rows_query_log_events" if any_server.flavor == "mysql" else "binlog_annotate_row_events"
        execute(any_server, database, f"SET SESSION {setting} = ON", "INSERT INTO t VALUES (1, 'größer')")
        rows = [event for event in events_of(run, any_server) if event.entry is EntryType.ROWS]
    assert [event.props["rows_query"] for event in rows] == ["INSERT INTO t VALUES (1, 'größer')"]


def test_compressed_transactions(any_server: Server, database: str) -> None:
    """Compressed transactions (MySQL) and compressed events (MariaDB) come as if they were not."""
    with running(any_server) as run:
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, b VARCHAR(600))")
        if any_server.flavor == "mysql":
            compress = ["SET SESSION binlog_transaction_compression = ON"]
        else:
            compress = ["SET GLOBAL log_bin_compress = ON"]
        try:
            execute(any_server, database, *compress)
            values = ",".join(f"({i}, '{'ab' * 250}')" for i in range(200))
            execute(
                any_server,
                database,
                *compress,
                f"INSERT INTO t VALUES {values}",
                "UPDATE t SET b = REPEAT('q', 400) WHERE id < 100",
            )
            execute(any_server, database, f"CREATE TABLE u (id INT PRIMARY KEY) COMMENT '{'long ' * 150}'")
        finally:
            if any_server.flavor == "mariadb":
                execute(any_server, database, "SET GLOBAL log_bin_compress = OFF")
        events = events_of(run, any_server)
        mirror = Mirror(database)
        mirror.apply(events)
    assert mirror.tables["t"] == select_table(any_server, database, "t")
    assert events[-1].type is EventType.CREATE
    assert "long long" in events[-1].sql
    assert mirror.transactions == 2


def test_tagged_gtids(mysql: Server, database: str) -> None:
    """Transactions with a tag come under their name, and the stream continues behind a set that holds a tag."""
    with running(mysql) as run:
        execute(mysql, database, "CREATE TABLE t (id INT PRIMARY KEY)")
        execute(
            mysql, database, "SET SESSION gtid_next = 'AUTOMATIC:blue_1'", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)"
        )
        events = events_of(run, mysql)
        run.stop()
        assert [event.transaction.split(":")[1] for event in events if event.rows] == ["blue_1", "blue_1"]
        with mysql.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@global.gtid_executed")
            assert events[-1].position.gtids == cursor.fetchone()[0].replace("\n", "").replace(" ", "")
        execute(mysql, database, "INSERT INTO t VALUES (3)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (4)")
        again = Running(run.settings)
        mirror = Mirror(database)
        mirror.apply(events_of(again, mysql))
        again.stop()
        assert mirror.tables["t"] == select_table(mysql, database, "t")
        remove(run.settings.store)
    with running(mysql, start="earliest", include=(f"{database}.*",), statements="pass") as run:  # PREVIOUS_GTIDS with a tag
        mirror = Mirror(database)
        mirror.apply(events_of(run, mysql))
    assert mirror.tables["t"] == select_table(mysql, database, "t")
    assert ":blue_1:1-2" in mirror.last.position.gtids


def test_an_alter_in_two_phases(mariadb: Server, database: str) -> None:
    """MariaDB may log the beginning and the end of an ALTER: it comes once, when it is done; one that failed does not come."""
    with running(mariadb) as run:
        execute(mariadb, database, "CREATE TABLE t (id INT PRIMARY KEY, b INT)", "INSERT INTO t VALUES (1, 6)")
        two = "SET SESSION binlog_alter_two_phase = 1"
        with pytest.raises(Exception, match="CONSTRAINT"):
            execute(mariadb, database, two, "ALTER TABLE t ADD CONSTRAINT c CHECK (b < 6), ALGORITHM = COPY")
        execute(mariadb, database, two, "ALTER TABLE t ADD COLUMN d INT, ALGORITHM = COPY", "INSERT INTO t VALUES (2, 0, 0)")
        events = events_of(run, mariadb)
        assert shape(events) == ["DDL", "BEGIN", "INSERT", "END", "DDL", "BEGIN", "INSERT", "END"]
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@global.gtid_binlog_pos")
            assert cursor.fetchone()[0] == events[-1].position.gtids
