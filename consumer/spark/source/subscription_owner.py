"""Lease: a query's hold on its store, kept by the one long-lived process that Spark runs its streamReader in.

Spark says that a batch is done in two ways: `commit(end)`, which comes only while the next batch is built, and
`latestOffset(start)`, which comes only after the batch that ended at `start` is in Spark's commit log. Both move the
ack; with the first alone a ring smaller than the backlog would stand still for ever.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from shmstore import (
    Batch,
    Checkpoint,
    CheckpointFile,
    EventStore,
    Position,
    PositionNotFound,
    StoreNotFound,
    Subscription,
    SubscriptionInUse,
    SubscriptionLost,
)
from shmstore.consumer.spark.options import Options, Start
from shmstore.consumer.spark.source import multi_source
from shmstore.consumer.spark.source.event_server import EventServer
from shmstore.consumer.spark.source.offset import Offset
from shmstore.consumer.spark.source.partition import read_store
from shmstore.encoding.codec import decode_stored
from shmstore.memory.layout import SlotFlag
from shmstore.start_position import Start as Place

_STALL = 3.0
_HANDOVER = 5.0
Held = TypeVar("Held")


class Limit(NamedTuple):
    """Most rows and most encoded bytes of a micro-batch; None is no limit but the ring's."""

    rows: int | None = None
    size: int | None = None

    @classmethod
    def of(cls, limit: ReadLimit, options: Options) -> Limit:
        """Return what Spark's `limit` and the options say: Spark tells one of both, or that all is wanted."""
        if isinstance(limit, ReadAllAvailable):
            return cls()
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_rows
        return cls(rows, limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes)


class Lease:
    """The attached store and the owned subscription of one query; both are found again when the store is re-created."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._store: EventStore | None = None
        self._subscription: Subscription | None = None
        self._server: EventServer | None = None
        self._noted = False
        self._seen: tuple[int, np.ndarray[Any, Any]] | None = None
        self._stall = (-1, -1, 0.0)
        self._several: bool | None = None

    # ---------------------------------------------------------------- store and subscription

    @property
    def store(self) -> EventStore:
        """The store, attached. Waits `storeTimeout` for one that is gone. Raises `StoreNotFound`."""
        timeout = 0.0  # a store that was never there is most likely a wrong name: said at once
        if self._store is not None and self._store.segment.removed:
            self.close()
            timeout = self._options.store_timeout
        if self._store is None:
            self._store = attach(self._options, timeout)
        return self._store

    @property
    def _has_several(self) -> bool:
        """Whether the store has several sources; looked up until it says."""
        if self._several is None:
            self._several = multi_source.is_group(self.store)
        return bool(self._several)

    def subscribe(self, start: Offset | None) -> Subscription:
        """Own the subscription. A known one stands where it acked; a new one begins after `start`, or as the options say.

        Raises `SubscriptionInUse`, `PositionNotFound`.
        """
        store, options = self.store, self._options
        if self._subscription is None:
            checkpoint = CheckpointFile(options.state_directory, options.store, options.subscription)
            where = self._first_event(options.start) if start is None else self._after(start)
            try:
                self._subscription = self._own(where, checkpoint)
            except PositionNotFound as error:
                if start is None and options.fail_on_data_loss:
                    raise PositionNotFound(
                        f"subscription {options.subscription!r} cannot begin: {error}. Where it was is known from its checkpoint {checkpoint.path}, "
                        "else from startingOffsets: remove the one or change the other, or set failOnDataLoss=false to begin at the oldest event"
                    ) from error
                # A re-created store that is still empty, or one with a gap: `locate` tells them apart, batch by batch.
                self._own("earliest", None).close()
                self._subscription = self._own("earliest", checkpoint)
            except SubscriptionLost:
                if options.fail_on_data_loss:
                    raise
                store.unsubscribe(options.subscription)
                self._own("earliest", None).close()
                self._subscription = self._own("earliest", checkpoint)
            self._close_when_terminated()
        return self._subscription

    def _close_when_terminated(self) -> None:
        """Give the subscription up on SIGTERM, too: with it, and no word before, Spark ends this process when a query stops."""

        def end(*_: object) -> None:
            self.close()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

        here = threading.current_thread() is threading.main_thread()  # the only one that may set a handler
        if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, end)

    def _own(self, start: Place, checkpoint: CheckpointFile | None) -> Subscription:
        name = self._options.subscription
        return handover(lambda: self.store.subscribe(name, start=start, checkpoint=checkpoint))

    def _first_event(self, start: Start) -> Place:
        if start.kind == "committed":
            return "earliest"
        return self._after(Offset.of(start.value)) if start.kind == "offset" else start.place

    def _after(self, offset: Offset) -> str | int | Position:
        if offset.epoch == self.store.epoch:
            return max(offset.seq + 1, self.store.oldest)
        return offset.position or "earliest"

    def serve(self) -> EventServer:
        """Return the server of this store's events, started once in each life of the store."""
        if self._server is None:
            served = attach(self._options, 0.0)  # an attachment of its own: a store object serves one thread at a time
            self._server = EventServer(partial(read_store, served), self._options.transport_host)
        return self._server

    def close(self) -> None:
        """Give up the subscription for its next owner, and the store."""
        if self._subscription is not None:
            self._subscription.close()  # first: Spark does not wait long for a process that it ends
        if self._server is not None:
            self._server.close()
            self._server = None  # its attachment goes with the last connection that still reads
        if self._store is not None:
            self._store.close()
        self._subscription = self._store = self._seen = self._several = None

    # ---------------------------------------------------------------- offsets

    def first(self) -> Offset:
        """Return where a new query begins: what the subscription has acked. The same until something is acked."""
        acked = self.subscribe(None).ack_cursor.sequence
        return Offset.at(self.store.name, self.store.epoch, acked, self._position_of_acked(acked))

    def _position_of_acked(self, sequence: int) -> Position | None:
        """The event may be gone from the ring; then the checkpoint may know, else the sequence is all that is left of it.

        In a store of several sources a place within a transaction is none: it does not say where the others are.
        """
        found = self._place_of_acked(sequence)
        return found if found is None or found.of_group or not self._has_several else None

    def _place_of_acked(self, sequence: int) -> Position | None:
        if sequence == self.store.newest:
            return self.store.latest_position
        saved = CheckpointFile(self._options.state_directory, self._options.store, self._options.subscription).load()
        if saved and (saved.epoch, saved.sequence) == (self.store.epoch, sequence):
            return saved.position
        try:
            return position_at(self.store, sequence) or start_of(self.store, sequence + 1)
        except PositionNotFound:
            return start_of(self.store, sequence + 1)

    def note_start(self, base: int) -> None:
        """Make durable where a query began that has not acked yet, before its first batch is planned.

        Until the first ack only the store knows; were it lost, batch 0 would begin at whatever its successor begins with.
        """
        if self._noted:
            return
        self._noted = True
        checkpoint = CheckpointFile(self._options.state_directory, self._options.store, self._options.subscription)
        position = self._position_of_acked(base)
        if position is not None and checkpoint.load() is None:
            checkpoint.save(Checkpoint(position, self.store.epoch, base))

    def locate(self, offset: Offset, *, end: bool = False) -> int | None:
        """Return the sequence that `offset` has in this life of the store; None while the producer has not come to it.

        In another life of a store of several sources what is before `offset` need not be a range: then it is the last event before
        which nothing is new, or with `end` the first up to which all is there.

        Raises `PositionNotFound` naming the gap, when events after `offset` are lost; with failOnDataLoss=false the
        oldest event that is left follows.
        """
        acked, store = self.subscribe(offset).ack_cursor.sequence, self.store
        here = offset.epoch == store.epoch
        if here and (offset.seq + 1 >= store.oldest or (end and offset.of_group)):
            return offset.seq
        if offset.of_group:  # in this life of the store, too: an ack takes along what had been acked before
            with suppress(PositionNotFound):
                return multi_source.reach_of(store, offset) if end else multi_source.base_of(store, offset)
        elif not here:
            if offset.position is None:
                return store.oldest - 1
            latest = store.latest_position
            if latest is None or (offset.file and latest.order < offset.position.order):
                return None
            with suppress(PositionNotFound):
                return store.find(offset.position) - 1
        if not self._options.fail_on_data_loss:
            return store.oldest - 1
        why = (
            f"Another query, or this one with a later checkpoint, has read on with subscription {self._options.subscription!r}, up to event "
            f"{acked}: each query needs one of its own (option subscription). "
            if here and acked > offset.seq
            else ""
        )
        raise PositionNotFound(
            f"store {store.name!r} no longer has the events after {offset}: it begins at event {store.oldest} of epoch "
            f"{store.epoch:016x}, after {store.first_position}. {why}They are lost for this query: take a snapshot of its tables, or set "
            "failOnDataLoss=false to go on without them"
        )

    def wait_for(self, offset: Offset, *, end: bool = False) -> int:
        """Return `locate(offset)`, waiting up to `storeTimeout` for a producer that comes back to it."""
        more = ", or make the store larger, if it is full before all sources are there" if offset.of_group else ""
        return awaited(
            lambda: self.locate(offset, end=end),
            self._options.store_timeout,
            lambda: (
                f"store {self.store.name!r} was re-created and has not come back to {offset} within {self._options.store_timeout:g} s "
                f"(it is at {self.store.latest_position}): start its producer, or raise storeTimeout{more}"
            ),
        )

    def pass_over(self, offset: Offset) -> None:
        """Ack what a re-created store brings again and a query at `offset` has read before; or it would fill up with it."""
        if not offset.of_group:
            self.done(self.store.newest)

    def done(self, sequence: int) -> int:
        """Ack everything up to `sequence`; return how far that led: behind it may be what was acked in an earlier life of the store.

        Idempotent; never goes back.
        """
        subscription = self._subscription
        assert subscription is not None
        while subscription.get_cursor.sequence < sequence:
            if not subscription.get(limit_events=sequence - subscription.get_cursor.sequence, timeout=0):
                break
        if subscription.ack_cursor.sequence < sequence:
            subscription.ack(sequence)
        return max(sequence, self.store.oldest - 1)

    def end_after(self, base: int, limit: Limit, frozen: int | None) -> int:
        """Return the last sequence of the micro-batch that follows `base`; `base` itself when nothing whole is there.

        It is the last transaction end within the limits, at least one transaction, never beyond `frozen`, and at most
        half the ring, so that the producer fills one half while Spark works on the other. Only a transaction larger than
        that is cut.
        """
        store = self.store
        last = store.newest if frozen is None else min(frozen, store.newest)
        if last <= base:
            return base
        if self._has_several:
            return base + self._whole(base, limit, last)
        events, size = max(1, store.capacity // 2), max(1, store.limit_bytes // 2)
        batch = self._look(base, min(events, last - base), size)
        ends, fit = batch.ends, len(batch)
        self._seen = (base + 1, ends)
        if limit.size is not None:
            fit = min(fit, int(np.searchsorted(ends, limit.size, "right")))
        point = batch.ack_point
        if limit.rows is not None or (point is not None and point > base + fit):
            slots = batch.slots  # a copy: for a million events it takes longer than all the rest
            if limit.rows is not None:
                fit = min(fit, int(np.searchsorted(np.cumsum(slots["rows"], dtype=np.int64), limit.rows, "right")))
            points = np.flatnonzero(slots["flags"] & SlotFlag.ACK_POINT) + 1
            if len(points):
                within = points[points <= fit]
                return base + int(within[-1] if len(within) else points[0])
        elif point is not None:
            return point
        if base + len(batch) < last or self._stalled(base, last):
            return base + max(1, fit)
        return base

    def _whole(self, base: int, limit: Limit, last: int) -> int:
        """How many events after `base`, up to `last`, the limits give in a store of several sources: they end a transaction or a part.

        At most a quarter of the ring: once the store is made again, the whole ring must hold them, in another order and with others between.
        """
        store, first, left = self.store, base + 1, last - base
        batch = store.peek(first, limit_events=min(left, max(1, store.capacity // 4)), limit_bytes=max(1, store.limit_bytes // 4))
        quarter = fit = len(batch)
        if not batch.ack_point and quarter < left:
            batch = store.peek(first, limit_events=left)
        if limit.size is not None:
            fit = min(fit, int(np.searchsorted(batch.ends, limit.size, "right")))
        if limit.rows is not None:
            fit = min(fit, int(np.searchsorted(np.cumsum(batch.slots["rows"], dtype=np.int64), limit.rows, "right")))
        points = np.flatnonzero(batch.slots["flags"] & SlotFlag.ACK_POINT) + 1
        within = points[points <= fit]
        if len(points):
            return int(within[-1] if len(within) else points[0])
        return multi_source.whole(batch, fit) if quarter < left or self._stalled(base, last) else 0

    def _look(self, base: int, events: int, size: int) -> Batch:
        """Return the events after `base`, without a copy of their payloads where that can be had."""
        subscription = self._subscription
        if subscription is not None and subscription.ack_cursor.sequence == base and not self.store.ddl_isolation:
            subscription.rollback()  # get moves along with what is looked at; it is the reader's own business
            return subscription.get(limit_events=events, limit_bytes=size, timeout=0)
        return self.store.peek(base + 1, limit_events=events, limit_bytes=size)

    def ends(self, first: int, last: int) -> np.ndarray[Any, Any]:
        """Return where each of the events `first` to `last` ends, in bytes after the beginning of `first`."""
        if self._seen is not None and self._seen[0] == first and len(self._seen[1]) > last - first:
            return self._seen[1][: last - first + 1]
        return window(self.store, first, last).ends

    def _stalled(self, base: int, last: int) -> bool:
        """True when a transaction's end has not come for a while: its producer may be waiting for us to make room."""
        now = time.monotonic()
        if self._stall[:2] != (base, last):
            self._stall = (base, last, now)
        return now - self._stall[2] > _STALL

    def offset_at(self, sequence: int, after: Offset) -> Offset:
        """Return the offset of the event `sequence`, for a query that has read up to `after`."""
        if self._has_several:
            return multi_source.offset_at(self.store, sequence, after)
        return Offset.at(self.store.name, self.store.epoch, sequence, position_at(self.store, sequence))


def awaited(look: Callable[[], Held | None], seconds: float, missing: Callable[[], str]) -> Held:
    """Return what `look` finds, waiting up to `seconds` for it. Raises `PositionNotFound`, which says what is `missing`."""
    until = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > until:
            raise PositionNotFound(missing())
        time.sleep(0.05)
    return found


def handover(take: Callable[[], Held]) -> Held:
    """Return what `take` gives, waiting a moment for a reader whose query was stopped or killed and whose process is about to end.

    Raises `SubscriptionInUse` where it stays.
    """
    until = time.monotonic() + _HANDOVER
    while True:
        try:
            return take()
        except SubscriptionInUse as error:
            if time.monotonic() > until:
                raise SubscriptionInUse(f"{error}. Each query needs a subscription of its own: option subscription") from error
            time.sleep(0.1)


def attach(options: Options, timeout: float) -> EventStore:
    """Attach to the options' store, waiting `timeout` seconds for it. Raises `StoreNotFound`."""
    until = time.monotonic() + timeout
    while True:
        try:
            return EventStore.attach(options.store, path=options.store_path)
        except StoreNotFound:
            if time.monotonic() >= until:
                raise
            time.sleep(0.1)


def window(store: EventStore, first: int, last: int) -> Batch:
    """Return the events `first` to `last`. Raises `PositionNotFound` where some are no longer there."""
    batch = store.peek(first, limit_events=last - first + 1)
    if batch.last < last and not batch.oversized:
        raise PositionNotFound(f"store {store.name!r} gave events {first} to {batch.last} of {first} to {last}")
    return batch


def position_at(store: EventStore, sequence: int) -> Position | None:
    """Return the binlog position of an event; None before the first."""
    if sequence < 0:
        return None
    return store.peek(sequence, limit_events=1).position


def start_of(store: EventStore, sequence: int) -> Position | None:
    """Return where an event begins in the binlog: the place after which it is the first. None where that cannot be told."""
    try:
        batch = store.peek(sequence, limit_events=1)
    except PositionNotFound:
        return None
    for payload in batch.payloads():
        header = decode_stored(payload)[0]
        if header.length and not multi_source.is_group(store):
            return Position(header.file, header.offset - header.length)
    return None
