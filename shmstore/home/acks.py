"""Acks: the durable position of each subscription, ``SUBSCRIPTION.json``, written by its owner alone.

A checkpoint stands only at an ack point that was acked, so that a reader resumed from it sees whole transactions and
misses nothing; it may be older than the ack by the interval at which it is written, never ahead of it. In a store with a log sequences
last, so that it stands at any event that was acked and is on disk, and it is there from the moment of subscribing.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Final, NamedTuple

from shmstore.errors import StoreError, refused
from shmstore.event import Position
from shmstore.home.home import FIX, Home, May
from shmstore.memory.segment import check_name
from shmstore.sources import pack_sources, unpack_sources
from shmstore.stored_json import read_bytes, read_json

NOWHERE: Final = Position("", 0)
FORMAT: Final = 2
WHAT: Final = "checkpoint"
ENDING: Final = ".json"

_log = logging.getLogger("shmstore")


class Checkpoint(NamedTuple):
    """A durable ack. `sequence` counts inside `epoch`, which a store with a log keeps for its whole life: there `position` is NOWHERE, or
    what was acked of an earlier store without one, until that has come again. The position outlives a store without a log."""

    position: Position
    epoch: int
    sequence: int
    lost: bool = False  # of a store with a log: evicted


class CheckpointFile:
    """The checkpoint of one subscription of one store: ``DIRECTORY/STORE/SUBSCRIPTION.json``."""

    def __init__(self, directory: str | os.PathLike[str] | None, store: str, subscription: str) -> None:
        self._home = Home.of(store, directory)
        self.path = self._home.path / f"{check_name(subscription)}{ENDING}"

    @classmethod
    def of(cls, home: Home, subscription: str) -> CheckpointFile:
        """Return that of a subscription of the store that lives in `home`."""
        made = cls(home.state, home.name, subscription)
        made._home = home
        return made

    def load(self) -> Checkpoint | None:
        """Return the checkpoint; None where none was ever written. Raises `StoreError` where the file is damaged."""
        try:
            value = read_json(self.path)
            file, offset, gtids, row = str(value["file"]), int(value["offset"]), str(value["gtids"]), int(value["row"])
            format_ = value.get("format", 1)  # the first ones had no number
            if (
                format_ not in (1, FORMAT) or "=" in gtids
            ):  # of one source, format 1 says the same; of several it had them in the GTIDs
                raise ValueError(f"it has format {format_}, this shmstore reads {FORMAT}")
            position = Position(file, offset, gtids, row, unpack_sources(value.get("sources", {})))
            return Checkpoint(position, int(value["epoch"]), int(value["sequence"]), bool(value.get("lost", False)))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(self.path, error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(self.path, error) from error

    def save(self, checkpoint: Checkpoint, *, may: May | None = None, forward: bool = False) -> bool:
        """Replace the checkpoint: after a crash at any point it is the old one or the new one, whole. Return False where that was not done:
        `may` says no, or, with `forward`, the file is of the same epoch and further. Raises `StoreError`, and what `may` raises.
        """
        position = checkpoint.position
        value = {"format": FORMAT, **position._asdict(), "sources": pack_sources(position.sources)}
        value |= {"epoch": checkpoint.epoch, "sequence": checkpoint.sequence}
        text = json.dumps(value | {"lost": True} if checkpoint.lost else value)
        return self._home.replace(
            self.path,
            text.encode(),
            WHAT,
            lambda: (may is None or may()) and not (forward and self._is_behind(checkpoint)),
        )

    def _is_behind(self, checkpoint: Checkpoint) -> bool:
        try:
            there = self.load()
        except StoreError:
            return False  # the owner knows what it acked, and nothing else does now
        return there is not None and there.epoch == checkpoint.epoch and there.sequence > checkpoint.sequence

    def remove(self) -> None:
        """Forget the checkpoint. Raises `StoreError` where it cannot be removed."""
        if self.load_bytes() is not None:
            self._home.remove(self.path, WHAT)

    def load_bytes(self) -> bytes | None:
        """Return the content of the file; None where there is none. Raises `StoreError`."""
        try:
            return read_bytes(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(self.path, error) from error
        except ValueError as error:
            raise _damaged(self.path, error) from error


class Acks(NamedTuple):
    """The checkpoints of a store's subscriptions, by name, and of those that cannot be read, why: each concerns its subscription alone."""

    saved: dict[str, Checkpoint]
    unreadable: dict[str, str]


def acks_of(home: Home) -> Acks:
    """Return the acks that are in a home. Raises `StoreError` where the folder cannot be read."""
    found = Acks({}, {})
    try:
        names = sorted(os.listdir(home.path))
    except FileNotFoundError:
        return found
    except OSError as error:
        raise _unreadable(home.path, error) from error
    for name in names:
        subscription = name.removesuffix(ENDING)
        if name == subscription:
            continue
        try:
            file = CheckpointFile.of(home, subscription)
        except ValueError:
            continue  # no subscription has such a name
        try:
            checkpoint = file.load()
        except StoreError as error:
            found.unreadable[subscription] = str(error)
        else:
            if checkpoint is not None:
                found.saved[subscription] = checkpoint
    return found


def checkpoints(store: str, directory: str | os.PathLike[str] | None = None) -> dict[str, Checkpoint]:
    """As `checkpoints_in`, by the store's name and the folder of homes."""
    return checkpoints_in(Home.of(store, directory))


def checkpoints_in(home: Home) -> dict[str, Checkpoint]:
    """Return the checkpoints that a producer could begin at, by subscription name: not those of a store with a log, which have no position.
    One that cannot be read is logged, and left out. Raises `StoreError` where the folder cannot be read."""
    acks = acks_of(home)
    for problem in acks.unreadable.values():
        _log.warning("%s; until then its reader may find that events are missing, and says so", problem)
    return {name: saved for name, saved in acks.saved.items() if saved.position != NOWHERE}


def _damaged(path: os.PathLike[str], error: Exception) -> StoreError:
    return StoreError(f"checkpoint {path} cannot be read ({error}): restore it, or remove it, and the reader begins as a new one")


def _unreadable(path: os.PathLike[str], error: OSError) -> StoreError:
    fix = f"let this user read and write there, or {FIX}"
    return refused(f"the state in {os.fspath(path)} cannot be reached", error, fix)
