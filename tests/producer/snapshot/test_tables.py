"""How one table is read from a server: whole, or not at all."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from shmstore.producer import PrivilegeMissing, Settings
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.snapshot.tables import SourceTable, read_table
from tests.producer.disturbed import DDLS, OF_MARIADB, disturbed
from tests.producer.running import execute
from tests.servers.server import Server

pytestmark = pytest.mark.server


@pytest.mark.parametrize("name", [*DDLS, *OF_MARIADB])
def test_a_ddl_between_any_two_questions(any_server: Server, database: str, session: ServerSession, name: str) -> None:
    """The table is as it was before the DDL or behind it, never some of both; and nothing is raised."""
    if name in OF_MARIADB and not session.mariadb:
        return

    def read(asked: Any) -> SourceTable | None:
        found = read_table(asked, database, "t")
        return found and found._replace(rows=0, row_bytes=0)  # the server's guess

    for old, found, new in disturbed(any_server, database, name, session, read):
        assert found in (old, new)


@pytest.mark.parametrize("shown", ["id", "a", "b", "id, a", "id, b", "a, b", "id, a, b"])
def test_columns_that_are_hidden_from_the_account(any_server: Server, database: str, shown: str) -> None:
    """A table of which an account may read some columns is refused, whichever they are: the others are not shown to it."""
    account = f"'{database[-30:]}'@'%'"
    execute(
        any_server,
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)",
        f"CREATE USER {account} IDENTIFIED BY 'x'",
        f"GRANT SELECT ({shown}) ON t TO {account}",
    )
    try:
        settings = Settings(store="s", host=any_server.host, port=any_server.port, user=account.split("'")[1], password="x")
        with closing(connect(settings, settings.endpoints()[0])) as session:
            if shown == "id, a, b":
                found = read_table(session, database, "t")
                assert found is not None
                assert found.schema.names == ("id", "a", "b")
            else:
                with pytest.raises(PrivilegeMissing, match=r"SELECT command denied .*; GRANT SELECT ON it"):
                    read_table(session, database, "t")
    finally:
        execute(any_server, database, f"DROP USER {account}")
