"""A chunk: the next rows of a table in the order of its key, read consistently at a known place of the binlog.

No lock and no write to the server: low and high watermark come from what the server says of its own binlog. A chunk is put
into the stream at a transaction end P with

    low <= what the read shows <= high <= P

where low is the place that the stream had reached when it began to note the keys it puts, and the rows whose keys it noted
between low and P are left out (`snapshot`). What that needs is that the read shows everything up to low, and that everything
it shows is logged before high:

MariaDB   START TRANSACTION WITH CONSISTENT SNAPSHOT names the exact place of the read (binlog_snapshot_file, _position): it
          must not be before low, and it is high.
MySQL     low must lie within @@global.gtid_executed, asked before the read begins: a transaction enters that set only after
          the engine has committed it. high is the end of the binlog, asked after: a transaction is logged before the engine
          commits it. For the same reason SHOW BINARY LOG STATUS is no low watermark: its end may lie behind transactions
          that no read shows yet, and a reader's copy would go back to rows from before them. So gtid_mode has to be ON.

A read goes forward by key, WHERE (a, b) > (last a, last b) ORDER BY a, b LIMIT n, compared by the server with its own collations:
the last key comes back to it as the bytes that it sent.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from producer.binlog import Session, translate
from producer.cells import BIG, Cell, compile_rows
from producer.charsets import python_codec
from producer.gtid import ExecutedSet, GtidSet, MariadbGtids
from producer.gtid_position import current_position, gtid_at
from producer.server import Server
from producer.tables import Key, SourceTable, quoted
from shmstore import Column, Position, SourceError

__all__ = ["Rows", "Selection", "begin", "literals", "prepare", "selection"]

RECEIVE = 1 << 18
_PREPARE, _EXECUTE, _CLOSE = 0x16, 0x17, 0x19
_END, _ERROR = 0xFE, 0xFF
_NUMBERS = {"tinyint", "smallint", "mediumint", "int", "bigint", "bit", "year", "decimal"}
_INDEXED = Column("", "bigint", unsigned=True)
_BYTES = Column("", "varbinary")


# So that values come as they are stored, and nothing of a global setting cuts a SELECT short.
_SETUP = (
    "SET SESSION time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES', character_set_results = NULL, sql_big_selects = 1, "
    "sql_select_limit = 18446744073709551615, net_write_timeout = 3600, {} = 0"
)
_HIDDEN = "SET SESSION show_gipk_in_create_table_and_information_schema = ON"  # MySQL's invisible keys are in the binlog


def prepare(session: Session) -> None:
    """Set a new connection up for reading chunks."""
    session.query(_SETUP.format("max_statement_time" if session.mariadb else "max_execution_time"))
    session.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    if session.query("SHOW VARIABLES LIKE 'show_gipk_in_create_table_and_information_schema'"):
        session.query(_HIDDEN)


def begin(session: Session, server: Server, reached: Position, executed: ExecutedSet | None) -> Position | None:
    """Begin a consistent read; return high. None where it would not show all that the stream has read: try again."""
    if server.mariadb:
        session.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        status = {str(name).lower(): str(value) for name, value in session.query("SHOW STATUS LIKE 'binlog_snapshot_%'")}
        high = Position(status["binlog_snapshot_file"], int(status["binlog_snapshot_position"]))
        if high.order >= reached.order or (executed is not None and _shows(session, high, executed)):
            return high
        session.query("ROLLBACK")
        return None
    if not isinstance(executed, GtidSet) or not GtidSet(str(session.query("SELECT @@global.gtid_executed")[0][0])).covers(
        executed
    ):
        return None
    session.query("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    return current_position(session, server)


def _shows(session: Session, high: Position, executed: ExecutedSet) -> bool:
    """Whether nothing was committed between `high` and what was read: events that are no transactions come behind commits."""
    return isinstance(executed, MariadbGtids) and MariadbGtids(gtid_at(session, high.file, high.offset)).covers(executed)


# ---------------------------------------------------------------- the SELECT


class Selection(NamedTuple):
    """What is selected: the table's columns, then what only tells a row's key (`extras`: key column, its expression)."""

    table: SourceTable
    columns: tuple[Column, ...]
    extras: tuple[tuple[int, str], ...]

    def sql(self, after: Sequence[str], limit: int) -> str:
        """Return the SELECT of `limit` rows behind the key `after`; of all rows where the table has no key."""
        table = self.table
        names = [quoted(column.name) for column in table.schema.columns]
        text = f"SELECT {', '.join(_as_logged(table, i) for i in range(len(names)))}"
        text += "".join(f", {expression}" for _, expression in self.extras)
        text += f" FROM {table.name}" + (" FOR SYSTEM_TIME ALL" if table.versioned else "")
        if table.key is None:
            return text
        keys = [names[i] for i in table.key.columns]
        text += f" FORCE INDEX ({quoted(table.key.name)})"
        if after:
            text += f" WHERE {keys[0]} >= {after[0]} AND ({_behind(keys, after)})"
        return f"{text} ORDER BY {', '.join(keys)} LIMIT {limit}"


def _behind(keys: Sequence[str], after: Sequence[str]) -> str:
    """(a, b) > (x, y), written so that an index is used for it."""
    if len(keys) == 1:
        return f"{keys[0]} > {after[0]}"
    return f"{keys[0]} > {after[0]} OR ({keys[0]} = {after[0]} AND ({_behind(keys[1:], after[1:])}))"


def _as_logged(table: SourceTable, i: int) -> str:
    column = table.schema.columns[i]
    return f"CAST({quoted(column.name)} AS BINARY({column.size}))" if i in table.raw else quoted(column.name)


def selection(table: SourceTable) -> Selection:
    """Return how `table` is selected."""
    extras: list[tuple[int, str]] = []
    more: list[Column] = []
    columns = table.schema.columns
    for i in table.key.columns if table.key else ():
        column = columns[i]
        if column.type in ("enum", "set"):  # in the order of their numbers
            extras.append((i, f"CAST({quoted(column.name)} AS UNSIGNED)"))
            more.append(_INDEXED)
        elif column.charset and python_codec(column.charset) != "utf-8":
            extras.append((i, f"CAST({quoted(column.name)} AS BINARY)"))
            more.append(_BYTES)
    return Selection(table, (*columns, *more), tuple(extras))


def literals(selected: Selection, key: Key, row: Sequence[Any]) -> list[str]:
    """Return the key of a row of `selected` as SQL literals that mean exactly its bytes."""
    table = selected.table
    width = len(table.schema.columns)
    told = {i: row[width + at] for at, (i, _) in enumerate(selected.extras)}
    return [_literal(table.schema.columns[i], table.collations[i], told.get(i, row[i])) for i in key.columns]


def _literal(column: Column, collation: str, value: Any) -> str:
    if column.type in _NUMBERS or column.type in ("enum", "set"):
        return str(value)
    if column.type == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    if isinstance(value, float):
        return f"{value:.17e}"
    if column.charset:
        raw = value if isinstance(value, bytes) else value.encode()
        return f"_{column.charset} x'{raw.hex()}' COLLATE {collation}"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return f"'{value if isinstance(value, str) else _moment(column.type, value)}'"


def _moment(type_: str, value: int) -> str:
    if type_ == "date":
        return (date(1970, 1, 1) + timedelta(value)).isoformat()
    if type_ == "time":
        seconds, micros = divmod(abs(value), 1_000_000)
        sign = "-" if value < 0 else ""
        return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
    return (datetime(1970, 1, 1) + timedelta(microseconds=value)).isoformat(" ", "microseconds")


# ---------------------------------------------------------------- the rows


class Rows:
    """The rows of one SELECT, as the server sends them: `step` reads on and never waits longer than asked.

    A statement that failed, or was left before its end, takes the session's connection along: close it.
    """

    def __init__(self, session: Session, sql: str, columns: Sequence[Column], wait: float) -> None:
        """Send the SELECT, and wait until the server begins to answer."""
        self._session, self._columns = session, columns
        self.rows: list[tuple[Any, ...]] = []
        self.size = 0  # bytes that came
        self._rest = b""  # what is not decoded yet
        self._pieces: list[bytes] = []  # what came since, while less than a whole packet
        self._missing = 0
        self._socket: socket.socket = session.command(bytes([_PREPARE]) + sql.encode())
        self._socket.settimeout(wait)
        ok = self._packet()
        self._statement, count, parameters = struct.unpack_from("<IHH", ok, 1)
        assert not parameters, sql
        for _ in range(count + 1):
            self._packet()
        self._socket = session.command(struct.pack("<BIBI", _EXECUTE, self._statement, 0, 1))
        self._socket.settimeout(wait)
        self._decode: Any = None

    def step(self, seconds: float) -> bool:
        """Read for at most so long; True when all rows are there. Raises `SourceError`."""
        until = time.monotonic() + seconds
        if self._decode is None:
            try:
                self._socket.settimeout(seconds)
                while (more := self._ready()) is None:
                    self._receive()
            except TimeoutError:
                return False
            self._decode = compile_rows(more, self._columns)
        while not self._take():
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._socket.settimeout(left)
            try:
                self._receive()
            except TimeoutError:
                return False
        return True

    def _ready(self) -> list[Cell] | None:
        """The columns that the server announces, when all of that has come."""
        d, packets, p = self._join(), list[bytes](), 0
        while p + 4 <= len(d):
            size = int.from_bytes(d[p : p + 3], "little")
            body = d[p + 4 : p + 4 + size]
            if len(body) < size:
                return None
            p += 4 + size
            if body[:1] == b"\xff" and not packets:
                raise self._failed(body)
            packets.append(body)
            if len(packets) == packets[0][0] + 2 if packets[0][0] < 251 else len(packets) == _count(packets[0]) + 2:
                self._rest = d[p:]
                return [_cell(packet) for packet in packets[1:-1]]
        return None

    def _take(self) -> bool:
        """Decode what has come; True at the end of the rows."""
        if self._missing > 0:
            return False
        d, add = self._join(), self.rows.append
        p = self._decode(d, 0, len(d), False, add)
        while p + 4 < len(d):
            size = int.from_bytes(d[p : p + 3], "little")
            if size == BIG:
                whole = _joined(d, p)
                if whole is None:
                    break
                body, p = whole
                self._decode(body, 0, len(body), True, add)
                p = self._decode(d, p, len(d), False, add)
                continue
            body = d[p + 4 : p + 4 + size]
            if len(body) < size:
                break
            if body[0] == _ERROR:
                raise self._failed(body)
            if body[0] != _END:
                raise SourceError(f"a row came that begins with {body[0]:#x}; the SELECT is out of step")
            self._session.command(struct.pack("<BI", _CLOSE, self._statement))
            return True
        self._rest = d[p:]
        if len(d) >= p + 4:
            self._missing = 4 + int.from_bytes(d[p : p + 3], "little") - (len(d) - p)
        return False

    def _join(self) -> bytes:
        if self._pieces:
            self._rest = b"".join((self._rest, *self._pieces))
            self._pieces.clear()
        return self._rest

    def _receive(self) -> None:
        try:
            piece = self._socket.recv(RECEIVE)
        except TimeoutError:
            raise
        except OSError as error:
            raise translate(error, self._session.endpoint) from error
        if not piece:
            raise translate(OSError(2013, "the server closed the link"), self._session.endpoint)
        self.size += len(piece)
        self._missing -= len(piece)
        self._pieces.append(piece)

    def _packet(self) -> bytes:
        """One packet of the answer to PREPARE."""
        while True:
            d = self._join()
            size = int.from_bytes(d[:3], "little")
            if len(d) >= 4 and len(d) >= 4 + size:
                self._rest = d[4 + size :]
                if d[4] == _ERROR:
                    raise self._failed(d[4 : 4 + size])
                return d[4 : 4 + size]
            try:
                self._receive()
            except TimeoutError as error:
                raise translate(OSError(2013, "no answer in time"), self._session.endpoint) from error

    def _failed(self, body: bytes) -> SourceError:
        code = int.from_bytes(body[1:3], "little")
        text = body[9:] if body[3:4] == b"#" else body[3:]
        return translate(Exception(code, text.decode("utf-8", "replace")), self._session.endpoint)


def _count(body: bytes) -> int:
    return int.from_bytes(body[1:], "little")  # 251 columns and more


def _cell(body: bytes) -> Cell:
    """A column definition: six texts, then charset, length, type, flags, decimals."""
    p = 0
    for _ in range(6):
        n, p = (body[p], p + 1) if body[p] < 251 else (int.from_bytes(body[p + 1 : p + 3], "little"), p + 3)
        p += n
    return Cell(body[p + 7], int.from_bytes(body[p + 8 : p + 10], "little"))


def _joined(d: bytes, p: int) -> tuple[bytes, int] | None:
    """A row over several packets, and where it ends; None while it is not whole."""
    parts = []
    while p + 4 <= len(d):
        size = int.from_bytes(d[p : p + 3], "little")
        part = d[p + 4 : p + 4 + size]
        if len(part) < size:
            return None
        parts.append(part)
        p += 4 + size
        if size < BIG:
            return b"".join(parts), p
    return None
