"""The binlog as a server sends it: the dump command, then raw events.

mysql-replication makes the connection and sends the dump command (checksum, heartbeat, capability, GTID state); from
there on the socket is read here, in large pieces, because its own reader reconnects silently and decodes what we
decode ourselves. A piece holds many events: they are handed out together, and what came together is put together.
"""

from __future__ import annotations

import socket
import struct
import time
import uuid
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pymysql
from pymysql.constants import COMMAND
from pymysqlreplication import BinLogStreamReader

from shmstore.errors import PositionNotFound, SourceError
from shmstore.producer.binlog.events import RawEvent
from shmstore.producer.binlog.packets import LeavesOut, ServerRefused, framed, new_splitter
from shmstore.producer.connection.server_errors import GRANT, translate
from shmstore.producer.connection.session import FAR, ServerSession, login
from shmstore.producer.errors import (
    LinkLost,
    LoginRefused,
    PrivilegeMissing,
)
from shmstore.producer.gtid import ExecutedSet
from shmstore.producer.settings import Settings

RECEIVE = 1 << 18
POLL = 0.2  # seconds after which read() returns with nothing, so that a stop is seen
HURRIED = 0.002


_SEND_ANNOTATE_ROWS = 2  # a flag of COM_BINLOG_DUMP to MariaDB
_FLAGS = struct.Struct("<4xBIH")  # behind a packet's head: the command, the position, flags


def _asking_for_statements(write: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Set the flag in the command: mysql-replication does so only where it asks by GTID."""

    def flagged(packet: bytes) -> None:
        if len(packet) > _FLAGS.size and packet[4] == COMMAND.COM_BINLOG_DUMP:
            command, position, flags = _FLAGS.unpack_from(packet)
            packet = packet[:4] + _FLAGS.pack(command, position, flags | _SEND_ANNOTATE_ROWS)[4:] + packet[_FLAGS.size :]
        write(packet)

    return flagged


class BinlogReader:
    """A stream of raw events from a server.

    `read` never reconnects: the process that calls it knows from where to continue.
    """

    def __init__(
        self,
        settings: Settings,
        session: ServerSession,
        *,
        file: str,
        offset: int,
        gtids: ExecutedSet | None,
        server_id: int,
        leaves_out: LeavesOut | None = None,
    ) -> None:
        """Ask for the binlog after `gtids` where given, else after `offset` of `file`. Raises `SourceError`.

        Of a large event that `leaves_out` does not want only the beginning is read into memory; see `PacketSplitter`.
        """
        if gtids is None and offset >= FAR:
            raise PositionNotFound(
                f"{session.endpoint.where} cannot be asked for {file}:{offset}: without GTIDs a place has 4 bytes, up to 4 GiB; continue by GTID "
                "(gtid = auto, on MySQL gtid_mode = ON, and start = gtid:SET), or begin a new store with start = latest after FLUSH BINARY LOGS"
            )
        self._endpoint, self._server_id = session.endpoint, server_id
        self._silence = settings.read_timeout
        self._packets = new_splitter(leaves_out=leaves_out)
        own = str(uuid.uuid5(uuid.NAMESPACE_OID, f"shmstore-{server_id}"))
        tagged = gtids is not None and gtids.tagged
        stream = BinLogStreamReader(
            connection_settings={},
            server_id=server_id,
            blocking=True,
            resume_stream=True,
            log_file=file or None,
            log_pos=offset or None,
            auto_position=None if gtids is None or tagged else str(gtids),
            is_mariadb=session.mariadb and gtids is not None,
            slave_heartbeat=settings.heartbeat,
            slave_uuid=own,
            report_slave=(socket.gethostname()[:60], "", "", 0),
            pymysql_wrapper=lambda **_: self._dump_connection(settings, session),
            enable_logging=False,
        )
        try:
            if gtids is not None and tagged:
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

    def _dump_connection(self, settings: Settings, session: ServerSession) -> Any:
        # not read for as long as the ring is full: the server must not give up on us meanwhile
        self._connection = login(settings, session.endpoint, init_command="SET SESSION net_write_timeout = 3600")
        if session.mariadb and settings.rows_query:
            self._connection._write_bytes = _asking_for_statements(self._connection._write_bytes)
        return self._connection

    def _dump_tagged(self, settings: Settings, session: ServerSession, gtids: ExecutedSet, server_id: int, own: str) -> None:
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
        connection._write_bytes(framed(command))
        connection._next_seq_id = 1

    def read(self) -> list[RawEvent]:
        """Return the events that have arrived, or none after `POLL` seconds. Raises `LinkLost` and other `SourceError`."""
        buffer = self._packets.buffer(RECEIVE)
        try:
            size = self._socket.recv_into(buffer)
        except TimeoutError:
            if time.monotonic() - self._heard > self._silence:
                raise LinkLost(f"{self._endpoint.where} was silent for {self._silence:g} s, heartbeats included") from None
            return []
        except OSError as error:
            raise LinkLost(f"the link to {self._endpoint.where} broke: {error}") from error
        if not size:
            raise LinkLost(f"{self._endpoint.where} closed the link")
        self._heard = time.monotonic()
        del buffer
        try:
            events: list[RawEvent] = self._packets.took(size)
            return events
        except ServerRefused as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> SourceError:
        meant = translate(error, self._endpoint, server_id=self._server_id)
        if isinstance(meant, LoginRefused):  # the login has passed: the server says it so when REPLICATION SLAVE is missing
            return PrivilegeMissing(f"{self._endpoint.where} does not send its binlog to this account: {meant.args[0]}; {GRANT}")
        return meant

    def rest(self) -> None:
        """Call after a pause that was ours: the silence before it does not count."""
        self._heard = time.monotonic()

    def hurry(self, hurried: bool) -> None:
        """From now on, wait for events only for a moment: a process has other work to do meanwhile. Or do again."""
        if hurried is not self._hurried:
            self._hurried = hurried
            self._socket.settimeout(HURRIED if hurried else POLL)

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


def replica_id(settings: Settings, epoch: int | None, source: str = "") -> int:
    """Return the server id to present: as set, else derived from this host, the store, its epoch and, of several, the source.

    So it stays the same for the store's life. The epoch is random: hosts and stores of one name exist more than once, as in two
    namespaces of Kubernetes, and the server ends the older of two replicas with one id.
    """
    if settings.server_id:
        return settings.server_id
    return 1 << 30 | zlib.crc32(f"{socket.gethostname()}/{settings.store}/{epoch}/{source}".encode()) >> 2
