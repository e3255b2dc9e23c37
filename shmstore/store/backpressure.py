"""Backpressure: how the producer waits until what it puts fits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from shmstore.errors import StoreClosed, StoreFull
from shmstore.memory.deadline import Deadline
from shmstore.memory.layout import DISARMED, StoreFlag
from shmstore.memory.locks import WAIT_SLICE
from shmstore.memory.ordering import heavy_fence
from shmstore.memory.segment import Segment
from shmstore.memory.semaphores import Condition
from shmstore.ring.cursors import ACK_OF, ACK_WANTED, armed_readers
from shmstore.ring.overflow import remove_orphans
from shmstore.ring.writer import Writer
from shmstore.store.stats import log_trouble, remedy, subscriptions_of
from shmstore.store.subscription_table import SubscriptionTable

_log = logging.getLogger("shmstore")

FLOW: Final = 0.005  # seconds; acks that come sooner than that after one another are readers in full flow ...
SHARE: Final = 8  # ... of which only every eighth of the ring needs to wake the producer


class SubscribedStore(Protocol):
    """What a subscription asks of the store it was made by, an `EventStore`."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def segment(self) -> Segment:
        """Its memory."""

    def _wake_producer(self) -> None:
        """Wake the producer that waits for free space."""

    def _free_oversized(self, after: int) -> None:
        """Free the segments of oversized events after `after` that all subscriptions have acked."""

    def _disown(self, subscription: Any) -> None:
        """Forget a subscription that was closed."""

    def sync(self, sequence: int, timeout: float) -> int:
        """Ask for the log to have `sequence` on disk, wait `timeout` seconds for it; return up to where it is."""

    def _hold(self, entry: int, sequence: int) -> None:
        """Let the cursors of a subscription stand at `sequence`, and the log keep what follows. Raises `PositionNotFound`."""


class Backpressure:
    """The condition that acks bring about: as many events and bytes free as the next put needs."""

    def __init__(
        self, segment: Segment, table: SubscriptionTable, condition: Condition, wake: Callable[[list[int]], None]
    ) -> None:
        self._segment = segment
        self._table = table
        self._condition = condition
        self._wake = wake
        self._stuck_at = -2  # put cursor for which space has been wanted in vain ...
        self._stuck_since = 0.0  # ... since then, over several puts that gave up
        self._flowing = False  # the last sleep was short

    def wait(self, writer: Writer, n: int, size: int, deadline: Deadline) -> None:
        """Wait until `n` events of `size` bytes fit. Raises `StoreFull` at the deadline, `StoreClosed`.

        Lost wake-ups are ruled out by order: wish, heavy fence, look. A reader acks, looks at the wish. A wish outlives
        `StoreFull`: a producer that only tries, again and again, must move a reader that waits for more than can come, too.

        Where readers are in full flow it wishes for a share of the ring, so that not every ack has to wake it; for `FLOW` only.
        """
        words = self._segment.words
        writer.refresh(n, size)
        if writer.put != self._stuck_at:
            self._stuck_at, self._stuck_since = writer.put, time.monotonic()
        while not writer.fits(n, size):
            wanted = writer.wanted_ack(n, size)
            more = self._segment.views.capacity // SHARE if self._flowing else 0
            wish = max(wanted, min(wanted + more, writer.put))
            words[ACK_WANTED] = wish
            heavy_fence()
            writer.refresh(n, size)
            if writer.fits(n, size):
                break
            if not self._segment.look():
                raise StoreClosed(f"store {self._segment.name!r} was removed: attach again, or create it again")
            self._wake(
                armed_readers(self._segment.views, everyone=True)
            )  # a reader that waits for more than can come before its ack takes what exists
            if self._table.repair():
                writer.refresh(n, size)
                continue
            left = deadline.left(WAIT_SLICE)
            if left <= 0:
                raise StoreFull(
                    f"store {self._segment.name!r} has no free space for {n} events of {size} bytes: {self._holdup(wanted)}"
                )
            if self._segment.flags & StoreFlag.EVICT and not self._segment.home:  # with a log, its keeper does
                patience = self._stuck_since + self._segment.evict_after - time.monotonic()
                if patience <= 0:
                    late = self._table.evict(wanted)
                    self._wake(late)
                    self._tell(late, writer.put)
                    remove_orphans(self._segment)  # after all: it may be refused
                    writer.refresh(n, size)
                    continue
                left = min(left, patience)
            began = time.monotonic()
            self._condition.wait(min(left, FLOW) if more else left)
            self._flowing = time.monotonic() - began < FLOW
            writer.refresh(n, size)
        words[ACK_WANTED] = DISARMED

    def _tell(self, late: list[int], put: int) -> None:
        name, words = self._segment.name, self._segment.words
        for entry in late:
            reader, ack = self._segment.read_text("name", entry), words[ACK_OF[entry]]
            _log.warning(
                "store %r: subscription %r was evicted after sequence %d, %d events behind: for %g s it had held the producer up. To "
                "read again, forget it with `shmstore unsubscribe %s %s`, and subscribe again or take a snapshot",
                *(name, reader, ack, put - ack, self._segment.evict_after, name, reader),
            )

    def _holdup(self, wanted: int) -> str:
        if self._segment.flags & StoreFlag.LOG:
            return log_trouble(self._segment) or "the disk is slow to write the log; wait for it longer"
        late = [each for each in subscriptions_of(self._segment) if each.state == "active" and each.ack.sequence < wanted]
        if not late:
            return "there is no subscription: start a reader, or discard what is kept with `EventStore.clear`"
        return "wait for it longer: " + "; ".join(f"{each.standing}: {remedy(self._segment.name, each)}" for each in late)
