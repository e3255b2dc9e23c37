"""Who did what to a store from outside: a line for each action, of the command line and of `shmstore web`, durable in the store's home.

STATE/STORE/actions.audit     the newest last; of more than `MOST` lines the older half is dropped
"""

from __future__ import annotations

import os
import pwd
from typing import Final, NamedTuple

from shmstore.clock import calendar_ms
from shmstore.errors import StoreError
from shmstore.home.home import Home
from shmstore.home.lines import LinesFile

NAME: Final = "actions.audit"
HEAD: Final = {"shmstore_audit": 1}
MOST: Final = 10_000
MOST_BYTES: Final = 64 * MOST  # so large the file may be without a look at how many lines it has


class AuditLine(NamedTuple):
    """What was done. `by` is who asked; `outcome` is "done", or why it was not."""

    at_ms: int
    by: str
    action: str
    what: str
    outcome: str


def user() -> str:
    """Return the name of this process's user."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def note(home: Home, by: str, action: str, what: str, outcome: str) -> None:
    """Add a line. Raises `StoreError` where the disk refuses."""
    file = _file(home)
    line = AuditLine(calendar_ms(), by, action, what, outcome)
    if file.path.exists() and file.path.stat().st_size > MOST_BYTES and len(there := _read(file)) >= MOST:
        file.begin([*there[-MOST // 2 :], line])
    else:
        file.append([line])


def lines(home: Home) -> list[AuditLine]:
    """Return what was done, the newest last. Raises `StoreError` where the file cannot be read."""
    return _read(_file(home))


def _file(home: Home) -> LinesFile:
    return LinesFile(home, home.path / NAME, HEAD, "audit log")


def _read(file: LinesFile) -> list[AuditLine]:
    try:
        return [AuditLine(int(at), *map(str, rest)) for at, *rest in file.read() or []]
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{file.path}, the store's audit log, cannot be read ({error}): move it away, and a new one begins"
        ) from error
