"""producer/connection/password.py: a command that prints the password, and the clear text that tokens travel in."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from shmstore import producer
from shmstore.producer.connection import password as module
from shmstore.producer.connection.password import password
from shmstore.producer.connection.session import connect
from shmstore.producer.settings import ServerAddress, Settings
from tests.producer.connection.test_session import answering, hello, packet, switch
from tests.producer.running import wait_for
from tests.servers.server import start_server

HERE = ServerAddress("db1", 3307)


def asked(command: str) -> str:
    return password(Settings(store="s", user="repl", password_command=command), HERE)


def test_what_the_command_prints() -> None:
    """The password is what stands on stdout, without the line's end; the command knows which server it is for."""
    assert asked('echo "t:$SHMSTORE_HOST:$SHMSTORE_PORT:$SHMSTORE_USER"') == "t:db1:3307:repl"
    assert asked("printf ' a b '") == " a b "
    assert asked("cat; echo none") == "none"  # stdin is empty


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "echo geheim; echo 'Unable to locate credentials' >&2; exit 253",
            "ended with exit code 253: Unable to locate credentials",
        ),
        ("printf 'geheim\\n'; echo 'bad token geheim' >&2; exit 1", r"ended with exit code 1: bad token \*\*\*"),
        ("exit 3", "ended with exit code 3: it wrote nothing to stderr"),
        ("kill -9 $$", "ended with SIGKILL: "),
        ("true", "printed nothing: it must print the password to stdout"),
        ("echo; echo 'log in first' >&2", "printed nothing: log in first"),
        ("echo geheim; echo usage", "printed 2 lines: it must print the password alone, in one line"),
        ("shmstore-is-no-such-program", "ended with exit code 127: .*not found"),
    ],
)
def test_a_command_that_gives_none(command: str, says: str) -> None:
    """The error names the server, how the command ended and what it complained of, in one line, and never what it printed."""
    with pytest.raises(producer.LoginRefused, match=f"^no password for db1:3307: password_command {says}") as raised:
        asked(command)
    assert "geheim" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_command_that_does_not_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After its time it is ended, with what it started, although that holds its output open."""
    monkeypatch.setattr(module, "COMMAND_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(producer.LoginRefused, match=r"was not done after 0\.5 seconds, and was ended: run it by hand"):
        asked(f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    assert time.monotonic() - began < 60
    started = int((tmp_path / "pid").read_text())
    wait_for(lambda: not _lives(started), "what it started to end")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.server
def test_each_connection_asks_anew(tmp_path: Path) -> None:
    """A token that is good for one connection only is enough, for questions and for the producer's stream."""
    calls = tmp_path / "calls"
    with start_server("mariadb") as server:
        with server.connect() as link, link.cursor() as cursor:
            cursor.execute("CREATE USER t@'%' IDENTIFIED BY 'token-1'")
        settings = Settings(
            store="unused",
            port=server.port,
            user="t",
            password_command=f"echo x >> {calls}; echo token-$(grep -c x {calls})",
        )
        for number in (1, 2, 3):
            with closing(connect(settings, settings.endpoints()[0])) as session:
                assert session.query("SELECT 1") == [(1,)]
            with server.connect() as link, link.cursor() as cursor:
                cursor.execute(f"ALTER USER t@'%' IDENTIFIED BY 'token-{number + 1}'")
        calls.write_text("")
        with pytest.raises(producer.LoginRefused, match="refused 't'"):
            connect(settings, settings.endpoints()[0])


# ---------------------------------------------------------------- clear text

CAN_TLS = 0x00000800


@contextmanager
def token_server(certificate: Path) -> Iterator[tuple[int, list[bytes]]]:
    """The port of a server with TLS that asks for the password in clear text and takes it, and what it was sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    came: list[bytes] = []
    first = bytearray(hello())
    at = first.index(b"12345678\x00") + 9
    first[at : at + 2] = struct.pack("<H", struct.unpack_from("<H", first, at)[0] | CAN_TLS)

    def serve(listening: socket.socket) -> None:
        with suppress(OSError):
            plain = listening.accept()[0]
            plain.sendall(bytes(first))
            plain.recv(36, socket.MSG_WAITALL)  # the request for TLS
            with context.wrap_socket(plain, server_side=True) as link:
                link.recv(4096)
                link.sendall(packet(3, switch("mysql_clear_password")))
                came.append(link.recv(4096)[4:])
                link.sendall(packet(5, b"\x00\x00\x00\x02\x00\x00\x00"))
                while request := link.recv(4096):  # what a new connection sets
                    link.sendall(packet(request[3] + 1, b"\x00\x00\x00\x02\x00\x00\x00"))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            yield listening.getsockname()[1], came
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("token") / "here.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(path.with_suffix(".key")), "-out", str(path)]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return path


def test_a_token_over_tls(certificate: Path) -> None:
    """A cloud's token goes to the server as it is, over TLS."""
    options: dict[str, Any] = {"tls": "verify-identity", "tls_ca": str(certificate), "password_command": "echo token"}
    with token_server(certificate) as (port, came):
        settings = Settings(store="unused", host="127.0.0.1", port=port, user="repl", **options)
        connect(settings, settings.endpoints()[0]).close()
    assert came == [b"token\x00"]


@pytest.mark.parametrize("tls", ["disabled", "preferred"])
def test_no_password_in_clear_text(tls: str) -> None:
    """Without TLS a server that asks for the password itself does not get it: any server could ask."""
    with answering(switch("mysql_clear_password")) as port:
        settings = Settings(store="unused", host="127.0.0.1", port=port, user="repl", password="geheim", tls=tls)
        with pytest.raises(
            producer.LoginRefused, match=r"in clear text, and the connection has no TLS: set tls = verify-identity"
        ):
            connect(settings, settings.endpoints()[0])
