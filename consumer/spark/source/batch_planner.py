"""BatchPlanner: which events the next micro-batch of a query has.

A micro-batch ends at the end of a transaction, so that a query's tables show whole transactions, and it has at least one.

In a store with a log it may be as large as the limits say. It is planned from the slots, ring or log, without a look at payloads, and it
never ends behind what is on disk: Spark writes its end down, and after a power cut that must be there. A transaction that is too large for
the log is cut.

A query that does not read all tables has their rows counted first, from the heads of the events (`decode.table_scan`): the limits are about
those, and a micro-batch without any is run only where the store would otherwise keep too much for this query.

Without a log it has at most half of the ring, so that the producer fills one half while Spark works on the other; a transaction that
is too large for the ring is cut.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import numpy as np

from shmstore import Batch, EventStore, PositionNotFound
from shmstore.consumer.spark.decode.decoder import SchemaChanged
from shmstore.consumer.spark.decode.lineage import Names
from shmstore.consumer.spark.decode.table_scan import ColumnTurn, TableScan
from shmstore.consumer.spark.source import multi_source
from shmstore.consumer.spark.source.subscription_owner import SubscriptionOwner
from shmstore.memory.layout import SlotFlag

MOST_BYTES = 64 << 20  # payload of a micro-batch without limits, of a store with a log
_LOOK = 1 << 16  # events whose slots are looked at at a time
_WINDOW = 1 << 20  # bytes of events that are looked at for few rows of some tables, at first
_MOST_WINDOWS = 16 * MOST_BYTES  # bytes of events in a micro-batch that has rows of some tables
_IDLE_SECONDS = 60.0  # after which events without a row for the query are given up to the store
_SYNC_SECONDS = 2.0  # for the disk to have the end of a micro-batch
_STALL = 3.0  # seconds without the end of a transaction after which its producer may be waiting for free space


class BatchLimit(NamedTuple):
    """Most rows and most encoded bytes of a micro-batch; None is no limit but the planner's own."""

    rows: int | None = None
    size: int | None = None


class BatchPlanner:
    """Plans the micro-batches of one query."""

    def __init__(self, owner: SubscriptionOwner, scan: TableScan | None = None) -> None:
        self._owner = owner
        self._scan = scan  # None: the query reads all tables
        self.ends_at_turn = False  # whether the last end that was found is in front of rows that a typed query's plan is not for
        self._empty = (0, -1, -1, 0.0)  # epoch, start, and last event of a run without a row for the query; since when
        self._epoch = 0  # of what the scan has seen
        self._end = -1  # of the micro-batch that was planned last
        self._planned: tuple[int, int, np.ndarray[Any, Any]] | None = None  # epoch, first event, and where each event ends
        self._stall = (-1, -1, 0.0)

    def end_after(self, base: int, limit: BatchLimit, frozen: int | None) -> int:
        """Return the last sequence of the micro-batch that follows `base`; `base` itself if there is no whole transaction yet.

        It is the last transaction end within `limit` (and half the ring, without a log), after at least one transaction, and never
        beyond `frozen`. Raises `SchemaChanged` where the next row has other columns than a typed query's plan.
        """
        if self._scan is None:
            return self._window(base, limit, frozen)
        self._end = self._end_with_rows(self._scan, base, limit, frozen)
        return self._end

    def _end_with_rows(self, scan: TableScan, base: int, limit: BatchLimit, frozen: int | None) -> int:
        """As `end_after`, of a query that does not read all tables: events are looked at in windows that grow, until there are rows enough."""
        store = self._owner.store
        self._look_anew(scan, store)
        most_rows, most_bytes = limit.rows or sys.maxsize, limit.size or (MOST_BYTES if limit.rows is None else sys.maxsize)
        at = self._empty[2] if self._empty[:2] == (store.epoch, base) else base
        window = MOST_BYTES if limit.rows is None and most_bytes >= MOST_BYTES else _WINDOW
        most_looked = max(_MOST_WINDOWS, limit.size or 0)
        rows = size = looked = 0
        turn, self.ends_at_turn = None, False
        while (until := self._window(at, BatchLimit(None, window if store.has_log else None), frozen)) > at:
            slots = store.slots(at + 1, until)
            counts, turn = scan.look(store, at + 1, until)
            slots = slots[: len(counts)]
            sizes = np.where(counts > 0, slots["size"], 0)
            all_rows, all_bytes = rows + np.cumsum(counts), size + np.cumsum(sizes, dtype=np.int64)
            within = min(int(np.searchsorted(all_rows, most_rows, "right")), int(np.searchsorted(all_bytes, most_bytes, "right")))
            points = np.flatnonzero(slots["flags"] & int(SlotFlag.ACK_POINT))
            if not len(points) and len(counts):  # a part of a transaction
                points = np.array([len(counts) - 1])
            fitting = points[points < within]
            if within < len(counts):
                if len(fitting) and all_rows[fitting[-1]]:
                    return at + 1 + int(fitting[-1])
                if rows:
                    return at
                # one transaction is larger than the limits
                end = int(points[min(int(np.searchsorted(points, within)), len(points) - 1)])
                self.ends_at_turn = turn is not None and bool(all_rows[end] == all_rows[-1])
                return at + 1 + end
            if len(points):
                rows, size = int(all_rows[points[-1]]), int(all_bytes[points[-1]])
                at += 1 + int(points[-1])
            looked += int(slots["size"].sum(dtype=np.int64))
            if turn is not None or not store.has_log or (rows and looked >= most_looked):
                break
            window = min(2 * window, MOST_BYTES)
        if rows:
            self.ends_at_turn = turn is not None
            return at
        if turn is not None:
            raise SchemaChanged(_changed(scan, turn))
        return self._end_without_rows(base, at)

    def follow_to(self, base: int) -> None:
        """Know what the DDLs up to `base` did to a typed query's columns: the store may let go of these events when they are acked."""
        if self._scan is not None:
            self._look_anew(self._scan, self._owner.store)
            self._scan.catch_up(self._owner.store, base)

    def _look_anew(self, scan: TableScan, store: EventStore) -> None:
        """Have the scan begin again where the store was re-created: the same events have other sequences."""
        if self._epoch != store.epoch:
            if self._epoch:
                scan.begin_anew(self._end)
            self._epoch = store.epoch

    def _end_without_rows(self, base: int, end: int) -> int:
        """`base`, so that no micro-batch is run; now and then `end`, so that the store need not keep these events for the query."""
        store, now = self._owner.store, time.monotonic()
        since = self._empty[3] if self._empty[:2] == (store.epoch, base) else now
        self._empty = (store.epoch, base, end, since)
        if end == base:
            return base
        kept = store.cursor_at(end).bytes - store.cursor_at(base).bytes
        full = kept >= MOST_BYTES if store.has_log else 4 * kept >= store.limit_bytes or 4 * (end - base) >= store.capacity
        return end if full or now - since >= _IDLE_SECONDS else base

    def names(self, first: int, last: int) -> tuple[tuple[int, Names], ...]:
        """The names that a typed query's columns have in a micro-batch: `TableScan.names`. Raises `SchemaChanged` where the plan is not for its rows."""
        scan, store = self._scan, self._owner.store
        if scan is None or not scan.is_typed:
            return ()
        self._look_anew(scan, store)
        if not scan.has_looked(first, last):  # it was planned before the query was started
            scan.catch_up(store, first - 1)
            rows, turn = scan.look(store, first, last)
            if turn is not None:
                raise SchemaChanged(_changed_within(turn, begins=not rows.any()))
        return scan.names(first, last)

    def _window(self, base: int, limit: BatchLimit, frozen: int | None) -> int:
        """As `end_after`, whatever the events are."""
        store, subscription = self._owner.store, self._owner.subscription
        last = store.newest if frozen is None else min(frozen, store.newest)
        if last <= base or (subscription is not None and subscription.paused):
            return base
        if store.has_log:
            found, fit = self._end_in_log(base, limit, last)
            end = self._on_disk(base, found)
            return end if end > base or not self._stalled(base, last) else self._cut_in_log(base, fit, last)
        if self._owner.has_several:
            return base + self._end_of_several(base, limit, last)
        events, size = max(1, store.capacity // 2), max(1, store.limit_bytes // 2)
        batch = self._look(base, min(events, last - base), size)
        ends, fit = batch.ends, len(batch)
        self._planned = (store.epoch, base + 1, ends)
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

    def _end_in_log(self, base: int, limit: BatchLimit, last: int) -> tuple[int, int]:
        """As `end_after`, of a store with a log; and how many events are within `limit`."""
        store, at, found = self._owner.store, base + 1, base
        most_bytes = limit.size or (MOST_BYTES if limit.rows is None else sys.maxsize)
        most_rows = limit.rows or sys.maxsize
        parts, size, rows, fit = [np.empty(0, np.int64)], 0, 0, 0
        while at <= last:
            slots = store.slots(at, min(last, at + _LOOK - 1))
            ends, counts = size + np.cumsum(slots["size"], dtype=np.int64), rows + np.cumsum(slots["rows"], dtype=np.int64)
            within = min(int(np.searchsorted(ends, most_bytes, "right")), int(np.searchsorted(counts, most_rows, "right")))
            points = np.flatnonzero(slots["flags"] & int(SlotFlag.ACK_POINT))
            if len(fitting := points[points < within]):
                found = at + int(fitting[-1])
            elif within < len(slots) and found == base and len(points):
                found = at + int(points[0])  # one transaction larger than the limits
            parts.append(ends)
            fit += within if fit == at - base - 1 else 0
            size, rows, at = int(ends[-1]), int(counts[-1]), at + len(slots)
            if within < len(slots) and found > base:
                break
        self._planned = (store.epoch, base + 1, np.concatenate(parts))
        return found, fit

    def _cut_in_log(self, base: int, fit: int, last: int) -> int:
        """An end on disk within a transaction whose own end may never be there, after about `fit` events; `base` where it may, or where there is none yet."""
        store = self._owner.store
        synced = min(last, store.sync(last, 0))
        if synced <= base or not self._may_be_cut(base, last):
            return base
        fit = max(1, min(fit, synced - base))
        return multi_source.cut_after(store, base, fit, synced) if self._owner.has_several else base + fit

    def _may_be_cut(self, base: int, last: int) -> bool:
        """Whether the end of a transaction may never be on disk: the producer, or the log, has no free space before this query acks more than
        `base`; or the events have no kind, as other users put them."""
        store = self._owner.store
        stat = store.stat()
        full = stat.space_wanted is not None or (stat.producer_alive and stat.log is not None and bool(stat.log.trouble))
        holds = stat.slowest is None or stat.slowest.ack.sequence >= base
        return (full and holds) or not store.slots(last, last)["entry"][0]

    def _on_disk(self, base: int, end: int) -> int:
        """`end`, or the last transaction end before it that is on disk."""
        store = self._owner.store
        if end == base or (synced := store.sync(end, _SYNC_SECONDS)) >= end:
            return end
        if synced <= base:
            return base
        points = np.flatnonzero(store.slots(base + 1, synced)["flags"] & int(SlotFlag.ACK_POINT))
        return base + 1 + int(points[-1]) if len(points) else base

    def _end_of_several(self, base: int, limit: BatchLimit, last: int) -> int:
        """How many events after `base`, up to `last`, the limits allow in a store of several sources, to the end of a transaction or
        of a part.

        At most a quarter of the ring, so that the batch can be replayed if the store is lost: the re-created ring must hold its
        events in another order, with others between them.
        """
        store, first, left = self._owner.store, base + 1, last - base
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
        """Return the events after `base`, without a copy of their payloads where possible."""
        subscription = self._owner.subscription
        if subscription is not None and subscription.ack_cursor.sequence == base and not self._owner.store.ddl_isolation:
            subscription.rollback()  # this moves the get cursor, which only the owner uses
            return subscription.get(limit_events=events, limit_bytes=size, timeout=0)
        return self._owner.store.peek(base + 1, limit_events=events, limit_bytes=size)

    def ends(self, first: int, last: int) -> np.ndarray[Any, Any]:
        """Return where each of the events `first` to `last` ends, in bytes after the beginning of `first`."""
        store = self._owner.store
        if self._planned is not None and self._planned[:2] == (store.epoch, first) and len(self._planned[2]) > last - first:
            return self._planned[2][: last - first + 1]
        if store.has_log:
            return np.cumsum(store.slots(first, last)["size"], dtype=np.int64)
        return events_between(store, first, last).ends

    def _stalled(self, base: int, last: int) -> bool:
        """True if a transaction's end has not come for a while: its producer may be waiting until this query acks something."""
        now = time.monotonic()
        if self._stall[:2] != (base, last):
            self._stall = (base, last, now)
        return now - self._stall[2] > _STALL


def events_between(store: EventStore, first: int, last: int) -> Batch:
    """Return the events `first` to `last`. Raises `PositionNotFound` if some are no longer in the store."""
    batch = store.peek(first, limit_events=last - first + 1)
    if batch.last < last and not batch.oversized:
        raise PositionNotFound(f"store {store.name!r} has only events {first} to {batch.last} of {first} to {last}")
    return batch


def _changed(scan: TableScan, turn: ColumnTurn) -> str:
    again = "" if scan.follows else ", or with schemaChanges=follow, which reads over such a DDL"
    return (
        f"{turn.table.database}.{turn.table.table} has other columns from {turn.where} on than this query was planned with: {turn.why}. "
        f"All rows before are read. Load the frame again and start the query: it continues there, with the columns of these rows{again}"
    )


def _changed_within(turn: ColumnTurn, *, begins: bool) -> str:
    """What to say where a micro-batch that Spark has logged, and must run again, has rows that the plan is not for."""
    fix = (
        "Load the frame again and start the query: it is then planned with the columns of these rows"
        if begins
        else "It was planned across that DDL: start the query with schemaChanges=follow until it has read it, its checkpoint stays good"
    )
    return (
        f"the last micro-batch must be run again, and {turn.table.database}.{turn.table.table} has other columns at {turn.where} than this query "
        f"is planned with now: {turn.why}. {fix}"
    )
