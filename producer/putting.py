"""Putting into a store that may be full: waits as long as it takes, and says in the log who holds it up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from shmstore import EventStore, StoreFull

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
