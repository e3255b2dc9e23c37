"""Endpoint: what every server of Arrow Flight here has in common.

It lets in clients that know the password, answers a limited number of calls at once, sends errors in a form that our clients know (never a traceback), and
ends connections that are idle. What is answered, its subclasses know.

gRPC calls a method in a thread of its own, and the answer's batches leave from there; a client that does not read stops that thread alone.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import flight

from shmstore import ShmStoreError
from shmstore.consumer.flight.connections import Connections, Place, place_of
from shmstore.consumer.flight.login import Handshake, KeepHeaders
from shmstore.consumer.flight.metrics import FlightMetrics
from shmstore.consumer.remote.events import slices
from shmstore.consumer.remote.protocol import Request, error_name, pack, pack_error, unpack
from shmstore.consumer.serving.access import Login, tls_context
from shmstore.consumer.serving.audit import Audit, Incident

LOOK: Final = 1.0  # seconds between two looks at the connections
CLOSING: Final = 5.0  # seconds that calls may take to end
_log = logging.getLogger("shmstore.serve")

#: An answer to DoGet: its schema, and its record batches, each alone or with a message.
Reply = tuple[pa.Schema, Iterator[pa.RecordBatch | tuple[pa.RecordBatch, Request]]]


class Certificate(NamedTuple):
    """A certificate chain and its key, both PEM."""

    chain: bytes
    key: bytes


class Caller(NamedTuple):
    """Who asks, and whether they have gone meanwhile."""

    place: Place
    gone: Callable[[], bool]


class FlightEndpoint(flight.FlightServerBase):  # type: ignore[misc]
    """A server at `host` and `port` (0: any free one), until `close`. Raises `OSError` where the address cannot be had."""

    def __init__(
        self,
        host: str,
        port: int,
        login: Login,
        audit: Audit,
        *,
        tls: Certificate | None = None,
        max_connections: int = 1024,
        max_calls: int = 256,
        idle_timeout: float = 300.0,
    ) -> None:
        _probe(host, port)
        self.host = host
        self.audit = audit
        self.metrics = FlightMetrics(audit)
        self._login = login
        self._max_calls = max_calls
        self._running = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        where = f"[{host}]" if ":" in host else host
        super().__init__(
            f"grpc{'+tls' if tls else '+tcp'}://{where}:{port}",
            auth_handler=Handshake(),
            tls_certificates=[tls] if tls else None,
            middleware={"headers": KeepHeaders(login, audit)},
        )
        self.address: tuple[str, int] = (host, self.port)
        self._connections = Connections(self.port, max_connections, idle_timeout)
        self._connections.keep_alive()
        self._sweeper = threading.Thread(target=self._sweep, name="shmstore-flight-sweep", daemon=True)
        self._sweeper.start()

    # ------------------------------------------------------------ for subclasses

    def answer(self, ticket: Request, caller: Caller) -> Reply:
        """Return the answer to a DoGet."""
        raise NotImplementedError

    def act(self, action: str, request: Request, caller: Caller) -> Request:
        """Return the answer to a DoAction."""
        raise NotImplementedError

    def look_after(self, connected: set[Place]) -> None:
        """Called each second, with who is connected."""

    # ------------------------------------------------------------ calls

    @contextmanager
    def call(self, context: Any) -> Iterator[Caller]:
        """Let a call in; its errors are the client's. Raises Flight's errors alone."""
        where = place_of(context.peer())
        with self._translated():
            headers = context.get_middleware("headers")
            right, user = self._login.admits(headers.authorization if headers is not None else "")
            if not right:
                self.audit.note(
                    Incident.LOGIN,
                    where.host,
                    f"login refused from {where.host}:{where.port}: wrong user name or password for user {user[:64]!r}",
                )
                raise flight.FlightUnauthenticatedError("wrong user name or password")
            if self._over.is_set():
                raise flight.FlightUnavailableError("the server ends")
            yield Caller(where, context.is_cancelled)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except flight.FlightError:
            raise
        except (ShmStoreError, ValueError, LookupError, TypeError, OverflowError) as error:
            if not isinstance(error, ShmStoreError | ValueError):
                _log.debug("a request was not understood", exc_info=error)
                error = ValueError(f"the request is not understood: {type(error).__name__} {error}")
            self.metrics.failed(error_name(error))
            raise flight.FlightServerError(str(error), extra_info=pack_error(error)) from None
        except Exception as error:
            _log.exception("a call failed")
            text = ShmStoreError(f"internal error: {type(error).__name__}: see the server's log")
            self.metrics.failed(error_name(text))
            raise flight.FlightServerError(str(text), extra_info=pack_error(text)) from None

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Called by Flight."""
        with self.call(context) as caller:
            if self._running >= self._max_calls:
                self.audit.note(
                    Incident.CONNECTION,
                    caller.place.host,
                    f"call from {caller.place.host} refused: {self._max_calls} are answered, all at once that may be (max_calls)",
                )
                raise flight.FlightUnavailableError(
                    f"{self._max_calls} calls are answered, all that may be at once: try again later"
                )
            schema, content = self.answer(unpack(ticket.ticket), caller)
            return flight.GeneratorStream(schema, self._sent(content))

    def _sent(self, content: Iterator[pa.RecordBatch | tuple[pa.RecordBatch, Request]]) -> Iterator[Any]:
        with self._lock:
            self._running += 1
        try:
            with self._translated():
                for each in content:
                    batch, said = each if isinstance(each, tuple) else (each, None)
                    for part in slices(batch):
                        yield part if said is None else (part, pack(said))
        finally:
            with self._lock:
                self._running -= 1

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        """Called by Flight."""
        with self.call(context) as caller:
            return iter([flight.Result(pack(self.act(action.type, unpack(action.body.to_pybytes() or b"{}"), caller)))])

    # ------------------------------------------------------------ connections, end

    def _sweep(self) -> None:
        while not self._over.wait(LOOK):
            try:
                connected, many = self._connections.sweep()
                for each in many:
                    self.audit.note(
                        Incident.CONNECTION,
                        each.host,
                        f"connection from {each.host}:{each.port} refused: too many are open (max_connections)",
                    )
                self.metrics.connections = len(connected)
                self.look_after(connected)
            except OSError as error:
                _log.warning("cannot look at the connections: %s (see the limits of this process: ulimit -a)", error)
            except Exception:
                _log.exception("the connections could not be looked after")

    def close(self) -> None:
        """Listen no more, and end every call. Idempotent."""
        if self._over.is_set():
            return
        self._over.set()
        self._sweeper.join(CLOSING)
        ending = threading.Thread(target=self.shutdown, name="shmstore-flight-end", daemon=True)
        ending.start()  # it listens no more, and waits for the calls, ...
        until = time.monotonic() + CLOSING
        while ending.is_alive() and time.monotonic() < until:
            with suppress(OSError):
                self._connections.end()  # ... of which those would not end whose clients do not read
            ending.join(0.05)


def _probe(host: str, port: int) -> None:
    """Raise the `OSError` that keeps an address from being had: gRPC does not say which it was."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno)) from error


def certificate(chain: str | None, key: str | None) -> Certificate | None:
    """Read a certificate chain and its key; None without. Raises `OSError` and `ValueError` as `tls_context`."""
    if chain is None or key is None:
        return None
    tls_context(chain, key)  # gRPC says nothing of files that do not fit each other
    with open(chain, "rb") as lines, open(key, "rb") as secret:
        return Certificate(lines.read(), secret.read())
