"""producer/connection/managed.py: which service a server belongs to, and what is reported there. What is asked is in its documents."""

from __future__ import annotations

from contextlib import closing

import pytest

from shmstore.producer.connection import server as module
from shmstore.producer.connection.managed import AURORA, AZURE, CLOUD_SQL, RDS, Service, service_of
from shmstore.producer.connection.server import SourceServer as Source
from shmstore.producer.connection.server import read_server
from shmstore.producer.connection.session import connect
from shmstore.producer.doctor import check_server
from shmstore.producer.pipeline.retention import kept_seconds
from shmstore.producer.settings import ServerAddress, Settings
from tests.producer.running import execute
from tests.servers.server import Server, start_server

OWN = {"basedir": "/usr/", "version_comment": "MySQL Community Server - GPL"}
AT = ServerAddress("db1", 3306)


@pytest.mark.parametrize(
    ("host", "version", "variables", "service"),
    [
        ("db1", "8.0.35", OWN, None),
        ("db1", "11.8.6-MariaDB", OWN | {"version_comment": "MariaDB Server"}, None),
        ("db1", "8.0.35", OWN | {"basedir": "/rdsdbbin/mysql-8.0.35.R2/"}, RDS),
        ("db1", "8.0.28", OWN | {"basedir": "/rdsdbbin/oscar-8.0.mysql_aurora.3.04.0.0.32961.0/"}, AURORA),
        ("db1", "8.0.28", OWN | {"aurora_version": "3.04.0"}, AURORA),
        ("shop.abc.eu-west-1.rds.amazonaws.com", "8.4.3", {}, RDS),
        ("db1", "8.0.31-google", OWN | {"version_comment": "(Google)"}, CLOUD_SQL),
        ("db1", "5.7.25-google-log", OWN, CLOUD_SQL),
        ("db1", "8.0.31", OWN | {"version_comment": "(Google)"}, CLOUD_SQL),
        ("db1", "8.4.5-azure", OWN | {"version_comment": "Source distribution"}, AZURE),
        ("db1", "8.0.39", OWN | {"aad_auth_only": "OFF"}, AZURE),
        ("shop.mysql.database.azure.com", "8.0.39", {}, AZURE),
    ],
)
def test_which_service(host: str, version: str, variables: dict[str, str], service: Service | None) -> None:
    """A service is known by what it shows of itself: base folder, version, comment, a variable, or its address."""
    assert service_of(host, version, variables) is service


def test_fixes_that_a_service_allows() -> None:
    """No user may SET GLOBAL at a service, or edit its files: the fix names the parameter where it is set."""
    image = Source(AT, "8.0.35", False, {}).lasting("binlog_row_image", "FULL")
    assert image == "SET PERSIST binlog_row_image = FULL;"
    assert RDS.fix(image) == "binlog_row_image = FULL in the instance's DB parameter group"
    assert "--name binlog_row_image --value FULL" in AZURE.fix(image)
    assert "--database-flags=binlog_row_image=FULL" in CLOUD_SQL.fix(image)
    steps = "SET GLOBAL gtid_mode = OFF_PERMISSIVE; SET GLOBAL enforce_gtid_consistency = ON; SET GLOBAL gtid_mode = ON;"
    assert AURORA.fix(steps).count("gtid_mode") == 1
    assert "gtid_mode = ON in the DB cluster" in AURORA.fix(steps)
    assert "writer endpoint" in AURORA.fix("set log_bin = binlog and server_id = 1 under [mysqld], then restart the server")
    assert RDS.fix("GRANT SELECT ON *.* TO 'a'@'%';") == "GRANT SELECT ON *.* TO 'a'@'%';"


def test_what_keeps_binlogs() -> None:
    """How long files are kept is set by Amazon's procedure, by a parameter elsewhere, and by SQL on one's own server."""

    def source(**variables: str) -> Source:
        return Source(AT, "8.0.35", False, OWN | variables)

    assert source().to_keep(72) == "SET PERSIST binlog_expire_logs_seconds = 259200;"
    amazon = "CALL mysql.rds_set_configuration('binlog retention hours', 168);"
    assert source(basedir="/rdsdbbin/mysql/").to_keep(168) == source(aurora_version="3").to_keep(168) == amazon
    assert "--name binlog_expire_logs_seconds --value 604800" in source(aad_auth_only="OFF").to_keep(168)


@pytest.fixture(scope="module")
def server() -> Server:
    with start_server("mariadb", ["--binlog-expire-logs-seconds=604800"]) as started:
        yield started


@pytest.mark.server
def test_amazons_retention(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """At Amazon the procedure's setting counts, whatever the variable says; where it may not be read, doctor says how to."""
    settings = Settings(store="unused", port=server.port)
    execute(server, "mysql", "CREATE USER reader@'%'", "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO reader@'%'")

    def retention(**options: str) -> tuple[str, str, str]:
        found = {each.check: each for each in check_server(Settings(store="unused", port=server.port, **options))}
        assert found["managed service"].found.startswith("Amazon RDS: ")
        return found["retention"][1:3] + found["retention"][4:]

    with closing(connect(settings, settings.endpoints()[0])) as session:
        assert kept_seconds(session, read_server(session)) == 604800
        monkeypatch.setattr(module, "service_of", lambda *_: RDS)
        assert kept_seconds(session, read_server(session)) is None
        call = "CALL mysql.rds_set_configuration('binlog retention hours', 72);"
        execute(server, "mysql", "CREATE TABLE rds_configuration (name TEXT, value INT)")
        execute(server, "mysql", "INSERT INTO rds_configuration VALUES ('binlog retention hours', NULL)")
        assert retention() == ("warn", "0 hours: files go as soon as the service itself needs them no more", call)
        execute(server, "mysql", "UPDATE rds_configuration SET value = 72")
        assert retention() == ("ok", "72.0 hours", "")
        may_not = "mysql.rds_configuration may not be read by this account"
        assert retention(user="reader") == ("warn", may_not, f"{call} CALL mysql.rds_show_configuration;")
        monkeypatch.setattr(module, "service_of", lambda *_: AZURE)
        execute(server, "mysql", "SET GLOBAL binlog_expire_logs_seconds = 0")
        assert kept_seconds(session, read_server(session)) == 0
        monkeypatch.setattr(module, "service_of", lambda *_: None)
        assert kept_seconds(session, read_server(session)) == float("inf")
