"""`shmstore produce`, `run`, `doctor` and `serve` against a real MariaDB, run as users run them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmstore import EventStore
from shmstore.consumer.wire.protocol import messages
from shmstore.consumer.wire.protocol.messages import PacketType
from tests.consumer.wire.harness import RawClient, events
from tests.servers.server import Server, start_server

pytestmark = pytest.mark.server
ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "shmstore"]
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(ROOT)


@pytest.fixture
def name() -> Iterator[str]:
    chosen = f"clis{os.getpid()}_{next(_numbers)}"
    yield chosen
    if chosen in EventStore.names():
        EventStore.unlink(chosen)
    assert left(chosen) == []


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server whose settings these tests may change, with an account that may do everything but replicate."""
    with start_server("mariadb") as server:
        execute(
            server,
            "CREATE USER weak@'%' IDENTIFIED BY 'weak'",
            "GRANT SELECT ON *.* TO weak@'%'",
            "CREATE USER repl@'%' IDENTIFIED BY 's3cret-word'",
            "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO repl@'%'",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, note VARCHAR(40))",
        )
        yield server


def execute(server: Server, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def left(name: str) -> list[str]:
    return [entry for entry in os.listdir("/dev/shm") if name in entry]


def refused(*words: str, **environment: str) -> str:
    """Run the command, want exit code 2 and one line on stderr; return the line."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1, f"more than one line:\n{done.stderr}"
    return done.stderr


def started(*words: str, **environment: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, *words], text=True, env={**os.environ, **environment}, **pipes)


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def produces(name: str) -> bool:
    if name not in EventStore.names():
        return False
    with EventStore.attach(name) as store:
        return store.stat().stream.connected  # its role alone is taken before it knows what "latest" is


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_produce_and_tail(own: Server, name: str, number: signal.Signals, code: int) -> None:
    """What is committed on the server comes out of `tail`; a signal ends the producer in order, and the next one continues."""
    execute(own, "TRUNCATE shop.orders")
    words = ["produce", "--port", str(own.port), "--user", "repl", "--store", name, "--include", "shop.orders"]
    tail = [*COMMAND, "tail", name, "--subscription", "out", "--tables", "shop.*", "--count", "2"]
    seen = []
    for statement in ("INSERT INTO shop.orders VALUES (1, 'ä')", "INSERT INTO shop.orders VALUES (3, 'c')"):
        producer = started(*words, SHMSTORE_PASSWORD="s3cret-word")
        until(lambda: produces(name), producer)
        execute(own, statement)
        if not seen:
            execute(own, "INSERT INTO shop.orders VALUES (2, NULL)")
        done = subprocess.run(tail, capture_output=True, text=True, timeout=60, encoding="utf-8")
        seen += [json.loads(line) for line in done.stdout.splitlines()]
        producer.send_signal(number)
        out, log = producer.communicate(timeout=60)
        assert (producer.returncode, out) == (code, ""), log
        assert "put 2 rows" in log
        assert "s3cret-word" not in log
        execute(own, "DELETE FROM shop.orders WHERE id = 1")  # while no process reads
    assert [(each["op"], each["before"], each["after"]) for each in seen] == [
        ("insert", None, {"id": 1, "note": "ä"}),
        ("insert", None, {"id": 2, "note": None}),
        ("delete", {"id": 1, "note": "ä"}, None),
        ("insert", None, {"id": 3, "note": "c"}),
    ]


def test_refusals_name_the_fix(own: Server, name: str) -> None:
    """A server that cannot be read from as it is: one line that names the fix, exit code 2, no store left behind."""
    at = ["--port", str(own.port), "--store", name]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: no other process gets the port, and none answers there
        assert "is the server running" in refused("produce", "--port", str(taken.getsockname()[1]), "--store", name)
    assert "no.such.host" in refused("produce", "--host", "no.such.host.invalid", "--store", name)
    complaint = refused("produce", *at, "--user", "repl", SHMSTORE_PASSWORD="wr0ng-word")
    assert "password" in complaint
    assert "wr0ng-word" not in complaint
    complaint = refused("produce", *at, "--user", "weak", SHMSTORE_PASSWORD="weak")
    assert "GRANT" in complaint
    assert left(name) == []
    for variable, bad, good in (
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "NO_LOG", "FULL"),
    ):
        execute(own, f"SET GLOBAL {variable} = '{bad}'")
        complaint = refused("produce", *at, "--schema-history", "off")
        execute(own, f"SET GLOBAL {variable} = '{good}'")
        assert f"{variable} = {bad}" in complaint
        assert f"SET GLOBAL {variable} = " in complaint
    assert "binlog.000777" in refused("produce", *at, "--start", "binlog.000777:4")
    assert "--start" in refused("produce", *at, "--start", "soon") or "start is 'soon'" in refused(
        "produce", *at, "--start", "soon"
    )
    assert left(name) == []


def test_binlog_off(name: str) -> None:
    """A server without a binlog is refused with the settings that turn it on."""
    with start_server("mariadb", options=["--skip-log-bin"]) as server:
        assert "log_bin" in refused("produce", "--port", str(server.port), "--store", name)
        done = subprocess.run([*COMMAND, "doctor", "--port", str(server.port)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1, done.stderr
        assert "fail  log_bin" in done.stdout


def test_second_producer(own: Server, name: str) -> None:
    """A second producer on a store is refused with the first one's pid, and the first continues."""
    words = ["produce", "--port", str(own.port), "--store", name]
    producer = started(*words)
    try:
        until(lambda: produces(name), producer)
        assert f"pid {producer.pid}" in refused(*words)
        assert f"pid {producer.pid}" in refused("rm", name)
        assert producer.poll() is None
    finally:
        producer.terminate()
        producer.communicate(timeout=60)


def test_run_reads_the_configuration(own: Server, name: str, tmp_path: Path) -> None:
    """`run` produces from every source of a TOML file until SIGTERM, and reads the file again on SIGHUP; an unknown key is refused with a
    suggestion."""
    secret = tmp_path / "password"
    secret.write_text("s3cret-word\n")
    config = tmp_path / "shmstore.toml"
    sources = "".join(f'[source.{part}]\nstore = "{name}-{part}"\ninclude = ["shop.*"]\n' for part in ("a", "b"))
    config.write_text(f'[producer]\nport = {own.port}\nuser = "repl"\npassword_file = "{secret}"\n{sources}')
    process = started("run", "--config", str(config))
    try:
        until(lambda: produces(f"{name}-a") and produces(f"{name}-b"), process)
        process.send_signal(signal.SIGHUP)
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert f"{name}-a: put" in log
    assert f"{name}-b: put" in log
    for part in ("a", "b"):
        EventStore.unlink(f"{name}-{part}")
    config.write_text(config.read_text().replace("include", "inclued"))
    assert "include" in refused("run", "--config", str(config))


def test_doctor(own: Server) -> None:
    """`doctor` lists what it checked; with a setting that ruins a decode, what is wrong and the SQL that fixes it, exit code 1."""
    words = [*COMMAND, "doctor", "--port", str(own.port), "--user", "repl"]
    environment = {**os.environ, "SHMSTORE_PASSWORD": "s3cret-word"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok    binlog_format: ROW" in done.stdout
    execute(own, "SET GLOBAL binlog_format = 'MIXED'")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    execute(own, "SET GLOBAL binlog_format = 'ROW'")
    assert done.returncode == 1
    assert "fail  binlog_format: MIXED, wanted ROW" in done.stdout
    assert "fix: SET GLOBAL binlog_format" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve(name: str, number: signal.Signals) -> None:
    """`serve` says where it listens, greets a client with canal's handshake, and ends in order on SIGTERM and Ctrl-C."""
    with EventStore.create(name, capacity=64, log=False):
        process = started("serve", name, "--listen", "127.0.0.1:0")
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("shmstore: listening on 127.0.0.1:"), line
            with socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2])), timeout=30) as client:
                assert client.recv(64)[4:8] == bytes.fromhex("10011801")
        finally:
            process.send_signal(number)
            _, log = process.communicate(timeout=60)
        assert process.returncode == (130 if number == signal.SIGINT else 0), log


def test_serve_takes_limits(name: str, tmp_path: Path) -> None:
    """The server's limits and its state folder are options; a store that is not there yet is reported, not refused."""
    limits = ["--max-frame=100", "--max-reply=4096", "--max-outstanding=1", "--auth-timeout=1", "--idle-timeout=60"]
    process = started("serve", name, "--listen=127.0.0.1:0", f"--state={tmp_path}", *limits)
    try:
        assert process.stderr is not None
        port = int(process.stderr.readline().rpartition(":")[2])
        assert (
            process.stderr.readline()
            == f"shmstore: store {name!r} does not exist yet: its clients are refused until it is created\n"
        )
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            assert client.recv(64)
            assert client.recv(64) == b""  # no login within a second
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            assert client.recv(64)
            client.sendall(struct.pack(">I", 101))
            assert b"101 bytes; allowed are 0 to 100" in client.recv(1024)
        with EventStore.create(name, capacity=64, log=False) as store:
            reader = RawClient(port, name)
            reader.subscribe()
            store.put(events([1]))
            reader.get(1)
            store.put(events([2]))
            reader.send(PacketType.GET, messages.Get(**reader.name, fetch_size=1))
            assert b"allowed are 1: ack" in reader.read()
            assert list((tmp_path / name).glob("*"))
            reader.socket.close()
    finally:
        process.terminate()
        process.communicate(timeout=60)
