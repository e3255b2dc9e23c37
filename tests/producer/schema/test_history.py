"""The schema history: its file, and what it cannot follow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmstore.errors import SchemaUnknown, SourceError
from shmstore.event import Column, Position, TableSchema
from shmstore.producer.binlog.table_map import parse_layout
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.schema.periods import Period, periods
from shmstore.sql.catalog import Catalog, Unreadable
from shmstore.sql.columns import column_of_type
from shmstore.sql.table_change import Table
from tests.producer.decoding import database_of, reference, run
from tests.servers.server import Server


def query_of(connection: Any) -> Callable[[str], Sequence[Sequence[Any]]]:
    return lambda sql: run(connection, sql)


def essence(schema: TableSchema) -> tuple[list[tuple[Any, ...]], tuple[int, ...]]:
    """What a history is for: nullability and sizes are in the log."""
    return [(c.name, c.type, c.unsigned, c.charset, c.members, c.scale) for c in schema.columns], schema.primary_key


def tables_of(history: SchemaHistory, database: str) -> dict[str, Any]:
    found = {}
    for (schema, table), now in history._catalog.tables.items():
        if schema == database:
            known = None if isinstance(now, Unreadable) else history.find(schema, table)
            found[table] = essence(known) if known is not None else now
    return found


def test_a_mysql_without_generation_expressions() -> None:
    """MySQL 5.6's information_schema has no such column; the snapshot asks only MariaDB for it."""

    def query(sql: str) -> Sequence[Sequence[Any]]:
        assert "generation_expression" not in sql
        answers = {"VERSION()": [("utf8mb4", 0, "5.6.24-log")], ".schemata": [("shop", "utf8mb4")]}
        answers |= {".tables": [("shop", "t", "utf8mb4_bin", "BASE TABLE", "InnoDB")], ".statistics": [("shop", "t", "id")]}
        answers |= {".columns": [("shop", "t", "id", "int(10) unsigned", None, "NO", "")]}
        return next(rows for part, rows in answers.items() if part in sql)

    history = SchemaHistory()
    history.snapshot(query, Position("binlog.000001", 4))
    assert tables_of(history, "shop") == {"t": ([("id", "int", True, "", (), 0)], (0,))}


def test_a_definition_that_does_not_fit_together() -> None:
    """A key of columns that are not shown is of the one table: the others are known, and of that one it says why it is not."""
    answers = {
        "VERSION()": [("utf8mb4", 0, "9.7.4")],
        ".schemata": [("shop", "utf8mb4")],
        ".tables": [("shop", name, "utf8mb4_bin", "BASE TABLE", "InnoDB") for name in "tu"],
        ".statistics": [("shop", "t", "id"), ("shop", "u", "id")],
        ".columns": [("shop", "t", "id", "int", None, "NO", ""), ("shop", "u", "a", "int", None, "NO", "")],
    }
    history = SchemaHistory()
    history.snapshot(lambda sql: next(rows for part, rows in answers.items() if part in sql), Position("binlog.000001", 4))
    assert tables_of(history, "shop")["t"] == ([("id", "int", False, "", (), 0)], (0,))
    with pytest.raises(SchemaUnknown, match=r"shop\.u: what the server says of it does not fit together \(.*id.*\)"):
        history.find("shop", "u")


# ---------------------------------------------------------------- the file


class Server9:
    """information_schema of one table."""

    def __init__(self, *columns: tuple[str, str], database: str = "d", mariadb: bool = False) -> None:
        self.columns = columns
        self.database = database
        self.mariadb = mariadb

    def __call__(self, sql: str) -> Sequence[Sequence[Any]]:
        if "VERSION()" in sql:
            return [("utf8mb4", "0", "10.11.1-MariaDB" if self.mariadb else "9.7.4")]
        if "schemata" in sql:
            return [(self.database, "utf8mb4")]
        if ".columns" in sql:
            return [(self.database, "t", name, type_, None, "YES", "") for name, type_ in self.columns]
        if "check_constraints" in sql or "HASH" in sql:
            return []
        if "statistics" in sql:
            return [(self.database, "t", self.columns[0][0])]
        return [(self.database, "t", "utf8mb4_bin", "BASE TABLE", "InnoDB")]


def at(offset: int, file: str = "binlog.000007") -> Position:
    return Position(file, offset)


def test_nothing_is_known_before_a_snapshot() -> None:
    """An empty history finds nothing, follows nothing and refuses nothing."""
    history = SchemaHistory()
    assert history.find("d", "t") is None
    assert history.follow(at(5), "d", "CREATE TABLE t (a int)") is False
    history.seek(at(9))
    assert history.first is None


def test_the_file_gives_everything_back(tmp_path: Path) -> None:
    """A second process has the same tables at each position, in whatever order the records came."""
    path = tmp_path / "history"
    history = SchemaHistory(path)
    history.snapshot(Server9(("a", "int unsigned"), ("e", "enum('x','y''z')")), at(100))
    assert history.follow(at(200), "d", "ALTER TABLE t ADD b varchar(9) CHARACTER SET latin1")
    assert history.follow(at(300, "binlog.000010"), "d", "ALTER TABLE t DROP a")
    history.snapshot(Server9(("only", "int")), at(400, "binlog.000010"))
    again = SchemaHistory(path)
    for position, names in (
        (at(100), "ae"),
        (at(200), "aeb"),
        (at(299, "binlog.000010"), "aeb"),
        (at(300, "binlog.000010"), "eb"),
    ):
        for one in (history, again):
            one.seek(position)
            schema = one.find("d", "t")
            assert schema is not None
            assert "".join(schema.names) == names
    again.seek(at(400, "binlog.000010"))
    assert again.find("d", "t") == TableSchema("d", "t", (Column("only", "int", nullable=False, definition="int"),), (0,))


def test_follow_is_idempotent(tmp_path: Path) -> None:
    """The same DDL at the same position, or one from before the snapshot, changes nothing and writes nothing."""
    path = tmp_path / "history"
    history = SchemaHistory(path)
    history.snapshot(Server9(("a", "int")), at(100))
    assert history.follow(at(200), "d", "ALTER TABLE t ADD b int")
    size = path.stat().st_size
    assert history.follow(at(200), "d", "ALTER TABLE t ADD b int")  # it did change a table there
    assert not history.follow(at(100), "d", "ALTER TABLE t ADD c int")
    assert not history.follow(at(50), "d", "DROP TABLE t")
    assert not history.follow(at(300), "d", "TRUNCATE t")
    assert path.stat().st_size == size
    assert history.find("d", "t").names == ("a", "b")


def test_a_ddl_read_late_takes_its_place_before_a_later_snapshot() -> None:
    """A stream that is behind the newest snapshot still follows DDLs where they stand."""
    history = SchemaHistory()
    history.snapshot(Server9(("a", "int")), at(100))
    history.snapshot(Server9(("a", "int"), ("b", "int"), ("c", "int")), at(500))
    history.seek(at(100))
    assert history.follow(at(200), "d", "ALTER TABLE t ADD b int")
    assert history.find("d", "t").names == ("a", "b")
    assert history.follow(at(300), "d", "ALTER TABLE t ADD c int")
    history.seek(at(250))
    assert history.find("d", "t").names == ("a", "b")
    history.seek(at(600))
    assert history.find("d", "t").names == ("a", "b", "c")


def test_a_snapshot_of_one_database_replaces_only_it() -> None:
    """Other databases stay as they were."""
    history = SchemaHistory()
    history.snapshot(Server9(("a", "int")), at(100))
    history.snapshot(Server9(("x", "int"), database="other"), at(200), database="other")
    history.seek(at(200))
    assert history.find("d", "t").names == ("a",)
    assert history.find("other", "t").names == ("x",)
    history.seek(at(100))
    assert history.find("other", "t") is None


def test_a_line_cut_by_a_crash_does_not_count(tmp_path: Path) -> None:
    """The file ends where its last whole line ends, and continues from there."""
    path = tmp_path / "history"
    history = SchemaHistory(path)
    history.snapshot(Server9(("a", "int")), at(100))
    whole = path.read_bytes()
    history.follow(at(200), "d", "ALTER TABLE t ADD b int")
    for cut in range(len(whole), path.stat().st_size, 7):
        torn = tmp_path / "torn"
        torn.write_bytes(path.read_bytes()[:cut])
        again = SchemaHistory(torn)
        assert again.find("d", "t").names == ("a",)
        again.follow(at(200), "d", "ALTER TABLE t ADD b int")
        assert SchemaHistory(torn).find("d", "t").names == ("a", "b")


@pytest.mark.parametrize(
    "content", ["hello\n", '{"shmstore_schema_history":2}\n', '{"shmstore_schema_history":1}\n{"kind":1}\n', "[]\n"]
)
def test_a_file_that_is_no_history_is_refused(tmp_path: Path, content: str) -> None:
    """The error names the file and what to do; the file stays as it was."""
    path = tmp_path / "history"
    path.write_text(content)
    with pytest.raises(SchemaUnknown, match="is not a schema history"):
        SchemaHistory(path)
    assert path.read_text() == content


def test_a_record_is_on_the_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each snapshot and DDL is synced before the call returns; so is the name of a new file."""
    synced: list[bool] = []
    monkeypatch.setattr(
        "shmstore.producer.schema.history.os.fsync", lambda fd: synced.append(os.path.isdir(f"/proc/self/fd/{fd}"))
    )
    history = SchemaHistory(tmp_path / "history")
    history.snapshot(Server9(("a", "int")), at(100))
    assert synced == [False, True]
    history.follow(at(200), "d", "DROP TABLE t")
    assert synced == [False, True, False]


def test_a_draft_is_not_on_the_disk_before_it_is_kept(tmp_path: Path) -> None:
    """A draft answers as a history does, and writes nothing; kept, it takes the place of the files it was begun for, its own and
    another server's, which are put aside. From then on it is written to at once."""
    path, other = tmp_path / "state" / "schemas-own.jsonl", tmp_path / "state" / "schemas-other.jsonl"
    path.parent.mkdir()
    for file in (path, other):
        SchemaHistory(file).snapshot(Server9(("old", "int")), at(50))
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    draft = SchemaHistory(path, draft=True, aside=[path, other])
    assert draft.first is None
    draft.snapshot(Server9(("a", "int")), at(100))
    assert draft.follow(at(200), "d", "ALTER TABLE t ADD b int")
    assert draft.find("d", "t").names == ("a", "b")
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    draft.keep()
    assert {file.name for file in path.parent.iterdir()} - {".lock"} == {
        "schemas-own.jsonl",
        "schemas-own.old",
        "schemas-other.old",
    }
    assert SchemaHistory(path).find("d", "t").names == ("a", "b")
    assert draft.follow(at(300), "d", "ALTER TABLE t DROP a")
    assert SchemaHistory(path).find("d", "t").names == ("b",)


def test_a_draft_makes_its_folder(tmp_path: Path) -> None:
    """The folder is made when the draft is kept; one that is loaded and has nothing new leaves its file as it is."""
    path = tmp_path / "state" / "a" / "schemas-own.jsonl"
    draft = SchemaHistory(path, draft=True)
    draft.snapshot(Server9(("a", "int")), at(100))
    assert not path.parent.parent.exists()
    draft.keep()
    size = path.stat().st_size
    again = SchemaHistory(path, draft=True)
    again.seek(at(100))
    again.keep()
    assert path.stat().st_size == size
    assert again.find("d", "t") == draft.find("d", "t")


def test_the_file_is_lines_of_json(tmp_path: Path) -> None:
    """It can be read and repaired by hand; a DDL's text is in it."""
    path = tmp_path / "history"
    history = SchemaHistory(path)
    history.snapshot(Server9(("a", "int")), at(100))
    history.follow(at(200), "d", "DROP TABLE t")
    first, second, third = (json.loads(line) for line in path.read_text().splitlines())
    assert first == {"shmstore_schema_history": 1}
    assert second["kind"] == "snapshot"
    assert third["sql"] == "DROP TABLE t"
    assert third["change"] == [["d", "t", None]]


def test_a_table_with_a_period_that_an_earlier_version_wrote(tmp_path: Path) -> None:
    """It had no mark for a key WITHOUT OVERLAPS, and the implicit row_end behind the period."""
    path = tmp_path / "history"
    history = SchemaHistory(path)
    history.snapshot(Server9(("a", "int"), mariadb=True), at(100))
    create = (
        "CREATE TABLE t (a int, s date, e date, PERIOD FOR p (s, e), PRIMARY KEY (a, p WITHOUT OVERLAPS)) WITH SYSTEM VERSIONING"
    )
    history.follow(at(200), "d", f"CREATE OR REPLACE{create[6:]}")
    head, snapshot, line = path.read_text().splitlines()
    record = json.loads(line)
    table = record["change"][0][2]
    assert (table["key"], table.pop("overlapless"), table.pop("period_begin")) == (["a", "row_end", "e", "s"], True, "")
    table["key"] = ["a", "e", "s", "row_end"]
    path.write_text("\n".join([head, snapshot, json.dumps(record), ""]))
    again = SchemaHistory(path)
    assert again.table("d", "t") == history.table("d", "t")
    again.follow(at(300), "d", "ALTER TABLE t DROP a, DROP PERIOD FOR p")
    assert again.table("d", "t").key == ()


def test_periods_of_a_snapshot() -> None:
    """They come from the definition of a table that has such a constraint; where that is refused or gone, the table is unknown."""
    asked = []

    def definition(mark: str, *parts: str) -> str:
        columns = ("a varchar(9) CHARACTER SET ucs2 DEFAULT \0x(\0' NOT NULL", "s date NOT NULL", "e date NOT NULL")
        return "CREATE TABLE x (\n  " + ",\n  ".join([*columns, *parts]).replace("|", mark) + "\n) ENGINE=InnoDB"

    rows = "PERIOD FOR SYSTEM_TIME (|x|, |y|)"
    definitions = {
        "own": definition("`", "PERIOD FOR |p``p| (|s|, |e|)", "PRIMARY KEY (|a|(2),|p``p| WITHOUT OVERLAPS)", rows),
        "ansi": definition('"', "PERIOD FOR |p`p| (|s|, |e|)", "PRIMARY KEY (|a|,|b|,|p`p| WITHOUT OVERLAPS)", rows),
        "bare": definition("", "PERIOD FOR |p| (|s|, |e|)", "PRIMARY KEY (|a|,|e|,|s|)", rows),
        "checked": definition("`", rows, "CONSTRAINT |p| CHECK (|s| < |e|)"),
    }

    def query(sql: str) -> Sequence[Sequence[Any]]:
        asked.append(sql)
        if "check_constraints" in sql:
            tables = [("d", name, "`s` < `e`") for name in (*definitions, "refused")]
            return [*tables, ("d", "t", "`a` < 5"), ("x", "y", "`s` < `e`")]
        name = sql.rpartition(".")[2].strip("`")
        if name == "refused":
            raise SourceError("SHOW command denied")
        return [(name, definitions[name])]

    found = periods(query, "10.5.23-MariaDB", "d")
    refused = found.pop(("d", "refused"))
    assert isinstance(refused, Unreadable)
    assert found == {
        ("d", "own"): Period(("p`p", "s", "e"), True),
        ("d", "ansi"): Period(("p`p", "s", "e"), True),
        ("d", "bare"): Period(("p", "s", "e"), False),
        ("d", "checked"): Period((), False),
    }
    asked.clear()
    assert periods(query, "10.3.39-MariaDB", None) == {}
    assert not asked


# ---------------------------------------------------------------- what cannot be followed


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t AS SELECT 1 AS a",
        "CREATE TABLE t (b int) SELECT 1 AS a",
        "CREATE TABLE t LIKE unknown_table",
        "ALTER TABLE t CHANGE nope x int",
        "ALTER TABLE t ADD x",
        "ALTER TABLE t MODIFY a int AFTER nope",
        "CREATE TABLE t (a int",
        "RENAME TABLE unknown_table TO t",
        "ALTER TABLE t ADD e enum(0xfc) CHARACTER SET latin1, CONVERT TO CHARACTER SET utf8mb4",
        "ALTER TABLE t ADD e enum(0xffff) CHARACTER SET utf8mb4",
        "ALTER TABLE t ADD e enum(0xfc) CHARACTER SET binary",
    ],
)
def test_a_ddl_that_cannot_be_followed_makes_its_table_unknown(sql: str) -> None:
    """Never a guess: asking for the table is an error with the reason, until a snapshot or a DROP."""
    history = SchemaHistory()
    history.snapshot(Server9(("a", "int")), at(100))
    history.follow(at(200), "d", sql)
    with pytest.raises(SchemaUnknown, match=r"table d\.t: .*new snapshot"):
        history.find("d", "t")
    body = bytes(8) + b"\x01d\0\x01t\0\x01\x03\x00\x01"
    with pytest.raises(SchemaUnknown, match=r"^table d\.t: (?!table)"):
        _ = parse_layout(body, history.find).fields
    history.follow(at(300), "d", "ALTER TABLE t ADD z int")
    with pytest.raises(SchemaUnknown):
        history.find("d", "t")
    history.follow(at(400), "d", "DROP TABLE t")
    history.follow(at(500), "d", "CREATE TABLE t (fresh int)")
    assert history.find("d", "t").names == ("fresh",)


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "(",
        "GRANT ALL ON *.* TO x",
        "CREATE TEMPORARY TABLE t (x int)",
        "DROP TEMPORARY TABLE t",
        "BEGIN",
        "'",
        "`",
        "CREATE DEFINER=`root`@`%` TRIGGER v BEFORE INSERT ON t FOR EACH ROW SET @a = 1",
        "CREATE OR REPLACE SPATIAL REFERENCE SYSTEM 4120 NAME 'x' DEFINITION 'y'",
        "CREATE OR REPLACE UNIQUE INDEX IF NOT EXISTS `on` USING BTREE ON t (a)",
        "CREATE FULLTEXT INDEX i ON t (a) WITH PARSER ngram",
        "OPTIMIZE TABLE t, d.u",
        "REPAIR VIEW v FROM MYSQL",
    ],
)
def test_other_statements_change_nothing(sql: str) -> None:
    """Temporary tables, privileges, and text that is no statement at all."""
    catalog = Catalog()
    catalog.take({("d", "t"): Table((Column("a", "int"),))})
    assert catalog.read(sql, "d") == {}


def test_a_view_changes_no_table() -> None:
    """It is noted, because a CREATE TABLE IF NOT EXISTS makes none where a view has the name; nothing else is reported as changed."""
    history = SchemaHistory()
    history.begin(Position("log.1", 4), {("d", "t"): Table((Column("a", "int"),))})
    before = dict(history.tables)
    assert not history.follow(Position("log.1", 100), "d", "CREATE VIEW v AS SELECT 1")
    assert not history.follow(Position("log.1", 100), "d", "CREATE VIEW v AS SELECT 1")  # as the history has it
    assert not history.follow(Position("log.1", 200), "d", "CREATE TABLE IF NOT EXISTS v (a int)")
    assert not history.follow(Position("log.1", 300), "d", "DROP VIEW v")
    assert dict(history.tables) == before
    assert history.follow(Position("log.1", 400), "d", "CREATE TABLE IF NOT EXISTS v (a int)")


def test_a_dropped_database_takes_its_tables_along() -> None:
    """And one created again starts empty, with its own character set."""
    catalog = Catalog(charset="latin1")
    for sql in (
        "CREATE DATABASE d",
        "CREATE TABLE d.t (a text)",
        "DROP DATABASE d",
        "CREATE SCHEMA d DEFAULT CHARSET gbk",
        "CREATE TABLE d.u (a text)",
    ):
        catalog.take(catalog.read(sql, "x"))
    assert catalog.find("d", "t") is None
    assert catalog.find("d", "u").columns[0].charset == "gbk"


def test_names_that_differ_in_case_only() -> None:
    """With lower_case_table_names they are one table, else two."""
    for fold in (True, False):
        catalog = Catalog(fold_case=fold)
        catalog.take(catalog.read("CREATE TABLE Shop (a int)", "D"))
        assert (catalog.find("d", "shop") is not None) is fold
        assert catalog.find("D", "Shop") is not None


def test_the_character_set_of_a_database_whose_name_differs_in_case() -> None:
    """With lower_case_table_names a database is the same in all cases, its character set and its tables too."""
    catalog = Catalog(charset="utf8mb4", fold_case=True)
    for sql in ("CREATE DATABASE Shop CHARACTER SET latin1", "CREATE TABLE SHOP.t (a text)", "ALTER DATABASE sHOP CHARSET gbk"):
        catalog.take(catalog.read(sql, "x"))
    catalog.take(catalog.read("CREATE TABLE u (a text)", "shop"))
    assert [catalog.find("shop", table).columns[0].charset for table in "tu"] == ["latin1", "gbk"]
    catalog.take(catalog.read("DROP DATABASE SHOP", "x"))
    assert (catalog.tables, catalog.databases) == ({}, {})
    catalog.take(catalog.read("CREATE DATABASE d CHARSET gbk", ""))
    catalog.take(catalog.read("CREATE TABLE d.t (a text)", ""))
    catalog.take(catalog.read("CREATE OR REPLACE DATABASE D CHARSET koi8r", ""))
    assert (catalog.tables, catalog.databases) == ({}, {"d": "koi8r"})


# fmt: off
WORDS = [
    "CREATE", "ALTER", "DROP", "RENAME", "TABLE", "DATABASE", "IF", "NOT", "EXISTS", "ADD", "COLUMN", "MODIFY", "CHANGE",
    "CONVERT", "TO", "CHARACTER", "SET", "CHARSET", "COLLATE", "FIRST", "AFTER", "PRIMARY", "KEY", "CONSTRAINT", "CHECK",
    "PERIOD", "FOR", "SYSTEM", "VERSIONING", "WITH", "LIKE", "SELECT", "int", "enum", "set", "varchar", "text", "unsigned",
    "DEFAULT", "COMMENT", "REFERENCES", "AS", "ROW", "END", "GENERATED", "(", ")", ",", ".", "=", "`", "'", '"', "/*", "*/",
    "/*!", "--", "#", ";", "t", "d", "a", "b", "c", "'x'", '"y"', "`z`", "5", "-1", "x'41'", "utf8mb4", "binary", "latin1_bin",
    "json", "serial", "long", "national", "char", "byte", "decimal(5,2)", "datetime(3)", "enum('a','b')", "(a)", "(a,b)",
]
# fmt: on


@settings(max_examples=3000)
@given(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join) | st.text(max_size=60))
def test_any_text_is_read_without_another_error(sql: str) -> None:
    """Nonsense changes nothing or makes its table unreadable; it never raises."""
    catalog = Catalog()
    catalog.take(
        {("d", "t"): Table((Column("a", "int"), Column("b", "enum", charset="latin1", members=("x",))), ("a",), "latin1")}
    )
    for text in (sql, f"ALTER TABLE t {sql}", f"CREATE TABLE u ({sql})"):
        catalog.take(catalog.read(text, "d"))
    assert all(isinstance(now, (Table, Unreadable)) for now in catalog.tables.values())


@pytest.mark.server
def test_types_that_travel_as_binary_are_told_by_a_real_history(mariadb: Server) -> None:
    """UUID and INET come as text with FULL metadata too, created before the snapshot or after it."""
    with database_of(mariadb, "told") as (connection, log):
        run(connection, "CREATE TABLE t (u uuid, b binary(16))")
        history = SchemaHistory()
        history.snapshot(query_of(connection), Position(*log._place()))
        log.decoder = reference(history)
        create = "CREATE TABLE told.v (i inet6, j inet4)"
        run(connection, create)
        history.follow(Position(*log._place()), "told", create)
        log.skip()
        run(
            connection,
            "INSERT INTO t VALUES ('123e4567-e89b-12d3-a456-426655440000', 'x')",
            "INSERT INTO v VALUES ('::1', '1.2.3.4')",
        )
        first, second = log.seen()
        assert first.rows[0].after == ("123e4567-e89b-12d3-a456-426655440000", b"x".ljust(16, b"\0"))
        assert [column.type for column in first.schema.columns + second.schema.columns] == ["uuid", "binary", "inet6", "inet4"]
        assert second.rows[0].after == ("::1", "1.2.3.4")


@pytest.mark.parametrize(
    ("column_type", "column"),
    [
        ("int(10) unsigned", Column("c", "int", True)),
        ("decimal(5,2) unsigned zerofill", Column("c", "decimal", True, scale=2)),
        (
            "enum('it''s','\\\\','a,b',' x','nl\\n','ü','x''y\\\\''z')",
            Column("c", "enum", members=("it's", "\\", "a,b", " x", "nl\n", "ü", "x'y\\'z")),
        ),
        ("datetime(3)", Column("c", "datetime", scale=3)),
        ("varchar(20) /*M!100301 COMPRESSED*/", Column("c", "varchar")),
        ("uuid", Column("c", "uuid")),
    ],
)
def test_column_types_of_information_schema(column_type: str, column: Column) -> None:
    """COLUMN_TYPE as the servers write it."""
    found = column_of_type("c", column_type)
    assert found._replace(definition="") == column
    if not column.members:  # theirs have the escapes undone
        assert found.definition == column_type.partition(" /*")[0]
