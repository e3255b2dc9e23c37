"""Consumer: a store's events in a plain ``for`` loop, acked by going on and given back by an exception.

Plan. An iterator cannot see how the body of a loop ended; it sees only what comes next, so that decides:

    the loop asks for the next batch           the batch in hand was dealt with: ack, then get
    the ``with`` block ends without exception  the same (a ``break`` lands here): ack
    the ``with`` block ends by an exception    rollback: everything not acked comes again
    a new loop starts over the same consumer   rollback: a loop left early and begun again is a retry
    ``close()`` without ``with``, process death  nothing is acked: it comes again

With ``auto_ack=False`` the first two ack nothing either: only `Consumer.ack` does. That is for a body that goes on before its
events are dealt with: a generator (a dlt resource, a Dagster asset) asks for the next batch while its caller still holds the last.

Whatever is in doubt is delivered again, never lost. Writers that must not see an event twice write the last ``batch.position``
in one transaction with their rows, and begin with `Consumer.seek` to it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from shmstore import Batch, CheckpointFile, EventStore, Position, PositionNotFound, ShmStoreError, Subscription
from shmstore.event import Event
from shmstore.start_position import Start

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
    time. `start` says where a new one begins: "earliest", "latest", a sequence, a `Position` (first event after it), a
    datetime, or one of these as text, such as "0-1-4711" or "2026-01-31T12:00:00Z" (`shmstore.start_position` lists them).

    `auto_ack`: going on acks the batch in hand. Give False where going on does not mean that it was dealt with, and call
    `ack` when it was. A generator is such a place, for its caller asks for the next batch before it has written this one:

        def orders(consumer):                                 # consumer = Consumer("orders", "dlt", auto_ack=False, timeout=5)
            for batch in consumer:
                yield from batch.to_arrow("shop.orders").to_pylist()

        pipeline.run(orders(consumer))
        consumer.ack()                                        # only now is it in the warehouse

    What is not acked keeps its place in the ring: ack before all of the ring is in hand, or nothing new can come.

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
        start: Start = "earliest",
        auto_ack: bool = True,
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
        self._auto_ack = auto_ack
        self._batch: Batch | None = None  # in hand; None also once it was given back
        self._stopped = threading.Event()
        self._closed = False
        if limit is None and limit_events is None and limit_bytes is None:
            limit_events = max(1, self.store.capacity // SHARE)
            limit_bytes = max(1, self.store.limit_bytes // SHARE)
        self._limits = limit, limit_events, limit_bytes
        try:
            file = _checkpoint(checkpoint, self.store.name, subscription)
            self.subscription: Subscription = self.store.subscribe(subscription, start=start, checkpoint=file)
        except BaseException as error:
            name = self.store.name
            if self._owns_store:
                self.store.close()
            if isinstance(error, PositionNotFound) and file is not None and file.load() is not None:
                command = f"`shmstore unsubscribe {name} {subscription}`" if checkpoint is True else "removing that file"
                raise PositionNotFound(
                    f"{error}. Subscription {subscription!r} was there by its checkpoint {file.path}: {command} lets it begin anew"
                ) from error
            raise
        self._reached = self._acked  # last sequence the body has had in hand

    # ---------------------------------------------------------------- the loop

    def __iter__(self) -> Self:
        """Start a loop. What earlier loops left un-acked comes again."""
        self.rollback()
        return self

    def __next__(self) -> Batch:
        """Ack the batch in hand (not with ``auto_ack=False``), then return the next one that is not empty.

        Ends at the time-out or after `stop`. Raises `StoreError` where the disk refuses the checkpoint: the ack counts, and the
        next call goes on; the checkpoint is tried again within a second or so, and at the end.
        """
        if self._auto_ack:
            self.ack()
        if self._stopped.is_set():
            raise StopIteration
        seen = max(self._reached, self._acked)
        if (
            self.subscription.get_cursor.sequence > seen
        ):  # the rest of a batch whose `events` were left, what an interrupt let slip
            self.subscription.rollback(seen + 1)
        whole = self._timeout
        batch = self._get(IDLE_SECONDS if whole is None else min(IDLE_SECONDS, whole))
        if not batch and not self._stopped.is_set() and (whole is None or whole > IDLE_SECONDS):
            self.subscription.save_checkpoint()  # nothing comes: what was acked last becomes durable now, not with the next ack
            batch = self._get(None if whole is None else whole - IDLE_SECONDS)
        self._reached = batch.last
        if not batch:
            raise StopIteration
        self._batch = batch
        return batch

    def events(self) -> Iterator[Event]:
        """Yield single events; each batch is acked when its last event was dealt with (not with ``auto_ack=False``).

        A loop left early within a batch counts the events up to and including the one in hand: leaving the ``with`` block
        without an exception acks those and no more, as does `ack` by hand.
        """
        for batch in self:
            self._reached = batch.first - 1
            for sequence, event in enumerate(batch, batch.first):
                if self._batch is not batch:
                    break  # it was given back, or `seek` went elsewhere: go on there
                self._reached = sequence
                yield event

    def _get(self, timeout: float | None) -> Batch:
        limit, limit_events, limit_bytes = self._limits
        return self.subscription.get(limit, limit_events=limit_events, limit_bytes=limit_bytes, timeout=timeout)

    # ---------------------------------------------------------------- by hand

    @property
    def _acked(self) -> int:
        return self.subscription.ack_cursor.sequence

    def ack(self, what: Batch | int | Position | None = None) -> None:
        """Say that all is done up to and with a batch, a sequence or a position; without one, all that was handed out.

        That never comes again, and what was handed out behind it stays in hand. Without `what` it does nothing where all is
        acked. Raises as `Subscription.ack` does: `AckError` for what is acked already or was not got.
        """
        if what is not None:
            self.subscription.ack(what)
        elif self._reached > self._acked:
            self.subscription.ack(self._reached)

    def rollback(self) -> None:
        """Give back what was not acked: the next batch starts with it again."""
        self._batch, self._reached = None, self._acked
        self.subscription.rollback()  # also what an interrupt let slip between the get and the loop

    def seek(self, start: Start) -> None:
        """Go on at `start`, in the forms of the parameter `start`; what comes before it counts as done, and is acked.

        For who keeps the place beside what is written, and knows it better than the last ack: a sequence counts in one life of
        the store (`EventStore.epoch`), a ``batch.position`` in all. It leads back to the last ack at most: what is acked may be
        gone. Raises `PositionNotFound` where `start` is acked, gone or not there yet; nothing was moved then.
        """
        self.subscription.seek(start)
        self._batch, self._reached = None, self._acked

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
        try:
            self.subscription.close()
        finally:
            if self._owns_store:
                self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None and self._auto_ack and not self._closed:
                self.ack()
        finally:
            self.close()


def _checkpoint(where: bool | str | os.PathLike[str], store: str, subscription: str) -> CheckpointFile | None:
    if where is False:
        return None
    return CheckpointFile(None if where is True else where, store, subscription)
