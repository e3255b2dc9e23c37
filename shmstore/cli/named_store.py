"""The store that a command line names, and its home."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shmstore import EventStore, StoreView
    from shmstore.home.home import Home


def attach(options: argparse.Namespace) -> EventStore:
    """Attach to the store; one that is in its home alone is restored."""
    from shmstore import EventStore

    return EventStore.attach(options.store, path=options.path, state=options.state)


def look(options: argparse.Namespace) -> StoreView:
    """Attach to the store read-only: it need not be writable. One that is in its home alone is restored."""
    from shmstore import StoreView

    return StoreView.attach(options.store, path=options.path, state=options.state)


def home_of(options: argparse.Namespace) -> Home:
    """Return the store's home: of one in memory that has a log its own, else where it would be."""
    from shmstore import StoreView

    return StoreView.home_of(options.store, path=options.path, state=options.state)
