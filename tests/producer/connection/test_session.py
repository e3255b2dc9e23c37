"""producer/connection/session.py: logins that fail for want of an authentication plugin."""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from shmstore import producer
from shmstore.producer.connection.server_errors import translate
from shmstore.producer.connection.session import LONGEST, connect
from shmstore.producer.settings import ServerAddress
from tests.servers.server import Server

NATIVE = "mysql_native_password"
OTHER = r"ALTER USER \.\.\. IDENTIFIED VIA mysql_native_password"


def packet(number: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body))[:3] + bytes([number]) + body


def hello() -> bytes:
    """The first packet of a server: it can do the plugins, and no TLS."""
    can = 0x00000001 | 0x00000200 | 0x00008000 | 0x00080000  # long password, protocol 4.1, secure connection, plugins
    return packet(
        0,
        b"\x0a11.8.6-MariaDB\x00"
        + struct.pack("<I", 7)
        + b"12345678\x00"
        + struct.pack("<HBHH", can & 0xFFFF, 45, 2, can >> 16)
        + bytes([21])
        + bytes(10)
        + b"123456789012\x00"
        + NATIVE.encode()
        + b"\x00",
    )


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """The port of a server that says `answer` to each login."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                taken = listening.accept()[0]
                with taken:
                    taken.sendall(hello())
                    taken.recv(4096)
                    taken.sendall(packet(2, answer))
                    taken.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def switch(plugin: str, data: bytes = b"") -> bytes:
    return b"\xfe" + plugin.encode() + b"\x00" + data


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (switch("client_ed25519", bytes(32)), rf"plugin client_ed25519, .* PyNaCl: pip install PyMySQL\[ed25519\], or {OTHER}"),
        (switch("parsec", bytes(32)), rf"plugin parsec, which is not supported here: {OTHER}"),
        (switch("auth_gssapi_client"), rf"plugin auth_gssapi_client, which is not supported here: {OTHER}"),
        (switch("dialog", b"\x02One-time code: "), rf"plugin dialog, which is not supported here: {OTHER}"),
        (
            b"\xff" + struct.pack("<H", 1524) + b"#HY000Plugin 'ldap' is not loaded",
            rf"plugin ldap, which the server itself has not .* {OTHER}",
        ),
    ],
    ids=["ed25519", "parsec", "gssapi", "dialog", "server"],
)
def test_a_plugin_that_is_missing_is_named(answer: bytes, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin that the account is made for is named, with what fixes it, in one line that does not blame the password."""
    monkeypatch.setitem(sys.modules, "nacl", None)  # as where it is not installed
    with answering(answer) as port:
        settings = producer.Settings(store="unused", host="127.0.0.1", port=port, user="reader", password="right", tls="disabled")
        with pytest.raises(producer.LoginRefused, match=rf"127\.0\.0\.1:{port} wants 'reader' to log in with {says}") as raised:
            connect(settings, ServerAddress("127.0.0.1", port))
    assert "check user" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_wrong_password_is_still_blamed() -> None:
    """A login that was refused for its password says so."""
    with answering(b"\xff" + struct.pack("<H", 1045) + b"#28000Access denied for user 'reader'@'localhost'") as port:
        settings = producer.Settings(store="unused", host="127.0.0.1", port=port, user="reader", password="no", tls="disabled")
        with pytest.raises(producer.LoginRefused, match=r"refused 'reader': Access denied .*; check user, password"):
            connect(settings, ServerAddress("127.0.0.1", port))


def test_a_missing_package_is_named() -> None:
    """MySQL's own plugins need a package where the link has no TLS: it is named."""
    error = RuntimeError("'cryptography' package is required for sha256_password or caching_sha2_password auth methods")
    meant = translate(error, ServerAddress("db", 3306), user="'reader'")
    assert isinstance(meant, producer.LoginRefused)
    assert str(meant).startswith("db:3306 wants 'reader' to log in with plugin caching_sha2_password or sha256_password")
    assert "pip install cryptography, or set tls" in str(meant)


@pytest.mark.server
@pytest.mark.parametrize(("seconds", "idle", "pause"), [(30.0, 15, 5), (1.0, 1, 1), (1e6, LONGEST, LONGEST)])
def test_a_host_that_is_gone_is_noticed_though_a_server_may_be_silent(
    mariadb: Server, seconds: float, idle: int, pause: int
) -> None:
    """The kernel asks the host of a silent server whether it is there, so that reading fails after about read_timeout where it is not."""
    settings = producer.Settings(store="s", host=mariadb.host, port=mariadb.port, user=mariadb.user, read_timeout=seconds)
    session = connect(settings, settings.endpoints()[0])
    made = session.command(b"\x0e")  # COM_PING
    assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    found = [
        made.getsockopt(socket.IPPROTO_TCP, each) for each in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    ]
    session.close()
    assert found == [idle, pause, 3]
