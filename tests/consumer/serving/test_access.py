"""consumer/serving/access.py and consumer/serving/http_server.py: passwords, files with secrets, TLS, and what clients get that misbehave."""

from __future__ import annotations

import base64
import http.client
import os
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore.consumer.serving import http_server
from shmstore.consumer.serving.access import Login, SecretFile, tls_context
from shmstore.consumer.serving.http_server import HttpRequest, HttpServer, Respond, Response, plain
from tests.certificates import self_signed


@contextmanager
def serving(respond: Respond, login: Login | None = None, tls: ssl.SSLContext | None = None) -> Iterator[HttpServer]:
    server = HttpServer(("127.0.0.1", 0), respond, login=login, tls=tls)
    server.start()
    try:
        yield server
    finally:
        server.close()


def ask(server: HttpServer, path: str = "/", method: str = "GET", body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@given(
    st.text(st.characters(exclude_characters=":", exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))
)
def test_a_login_admits_its_account_alone(user: str, password: str) -> None:
    """User name and password, or the password as a bearer token; nothing else. An empty password lets every client in."""
    login = Login(user, password)
    assert login.admits(basic(user, password))[0]
    assert login.needed is bool(password)
    if password:
        assert not login.admits(basic(user, password + "x"))[0]
        assert not login.admits("")[0]
        assert not login.admits("Basic ???")[0]
        assert login.admits(basic(user + "x", password))[0] is (not user)
    if password == password.strip():
        assert login.admits(f"Bearer {password}")[0]


def test_a_secret_is_read_again(tmp_path: Path) -> None:
    """What replaces the file, or is written into it, counts from then on; while it is missing or empty, what was in it last."""
    file = tmp_path / "secret"
    file.write_text("one\n")
    secret = SecretFile(file)
    login = Login("", secret)
    assert (secret(), login.admits("Bearer one")[0]) == ("one", True)
    (tmp_path / "next").write_text("another\n")
    os.replace(tmp_path / "next", file)
    assert (login.admits("Bearer one")[0], login.admits("Bearer another")[0]) == (False, True)
    file.unlink()
    assert secret() == "another"
    file.write_text("")
    assert secret() == "another"
    file.write_text("third")
    assert secret() == "third"
    file.write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        SecretFile(file)
    with pytest.raises(FileNotFoundError):
        SecretFile(tmp_path / "none")


def test_a_password_is_asked_for() -> None:
    """Nothing is answered without it, and `respond` does not hear of it."""
    seen: list[HttpRequest] = []

    def respond(request: HttpRequest) -> Response:
        seen.append(request)
        return plain(200, "in")

    with serving(respond, Login("ada", "secret")) as server:
        assert ask(server)[0] == 401
        assert ask(server, Authorization=basic("ada", "guess"))[0] == 401
        assert seen == []
        assert ask(server, "/a%20b?x=1&y=%26", Authorization=basic("ada", "secret")) == (200, b"in\n")
        assert ask(server, "/", "POST", b"body", Authorization="Bearer secret")[0] == 200
    assert [(each.method, each.path, dict(each.parameters), each.body) for each in seen] == [
        ("GET", "/a%20b", {"x": "1", "y": "&"}, b""),
        ("POST", "/", {}, b"body"),
    ]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_tls(tmp_path: Path) -> None:
    """It answers in the certificate's name; who speaks no TLS, or says nothing, gets nothing and stops no other."""
    chain, key = self_signed(tmp_path)
    with (
        serving(lambda request: plain(200, "safe"), tls=tls_context(chain, key)) as server,
        socket.create_connection(("127.0.0.1", server.server_port)),  # says nothing
        socket.create_connection(("127.0.0.1", server.server_port)) as wrong,
    ):
        wrong.sendall(b"GET / HTTP/1.0\r\n\r\n")
        context = ssl.create_default_context(cafile=chain)
        connection = http.client.HTTPSConnection("localhost", server.server_port, timeout=60, context=context)
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"safe\n"
        connection.close()
    with pytest.raises(ValueError, match="not a certificate chain and its key"):
        tls_context(key, key)
    with pytest.raises(FileNotFoundError, match="none"):
        tls_context(str(tmp_path / "none"), key)


def test_clients_that_misbehave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies without end, lengths that are none, methods that are none, more connections than there are threads: each is answered or closed."""
    with serving(lambda request: plain(200, "fine")) as server:
        assert ask(server, "/", "POST", **{"Content-Length": "99999999999"})[0] == 413
        assert ask(server, "/", "POST", **{"Content-Length": "-1"})[0] == 413
        assert ask(server, "/", "DELETE")[0] == 501
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as odd:
            odd.sendall(b"GET http://[/ HTTP/1.0\r\n\r\n")
            assert odd.recv(13) == b"HTTP/1.0 400 "
        monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 3)  # not before: a thread may end later than its client has read
        held = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(10)]
        closed = 0
        for each in held:
            each.settimeout(60)
        deadline = time.monotonic() + 60
        while not closed and time.monotonic() < deadline:
            closed = sum(each.recv(1) == b"" for each in held[-1:])
        assert closed == 1
        for each in held:
            each.close()
        while True:  # as soon as those are gone
            try:
                assert ask(server)[0] == 200
                break
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < deadline
                time.sleep(0.01)


def test_a_stream_ends_with_its_client() -> None:
    """A body that comes piece by piece is closed when its client has gone, and when the server ends."""
    ended: list[str] = []

    def pieces() -> Iterator[bytes]:
        try:
            while not server.closing.wait(0.01):
                yield b"piece\n" * 1000
        finally:
            ended.append("ended")

    with serving(lambda request: Response(200, "text/plain", pieces())) as server:
        for gone in (True, False):
            connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=60)
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert connection.recv(4).startswith(b"HTTP")
            if gone:
                connection.close()
                deadline = time.monotonic() + 60
                while not ended:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
    connection.close()
    assert len(ended) == 2


def connected(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=30)


def trickle(client: socket.socket) -> None:
    for _ in range(100):  # for ten seconds
        client.sendall(b"G")
        time.sleep(0.1)


def test_a_request_comes_in_time_as_a_whole(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A client that sends a byte now and then holds its thread no longer than one that sends none; that is counted, and written."""
    with serving(lambda _: plain(200, "here")) as server:
        with monkeypatch.context() as patch:
            patch.setattr(http_server, "PATIENCE", 1.0)
            with connected(server) as slow, pytest.raises((BrokenPipeError, ConnectionResetError)):
                trickle(slow)
            assert server.refused["slow"] == 1
        assert ask(server)[0] == 200
    assert "request from 127.0.0.1 refused: it did not come within 1 s" in caplog.text


def test_one_address_leaves_connections_to_others(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """More connections than an address may have are refused, counted, and written in one line."""
    monkeypatch.setattr(http_server, "MOST_OF_ADDRESS", 3)
    with serving(lambda _: plain(200, "here")) as server, ExitStack() as held:
        for _ in range(3):
            held.enter_context(connected(server))
        for _ in range(2):
            with connected(server) as one_more:
                assert one_more.recv(1) == b""
        assert server.refused["connection"] == 2
    assert caplog.text.count("connection from 127.0.0.1 refused") == 1


def test_a_length_of_any_digits_is_refused() -> None:
    """A Content-Length that Python would not read is too long like any other."""
    with serving(lambda _: plain(200, "here")) as server, connected(server) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n")
        assert client.makefile("rb").readline().split()[1] == b"413"


def test_wrong_passwords_are_counted_and_written(caplog: pytest.LogCaptureFixture) -> None:
    """One line an address, without the password; a browser's first question, which has none, is no wrong one."""
    with serving(lambda _: plain(200, "here"), Login("me", "right")) as server:
        assert ask(server)[0] == 401
        assert server.refused["login"] == 0
        for _ in range(3):
            assert ask(server, Authorization=basic("you", "wr0ng"))[0] == 401
        assert server.refused["login"] == 3
    assert caplog.text.count("login refused from 127.0.0.1: wrong user name or password for user 'you'") == 1
    assert "wr0ng" not in caplog.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://elsewhere"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://the-name-of-a-proxy"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
def test_pages_of_others_get_nothing(headers: dict[str, str], status: int) -> None:
    """What a page of another origin asks for is not answered, whichever way the browser says so; a link is."""
    asked = []

    def respond(request: HttpRequest) -> Response:
        asked.append(request)
        return plain(200, "here")

    with serving(respond) as server:
        assert ask(server, **headers)[0] == status
        own = {"Origin": f"http://127.0.0.1:{server.server_port}"}
        assert ask(server, method="POST", **own)[0] == 200
        assert server.refused["origin"] == (status == 403)
    assert len(asked) == 1 + (status == 200)
