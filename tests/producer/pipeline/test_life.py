"""A producer outlives its servers and links: after each mishap no row is lost and none is put twice."""

from __future__ import annotations

import contextlib
import dataclasses
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmstore import EventStore, producer
from tests.producer.proxy import CuttingProxy
from tests.producer.running import Follower, Mirror, Running, execute, remove, running, select_table, wait_for, wait_for_position
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server
QUICK = {"retry_first": 0.05, "retry_longest": 0.2}


@pytest.fixture(params=["mariadb", "mysql"], scope="module")
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that a test may stop, kill and change."""
    with start_server(request.param) as server:
        execute(server, "mysql", "CREATE DATABASE d")
        yield server


@contextlib.contextmanager
def checked(server: Server, **options: object) -> Iterator[Running]:
    """A producer whose store must hold table d.t as the server has it when the block is over."""
    execute(server, "d", "DROP TABLE IF EXISTS t", "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, a INT)")
    with running(server, **{**QUICK, **options}) as run:
        follower = Follower(run.settings.store, Mirror("d"))
        execute(server, "d", "INSERT INTO t (a) VALUES (1), (2)")
        yield run
        execute(server, "d", "INSERT INTO t (a) VALUES (3)", "UPDATE t SET a = a + 1")
        with EventStore.attach(run.settings.store) as store:
            wait_for(lambda: not run.alive or _arrived(server, store), "the producer to catch up")
        run.stop()
        assert follower.finish().tables["t"] == select_table(server, "d", "t")


def _arrived(server: Server, store: EventStore) -> bool:
    with contextlib.suppress(AssertionError):
        wait_for_position(server, store, 0.2)
        return True
    return False


def survive(server: Server, mishap: Callable[[], None]) -> None:
    """A mishap in mid-transaction; afterwards table ids begin again, and tables must stay apart."""
    with checked(server) as run:
        execute(
            server,
            "d",
            "DROP TABLE IF EXISTS u",
            "CREATE TABLE u (x VARCHAR(9) PRIMARY KEY, y INT)",
            "INSERT INTO u VALUES ('a', 1)",
        )
        with server.connect(database="d", autocommit=False) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t (a) VALUES (9)")
            mishap()
            with contextlib.suppress(Exception):
                connection.rollback()
        execute(server, "d", "INSERT INTO t (a) VALUES (4)", "INSERT INTO u VALUES ('b', 2)")
        assert run.alive


def test_server_is_killed(own_server: Server) -> None:
    """The server is killed and started again."""

    def mishap() -> None:
        own_server.kill()
        time.sleep(0.3)
        own_server.start()

    survive(own_server, mishap)


@pytest.mark.parametrize("flavor", ["mariadb", pytest.param("mysql", marks=pytest.mark.long)])  # MySQL takes its time
def test_server_restarts(flavor: str) -> None:
    """The server is stopped in an orderly way and started again."""
    with start_server(flavor) as server:
        execute(server, "mysql", "CREATE DATABASE d")
        survive(server, server.restart)


def test_killed_connection(own_server: Server) -> None:
    """KILL of the dump thread, again and again under load, costs nothing."""
    with checked(own_server) as run:
        kills = 0
        for i in range(40):
            execute(own_server, "d", *[f"INSERT INTO t (a) VALUES ({i})" for _ in range(10)])
            if i % 8 == 7:
                with own_server.connect() as connection, connection.cursor() as cursor:
                    cursor.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
                    for (thread,) in cursor.fetchall():
                        with contextlib.suppress(Exception):
                            cursor.execute(f"KILL {thread}")
                            kills += 1
        assert run.alive
        assert kills > 0


def test_silent_link(own_server: Server) -> None:
    """A link that stays open and falls silent is given up after read_timeout; an idle server is not silent."""
    with (
        CuttingProxy(own_server.port, lambda: None) as proxy,
        checked(own_server, port=proxy.port, read_timeout=1.0, heartbeat=0.2, schema_history="off") as run,
    ):

        def quiet() -> bool:
            links = proxy.connections
            time.sleep(1.6)
            return proxy.connections == links

        wait_for(quiet, "a link with nothing but heartbeats to last")
        links = proxy.connections
        proxy.stalled.set()
        wait_for(lambda: proxy.connections > links or not run.alive, "a new link")
        proxy.stalled.clear()
        execute(own_server, "d", "INSERT INTO t (a) VALUES (5)")


def test_server_id_in_use(own_server: Server) -> None:
    """When another replica takes our server id, the producer stops and says so instead of fighting over it."""
    with (
        running(own_server, server_id=4711, **QUICK) as run,
        running(own_server, server_id=4711, **QUICK),
        pytest.raises(producer.ServerIdInUse, match="server_id"),
    ):
        run.wait(20)


def test_password_rotation(own_server: Server, tmp_path: Path) -> None:
    """A password that changes while the producer runs is read again from its file at the next connection."""
    secret = tmp_path / "secret"
    secret.write_text("first\n")
    execute(own_server, "d", "DROP USER IF EXISTS r@'%'", "CREATE USER r@'%' IDENTIFIED BY 'first'", "GRANT ALL ON *.* TO r@'%'")
    with (
        CuttingProxy(own_server.port, lambda: None) as proxy,
        checked(own_server, user="r", password_file=str(secret), port=proxy.port) as run,
    ):
        execute(
            own_server,
            "d",
            "SET PASSWORD FOR r@'%' = PASSWORD('second')"
            if own_server.flavor == "mariadb"
            else "ALTER USER r@'%' IDENTIFIED BY 'second'",
        )
        proxy.hang_up()
        time.sleep(0.5)
        assert run.alive
        secret.write_text("second\n")


def test_tls(own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tls = required encrypts the stream; verify-ca takes the server's own authority and refuses another. By default it encrypts where the server can,
    verifies nothing, and loads no certificate for that."""
    if own_server.flavor == "mariadb":
        with pytest.raises(producer.LoginRefused, match="TLS"):  # this one has no certificate
            producer.run(producer.Settings(store="producer-tls", port=own_server.port, tls="required"), lambda: False)
        return
    authority = own_server.directory / "data" / "ca.pem"
    execute(own_server, "d", "CREATE USER s@'%' IDENTIFIED BY 'x' REQUIRE SSL", "GRANT ALL ON *.* TO s@'%'")
    account = {"user": "s", "password": "x"}
    for options in ({"tls": "required"}, {"tls": "verify-ca", "tls_ca": str(authority)}):
        with checked(own_server, **account, **options) as run:
            assert run.alive
    with monkeypatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_default_certs", None)
        with checked(own_server, **account) as run:
            assert run.alive
    with pytest.raises(producer.LoginRefused):  # the account wants what tls = disabled does not give
        producer.run(producer.Settings(store="producer-tls", port=own_server.port, tls="disabled", **account), lambda: False)
    other = tmp_path / "other.pem"
    other.write_text((own_server.directory / "data" / "client-cert.pem").read_text())
    with pytest.raises(producer.LoginRefused, match="TLS"):
        producer.run(
            producer.Settings(store="producer-tls", port=own_server.port, tls="verify-ca", tls_ca=str(other)), lambda: False
        )


def link_up(replica: Server, primary: Server) -> None:
    if replica.flavor == "mysql":
        source = f"SOURCE_HOST='127.0.0.1', SOURCE_PORT={primary.port}, SOURCE_USER='root', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1"
        execute(replica, "mysql", f"CHANGE REPLICATION SOURCE TO {source}", "START REPLICA")
    else:
        source = f"MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}, MASTER_USER='root', MASTER_USE_GTID=slave_pos"
        execute(replica, "mysql", f"CHANGE MASTER TO {source}", "START SLAVE")


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_failover(flavor: str, tmp_path: Path) -> None:
    """When the first server of the list dies, the stream continues at its replica by GTID, from the right transaction; where the
    log names no columns, with what the schema history of the other knew there, whatever the files are called here."""
    plain = ["--binlog-row-metadata=" + ("NO_LOG" if flavor == "mariadb" else "MINIMAL")]
    replicates = [*plain, "--server-id=2", "--log-slave-updates" if flavor == "mariadb" else "--log-replica-updates"]
    with start_server(flavor, options=plain) as primary, start_server(flavor, options=replicates) as replica:
        if flavor == "mysql":
            execute(replica, "mysql", "RESET BINARY LOGS AND GTIDS")
        else:
            execute(replica, "mysql", "RESET MASTER", "SET GLOBAL gtid_slave_pos = ''")
        link_up(replica, primary)
        execute(replica, "mysql", *["FLUSH BINARY LOGS"] * 3)
        execute(primary, "mysql", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY AUTO_INCREMENT, a INT)")
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
        options = {**QUICK, "host": hosts, "schema_history": "on", "state": str(tmp_path)}
        with running(primary, **options) as run:
            follower = Follower(run.settings.store, Mirror("d"))
            for i in range(20):
                execute(primary, "d", f"INSERT INTO t (a) VALUES ({i})", "UPDATE t SET a = a + 1 WHERE id % 3 = 0")
            altered = ("ALTER TABLE t ADD COLUMN z INT UNSIGNED DEFAULT 4000000000 FIRST", "ALTER TABLE t ADD COLUMN y INT FIRST")
            execute(primary, "d", "CREATE TABLE later (id INT PRIMARY KEY)", "DROP TABLE later", "CREATE TABLE u LIKE t")
            execute(primary, "d", altered[0].replace(" t ", " u "))
            execute(primary, "d", "INSERT INTO u (a) VALUES (1)")
            expected = select_table(primary, "d", "t")
            wait_for(lambda: _same(replica, expected), "the replica")
            primary.kill()
            execute(replica, "d", "INSERT INTO t (a) VALUES (99)", "DELETE FROM t WHERE id = 1", "INSERT INTO u (a) VALUES (2)")
            execute(replica, "d", altered[1].replace(" t ", " u "), "INSERT INTO u (a) VALUES (3)")
            with EventStore.attach(run.settings.store) as store:
                wait_for(lambda: not run.alive or _ends_like(replica, store), "the stream to continue at the replica")
            assert run.stop().reconnects >= 1
            execute(replica, "d", "INSERT INTO u (a) VALUES (4)")
            again = Running(run.settings)  # it continues with the history of its new server
            with EventStore.attach(run.settings.store) as store:
                wait_for(lambda: not again.alive or _ends_like(replica, store), "the stream to continue after a restart")
            again.stop()
            tables = follower.finish().tables
            assert tables["t"] == select_table(replica, "d", "t")
            rows = [row for row in tables["u"].values() if len(row) == 4]
            assert rows == list(select_table(replica, "d", "u", key=2).values())[2:]
            assert sorted(row[-2:] for row in tables["u"].values()) == [(i, i) for i in range(1, 5)]
            assert [path.suffix for path in sorted((tmp_path / run.settings.store).glob("schemas-*"))].count(".jsonl") == 1
            remove(run.settings.store)


@pytest.mark.parametrize("alike", [pytest.param(True, marks=pytest.mark.long), False])
def test_failover_in_half_a_transaction(alike: bool) -> None:
    """When the store ends inside a transaction, a replica that logged the same events finishes it; one that grouped the rows
    otherwise is refused, and no row is left out or put twice."""
    replicates = ["--server-id=2", "--log-slave-updates", *([] if alike else ["--binlog-row-event-max-size=2048"])]
    with start_server("mariadb") as primary, start_server("mariadb", options=replicates) as replica:
        link_up(replica, primary)
        execute(primary, "mysql", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, a VARCHAR(100))")
        options = {**QUICK, "capacity": 64, "memory_unit": 16384, "transaction_events": 8, "log": "off"}
        with running(primary, **options) as run, EventStore.attach(run.settings.store) as store:
            reader = store.subscribe("mirror")
            many = ",".join(f"({i}, REPEAT('x', 90))" for i in range(9000))
            execute(primary, "d", "INSERT INTO t VALUES (9999, 'before')", f"INSERT INTO t VALUES {many}")
            wait_for(lambda: store.newest - store.oldest >= 50, "the ring to be full")
            run.stop()
            last = store.latest_event
            assert last is not None
            assert not last.ends_transaction
            expected = select_table(primary, "d", "t")
            wait_for(lambda: _same(replica, expected), "the replica")
            primary.kill()
            reader.close()
            follower = Follower(run.settings.store, Mirror("d"))
            again = Running(dataclasses.replace(run.settings, host=f"127.0.0.1:{replica.port}"))
            if alike:
                wait_for(lambda: not again.alive or _ends_like(replica, store), "the rest of the transaction")
                again.stop()
                assert follower.finish().tables["t"] == expected
            else:
                with pytest.raises(
                    producer.TransactionBroken, match=r"behind its event \d+, but on this server .*binlog_row_event_max_size"
                ):
                    again.wait()
                assert store.latest_event == last
                follower.finish()


def _same(server: Server, expected: dict[tuple[int, ...], tuple[int, ...]]) -> bool:
    with contextlib.suppress(Exception):
        return select_table(server, "d", "t") == expected
    return False


def _ends_like(server: Server, store: EventStore) -> bool:
    query = "SELECT @@global.gtid_executed" if server.flavor == "mysql" else "SELECT @@global.gtid_binlog_pos"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        wanted = cursor.fetchone()[0].replace("\n", "").replace(" ", "")
    event = store.latest_event
    return event is not None and event.position.gtids == wanted


def test_unreachable_at_first_is_said_at_once() -> None:
    """A producer that never had a connection ends with the reason at once; it tries again only after it had one."""
    began = time.monotonic()
    with pytest.raises(producer.ServerUnreachable):
        producer.run(producer.Settings(store="producer-nowhere", host="127.0.0.1:1,127.0.0.1:2"), lambda: False)
    assert time.monotonic() - began < 5
    assert "producer-nowhere" not in EventStore.names()
