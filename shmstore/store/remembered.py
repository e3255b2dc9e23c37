"""Stores that are remembered: what a home says of its store, while no process restores it. Nothing is changed, or locked."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shmstore.errors import StoreError, StoreNotFound, refused
from shmstore.home import identity
from shmstore.home.acks import acks_of
from shmstore.home.home import Home, state_directory
from shmstore.log import format as log_format
from shmstore.log.files import LogFiles, set_firsts
from shmstore.log.log_set import opened
from shmstore.memory.segment import check_name


class RememberedStore(NamedTuple):
    """A store in its home. Sequences are of the oldest and the newest event in the log (none where ``newest < oldest``), `bytes` and
    `files` those on disk, times in milliseconds since 1970 UTC; `acks` has what each subscription has durably acked, `lost` those that were
    evicted. `path` is the file
    of its memory, where it has one and that is there: then the store is not in its home alone."""

    name: str
    home: str
    epoch: int
    created_ms: int
    oldest: int
    newest: int
    bytes: int
    files: int
    size: int
    keep_ms: int
    oldest_ms: int
    acks: dict[str, int]
    lost: tuple[str, ...]
    path: str | None

    @property
    def lags(self) -> dict[str, int]:
        """How many events each subscription has not acked."""
        return {name: self.newest - ack for name, ack in self.acks.items()}


def remembered(state: str | os.PathLike[str] | None = None) -> list[str]:
    """Names of the stores with a log whose homes are in the folder `state`, as far as this user may see them, sorted.

    Raises `StoreError` where the disk cannot be read."""
    folder = Path(state or state_directory())
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, PermissionError):
        return []
    except OSError as error:
        raise refused(f"the state in {folder} cannot be read", error, "let this user read it") from error
    return sorted(name for name in names if _is_name(name) and os.path.exists(Home(folder / name).identity))


def _is_name(name: str) -> bool:
    try:
        return bool(check_name(name))
    except ValueError:
        return False


def describe_home(home: Home) -> RememberedStore:
    """Return what a home says of its store. Raises `StoreNotFound`, `StoreError`, `LayoutMismatch` as `shmstore.home.identity.read`."""
    known = identity.read(home)
    try:
        newest = max(newest_written(home.log), known.options.first - 1)
        sets = LogFiles(home.log, known.epoch, lambda: newest).sets()
    except OSError as error:
        raise refused(f"the log in {home.log} cannot be read", error, "let this user read there") from error
    acks = acks_of(home)
    saved = {each: file for each, file in acks.saved.items() if file.epoch == known.epoch}
    return RememberedStore(
        name=home.name,
        home=os.fspath(home),
        epoch=known.epoch,
        created_ms=known.created_ms,
        oldest=sets[0].first if sets else newest + 1,
        newest=newest,
        bytes=sum(each.bytes for each in sets),
        files=3 * len(sets),
        size=known.options.log_size,
        keep_ms=round(known.options.log_keep * 1000),
        oldest_ms=sets[0].first_ms if sets else 0,
        acks={each: file.sequence for each, file in saved.items()},
        lost=tuple(each for each, file in saved.items() if file.lost),
        path=known.path if known.path and os.path.exists(known.path) else None,
    )


def newest_written(folder: Path) -> int:
    """Return the last event of the log in `folder` by its last block that is whole; -1 where there is no log.

    What a crash left behind that block, or before it, the next recovery says.
    """
    firsts = set_firsts(folder)
    if not firsts:
        return -1
    path = (folder / log_format.set_name(firsts[-1])).with_suffix(log_format.BLOCKS)
    size = log_format.BLOCK.itemsize
    with open(path, "rb", opener=opened) as file:
        for i in reversed(range(os.fstat(file.fileno()).st_size // size)):
            raw = os.pread(file.fileno(), size, i * size)
            if len(raw) == size and log_format.block_sound(raw):
                block = np.frombuffer(raw, log_format.BLOCK)[0]
                return int(block["first"]) + int(block["count"]) - 1
    return firsts[-1] - 1


class Homes:
    """What the homes in the folder `state` say, for a viewer that looks every second: one is read again only where a file in it changed."""

    def __init__(self, state: str | os.PathLike[str] | None = None) -> None:
        self._state = state
        self._known: dict[str, tuple[object, RememberedStore]] = {}

    def look(self, names: Sequence[str], in_memory: Collection[str]) -> tuple[list[RememberedStore], dict[str, str]]:
        """Return the stores that are in their homes and not `in_memory`, of `names` or of all, and for each that cannot be read, why."""
        found, unreadable = {}, dict[str, str]()
        try:
            names = names or remembered(self._state)
        except StoreError as error:
            unreadable[os.fspath(self._state or state_directory())] = str(error)
        for name in names:
            if name in in_memory:
                continue
            try:
                found[name] = self._look(name)
            except StoreNotFound:
                pass  # it has no home, or was removed since
            except StoreError as error:
                unreadable[name] = str(error)
        self._known = found
        return [store for _, store in found.values()], unreadable

    def _look(self, name: str) -> tuple[object, RememberedStore]:
        now, known = _files(Home.of(name, self._state)), self._known.get(name)
        return known if now and known is not None and known[0] == now else (now, describe_home(Home.of(name, self._state)))


def _files(home: Home) -> list[tuple[int, int, int]]:
    """What tells whether anything in a home changed: folders, in which files come, go and are replaced, and the files that may change in place."""
    folder = home.log
    newest = [(folder / log_format.set_name(first)).with_suffix(log_format.BLOCKS) for first in set_firsts(folder)[-1:]]
    try:
        return [
            (stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in map(os.stat, (home.path, folder, home.identity, *newest))
        ]
    except OSError:
        return []  # there is none, or it is just being removed: `describe_home` says what is the matter
