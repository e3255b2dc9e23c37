"""Durable positions of subscriptions: one small file each, replaced atomically.

A checkpoint stands only at an ack point that was acked, so that a reader resumed from it sees whole transactions and
misses nothing; it may be older than the ack by the interval at which it is written, never ahead of it. In a store with a log sequences
last, so that it stands at any event that was acked and is on disk, and it is there from the moment of subscribing.
"""

from __future__ import annotations

import json
import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from shmstore.atomic_file import replace
from shmstore.errors import StoreError, refused
from shmstore.event import Position
from shmstore.memory.segment import check_name

NOWHERE: Final = Position("", 0)


class Checkpoint(NamedTuple):
    """A durable ack. `sequence` counts inside `epoch`, which a store with a log keeps for its whole life: there `position` is NOWHERE, or
    what was acked of an earlier store without one, until that has come again. The position outlives a store without a log."""

    position: Position
    epoch: int
    sequence: int
    lost: bool = False  # of a store with a log: evicted


def state_directory() -> Path:
    """Where checkpoints live: ``$SHMSTORE_STATE``, else ``$XDG_STATE_HOME/shmstore``, else ``~/.local/state/shmstore``."""
    chosen = os.environ.get("SHMSTORE_STATE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "shmstore"


def home_of(store: str, state: str | os.PathLike[str] | None = None) -> Path:
    """The folder of what outlives a store's memory: ``STATE/STORE``, in `state_directory()` by default."""
    return Path(os.path.abspath(state or state_directory())) / check_name(store)


class CheckpointFile:
    """The checkpoint of one subscription of one store: ``DIRECTORY/STORE/SUBSCRIPTION.json``."""

    def __init__(self, directory: str | os.PathLike[str] | None, store: str, subscription: str) -> None:
        self.path = Path(directory or state_directory()) / check_name(store) / f"{check_name(subscription)}.json"

    def load(self) -> Checkpoint | None:
        """Return the checkpoint; None where none was ever written. Raises `StoreError` where the file is damaged."""
        try:
            value = json.loads(self.path.read_text())
            position = Position(str(value["file"]), int(value["offset"]), str(value["gtids"]), int(value["row"]))
            return Checkpoint(position, int(value["epoch"]), int(value["sequence"]), bool(value.get("lost", False)))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(self.path, error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"checkpoint {self.path} cannot be read ({error}): restore it, or remove it, and the reader begins as a new one"
            ) from error

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint: after a crash at any point it is the old one or the new one, whole. Raises `StoreError`."""
        position = checkpoint.position
        value = {**position._asdict(), "epoch": checkpoint.epoch, "sequence": checkpoint.sequence}
        text = json.dumps(value | {"lost": True} if checkpoint.lost else value)
        replace(self.path, lambda at: at.write_text(text), "checkpoint", "name another folder with SHMSTORE_STATE")

    def remove(self) -> None:
        """Forget the checkpoint. Raises `StoreError` where it cannot be removed."""
        _remove([self.path])


def checkpoints(store: str, directory: str | os.PathLike[str] | None = None, *, placed: bool = True) -> dict[str, Checkpoint]:
    """Return the checkpoints of all subscriptions of `store`, by subscription name; unless `placed` is False, only those with a position,
    which a producer could begin at: not those of a store with a log."""
    folder = Path(directory or state_directory()) / check_name(store)
    found = {}
    for path in _files(folder, "*.json"):
        checkpoint = CheckpointFile(directory, store, path.stem).load()
        if checkpoint is not None and (not placed or checkpoint.position != NOWHERE):
            found[path.stem] = checkpoint
    return found


def forget(store: str, state: str | os.PathLike[str] | None = None) -> bool:
    """Forget the checkpoints of `store` and how far its snapshots are; return whether there was anything."""
    files = _files(home_of(store, state), "*.json", "snapshot*", "origin")
    _remove(files)
    return bool(files)


def _files(folder: Path, *patterns: str) -> list[Path]:
    """The files there that match, sorted; none where no such folder is. Path.glob takes one that cannot be read for empty."""
    try:
        return sorted(folder / name for name in os.listdir(folder) if any(fnmatchcase(name, each) for each in patterns))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(folder, error) from error


def _remove(files: list[Path]) -> None:
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise _unreadable(file, error) from error


def _unreadable(path: Path, error: OSError) -> StoreError:
    fix = "let this user read and write there, or name another folder with SHMSTORE_STATE"
    return refused(f"the state in {path} cannot be reached", error, fix)
