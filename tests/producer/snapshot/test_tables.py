"""How one table is read from a server: whole, or not at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from shmstore.producer import PrivilegeMissing, Settings, check_server
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.snapshot.tables import SourceTable, read_table
from tests.producer.disturbed import DDLS, OF_MARIADB, disturbed
from tests.producer.running import execute, wait_for
from tests.producer.snapping import waits_for_lock
from tests.servers.server import Server

pytestmark = pytest.mark.server


@pytest.mark.parametrize("name", [*DDLS, *OF_MARIADB])
def test_a_ddl_between_any_two_questions(any_server: Server, database: str, session: ServerSession, name: str) -> None:
    """The table is as it was before the DDL or behind it, never some of both; and nothing is raised."""

    def read(asked: Any) -> SourceTable | None:
        found = read_table(asked, database, "t")
        return found and found._replace(rows=0, row_bytes=0)  # the server's guess

    for old, found, new in disturbed(any_server, database, name, session, read):
        assert found in (old, new)


@pytest.mark.parametrize("by_role", [False, True], ids=["granted", "by a role"])
@pytest.mark.parametrize("shown", ["id", "a", "b", "id, a", "id, b", "a, b", "id, a, b"])
def test_columns_that_are_hidden_from_the_account(any_server: Server, database: str, shown: str, by_role: bool) -> None:
    """A table of which an account may read some columns is refused, whichever they are: the others are not shown to it."""
    user, role = database[-30:], f"{database[-29:]}r"
    account = f"'{user}'@'%'"
    execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)", f"CREATE USER {account} IDENTIFIED BY 'x'")
    if by_role:
        execute(
            any_server, database, f"CREATE ROLE {role}", f"GRANT SELECT ({shown}) ON t TO {role}", f"GRANT {role} TO {account}"
        )
        execute(any_server, "", f"SET DEFAULT ROLE {role} {'FOR' if any_server.flavor == 'mariadb' else 'TO'} {account}")
    else:
        execute(any_server, database, f"GRANT SELECT ({shown}) ON t TO {account}")
    try:
        settings = Settings(
            store="s",
            host=any_server.host,
            port=any_server.port,
            user=user,
            password="x",
            include=(f"{database}.*",),
            snapshot="initial",
        )
        doctor = [one.fix for one in check_server(settings) if one.check == "snapshots" and "columns of" in one.found]
        assert doctor == [f"GRANT SELECT ON `{database}`.`t` TO {account};"] * (shown != "id, a, b")
        with closing(connect(settings, settings.endpoints()[0])) as session:
            if shown == "id, a, b":
                found = read_table(session, database, "t")
                assert found is not None
                assert found.schema.names == ("id", "a", "b")
            else:
                with pytest.raises(PrivilegeMissing, match=r"SELECT command denied .*; GRANT SELECT ON it"):
                    read_table(session, database, "t")
    finally:
        execute(any_server, "", f"DROP USER {account}", *[f"DROP ROLE {role}"] * by_role)


def test_a_table_is_described_while_a_ddl_waits_for_it(any_server: Server, database: str, session: ServerSession) -> None:
    """What the stream's thread asks of a server does not wait behind a DDL that waits for other sessions."""
    execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    with (  # the reading ends first: the DDL waits for it
        ThreadPoolExecutor(1) as pool,
        any_server.connect(database=database, autocommit=False) as reading,
        reading.cursor() as cursor,
    ):
        cursor.execute("SELECT * FROM t")
        altering = pool.submit(execute, any_server, database, "ALTER TABLE t ADD b INT")
        wait_for(lambda: waits_for_lock(any_server, database), "the DDL to wait for the read")
        found = read_table(session, database, "t")
        assert not altering.done()
        reading.commit()
        altering.result(60)
    assert found is not None
    assert found.schema.names == ("id", "a")
