"""SubscriptionOwner: owns a query's subscription, in the one long-lived process that Spark runs its streamReader in.

It attaches to the store, finds the query's offsets in it, and acks. In a store with a log they are sequences, which last; without one,
after the store was re-created, they are found by their positions. Spark reports in two
ways that a batch is done: by `commit(end)`, which comes only while the next batch is built, and by `latestOffset(start)`, which
comes only after the batch that ended at `start` is in Spark's commit log. Both ack: with the first alone a ring smaller than the
backlog would never shrink.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, takewhile
from typing import TYPE_CHECKING, TypeVar

from shmstore import (
    Checkpoint,
    CheckpointFile,
    EventStore,
    Position,
    PositionNotFound,
    StoreClosed,
    Subscription,
    SubscriptionInUse,
    SubscriptionLost,
)
from shmstore.consumer.remote.events import RemoteEvents
from shmstore.consumer.spark.options import SourceOptions, Start
from shmstore.consumer.spark.source import multi_source
from shmstore.consumer.spark.source.offset import Offset
from shmstore.consumer.spark.source.partition import read_store
from shmstore.consumer.spark.spark_version import has_read_limits
from shmstore.encoding.codec import decode_stored
from shmstore.home.reader_state import keep_planned
from shmstore.memory.deadline import retried
from shmstore.start_position import Start as StartPosition

_HANDOVER = 5.0  # seconds that the reader of a stopped query may take to end
Found = TypeVar("Found")

if TYPE_CHECKING:
    from shmstore.consumer.spark.source.event_server import EventServer


class SubscriptionOwner:
    """The attached store and the owned subscription of one query; both are found again when the store is re-created."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.name = options.subscription  # or, once it is owned, that with a number
        self._store: EventStore | None = None
        self._subscription: Subscription | None = None
        self._server: EventServer | None = None
        self._served: EventStore | None = None
        self._start_saved = False
        self._several: bool | None = None

    # ---------------------------------------------------------------- store and subscription

    @property
    def store(self) -> EventStore:
        """The store, attached: the same object, with its subscription, until `renew` or `leave`. Raises `StoreNotFound`."""
        if self._store is None:
            self._store = attach(self._options)  # a missing store is most likely a wrong name: an error at once
        return self._store

    @property
    def lost(self) -> bool:
        """True where the store was removed, or its memory taken away: what is asked of it now is answered from what is left, or not at all."""
        return self._store is not None and self._store.lost

    def renew(self) -> None:
        """Attach again where the store is `lost`: it is restored from its home, or waited for, `storeTimeout`. Raises `StoreNotFound`.

        Not within what one call of Spark asks: its answer is about one life of the store.
        """
        before = self._store
        if before is not None and before.lost:
            self.leave()
            self._store = retried(before.attach_again, self._options.store_timeout)

    @property
    def subscription(self) -> Subscription | None:
        """The subscription; None before `subscribe`."""
        return self._subscription

    @property
    def has_several(self) -> bool:
        """Whether the store has several sources; False until its events show that."""
        if self._several is None:
            self._several = multi_source.is_group(self.store)
        return bool(self._several)

    def subscribe(self, start: Offset | None) -> Subscription:
        """Own the subscription. A known one continues after its last ack; a new one begins after `start`, or as the options say.

        Raises `SubscriptionInUse`, `PositionNotFound`.
        """
        if self._subscription is None:
            *names, last = self._names(self.store, start)
            seconds = _HANDOVER
            for name in names:
                with suppress(SubscriptionInUse):
                    self._subscription = self._begin(name, start, seconds)
                    break
                seconds = 0.0  # the first one is the likeliest to be free soon
            else:
                self._subscription = self._begin(last, start, seconds)
            self._resign_when_terminated()
        return self._subscription

    def _names(self, store: EventStore, start: Offset | None) -> list[str]:
        """The names of subscriptions that may be this reader's, the likeliest first. One that was given is the only one.

        Of a query that reads a table twice each source has one, the second with a number. Spark does not say which source a reader is of. So it is the
        offset that tells them apart: the subscription that has acked most up to there, and nothing behind it, keeps all that the reader may need. Where it
        was another source's, that one finds its own in the same way.
        """
        first = self._options.subscription
        if self._options.subscription_given:
            return [first]
        there = {each.name: each for each in store.subscriptions()}
        numbered = takewhile(there.__contains__, (f"{first}.{number}" for number in count(2)))
        names = [first, *numbered]
        new = f"{first}.{len(names) + 1}"
        if start is not None and start.epoch == store.epoch:
            acked = {name: there[name].ack.sequence if name in there else start.seq for name in names}
            taken = {name for name in names if name in there and there[name].alive}
            names.sort(key=lambda name: (acked[name] > start.seq, abs(acked[name] - start.seq), name in taken))
        return [*names, new]

    def _begin(self, name: str, start: Offset | None, seconds: float) -> Subscription:
        """Own the subscription `name`, waiting so long for another owner. Raises `SubscriptionInUse`, `PositionNotFound`."""
        store, options = self.store, self._options
        checkpoint = CheckpointFile.of(store.home, name)
        where = self._first_event(options.start) if start is None else self._after(start)

        def own(where: StartPosition, checkpoint: CheckpointFile | None) -> Subscription:
            return handover(lambda: store.subscribe(name, start=where, checkpoint=checkpoint), seconds)

        self.name = name
        try:
            return own(where, checkpoint)
        except PositionNotFound as error:
            if start is None and options.fail_on_data_loss:
                raise PositionNotFound(
                    f"subscription {name!r} cannot begin: {error}. Its position comes from its checkpoint {checkpoint.path}, or "
                    "else from startingOffsets: remove that file or change that option, or set failOnDataLoss=false to begin at the oldest event"
                ) from error
            # A re-created store that is still empty, or one with a gap: `locate` tells them apart, batch by batch.
        except SubscriptionLost:
            if options.fail_on_data_loss:
                raise
            store.unsubscribe(name)
        own("earliest", None).close()
        return own("earliest", checkpoint)

    def _resign_when_terminated(self) -> None:
        """Give the role up on SIGTERM, too: without a call before it, Spark ends this process so when a query stops, and `stat` would call it dead.

        The signal may come between any two lines, within whatever lock. So its handler takes none, and closes nothing: the kernel releases the
        subscription with the process, the segment has its ack, and the producer makes that durable. Spark sends the signal twice (`stopWorker`, then
        `stopDaemon`), and the second one may come within the handler: it ends the process only once the role is given up.
        """

        def end(*_: object) -> None:
            if self._subscription is not None:
                self._subscription._resign()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

        here = threading.current_thread() is threading.main_thread()  # the only one that may set a handler
        if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, end)

    def _first_event(self, start: Start) -> StartPosition:
        if start.kind == "committed":
            return "earliest"
        return self._after(Offset.of(start.value)) if start.kind == "offset" else start.place

    def _after(self, offset: Offset) -> str | int | Position:
        if offset.epoch == self.store.epoch:
            return max(offset.seq + 1, self.store.oldest)
        return offset.position or "earliest"

    def serve(self) -> EventServer:
        """Return the server of this store's events, started once."""
        if self._server is None:
            from shmstore.consumer.spark.source.event_server import EventServer  # gRPC takes a while to load

            self._server = EventServer(self._read, self._options.transport_host, self._options.transport_tls)
        return self._server

    def _read(self, first: int, last: int) -> Iterator[RemoteEvents]:
        """Yield events for the server: out of an attachment of its own, because a store object serves one thread at a time."""
        if self._served is None:
            self._served = attach(self._options)
        elif self._served.lost:
            self._served = self._served.attach_again()  # the one before ends with the last connection that still reads
        yield from read_store(self._served, first, last, fails=self._options.fail_on_data_loss)

    def leave(self) -> None:
        """Release the subscription for its next owner, and the store."""
        try:
            if self._subscription is not None:
                self._subscription.close()
        finally:
            if self._store is not None:
                self._store.close()
            self._subscription = self._store = self._several = None

    def close(self) -> None:
        """Release the subscription for its next owner, and the store; serve no more events."""
        try:
            self.leave()  # first: Spark does not wait long for a process that it ends
        finally:
            if self._server is not None:
                self._server.close()
                self._server = self._served = None

    # ---------------------------------------------------------------- offsets

    def first_offset(self) -> Offset:
        """Return where a new query begins: after what the subscription has acked. The same until something is acked."""
        acked = self.subscribe(None).ack_cursor.sequence
        return Offset.at(self.store.name, self.store.epoch, acked, self._position_of_acked(acked))

    def _position_of_acked(self, sequence: int) -> Position | None:
        """The position of an acked event. None if neither the ring nor the checkpoint has it any more: its sequence must do.

        In a store of several sources a position within a transaction does not count: it does not say where the other sources are.
        """
        found = self._find_acked(sequence)
        return found if found is None or found.of_group or not self.has_several else None

    def _find_acked(self, sequence: int) -> Position | None:
        if sequence == self.store.newest:
            return self.store.latest_position
        saved = None
        if not self.store.has_log:
            saved = CheckpointFile.of(self.store.home, self.name).load()
        if saved and (saved.epoch, saved.sequence) == (self.store.epoch, sequence):
            return saved.position
        try:
            return position_at(self.store, sequence) or start_of(self.store, sequence + 1)
        except PositionNotFound:
            return start_of(self.store, sequence + 1)

    def save_start(self, base: int) -> None:
        """Write a checkpoint of where a query begins, before its first batch is planned.

        Without a log, until the first ack only the store knows that; if it were lost, batch 0 would begin wherever the re-created store begins.
        """
        if self._start_saved or self.store.has_log:
            return
        self._start_saved = True
        checkpoint = CheckpointFile.of(self.store.home, self.name)
        position = self._position_of_acked(base)
        if position is not None and checkpoint.load() is None:
            checkpoint.save(Checkpoint(position, self.store.epoch, base))

    def locate(self, offset: Offset, *, end: bool = False) -> int | None:
        """Return the sequence that `offset` has in this store; None while the producer of a re-created store has not come to it.

        In a re-created store of several sources the events up to `offset` need not be a range: then it is the last event before
        which nothing is new, or with `end` the first event up to which everything is there.

        Raises `PositionNotFound`, which names the gap, if events after `offset` are lost; with failOnDataLoss=false the query
        continues with the oldest event instead.
        """
        acked, store = self.subscribe(offset).ack_cursor.sequence, self.store
        here = offset.epoch == store.epoch
        if here and store.has_log and offset.seq > store.newest:
            if not self._options.fail_on_data_loss:
                return store.newest
            raise PositionNotFound(
                f"the log of store {store.name!r} ends at event {store.newest}, and this query has read up to {offset}: the store's home was "
                "replaced by an older copy, or its disk lost what it had taken. Take a snapshot of the query's tables, or set "
                "failOnDataLoss=false to continue with the next event"
            )
        if here and (offset.seq + 1 >= store.oldest or (end and offset.of_group)):
            return offset.seq
        if offset.of_group or not here:  # of several also in the same epoch: an ack covers events that an earlier store had
            with suppress(PositionNotFound):
                return multi_source.located(store, offset, end=end)
        if not self._options.fail_on_data_loss:
            return store.oldest - 1
        why = (
            f"Another query, or this one with a later checkpoint, has continued with subscription {self.name!r}, up to event "
            f"{acked}: each query needs one of its own (option subscription). "
            if here and acked > offset.seq
            else ""
        )
        raise PositionNotFound(
            f"store {store.name!r} no longer has the events after {offset}: it begins at event {store.oldest} of epoch "
            f"{store.epoch:016x}, after {store.first_position}. {why}They are lost for this query: take a snapshot of its tables, or set "
            "failOnDataLoss=false to continue without them"
        )

    def wait_for(self, offset: Offset, *, end: bool = False) -> int:
        """Return `locate(offset)`, waiting up to `storeTimeout` for the producer of a re-created store to reach it. Raises `StoreClosed`, too."""
        more = ", or make the store larger, if it is full before all sources have reached it" if offset.of_group else ""

        def located() -> int | None:
            if self.lost:
                raise StoreClosed(f"store {self.store.name!r} was removed: attach again, or create it again")
            return self.locate(offset, end=end)

        return awaited(
            located,
            self._options.store_timeout,
            lambda: (
                f"store {self.store.name!r} was re-created and has not reached {offset} again within {self._options.store_timeout:g} s "
                f"(it is at {self.store.latest_position}): start its producer, or raise storeTimeout{more}"
            ),
        )

    def ack_replayed(self, offset: Offset) -> None:
        """Ack the events of a re-created store that a query at `offset` has read before, or they would fill the ring."""
        if not offset.of_group:
            self.ack(self.store.newest)

    def ack(self, sequence: int) -> int:
        """Ack everything up to `sequence`, and return how far that is: further, if events behind it were acked before the store was
        re-created. Idempotent; never goes back.
        """
        subscription = self._subscription
        assert subscription is not None
        subscription.advance(sequence)
        if subscription.ack_cursor.sequence < sequence:
            subscription.ack(sequence)
        return max(sequence, self.store.oldest - 1)

    def keep_planned(self, sequence: int | None) -> None:
        """Write down the end of a micro-batch in front of a DDL, for Spark before 4.2: it may be done without this query ever hearing so, and then
        the next run is planned with the columns behind it. None where that is wrong, or an ack says where the query is.
        """
        if not has_read_limits():
            store = self.store
            keep_planned(store.home, self.name, None if sequence is None else (store.epoch, sequence))

    def offset_at(self, sequence: int, after: Offset) -> Offset:
        """Return the offset of the event `sequence`, for a query that has read up to `after`."""
        if self.has_several:
            return multi_source.offset_at(self.store, sequence, after)
        return Offset.at(self.store.name, self.store.epoch, sequence, position_at(self.store, sequence))


def awaited(look: Callable[[], Found | None], seconds: float, missing: Callable[[], str]) -> Found:
    """Return what `look` finds, waiting up to `seconds` for it. Raises `PositionNotFound` with the text of `missing`."""
    until = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > until:
            raise PositionNotFound(missing())
        time.sleep(0.05)
    return found


def handover(take: Callable[[], Found], seconds: float | None = None) -> Found:
    """Return what `take` returns, waiting so many seconds, or some, for another owner: the process of a query that was stopped is about to end.

    Raises `SubscriptionInUse` if it does not end.
    """
    until = time.monotonic() + (_HANDOVER if seconds is None else seconds)
    while True:
        try:
            return take()
        except SubscriptionInUse as error:
            if time.monotonic() > until:
                raise SubscriptionInUse(f"{error}. Each query needs a subscription of its own: option subscription") from error
            time.sleep(0.1)


def attach(options: SourceOptions) -> EventStore:
    """Attach to the options' store. Raises `StoreNotFound`."""
    return EventStore.attach(options.store, path=options.store_path, state=options.state_directory)


def position_at(store: EventStore, sequence: int) -> Position | None:
    """Return the binlog position of an event; None before the first."""
    if sequence < 0:
        return None
    return store.peek(sequence, limit_events=1).position


def start_of(store: EventStore, sequence: int) -> Position | None:
    """Return where an event begins in the binlog: the position after which it is the first event. None if that is unknown."""
    try:
        batch = store.peek(sequence, limit_events=1)
    except PositionNotFound:
        return None
    for payload in batch.payloads():
        header = decode_stored(payload)[0]
        if header.length and not multi_source.is_group(store):
            return Position(header.file, header.offset - header.length)
    return None
