"""The binlog events that are not rows: their numbers, and what is in them.

A body is an event without its 19-byte header and without its checksum. Functions raise `UnsupportedEvent` where the bytes
contradict themselves. Layouts: MySQL libs/mysql/binlog/event, MariaDB sql/log_event.h.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from shmstore.errors import UnsupportedEvent
from shmstore.producer.binlog.statement_text import is_generated, statement_text
from shmstore.producer.gtid import GtidSet, MariadbGtids, format_uuid
from shmstore.sql.charsets import charset_of
from shmstore.sql.session import UNKNOWN, Session
from shmstore.sql.tokens import SqlMode

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER_SIZE = 19
IGNORABLE_FLAG = 0x80  # LOG_EVENT_IGNORABLE_F: a reader that does not know the event may pass over it
ARTIFICIAL_FLAG = 0x20
TEMPORARY_FLAG = 0x04  # LOG_EVENT_THREAD_SPECIFIC_F: about a temporary table, or CONNECTION_ID()


class EventCode(IntEnum):
    """Event numbers. 160 and more are MariaDB's."""

    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    APPEND_BLOCK = 9
    DELETE_FILE = 11
    RAND = 13
    USER_VAR = 14
    FORMAT = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    MARIADB_GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165


def name_of(code: int) -> str:
    """Return the event's name, or ``event type N``."""
    try:
        return EventCode(code).name
    except ValueError:
        return f"event type {code}"


class RawEvent(NamedTuple):
    """One event as read: its header's fields, and its body. `end` is the header's log_pos, 32 bits, 0 where artificial."""

    code: int
    timestamp: int  # seconds since 1970
    server_id: int
    length: int  # of the whole event in the binlog, header and checksum included
    end: int
    flags: int
    body: bytes


class QueryEvent(NamedTuple):
    """A QUERY event."""

    sql: str
    database: str
    thread_id: int
    microsecond: int  # of the event's second; 0 where the event has none
    error_code: int
    session: Session = UNKNOWN  # how its text is to be read
    strict: bool = True  # a value that does not fit is an error, not changed to one that does

    @property
    def mode(self) -> SqlMode:
        """Where its names and strings end."""
        return self.session.mode


class Xid(NamedTuple):
    """An XA transaction's name."""

    format_id: int
    gtrid: bytes
    bqual: bytes

    def __str__(self) -> str:
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{self.format_id}"


class MariadbGtid(NamedTuple):
    """A MariaDB GTID event."""

    domain: int
    number: int
    flags: int
    xid: Xid | None
    extra: int = 0

    @property
    def unfinished_alter(self) -> bool:
        """True for the first half of an ALTER logged in two (binlog_alter_two_phase), and for taking it back."""
        return bool(self.extra & (2 | 8))

    @property
    def standalone(self) -> bool:
        """True where the event group is one statement without BEGIN and COMMIT: a DDL."""
        return bool(self.flags & 1)

    @property
    def prepared_xa(self) -> bool:
        """True where the group ends with XA PREPARE."""
        return bool(self.flags & 64)


P = ParamSpec("P")
T = TypeVar("T")


def _whole(parse: Callable[P, T]) -> Callable[P, T]:
    """Turn what `parse` raises on bytes that end too early, or say nonsense, into `UnsupportedEvent`."""

    @wraps(parse)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return parse(*args, **kwargs)
        except (struct.error, IndexError, ValueError) as error:
            raise UnsupportedEvent(f"a {parse.__name__} event cannot be read: {error}; is the binlog damaged?") from error

    return checked


_QUERY = struct.Struct("<IIBHH")
_CHARSETS = struct.Struct("<HHH")
# sizes of the status variables of a QUERY event; negative: special
_STATUS_SIZE = {0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8, 18: 2, 19: 1, 20: 1, 128: 3, 129: 8}
_STATUS_FLAGS, _STATUS_SQL_MODE, _STATUS_CHARSET, _STATUS_MICROSECOND, _STATUS_EXPLICIT_TIMESTAMPS, _STATUS_HRNOW = (
    0,
    1,
    4,
    13,
    16,
    128,
)

_STATUS_DATABASE, _STATUS_COLLATIONS = 8, 131
STRICT = 3 << 21  # of sql_mode: STRICT_TRANS_TABLES and STRICT_ALL_TABLES, in all versions


@_whole
def query(body: bytes, flags: int = 0) -> QueryEvent:
    """Read a QUERY event (2; of 165 after decompression). `flags` are of its header."""
    thread_id, _, database_size, error_code, status_size = _QUERY.unpack_from(body)
    at = _QUERY.size + status_size
    database = body[at : at + database_size].decode("utf-8")
    text = body[at + database_size + 1 :]
    if at + database_size + 1 > len(body):
        raise ValueError("its text is missing")
    client, microsecond, session = _status(body[_QUERY.size : at], flags & TEMPORARY_FLAG != 0, error_code != 0)
    if is_generated(text):
        session = session._replace(literals="", rewritten=True)
    sql = statement_text(text, client, session.mode)
    return QueryEvent(sql, database, thread_id, microsecond, error_code, session, bool(session.sql_mode & STRICT))


def _status(status: bytes, temporary: bool, failed: bool) -> tuple[int, int, Session]:
    """Return (client collation id or 0, microsecond, session) of the status variables; stops at the first unknown one."""
    charset = microsecond = at = 0
    sql_mode, client, literals, server, database = STRICT, "", "", "", ""
    options = explicit_timestamps = None
    while at < len(status):
        code = status[at]
        at += 1
        if code == _STATUS_CHARSET:
            charset, *others = _CHARSETS.unpack_from(status, at)
            client, literals, server = map(_charset_name, (charset, *others))
        elif code == _STATUS_SQL_MODE:
            sql_mode = int.from_bytes(status[at : at + 8], "little")
        elif code == _STATUS_FLAGS:
            options = int.from_bytes(status[at : at + 4], "little")
        elif code == _STATUS_DATABASE:
            database = _charset_name(int.from_bytes(status[at : at + 2], "little"))
        elif code == _STATUS_EXPLICIT_TIMESTAMPS:
            explicit_timestamps = bool(status[at])
        elif code in (_STATUS_MICROSECOND, _STATUS_HRNOW):
            microsecond = int.from_bytes(status[at : at + 3], "little")
        size = _STATUS_SIZE.get(code)
        if size is not None:
            at += size
        elif code == _STATUS_COLLATIONS and at < len(status):  # pairs of a character set and its default collation
            at += 1 + 4 * status[at]
        elif code in (5, 6) and at < len(status):  # time zone, catalog
            at += 1 + status[at]
        elif code == 2 and at < len(status):  # catalog, with a NUL
            at += 2 + status[at]
        elif code == 11 and at < len(status):  # invoker: user, host
            at += 1 + status[at]
            at += 1 + status[at] if at < len(status) else 0
        elif code == 12 and at < len(status):  # databases
            count, at = status[at], at + 1
            for _ in range(count if count != 254 else 0):
                at = status.index(0, at) + 1
        else:
            break
    session = Session(
        sql_mode, client, literals, server, database, options, explicit_timestamps, temporary, rewritten=False, failed=failed
    )
    return charset, microsecond, session


@lru_cache(maxsize=64)
def _charset_name(collation: int) -> str:
    """The character set of a collation id; empty where this version does not know it."""
    try:
        return charset_of(collation)
    except UnsupportedEvent:
        return ""


def load_query(body: bytes) -> bytes:
    """Return an EXECUTE_LOAD_QUERY event (18) as the QUERY event of its statement: without the number and place of its file."""
    return body[: _QUERY.size] + body[_QUERY.size + 13 :]


@_whole
def rotate(body: bytes) -> tuple[str, int]:
    """Read a ROTATE event: (next file, offset in it)."""
    (offset,) = struct.unpack_from("<Q", body)
    return body[8:].rstrip(b"\0").decode("utf-8"), offset


@_whole
def format_checksum(event_body: bytes) -> bool:
    """Whether the events after this FORMAT event have a checksum. `event_body` still has its own 4 bytes of checksum."""
    algorithm = event_body[-5]
    if algorithm not in (0, 1, 255):
        raise ValueError(f"checksum algorithm {algorithm} is unknown")
    return algorithm == 1


@_whole
def format_version(body: bytes) -> str:
    """The server version in a FORMAT event."""
    return body[2:52].rstrip(b"\0").decode("latin-1")


@_whole
def xid(body: bytes) -> int:
    """Read an XID event."""
    (number,) = struct.unpack_from("<Q", body)
    return int(number)


@_whole
def xa_prepare(body: bytes) -> tuple[bool, Xid]:
    """Read an XA_PREPARE event: (one phase: already committed, name)."""
    one_phase, format_id, gtrid, bqual = struct.unpack_from("<BiII", body)
    data = body[13:]
    if len(data) < gtrid + bqual:
        raise ValueError("its name is cut")
    return bool(one_phase), Xid(format_id, data[:gtrid], data[gtrid : gtrid + bqual])


@_whole
def gtid(body: bytes) -> str:
    """Read a MySQL GTID event: ``uuid:number``."""
    (number,) = struct.unpack_from("<q", body, 17)
    if number < 1:
        raise ValueError(f"transaction number {number}")
    return f"{format_uuid(body[1:17])}:{number}"


@_whole
def gtid_tagged(body: bytes) -> str:
    """Read a MySQL tagged GTID event: ``uuid[:tag]:number``.

    It is in mysql::serialization's form: version, size, last field that may not be ignored, then (field number, value),
    all of them variable-length integers whose trailing one bits count the bytes that follow.
    """
    at = 0

    def integer() -> int:
        nonlocal at
        first = body[at]
        extra = 0
        while extra < 8 and first >> extra & 1:
            extra += 1
        value = int.from_bytes(body[at : at + extra + 1], "little")
        if at + extra + 1 > len(body):
            raise ValueError("a number is cut")
        at += extra + 1
        return value >> extra + 1 if extra < 8 else value >> 8

    for _ in range(3):
        integer()
    uuid, number, tag = b"", 0, ""
    while at < len(body) and not (uuid and number and tag):
        field = integer()
        if field == 0:
            integer()
        elif field == 1:
            uuid = bytes(integer() for _ in range(16))
        elif field == 2:
            raw = integer()
            number = raw >> 1 if raw & 1 == 0 else -(raw >> 1) - 1
        elif field == 3:
            size = integer()
            tag = body[at : at + size].decode("ascii")
            at += size
            break
        else:
            break
    if number < 1:
        raise ValueError(f"transaction number {number}")
    return f"{format_uuid(uuid)}:{tag}:{number}" if tag else f"{format_uuid(uuid)}:{number}"


@_whole
def previous_gtids(body: bytes) -> GtidSet:
    """Read a MySQL PREVIOUS_GTIDS event: what was executed before this file."""
    return GtidSet.decode(body)


@_whole
def mariadb_gtid(body: bytes) -> MariadbGtid:
    """Read a MariaDB GTID event; the server id is the header's."""
    number, domain, flags = struct.unpack_from("<QIB", body)
    at, name = 13, None
    if flags & 2:  # group commit id
        at += 8
    if flags & (64 | 128) and len(body) >= at + 6:  # prepared or completed XA
        format_id, gtrid, bqual = struct.unpack_from("<iBB", body, at)
        data = body[at + 6 : at + 6 + gtrid + bqual]
        if len(data) == gtrid + bqual:
            name = Xid(format_id, data[:gtrid], data[gtrid:])
            at += 6 + gtrid + bqual
    extra = body[at] if at < len(body) else 0  # where there is none, padding of zeros
    return MariadbGtid(domain, number, flags, name, extra)


@_whole
def mariadb_gtid_list(body: bytes) -> MariadbGtids:
    """Read a MariaDB GTID_LIST event: the last transaction of each domain before this file."""
    (count,) = struct.unpack_from("<I", body)
    count &= 0x0FFFFFFF
    if 4 + 16 * count > len(body):
        raise ValueError(f"{count} entries do not fit into {len(body)} bytes")
    result = MariadbGtids()
    for domain, server, number in struct.iter_unpack("<IIQ", body[4 : 4 + 16 * count]):
        result.set(domain, server, number)  # of several servers in a domain, the last entry is the newest
    return result


def rows_query(body: bytes) -> str:
    """Read a ROWS_QUERY event: the statement. Its first byte is a length that does not suffice; it is passed over."""
    return body[1:].decode("utf-8", "replace")


def annotate_rows(body: bytes) -> str:
    """Read a MariaDB ANNOTATE_ROWS event: the statement."""
    return body.decode("utf-8", "replace")
