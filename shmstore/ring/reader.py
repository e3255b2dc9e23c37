"""A subscription's end of a ring: get, ack and rollback. No lock, no clock, no waiting."""

from __future__ import annotations

import numpy as np

from shmstore.errors import StoreCorrupt
from shmstore.memory.layout import (
    SlotFlag,
)
from shmstore.memory.mapping import Views
from shmstore.memory.ordering import hot
from shmstore.ring.cursors import ACK_OF, GET_OF, PUT, with_core

# ---------------------------------------------------------------- a subscription's end


class Reader:
    """The get and ack side of a ring, for the subscription at `entry`. Make one only while owning it."""

    __slots__ = (
        "_ack",
        "_ddl_isolation",
        "_ends",
        "_get",
        "_mask",
        "_seen",
        "_views",
        "_words",
        "ack",
        "generation",
        "get",
        "interrupted",
    )

    def __init__(self, views: Views, entry: int, *, ddl_isolation: bool) -> None:
        self._views = views
        self._words = views.words
        self._ends = views.ends
        self._mask = views.slot_count - 1
        self._get = GET_OF[entry]
        self._ack = ACK_OF[entry]
        self._ddl_isolation = ddl_isolation
        self.ack: int = views.words[self._ack]
        self.get: int = self.ack
        self._seen: int = self.ack
        self.generation = 0  # of batches, which rollbacks number: see Subscription
        self.interrupted = False  # by Subscription.interrupt
        views.words[self._get] = self.ack  # what the last owner got and did not ack comes again

    def available(self) -> int:
        """Return how many events wait behind the get cursor. Raises `StoreCorrupt` where put is out of bounds."""
        seen = self._words[PUT]
        if not 0 <= seen - self.get <= seen - self.ack <= self._views.capacity:
            raise StoreCorrupt(
                f"put stands at {seen}, get at {self.get}, ack at {self.ack}, capacity {self._views.capacity}: `shmstore check` tells more"
            )
        self._seen = seen
        return seen - self.get

    def take(self, limit_events: int, limit_bytes: int | None) -> tuple[int, int]:
        """Move get over what fits the limits, and at least one event; return (first, last). Empty is (get + 1, get)."""
        get = self.get
        first = get + 1
        last = self._seen
        if last < first:
            last = first + self.available() - 1
            if last < first:
                return first, get
        if last - get > limit_events:
            last = get + max(0, limit_events)
        if limit_bytes is not None:
            last = self._within(get, last, self._ends[get & self._mask] + limit_bytes)
        if self._ddl_isolation:
            last = self._before(get, last, int(SlotFlag.DDL))
        self._words[self._get] = self.get = last
        return first, last

    def _within(self, get: int, last: int, end: int) -> int:
        """Last event up to `last` that ends at or before `end`; at least get + 1."""
        if self._ends[last & self._mask] <= end:
            return last
        i = (get + 1) & self._mask
        return get + max(1, int(np.searchsorted(self._views.ends_array[i : i + last - get], end, side="right")))

    def _before(self, get: int, last: int, flag: int) -> int:
        """End the batch before the first event with `flag`, or after it where it comes first."""
        i = (get + 1) & self._mask
        found = np.flatnonzero(self._views.slots["flags"][i : i + last - get] & flag)
        return last if not len(found) else get + max(1, int(found[0]))

    def ack_to(self, sequence: int) -> None:
        """Free everything up to `sequence`; the caller has checked that ack < sequence <= get."""
        self._words[self._ack] = self.ack = sequence

    def rollback_to(self, sequence: int) -> None:
        """Move get back to `sequence`; the caller has checked that ack <= sequence <= get."""
        self._words[self._get] = self.get = sequence


_HotReader = with_core(hot.Takes, Reader) if hot is not None else Reader


def reader_of(views: Views, entry: int, *, ddl_isolation: bool) -> Reader:
    """Return the get and ack side of a ring; as `Reader`."""
    return (Reader if views.native is None else _HotReader)(views, entry, ddl_isolation=ddl_isolation)
