"""A file of lines that grows: a head that says what it is, and JSON values. A line is on disk before it counts; one that a crash cut off
at the end never counted."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shmstore.atomic_file import refused
from shmstore.errors import StoreError
from shmstore.home.home import FIX, Home, May
from shmstore.stored_json import open_regular, parse_json, read_bytes


class LinesFile:
    """Such a file in a home. `head` is its first line; `may` is looked at before each write, see `Home.replace`."""

    def __init__(self, home: Home, path: Path, head: dict[str, int], what: str, may: May | None = None) -> None:
        self.home, self.path = home, path
        self._head, self._what, self._may = head, what, may

    def begin(self, values: Iterable[Any]) -> None:
        """Replace all that is there by `values`. Raises `StoreError`."""
        self.home.replace(self.path, b"".join(map(_line, [self._head, *values])), self._what, self._may)

    def append(self, values: Iterable[Any]) -> None:
        """Add `values`; when this returns they are on disk. Raises `StoreError`; then none of them counts."""
        if not self._has_line():
            self.begin(values)
            return
        lines = b"".join(map(_line, values))
        with self.home.writing(self.path, self._what):
            if self._may is not None and not self._may():
                return
            try:
                with open(self.path, "r+b", buffering=0, opener=open_regular) as file:
                    end = file.seek(-1, os.SEEK_END) + 1
                    if file.read(1) != b"\n":  # what a crash left of a last line
                        file.seek(0)
                        end = file.truncate(file.read().rfind(b"\n") + 1)
                        file.seek(end)
                    try:
                        if file.write(lines) < len(lines):
                            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                        os.fsync(file.fileno())
                    except OSError:
                        file.truncate(end)  # half a line would spoil what comes behind it
                        raise
            except OSError as error:
                raise refused(self.path, error, self._what, FIX) from error

    def _has_line(self) -> bool:
        try:
            with open(self.path, "rb", opener=open_regular) as file:
                return file.readline().endswith(b"\n")
        except FileNotFoundError:
            return False
        except ValueError as error:
            raise StoreError(f"{self._what} {self.path}: {error}; move it away, and a new one is created") from error
        except OSError as error:
            raise refused(self.path, error, self._what, FIX) from error

    def read(self) -> list[Any] | None:
        """Return the values, in their order; None where there are none. Raises OSError, and ValueError where the file is not of this kind."""
        try:
            data = read_bytes(self.path)
        except FileNotFoundError:
            return None
        head, *lines = data.split(b"\n")[:-1] or [b""]  # what is behind the last line end never counted
        if not head:
            return None
        if parse_json(head) != self._head:
            raise ValueError(f"its first line is {head[:80]!r}")
        return list(map(parse_json, lines))

    def remove(self) -> None:
        """Remove the file, if it is there. Raises `StoreError`."""
        if self.path.exists():
            self.home.remove(self.path, self._what, self._may)


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
