"""Which server a store was read from, durable in the store's home: for messages, and for where the store cannot show what it ends with.

    STATE/STORE/origin             of the one source; of each of several: STATE/STORE/SOURCE/origin

It names the server, the binlog file that it wrote when the producer last looked, and when that file began: a server that was reset has
that file no longer, or began it at another time. `options` is a checksum of those that decide what an event holds, and `since` the
last event of the store that was put with others.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import shmstore
from shmstore import StoreError
from shmstore.home.home import Home, May
from shmstore.producer.connection.server import SourceServer, binlog_files, log_end
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.errors import PrivilegeMissing
from shmstore.producer.positions.scan import file_begins
from shmstore.producer.settings import FILTERS, Settings
from shmstore.stored_json import read_json
from shmstore.units import moment

NAME: Final = "origin"
VERSION: Final = 1
_OPTIONS: Final = (*FILTERS, "hash_key", "statements", "rename", "rename_origin")


class Origin(NamedTuple):
    """A server, as a producer knew it. `file` is empty where it may not be asked; `began` is in seconds since 1970."""

    identity: str
    server: str  # its flavor and version
    file: str = ""
    began: float = 0.0
    options: str = ""
    since: int = -1


def options_of(settings: Settings) -> str:
    """Return a checksum of the options that decide what an event holds."""
    options = repr((shmstore.__version__, *(getattr(settings, name) for name in _OPTIONS)))
    return f"{zlib.crc32(options.encode()):08x}"


class OriginFile:
    """Where the origin of a store's source is kept. `source` is its name among several of one store, empty for the only one. `may`: see `Home.replace`."""

    def __init__(self, home: Home, source: str = "", may: May | None = None) -> None:
        self._home, self._may = home, may
        self.path = home.of_source(source) / NAME

    def load(self) -> Origin | None:
        """Return it; None where there is none, or one of another version. Raises `StoreError` where it cannot be read."""
        try:
            value: Mapping[str, Any] = read_json(self.path)
            if value["version"] != VERSION:
                return None
            identity, server, file, options = [str(value[name]) for name in ("identity", "server", "file", "options")]
            return Origin(identity, server, file, float(value["began"]), options, int(value["since"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self.path}, which names the server of this store, cannot be read ({error}): let this user read it, or remove it"
            ) from error

    def save(self, origin: Origin) -> None:
        """Replace it. Raises `StoreError` where the disk refuses."""
        content = json.dumps({"version": VERSION, **origin._asdict()}).encode()
        self._home.replace(self.path, content, "the name of the server", self._may)


def origin_of(session: ServerSession, server: SourceServer) -> Origin:
    """Return what `server` is now."""
    try:
        file = log_end(session, server).file
        began = file_begins(session, file)
    except PrivilegeMissing:
        file, began = "", 0.0
    return Origin(server.identity, f"{server.flavor} {server.version}", file, began)


def differs(origin: Origin, session: ServerSession) -> str | None:
    """Return what shows that the server's binlog is not the one of `origin`; "" where it is the same, None where that cannot be seen."""
    if not origin.file:
        return None
    try:
        files = [name for name, _ in binlog_files(session)]
    except PrivilegeMissing:
        return None
    if origin.file not in files:
        number = [int(digits) for name in (origin.file, files[0]) if (digits := name.rpartition(".")[2]).isdigit()]
        purged = len(number) == 2 and number[0] < number[1] and origin.file.rpartition(".")[0] == files[0].rpartition(".")[0]
        return None if purged else f"it has no file {origin.file}, only {files[0]} to {files[-1]}"
    began = file_begins(session, origin.file)
    if began == origin.began:
        return ""
    return f"its {origin.file} began at {moment(int(began * 1000))}, the one that was read at {moment(int(origin.began * 1000))}"
