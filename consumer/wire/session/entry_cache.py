"""Entries encoded lately, shared by the clients of one store: what one client had encoded costs the next one nothing."""

from __future__ import annotations

from typing import Final
from weakref import WeakSet

#: What `EntryCache.find` returns for an entry that is not there; None is an entry that no client is sent.
MISSING: Final = b""


class EntryCache:
    """A bounded cache of entries by sequence, for one life of one store; the oldest go first. One thread uses it."""

    __slots__ = ("_bytes", "_entries", "_limit", "epoch", "readers")

    def __init__(self, epoch: int, limit: int) -> None:
        self.epoch = epoch
        self._limit = limit
        self._bytes = 0
        self._entries: dict[int, bytes | None] = {}
        #: The clients' sessions that are open. With one, nothing is kept.
        self.readers: WeakSet[object] = WeakSet()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, sequence: int) -> bytes | None:
        """Return the entry of `sequence`, or `MISSING`."""
        return self._entries.get(sequence, MISSING)

    def keep(self, sequence: int, encoded: bytes | None) -> None:
        """Remember an entry."""
        entries = self._entries
        entries[sequence] = encoded
        self._bytes += len(encoded) if encoded is not None else 0
        while self._bytes > self._limit:
            oldest = entries.pop(next(iter(entries)))
            self._bytes -= len(oldest) if oldest is not None else 0
