"""A SELECT as a prepared statement, whose rows come in the server's binary form and are read as they arrive."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from shmstore import Column, SourceError
from shmstore.producer.connection.binary_rows import BIG, Cell, compile_rows
from shmstore.producer.connection.server_errors import translate
from shmstore.producer.connection.session import Session

RECEIVE = 1 << 18
_PREPARE, _EXECUTE, _CLOSE = 0x16, 0x17, 0x19
_END, _ERROR = 0xFE, 0xFF
NUMBERS = {"tinyint", "smallint", "mediumint", "int", "bigint", "bit", "year", "decimal"}
INDEXED = Column("", "bigint", unsigned=True)
BYTES = Column("", "varbinary")


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
