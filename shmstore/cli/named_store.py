"""The store that a command line names, and its home."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shmstore.errors import StoreError

if TYPE_CHECKING:
    from shmstore import EventStore, StoreView


def attach(options: argparse.Namespace) -> EventStore:
    """Attach to the store; one that is in its home alone is put together again."""
    from shmstore import EventStore

    return EventStore.attach(options.store, path=options.path, state=options.state)


def look(options: argparse.Namespace) -> StoreView:
    """Attach to the store read-only: it need not be writable. One that is in its home alone is put together again."""
    from shmstore import StoreView

    return StoreView.attach(options.store, path=options.path, state=options.state)


def home_of(options: argparse.Namespace) -> Path:
    """Return the store's home: of one in memory that has a log its own, else where it would be."""
    from shmstore import StoreView
    from shmstore.store import checkpoint

    with suppress(StoreError), StoreView.attach(options.store, path=options.path, restore=False) as store:
        if store.segment.home:
            return Path(store.segment.home)
    return checkpoint.home_of(options.store, options.state)
