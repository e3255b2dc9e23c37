"""Stores of benches, which leave nothing in shared memory, also where a bench fails."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shmstore import EventStore, StoreNotFound


@contextmanager
def new_store(bench: str, *, state: str | os.PathLike[str] | None = None, **options: Any) -> Iterator[EventStore]:
    """A store that is there in the block; `options` are those of `EventStore.create`."""
    name = f"bench-{bench}-{os.getpid()}-{time.monotonic_ns()}"
    try:
        with EventStore.create(name, state=state, **options) as store:
            yield store
    finally:
        with suppress(StoreNotFound):
            EventStore.unlink(name, state=state, log=True)
