"""Consumer: a store's events in a plain ``for`` loop, acked by asking for more and rolled back by an exception.

Plan. An iterator cannot see how the body of a loop ended; it sees only what comes next, so that decides:

    the loop asks for the next batch             the current batch was processed: ack it, then get the next
    the ``with`` block ends without exception    the same (also after a ``break``): ack
    the ``with`` block ends by an exception      rollback: everything not acked comes again
    a second loop begins over the same consumer  rollback: a loop that was left and begun again is a retry
    ``close()`` without ``with``, process death  nothing is acked: it comes again

With ``auto_ack=False`` the first two ack nothing either: only `Consumer.ack` does. That is for a body that asks for more before
its events are processed: a generator (a dlt resource, a Dagster asset) asks for the next batch while its caller still has the last.

A store with a log that was removed under its reader (by an administrator, or at the end of a login session) is restored
from its home, and the reader continues at its ack, as after a rollback.

When in doubt an event is delivered again, never lost. For exactly once, commit the store's epoch and ``batch.last`` in the same transaction
as your rows, after `Consumer.sync`, and begin with `Consumer.resume`.

A get is in two steps: `_taken` moves the subscription, and may run in a thread; `_given` hands the batch out, and only then is it the
current one. So what a canceled ``async for`` took is not the current batch: the next get finds the subscription's cursor ahead of what was
handed out, and takes it again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from shmstore import (
    Batch,
    CheckpointFile,
    EventStore,
    Position,
    PositionNotFound,
    ShmStoreError,
    StoreClosed,
    StoreError,
    Subscription,
    SubscriptionLost,
    SyncTimeout,
)
from shmstore.consumer.remote.address import is_url
from shmstore.consumer.table_choice import TableChoice
from shmstore.consumer.turn import Turn, in_thread
from shmstore.errors import install
from shmstore.event import Event
from shmstore.memory.deadline import RETURN_SECONDS, begun, retried
from shmstore.start_position import Start

if TYPE_CHECKING:
    from shmstore.consumer.remote.store import RemoteStore
    from shmstore.consumer.remote.subscription import RemoteSubscription

IDLE_SECONDS = 1.0  # the checkpoint is written after this long without an event
SHARE = 8  # a batch without limits takes at most this part of the ring, so that the producer can continue while it is processed

_log = logging.getLogger("shmstore")


class Consumer:
    """A named reader of one store, as a loop over batches of events.

        with Consumer("orders", subscription="audit") as consumer:
            for batch in consumer:
                for event in batch:
                    ...

    The loop acks a batch when it asks for the next one, and at the end of the ``with`` block. After an exception the events that are not
    acked come again. `async for batch in consumer` is the same loop in asyncio: each get waits in a thread of its own, which has ended when
    the batch is returned or the task is canceled. Meanwhile other tasks may call `ack`, `rollback`, `seek` and `close`; ``async with``
    closes without blocking the event loop.

    A subscription continues after its last ack, in this process or the next one. In a store with a log it is durable from its creation:
    its ack is in the store's home, at most a second behind and never ahead of what is on disk. Events that are not acked stay in the log,
    up to its size. Without a log they stay in the ring, and when they fill it, the producer waits.

    In a generator the caller asks for the next batch before it has written the last one, so the ack comes later:

        def orders(consumer):  # consumer = Consumer("orders", "dlt", auto_ack=False, timeout=5)
            for batch in consumer:
                yield from batch.to_arrow("shop.orders").to_pylist()

        pipeline.run(orders(consumer))
        consumer.ack()  # only now are the rows in the warehouse

    Args:
        store: The name of a store on this host; an `EventStore`, which the consumer does not close; or the URL of a store on another host,
            ``grpc://HOST:8815/STORE`` (with TLS ``grpc+tls://...``), where `shmstore serve --flight` runs. The same calls work there. A lost
            connection is made again, for up to a minute.
        subscription: The name of the reader. One process owns it at a time.
        tables: The tables that are wanted, in the patterns of ``shmstore tail --tables``: ``"shop.*"``, ``"shop.orders,!shop.log"``, or a
            list. Batches then have the rows and DDLs of these tables alone, without BEGIN, END and heartbeats; the rest is read, and acked
            with the batch before it. None: everything.
        start: Where a new subscription begins: "earliest" (everything that the log keeps; without a log, everything that some reader has
            not acked), "latest", a sequence, a `Position` (the first event after it), a datetime, or one of these as text, such as
            "0-1-4711" or "2026-01-31T12:00:00Z". A known subscription ignores it.
        auto_ack: Whether asking for the next batch acks the current one. With False only `ack` does.
        limit: Short for `limit_events`.
        limit_events: The most events of a batch, counted before `tables` chooses.
        limit_bytes: The most bytes of payload in a batch. A single event may be larger. Without any limit a batch is at most an eighth of
            the ring.
        timeout: Seconds without an event after which the loop ends. 0 reads the present events; None waits forever, without using CPU.
        checkpoint: For a store without a log: True keeps the acked position in the store's home, a path in that folder, False nowhere. For
            a store with a log a path only says where a new subscription begins.
        path: The file of a store that is in a file instead of shared memory.
        state: The folder of homes ($SHMSTORE_STATE, or ~/.local/state/shmstore). `path` and `state` are for a store of this host.

    Raises:
        StoreNotFound: No store has this name.
        LayoutMismatch: The store is of another version.
        SubscriptionInUse: Another process owns the subscription.
        SubscriptionLost: The subscription was evicted because it held up the producer. The loop may raise it, too.
        PositionNotFound: The store does not have `start`.
        StoreClosed: From the loop: the store was removed, and was not there again within some seconds. From the constructor: the `EventStore`
            that it was given is closed, or was removed.
        StoreUnreachable: The server of a store on another host did not answer for a minute. The loop may raise it, too.
        ValueError: A name, a pattern or a limit is not valid.
    """

    def __init__(
        self,
        store: str | EventStore,
        subscription: str,
        *,
        tables: str | Iterable[str] | None = None,
        start: Start = "earliest",
        auto_ack: bool = True,
        limit: int | None = None,
        limit_events: int | None = None,
        limit_bytes: int | None = None,
        timeout: float | None = None,
        checkpoint: bool | str | os.PathLike[str] = True,
        path: str | os.PathLike[str] | None = None,
        state: str | os.PathLike[str] | None = None,
    ) -> None:
        for name, value in (("limit", limit), ("limit_events", limit_events), ("limit_bytes", limit_bytes)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: a batch holds at least 1; leave it out for the default")
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is {timeout}: it must be 0 or more seconds, or None to wait forever")
        self._choice = None if tables is None else TableChoice(tables)
        self._owns_store = isinstance(store, str)
        self._timeout = timeout
        self._auto_ack = auto_ack
        self._batch: Batch | None = None  # the current one; None also after a rollback
        self._stopped = False
        self._closed = False
        self._turn = Turn(self._interrupt)
        self._away: tuple[int, str] | None = None  # while the store does not come back: the ack, and what the first error said
        self._moves = 0  # how often reading went elsewhere: a batch that was taken before is not given
        self._waits = False  # an async get, in its thread
        self._cancelled = False  # that get
        begin = partial(_begun, subscription=subscription, start=start, checkpoint=checkpoint)
        self.store: EventStore | RemoteStore
        self.subscription: Subscription | RemoteSubscription
        if isinstance(store, str):
            self.store, self.subscription = begun(lambda: _attached(store, path, state), begin)
        else:
            self.store, self.subscription = begin(store)
        if limit is None and limit_events is None and limit_bytes is None:
            limit_events = max(1, self.store.capacity // SHARE)
            limit_bytes = max(1, self.store.limit_bytes // SHARE)
        self._limits = limit, limit_events, limit_bytes
        self._reached = self._given_to = (
            self._acked
        )  # last sequence that is dealt with when the body is; last one that it was given

    # ---------------------------------------------------------------- the loop

    def __iter__(self) -> Self:
        """Begin a loop. Events that earlier loops did not ack come again."""
        self.rollback()
        return self

    def __next__(self) -> Batch:
        """Ack the current batch (unless ``auto_ack=False``), and return the next one that is not empty.

        Returns:
            The next events, at least one. The iteration ends after `timeout` seconds without an event, or after `stop`.

        Raises:
            StoreError: The checkpoint cannot be written. The ack counts all the same: the next call returns the next batch, and the
                checkpoint is tried again within about a second, and at the end.
        """
        with self._turn:
            batch = self._taken()
            if batch is None:
                raise StopIteration
            return self._given(batch)

    def __aiter__(self) -> Self:
        """Begin a loop, as `__iter__`."""
        self.rollback()
        return self

    async def __anext__(self) -> Batch:
        """Return the next batch as `__next__` does, without blocking the event loop. A canceled call takes nothing: the batch comes again.

        Raises:
            RuntimeError: Another task waits for the next batch.
        """
        if self._waits:
            raise RuntimeError(
                "another task waits for the next batch of this consumer: let one task read, or give each a Consumer"
            )
        self._waits = True
        try:
            while True:
                batch, moves = await in_thread(self._taken_in_turn, self._cancel)
                if batch is None:
                    raise StopAsyncIteration
                if moves == self._moves:  # else another task went elsewhere meanwhile
                    return self._given(batch)
        finally:
            self._waits = self._cancelled = False

    def _taken_in_turn(self) -> tuple[Batch | None, int]:
        with self._turn:
            return self._taken(), self._moves

    def _cancel(self) -> None:
        self._cancelled = True
        self._interrupt()

    def _interrupt(self) -> None:
        with suppress(ShmStoreError):  # a wait ends by that, too
            self.subscription.interrupt()

    def _taken(self) -> Batch | None:
        while True:
            try:
                return self._next()
            except StoreClosed as closed:
                if self._stopped and not self._closed:  # on another host the wait for the store may be over by now
                    return None
                if not self.attach_again(closed):
                    return None

    def _given(self, batch: Batch) -> Batch:
        self._reached = self._given_to = batch.last
        self._batch = batch
        return batch

    def _next(self) -> Batch | None:
        """The next batch, which is not handed out yet; None at the end."""
        if self._auto_ack:
            self._ack()
        if self._stopped:
            return None
        timeout, idle = self._timeout, False
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = max(self._reached, self._acked)
            if self.subscription.get_cursor.sequence > seen:  # the body left `events` within a batch, or an interrupt lost one
                self.subscription.rollback(seen + 1)
            left = None if until is None else max(0.0, until - time.monotonic())
            batch = self._get(left if idle else IDLE_SECONDS if left is None else min(IDLE_SECONDS, left))
            if batch:
                chosen = batch if self._choice is None else self._choice.of(batch)
                if chosen:
                    return chosen
                self._skip(batch)
                idle = False
            elif self._stopped or self._closed or self._cancelled or (until is not None and time.monotonic() >= until):
                return None
            elif not idle:
                self.subscription.save_checkpoint()  # nothing comes: what was acked last becomes durable now, not with the next ack
                idle = True
            self._turn.let_others()

    def _skip(self, batch: Batch) -> None:
        """Pass over a batch that has nothing for the body: acked once all is acked that the body was given before."""
        self._reached = batch.last
        if self._acked >= self._given_to:
            self.subscription.ack(batch)

    def attach_again(self, closed: StoreClosed) -> bool:
        """Attach to the store again, which was restored from its home, and continue at the ack.

        Args:
            closed: The error that a call raised.

        Returns:
            False where `stop` ended the wait for the store.

        Raises:
            StoreClosed: The store does not come back, or is no longer the same. The next call tries again.
        """
        before, name = self.store, self.subscription.name
        if self._closed or not isinstance(before, EventStore):
            raise closed
        if self._away is None:
            acked = self._acked  # of one that was closed it raises StoreClosed, too
            if not before.has_log or not before.lost:
                raise closed
            self._away = acked, str(closed)
            with suppress(ShmStoreError):
                self.subscription.close()  # its ack is in the home then
            if self._owns_store:
                before.close()
        acked, says = self._away

        def ended() -> bool:
            return self._cancelled or self._stopped

        try:
            retried(lambda: self._take_again(before.attach_again(same=True), name, acked), RETURN_SECONDS, ended)
        except SubscriptionLost:
            raise
        except StoreError as error:
            if ended():
                return False
            raise StoreClosed(says) from error
        _log.info(
            "store %r was removed and is available again: subscription %r continues after event %d",
            before.name,
            name,
            self._acked,
        )
        return True

    def _take_again(self, store: EventStore, name: str, acked: int) -> None:
        """Own the subscription in `store`, which is then this reader's. Raises `StoreError`."""
        try:
            subscription = store.subscribe(name, start=min(acked, store.newest) + 1)
            if (last := min(acked, store.newest)) > subscription.ack_cursor.sequence:
                subscription.seek(last + 1)
        except BaseException:
            store.close()
            raise
        self.store, self.subscription, self._owns_store, self._away = store, subscription, True, None
        self._elsewhere()

    def _elsewhere(self) -> None:
        """Continue at the ack: nothing that was given counts any more."""
        self._batch, self._reached, self._given_to = None, self._acked, self._acked
        self._moves += 1

    def events(self) -> Iterator[Event]:
        """Yield single events, and ack each batch after its last event (unless ``auto_ack=False``).

        After a loop that ended within a batch, the events up to and including the current one count as processed: leaving the ``with``
        block without an exception acks those and no more, as does calling `ack`.
        """
        for batch in self:
            self._reached = batch.first - 1
            for event in batch:
                if self._batch is not batch:
                    break  # rolled back, or `seek` went elsewhere: continue there
                self._reached = event.sequence
                yield event
            else:
                if self._batch is batch:
                    self._reached = batch.last  # behind the last event of `tables`

    def _get(self, timeout: float | None) -> Batch:
        limit, limit_events, limit_bytes = self._limits
        return self.subscription.get(limit, limit_events=limit_events, limit_bytes=limit_bytes, timeout=timeout)

    # ---------------------------------------------------------------- by hand

    @property
    def _acked(self) -> int:
        return self.subscription.ack_cursor.sequence if self._away is None else self._away[0]

    def ack(self, what: Batch | int | Position | None = None) -> None:
        """Ack everything up to and including `what`. Acked events never come again; events after them stay delivered.

        Args:
            what: A batch, a sequence, or the position of an event; None: everything that was delivered. With None, nothing happens where
                all of it is acked already.

        Raises:
            AckError: The events were acked already, were not delivered, or belong to a batch that a rollback took back.
            StoreError: The disk refuses the checkpoint. The ack counts all the same.
        """
        with self._turn:
            if what is not None:
                self.subscription.ack(what)
            else:
                self._ack()

    def _ack(self) -> None:
        if self._reached > self._acked:
            self.subscription.ack(self._reached)

    def rollback(self) -> None:
        """Deliver again what was not acked: the next batch begins with it."""
        with self._turn:
            self._elsewhere()
            if self._away is None:  # else it begins at the ack in any case
                self.subscription.rollback()  # also a batch that an interrupt lost between the get and the loop

    def seek(self, start: Start) -> None:
        """Continue at `start`. Everything before it counts as acked.

        This is for a writer that commits its position with its rows, and so knows it better than the last ack. With a log, `start` may be
        before the ack: those events come again. Without one it cannot, because acked events may be overwritten.

        Args:
            start: As the parameter `start` of `Consumer`. A sequence is valid in the store that gave it (same `EventStore.epoch`), a
                ``batch.position`` also in a store of the same source that was created after it.

        Raises:
            PositionNotFound: The store does not keep `start`, does not have it yet, or, without a log, it is acked. Nothing moved.
        """
        with self._turn:
            self.subscription.seek(start)
            self._elsewhere()

    def resume(self, epoch: int, sequence: int) -> bool:
        """Continue after the last event that a writer has committed together with its rows.

        What was committed and not acked is acked now. What was acked and not committed, as after a restore of the target from a backup,
        comes again.

        Args:
            epoch: The `EventStore.epoch` of the store that `sequence` is from.
            sequence: The last committed sequence, such as ``batch.last``; -1: none.

        Returns:
            False where `epoch` is another store's, whose sequences do not compare: reading continues at the ack.

        Raises:
            PositionNotFound: The log no longer keeps the events after `sequence`. With `tables`, or without a log, the ack may be ahead of
                the commit for other reasons: then the events that are kept come again, and a warning says which are not kept.
        """
        with self._turn:
            acked = self._acked
            if epoch != self.store.epoch:
                return False
            if sequence < 0 or sequence == acked:
                return True
            try:
                self.seek(sequence + 1)
            except PositionNotFound:
                if sequence > acked or (self.store.has_log and self._choice is None):
                    raise
                if self.store.has_log:
                    self.seek("earliest")
                _log.warning(
                    "subscription %r of store %r continues after event %d: %d was the last one committed, and the events in between are not kept",
                    *(self.subscription.name, self.store.name, self._acked, sequence),
                )
            return True

    def sync(self, what: Batch | int | None = None, timeout: float = 10.0) -> None:
        """Wait until the log has everything up to `what` on disk. Without a log it returns at once.

        A writer that commits sequences calls this before the commit: otherwise a power cut could give the sequences to other events.

            for batch in consumer:
                write(batch)
                consumer.sync(batch)
                commit(consumer.store.epoch, batch.last)

        Args:
            what: A batch or a sequence; None: everything that was delivered.
            timeout: The most seconds to wait.

        Raises:
            SyncTimeout: The deadline passed. Nothing is lost: call it again.
            StoreClosed: The store was removed.
            StoreUnreachable: The server of a store on another host does not answer.
        """
        sequence = self._reached if what is None else what.last if isinstance(what, Batch) else what
        if not self.store.has_log:
            return
        with self._turn:
            synced = self.store.sync(sequence, timeout)
        if synced < sequence:
            raise SyncTimeout(
                f"the log of store {self.store.name!r} has events up to {synced} on disk after {timeout:g} s, not up to {sequence}: "
                f"`shmstore stat {self.store.name}` says what keeps it; nothing is lost, so try again"
            )

    def stop(self) -> None:
        """End the iteration: a wait ends at once, a running body when it asks for the next batch (its batch is acked then).

        Another thread or a signal handler may call it.
        """
        self._stopped = True
        self.subscription.interrupt()

    def close(self) -> None:
        """Release the subscription. The current batch is not acked: the next owner gets it again. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with self._turn:
            with suppress(ShmStoreError):  # a store or subscription that was removed has nothing to roll back
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await in_thread(lambda: self.__exit__(kind, error, trace), self._interrupt)


def _attached(store: str, path: str | os.PathLike[str] | None, state: str | os.PathLike[str] | None) -> EventStore | RemoteStore:
    if not is_url(store):
        return EventStore.attach(store, path=path, state=state)
    if path is not None or state is not None:
        raise ValueError("path and state are for a store of this host: leave them out, or the URL")
    try:
        from shmstore.consumer.remote.store import RemoteStore  # pyarrow may be missing
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{store.partition('://')[0]}:// needs pyarrow: {install('arrow')}", name=error.name) from error
    return RemoteStore.attach(store)


def _begun(
    store: EventStore | RemoteStore, *, subscription: str, start: Start, checkpoint: bool | str | os.PathLike[str]
) -> tuple[EventStore | RemoteStore, Subscription | RemoteSubscription]:
    """The store, and its subscription, which is then this process's."""
    if not isinstance(store, EventStore):
        if not isinstance(checkpoint, bool):
            raise ValueError("a store on another host keeps checkpoints there: give checkpoint=True or False")
        return store, store.subscribe(subscription, start=start, checkpoint=checkpoint)
    file = _checkpoint(checkpoint, store, subscription)
    try:
        return store, store.subscribe(subscription, start=start, checkpoint=file)
    except PositionNotFound as error:
        if file is None or file.load() is None:
            raise
        command = f"`shmstore unsubscribe {store.name} {subscription}`" if checkpoint is True else "removing that file"
        raise PositionNotFound(
            f"{error}. Subscription {subscription!r} had acked up to there, says its checkpoint {file.path}: {command} lets it "
            "begin as a new one"
        ) from error


def _checkpoint(where: bool | str | os.PathLike[str], store: EventStore, subscription: str) -> CheckpointFile | None:
    if where is False:
        return None
    return CheckpointFile.of(store.home, subscription) if where is True else CheckpointFile(where, store.name, subscription)
