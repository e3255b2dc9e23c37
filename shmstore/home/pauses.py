"""What is paused: the producer of a store, or one of its subscriptions. Durable, in the store's home, so that it outlives every restart.

    STATE/STORE/pause.producer          written by the process that pauses; while it is there, the producer reads nothing
    STATE/STORE/SUBSCRIPTION.paused     the same of a subscription; its entry in the segment says it to the reader

A file that cannot be understood pauses as well: it is there because a pause was asked for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from shmstore.clock import calendar_ms
from shmstore.errors import StoreError, refused
from shmstore.home.home import FIX, Home
from shmstore.memory.segment import check_name
from shmstore.stored_json import read_json

PRODUCER: Final = "pause.producer"
SUBSCRIPTION: Final = ".paused"
FORMAT: Final = 1


class Pause(NamedTuple):
    """Since when something is paused, in ms since 1970, and who asked for it."""

    since_ms: int
    by: str


def path_of(home: Home, subscription: str | None = None) -> Path:
    """Return the file of a subscription's pause; None: of the producer's."""
    return home.path / (PRODUCER if subscription is None else f"{check_name(subscription)}{SUBSCRIPTION}")


def keep(home: Home, by: str, subscription: str | None = None) -> None:
    """Write down that the producer, or a subscription, is paused. One that is paused already stays so since then. Raises `StoreError`."""
    if kept(home, subscription) is None:
        content = json.dumps({"shmstore_pause": FORMAT, "since_ms": calendar_ms(), "by": by}).encode()
        home.replace(path_of(home, subscription), content, "pause")


def forget(home: Home, subscription: str | None = None) -> bool:
    """Write down that it is not paused any more; return whether it was. Raises `StoreError`."""
    found = kept(home, subscription) is not None
    if found:
        home.remove(path_of(home, subscription), "pause")
    return found


def kept(home: Home, subscription: str | None = None) -> Pause | None:
    """Return since when it is paused; None where it is not. Raises `StoreError` where that cannot be seen."""
    path = path_of(home, subscription)
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return Pause(0, "")
    except OSError as error:
        raise refused(f"{path}, which pauses what it names, cannot be read", error, f"let this user read it, or {FIX}") from error


def is_kept(home: Home, subscription: str, *, unseen: bool) -> bool:
    """Return whether a subscription is paused; `unseen` for a user of the store who may not look into its home. Raises `StoreError` as `kept`."""
    try:
        return kept(home, subscription) is not None
    except StoreError as error:
        if isinstance(error.__cause__, PermissionError):
            return unseen
        raise


def read(path: Path) -> Pause:
    """Return the pause in a file. Raises OSError, and what a damaged one raises: ValueError, KeyError, TypeError."""
    value = read_json(path)
    if value["shmstore_pause"] != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    return Pause(int(value["since_ms"]), str(value["by"]))
