"""The mark: up to where a log is known to be on disk, so that damage is distinguished from a torn end.

The file ``synced`` next to the sets is written over after each sync, and not synced itself: what it says was true when it was written, and
one that a crash of the host leaves older, torn or away says less, never too much. Where a log is cut before its mark, the mark is taken
back durably before anything is appended there.
"""

from __future__ import annotations

import os
import stat
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from shmstore.atomic_file import give_to_owner
from shmstore.log.format import LOCK_FILE
from shmstore.stored_json import read_bytes

NAME: Final = "synced"
MARK: Final = np.dtype(
    [
        ("magic", "S8"),
        ("epoch", "<i8"),  # of the store
        ("synced", "<i8"),  # sequence of the last event that was on disk
        ("check", "<u4"),  # crc32 of the bytes before it
        ("reserved", "<u4"),
    ]
)
MAGIC: Final = b"SHMSMARK"
CHECKED: Final = 24  # bytes before `check`


def mark_bytes(epoch: int, synced: int) -> bytes:
    """Return the content of the file: all up to event `synced` was on disk before this is written."""
    mark = np.zeros((), MARK)
    mark["magic"], mark["epoch"], mark["synced"] = MAGIC, epoch, synced
    mark["check"] = zlib.crc32(mark.tobytes()[:CHECKED])
    return mark.tobytes()


def read_mark(folder: Path, epoch: int) -> int | None:
    """Return up to where the log in `folder` was on disk; None where nothing says so, as in one that an earlier version wrote."""
    with suppress(OSError, ValueError):
        raw = read_bytes(folder / NAME)
        if len(raw) == MARK.itemsize:
            mark = np.frombuffer(raw, MARK)[0]
            if mark["magic"] == MAGIC and mark["check"] == zlib.crc32(raw[:CHECKED]) and mark["epoch"] == epoch:
                return int(mark["synced"])
    return None


def open_mark(folder: Path) -> int:
    """Return a descriptor of the file, made for those who may append where it is not there yet. Raises OSError."""
    fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        give_to_owner(fd, folder)
        like, here = os.stat(folder / LOCK_FILE), os.fstat(fd)  # the lock belongs to the process that may append
        if os.geteuid() in (here.st_uid, 0) and (here.st_gid, stat.S_IMODE(here.st_mode)) != (
            like.st_gid,
            stat.S_IMODE(like.st_mode),
        ):
            os.fchown(fd, -1, like.st_gid)
            os.fchmod(fd, stat.S_IMODE(like.st_mode))
    except BaseException:
        os.close(fd)
        raise
    return fd


def set_mark(folder: Path, epoch: int, synced: int) -> None:
    """Write the mark, and have it on disk. Raises OSError."""
    fd = open_mark(folder)
    try:
        os.pwrite(fd, mark_bytes(epoch, synced), 0)
        os.fsync(fd)
    finally:
        os.close(fd)
