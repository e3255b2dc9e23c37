"""The doctor's findings on real servers; each fix it names does fix."""

from __future__ import annotations

import dataclasses
import os
from contextlib import closing
from pathlib import Path

import pytest

from shmstore import BinlogDisabled, EntryType, Event, EventStore, EventType, Position, StoreView, producer
from shmstore.producer.connection.dump import replica_id
from shmstore.producer.connection.server import SourceServer as ServerAsked
from shmstore.producer.connection.server import read_server, require_binlog
from shmstore.producer.connection.session import connect
from shmstore.producer.doctor import _binlog
from shmstore.producer.positions.gtid_position import current_position
from shmstore.producer.settings import ServerAddress, Settings
from tests.producer.running import execute, running, store_name, wait_for
from tests.servers.server import Server, start_server
from tests.shmstore.commands import run as command

pytestmark = pytest.mark.server


def findings_of(server: Server, **options: object) -> dict[str, producer.Finding]:
    settings = producer.Settings(**{"store": store_name(), "port": server.port, **options})
    return {finding.check: finding for finding in producer.check_server(settings)}


def test_a_good_server(any_server: Server) -> None:
    """A server as the tests start it has nothing to fix; every finding says what was found."""
    execute(any_server, "mysql", "FLUSH BINARY LOGS")  # what others wrote may be larger than max_allowed_packet
    findings = findings_of(any_server)
    assert {finding.state for finding in findings.values()} == {"ok"}
    assert all(finding.found and not finding.fix for finding in findings.values())
    wanted = {
        "server",
        "log_bin",
        "binlog_format",
        "binlog_row_image",
        "binlog_row_metadata",
        "compression",
        "time_zone",
        "server_id",
    }
    assert wanted | {"privilege to see positions", "privilege to read the binlog", "binlog size", "retention"} <= findings.keys()


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_retention_and_start_position(flavor: str) -> None:
    """Short retention is a warning with SQL that fixes it; the hours until the start position is purged are shown."""
    with start_server(flavor) as server:
        execute(server, "mysql", "FLUSH BINARY LOGS", "SET GLOBAL binlog_expire_logs_seconds = 7200")
        findings = findings_of(server, start="binlog.000001:4")
        assert findings["retention"].state == "warn"
        assert findings["retention"].found == "2.0 hours"
        assert findings["start position"].state == "warn"
        assert findings["start position"].found.startswith(
            ("binlog.000001:4 is purged in 2.0", "binlog.000001:4 is purged in 1.9")
        )
        execute(server, "mysql", findings["retention"].fix)
        findings = findings_of(server, start="binlog.000001:4")
        assert findings["retention"].state == findings["start position"].state == "ok"
        wait_for(lambda: _purged(server), "the file to go, when no process reads it any more")
        assert findings_of(server, start="binlog.000001:4")["start position"].state == "fail"
        assert findings_of(server, start="binlog.000002:4")["start position"].state == "ok"


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_where_the_store_goes_on(flavor: str) -> None:
    """What the server lacks of what comes next is reported as the producer would, by GTIDs: also where files never expire, and at
    another server, whose files have other names."""
    store = store_name()
    with (
        start_server(flavor, ["--binlog-expire-logs-seconds=0"]) as server,
        EventStore.create(store, capacity=64, log=False) as made,
    ):
        try:
            execute(server, "mysql", "CREATE DATABASE d")
            settings = producer.Settings(store=store, port=server.port)
            with closing(connect(settings, settings.endpoints()[0])) as session:
                here = current_position(session, read_server(session))
            made.put([Event(EntryType.END, EventType.NONE, here, 0)])
            assert findings_of(server, store=store)["start position"].state == "ok"
            made.put([Event(EntryType.END, EventType.NONE, Position("elsewhere.000009", 4, here.gtids), 0)])
            assert findings_of(server, store=store)["start position"].state == "ok"
            assert findings_of(server, store=store, gtid="off")["start position"].state == "fail"
            execute(server, "mysql", "DROP DATABASE d", "FLUSH BINARY LOGS")
            wait_for(lambda: _purged(server), "the file to go")
            finding = findings_of(server, store=store)["start position"]
            assert (finding.state, "no longer has the binlog" in finding.found) == ("fail", True)
            assert "set on_purged" in finding.fix
        finally:
            EventStore.unlink(store)


def _purged(server: Server) -> bool:
    execute(server, "mysql", "PURGE BINARY LOGS TO 'binlog.000002'")
    return not (server.directory / "data" / "binlog.000001").exists()


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_server_ids(flavor: str) -> None:
    """Our server id must be neither the server's own nor that of a replica that is connected."""
    with start_server(flavor) as server:
        assert findings_of(server, server_id=1)["server_id"].state == "fail"
        with running(server) as run:
            with StoreView.attach(run.settings.store) as store:
                ours = replica_id(run.settings, store.epoch)
            wait_for(
                lambda: not run.alive or findings_of(server, server_id=ours)["server_id"].state == "warn",
                "the server to know our replica",
            )
            assert "connected" in findings_of(server, server_id=ours)["server_id"].found
            own = findings_of(server, server_id=ours, store=run.settings.store)["server_id"]  # the producer of this very store
            assert own.state == "ok"
            assert own.found.endswith(f"the producer of store {run.settings.store!r}, pid {os.getpid()}")
        execute(server, "mysql", "CREATE USER watcher@'%'")
        assert findings_of(server, user="watcher")["server_id"].found.endswith("other replicas are not shown to this account")


def test_the_server_id_is_the_stores() -> None:
    """It stays the same for a store's life; two stores of one name on hosts of one name have different ones, and so have several sources."""
    settings = producer.Settings(store="orders")
    assert len({replica_id(settings, epoch, source) for epoch in (1, 2) for source in ("", "a", "b")}) == 6
    assert replica_id(settings, 1) == replica_id(settings, 1) != replica_id(producer.Settings(store="another"), 1)
    assert replica_id(producer.Settings(store="orders", server_id=7), 1) == 7


def test_a_server_without_row_metadata() -> None:
    """MySQL before 8.0.1 has no binlog_row_metadata and 5.6 cannot switch GTIDs on while it runs: no fix is named that it refuses."""
    have = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_checksum": "CRC32", "gtid_mode": "OFF"}
    server = ServerAsked(ServerAddress("127.0.0.1", 3306), "5.6.24-log", False, have)
    fixes = {finding.check: finding.fix for finding in _binlog(server, Settings(store="s")) if finding.state != "ok"}
    assert fixes.keys() == {"binlog_row_metadata", "gtid_mode"}
    assert "SET GLOBAL" not in "".join(fixes.values())
    with pytest.raises(BinlogDisabled, match=r"5\.6\.24-log.*follow DDLs with schema_history = auto$"):
        require_binlog(server, Settings(store="s", schema_history="off"))
    require_binlog(server, Settings(store="s", schema_history="auto"))


def test_row_filters_are_looked_at(any_server: Server, database: str, caplog: pytest.LogCaptureFixture) -> None:
    """A column or a table that is not there is reported by the doctor, and by a producer's log at its start; the right names are fine."""
    execute(any_server, database, "CREATE TABLE orders (id int primary key, total int, e enum('x'))", "CREATE TABLE log (id int)")
    good = (f"{database}.orders: total > 3 AND e = 'x'", f"{database}.l*: id < 5")
    assert findings_of(any_server, row_filter=good)["row filters"].state == "ok"
    wrong = {
        f"{database}.orders: totl > 3": ("fail", "no column 'totl'; did you mean total"),
        f"{database}.orders: total > 'x'": ("fail", "compare it with a number"),
        f"{database}.order: total > 3": ("warn", f"the server shows none of that name; did you mean {database}.orders"),
        f"{database}.log: id > 3": ("warn", f"the other filters leave out {database}.log"),
    }
    for text, (state, says) in wrong.items():
        options = {"row_filter": (text,), "exclude": ("*.log",)}
        finding = findings_of(any_server, **options)["row filters"]
        assert (finding.state, says in finding.found, bool(finding.fix)) == (state, True, True), finding
        caplog.clear()
        with running(any_server, **options):
            (line,) = [record.message for record in caplog.records if "row filter" in record.message]
        assert says in line
        assert ("will stop this producer" in line) is (state == "fail")
    assert "row filters" not in findings_of(any_server)


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_a_fix_that_lasts(flavor: str) -> None:
    """The SQL is taken; MySQL keeps it for its next start, of MariaDB the option file is named, which alone does."""
    less = {"mariadb": "NO_LOG", "mysql": "MINIMAL"}[flavor]
    with start_server(flavor, [f"--binlog-row-metadata={less}"]) as server:
        execute(server, "mysql", "SET GLOBAL binlog_expire_logs_seconds = 7200")
        findings = findings_of(server)
        fixes = [findings[name].fix for name in ("binlog_row_metadata", "retention")]
        execute(server, "mysql", *fixes)
        assert findings_of(server)["binlog_row_metadata"].state == "ok"
        if flavor == "mysql":
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT * FROM performance_schema.persisted_variables")
                persisted = dict(cursor.fetchall())
            assert persisted == {"binlog_row_metadata": "FULL", "binlog_expire_logs_seconds": str(72 * 3600)}
        else:
            assert all("option file" in fix for fix in fixes)


def test_patterns_that_name_nothing(any_server: Server, database: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of every kind, they are reported by the doctor and by a producer's log at its start; one copied from a .properties file, with the right form."""
    execute(any_server, database, "CREATE TABLE orders (id int primary key, total int)")
    good = {"include": (f"{database}.*", f"{database}.orders"), "column_hash": (f"{database}.orders.ID",)}
    assert "patterns" not in findings_of(any_server, **good)
    wrong = {
        "include": (f"{database}\\\\..*", f"here write {database}\\..*"),
        "exclude": (f"{database}.order", f"names no table that the server shows; did you mean {database}.orders"),
        "column_include": ("nowhere.*.id", "names no column"),
        "column_exclude": (f"{database}.orders.totl", f"did you mean {database}.orders.total"),
        "column_mask": ("regex:.*\\.none", "names no column"),
        "column_hash": ("!*.none", "names no column"),
    }
    for option, (pattern, says) in wrong.items():
        finding = findings_of(any_server, **{option: (pattern,)})["patterns"]
        assert (finding.state, says in finding.found) == ("warn", True), finding
    with running(any_server, exclude=("nowhere.*", "mysql.*"), column_mask=(f"{database}.orders.totl",)):
        lines = [record.message for record in caplog.records if "names no" in record.message]
    assert [line.partition(":")[0] for line in lines] == ["exclude", "column_mask"]


def test_a_producer_that_runs(mariadb: Server, database: str, tmp_path: Path) -> None:
    """`--running` says that it reads this server, then that other filters are in force than are given, then that none runs."""
    with running(mariadb, include=(f"{database}.*",)) as run:
        execute(mariadb, database, "CREATE TABLE t (id INT PRIMARY KEY)")
        settings = run.settings
        found = {each.check: each for each in producer.check_running(settings)}
        assert {each.state for each in found.values()} == {"ok"}, found
        assert {"producer", "link", "same server", "filters", "free space", "disk"} == found.keys()
        other = {each.check: each for each in producer.check_running(dataclasses.replace(settings, include=("x.*",)))}
        assert other["filters"].state == "warn"
        assert "include" in other["filters"].found
        options = ["--host", mariadb.host, "--port", str(mariadb.port), "--user", mariadb.user, "--include", f"{database}.*"]
        assert "ok    same server: " in command("doctor", "--running", settings.store, *options)
        run.stop()
        assert "fail  producer: no producer" in command("doctor", "--running", settings.store, *options, code=1)


def test_another_server_than_the_producers(mariadb: Server, mysql: Server) -> None:
    """It is named, with the one that the store was read from."""
    with running(mariadb) as run:
        asked = dataclasses.replace(run.settings, host=mysql.host, port=mysql.port, user=mysql.user)
        found = {each.check: each for each in producer.check_running(asked)}
    assert found["same server"].state in ("fail", "warn")
    assert "the store was read from" in found["same server"].found
