"""The store that a source goes into: found or made as the settings say, and puts that wait for room and say who holds them up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from shmstore import BatchMode, EventStore, StoreError, StoreExists, StoreFull, StoreNotFound
from shmstore.producer.settings import Settings

TRY = 0.5  # seconds after which a waiting put looks up
PATIENCE = 5.0  # seconds without room before that is worth a line in the log ...
AGAIN = 60.0  # ... and between two such lines


class PatientPut:
    """The puts of one producer."""

    def __init__(self, store: EventStore, log: logging.Logger) -> None:
        self._store, self._log = store, log
        self._told = float("-inf")

    def put(
        self,
        blob: bytes | memoryview,
        slots: np.ndarray[Any, np.dtype[np.void]],
        stop: Callable[[], bool],
        meanwhile: Callable[[], object],
    ) -> bool:
        """Put, as soon as there is room, and call `meanwhile` twice a second until then; False when told to stop before."""
        began, told = time.monotonic(), False
        while True:
            try:
                self._store.put_encoded(blob, slots, timeout=TRY)
                break
            except StoreFull:
                now = time.monotonic()
                if now - began >= PATIENCE and now - self._told >= AGAIN:
                    self._tell(len(slots), len(blob), now - began)
                    self._told, told = now, True
                meanwhile()
                if stop():
                    return False
        if told:
            self._log.info("store %r has room again, after %.1f s", self._store.name, time.monotonic() - began)
        return True

    def _tell(self, events: int, size: int, seconds: float) -> None:
        limit = self._store.limit_bytes
        larger = f" (more than the whole ring's {limit:,}: all before must be acked)" if size > limit else ""
        stat = self._store.stat()
        self._log.warning(
            "store %r has had no room for %d events of %d bytes%s for %.0f s: %s",
            self._store.name,
            events,
            size,
            larger,
            seconds,
            stat.holdup,
        )


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
