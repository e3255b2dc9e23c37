"""Copying: a subscription into copies, batch by batch, in a process without Spark.

Plan. Which events a batch has is written into the store's home before it is applied (`keep_batch`), and the batch is acked after that:

    home   batch N of this query has events first..last
    copies its steps, each with marks of N in the same transaction
    ack    up to last

A process that was killed at any line finds the last batch in the home. Where its events come again, the batch is applied again with the same
number and the same events, however they are cut now, and each copy passes over the steps that its marks say are done. So nothing is
applied twice, and nothing is left out.

The home's file is written under the subscription's own right (`Subscription.may_write`): a process that lost the subscription cannot move the batch
of the next owner. Where both apply the same batch, the marks decide.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from shmstore import Batch, EventStore, EventType, SlotFlag, StoreClosed, StoreView, Subscription
from shmstore.consumer.consumer import Consumer
from shmstore.consumer.copies.change_reduction import CannotFollow, Encoded
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.copy_set import CopySet
from shmstore.consumer.copies.target import TargetBusy, TargetFailed
from shmstore.consumer.monitoring.counters import Counters, figure
from shmstore.home.reader_state import CopiesBatch, keep_batch, kept_batch

FIRST_PAUSE: Final = 0.2  # seconds before a batch that the target did not take is tried again; twice as long each time
LONGEST_PAUSE: Final = 30.0
IDLE_SECONDS: Final = 0.5  # without an event, after which the target is closed: others may open a file then
MANY_ROWS: Final = 10_000  # of a snapshot, in a batch, after which the next one is filled
GROUP: Final = (
    122_880  # rows of a group in DuckDB, which writes those of a smaller batch twice, and groups again that fit into one less
)
FILL_ROWS: Final = 19 * GROUP // 10
FILL_SECONDS: Final = 1.0  # most time between the beginnings of two batches because the second one is filled
_FILL_STEP: Final = 0.2  # seconds in which an event comes, or is not waited for: more than a new set of the log takes

_ELSEWHERE: Final = "copies are kept by a process on the store's host: give a store's name, not {!r}"
_SEVERAL: Final = (
    "store {!r} has several sources, whose tables may have the same names: copies of those are kept by `shmstore spark replicate`"
)

_log = logging.getLogger("shmstore.copies")


def check_store(selection: CopiedTables) -> None:
    """Raise ValueError where copies of that store are not kept by a process of this kind, `StoreNotFound` where there is none."""
    if "://" in selection.store:
        raise ValueError(_ELSEWHERE.format(selection.store))
    with StoreView.attach(selection.store, path=selection.path, state=selection.state) as store:
        if store.of_group:
            raise ValueError(_SEVERAL.format(selection.store))


@dataclass(slots=True, kw_only=True)
class CopyingCounters(Counters):
    """What was done since the process began."""

    PREFIX = "shmstore_replicate"

    rows: int = figure("rows_total", "Changed rows that were applied to copies.")
    seconds: float = figure("seconds_total", "Seconds that were spent in applying them.", 0.0)
    aside: int = figure("copies_aside", "Copies that do not follow their tables now.")


class Copying:
    """Applies what `consumer` reads to `copies`, whose target is called `place`. The consumer has ``auto_ack=False`` and a time-out of `IDLE_SECONDS`, or
    less, and no choice of tables: the copies choose. `interval` is the least time between the beginnings of two batches, in seconds.

    Raises ValueError where the subscription keeps copies in another place.
    """

    def __init__(self, consumer: Consumer, copies: CopySet, place: str, *, interval: float = 0.0) -> None:
        self.counters = CopyingCounters()
        self._consumer, self._copies, self._interval = consumer, copies, interval
        self._stopped = threading.Event()
        self._full = -1  # the event up to which the next batch is filled
        if not isinstance(consumer.store, EventStore) or not isinstance(consumer.subscription, Subscription):
            raise ValueError(_ELSEWHERE.format(consumer.store.name))
        self._home = consumer.store.home
        self._subscription = consumer.subscription.name
        kept = kept_batch(self._home, self._subscription)
        if kept is not None and kept.target != place:
            raise ValueError(
                f"subscription {self._subscription!r} keeps copies in {kept.target}, not in {place}: give another --subscription, or let it go with "
                f"`shmstore unsubscribe {consumer.store.name} {self._subscription}`"
            )
        self._last = kept or CopiesBatch(uuid.uuid4().hex, place, -1, 0, 0, -1)

    def stop(self) -> None:
        """End `run` after the batch that is being applied. May be called from any thread."""
        self._stopped.set()
        self._consumer.stop()

    def existing(self) -> list[str]:
        """Return `CopySet.existing`, once no other process has the target."""
        while not self._stopped.is_set():
            try:
                found = self._copies.existing()
                self._copies.close()
                return found
            except TargetBusy as error:
                self._trouble(error, FIRST_PAUSE)
        return []

    def _trouble(self, error: TargetFailed, pause: float) -> None:
        """Report what the target says, once, and wait a moment."""
        self.counters.retries += 1
        if str(error) != self.counters.trouble:
            _log.warning("%s; trying again until it succeeds", error)
        self.counters.trouble = str(error)
        self._stopped.wait(pause)

    def run(self, until: Callable[[], int | None] = lambda: None) -> None:
        """Apply batches until `stop`, or until the events up to the one that `until` gives are in the copies.

        Raises `CannotFollow`, `StoreError`; and `TargetFailed` where the target did not take even the first batch.
        """
        pause = FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                for batch in self._consumer:
                    began = time.monotonic()
                    self._take(batch)
                    if self.counters.trouble:
                        _log.info("the target takes batches again")
                        self.counters.trouble, pause = "", FIRST_PAUSE
                    if self._is_at(until()):
                        break
                    self._fill(began + FILL_SECONDS)
                    self._stopped.wait(max(0.0, began + self._interval - time.monotonic()))
                self._copies.close()
                if self._is_at(until()):
                    return
            except TargetFailed as error:
                if isinstance(error, TargetBusy) and self._stopped.is_set():
                    return
                if not self.counters.batches and not isinstance(error, TargetBusy):
                    raise
                self._trouble(error, pause)
                pause = min(LONGEST_PAUSE, pause * 2)

    def _fill(self, until: float) -> None:
        """While rows of a snapshot come one event after the other, let the next batch have more of them."""
        newest = -1
        with suppress(StoreClosed):  # the next get says so
            while newest < (newest := self._consumer.store.newest) < self._full and time.monotonic() < until:
                if self._stopped.wait(_FILL_STEP):
                    return

    def _is_at(self, end: int | None) -> bool:
        return end is not None and self._consumer.subscription.ack_cursor.sequence >= end

    def _take(self, batch: Batch) -> None:
        """Apply a batch, up to the end of its last whole transaction where it has one, and ack it; one that was begun comes first."""
        store, begun, again = self._consumer.store, self._last, False
        subscription, slots = self._consumer.subscription, batch.slots
        rows = int(slots["rows"][slots["type"] == EventType.READ].sum())
        loads = rows >= MANY_ROWS and store.newest == batch.last  # else more is there already
        self._full = batch.last + len(batch) * FILL_ROWS // rows if loads else -1
        assert isinstance(store, EventStore)
        assert isinstance(subscription, Subscription)
        if begun.epoch == store.epoch and begun.first <= batch.first <= begun.last:
            again = True
            events = Encoded.of(chain.from_iterable(part.payloads() for part in store.read(begun.first, begun.last)))
        else:
            last = batch.last if batch.ack_point is None else _end_of_rows(batch, batch.ack_point)
            if batch.ack_point is not None and batch.position_of(batch.ack_point).of_group:
                raise CannotFollow(_SEVERAL.format(store.name))
            begun = self._last._replace(number=begun.number + 1, epoch=store.epoch, first=batch.first, last=last)
            self._consumer.sync(last)  # a power cut must not give sequences of the marks to other events
            try:
                keep_batch(self._home, self._subscription, begun, subscription.may_write)
            except StoreClosed:
                self._lost()
                return
            self._last = begun
            ends = batch.ends[: last - batch.first + 1]
            events = Encoded(batch.raw[: int(ends[-1])], ends)
        began = time.monotonic()
        rows = self._copies.apply(events, begun.query, begun.number)
        count = self.counters
        count.rows, count.batches, count.seconds = count.rows + rows, count.batches + 1, count.seconds + time.monotonic() - began
        count.sequence, count.aside = begun.last, len(self._copies.aside)
        try:
            if again:
                self._consumer.seek(begun.last + 1)  # which acks all before it, also what this batch does not have
            else:
                self._consumer.ack(begun.last)
                if begun.last < batch.last:
                    self._consumer.rollback()
        except StoreClosed:
            self._lost()

    def _lost(self) -> None:
        """The store was taken away: the next get attaches to it again, where it is, and this batch comes again."""
        with suppress(StoreClosed):
            self._consumer.rollback()


def _end_of_rows(batch: Batch, last: int) -> int:
    """Where to end a batch whose last whole transaction ends at `last`: of a snapshot's rows, which need no whole one, where the groups of rows up
    to there stay as they are written, because the last of them is more than half full, or one of four."""
    slots = batch.slots
    if (slots["type"][slots["rows"] > 0] != EventType.READ).any():
        return last
    ends = np.flatnonzero(slots["flags"] & int(SlotFlag.ACK_POINT))
    ends = np.append(ends, len(slots) - 1)
    rows = np.cumsum(slots["rows"], dtype=np.int64)[ends]
    stay = ends[(rows > GROUP) & ((rows % GROUP > GROUP // 2) | (rows > 3 * GROUP))]
    return batch.first + int(stay[-1]) if len(stay) else last
