"""A subscription's end of a ring: get, ack and rollback. No lock, no clock, no waiting."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shmstore.errors import StoreCorrupt
from shmstore.memory.layout import (
    SlotFlag,
)
from shmstore.memory.mapping import Views
from shmstore.memory.ordering import fence, hot
from shmstore.ring.cursors import ACK_OF, FLOOR, GET_OF, LOG, PUT, with_core


def copied(views: Views, first: int, last: int) -> tuple[memoryview, NDArray[np.int64]] | None:
    """Return a copy of the payloads of events `first` to `last`, and where each ends in it. For stores with a log.

    None where the ring does not have all of them any more, or wrote over one meanwhile: the log has them then. An event in a segment
    of its own is not for here.
    """
    words, mask, n = views.words, views.slot_count - 1, last - first + 1
    if not 0 < n <= views.capacity or words[FLOOR] >= first:
        return None
    i = first & mask
    start = views.ends[(first - 1) & mask]
    ends = views.ends_array[i : i + n] - start
    size = int(ends[-1])
    if start < 0 or not 0 < size <= views.arena_size:
        return None  # written over, or damaged
    at = start % views.arena_size
    raw = bytes(views.arena[at : at + size])
    fence()  # the copy, before the look at the floor, which the producer moves before it writes over anything
    if words[FLOOR] >= first:
        return None
    return memoryview(raw), ends


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
        "due",
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
        self.due = 0  # ns of the monotonic clock: the compiled ack leaves one from then on to Subscription.ack; 0: never
        self.interrupted = False  # by Subscription.interrupt
        views.words[self._get] = self.ack  # what the last owner got and did not ack comes again

    def available(self) -> int:
        """Return how many events wait behind the get cursor. Raises `StoreCorrupt` where put is out of bounds.

        In a store with a log they may be more than the ring has.
        """
        seen = self._words[PUT]
        if self._views.flags & LOG:
            if not 0 <= self.ack - self._views.first + 1 <= self.get - self._views.first + 1 <= seen - self._views.first + 1:
                raise StoreCorrupt(f"put stands at {seen}, get at {self.get}, ack at {self.ack}: `shmstore check` tells more")
            self._seen = seen
            return seen - self.get
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
