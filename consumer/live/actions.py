"""What can be done from a live view, and on the command line by the same names: forget a subscription, ask for a snapshot."""

from __future__ import annotations

import os

from shmstore import CheckpointFile, EventStore, StoreView, SubscriptionNotFound
from shmstore.home import kinds
from shmstore.home.snapshots import request_snapshot


def unsubscribe(store: str, subscription: str, *, path: str | None = None, state: str | os.PathLike[str] | None = None) -> None:
    """Forget a subscription that no process reads, and its checkpoint: or a new one of this name would look for events that are missing.

    Raises `SubscriptionNotFound`, `SubscriptionInUse`, and what `EventStore.attach` raises.
    """
    with EventStore.attach(store, path=path, state=state) as attached:
        try:
            attached.unsubscribe(subscription)
        except SubscriptionNotFound:
            if CheckpointFile.of(attached.home, subscription).load_bytes() is None:
                raise
        kinds.forget(attached.home, subscription)


def snapshot(store: str, tables: str, *, state: str | os.PathLike[str] | None = None) -> str:
    """Ask the producer of a store that is in memory for the rows of `tables` (patterns); return the id of the request.

    Raises `StoreNotFound` where there is none, `ValueError` where the patterns are none or the store has several sources.
    """
    with StoreView.attach(
        store, state=state, restore=False
    ) as view:  # a request to a store that does not exist would wait for ever
        check_single_source(view)
        return request_snapshot(store, tables, state=view.home.state)


def check_single_source(store: StoreView) -> None:
    """Raise `ValueError` where a store has several sources, of which no snapshot can be asked."""
    place = store.last_ack_point()
    if place is not None and place.of_group:
        raise ValueError(f"store {store.name!r} has several sources: a snapshot needs a store with a single source")
