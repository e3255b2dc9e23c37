"""Back up the home of a store while it is in use: into a folder of homes, from which the store can be restored.

Order. The copy must be a home as a power cut leaves one. So what is never ahead of the log, the readers' acks and what else they keep, is
copied before it; what is never behind it, the definitions of tables and their history, after its newest events. Each of these files
is replaced whole by its writers, so that it is copied whole.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from shmstore.atomic_file import sync
from shmstore.errors import StoreError, StoreNotFound, refused
from shmstore.home import kinds
from shmstore.home.acks import acks_of
from shmstore.home.home import Home
from shmstore.log import check
from shmstore.log.copy import copy_file, copy_log, copy_rights
from shmstore.log.files import set_firsts

TRIES: Final = 3


class Backup(NamedTuple):
    """A copy of a home, and what is wrong in it, a sentence each: a fault of the store itself, which has it, too."""

    home: Home
    problems: list[str]


def back_up(home: Home, folder: Path, copied: Callable[[int], object] = lambda _: None) -> Backup:
    """Copy a store's home to ``folder/STORE``, durably, and read all of the copy.

    `copied` is called with the bytes of each set of the log's files. The copy gets its name when it is complete. Raises `StoreNotFound` where there
    is no home, `StoreError` where ``folder/STORE`` exists, another backup writes there, or the disk refuses.
    """
    target, temporary = folder / home.name, folder / f".{home.name}.tmp"
    if not home.path.is_dir():
        raise StoreNotFound(f"there is no home in {home.path}: nothing to back up")
    if target.exists():
        raise StoreError(f"{target} exists: choose another folder, such as one with the date in its name, or remove it")
    try:
        temporary.mkdir(0o700, parents=True, exist_ok=True)
        lock = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _claim(lock, temporary)
            try:
                _fill(home, Home(temporary / home.name), copied)
                os.rename(temporary / home.name, target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            sync(folder)
        finally:
            os.close(lock)
    except ValueError as error:
        raise StoreError(f"the home {home.path} cannot be copied: {error}") from error
    except OSError as error:
        fix = "make space there, choose another folder, or do this as the store's user"
        raise refused(f"the home {home.path} cannot be copied to {target}", error, fix) from error
    made = Home(target)
    epoch = made.epoch_there()
    return Backup(made, [*(check.verify(made.log, epoch) if epoch is not None else ()), *kinds.problems(made)])


def _claim(lock: int, temporary: Path) -> None:
    """Let no other backup write there. Raises OSError, `StoreError`."""
    if os.fstat(lock).st_uid != os.geteuid():
        raise StoreError(f"{temporary} is another user's: choose another folder, or remove it")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(f"another backup writes to {temporary}: wait for it, or choose another folder") from None


def _fill(home: Home, to: Home, copied: Callable[[int], object]) -> None:
    """Copy the home, again where retention removed events meanwhile that a copied ack needs."""
    epoch = home.epoch_there()
    for _ in range(TRIES):
        for path in to.state.iterdir():  # of an attempt before, or of a backup that was killed
            shutil.rmtree(path)
        to.path.mkdir()
        began = min(set_firsts(home.log), default=0)
        _copy_files(home, to, kinds.NEVER_AHEAD)
        if epoch is None:
            _copy_files(home, to, kinds.NEVER_BEHIND)
            oldest = began
        else:
            to.log.mkdir()
            copy_file(home.identity, to.identity)
            oldest = copy_log(home.log, to.log, lambda: _copy_files(home, to, kinds.NEVER_BEHIND), copied)
            copy_rights(home.log, to.log)
        copy_rights(home.path, to.path)
        for folder in (to.path, *(each for each in to.path.iterdir() if each.is_dir())):
            sync(folder)
        if home.epoch_there() != epoch:
            raise StoreError(f"store {home.name!r} was removed while it was copied: back up the one that is in its place")
        acked = [ack.sequence for ack in acks_of(to).saved.values() if ack.epoch == epoch and not ack.lost]
        if oldest == began or min(acked, default=oldest) + 1 >= oldest:
            return
    raise StoreError(
        f"the log of store {home.name!r} is trimmed faster than it can be copied to {to.state.parent}: keep more of it (--log-size, "
        "--log-keep), or choose a faster disk"
    )


def _copy_files(home: Home, to: Home, order: str) -> None:
    """Copy the files of some kinds, those of a kind that the table has first before the others."""
    found = [(kinds.KINDS.index(kind), path) for kind, path in kinds.files_of(home) if kind.backup == order]
    for _, path in sorted(found):
        target = to.path / path.relative_to(home.path)
        if not target.parent.exists():
            target.parent.mkdir()
            copy_rights(path.parent, target.parent)
        with suppress(FileNotFoundError):  # removed since
            copy_file(path, target)
