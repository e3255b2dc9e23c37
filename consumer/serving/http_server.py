"""A small HTTP server for people's and Prometheus' eyes: pages, streams of events and short answers; with a password and TLS where wanted."""

from __future__ import annotations

import io
import logging
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from shmstore.consumer.serving.access import Login

PATIENCE: Final = 5.0  # seconds in which a client's request comes as a whole, and that it may take nothing of the answer
MOST_CONNECTIONS: Final = 200  # at once, a thread each
MOST_OF_ADDRESS: Final = 64  # of these, from one address: the others' continue
QUIET: Final = 10.0  # seconds between two lines of a kind about an address
#: What every server refuses, each with its counter and a line in the log.
REFUSED: Final = ("connection", "login", "origin", "slow")
MOST_BODY: Final = 1 << 16  # bytes of a request's body

_log = logging.getLogger("shmstore.http")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What was asked, and from which address, as which user ("" where no password is needed). `headers` have lower-case names; of a parameter
    that is there twice, the last counts."""

    method: str
    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    address: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. A body that is no bytes is sent piece by piece as it comes, until it ends or the client goes."""

    status: int
    type: str
    body: bytes | Iterable[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)


def foreign(request: HttpRequest) -> bool:
    """Whether a browser sent this for a page of another site: that page cannot read the answer, and must not make us work for it.

    A link to a page is fine. What is no browser says nothing of where it comes from."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        navigates = request.headers.get("sec-fetch-mode") == "navigate" and request.headers.get("sec-fetch-dest") == "document"
        return site not in ("same-origin", "none") and not (navigates and request.method == "GET")
    origin = request.headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()


def plain(status: int, text: str) -> Response:
    """Return an answer of one line of text."""
    return Response(status, "text/plain; charset=utf-8", f"{text}\n".encode())


Respond = Callable[[HttpRequest], Response]


class HttpServer(ThreadingHTTPServer):
    """Answers each request with what `respond` returns, in a thread of its own. Port 0 takes a free one.

    Raises OSError where the address cannot be had. `serve_forever` serves; `stop` ends it, from any thread;
    `server_close` waits a moment for answers under way, which hold stores. `start` serves in a thread; then `close` does all that.
    """

    def __init__(
        self, address: tuple[str, int], respond: Respond, *, login: Login | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        self.respond = respond
        self.login = login
        self.closing = threading.Event()
        self._tls = tls
        self._answers: dict[threading.Thread, str] = {}  # each with its client's address
        self._noted: dict[tuple[str, str], tuple[float, int]] = {}  # when a line was written, and how many were not since
        self._noting = threading.Lock()
        self.refused: Counter[str] = Counter()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Take the address, and ask no name server for its name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def start(self) -> None:
        """Serve in a thread of its own."""
        threading.Thread(target=self.serve_forever, args=(0.1,), name="http", daemon=True).start()

    def close(self) -> None:
        """End what `start` began."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; where there are too many, in all or of this address, not at all."""
        address = str(client_address[0])
        self._answers = {thread: of for thread, of in list(self._answers.items()) if thread.is_alive()}
        held = sum(of == address for of in self._answers.values())
        if len(self._answers) >= MOST_CONNECTIONS or held >= MOST_OF_ADDRESS:
            what = f"it holds {held} of {len(self._answers)}; allowed are {MOST_OF_ADDRESS} of {MOST_CONNECTIONS}"
            self.note("connection", address, f"connection from {address} refused: {what}")
            self.shutdown_request(request)
            return
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self._answers[thread] = address
        thread.start()

    def note(self, kind: str, address: str, text: str) -> None:
        """Count what was refused, and write a line of it: of a kind and an address one in `QUIET` seconds."""
        now = time.monotonic()
        with self._noting:
            self.refused[kind] += 1
            at, skipped = self._noted.pop((kind, address), (now - QUIET, 0))
            quiet = now - at < QUIET
            self._noted[kind, address] = (at, skipped + 1) if quiet else (now, 0)
            while len(self._noted) > 1024:  # the longest ago
                del self._noted[next(iter(self._noted))]
        if not quiet:
            _log.warning("%s%s", text, f" (and {skipped} more like it)" if skipped else "")

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer on a connection, after TLS's handshake where there is one: here and not where it is taken, so that it stops no other client."""
        if self._tls is None:
            _Handler(request, client_address, self)
            return
        request.settimeout(PATIENCE)
        with self._tls.wrap_socket(request, server_side=True) as wrapped:
            _Handler(wrapped, client_address, self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away or speak no TLS, unless asked; the rest is a bug, and said."""
        known = isinstance(sys.exc_info()[1], OSError)
        _log.log(logging.DEBUG if known else logging.ERROR, "an answer to %s failed", client_address[0], exc_info=True)

    def server_close(self) -> None:
        """Stop listening."""
        self.closing.set()
        super().server_close()
        until = time.monotonic() + PATIENCE
        for thread in self._answers:
            thread.join(max(0.0, until - time.monotonic()))

    def stop(self) -> None:
        """End `serve_forever` soon; returns at once."""
        self.closing.set()
        threading.Thread(target=self.shutdown).start()  # shutdown() waits for the loop, which may be what a signal interrupted


class _Within(io.RawIOBase):
    """What comes from a socket until a deadline: a client that sends a byte now and then holds its thread no longer than one that sends none."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what exists, or wait for it. Raises `TimeoutError` at the deadline."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the request did not come within {PATIENCE:g} s")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer
    timeout = PATIENCE
    server_version, sys_version = "shmstore", ""

    def setup(self) -> None:
        """Called by the base: the request is read within a deadline."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Within(self.connection, time.monotonic() + PATIENCE))

    def log_error(self, format: str, *args: object) -> None:
        """Called by the base: where a request did not come in time, among others."""
        if args and isinstance(args[0], TimeoutError):
            address = self.client_address[0]
            self.server.note("slow", address, f"request from {address} refused: it did not come within {PATIENCE:g} s")

    def do_GET(self) -> None:
        """Answer."""
        self._answer()

    def do_POST(self) -> None:
        """Answer."""
        self._answer()

    def _answer(self) -> None:
        response = self._response()
        self.connection.settimeout(PATIENCE)
        body = response.body
        self.send_response(response.status)
        self.send_header("Content-Type", response.type)
        for name, value in response.headers.items():
            self.send_header(name, value)
        if isinstance(body, bytes):
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        try:
            self.end_headers()
            for piece in body:
                self.wfile.write(piece)
        finally:
            if hasattr(body, "close"):  # a generator, which holds stores
                with suppress(ValueError):
                    body.close()

    def _response(self) -> Response:
        login = self.server.login
        authorization = self.headers.get("Authorization", "")
        if login is not None and not login.admits(authorization)[0]:
            if authorization:  # a browser asks without one first
                address, user = self.client_address[0], login.admits(authorization)[1]
                self.server.note(
                    "login", address, f"login refused from {address}: wrong user name or password for user {user[:64]!r}"
                )
            asked = {"WWW-Authenticate": 'Basic realm="shmstore", charset="UTF-8"'}
            return Response(401, "text/plain; charset=utf-8", b"a password is needed\n", asked)
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdigit() and len(length) <= 9 and int(length) <= MOST_BODY):
            return plain(413, f"a body has at most {MOST_BODY} bytes")
        try:
            parts = urlsplit(self.path)
            request = HttpRequest(
                self.command,
                parts.path,
                dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=20)),
                {name.lower(): value for name, value in self.headers.items()},
                self.rfile.read(int(length)),
                str(self.client_address[0]),
                login.admits(authorization)[1] if login is not None and login.needed else "",
            )
            if foreign(request):
                address = self.client_address[0]
                self.server.note("origin", address, f"request from {address} refused: a page of another origin sent it")
                return plain(403, "a page of another origin asks for this")
        except ValueError as error:
            return plain(400, f"this is no request: {error}")
        try:
            return self.server.respond(request)
        except Exception as error:
            return plain(503, str(error))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a look every few seconds is no news."""
