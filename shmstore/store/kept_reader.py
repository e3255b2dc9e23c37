"""A subscription's end of a store with a log: get goes on in the log where the ring has moved on."""

from __future__ import annotations

from typing import Any

from shmstore.errors import StoreCorrupt
from shmstore.memory.ordering import hot
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import FLOOR, PUT, first_slot, with_core
from shmstore.ring.reader import Reader


class KeptReader(Reader):
    """The get and ack side of a store with a log, for the subscription at `entry`. Make one only while owning it."""

    __slots__ = ("_segment",)

    _segment: Segment

    def available(self) -> int:
        """Return how many events wait behind the get cursor. Raises `StoreCorrupt` where put is out of bounds."""
        seen = self._words[PUT]
        if not self.ack <= self.get <= seen:
            raise StoreCorrupt(f"put stands at {seen}, get at {self.get}, ack at {self.ack}: `shmstore check` tells more")
        self._seen = seen
        return seen - self.get

    def take(self, limit_events: int, limit_bytes: int | None) -> tuple[int, int]:
        """Move get over what fits the limits, and at least one event; return (first, last). Empty is (get + 1, get).

        Out of the log it is also at most what one file of it holds.
        """
        get = self.get
        if self._seen <= get and self.available() == 0:
            return get + 1, get
        if self._words[FLOOR] <= get:  # in the ring
            first, last = Reader.take(self, limit_events, limit_bytes)  # not super(): the compiled class is no Reader
            if first > first_slot(self._views):  # what was gone by was that of these events
                return first, last
            self.rollback_to(get)
        last = self._segment.log.extent(get + 1, limit_events, limit_bytes, ddl_alone=self._ddl_isolation)
        self._words[self._get] = self.get = last
        core: Any = self
        if self._views.native is not None and core.gets_now:  # the compiled get goes on from here without a look at the files
            core.look_through(self._segment.log.window(get + 1, last))
        return get + 1, last


_HotKeptReader = with_core(hot.Takes, KeptReader) if hot is not None else KeptReader


def kept_reader_of(segment: Segment, entry: int, *, ddl_isolation: bool) -> Reader:
    """Return the get and ack side of a store with a log; as `KeptReader`."""
    kind: Any = KeptReader if segment.views.native is None else _HotKeptReader
    reader: Reader = kind(segment.views, entry, ddl_isolation=ddl_isolation)
    reader._segment = segment  # type: ignore[attr-defined]
    return reader
