"""Which store with a log lives in a home, ``log/store.json``: what it was created with, whatever becomes of its memory.

Written by the process that creates the store, and by its producer. A store that is found here and not in memory is restored from its home.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final, NamedTuple

from shmstore.errors import LayoutMismatch, StoreError, StoreNotFound, refused
from shmstore.event import Position
from shmstore.home.home import Home
from shmstore.memory.create_options import CreateOptions
from shmstore.memory.layout import BatchMode, StoreFlag
from shmstore.stored_json import read_json

FORMAT: Final = 2  # version of the home: of its files, and of the log's
WHAT: Final = "identity"


class Identity(NamedTuple):
    """What a store is, whatever becomes of its memory. `start` is where the producer of its first event began to read, "" and 0 at first;
    `path` is the file of its memory, None for shared memory."""

    name: str
    epoch: int
    options: CreateOptions
    mode: int
    gid: int
    created_ms: int
    path: str | None = None
    start_file: str = ""
    start_offset: int = 0


def write(home: Home, identity: Identity) -> None:
    """Write which store lives there. Raises `StoreError` where the disk refuses."""
    options = identity.options
    text = json.dumps(
        {
            "format": FORMAT,
            **{name: getattr(identity, name) for name in Identity._fields if name != "options"},
            **{name: getattr(options, name) for name in CreateOptions._fields if name != "home"},
        },
        indent=1,
    )
    home.replace(home.identity, text.encode(), WHAT)


def read(home: Home) -> Identity:
    """Return which store lives in a home. Raises `StoreNotFound`, `LayoutMismatch` for a home of another format, `StoreError`."""
    path = home.identity
    try:
        value: dict[str, Any] = read_json(path)
        if int(value["format"]) != FORMAT:
            newer = int(value["format"]) > FORMAT
            raise LayoutMismatch(
                f"{path} has format {value['format']}, this shmstore reads format {FORMAT}: use the shmstore that wrote it"
                + (
                    ", or a newer one"
                    if newer
                    else f", or remove the store with `shmstore rm {home.name} --log` and start its producer again"
                )
            )
        given = {name: value[name] for name in CreateOptions._fields if name != "home"}
        given |= {"batch_mode": BatchMode(value["batch_mode"]), "flags": StoreFlag(value["flags"]), "home": os.fspath(home)}
        options = CreateOptions(**given)
        return Identity(options=options, **{name: value[name] for name in Identity._fields if name != "options"})
    except LayoutMismatch:
        raise
    except FileNotFoundError:
        raise StoreNotFound(f"{home.path} is not the home of a store with a log: it has no log/store.json") from None
    except OSError as error:
        raise refused(f"{path} cannot be read", error, "let this user read it") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read ({error!r}): restore it from a copy, or remove the home with `shmstore rm --log`"
        ) from error


def note_start(home: Home, start: Position) -> None:
    """Write down where the producer of the first event begins to read. Raises `StoreError`."""
    write(home, read(home)._replace(start_file=start.file, start_offset=start.offset))


def resize(home: Home, options: CreateOptions) -> None:
    """Write down what the store is to have from when it is restored next. Raises `StoreError`."""
    write(home, read(home)._replace(options=options))
