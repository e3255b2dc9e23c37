"""The GTID set at a position of a server's binlog: asked, and where the server cannot say, read.

A MariaDB before 11 cannot say it behind an event larger than its max_allowed_packet (`BINLOG_GTID_POS` is NULL), and reads the
file from its beginning where it can: so the end of the binlog is taken from what it knows without reading.
"""

from __future__ import annotations

from contextlib import suppress

from shmstore.errors import PositionNotFound
from shmstore.event import Position
from shmstore.producer.connection.server import SourceServer, binlog_files, log_end
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.errors import PrivilegeMissing
from shmstore.producer.gtid import MariadbGtids
from shmstore.producer.positions.scan import scan_to_offset

LOOKS = 3


def current_position(session: ServerSession, server: SourceServer) -> Position:
    """Return where the server writes now, with its executed set. Raises `BinlogDisabled`, `PrivilegeMissing`."""
    here = log_end(session, server)
    if not server.mariadb:
        return here
    for _ in range(LOOKS):
        gtids = session.query("SELECT @@global.gtid_binlog_pos")[0][0]
        before, here = here, log_end(session, server)
        if here == before:  # nothing was written meanwhile; what is being written holds up the second look
            return here._replace(gtids=_text(gtids))
    return here._replace(gtids=gtid_at(session, here.file, here.offset))


def gtid_at(session: ServerSession, file: str, offset: int) -> str:
    """Return MariaDB's GTID position at a position of its binlog. Raises `PositionNotFound`."""
    answer = answered(session, file, offset)
    if answer is not None:
        return answer
    with suppress(PrivilegeMissing):
        if file not in dict(binlog_files(session)):
            raise PositionNotFound(f"{session.endpoint.where} has no file {file}; see SHOW BINARY LOGS")
    return str(scan_to_offset(session, Position(file, offset))[1] or "")


def answered(session: ServerSession, file: str, offset: int) -> str | None:
    """Return what the server says of a position; None where there is no such position, or it cannot read so far."""
    answer = session.query("SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))[0][0]
    return None if answer is None else _text(answer)


def _text(answer: object) -> str:
    return str(MariadbGtids(answer.decode() if isinstance(answer, bytes) else str(answer or "")))
