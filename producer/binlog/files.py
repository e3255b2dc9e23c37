"""Local binlog files as a source: the same events, no server. The source ends with the last file."""

from __future__ import annotations

import logging
import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from shmstore import PositionNotFound, UnsupportedEvent
from shmstore.producer.binlog.events import HEADER_SIZE, EventCode, RawEvent
from shmstore.producer.binlog.packets import EventSplitter
from shmstore.producer.errors import ChecksumMismatch, SettingsError

MAGIC = b"\xfebin"
ENCRYPTED = b"\xfdbin"
CHUNK = 1 << 20
_SIZE = struct.Struct("<I")


def list_files(path: str) -> list[Path]:
    """Return the binlog file `path`, or those of the folder, by number: of a server's data folder, too. Raises `SettingsError`."""
    place = Path(path)
    try:
        if place.is_file():
            return [place]
        found = [file for file in place.iterdir() if file.suffix[1:].isdigit() and file.is_file()]
        logs = {file.stem for file in found if _begins_as_binlog(file)}  # aria_log.00000001 has such a name, too
    except OSError as error:
        raise SettingsError(f"binlog is {path!r}, where {error.filename!r} cannot be read: {error.strerror}") from error
    if not logs:
        raise SettingsError(f"binlog is {path!r}, which holds no binlog files (NAME.000001 ...)")
    if len(logs) > 1:
        raise SettingsError(
            f"binlog is {path!r}, which holds files of several logs: {', '.join(sorted(logs))}; copy those of one into a folder of "
            "their own, or name one file"
        )
    return sorted((file for file in found if file.stem in logs), key=lambda file: int(file.suffix[1:]))


def _begins_as_binlog(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) in (MAGIC, ENCRYPTED)


class BinlogFiles:
    """Raw events of binlog files, from one place on."""

    def __init__(self, files: list[Path], offset: int = 4, log: logging.Logger | None = None) -> None:
        """Read `files` in order, the first from `offset`. Raises `PositionNotFound` where one between them is missing."""
        for before, after in pairwise(files):
            if int(after.suffix[1:]) != int(before.suffix[1:]) + 1:
                raise PositionNotFound(
                    f"{before.parent} has no file between {before.name} and {after.name}: what it holds would be lost; copy it there, or skip "
                    f"the gap with a new store and start = {after.name}:4"
                )
        self._files, self._log = list(files), log or logging.getLogger("producer")
        self._offset = offset
        self._file: BinaryIO | None = None
        self._path = files[0]
        self._rest = b""
        self._missing = 0  # bytes of the event that `_rest` begins: a large one is joined once, not at every chunk
        self._splitter = EventSplitter()

    def read(self) -> list[RawEvent] | None:
        """Return some events, None at the end of the last file. Raises `UnsupportedEvent`, also where a file is no binlog."""
        while True:
            if self._file is None:
                if not self._files:
                    return None
                return self._open(self._files.pop(0))
            missing = min(self._missing, os.fstat(self._file.fileno()).st_size)  # a damaged event may say anything
            chunk = self._file.read(max(CHUNK, missing))
            if chunk:
                try:
                    events = self._split(self._rest + chunk)
                except ChecksumMismatch as error:
                    raise UnsupportedEvent(f"{self._path}: {error}; the file is damaged: copy it again") from error
                if events:
                    return events
                continue
            if self._rest:  # as a crash leaves it
                self._log.warning("%s ends inside an event; its last %d bytes are skipped", self._path, len(self._rest))
                self._rest, self._missing = b"", 0
            self._file.close()
            self._file = None

    def _open(self, path: Path) -> list[RawEvent]:
        """Open `path` and return what a server would say first: a ROTATE to it; from its middle on, its FORMAT event too."""
        try:
            self._file = path.open("rb")
            magic = self._file.read(4)
        except OSError as error:
            raise UnsupportedEvent(f"{path} cannot be read: {error.strerror}") from error
        if magic == ENCRYPTED:
            raise UnsupportedEvent(f"{path} is encrypted; read it through its server")
        if magic != MAGIC:
            raise UnsupportedEvent(f"{path} is not a binlog file: it begins with {magic.hex() or 'nothing'}, not {MAGIC.hex()}")
        self._path, self._splitter = path, EventSplitter()
        body = struct.pack("<Q", self._offset) + path.name.encode()
        events = [RawEvent(EventCode.ROTATE, 0, 0, HEADER_SIZE + len(body), 0, 0x20, body)]
        if self._offset > 4:
            header = self._file.read(HEADER_SIZE)
            whole = header + self._file.read(_SIZE.unpack_from(header, 9)[0] - HEADER_SIZE) if len(header) == HEADER_SIZE else b""
            if not whole or whole[4] != EventCode.FORMAT:
                raise UnsupportedEvent(f"{path} does not begin with a FORMAT event; is the file damaged?")
            events.append(self._splitter.take(memoryview(whole), 0, len(whole))._replace(end=0))
            self._file.seek(self._offset)
        self._offset = 4
        return events

    def _split(self, data: bytes) -> list[RawEvent]:
        events, at, end, view, self._missing = [], 0, len(data), memoryview(data), 0
        while end - at >= HEADER_SIZE:
            (size,) = _SIZE.unpack_from(data, at + 9)
            if size < HEADER_SIZE:
                raise UnsupportedEvent(
                    f"{self._path} holds an event of {size} bytes; is the file damaged, or the start offset wrong?"
                )
            if at + size > end:
                self._missing = at + size - end
                break
            events.append(self._splitter.take(view, at, at + size))
            at += size
        self._rest = data[at:]
        return events

    def rest(self) -> None:
        """Files do not time out."""

    def hurry(self, hurried: bool) -> None:
        """Files do not wait."""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._files = None, []
