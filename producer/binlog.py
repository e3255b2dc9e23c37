"""The server link: connect, log in, ask for the binlog, hand out raw events. The one module that knows PyMySQL.

mysql-replication makes the connection and sends the dump command (checksum, heartbeat, capability, GTID state); from
there on the socket is read here, in large pieces, because its own reader reconnects silently and decodes what we
decode ourselves. A piece holds many events: they are handed out together, and what came together is put together.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pymysql
from pymysql.constants import COMMAND
from pymysqlreplication import BinLogStreamReader

from producer.errors import AnonymousTransactions, LinkLost, LoginRefused, PrivilegeMissing, ServerIdInUse, ServerUnreachable
from producer.events import RawEvent
from producer.gtid import ExecutedSet, GtidSet
from producer.packets import ServerRefused
from producer.settings import Settings
from producer.stream import new_splitter
from producer.tls import TlsContext
from shmstore.errors import BinlogPurged, PositionNotFound, SourceError

RECEIVE = 1 << 18
POLL = 0.2  # seconds after which read() returns with nothing, so that a stop is seen
HURRIED = 0.002
FAR = 1 << 32

GRANT = "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO your account (MariaDB: REPLICATION SLAVE, BINLOG MONITOR)"
_UNREACHABLE = {1040, 1053, 1129, 1203, 1226, 2002, 2003, 2005}
_LOST = {1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 3169, 4031}
_LOGIN = {1045, 1130, 1156, 1251, 1275, 1449, 1524, 1698, 1820, 1862, 2026, 2049, 2059, 2061, 3118, 3159, 4151}
_OF_CLIENT = range(2000, 3000)
_SELECT = "GRANT SELECT ON it, or ON *.*, TO your account"
_DENIED = {1227: GRANT, 1370: GRANT, 1044: _SELECT, 1142: _SELECT, 1143: _SELECT}
_NO_CLIENT_PLUGIN, _NO_SERVER_PLUGIN = 2059, 1524
_PLUGIN = re.compile(r"[Pp]lugin (?:\"|'|b')+([^'\"]+)")  # PyMySQL writes 'b'dialog''


class Session:
    """A connection for questions. Errors come out as `SourceError`."""

    def __init__(self, connection: Any, endpoint: tuple[str, int], settings: Settings, stop: Callable[[], bool]) -> None:
        """`stop`: whether what reads the binlog on behalf of this session, which may take long, is to give up."""
        self._connection = connection
        self.endpoint, self.settings, self.stop = endpoint, settings, stop
        self.where = f"{endpoint[0]}:{endpoint[1]}"
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
            self._connection._write_bytes(struct.pack("<I", len(body)) + body)
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


def connect(settings: Settings, endpoint: tuple[str, int], stop: Callable[[], bool] = lambda: False) -> Session:
    """Open a connection for questions. Raises `ServerUnreachable`, `LoginRefused`, `SourceError`."""
    return Session(_open(settings, endpoint), endpoint, settings, stop)


def _open(settings: Settings, endpoint: tuple[str, int], **more: Any) -> Any:
    arguments: dict[str, Any] = {
        "host": endpoint[0],
        "port": endpoint[1],
        "user": settings.user,
        "password": settings.secret(),
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
        connection = pymysql.connect(**arguments, defer_connect=True)
        if connection.ssl:
            connection.ctx = TlsContext(connection.ctx)
        connection.connect()
        return connection
    except (pymysql.MySQLError, OSError, RuntimeError, ValueError) as error:
        raise translate(error, endpoint, user=repr(settings.user)) from error


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
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ValueError) as error:
        given = ", ".join(f"{n} {v}" for n in ("tls_ca", "tls_cert", "tls_key") if (v := getattr(settings, n)))
        raise LoginRefused(f"the TLS files cannot be used: {error}; check {given}") from error
    return {"ssl": context}


def translate(error: Exception, endpoint: tuple[str, int], *, user: str = "") -> SourceError:
    """Return the `SourceError` that says what `error` means and what mends it."""
    where = f"{endpoint[0]}:{endpoint[1]}"
    coded = error.args and isinstance(error.args[0], int) and not isinstance(error, OSError)  # whose number is the system's
    code = error.args[0] if coded else 0
    text = str(error.args[1] if code and len(error.args) > 1 else error).replace("\n", " ").strip()
    cause = getattr(error, "original_exception", None) or error.__context__ or error  # what PyMySQL made an error of its own of
    if code == 1236:
        return _dump_error(text, where)
    if code == 4052:
        return ServerIdInUse(f"another replica of {where} has our server id and took the stream over: {text}; set server_id")
    if code in _DENIED:
        return PrivilegeMissing(f"{where}: {text}; {_DENIED[code]}")
    if not code or code in _OF_CLIENT:  # otherwise the server's code says what it is, whatever names are in its text
        if isinstance(cause, (ssl.SSLEOFError, ConnectionResetError)):  # in mid-handshake too
            return LinkLost(f"the link to {where} broke: {text}")
        if isinstance(cause, ssl.SSLError) or code == 2026:
            return LoginRefused(f"no TLS to {where}: {text}; check the server's certificate and tls, tls_ca, tls_cert, tls_key")
    if wanting := _wants_plugin(code, text):
        return LoginRefused(f"{where} wants {user or 'the account'} to log in with {wanting}")
    if code in _LOST:
        return LinkLost(f"the link to {where} broke: {text}")
    if code in _LOGIN:
        return LoginRefused(f"{where} refused {user or 'the account'}: {text}; check user, password and the account's host")
    if code in _UNREACHABLE or isinstance(error, OSError):
        return ServerUnreachable(f"no connection to {where}: {text}; is the server running, are host and port right?")
    return SourceError(f"{where}: error {code}: {text}" if code else f"{where}: {text}")


def _wants_plugin(code: int, text: str) -> str:
    """Return which authentication plugin the login failed for want of, and what mends it; empty where that was not the reason."""
    other = (
        "ALTER USER ... IDENTIFIED VIA mysql_native_password USING PASSWORD('...') (MySQL: WITH caching_sha2_password BY '...')"
    )
    if not code and "pynacl" in text:
        return f"plugin client_ed25519, which needs PyNaCl: pip install PyMySQL[ed25519], or {other}"
    if not code and "cryptography" in text:
        return "plugin caching_sha2_password or sha256_password, which without TLS needs cryptography: pip install cryptography, or set tls"
    if code == _NO_CLIENT_PLUGIN and (named := _PLUGIN.search(text)):
        return f"plugin {named[1]}, which is not supported here: {other}"
    if code == _NO_SERVER_PLUGIN and (named := _PLUGIN.search(text)):
        return f"plugin {named[1]}, which the server itself has not loaded: {other}"
    return ""


def _dump_error(text: str, where: str) -> SourceError:
    low = text.lower()
    if "same server_uuid/server_id" in low or "same server_id" in low:
        return ServerIdInUse(f"another replica of {where} has our server id and took the stream over: {text}; set server_id")
    if "anonymous transaction" in low:
        return AnonymousTransactions(
            f"{where}: {text}; gtid_mode became ON before this producer had read what was logged without GTIDs: "
            "SET GLOBAL gtid_mode = ON_PERMISSIVE until it has"
        )
    choices = "start anew with start = latest (or earliest) and a new store, or set on_purged"
    if "purged" in low or "could not find first log file" in low:
        return BinlogPurged(f"{where} no longer has the binlog of the start position: {text}; {choices}")
    if any(
        word in low for word in ("not in the master's binlog", "impossible position", "position > file size", "truncated", "gtid")
    ):
        return PositionNotFound(
            f"{where} does not know the start position: {text}; is it another server, or was it reset? {choices}"
        )
    if "not open" in low or "binary logging" in low:
        return SourceError(f"{where}: {text}; turn the binlog on: log_bin")
    return SourceError(f"{where} refused to send its binlog: {text}")


class BinlogReader:
    """A stream of raw events from a server.

    `read` never reconnects: whoever calls it knows from where to go on.
    """

    def __init__(
        self, settings: Settings, session: Session, *, file: str, offset: int, gtids: ExecutedSet | None, server_id: int
    ) -> None:
        """Ask for the binlog after `gtids` where given, else after `offset` of `file`. Raises `SourceError`."""
        if gtids is None and offset >= FAR:
            raise PositionNotFound(
                f"{session.where} cannot be asked for {file}:{offset}: without GTIDs a place has 4 bytes, up to 4 GiB; go on by GTID "
                "(gtid = auto, on MySQL gtid_mode = ON, and start = gtid:SET), or begin a new store with start = latest after FLUSH BINARY LOGS"
            )
        self._endpoint = session.endpoint
        self._silence = settings.read_timeout
        self._packets = new_splitter()
        own = str(uuid.uuid5(uuid.NAMESPACE_OID, f"shmstore-{server_id}"))
        tagged = isinstance(gtids, GtidSet) and gtids.tagged
        stream = BinLogStreamReader(
            connection_settings={},
            server_id=server_id,
            blocking=True,
            resume_stream=True,
            log_file=file or None,
            log_pos=offset or None,
            auto_position=None if gtids is None or tagged else str(gtids),
            is_mariadb=session.mariadb and gtids is not None,
            annotate_rows_event=settings.rows_query,
            slave_heartbeat=settings.heartbeat,
            slave_uuid=own,
            report_slave=(socket.gethostname()[:60], "", "", 0),
            pymysql_wrapper=lambda **_: self._dump_connection(settings, session),
            enable_logging=False,
        )
        try:
            if tagged:
                assert isinstance(gtids, GtidSet)
                self._dump_tagged(settings, session, gtids, server_id, own)
            else:
                stream._BinLogStreamReader__connect_to_stream()
        except SourceError:  # of opening the connection; some are OSErrors too
            self.close()
            raise
        except (pymysql.MySQLError, OSError) as error:
            self.close()
            raise self._refused(error) from error
        self._socket = self._connection._sock
        self._socket.settimeout(POLL)
        self._heard = time.monotonic()

    _connection: Any = None
    _hurried = False

    def _dump_connection(self, settings: Settings, session: Session) -> Any:
        # not read for as long as the ring is full: the server must not give up on us meanwhile
        self._connection = _open(settings, session.endpoint, init_command="SET SESSION net_write_timeout = 3600")
        return self._connection

    def _dump_tagged(self, settings: Settings, session: Session, gtids: GtidSet, server_id: int, own: str) -> None:
        """Send COM_BINLOG_DUMP_GTID with a tagged set, which mysql-replication cannot write."""
        connection = self._dump_connection(settings, session)
        with connection.cursor() as cursor:
            cursor.execute(
                "SET @source_binlog_checksum = @@global.binlog_checksum, @master_binlog_checksum = @@global.binlog_checksum"
            )
            cursor.execute(
                "SET @source_heartbeat_period = %s, @master_heartbeat_period = %s", [int(settings.heartbeat * 1e9)] * 2
            )
            cursor.execute("SET @slave_uuid = %s, @replica_uuid = %s", (own, own))
        encoded = gtids.encode()
        command = (
            struct.pack("<BHII", COMMAND.COM_BINLOG_DUMP_GTID, 4, server_id, 0) + struct.pack("<QI", 4, len(encoded)) + encoded
        )
        connection._write_bytes(struct.pack("<I", len(command)) + command)
        connection._next_seq_id = 1

    def read(self) -> list[RawEvent]:
        """Return the events that have arrived, or none after `POLL` seconds. Raises `LinkLost` and other `SourceError`."""
        room = self._packets.room(RECEIVE)
        try:
            size = self._socket.recv_into(room)
        except TimeoutError:
            if time.monotonic() - self._heard > self._silence:
                raise LinkLost(f"{self._where()} was silent for {self._silence:g} s, heartbeats included") from None
            return []
        except OSError as error:
            raise LinkLost(f"the link to {self._where()} broke: {error}") from error
        if not size:
            raise LinkLost(f"{self._where()} closed the link")
        self._heard = time.monotonic()
        del room
        try:
            events: list[RawEvent] = self._packets.took(size)
            return events
        except ServerRefused as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> SourceError:
        meant = translate(error, self._endpoint)
        if isinstance(meant, LoginRefused):  # the login has passed: the server says it so when REPLICATION SLAVE is missing
            return PrivilegeMissing(f"{self._where()} does not send its binlog to this account: {meant.args[0]}; {GRANT}")
        return meant

    def rest(self) -> None:
        """Call after a pause that was ours: the silence before it does not count."""
        self._heard = time.monotonic()

    def hurry(self, hurried: bool) -> None:
        """From now on, wait for events only for a moment: somebody has other work to do meanwhile. Or do again."""
        if hurried is not self._hurried:
            self._hurried = hurried
            self._socket.settimeout(HURRIED if hurried else POLL)

    def _where(self) -> str:
        return f"{self._endpoint[0]}:{self._endpoint[1]}"

    def close(self) -> None:
        """Cut the link; never raises. There is no polite end of a dump."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(OSError):
            if connection._sock:
                connection._sock.shutdown(socket.SHUT_RDWR)
        with suppress(pymysql.MySQLError, OSError):
            connection._force_close()
