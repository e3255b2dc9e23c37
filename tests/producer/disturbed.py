"""Statements that change a table while a server is asked how it is defined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmstore.producer.connection.session import ServerSession
from tests.servers.server import Server

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL, u VARCHAR(9) CHARACTER SET latin1)"
DDLS = {
    "create": ("DO 0", TABLE),
    "drop": (TABLE, "DROP TABLE t"),
    "rename": (TABLE, "RENAME TABLE t TO other"),
    "rename a column of the key": (TABLE, "ALTER TABLE t CHANGE id number BIGINT"),
    "another key": (TABLE, "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a)"),
    "drop a column of the key": (TABLE, "ALTER TABLE t DROP PRIMARY KEY, DROP COLUMN id"),
    "another character set": (TABLE, "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4"),
    "a view": (TABLE, "CREATE VIEW v AS SELECT a FROM t"),
}
OF_MARIADB = {
    "versioned": (TABLE, "ALTER TABLE t ADD SYSTEM VERSIONING"),
    "a key of a versioned period": (
        "CREATE TABLE t (b DATE, e DATE, a INT, PERIOD FOR p (b, e), PRIMARY KEY (a, p WITHOUT OVERLAPS)) WITH SYSTEM VERSIONING",
        "SET STATEMENT system_versioning_alter_history = KEEP FOR ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a, b, e)",
    ),
    "a period": (
        "CREATE TABLE t (b DATE NOT NULL, e DATE NOT NULL, a INT, PERIOD FOR p (b, e), PRIMARY KEY (a, p WITHOUT OVERLAPS))",
        "ALTER TABLE t DROP PRIMARY KEY, DROP PERIOD FOR p, CHANGE b begins DATE",
    ),
}


class Disturbed:
    """A session whose server gets a statement just before one of the questions."""

    def __init__(self, session: ServerSession, number: int, cursor: Any, statement: str) -> None:
        self._session, self._left, self._cursor, self._statement = session, number, cursor, statement

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @property
    def ran(self) -> bool:
        return self._left < 0

    def query(self, sql: str, *arguments: Any) -> Any:
        if self._left == 0:
            self._cursor.execute(self._statement)
        self._left -= 1
        return self._session.query(sql, *arguments)


def disturbed(
    server: Server, database: str, name: str, session: ServerSession, look: Callable[[Any], Any]
) -> Iterator[tuple[Any, Any, Any]]:
    """(`look(session)` before a statement, with it just before one of its questions, behind it), for each question in turn."""
    if name in OF_MARIADB and server.flavor != "mariadb":
        pytest.skip("MariaDB alone has such tables")
    before, statement = {**DDLS, **OF_MARIADB}[name]
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        for number in range(100):
            for made in ("TABLE IF EXISTS t", "TABLE IF EXISTS other", "VIEW IF EXISTS v"):
                cursor.execute(f"DROP {made}")
            cursor.execute(before)
            old, under_way = look(session), Disturbed(session, number, cursor, statement)
            found = look(under_way)
            if not under_way.ran:
                break
            yield old, found, look(session)
    assert number > 3
