"""Remove a store: its memory, and what its home remembers."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress

from shmstore.errors import StoreNotFound
from shmstore.home import kinds
from shmstore.home.append_lock import AppendLock
from shmstore.home.home import Home
from shmstore.log.keeper import FLUSHING
from shmstore.memory import segment


def remove(
    name: str, *, path: str | os.PathLike[str] | None, force: bool, log: bool, state: str | os.PathLike[str] | None
) -> None:
    """As `EventStore.unlink`."""
    if not log:
        segment.unlink(name, path=path, force=force)
        return
    found = False
    with suppress(StoreNotFound):
        segment.unlink(name, path=path, force=force)
        found = True
    home = Home.of(name, state)
    with ExitStack() as held:
        if has_log := home.has_log:
            held.enter_context(AppendLock.take(home, FLUSHING))  # a producer that has just learned that the store is gone
        found = kinds.remove(home) or found
        if has_log:
            with suppress(StoreNotFound):  # restored meanwhile; from here on no process can
                segment.unlink(name, path=path, force=True)
    if not found:
        raise StoreNotFound(f"no store {name!r}, in memory or in {home.path}: `shmstore ls` lists the stores of this host")
