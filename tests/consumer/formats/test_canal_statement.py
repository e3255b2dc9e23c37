"""shmstore.consumer.formats.canal_statement: what Canal makes of a statement, as its own server did with these."""

from __future__ import annotations

import pytest

from shmstore.consumer.formats.canal_statement import canal_statement
from shmstore.event import EventType


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE VIEW v AS SELECT 1",
        "CREATE DEFINER=`root`@`127.0.0.1` TRIGGER tr BEFORE INSERT ON u FOR EACH ROW SET NEW.b = 1",
        "CREATE PROCEDURE database() SELECT 1",
        "DROP VIEW v",
        "ALTER DATABASE d CHARACTER SET latin1",
        "ANALYZE TABLE u",
        "FLUSH TABLES",
        "GRANT SELECT ON d.* TO u",
        "CREATE",
    ],
)
def test_what_is_about_no_table_is_not_sent(sql: str) -> None:
    assert canal_statement(EventType.QUERY, sql, "d", {}) is None


@pytest.mark.parametrize(
    "sql", ["CREATE DATABASE x", "create or replace schema x", "DROP DATABASE IF EXISTS x", "/* c */ drop schema x"]
)
def test_databases(sql: str) -> None:
    """CREATE and DROP DATABASE are DDLs to applications, though their type is QUERY; no filter holds them back."""
    assert canal_statement(EventType.QUERY, sql, "x", {}) == (EventType.QUERY, "x", "", True, ())


def test_rename() -> None:
    """The header has the new name; filters see the old ones and the new ones."""
    props = {"table": "a", "tables": "d.a,d.b", "to_table": "e.x,d.y"}
    found = canal_statement(EventType.RENAME, "RENAME TABLE a TO e.x, b TO y", "d", props)
    assert found == (EventType.RENAME, "e", "x", True, ("d.a", "d.b", "e.x", "d.y"))


def test_a_filter_sees_every_table_of_a_drop() -> None:
    found = canal_statement(EventType.ERASE, "DROP TABLE a, b", "d", {"table": "a", "tables": "d.a,d.b"})
    assert found == (EventType.ERASE, "d", "a", True, ("d.a", "d.b"))


def test_logged_changes() -> None:
    """Their type is by the verb, whichever way a store has it; one whose table is not known is not filtered."""
    for type_, props in ((EventType.QUERY, {"change": "delete"}), (EventType.DELETE, {})):
        found = canal_statement(type_, "DELETE FROM t", "d", props | {"table": "t"})
        assert found == (EventType.DELETE, "d", "t", False, ("d.t",))
    assert canal_statement(EventType.QUERY, "UPDATE a, b SET a.x = 1", "d", {"change": "update"}) == (
        *(EventType.UPDATE, "d", "", False),
        (),
    )
    joined = {"change": "update", "table": "a", "tables": "d.a,o.b"}
    assert canal_statement(EventType.QUERY, "UPDATE a, o.b SET a.x = 1", "d", joined) == (
        EventType.UPDATE,
        "d",
        "a",
        False,
        ("d.a", "o.b"),
    )
    assert canal_statement(EventType.QUERY, "CALL p()", "d", {}) is None
