"""The store that a source goes into: found, or made as the settings say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from producer.settings import Settings
from shmstore import BatchMode, EventStore, StoreError, StoreExists, StoreNotFound


@contextmanager
def opened(settings: Settings) -> Iterator[EventStore]:
    """Attach to the store, or create it. One that was created, and is of no use when an error ends it all, goes again."""
    path, created = settings.store_path or None, False
    try:
        store = EventStore.attach(settings.store, path=path)
    except StoreNotFound:
        try:
            store, created = _created(settings), True
        except StoreExists:  # somebody was faster
            store = EventStore.attach(settings.store, path=path)
    with store:
        try:
            yield store
        except Exception:
            if created and store.latest_position is None:
                with suppress(StoreError):  # removed by somebody, which may be the error; or another's by now
                    store.claim()
                    EventStore.unlink(settings.store, path=path)
            raise


def _created(settings: Settings) -> EventStore:
    return EventStore.create(
        settings.store,
        capacity=settings.capacity,
        memory_unit=settings.memory_unit,
        batch_mode=BatchMode[settings.batch_mode],
        ddl_isolation=settings.ddl_isolation,
        lag="evict" if settings.lag == "evict" else "block",
        evict_after=settings.evict_after,
        mode=0o660 if settings.store_group else 0o600,
        group=settings.store_group or None,
        path=settings.store_path or None,
        checksum=settings.store_checksum or None,
    )
