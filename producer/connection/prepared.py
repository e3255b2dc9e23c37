"""A SELECT as a prepared statement, whose rows come in the server's binary form and are read as they arrive."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from math import inf
from typing import Any

from shmstore import Column, SourceError
from shmstore.encoding.codec import Packed, unpack_rows
from shmstore.producer.binlog.packets import ServerRefused, whole
from shmstore.producer.binlog.result_rows import Cell, ResultRows, new_rows
from shmstore.producer.connection.server_errors import translate
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.errors import LinkLost
from shmstore.producer.native_code import COMPILED

RECEIVE = 1 << 18
MOMENT = 0.002  # seconds
_PREPARE, _EXECUTE, _CLOSE = 0x16, 0x17, 0x19
_END, _ERROR = 0xFE, 0xFF
NUMBERS = {"tinyint", "smallint", "mediumint", "int", "bigint", "bit", "year", "decimal"}
INDEXED = Column("", "bigint", unsigned=True)
BYTES = Column("", "varbinary")


# ---------------------------------------------------------------- the rows


class SelectRows:
    """The rows of one SELECT, as the server sends them: `step` continues and never waits longer than asked.

    A statement that failed, or was left before its end, takes the session's connection along: close it.
    """

    def __init__(
        self,
        session: ServerSession,
        sql: str,
        columns: Sequence[Column],
        shown: int,
        wait: float,
        *,
        compiled_code: bool = COMPILED,
    ) -> None:
        """Send the SELECT, and wait until the server begins to answer. The first `shown` of `columns` make a row."""
        self._compiled_code = compiled_code
        self._session, self._columns, self._shown = session, columns, shown
        self.size = 0  # bytes that came
        self.more = False  # whether more may be here already, which TLS has taken from the socket
        self._rest = b""  # of the answer's beginning, what is not looked at yet
        self._rows: ResultRows | None = None  # None until the server has announced the columns
        self._socket: socket.socket = session.command(bytes([_PREPARE]) + sql.encode())
        self._socket.settimeout(wait)
        ok = self._packet()
        self._statement, count, parameters = struct.unpack_from("<IHH", ok, 1)
        assert not parameters, sql
        for _ in range(count + 1):
            self._packet()
        self._socket = session.command(struct.pack("<BIBI", _EXECUTE, self._statement, 0, 1))
        self._socket.settimeout(wait)

    def __len__(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    @property
    def rows(self) -> ResultRows:
        """The rows that have come, and are not cleared; some must have."""
        assert self._rows is not None
        return self._rows

    @property
    def last(self) -> tuple[Any, ...]:
        """The values of the last row, those that are not shown included."""
        row, extras = self.rows.last
        return (*unpack_rows(Packed(row)), *unpack_rows(Packed(extras)))

    def array(self, first: int, count: int) -> bytes:
        """Return `count` of the rows that have come, from `first` on, fewer at the end, as one MessagePack array."""
        return self.rows.array(first, count)

    def clear(self) -> None:
        """Forget the rows that came so far, and their bytes."""
        self.rows.clear()
        self.size = 0

    def fileno(self) -> int:
        """The socket's, for a caller that waits on several."""
        return self._socket.fileno()

    def step(self, seconds: float, size: float = inf) -> bool:
        """Read for at most so long, or until `size` bytes have come, and one row at least; True when all rows are there. Raises `SourceError`."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._socket.settimeout(left)
            try:
                if self._receive_rows():
                    return True
            except TimeoutError:
                return False
            if self.size >= size and len(self):
                return False

    def fill(self, size: int, wait: float | None) -> bool:
        """Read until `size` bytes have come, and one row at least; True when all rows are there.

        Raises `SourceError`; `LinkLost` where nothing comes for `wait` seconds. None: the server may look for a row for any time, while its
        host is there.
        """
        while self.size < size or not len(self):  # a row may be larger than any budget
            self._socket.settimeout(wait)
            try:
                if self._receive_rows():
                    return True
            except TimeoutError as error:
                raise LinkLost(f"{self._session.endpoint.where} has sent no row for {wait:g} s") from error
        return False

    def take(self) -> bool:
        """Read once, what exists or comes in a moment; True when all rows are there. Raises `SourceError`."""
        self._socket.settimeout(MOMENT)
        try:
            return self._receive_rows()
        except TimeoutError:
            return False

    def _receive_rows(self) -> bool:
        """Take what comes next; True at the end of the rows."""
        if self._rows is None:
            self._receive()
            return self._begin()
        memory = self._rows.buffer(RECEIVE)
        try:
            size = self._socket.recv_into(memory)
        except TimeoutError:
            raise
        except OSError as error:
            raise translate(error, self._session.endpoint) from error
        finally:
            memory.release()
        if not size:
            raise translate(OSError(2013, "the server closed the link"), self._session.endpoint)
        self.size += size
        self.more = size == RECEIVE
        return self._took(self._rows, size)

    def _took(self, rows: ResultRows, size: int) -> bool:
        body = rows.took(size)
        if body is None:
            return False
        if body[:1] == bytes([_ERROR]):
            raise self._failed(body)
        if body[:1] != bytes([_END]):
            raise SourceError(f"a row came that begins with {body[:1].hex() or 'nothing'}; the SELECT is out of step")
        self._session.command(struct.pack("<BI", _CLOSE, self._statement))
        return True

    def _begin(self) -> bool:
        """Look whether the columns are announced; what came behind is rows."""
        cells = self._ready()
        if cells is None:
            return False
        rows = self._rows = new_rows(cells, self._columns, self._shown, compiled_code=self._compiled_code)
        rest, self._rest = self._rest, b""
        if not rest:
            return False
        memory = rows.buffer(len(rest))
        memory[:] = rest
        memory.release()
        return self._took(rows, len(rest))

    def _ready(self) -> list[Cell] | None:
        """The columns that the server announces, when all of that has come."""
        bodies, at = list[bytes](), 0
        while (packet := whole(self._rest, at)) is not None:
            body, at = packet
            if body[:1] == bytes([_ERROR]) and not bodies:
                raise self._failed(body)
            bodies.append(body)
            count = bodies[0][0] if bodies[0][0] < 251 else int.from_bytes(bodies[0][1:], "little")
            if len(bodies) == count + 2:
                self._rest = self._rest[at:]
                return [_cell(body) for body in bodies[1:-1]]
        return None

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
        self.more = len(piece) == RECEIVE
        self._rest += piece

    def _packet(self) -> bytes:
        """One packet of the answer to PREPARE."""
        while True:
            if (packet := whole(self._rest, 0)) is not None:
                body, end = packet
                self._rest = self._rest[end:]
                if body[:1] == bytes([_ERROR]):
                    raise self._failed(body)
                return body
            try:
                self._receive()
            except TimeoutError as error:
                raise translate(OSError(2013, "no answer in time"), self._session.endpoint) from error

    def _failed(self, body: bytes) -> SourceError:
        return translate(ServerRefused.read(body), self._session.endpoint)


def _cell(body: bytes) -> Cell:
    """A column definition: six texts, then charset, length, type, flags, decimals."""
    p = 0
    for _ in range(6):
        n, p = (body[p], p + 1) if body[p] < 251 else (int.from_bytes(body[p + 1 : p + 3], "little"), p + 3)
        p += n
    return Cell(body[p + 7], int.from_bytes(body[p + 8 : p + 10], "little"))
