"""A DDL that cannot be read is never "nothing happened": its table, or all tables of its databases, are unknown from there."""

from __future__ import annotations

import pytest

from shmstore.event import Column
from shmstore.sql.catalog import Catalog, Unreadable
from shmstore.sql.session import Session
from shmstore.sql.table_change import Table

INT = Column("a", "int")


def catalog_of(*names: tuple[str, str], mariadb: bool = True) -> Catalog:
    catalog = Catalog(mariadb=mariadb)
    for database, table in names:
        catalog.take({(database, ""): "utf8mb4", (database, table): Table((INT,))})
    return catalog


def unknown(catalog: Catalog, *names: tuple[str, str]) -> bool:
    return all(isinstance(catalog.find(*name), Unreadable) for name in names)


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE * MODIFY a text",
        "ALTER NEW TABLE t ADD b int",
        "CREATE NEW TABLE t (a int)",
        "RENAME TABLE t INTO u",
        "RENAME TABLE t AS u, v TO w",
        "DROP TABLE t u v (",
        "DROP NEW TABLE t",
        "ALTER TABLE (t) ADD b int",
    ],
)
def test_a_statement_without_readable_tables_makes_its_database_unknown(sql: str) -> None:
    """Those of the default database and of each that it names; with the statement as the reason, and for tables created later, too."""
    catalog = catalog_of(("d", "t"), ("e", "t"), ("f", "t"))
    catalog.take(catalog.read(sql, "d"))
    assert unknown(catalog, ("d", "t"), ("d", "never seen"))
    found = catalog.find("d", "t")
    assert isinstance(found, Unreadable)
    assert sql in found.reason
    assert catalog.find("e", "t") == Table((INT,))
    catalog.take(catalog.read("CREATE TABLE IF NOT EXISTS x (b int)", "d"))  # it may be there already
    catalog.take(catalog.read("CREATE TABLE y LIKE t", "d"))
    assert unknown(catalog, ("d", "x"), ("d", "y"))
    catalog.take(catalog.read("CREATE TABLE t (b int)", "d"))  # this one says all
    assert isinstance(catalog.find("d", "t"), Table)
    catalog.take(catalog.read("DROP DATABASE d", "d"))
    assert catalog.find("d", "t") is None
    catalog.take(catalog.read(f"{sql} , e . t", "f"))
    assert unknown(catalog, ("e", "t"), ("f", "t"))


@pytest.mark.parametrize(
    "part",
    [
        "ADD b NEWTYPE",
        "ADD b int NEW WORD",
        "MODIFY a int STRANGE FIRST",
        "FROB a",
        "ADD b int, FROB",
        "ALTER a SET STRANGE",
        "STRANGE 5",
        "ADD (b int STRANGE)",
        "ADD b int DEFAULT DEFAULT DEFAULT",
        "RENAME COLUMN a b",
        "COLLATE latin1_bin STRANGE",
        "ADD x int, MODIFY a int, CHANGE a x text",  # MariaDB takes the CHANGE for x's
        "RENAME COLUMN a TO x, MODIFY a int",
    ],
)
def test_a_part_that_is_not_known_makes_the_table_unknown(part: str) -> None:
    """No word of a definition is passed over; other tables stay as they are."""
    catalog = catalog_of(("d", "t"), ("d", "u"))
    catalog.take(catalog.read(f"ALTER TABLE t {part}", "d"))
    assert unknown(catalog, ("d", "t"))
    assert catalog.find("d", "u") == Table((INT,))
    catalog.take(catalog.read(f"ALTER TABLE u {part}, RENAME TO d.v", "d"))
    assert unknown(catalog, ("d", "v"))
    assert catalog.find("d", "u") is None or unknown(catalog, ("d", "u"))


@pytest.mark.parametrize(
    "sql", ["CREATE TABLE n (a int STRANGE)", "CREATE TABLE n (a int) STRANGE", "CREATE TABLE n (a int) AS SELECT 1"]
)
def test_a_table_created_by_an_unreadable_statement_is_unknown(sql: str) -> None:
    """Alone."""
    catalog = catalog_of(("d", "t"))
    catalog.take(catalog.read(sql, "d"))
    assert unknown(catalog, ("d", "n"))
    assert catalog.find("d", "t") == Table((INT,))


def test_what_decides_a_character_set_may_be_unknown() -> None:
    """A database with an option that is not known: its next tables with text that names none are unknown."""
    catalog = catalog_of(("d", "t"))
    catalog.take(catalog.read("ALTER DATABASE d STRANGE", "d"))
    for sql in ("CREATE TABLE a (x text)", "CREATE TABLE b (x int, y text CHARSET gbk)", "CREATE TABLE c (x text) CHARSET gbk"):
        catalog.take(catalog.read(sql, "d"))
    assert unknown(catalog, ("d", "a"))
    assert [isinstance(catalog.find("d", name), Table) for name in "tbc"] == [True, True, True]


def test_a_statement_about_a_temporary_table_changes_no_other() -> None:
    """MariaDB logs them where the format is not ROW, with a flag; CONNECTION_ID() sets the same flag."""
    catalog = catalog_of(("d", "t"))
    session = Session(temporary=True)
    for sql in ("ALTER TABLE t ADD b int", "RENAME TABLE t TO u", "DROP INDEX `PRIMARY` ON t"):
        assert catalog.read(sql, "d", session) == {}
    catalog.take(catalog.read("ALTER TABLE t ADD b int DEFAULT (connection_id())", "d", session))
    assert unknown(catalog, ("d", "t"))
    catalog.take(catalog.read("CREATE TABLE u (a int DEFAULT (connection_id()))", "d", session))
    assert isinstance(catalog.find("d", "u"), Table)
    catalog = catalog_of(("d", "t"), ("d", "u"))
    catalog.take(catalog.read("CREATE TEMPORARY TABLE t (x int)", "d"))
    catalog.take(catalog.read("RENAME TABLE t TO x, u TO t", "d"))  # which is logged without the flag
    assert unknown(catalog, ("d", "t"), ("d", "x"))
    mysql = catalog_of(("d", "t"), mariadb=False)
    assert mysql.read("ALTER TABLE t ADD b int", "d", session) != {}
