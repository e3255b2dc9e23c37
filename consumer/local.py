"""Consumer: a store's events in a plain ``for`` loop, acked by going on and given back by an exception.

Plan. An iterator cannot see how the body of a loop ended; it sees only what comes next, so that decides:

    the loop asks for the next batch           the batch in hand was dealt with: ack, then get
    the ``with`` block ends without exception  the same (a ``break`` lands here): ack
    the ``with`` block ends by an exception    rollback: everything not acked comes again
    a new loop starts over the same consumer   rollback: a loop left early and begun anew is a retry
    ``close()`` without ``with``, process death  nothing is acked: it comes again

Whatever is in doubt is delivered again, never lost. Writers that must not see an event twice keep the last
``batch.position`` beside what they write, or ack by hand with `Consumer.ack`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from shmstore import Batch, CheckpointFile, EventStore, Position, ShmStoreError, Subscription
from shmstore.event import Event

IDLE_SECONDS = 1.0  # without an event for so long, the checkpoint is written
SHARE = 8  # a batch without limits takes at most this part of the ring, so that room is freed while it is worked on


class Consumer:
    """A named reader of one store: iterate it for non-empty batches.

        with Consumer("orders", subscription="audit") as consumer:
            for batch in consumer:
                for event in batch:
                    ...

    `store` is a store's name (or the `EventStore` to read from, which then stays open); `path` the file of a file-backed one.
    `subscription` names the reader: it goes on at its last ack, in this process or the next, and one process owns it at a
    time. `start` says where a new one begins: "earliest", "latest", a sequence, or a `Position` (first event after it).

    `limit` bounds a batch in the store's own unit (events in ITEMSIZE, memory units in MEMSIZE), `limit_events` and
    `limit_bytes` in what they say; with none of them a batch is at most an eighth of the ring. `timeout` in seconds ends
    the iteration when no event came for so long: 0 reads what is there, None (default) waits for ever, using no CPU.

    `checkpoint` keeps the acked position in a file, so that the subscription outlives the shared memory: True in the state
    directory ($SHMSTORE_STATE, or ~/.local/state/shmstore), a path for a directory of one's own, False for none.

    Raises what `EventStore.attach` and `EventStore.subscribe` raise: `StoreNotFound`, `LayoutMismatch`,
    `SubscriptionInUse`, `PositionNotFound`, ValueError for a bad name; iterating, `SubscriptionLost` and `StoreClosed`.
    """

    def __init__(
        self,
        store: str | EventStore,
        subscription: str,
        *,
        start: str | int | Position = "earliest",
        limit: int | None = None,
        limit_events: int | None = None,
        limit_bytes: int | None = None,
        timeout: float | None = None,
        checkpoint: bool | str | os.PathLike[str] = True,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        for name, value in (("limit", limit), ("limit_events", limit_events), ("limit_bytes", limit_bytes)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: a batch holds at least 1; leave it out for the default")
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is {timeout}: it must be 0 or more seconds, or None to wait for ever")
        self._owns_store = not isinstance(store, EventStore)
        self.store = store if isinstance(store, EventStore) else EventStore.attach(store, path=path)
        self._timeout = timeout
        self._batch: Batch | None = None
        self._reached = -1  # last sequence the body has had in hand
        self._stopped = threading.Event()
        self._closed = False
        if limit is None and limit_events is None and limit_bytes is None:
            limit_events = max(1, self.store.capacity // SHARE)
            limit_bytes = max(1, self.store.limit_bytes // SHARE)
        self._limits = limit, limit_events, limit_bytes
        try:
            file = _checkpoint(checkpoint, self.store.name, subscription)
            self.subscription: Subscription = self.store.subscribe(subscription, start=start, checkpoint=file)
        except BaseException:
            if self._owns_store:
                self.store.close()
            raise

    # ---------------------------------------------------------------- the loop

    def __iter__(self) -> Self:
        """Start a loop. A batch that an earlier loop left un-acked comes again."""
        self.rollback()
        return self

    def __next__(self) -> Batch:
        """Ack the batch in hand, then return the next one that is not empty; ends at the time-out or after `stop`."""
        self.ack()
        if self._stopped.is_set():
            raise StopIteration
        whole = self._timeout
        batch = self._get(IDLE_SECONDS if whole is None else min(IDLE_SECONDS, whole))
        if not batch and not self._stopped.is_set() and (whole is None or whole > IDLE_SECONDS):
            self.subscription.save_checkpoint()  # nothing comes: what was acked last becomes durable now, not with the next ack
            batch = self._get(None if whole is None else whole - IDLE_SECONDS)
        if not batch:
            raise StopIteration
        self._reached = batch.last
        self._batch = batch
        return batch

    def events(self) -> Iterator[Event]:
        """Yield single events; each batch is acked when its last event was dealt with.

        A loop left early within a batch counts the events up to and including the one in hand: leaving the ``with`` block
        without an exception acks those and no more.
        """
        for batch in self:
            self._reached = batch.first - 1
            for sequence, event in enumerate(batch, batch.first):
                self._reached = sequence
                yield event

    def _get(self, timeout: float | None) -> Batch:
        limit, limit_events, limit_bytes = self._limits
        return self.subscription.get(limit, limit_events=limit_events, limit_bytes=limit_bytes, timeout=timeout)

    # ---------------------------------------------------------------- by hand

    def ack(self, sequence: int | None = None) -> None:
        """Ack what is in hand, if anything, or only up to `sequence` of it: that never comes again, the rest does."""
        batch = self._batch
        if batch is None:
            return
        done = self._reached if sequence is None else sequence
        if done >= batch.first:
            self.subscription.ack(done)
        self._batch = None
        if done < batch.last:
            self.subscription.rollback()

    def rollback(self) -> None:
        """Give back what was not acked: the next batch starts with it again."""
        self._batch = None
        self.subscription.rollback()  # also what an interrupt let slip between the get and the loop

    def stop(self) -> None:
        """End the iteration: a wait at once, a running body when it asks for the next batch (its batch is acked then).

        May be called from another thread or from a signal handler.
        """
        self._stopped.set()
        self.subscription.interrupt()

    def close(self) -> None:
        """Release the subscription. What is in hand is not acked and comes again to the next owner."""
        if self._closed:
            return
        self._closed = True
        with suppress(ShmStoreError):  # a store or subscription that is gone has nothing to give back
            self.rollback()
        self.subscription.close()
        if self._owns_store:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.ack()
        finally:
            self.close()


def _checkpoint(where: bool | str | os.PathLike[str], store: str, subscription: str) -> CheckpointFile | None:
    if where is False:
        return None
    return CheckpointFile(None if where is True else where, store, subscription)
