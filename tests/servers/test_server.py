"""The servers that the other tests stand on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.servers import developer
from tests.servers.server import Server, ServerUnavailable, start_server

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.server

PROMISED = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}


def variables(server: Server, pattern: str) -> dict[str, str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES LIKE %s", (pattern,))
        return {str(name).lower(): str(value) for name, value in cursor.fetchall()}


def alive(pid: int) -> bool:
    try:
        # A killed server whose guard is dead too may wait as a zombie for a container's careless init.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("kind", ["mariadb", "mariadb118", "mysql"])
def test_starts_answers_and_leaves_nothing(kind: str) -> None:
    """Each kind starts, keeps its promised binlog settings, rows survive restart and kill, and no process or folder is left."""
    with start_server(kind) as server:
        pid, folder = server.pid, server.directory
        assert server.flavor == ("mysql" if kind == "mysql" else "mariadb")
        assert ("MariaDB" in server.version) == (server.flavor == "mariadb")
        if kind == "mariadb118":
            assert server.version.startswith("11.8")
        found = {**variables(server, "binlog%"), **variables(server, "log_bin")}
        assert {name: found[name] for name in PROMISED} == PROMISED
        if server.flavor == "mysql":
            assert variables(server, "gtid_mode") == {"gtid_mode": "ON"}
        # Not the shared /tmp: there a MariaDB that starts removes the temporary tables of the others, and they die.
        assert variables(server, "tmpdir") == {"tmpdir": str(folder / "tmp")}
        assert variables(server, "bind_address") in ({"bind_address": "127.0.0.1"}, {})
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.t (id INT PRIMARY KEY, word VARCHAR(20))")
            cursor.execute("INSERT INTO shop.t VALUES (1, 'Größe'), (2, '大小')")
        port = server.port
        server.restart()
        assert not alive(pid)
        with server.connect(database="shop") as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (3, 'more')")
        server.kill()
        server.start()
        assert server.port == port
        with server.connect(database="shop") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, word FROM t ORDER BY id")
            assert cursor.fetchall() == ((1, "Größe"), (2, "大小"), (3, "more"))
        pid = server.pid
    assert not alive(pid)
    assert not folder.exists()


def test_options_win() -> None:
    """A test's own options override the defaults, and a restart may replace them."""
    with start_server("mariadb", options=["--binlog-row-metadata=MINIMAL"]) as server:
        assert variables(server, "binlog_row_metadata") == {"binlog_row_metadata": "MINIMAL"}
        server.restart(options=["--binlog-row-image=NOBLOB"])
        assert variables(server, "binlog_row_%") == {
            **variables(server, "binlog_row_%"),
            "binlog_row_metadata": "FULL",
            "binlog_row_image": "NOBLOB",
        }


def test_given_directory_is_kept(tmp_path: Path) -> None:
    """With a directory of one's own, rows and binlog are there the next time."""
    for turn in (1, 2):
        with (
            start_server("mariadb", directory=tmp_path / "d") as server,
            server.connect() as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("CREATE DATABASE IF NOT EXISTS kept")
            cursor.execute("SHOW BINARY LOGS")
            assert len(cursor.fetchall()) == turn
    assert (tmp_path / "d" / "data" / "kept").is_dir()


def test_two_mysql_copies_are_two_servers() -> None:
    """Each new data directory has a server UUID of its own, so that GTIDs of two servers never mix."""
    with start_server("mysql") as one, start_server("mysql") as two:
        assert one.port != two.port
        assert variables(one, "server_uuid") != variables(two, "server_uuid")


def test_bad_option_shows_the_log() -> None:
    """A server that does not start raises with its own words, and leaves no folder."""
    with (
        pytest.raises(ServerUnavailable, match="no-such-option") as caught,
        start_server("mariadb", options=["--no-such-option"]),
    ):
        pass
    assert "did not start" in str(caught.value)


def test_unknown_kind() -> None:
    """An unknown kind names the known ones."""
    with pytest.raises(ServerUnavailable, match="mariadb118"), start_server("oracle"):
        pass


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
@pytest.mark.parametrize("victim", ["starter", "guard"])
def test_killed_starter_leaves_no_server(kind: str, victim: str) -> None:
    """kill -9 of the starter ends the server and removes its folder; kill -9 of the guard ends the server too."""
    code = f"""
        import sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from tests.servers.server import start_server
        with start_server({kind!r}) as server:
            print(server.pid, server._guard.pid, server.directory, flush=True)
            time.sleep(600)
    """
    starter = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert starter.stdout
    try:
        server, guard, folder = starter.stdout.readline().split()
        assert alive(int(server))
        os.kill(starter.pid if victim == "starter" else int(guard), signal.SIGKILL)
        assert wait_until(lambda: not alive(int(server)))
        if victim == "starter":
            assert wait_until(lambda: not Path(folder).exists())
    finally:
        # SIGINT lets the starter clean up where it still lives.
        starter.send_signal(signal.SIGINT)
        starter.wait()
        starter.stdout.close()


def test_a_thread_may_start_a_server() -> None:
    """The end of the thread that started a server does not end the server."""
    import threading

    manager = start_server("mariadb")
    entered: list[Server] = []
    thread = threading.Thread(target=lambda: entered.append(manager.__enter__()))
    thread.start()
    thread.join()
    try:
        time.sleep(0.5)
        assert alive(entered[0].pid)
        assert variables(entered[0], "log_bin")
    finally:
        manager.__exit__(None, None, None)


def test_database_fixture(any_server: Server, database: str) -> None:
    """`database` is on the server that the test uses, and empty."""
    with any_server.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        assert cursor.fetchall() == ()
        cursor.execute("CREATE TABLE t (a INT)")


def test_options_of_the_server_come_last() -> None:
    """What follows -- goes to the server, wherever the other options stand."""
    found = developer.parse(["mariadb", "--port", "3310", "--", "--log-bin-compress=ON", "--x"])
    assert (found.kind, found.port, found.option) == ("mariadb", 3310, ["--log-bin-compress=ON", "--x"])
    assert developer.parse(["--keep", "mysql", "--", "--a"]).option == ["--a"]
    assert developer.parse(["mysql"]).option == []
