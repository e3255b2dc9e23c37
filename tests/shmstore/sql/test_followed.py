"""Statements that servers take in a way of their own: what random statements on servers found."""

from __future__ import annotations

import pytest

from shmstore.sql.catalog import Catalog, Unreadable
from shmstore.sql.session import Session
from shmstore.sql.table_change import Table

ANSI, PLAIN_BACKSLASH, ORACLE = 1 << 2, 1 << 20, 1 << 9


def followed(*statements: str | tuple[str, Session], mariadb: bool = True) -> Catalog:
    """The tables of database d, of latin1, after statements."""
    catalog = Catalog(mariadb=mariadb)
    catalog.take({("d", ""): "latin1"})
    for sql in statements:
        catalog.take(catalog.read(*((sql, "d") if isinstance(sql, str) else (sql[0], "d", sql[1]))))
    return catalog


def table(*statements: str | tuple[str, Session], mariadb: bool = True) -> Table:
    found = followed(*statements, mariadb=mariadb).find("d", "t")
    assert isinstance(found, Table), found
    return found


def types(found: Table) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in found.columns]


@pytest.mark.parametrize("mariadb", [False, True])
@pytest.mark.parametrize(
    "view",
    [
        "CREATE VIEW t AS SELECT 1",
        "CREATE ALGORITHM=UNDEFINED DEFINER=`root`@`127.0.0.1` SQL SECURITY DEFINER VIEW `t` AS SELECT 1 AS a",
        "CREATE OR REPLACE DEFINER=`view`@`%` VIEW d.t AS SELECT 1",
    ],
)
def test_a_table_that_a_view_keeps_from_being_made(view: str, mariadb: bool) -> None:
    """IF NOT EXISTS makes none where a view has the name, and is logged all the same; the view may move away first."""
    attempt = "CREATE TABLE IF NOT EXISTS t (a int)"
    assert followed(view, attempt, mariadb=mariadb).find("d", "t") is None
    later = "CREATE TABLE IF NOT EXISTS t (b text)"
    for gone in ("DROP VIEW t", "DROP VIEW IF EXISTS x, d.t", "RENAME TABLE t TO v", "DROP DATABASE d"):
        assert types(
            table(view, attempt, gone, later, mariadb=mariadb) if gone[:6] != "DROP D" else table(view, gone, later)
        ) == [("b", "text")]
    moved = followed("CREATE VIEW v AS SELECT 1", "RENAME TABLE v TO t", attempt, mariadb=mariadb)
    assert moved.find("d", "t") is None
    assert types(table(view, "CREATE OR REPLACE DATABASE d", later)) == [("b", "text")]


def test_other_objects_with_a_definer_are_no_views() -> None:
    """The word VIEW in a routine says nothing."""
    routine = "CREATE DEFINER=`root`@`%` PROCEDURE p() CREATE VIEW t AS SELECT 1"
    assert types(table(routine, "CREATE TABLE IF NOT EXISTS t (a int)")) == [("a", "int")]


@pytest.mark.parametrize(
    "definition",
    ["a date", "a real", "a timestamp", "a blob", r"a enum('x\\y')", 'a enum("x")'],
)
def test_a_mode_of_one_statement(definition: str) -> None:
    """MariaDB reads SET STATEMENT sql_mode in the mode from before, and logs the new one: where it makes a difference, the table is unknown."""
    for mode in (0, ANSI, PLAIN_BACKSLASH, ORACLE):
        sql = f"SET STATEMENT lock_wait_timeout = 5, sql_mode = 'X' FOR CREATE TABLE t ({definition}, b int)"
        found = followed((sql, Session(mode))).find("d", "t")
        assert isinstance(found, Unreadable)
        assert "in which sql_mode it was read" in found.reason


def test_a_mode_that_makes_no_difference() -> None:
    """Then the table is known; as it is for other settings of a statement."""
    assert types(table("SET STATEMENT sql_mode = CONCAT('A', 'FOR') FOR CREATE TABLE t (a int, b text)")) == [
        ("a", "int"),
        ("b", "text"),
    ]
    assert types(table("SET STATEMENT lock_wait_timeout = 5 FOR CREATE TABLE t (a date /* sql_mode */)")) == [("a", "date")]


@pytest.mark.parametrize("mariadb", [False, True])
def test_backslashes_of_what_a_server_writes(mariadb: bool) -> None:
    """It escapes them in every mode. A client that does not may have sent the same text: the table is unknown."""
    sql = "CREATE TABLE `t` (\n  `e` enum('a\\\\b','c') DEFAULT NULL\n)"
    assert isinstance(followed((sql, Session(PLAIN_BACKSLASH, rewritten=True)), mariadb=mariadb).find("d", "t"), Unreadable)
    assert table((sql, Session(0, rewritten=True)), mariadb=mariadb).columns[0].members == ("a\\b", "c")
    assert table((sql, Session(PLAIN_BACKSLASH)), mariadb=mariadb).columns[0].members == ("a\\\\b", "c")
    plain = "CREATE TABLE `t` (\n  `e` int COMMENT 'a\\\\b'\n)"
    assert types(table((plain, Session(PLAIN_BACKSLASH, rewritten=True)), mariadb=mariadb)) == [("e", "int")]


@pytest.mark.parametrize("mariadb", [False, True])
def test_a_table_like_a_temporary_one(mariadb: bool) -> None:
    """Both servers leave out its default character set: text that names none is unknown, and so is the table's default."""
    session = Session(temporary=True, rewritten=True)
    sql = "CREATE TABLE `t` (\n  `a` int,\n  `e` text CHARACTER SET ucs2\n) ENGINE=InnoDB"
    assert table((sql, session), mariadb=mariadb).charset == ""
    assert isinstance(followed((sql, session), "ALTER TABLE t ADD x text", mariadb=mariadb).find("d", "t"), Unreadable)
    sql = "CREATE TABLE `t` (\n  `a` int,\n  `e` text\n) ENGINE=InnoDB"
    assert isinstance(followed((sql, session), mariadb=mariadb).find("d", "t"), Unreadable)
    assert table((sql, session._replace(temporary=False)), mariadb=mariadb).charset == "latin1"


def test_a_table_like_one_whose_name_a_temporary_one_has() -> None:
    """MariaDB logs both as they came where the format is MIXED; the mark of the second is that of every OR REPLACE."""
    create = "CREATE TABLE u (a int)", "CREATE TEMPORARY TABLE u (b int)"
    session = Session(temporary=True)
    found = followed(*create, ("CREATE OR REPLACE TABLE t LIKE u", session))
    assert isinstance(found.find("d", "t"), Unreadable)
    found = followed(*create, "DROP TEMPORARY TABLE u", ("CREATE OR REPLACE TABLE t LIKE u", session))
    assert types(found.tables["d", "t"]) == [("a", "int")]  # type: ignore[arg-type]


@pytest.mark.parametrize("other", ["swe7", "sjis", "ujis", "ucs2"])
def test_members_of_character_sets_unlike_ascii(other: str) -> None:
    """Where a backslash or a bracket is another character, members that are converted become others."""
    for first, second in (("latin1", other), (other, "latin1")):
        sql = f"CREATE TABLE t (a enum('x[', 'c\\\\d') CHARSET {first})"
        assert isinstance(followed(sql, f"ALTER TABLE t CONVERT TO CHARSET {second}").find("d", "t"), Unreadable)


def test_periods_that_may_be_there() -> None:
    """IF EXISTS and IF NOT EXISTS come before FOR."""
    create = "CREATE TABLE t (a int, b date, c date, PERIOD FOR p (b, c))"
    assert table(create, "ALTER TABLE t ADD PERIOD IF NOT EXISTS FOR p (c, b)").period == ("p", "b", "c")
    assert table(create, "ALTER TABLE t DROP PERIOD IF EXISTS FOR p").period == ()
    assert table("CREATE TABLE t (b date, c date)", "ALTER TABLE t ADD PERIOD IF NOT EXISTS FOR p (b, c)").period == (
        "p",
        "b",
        "c",
    )
    assert types(table(create, "ALTER TABLE t ADD `period` int", "ALTER TABLE t DROP period, ADD COLUMN period int"))[-1] == (
        "period",
        "int",
    )


def test_a_column_that_an_earlier_part_names() -> None:
    """IF NOT EXISTS asks for names from before the statement, and for those that earlier parts define; not for RENAME COLUMN."""
    create = "CREATE TABLE t (a int, b int)"
    assert types(table(create, "ALTER TABLE t CHANGE a C int, ADD COLUMN IF NOT EXISTS c text")) == [("C", "int"), ("b", "int")]
    assert types(table(create, "ALTER TABLE t ADD COLUMN IF NOT EXISTS c text, ADD IF NOT EXISTS C int"))[2:] == [("c", "text")]


@pytest.mark.parametrize("length", [1, 200, 255, 256])
def test_text_with_a_length_that_is_converted(length: int) -> None:
    """The length counted characters of the old set: what it says of the width is not kept."""
    create = f"CREATE TABLE t (a text({length}) CHARSET utf16)"
    before = table(create).columns[0]
    after = table(create, "ALTER TABLE t CONVERT TO CHARSET latin1").columns[0]
    assert "(" not in after.definition
    assert before.type in ("tinytext", "text")
    assert after.type in ("tinytext", before.type)


WIDTHS = [  # the column before, what it becomes, and its type after CONVERT TO dec8 and CONVERT TO utf32, as MySQL 9.7 does it
    ("tinytext charset latin1", "mediumtext", "tinytext", "text"),
    ("text charset latin1", "mediumtext", "text", "mediumtext"),
    ("mediumtext charset latin1", "text charset latin1", "mediumtext", "longtext"),
    ("tinytext charset utf8mb4", "text", "tinytext", "tinytext"),
    ("text charset utf8mb4", "longtext", "longtext", "longtext"),
    ("tinytext charset latin1", "longblob", "longblob", "longblob"),
    ("varchar(70) charset latin1", "mediumtext", "tinytext", "text"),
    ("char(70) charset utf8mb4", "text", "tinytext", "tinytext"),
    ("varchar(300) charset latin1", "tinyblob", "blob", "blob"),
    ("varbinary(300)", "tinytext", "text", "text"),
    ("varchar(30000) charset sjis", "text", "text", "text"),
    ("tinyblob", "mediumtext", "tinytext", "text"),
    ("blob", "tinytext", "text", "mediumtext"),
    ("tinytext charset latin1", "mediumtext byte", "tinyblob", "tinyblob"),
    ("longtext charset utf8mb4", "tinytext charset binary", "longblob", "longblob"),
    ("blob(3)", "blob", "tinyblob", "tinyblob"),
    ("mediumtext charset latin1", "blob", "mediumblob", "mediumblob"),
    ("longblob", "text(300)", "text", "text"),
    ("longtext charset latin1", "text(3)", "tinytext", "tinytext"),
    ("blob", "blob(300)", "blob", "blob"),
    ("tinytext charset latin1", "varchar(70000)", "mediumtext", "mediumtext"),
]


@pytest.mark.parametrize(("before", "given", "dec8", "utf32"), WIDTHS)
def test_a_text_that_is_converted_and_defined_at_once(before: str, given: str, dec8: str, utf32: str) -> None:
    """MySQL gives a TEXT or BLOB without a length the width that holds what the column held; MariaDB the one that is written."""
    create = f"CREATE TABLE t (a {before})"
    for charset, wanted in (("dec8", dec8), ("utf32", utf32)):
        alter = f"ALTER TABLE t MODIFY a {given}, CONVERT TO CHARACTER SET {charset}"
        assert types(table(create, alter, mariadb=False)) == [("a", wanted)]
    assert types(table(create, "ALTER TABLE t MODIFY a mediumtext byte, CONVERT TO CHARSET dec8")) == [("a", "mediumblob")]


@pytest.mark.parametrize(
    ("length", "charset", "mysql"),
    [(17000, "latin1", "mediumtext"), (17000, "sjis", "text"), (20000, "utf8mb3", "text"), (16000, "latin1", "varchar")],
)
def test_a_varchar_that_no_longer_fits(length: int, charset: str, mysql: str) -> None:
    """MySQL makes a TEXT of the characters divided by the bytes of one, MariaDB one that holds them all."""
    sql = f"CREATE TABLE t (a varchar({length}) charset {charset})", "ALTER TABLE t CONVERT TO CHARSET utf32"
    assert types(table(*sql, mariadb=False)) == [("a", mysql)]
    assert types(table(*sql)) == [("a", "varchar" if mysql == "varchar" else "mediumtext")]


def test_columns_of_a_period_that_are_dropped_without_it() -> None:
    """A table that keeps its versions keeps them where they are, as two that no SELECT * shows; the next ALTER puts them last."""
    create = (
        "CREATE TABLE t (a int PRIMARY KEY, rs timestamp(6) GENERATED ALWAYS AS ROW START, re timestamp(6) GENERATED ALWAYS AS ROW END, "
        "PERIOD FOR SYSTEM_TIME (rs, re)) WITH SYSTEM VERSIONING"
    )
    found = table(create, "ALTER TABLE t DROP COLUMN IF EXISTS re, DROP rs, ADD b int")
    assert [column.name for column in found.columns] == ["a", "row_start", "row_end", "b"]
    assert [column.name for column in found.shown] == ["a", "b"]
    assert (found.key, found.versioned, found.period_end) == (("a", "row_end"), True, "")
    for parts in ("DROP re, DROP rs, DROP SYSTEM VERSIONING", "DROP SYSTEM VERSIONING, DROP COLUMN rs, DROP re"):
        found = table(create, f"ALTER TABLE t {parts}")
        assert ([column.name for column in found.columns], found.key, found.versioned) == (["a"], ("a",), False)


SCATTERED = [
    "CREATE TABLE t (re timestamp(6) AS ROW END, b int, rs timestamp(6) AS ROW START, c int, PERIOD FOR SYSTEM_TIME (rs, re)) WITH SYSTEM VERSIONING",
    "ALTER TABLE t DROP COLUMN rs, DROP re",
]


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("ALTER TABLE t DISABLE KEYS, ALGORITHM = COPY", "row_end b row_start c"),
        ("ALTER TABLE t ANALYZE PARTITION p", "row_end b row_start c"),
        ("RENAME TABLE t TO u, u TO t", "row_end b row_start c"),
        ("ALTER TABLE t COMMENT 'x'", "b c row_end row_start"),
        ("CREATE UNIQUE INDEX i ON t (b)", "b c row_end row_start"),
        ("DROP INDEX i ON t", "b c row_end row_start"),
        ("ALTER TABLE t DROP SYSTEM VERSIONING", "b c"),
        ("ALTER TABLE t ADD IF NOT EXISTS b int", ""),
        ("ALTER TABLE t DROP CONSTRAINT IF EXISTS i", ""),
        ("CREATE INDEX IF NOT EXISTS i ON t (b)", ""),
        ("DROP INDEX IF EXISTS i ON t", ""),
        ("OPTIMIZE TABLE t", ""),
        ("REPAIR LOCAL TABLE x, t QUICK", ""),
    ],
)
def test_columns_of_a_period_between_others(statement: str, names: str) -> None:
    """They get behind all others where the server makes the table again; where only the server knows whether it does, it is unknown."""
    found = followed(*SCATTERED, statement).find("d", "t")
    assert isinstance(found, Table) if names else isinstance(found, Unreadable)
    if isinstance(found, Table):
        assert " ".join([column.name for column in found.columns]) == names


def test_a_column_that_stands_for_one_that_goes() -> None:
    """MariaDB takes CHANGE and MODIFY of a column that goes, or has another CHANGE, for that of a new one of the same name: in keys, too."""
    create = "CREATE TABLE t (a int, b int, PRIMARY KEY (a))"
    found = table(create, "ALTER TABLE t ADD x int, ADD y int, CHANGE a x bigint FIRST, DROP a")
    assert (types(found), found.key) == ([("x", "bigint"), ("b", "int"), ("y", "int")], ("x",))
    found = table(create, "ALTER TABLE t DROP a, ADD a int, MODIFY a text")
    assert (types(found), found.key) == ([("b", "int"), ("a", "text")], ("a",))
    versioned = "CREATE TABLE t (a int) WITH SYSTEM VERSIONING"
    found = table(versioned, "ALTER TABLE t ADD x int, ADD y int, DROP SYSTEM VERSIONING, CHANGE row_start x tinyint FIRST")
    assert types(found) == [("x", "tinyint"), ("a", "int"), ("y", "int")]


def test_what_versions_of_mariadb_do_in_other_ways() -> None:
    """DEFAULT of a database, and what new columns get where CONVERT TO meets a COLLATE: where versions differ, it is unknown."""
    session = Session(server="koi8r")
    found = followed(
        ("ALTER DATABASE d CHARACTER SET DEFAULT", session), "CREATE TABLE t (a text)", "CREATE TABLE u (a text CHARSET gbk)"
    )
    assert isinstance(found.find("d", "t"), Unreadable)
    assert isinstance(found.find("d", "u"), Table)
    assert (
        table(("ALTER DATABASE d CHARACTER SET DEFAULT", Session(server="latin1")), "CREATE TABLE t (a text)").charset == "latin1"
    )
    assert table(("ALTER DATABASE d CHARSET gbk", session), "CREATE TABLE t (a text)").charset == "gbk"
    assert table(("ALTER DATABASE d COLLATE DEFAULT", session), "CREATE TABLE t (a text)").charset == "latin1"
    catalog = followed("CREATE TABLE t (a text)", "CREATE DATABASE e CHARSET gbk")
    catalog.take(catalog.read("ALTER TABLE t CONVERT TO CHARSET DEFAULT", "d"))
    assert isinstance(catalog.find("d", "t"), Table)
    catalog.take(catalog.read("ALTER TABLE d.t CONVERT TO CHARSET DEFAULT", "e"))
    assert isinstance(catalog.find("d", "t"), Unreadable)
    both = followed("CREATE TABLE t (b int)", "ALTER TABLE t ADD a text, CONVERT TO CHARSET ucs2, COLLATE = cp932_bin")
    assert isinstance(both.find("d", "t"), Unreadable)


CONVERT = "ALTER TABLE d.t CONVERT TO CHARSET DEFAULT"


@pytest.mark.parametrize("mariadb", [False, True])
@pytest.mark.parametrize(
    "before",
    [
        "ALTER DATABASE d CHARSET gbk",  # by another session, after this one chose the database
        "DROP DATABASE d; CREATE DATABASE d CHARSET gbk; CREATE TABLE t (a text CHARSET koi8r)",
    ],
)
def test_default_is_what_a_session_noted_for_its_database(before: str, mariadb: bool) -> None:
    """CONVERT TO CHARSET DEFAULT is followed where the log shows what the session noted: not where a database had another one before."""
    create = "CREATE TABLE t (a text CHARSET koi8r)"
    assert table(create, CONVERT, mariadb=mariadb).charset == "latin1"
    again = ["DROP DATABASE d", "CREATE DATABASE d CHARSET latin1", "CREATE TABLE t (a text CHARSET koi8r)"]
    assert table(*again, CONVERT, mariadb=mariadb).charset == "latin1"
    found = followed(create, *before.split("; "), CONVERT, mariadb=mariadb).find("d", "t")
    assert isinstance(found, Unreadable)
    assert "the character set of its database is not known" in found.reason


@pytest.mark.parametrize("mariadb", [False, True])
def test_default_without_a_database(mariadb: bool) -> None:
    """It is the server's when the session began or lost its database, which the log does not have; nor whether one of SET was in force."""
    for database, session in (("", Session(server="gbk")), ("", Session()), ("d", Session(database="gbk")), ("e", Session())):
        catalog = followed("CREATE TABLE t (a text CHARSET koi8r)", mariadb=mariadb)
        catalog.take(catalog.read(CONVERT, database, session))
        assert isinstance(catalog.find("d", "t"), Unreadable), (database, session)
    assert table("CREATE TABLE t (a text)", (CONVERT, Session(database="latin1")), mariadb=mariadb).charset == "latin1"


def test_a_column_of_a_quoted_schema_s_type() -> None:
    """PERIOD and VECTOR may begin a key: not before the schema of a type."""
    found = table("CREATE TABLE t (vector `mariadb_schema`.DATE, period `mariadb_schema`.DATE, VECTOR `i` (x))")
    assert types(found) == [("vector", "date"), ("period", "date")]


@pytest.mark.parametrize(
    ("definition", "type_", "charset"),
    [
        ("char(3) DEFAULT 'x' COLLATE latin1_bin NOT NULL COLLATE utf8mb4_bin", "char", "utf8mb4"),  # MariaDB 10.5: the last one
        ("enum('x') DEFAULT 'x' COLLATE 'binary' COLLATE koi8r_bin", "enum", "koi8r"),
        ("varbinary(9) COLLATE latin2_bin", "varchar", "latin2"),
        ("blob(10) NOT NULL COLLATE utf32_bin", "tinytext", "utf32"),
        ("varbinary(60000) COLLATE utf8mb4_bin", "mediumtext", "utf8mb4"),
        ("blob COLLATE 'binary'", "blob", ""),
        ("json COLLATE koi8r_bin", "longtext", "koi8r"),
        ("json", "longtext", "utf8mb4"),
        ("year(4) unsigned zerofill", "year", ""),
        ("date DEFAULT {d '2020-01-01'}", "date", ""),
    ],
)
def test_definitions_of_columns(definition: str, type_: str, charset: str) -> None:
    (column,) = table(f"CREATE TABLE t (a {definition})").columns
    assert (column.type, column.charset, column.unsigned) == (type_, charset, False)


PERIOD = "s date, e date, PERIOD FOR p (s, e)"
ROWS = (
    "ADD rs timestamp(6) AS ROW START, ADD re timestamp(6) AS ROW END, ADD PERIOD FOR SYSTEM_TIME (rs, re), ADD SYSTEM VERSIONING"
)


@pytest.mark.parametrize(
    ("statements", "key"),
    [
        ([f"CREATE TABLE t (a int, b int, {PERIOD}, PRIMARY KEY (a, p WITHOUT OVERLAPS))", f"ALTER TABLE t {ROWS}"], "a re e s"),
        ([f"CREATE TABLE t (a int, {PERIOD}, PRIMARY KEY (a, p WITHOUT OVERLAPS))", "ALTER TABLE t DROP a"], ""),
        (
            [
                f"CREATE TABLE t (a int, {PERIOD}, PRIMARY KEY (e))",
                f"ALTER TABLE t {ROWS}",
                "ALTER TABLE t DROP SYSTEM VERSIONING, DROP rs, DROP re",
            ],
            "e",
        ),
        (
            [
                f"CREATE TABLE t (a int, z date, {PERIOD}, PRIMARY KEY (a, p WITHOUT OVERLAPS))",
                "ALTER TABLE t CHANGE s x date, CHANGE z s date",
            ],
            "a e s",
        ),
        (
            [f"CREATE TABLE t (a int, {PERIOD}, PRIMARY KEY (a, p WITHOUT OVERLAPS))", "ALTER TABLE t RENAME COLUMN s TO x"],
            "a e x",
        ),
        ([f"CREATE TABLE t (a int, {PERIOD}, PRIMARY KEY (a, s))", "ALTER TABLE t CHANGE s x date, ADD s date"], "a x"),
        (
            [f"CREATE TABLE t (a int, {PERIOD}, PRIMARY KEY (a, p WITHOUT OVERLAPS))", "ALTER TABLE t DROP PERIOD FOR p, DROP a"],
            "",
        ),
        (
            [
                f"CREATE TABLE t (a int, f date, u date, {PERIOD}, PRIMARY KEY (a, p WITHOUT OVERLAPS))",
                "ALTER TABLE t DROP PERIOD FOR p, ADD PERIOD FOR p (f, u)",
            ],
            "a u f",
        ),
        (
            [
                f"CREATE TABLE t (a int, f date, u date, {PERIOD}, PRIMARY KEY (a, e, s))",
                "ALTER TABLE t DROP PERIOD FOR p, ADD PERIOD FOR p (f, u)",
            ],
            "a e s",
        ),
        (
            [
                f"CREATE TABLE t (a int, {PERIOD})",
                f"ALTER TABLE t {ROWS}",
                "ALTER TABLE t ADD PRIMARY KEY (re, p WITHOUT OVERLAPS)",
                "ALTER TABLE t MODIFY a bigint",
            ],
            "re e s",
        ),
        ([f"CREATE TABLE t (a int, {PERIOD})", f"ALTER TABLE t {ROWS}, ADD PRIMARY KEY (rs, p WITHOUT OVERLAPS)"], "rs e s"),
        ([f"CREATE TABLE t (a int, {PERIOD}, PRIMARY KEY (a, p WITHOUT OVERLAPS)) WITH SYSTEM VERSIONING"], "a row_end e s"),
        (["CREATE TABLE t (a int, b int)", "ALTER TABLE t CHANGE IF EXISTS nope b int PRIMARY KEY"], "b"),
        (["CREATE TABLE t (a int PRIMARY KEY, b int)", "ALTER TABLE t CHANGE IF EXISTS nope b int PRIMARY KEY"], "a"),
    ],
)
def test_keys_of_periods_and_of_columns_that_are_left_out(statements: list[str], key: str) -> None:
    """As MariaDB 10.5 to 11.8 have them."""
    assert table(*statements).key == tuple(key.split())


@pytest.mark.parametrize(
    ("client", "literals", "readable"),
    [
        ("binary", "binary", True),
        ("binary", "utf8mb4", True),
        ("binary", "latin1", False),  # the server takes the client's bytes for latin1
        ("latin1", "binary", False),  # or keeps bytes of latin1
        ("latin1", "koi8r", True),
    ],
)
def test_members_of_a_client_that_sends_bytes(client: str, literals: str, readable: bool) -> None:
    """They are not converted, so that their text is known only where both are UTF-8."""
    session = Session(client=client, literals=literals)
    found = followed(("CREATE TABLE t (a enum('ж', 'x'), b enum('y'))", session)).find("d", "t")
    assert isinstance(found, Table if readable else Unreadable)
    assert isinstance(followed(("CREATE TABLE t (b enum('y'))", session)).find("d", "t"), Table)
