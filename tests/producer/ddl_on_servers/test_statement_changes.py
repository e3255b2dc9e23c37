"""What changes rows counts as a change, in whichever words: generated statements against what a server's tables say they did."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pymysql
import pytest

from shmstore import EntryType, EventType, SchemaUnknown, UnsupportedEvent
from shmstore.consumer.formats.canal_statement import canal_statement
from shmstore.producer.binlog import events
from shmstore.producer.binlog.compression import uncompress_query
from shmstore.producer.binlog.events import EventCode
from shmstore.producer.binlog.rows import ROWS_EVENTS
from shmstore.sql.classify import Kind, Statement, classify
from tests.producer.decoding import Log, database_of, run
from tests.producer.running import events_of, execute, running
from tests.servers.server import Server

pytestmark = pytest.mark.server

STATEMENTS = 120  # for each server and format
TABLES = [
    "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(99))",
    "CREATE TABLE u LIKE t",
    "CREATE TABLE m (a INT PRIMARY KEY, b VARCHAR(99)) ENGINE = MyISAM",
    "CREATE FUNCTION f(n INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA"
    " BEGIN UPDATE u SET b = CONCAT(b, n) WHERE a < 3; RETURN n; END",
    "CREATE PROCEDURE p(n INT) MODIFIES SQL DATA BEGIN UPDATE t SET b = n WHERE a = 1; DELETE FROM u WHERE a = n; END",
    "INSERT INTO t VALUES (1, 'x'), (2, 'y')",
    "INSERT INTO u VALUES (1, ''), (2, '')",
]


class Forms:
    """Statements of a server's grammar, drawn at random. Some do nothing, and some the server refuses."""

    def __init__(self, seed: int, mariadb: bool) -> None:
        self.random = random.Random(seed)
        self.mariadb = mariadb
        self.tables = 0

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def one(self, *choices: str) -> str:
        return self.random.choice(choices)

    def number(self) -> int:
        return self.random.randrange(1, 400)

    def query(self, deep: int = 0) -> str:
        """A query of two columns."""
        n = self.number()
        choices = [f"SELECT {n} a, 'q' b", "SELECT * FROM t", f"SELECT a, b FROM u WHERE a < {n}", f"SELECT {n} a, f({n}) b"]
        if not self.mariadb:
            choices += ["TABLE t", f"VALUES ROW({n}, 'v')"]
        else:
            choices += [f"VALUES ({n}, 'v')"]
        if deep < 2:
            choices += [f"WITH x AS (SELECT {n} a, 'w' b) {self.one('SELECT * FROM x', '(SELECT * FROM x)')}"]
            choices += [f"({self.query(deep + 1)})", f"({self.query(2)}) UNION ({self.query(2)})"]
        return self.random.choice(choices)

    def create(self) -> str:
        self.tables += 1
        replace = self.one("", "OR REPLACE ", "/*M! OR REPLACE */ ") if self.mariadb else ""
        heading = self.one(
            "", "(a INT)", "(a INT, z INT DEFAULT 5)", "(a INT, KEY (a)) COMMENT = 'SELECT'", "(a INT) PARTITION BY HASH (a)"
        )
        words = self.one("", "AS", "IGNORE", "REPLACE AS", "AS /* TABLE */")
        temporary = "TEMPORARY " if self.mariadb and self.chance(8) else ""
        exists = self.one("", "", "IF NOT EXISTS ")
        return f"CREATE {replace}{temporary}TABLE {exists}n{self.tables} {heading} {words} {self.query()}"

    def change(self) -> str:
        n, table = self.number(), self.one("t", "u", "`t`", "{database}.u", "m")
        joined = self.one("t, u", "t JOIN u USING (a)", "(t) JOIN (u) ON t.a = u.a", "t JOIN (SELECT 1 k) q ON t.a = q.k")
        return self.one(
            f"UPDATE {table} SET b = 'n{n}' WHERE a < {n}",
            f"UPDATE LOW_PRIORITY IGNORE {table} AS z SET z.b = 'u{n}' ORDER BY a LIMIT 2",
            f"UPDATE {joined} SET t.b = 'j{n}' WHERE t.a < 9",
            f"DELETE FROM {table} WHERE a = {n}",
            f"DELETE QUICK FROM {table} ORDER BY a LIMIT 1",
            f"DELETE t FROM t JOIN u ON t.a = u.a WHERE t.a > {n}",
            f"DELETE FROM z USING {table} AS z WHERE z.a = {n}",
            f"INSERT INTO {table} VALUES ({n}, 'i')",
            f"INSERT IGNORE {table} (a) SELECT a + {n} FROM t",
            f"INSERT INTO {table} {self.query()} ON DUPLICATE KEY UPDATE b = 'd{n}'",
            f"REPLACE INTO {table} SET a = {n}, b = 'r'",
            f"REPLACE {table} {self.query()}",
        )

    def statement(self) -> str:
        n = self.number()
        if self.chance(30):
            sql = self.create()
        elif self.chance(15):
            sql = self.one(
                f"SELECT f({n})", f"DO f({n})", f"CALL p({n})", f"SET @x = f({n})", f"(SELECT f({n})) UNION (SELECT f(1))"
            )
            if not self.mariadb:
                sql = self.one(sql, f"EXPLAIN ANALYZE SELECT f({n})", f"VALUES ROW(f({n}))")
        else:
            sql = self.change()
            if self.mariadb:
                sql = self.one("", "", "ANALYZE ", "ANALYZE FORMAT=JSON ") + sql
            elif sql.startswith(("UPDATE", "DELETE")):
                sql = self.one("", "WITH x AS (SELECT 1 a) ", "WITH RECURSIVE u2 AS (SELECT 1 k), y (k) AS (SELECT 2) ") + sql
        if self.mariadb:
            for _ in range(self.random.randrange(3) if self.chance(30) else 0):
                sql = f"SET STATEMENT max_statement_time = {self.one('9', 'IF(1, 8, 9)')} FOR {sql}"
            if self.chance(10):
                sql = self.one(f"BEGIN NOT ATOMIC {sql}; END", f"IF 1 THEN {sql}; END IF")
        if self.chance(25):
            words = sql.split(" ")
            at = self.random.randrange(len(words))
            if words[at] in ("CREATE", "UPDATE", "DELETE", "INSERT", "REPLACE", "WITH", "SELECT", "TABLE", "ANALYZE", "AS"):
                words[at] = self.one(
                    f"/*!50100 {words[at]} */", f"/*! {words[at]} */", f"/* SELECT */ {words[at]}", f"-- x\n{words[at]}"
                )
            sql = " ".join(words)
        return sql


def contents(connection: Any) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of the database's tables, temporary ones left out."""
    names = [name for name, kind in run(connection, "SHOW FULL TABLES") if kind == "BASE TABLE"]
    return {name: sorted(run(connection, f"SELECT * FROM `{name}`"), key=repr) for name in names}


def logged(log: Log) -> Iterator[Statement | int]:
    """The statements that were logged, classified, and the codes of rows events."""
    for code, body in log.events():
        if code in ROWS_EVENTS:
            yield code
        elif code in (EventCode.QUERY, EventCode.QUERY_COMPRESSED, EventCode.EXECUTE_LOAD_QUERY):
            body = uncompress_query(body) if code == EventCode.QUERY_COMPRESSED else body
            body = events.load_query(body) if code == EventCode.EXECUTE_LOAD_QUERY else body
            query = events.query(body)
            yield classify(query.sql, query.database, query.mode)


@pytest.mark.parametrize("format_", ["STATEMENT", "MIXED", "ROW"])
def test_what_changed_rows_counts_as_a_change(any_server: Server, database: str, format_: str, seed: int) -> None:
    """Where a table's rows are other ones after a statement, rows events show it, or what was logged counts as a change of that table."""
    mariadb = any_server.flavor == "mariadb"
    forms = Forms(seed, mariadb)
    changed = shown = 0
    with database_of(any_server, database) as (connection, log):
        run(connection, *TABLES, f"SET SESSION binlog_format = {format_}")
        log.skip()
        for _ in range(STATEMENTS):
            sql = forms.statement().replace("{database}", database)
            before = contents(connection)
            with suppress(pymysql.MySQLError):  # part of it may have happened all the same
                run(connection, sql)
            after = contents(connection)
            found = list(logged(log))
            statements = [one for one in found if isinstance(one, Statement) and one.changes_rows]
            if format_ == "ROW":
                assert not statements, f"{sql!r} was logged as rows, and counts as a change in statement format"
            by_rows = any(isinstance(one, int) for one in found)
            for name in after.keys() | before.keys():
                if before.get(name, []) == after.get(name, []):
                    continue
                changed += 1
                shown += by_rows
                wanted = (database, name)
                tables = [one.tables for one in statements]
                called = "f(" in sql and bool(tables)  # what a function changes is not in the statement
                gone = name not in after or any(isinstance(one, Statement) and one.type is EventType.CREATE for one in found)
                named_it = called or any(not named or wanted in named for named in tables)
                assert by_rows or gone or named_it, f"{sql!r} changed {name}: {found}"
                if name not in before and not by_rows:
                    assert any(one.fills and one.tables == (wanted,) for one in statements), f"{sql!r} filled {name}: {found}"
            if "TEMPORARY" in sql:
                run(connection, f"DROP TEMPORARY TABLE IF EXISTS n{forms.tables}")  # as long as there is one, MIXED logs rows
                log.skip()
            if forms.tables % 20 == 19:
                for name in [name for name in after if name.startswith("n")]:
                    run(connection, f"DROP TABLE {name}")
                log.skip()
    assert changed > STATEMENTS / 4, "otherwise the test shows little"
    assert shown > STATEMENTS / 4 if format_ == "ROW" else changed - shown > STATEMENTS / 12, "otherwise the test shows little"


CREATES = [
    "CREATE TABLE n AS SELECT * FROM t",
    "CREATE TABLE IF NOT EXISTS n (z INT) SELECT * FROM t",
    "CREATE TABLE n (((SELECT a FROM t)))",
]
MYSQL_CREATES = [
    "CREATE TABLE n TABLE t",
    "CREATE TABLE n VALUES ROW(1, 2)",
    "CREATE TABLE n (WITH x AS (TABLE t) SELECT * FROM x)",
]
MARIADB_CREATES = [
    "CREATE OR REPLACE TABLE n VALUES (1), (2)",
    "SET STATEMENT max_statement_time = 9 FOR CREATE TABLE n SELECT 1",
]


@pytest.mark.parametrize("format_", ["STATEMENT", "MIXED"])
@pytest.mark.parametrize("number", range(6))
def test_create_table_select_as_a_statement(any_server: Server, database: str, format_: str, number: int) -> None:
    """With statements = fail it stops the producer, since its rows are nowhere; with pass it comes as the DDL that it is, marked."""
    own = MARIADB_CREATES * 2 if any_server.flavor == "mariadb" else MYSQL_CREATES
    sql = [*CREATES, *own][number]
    setup = ["CREATE TABLE t (a INT PRIMARY KEY, b INT)", "INSERT INTO t VALUES (1, 2)"]
    execute(any_server, database, *setup)
    with running(any_server) as run_:
        execute(any_server, database, f"SET SESSION binlog_format = {format_}", sql)
        with pytest.raises(UnsupportedEvent, match="logged as a statement"):
            run_.wait()
    execute(any_server, database, "DROP TABLE n")
    with running(any_server, statements="pass") as run_:
        execute(any_server, database, f"SET SESSION binlog_format = {format_}", sql)
        (event,) = [event for event in events_of(run_, any_server) if event.sql]
    assert (event.entry, event.type, event.database) == (EntryType.DDL, EventType.CREATE, database)
    assert (event.props["table"], event.props["change"]) == ("n", "insert")
    canal = canal_statement(event.type, event.sql, event.database, event.props)
    assert canal is not None
    assert (canal.type, canal.table, canal.is_ddl) == (EventType.CREATE, "n", True)


def test_a_table_filled_by_a_statement_is_unknown(any_server: Server, database: str) -> None:
    """Where columns come from a query, the schema history knows no table: its rows stop the producer instead of having the former columns."""
    execute(any_server, database, "CREATE TABLE t (a INT PRIMARY KEY, b INT)", "CREATE TABLE n (x INT, y VARCHAR(9), z INT)")
    metadata = {"mysql": ("MINIMAL", "FULL"), "mariadb": ("NO_LOG", "FULL")}[any_server.flavor]
    execute(any_server, database, f"SET GLOBAL binlog_row_metadata = {metadata[0]}")
    try:
        with running(any_server, statements="pass", schema_history="on") as run_:
            execute(
                any_server,
                database,
                "SET SESSION binlog_format = MIXED",
                "DROP TABLE n",
                "CREATE TABLE n (y INT) SELECT a, b FROM t",
            )
            execute(any_server, database, "INSERT INTO n VALUES (1, 2, 3)")
            with pytest.raises(SchemaUnknown, match=r"CREATE TABLE \.\.\. SELECT"):
                run_.wait()
    finally:
        execute(any_server, database, f"SET GLOBAL binlog_row_metadata = {metadata[1]}")


def test_load_data_as_a_statement(any_server: Server, database: str) -> None:
    """LOAD DATA that was logged as a statement stops the producer, or passes with its table."""
    execute(any_server, database, "CREATE TABLE t (a INT PRIMARY KEY, b INT)")
    path = any_server.directory / "rows.txt"
    path.write_text("1\t2\n")
    path.chmod(0o644)
    load = ["SET SESSION binlog_format = STATEMENT", f"LOAD DATA INFILE '{path}' REPLACE INTO TABLE t"]
    with running(any_server) as run_:
        execute(any_server, database, *load)
        with pytest.raises(UnsupportedEvent, match=r"logged as a statement, not as rows: .LOAD DATA"):
            run_.wait()
    with running(any_server, statements="pass") as run_:
        execute(any_server, database, *load)
        (event,) = [event for event in events_of(run_, any_server) if event.sql]
    assert (event.entry, event.type, event.database) == (EntryType.ROWS, EventType.QUERY, database)
    assert (event.props["table"], event.props["change"]) == ("t", "insert")


CHANGES = {
    "mysql": [
        ("WITH x AS (SELECT 1 k) UPDATE t, x SET b = 5 WHERE a = k", EventType.UPDATE),
        ("WITH x AS (SELECT 1 k) DELETE FROM t WHERE a IN (SELECT k FROM x)", EventType.DELETE),
        ("/*!80000 WITH x AS (SELECT 1) */ DELETE FROM t", EventType.DELETE),
    ],
    "mariadb": [
        ("ANALYZE UPDATE t SET b = 5", EventType.UPDATE),
        ("ANALYZE FORMAT=JSON DELETE FROM t", EventType.DELETE),
        (
            "SET STATEMENT max_statement_time = 9 FOR SET STATEMENT lock_wait_timeout = 9 FOR ANALYZE INSERT INTO t VALUES (7, 7)",
            EventType.INSERT,
        ),
    ],
}


def test_changes_with_words_before_the_verb(any_server: Server, database: str) -> None:
    """They stop the producer, or reach canal clients with the type and table of a change."""
    execute(any_server, database, "CREATE TABLE t (a INT PRIMARY KEY, b INT)", "INSERT INTO t VALUES (1, 2), (2, 3)")
    changes = CHANGES[any_server.flavor]
    with running(any_server) as run_:
        execute(any_server, database, "SET SESSION binlog_format = STATEMENT", changes[0][0])
        with pytest.raises(UnsupportedEvent, match="logged as a statement"):
            run_.wait()
    with running(any_server, statements="pass", include=(f"{database}.t",)) as run_:
        execute(any_server, database, "SET SESSION binlog_format = STATEMENT", *[sql for sql, _ in changes])
        found = [event for event in events_of(run_, any_server) if event.sql]
    assert [event.sql for event in found] == [sql for sql, _ in changes]
    for event, (_, type_) in zip(found, changes, strict=True):
        canal = canal_statement(event.type, event.sql, event.database, event.props)
        assert canal is not None
        assert (canal.type, canal.table, canal.is_ddl, canal.names) == (type_, "t", False, (f"{database}.t",))
        assert classify(event.sql, database).kind is Kind.DML
