"""Statements about accounts carry secrets: they reach no store, no file and no log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.producer.running import events_of, execute, running
from tests.servers.server import Server

SECRET = "leaky7f3a"  # in every name and every password of these statements

BOTH = f"""
CREATE USER {SECRET} IDENTIFIED BY '{SECRET}-1'
ALTER USER {SECRET} IDENTIFIED BY '{SECRET}-2'
/* why */ create /*!50000 user */ if not exists `{SECRET}_b`@'%' identified by '{SECRET}-3'
GRANT SELECT, REPLICATION CLIENT ON *.* TO {SECRET} WITH GRANT OPTION
REVOKE SELECT ON *.* FROM {SECRET}
REVOKE ALL PRIVILEGES, GRANT OPTION FROM {SECRET}
CREATE ROLE {SECRET}_role
GRANT {SECRET}_role TO {SECRET}
RENAME USER {SECRET} TO {SECRET}_c
DROP ROLE {SECRET}_role
CREATE SERVER {SECRET} FOREIGN DATA WRAPPER mysql OPTIONS (HOST '127.0.0.1', USER '{SECRET}', PASSWORD '{SECRET}-4')
ALTER SERVER {SECRET} OPTIONS (PASSWORD '{SECRET}-5')
DROP SERVER {SECRET}
DROP USER {SECRET}_b, {SECRET}_c
"""
OWN = {
    "mariadb": f"""
CREATE OR REPLACE USER {SECRET} IDENTIFIED BY '{SECRET}-6'
SET PASSWORD FOR {SECRET} = PASSWORD('{SECRET}-7')
GRANT SELECT ON *.* TO {SECRET} IDENTIFIED BY '{SECRET}-8'
CREATE ROLE {SECRET}_role
GRANT {SECRET}_role TO {SECRET}
SET DEFAULT ROLE {SECRET}_role FOR {SECRET}
SET STATEMENT max_statement_time = 60 FOR ALTER USER {SECRET} IDENTIFIED BY '{SECRET}-9'
EXECUTE IMMEDIATE 'ALTER USER {SECRET} IDENTIFIED BY "{SECRET}-10"'
BEGIN NOT ATOMIC ALTER USER {SECRET} IDENTIFIED BY '{SECRET}-11'; END
CHANGE MASTER '{SECRET}' TO MASTER_HOST = '127.0.0.1', MASTER_USER = '{SECRET}', MASTER_PASSWORD = '{SECRET}-12'
RESET SLAVE '{SECRET}' ALL
DROP ROLE {SECRET}_role
DROP USER {SECRET}
""",
    "mysql": f"""
CREATE USER {SECRET} IDENTIFIED BY '{SECRET}-6' PASSWORD EXPIRE INTERVAL 90 DAY COMMENT '{SECRET}'
SET PASSWORD FOR {SECRET} = '{SECRET}-7'
CREATE ROLE {SECRET}_role
GRANT {SECRET}_role TO {SECRET}
SET DEFAULT ROLE {SECRET}_role TO {SECRET}
ALTER USER {SECRET} IDENTIFIED BY '{SECRET}-8' RETAIN CURRENT PASSWORD
CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_USER = '{SECRET}', SOURCE_PASSWORD = '{SECRET}-9' FOR CHANNEL '{SECRET}'
RESET REPLICA ALL FOR CHANNEL '{SECRET}'
DROP ROLE {SECRET}_role
DROP USER {SECRET}
""",
}


@pytest.mark.server
def test_account_statements_leave_no_trace(
    any_server: Server, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of statements about accounts, servers and replication nothing is in the store, in the producer's files or in its log."""
    caplog.set_level(logging.DEBUG)
    statements = [each for text in (BOTH, OWN[any_server.flavor]) for each in text.splitlines() if each]
    with running(any_server, state=str(tmp_path), schema_history="on") as run:
        execute(any_server, database, "CREATE TABLE t (id INT PRIMARY KEY)", *statements, "DROP TABLE t")
        events = events_of(run, any_server)
        files = [*tmp_path.rglob("*"), *Path("/dev/shm").glob(f"*{run.settings.store}*")]
        held = {path: path.read_bytes() for path in files if path.is_file()}
        summary = run.stop()
    assert [event.sql.split()[:2] for event in events] == [["CREATE", "TABLE"], ["DROP", "TABLE"]]
    assert summary.account_statements > 10
    assert len(held) >= 2  # the segment and the schema history, at least
    assert [path for path, content in held.items() if SECRET.encode() in content.lower()] == []
    assert SECRET not in caplog.text
