"""How columns were defined travels with their schema: from the schema history, or from the server and the DDLs since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from shmstore import EntryType, Event, Position
from shmstore.column_type import column_type
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.errors import LinkLost, LoginRefused
from shmstore.producer.schema import current
from shmstore.producer.schema.current import CurrentTables
from shmstore.producer.settings import ServerAddress, Settings
from shmstore.producer.snapshot.tables import read_table
from tests.producer.running import Running, events_of, execute, running
from tests.servers.server import Server

LESS = {"mysql": "MINIMAL", "mariadb": "NO_LOG"}
OLD = (
    "CREATE TABLE old (id INT PRIMARY KEY, flag TINYINT(1), n INT(8) UNSIGNED ZEROFILL, f FLOAT(7,3), v VARCHAR(9), "
    "d DECIMAL(6,2) ZEROFILL, e ENUM('a','b''c'), y YEAR)"
)


@contextmanager
def metadata(server: Server, value: str) -> Iterator[None]:
    """The server logs so much of columns, for new sessions too."""
    execute(server, "", f"SET GLOBAL binlog_row_metadata = {value}")
    try:
        yield
    finally:
        execute(server, "", "SET GLOBAL binlog_row_metadata = FULL")


def types(event: Event) -> list[str]:
    assert event.table is not None
    return [column_type(column) for column in event.table.columns]


@pytest.mark.server
@pytest.mark.parametrize("amount", ["full", "less"])
def test_definitions_with_every_amount_of_metadata(any_server: Server, database: str, amount: str) -> None:
    """Display widths and ZEROFILL of a table from before, as the server has them; of one in the stream, as its DDLs spell them."""
    width = "(11)" if any_server.flavor == "mariadb" else ""
    with metadata(any_server, "FULL" if amount == "full" else LESS[any_server.flavor]):
        execute(any_server, database, OLD)
        with running(any_server, include=(f"{database}.*",)) as run:
            execute(
                any_server,
                database,
                "INSERT INTO old (id) VALUES (1)",
                "CREATE TABLE fresh (id INTEGER PRIMARY KEY, b BOOLEAN, v VARCHAR(20), `if` double  precision(9, 2) unsigned)",
                "INSERT INTO fresh (id) VALUES (1)",
                "ALTER TABLE old MODIFY flag BOOL, ADD w int(3) FIRST",
                "INSERT INTO old (id) VALUES (2)",
                "RENAME TABLE fresh TO renamed",
                "INSERT INTO renamed (id) VALUES (2)",
            )
            rows = [types(event) for event in events_of(run, any_server) if event.entry is EntryType.ROWS]
    old = [f"int{width}", "tinyint(1)", "int(8) unsigned zerofill", "float(7,3)", "varchar(9)", "decimal(6,2) unsigned zerofill"]
    old += ["enum('a','b''c')", "year(4)" if width else "year"]
    fresh = ["INTEGER", "BOOLEAN", "VARCHAR(20)", "double precision(9,2) unsigned"]
    assert rows == [old, fresh, ["int(3)", old[0], "BOOL", *old[2:]], fresh]


@pytest.mark.server
def test_rows_of_a_snapshot_have_the_schema_of_the_stream(any_server: Server, database: str) -> None:
    """Definitions too, whether asked or followed."""
    execute(any_server, database, OLD, "INSERT INTO old (id) VALUES (1)")
    with running(any_server, include=(f"{database}.*",), snapshot="initial") as run:
        execute(any_server, database, "INSERT INTO old (id) VALUES (2)")
        rows = [event for event in events_of(run, any_server) if event.entry is EntryType.ROWS]
    assert {event.table for event in rows} == {rows[0].table}
    assert "tinyint(1)" in types(rows[0])


@pytest.mark.server
def test_a_unique_key_is_told_from_a_primary_one(any_server: Server, database: str) -> None:
    """The log gives a UNIQUE key without NULLs as the primary key of a table that has none; the definition says what it is."""
    with running(any_server, include=(f"{database}.*",)) as run:
        execute(
            any_server,
            database,
            "CREATE TABLE u (a INT NOT NULL UNIQUE, b INT)",
            "INSERT INTO u VALUES (1, 2)",
            "CREATE TABLE p (a INT PRIMARY KEY, b INT)",
            "INSERT INTO p VALUES (1, 2)",
        )
        tables = [event.table for event in events_of(run, any_server) if event.entry is EntryType.ROWS]
    assert tables[0] is not None
    assert tables[1] is not None
    assert (bool(tables[0].primary_key), tables[0].unique_key) in ((True, True), (False, False))
    assert (tables[1].primary_key, tables[1].unique_key) == ((0,), False)


@pytest.mark.server
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("a INT NOT NULL, UNIQUE (a)", "ALTER TABLE k DROP INDEX a, ADD PRIMARY KEY (a)"),
        ("a INT NOT NULL, PRIMARY KEY (a)", "ALTER TABLE k DROP PRIMARY KEY, ADD UNIQUE (a)"),
        ("a INT NOT NULL, PRIMARY KEY (a)", "DROP TABLE k"),
    ],
    ids=["becomes-primary", "becomes-unique", "dropped"],
)
def test_a_key_is_what_it_was_when_the_row_was_written(any_server: Server, database: str, first: str, then: str) -> None:
    """The producer comes to a row when the server has another key by then: what it followed counts."""
    execute(any_server, database, f"CREATE TABLE k ({first})")
    with running(any_server, include=(f"{database}.*",)) as run:
        run.stop()
        execute(any_server, database, "INSERT INTO k VALUES (1)", then)
        later = Running(run.settings)
        try:
            (table,) = [event.table for event in events_of(later, any_server) if event.table is not None]
        finally:
            later.stop()
    assert not table.primary_key or table.unique_key == ("UNIQUE" in first)


@pytest.mark.server
@pytest.mark.parametrize(
    "then", ["DROP TABLE t", "ALTER TABLE t CHANGE a c BIGINT", "ALTER TABLE t DROP PRIMARY KEY, ADD UNIQUE (b, a)"]
)
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_ddl_between_two_questions(
    any_server: Server, database: str, monkeypatch: pytest.MonkeyPatch, then: str, after: int
) -> None:
    """A table is described as it was before the DDL or as it is after it, and as nothing in between; one that is gone is gone."""
    settings = Settings(store="s", host=any_server.host, port=any_server.port, user=any_server.user)
    (endpoint,) = settings.endpoints()
    asked: list[str] = []
    counts: list[int] = []
    query = ServerSession.query

    def asking(session: ServerSession, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found = query(session, sql, arguments)
        if arguments[:2] == (database, "t"):
            asked.append(sql)
            if len(asked) == after:
                execute(any_server, database, then)
        return found

    def described(*statements: str) -> tuple[Any, Any]:
        """What a snapshot has of a new table after `statements`, and what the stream is given."""
        found: list[Any] = []
        session = connect(settings, endpoint)
        try:
            current = CurrentTables(settings, endpoint, mariadb=session.mariadb)
            for ask in (lambda: read_table(session, database, "t"), lambda: current.find(database, "t")):
                create = "CREATE TABLE t (a INT NOT NULL PRIMARY KEY, b INT NOT NULL DEFAULT 0)"
                execute(any_server, database, "DROP TABLE IF EXISTS t", create, *statements)
                asked.clear()
                found.append(ask())
                counts.append(len(asked))
        finally:
            session.close()
        return tuple(found)  # type: ignore[return-value]

    before, now = described(), described(then)
    monkeypatch.setattr(ServerSession, "query", asking)
    torn = described()
    assert torn[0] in (before[0], now[0])
    assert set(counts[-2:]) <= {3, 5}  # one, and one before and after it; once more where they differ
    assert torn[1] in (before[1], now[1], now[1] and now[1]._replace(primary_key=before[1].primary_key))


def test_a_ddl_that_the_server_had_run_when_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the DDL adds is there once, as the DDL spells it."""
    tables = CurrentTables(Settings(store="s"), ServerAddress("h", 1), mariadb=False)
    assert tables.follow(Position("b.000001", 4), "d", "CREATE TABLE t (w int, a int)")  # as if asked
    assert tables.follow(Position("b.000001", 5), "d", "ALTER TABLE t ADD w int(3) FIRST")
    found = tables.find("d", "t")
    assert found is not None
    assert [(column.name, column.definition) for column in found.columns] == [("w", "int(3)"), ("a", "int")]


def test_ddls_are_followed_and_others_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DDL that says all is taken in; of one that does not, or of a database that was dropped, the server is asked again."""
    tables = CurrentTables(Settings(store="s"), ServerAddress("h", 1), mariadb=True)
    asked: list[str] = []
    monkeypatch.setattr(tables, "_ask", lambda database, table: asked.append(f"{database}.{table}"))

    def follow(sql: str) -> bool:
        return tables.follow(Position("b.000001", 4), "d", sql)

    assert tables.find("d", "t") is None
    assert tables.find("d", "t") is None
    assert asked == ["d.t"]
    assert follow("CREATE OR REPLACE TABLE t (a TINYINT(1), j JSON)")
    found = tables.find("d", "t")
    assert found is not None
    assert [(column.type, column.definition) for column in found.columns] == [("tinyint", "TINYINT(1)"), ("longtext", "JSON")]
    assert not follow("TRUNCATE t")
    assert tables.find("d", "t") is found
    assert follow("ALTER TABLE t ADD b SOMETHING NEW (((")
    assert tables.find("d", "t") is None
    assert follow("CREATE TABLE u (a INT(3))")
    assert tables.find("d", "u") is not None
    assert follow("DROP DATABASE d")
    assert (tables.find("d", "u"), tables.find("d", "t")) == (None, None)
    assert asked == ["d.t", "d.t", "d.u", "d.t"]


@pytest.mark.server
def test_what_could_not_be_asked_is_asked_again(mariadb: Server, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that cannot be had now, as where an account has all it may have, may be had at the next try: a snapshot asks again."""
    execute(mariadb, database, "CREATE TABLE t (a TINYINT(1) PRIMARY KEY)")
    settings = Settings(store="s", host=mariadb.host, port=mariadb.port, user=mariadb.user)
    tables = CurrentTables(settings, settings.endpoints()[0], mariadb=True)
    with monkeypatch.context() as patch:
        patch.setattr(current, "connect", lambda settings, endpoint: (_ for _ in ()).throw(LoginRefused("max_user_connections")))
        for _ in range(2):
            with pytest.raises(LinkLost, match="cannot be asked: max_user_connections"):
                tables.find(database, "t")
    found = tables.find(database, "t")
    assert found is not None
    assert column_type(found.columns[0]) == "tinyint(1)"
