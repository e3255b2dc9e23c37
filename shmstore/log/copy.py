"""Copy a log that is in use: the copy is what a power cut would have left, so that the next process that opens it recovers it.

A group is written in the order events, slots, blocks, and the mark after them (`appender.py`). The copy reads in the opposite order, so that
each file has at least what those copied before it speak of. What lacks its block at the end is cut off by recovery. Retention removes sets from the
oldest on, so the newest set is copied first: where one is gone, all that are older are, too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from shmstore.log import format as log_format
from shmstore.log.files import set_firsts
from shmstore.log.format import BLOCK, BLOCKS, ENDINGS, EVENTS, LOCK_FILE, SLOTS
from shmstore.log.mark import NAME as MARK_FILE
from shmstore.stored_json import open_regular


def copy_log(log: Path, to: Path, newest_done: Callable[[], object], copied: Callable[[int], object]) -> int:
    """Copy the sets of the log in the folder `log`, its mark and its lock's rights into the folder `to`, durably.

    `newest_done` is called when the newest set is copied, `copied` with the bytes of each set. Returns the first sequence of the oldest set
    copied, 0 where there is none: retention may have removed older ones meanwhile. Raises OSError, ValueError for what is not a regular
    file.
    """
    for name in (MARK_FILE, LOCK_FILE):
        with suppress(FileNotFoundError):  # of a log that has no event yet
            copy_file(log / name, to / name)
    firsts = set_firsts(log)[::-1]
    oldest = firsts[0] if firsts else 0
    if firsts:
        copied(_copy_set(log, to, oldest))
    newest_done()
    for first in firsts[1:]:
        try:
            copied(_copy_set(log, to, first))
        except FileNotFoundError:
            for ending in ENDINGS:
                (to / log_format.set_name(first)).with_suffix(ending).unlink(missing_ok=True)
            break
        oldest = first
    return oldest


def _copy_set(log: Path, folder: Path, first: int) -> int:
    """Copy what the blocks of a set cover: the other two files are sparse, and as long as the set may grow."""
    stem, to = (each / log_format.set_name(first) for each in (log, folder))
    blocks_bytes = copy_file(stem.with_suffix(BLOCKS), to.with_suffix(BLOCKS))
    raw = to.with_suffix(BLOCKS).read_bytes()
    blocks = np.frombuffer(raw, BLOCK, len(raw) // BLOCK.itemsize)
    last = next((block for block in blocks[::-1] if log_format.block_sound(block.tobytes())), np.zeros((), BLOCK))
    events = max(0, int(last["first"] + last["count"]) - first)
    slots_bytes = copy_file(stem.with_suffix(SLOTS), to.with_suffix(SLOTS), log_format.slots_size(events))
    return (
        blocks_bytes + slots_bytes + copy_file(stem.with_suffix(EVENTS), to.with_suffix(EVENTS), int(last["at"] + last["size"]))
    )


def copy_file(path: Path, to: Path, size: int | None = None) -> int:
    """Copy the first `size` bytes (None: all) of a regular file, with its rights, durably; return how many they are.

    Raises OSError, ValueError for what is not a regular file.
    """
    with (
        open(path, "rb", opener=open_regular) as source,
        open(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as target,
    ):
        wanted, done = os.fstat(source.fileno()).st_size if size is None else size, 0
        while done < wanted and (count := os.sendfile(target.fileno(), source.fileno(), done, min(wanted - done, 1 << 30))):
            done += count
        copy_rights(source.fileno(), target.fileno())
        os.fsync(target.fileno())
    return done


def copy_rights(source: int | Path, target: int | Path) -> None:
    """Give a file or folder the owner, group and mode of another, as far as this user may."""
    there = os.stat(source)
    with suppress(PermissionError):
        os.chown(target, there.st_uid, there.st_gid)
    os.chmod(target, stat.S_IMODE(there.st_mode))
