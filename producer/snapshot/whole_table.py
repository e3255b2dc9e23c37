"""A table without a key, which is read whole and put as its rows come.

While the ring is full reading continues, so that the server's locks go with the end of the read: what comes then is kept on disk, since the
table may be larger than memory, and put before all that comes later.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from shmstore import StoreError
from shmstore.encoding.codec import Packed, pack, unpack_rows
from shmstore.producer.connection.prepared import SelectRows
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.snapshot.placing import RowSource

KEPT_BYTES = 1 << 20  # of rows that are kept at once


class WholeTable:
    """The read of such a table, on `session`; `folder` is where rows are kept."""

    def __init__(self, rows: SelectRows, session: ServerSession, name: str, folder: Path, log: logging.Logger) -> None:
        self.session = session
        self._rows, self._name, self._folder, self._log = rows, name, folder, log
        self._kept: KeptRows | None = None
        self._read = False  # to its end
        self._refused = False  # by the disk

    def step(self, seconds: float, put: Callable[[RowSource, bool], object]) -> bool:
        """Let `put` have the rows that come next, for which it waits so long at most, and whether they are the last; return that.

        Raises `SourceError`, `StoreError`.
        """
        kept = self._kept.take() if self._kept is not None else None
        if kept is not None:
            put(kept, False)
            return False
        if not self._read and self._rows.step(seconds):
            self._end()
        put(self._rows, self._read)
        if len(self._rows):
            self._rows.clear()
        return self._read

    def read_on(self, until: float) -> None:
        """Read, until then at most, though nothing can be put. Raises `SourceError`."""
        while not (self._read or self._refused) and time.monotonic() < until:
            if self._rows.take():
                self._end()
            if len(self._rows) and (self._read or self._rows.size >= KEPT_BYTES):
                self._keep()

    def _end(self) -> None:
        self._read = True
        self.session.query("COMMIT")

    def _keep(self) -> None:
        try:
            self._kept = self._kept or KeptRows(self._folder)
            self._kept.add(self._rows)
        except OSError as error:  # what came stays in memory, and the server waits with the rest
            self._refused = True
            self._log.warning("snapshot: rows of %s cannot be kept in %s: %s", self._name, self._folder, error.strerror)

    def close(self) -> None:
        """Give the disk's space back."""
        if self._kept is not None:
            self._kept.close()


class _SomeRows:
    """Some rows of a SELECT, as `SelectRows` gives them; `size`: the bytes that they took on the way."""

    def __init__(self, rows: Packed, size: int) -> None:
        self._rows: list[Any] = unpack_rows(rows)
        self.size = size

    def __len__(self) -> int:
        return len(self._rows)

    def array(self, first: int, count: int) -> bytes:
        """Return `count` rows from `first` on, fewer at the end, as one MessagePack array."""
        return pack(self._rows[first : first + count])


class _Piece(NamedTuple):
    at: int
    length: int
    size: int  # on the way


class KeptRows:
    """First in, first out. The file has no name, so that a kill leaves nothing."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # `close` does
        self._pieces: deque[_Piece] = deque()
        self._end = 0

    def add(self, rows: SelectRows) -> None:
        """Take all of `rows`, and clear them. Raises OSError where there is no space: then they are as they were."""
        content = memoryview(rows.array(0, len(rows)))
        self._file.seek(self._end)
        written = 0
        while written < len(content):
            written += self._file.write(content[written:]) or 0
        self._pieces.append(_Piece(self._end, len(content), rows.size))
        self._end += len(content)
        rows.clear()

    def take(self) -> _SomeRows | None:
        """Remove and return the oldest rows, as many as were added at once; None where there are none. Raises `StoreError`."""
        if not self._pieces:
            return None
        piece = self._pieces.popleft()
        try:
            self._file.seek(piece.at)
            content = b"".join(iter(lambda: self._file.read(piece.at + piece.length - self._file.tell()), b""))
            if not self._pieces:
                self._end = self._file.truncate(0)
        except OSError as error:
            raise StoreError(
                f"rows of a snapshot that were kept on disk cannot be read: {error.strerror}; start again"
            ) from error
        return _SomeRows(Packed(content), piece.size)

    def close(self) -> None:
        """Give its space back."""
        self._file.close()
