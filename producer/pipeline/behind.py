"""Readers behind the ring: a line in the log when one has to read from disk, and when it is back."""

from __future__ import annotations

import logging
import time

from shmstore import EventStore
from shmstore.memory.locks import holder

SECOND = 1.0


class ReadersBehind:
    """The readers of one store whose next event is in its log alone. A store without a log has none."""

    def __init__(self, store: EventStore, log: logging.Logger) -> None:
        self._store, self._log = store, log
        self._since: dict[str, float] = {}  # when each was first seen behind
        self._looked = float("-inf")

    def look(self) -> None:
        """Report what has changed; once a second at most, however often it is called."""
        now = time.monotonic()
        if now - self._looked < SECOND:
            return
        self._looked = now
        behind = {each.name: each for each in self._store.behind_ring()}
        for name, each in behind.items():
            if name not in self._since:
                self._since[name] = now
                self._log.info(
                    "store %r: subscription %r (%s) has fallen behind the ring, by %d events of %d bytes in all: it reads from the log",
                    *(self._store.name, name, f"read by {holder(each.owner_pid)}" if each.alive else "no process reads it"),
                    *(each.lag_events, each.lag_bytes),
                )
        gone = self._since.keys() - behind.keys()
        there = {each.name for each in self._store.subscriptions() if each.state == "active"} if gone else set()
        for name in sorted(gone):
            since = self._since.pop(name)
            if name in there:  # else it was forgotten, or evicted
                self._log.info("store %r: subscription %r is back in the ring, after %.0f s", self._store.name, name, now - since)
