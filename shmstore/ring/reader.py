"""A subscription's end of a store: get, ack and rollback. No lock, no clock, no waiting.

Get takes events out of the ring while that has them; where the ring has moved on, it continues in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from shmstore.errors import StoreCorrupt
from shmstore.memory.layout import MAX_SEQUENCE, SlotFlag, StoreFlag
from shmstore.memory.mapping import Views
from shmstore.memory.ordering import hot
from shmstore.memory.segment import Log, Segment
from shmstore.ring.cursors import ACK_OF, FLOOR, GET_OF, LOG, PUT, first_slot, with_core


class Reader:
    """The get and ack side of a ring, and of the `log` behind it, for the subscription at `entry`. Make one only while owning it."""

    __slots__ = (
        "_ack",
        "_ddl_isolation",
        "_ends",
        "_get",
        "_log",
        "_mask",
        "_most",
        "_seen",
        "_views",
        "_words",
        "ack",
        "due",
        "generation",
        "get",
        "interrupted",
        "may_get",
    )

    def __init__(self, views: Views, entry: int, *, ddl_isolation: bool, log: Log | None = None) -> None:
        self._views = views
        self._log = log
        self._most = MAX_SEQUENCE if views.flags & LOG else views.capacity  # that may wait: the log has more than the ring
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
        self.may_get = False  # whether try_get may do anything
        self.due = 0  # ns of the monotonic clock: try_ack leaves an ack from then on to its caller; 0: none for that
        self.interrupted = False  # by Subscription.interrupt
        views.words[self._get] = self.ack  # what the last owner got and did not ack comes again

    def available(self) -> int:
        """Return how many events wait behind the get cursor. Raises `StoreCorrupt` where put is out of bounds."""
        seen = self._words[PUT]
        if not 0 <= seen - self.get <= seen - self.ack <= self._most:
            raise StoreCorrupt(
                f"put is at {seen}, get at {self.get}, ack at {self.ack}, capacity {self._views.capacity}: `shmstore check` shows more"
            )
        self._seen = seen
        return seen - self.get

    def take(self, limit_events: int, limit_bytes: int | None) -> tuple[int, int]:
        """Move get over what fits the limits, and at least one event; return (first, last). Empty is (get + 1, get).

        Out of the log it is also at most what one file of it holds.
        """
        get = self.get
        # With a limit of bytes something seen may be left: alone it would make a batch of few events, though many wait behind it.
        if ((self._seen <= get or limit_bytes is not None) and self.available() == 0) or limit_events < 1:
            return get + 1, get
        logged = self._views.flags & LOG
        last = get if logged and self._words[FLOOR] > get else self._last_in_ring(get, limit_events, limit_bytes)
        if last == get or (
            logged and get + 1 <= first_slot(self._views)
        ):  # what was gone by was perhaps not that of these events
            last = self._last_in_log(get, limit_events, limit_bytes)
        self._words[self._get] = self.get = last
        return get + 1, last

    def _last_in_ring(self, get: int, limit_events: int, limit_bytes: int | None) -> int:
        last = min(self._seen, get + limit_events)
        if limit_bytes is not None:
            last = self._within(get, last, self._ends[get & self._mask] + limit_bytes)
        if self._ddl_isolation:
            last = self._before(get, last, int(SlotFlag.DDL))
        return last

    def _last_in_log(self, get: int, limit_events: int, limit_bytes: int | None) -> int:
        assert self._log is not None
        last = self._log.extent(get + 1, limit_events, limit_bytes, ddl_alone=self._ddl_isolation)
        if self.may_get:  # try_get continues from here without a look at the files
            core: Any = self
            core.look_through(self._log.window(get + 1, last))
        return last

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

    def get_to(self, sequence: int) -> None:
        """Let get stand at `sequence`; the caller has checked that ack <= sequence <= put."""
        self._words[self._get] = self.get = sequence

    # ------------------------------------------------------------ what compiled code does at once, where nothing is unusual

    def tune(
        self,
        segment: Segment,
        batch: type,
        freed: Callable[[], None],
        may_get: bool,
        may_ack: bool,
        short: float,
        looks: float,
        brief: float,
        /,
    ) -> None:
        """Say what batches are and what may be tried; `freed` is called after an ack that the producer waits for."""

    def try_get(self, limit_events: int | None, /) -> Any:
        """Move get over up to `limit_events` (None: all) and return the batch; None: nothing was done, the caller does it."""
        return None

    def try_wait(self, limit_events: int | None, seconds: float, slice: float, /) -> Any:
        """Sleep until there are events, and return them as `try_get`; None also where none came in so many seconds."""
        return None

    def try_ack(self, what: object, /) -> bool:
        """Ack a batch; False: nothing was done, the caller does it."""
        return False

    def look_for(self, n: int, seconds: float, /) -> bool:
        """Whether `n` events seem to wait. Compiled code looks for up to so many seconds."""
        return self._words[PUT] >= self.get + n


_HotReader = with_core(hot.Takes, Reader) if hot is not None else Reader


def reader_of(segment: Segment, entry: int) -> Reader:
    """Return the get and ack side of a store; as `Reader`."""
    views, alone = segment.views, bool(segment.flags & StoreFlag.DDL_ISOLATION)
    return (Reader if views.native is None else _HotReader)(views, entry, ddl_isolation=alone, log=segment.log)
