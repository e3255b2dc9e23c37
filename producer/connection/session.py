"""A connection to a server for questions: connect, log in, ask. mysql-replication makes it, PyMySQL carries it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pymysql

from shmstore.certificate import load_certificate
from shmstore.errors import SchemaUnknown
from shmstore.producer.binlog.packets import framed
from shmstore.producer.connection.password import password
from shmstore.producer.connection.server_errors import translate
from shmstore.producer.connection.tls import TlsContext, TlsSocket
from shmstore.producer.errors import LoginRefused
from shmstore.producer.settings import ServerAddress, Settings
from shmstore.producer.stop import Stop

FAR = 1 << 32
PROBES = 3  # without an answer, until the server's host counts as gone
LONGEST = 32_767  # seconds between two, as the kernel takes them
ATTEMPTS = 20  # to read how tables are defined between two DDLs
_Seen = TypeVar("_Seen")
_Read = TypeVar("_Read")


class ServerSession:
    """A connection for questions. Errors come out as `SourceError`."""

    def __init__(self, connection: Any, endpoint: ServerAddress, settings: Settings, stop: Stop) -> None:
        """`stop`: whether what reads the binlog on behalf of this session, which may take long, is to give up."""
        self._connection = connection
        self.endpoint, self.settings, self.stop = endpoint, settings, stop
        self.version: str = connection.get_server_info().removeprefix("5.5.5-")  # MariaDB 10 puts it there for old replicas
        self.mariadb = "mariadb" in self.version.lower()

    def query(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of `sql`."""
        return [tuple(row) for row in self.select(sql, arguments)[1]]

    def select(self, sql: str, arguments: Sequence[Any] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return (column names, rows) of `sql`."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, arguments or None)
                names = [column[0] for column in cursor.description or ()]
                return names, list(cursor.fetchall())
        except (pymysql.MySQLError, OSError) as error:
            raise translate(error, self.endpoint) from error

    def variables(self, names: Iterable[str]) -> dict[str, str]:
        """Return the global variables of `names` that the server has, as text."""
        wanted = list(names)
        places = ",".join(["%s"] * len(wanted))
        rows = self.query(f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({places})", wanted)
        return {str(name).lower(): str(value) for name, value in rows}

    def command(self, body: bytes) -> socket.socket:
        """Send a command of the protocol by hand; return the socket that its answer comes on. Nothing else may be under way."""
        try:
            self._connection._write_bytes(framed(body))
            self._connection._next_seq_id = 1
            made: socket.socket = self._connection._sock
            made.settimeout(self._connection._read_timeout)
            return made
        except (pymysql.MySQLError, OSError) as error:
            raise translate(error, self.endpoint) from error

    def close(self) -> None:
        """Close the connection; never raises."""
        with suppress(pymysql.MySQLError, OSError):
            self._connection.close()


def steady(look: Callable[[], _Seen], read: Callable[[], _Read]) -> tuple[_Seen, _Read]:
    """Return what `look` and `read` say of tables that may change between two questions: `look` says the same before and after `read`.

    Raises `SourceError` of the questions, and `SchemaUnknown` after `ATTEMPTS` times.
    """
    before = look()
    for _ in range(ATTEMPTS):
        found, now = read(), look()
        if now == before:
            return now, found
        before = now
    raise SchemaUnknown(f"the tables changed {ATTEMPTS} times while their schema was read: try again when fewer DDLs run")


def connect(settings: Settings, endpoint: ServerAddress, stop: Stop = lambda: False) -> ServerSession:
    """Open a connection for questions. Raises `ServerUnreachable`, `LoginRefused`, `SourceError`."""
    return ServerSession(login(settings, endpoint), endpoint, settings, stop)


def login(settings: Settings, endpoint: ServerAddress, **more: Any) -> Any:
    """Return PyMySQL's connection, logged in; `more` are further arguments of it. Raises what `connect` raises."""
    arguments: dict[str, Any] = {
        "host": endpoint.host,
        "port": endpoint.port,
        "user": settings.user,
        "password": password(settings, endpoint),
        "auth_plugin_map": {"mysql_clear_password": _InClear},
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": settings.connect_timeout,
        "read_timeout": settings.read_timeout,
        "write_timeout": settings.read_timeout,
        "program_name": "shmstore",
        **_tls(settings),
        **more,
    }
    try:
        connection = _Connection(**arguments, defer_connect=True)
        if connection.ssl:
            connection.ctx = TlsContext(connection.ctx)
        connection.connect()
        _keep_alive(connection._sock, settings.read_timeout)
        return connection
    except (pymysql.MySQLError, OSError, RuntimeError, ValueError) as error:
        if isinstance(
            cause := getattr(error, "original_exception", None), LoginRefused
        ):  # ours, made an error of its own by PyMySQL
            raise cause from None
        raise translate(error, endpoint, user=repr(settings.user)) from error


def _keep_alive(made: socket.socket | TlsSocket, seconds: float) -> None:
    """Let the kernel ask the server's host whether it is there, while a server that has long to look for rows is silent: where it is not, reading
    fails after about so many seconds."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, seconds / 2), (socket.TCP_KEEPINTVL, seconds / 2 / PROBES)):
        made.setsockopt(socket.IPPROTO_TCP, option, max(1, min(int(value), LONGEST)))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


class _Connection(pymysql.connections.Connection):  # type: ignore[misc]
    """PyMySQL's. Where no TLS was asked for, it uses what the server offers, and verifies nothing; it would load the system's certificates for that,
    which takes 40 ms of CPU a connection."""

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        if sslp:
            context: ssl.SSLContext = super()._create_ssl_ctx(sslp)
            return context
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


class _InClear:
    """The password itself, as tokens of a cloud are sent: over TLS only, or the process that answers as the server would get it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def authenticate(self, packet: Any) -> Any:
        """Answer the server that asked for it. Raises `LoginRefused` without TLS."""
        if not self._connection._secure:
            raise LoginRefused(
                f"{self._connection.host}:{self._connection.port} asks for the password in clear text, and the connection has no TLS: "
                "set tls = verify-identity and tls_ca"
            )
        self._connection.write_packet(self._connection.password + b"\0")
        answer = self._connection._read_packet()
        answer.check_error()
        return answer


def _tls(settings: Settings) -> dict[str, Any]:
    if settings.tls == "disabled":
        return {"ssl_disabled": True}
    if settings.tls == "preferred" and not settings.tls_ca and not settings.tls_cert:
        return {}
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca or None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the certificates that MySQL makes for itself do not pass it
        context.check_hostname = settings.tls == "verify-identity"
        verify = settings.tls in ("verify-ca", "verify-identity") or bool(settings.tls_ca)
        context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
        if settings.tls_cert:
            load_certificate(context, settings.tls_cert, settings.tls_key)
    except (OSError, ValueError) as error:
        given = ", ".join(f"{n} {v}" for n in ("tls_ca", "tls_cert", "tls_key") if (v := getattr(settings, n)))
        raise LoginRefused(f"the TLS files cannot be used: {error}; check {given}") from error
    return {"ssl": context}
