"""EventStore: a ring in named shared memory, its waiting, its roles and its subscriptions."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from shmstore.encoding import codec
from shmstore.encoding.checksum import with_checks
from shmstore.errors import ProducerInUse, StoreClosed, StoreError, StoreFull
from shmstore.event import Position
from shmstore.home import identity, kinds
from shmstore.home.acks import NOWHERE, Checkpoint, CheckpointFile, acks_of
from shmstore.home.append_lock import AppendLock
from shmstore.home.home import Home
from shmstore.log.keeper import FLUSHING, Keeper
from shmstore.log.trim import Trimmed, trim
from shmstore.memory import segment
from shmstore.memory.create_options import DEFAULT_CAPACITY, DEFAULT_LOG_KEEP, DEFAULT_LOG_SIZE, DEFAULT_MEMORY_UNIT, checked
from shmstore.memory.deadline import Deadline
from shmstore.memory.layout import DISARMED, LOCK_PRODUCER, LOCK_TABLE, BatchMode, StoreFlag, StoreState, header_word
from shmstore.memory.locks import Lock, Ownership
from shmstore.memory.ordering import ASYMMETRIC, fence
from shmstore.memory.segment import Closed, Segment
from shmstore.memory.semaphores import Condition
from shmstore.ring import overflow
from shmstore.ring.cursors import ACK_WANTED, ARMED, PUT, SYNC_WANTED, SYNCED, armed_readers, spared
from shmstore.ring.put_request import Events, Unclaimed, admit, listed
from shmstore.ring.wakeups import Wakeups
from shmstore.ring.writer import Writer, plain_slots, writer_of
from shmstore.start_position import Start
from shmstore.store import lookup
from shmstore.store.backpressure import Backpressure
from shmstore.store.cursor_repair import repair_cursors
from shmstore.store.reader_place import ReplayFilter
from shmstore.store.removal import remove
from shmstore.store.restore import attached, catch_up, made, resized
from shmstore.store.stats import StreamStat, note_heartbeat, note_producer
from shmstore.store.subscription import Subscription
from shmstore.store.subscription_table import SubscriptionTable
from shmstore.store.view import StoreView

STATE: Final = header_word("state")
LIVE: Final = int(StoreState.LIVE)

_open_stores: weakref.WeakSet[EventStore] = weakref.WeakSet()


class EventStore(StoreView):
    """A ring of events in named shared memory: one producer puts, many subscriptions get and ack, each at its own pace.

    Make one with `create` or `attach`. An object serves one thread at a time; other threads and processes attach by name. A forked child
    must attach again, because its parent keeps the roles.
    """

    def __init__(self, mapped: Segment, state: str | os.PathLike[str] | None = None) -> None:
        super().__init__(mapped, state)
        self._lock = Lock(mapped.fd, LOCK_TABLE, Condition(mapped.views.fixed, header_word("lock")))
        self._table = SubscriptionTable(mapped, self._lock, self.home)
        self._wakeups = Wakeups(mapped)
        self._backpressure = Backpressure(mapped, self._table, self._wakeups.freed, self._wakeups.notify)
        self._producer = Ownership(mapped.fd, LOCK_PRODUCER)
        self._writer: Writer = Unclaimed(self._claimed)  # type: ignore[assignment]
        self._gave_up = False  # the last put raised StoreFull, and its wish for free space is still there
        self._checksum = bool(mapped.flags & StoreFlag.CHECKSUM)
        self._subscriptions: set[Subscription] = set()  # owned until they are closed, even when no other process holds them
        self._keeper: Keeper | None = None  # of the producer of a store with a log
        # Held from the look whether the store is there until the cursor is moved: the keeper of a store that was taken away does not end
        # between the two. The compiled puts need none, as they do both without giving the interpreter lock away.
        self._putting = threading.RLock()
        _open_stores.add(self)

    # ------------------------------------------------------------ create, attach, unlink, close

    @classmethod
    def create(
        cls,
        name: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        memory_unit: int = DEFAULT_MEMORY_UNIT,
        batch_mode: BatchMode = BatchMode.MEMSIZE,
        ddl_isolation: bool = False,
        lag: str = "block",
        evict_after: float = 30.0,
        mode: int = 0o600,
        group: str | int | None = None,
        path: str | os.PathLike[str] | None = None,
        checksum: bool | None = None,
        first_sequence: int = 0,
        log: bool = True,
        log_size: int = DEFAULT_LOG_SIZE,
        log_keep: float = DEFAULT_LOG_KEEP,
        state: str | os.PathLike[str] | None = None,
    ) -> EventStore:
        """Create a store, and attach to it.

        Behind the ring is a log on disk, in the store's home, ``STATE/NAME``. The same calls read from it what has left the ring. After a
        reboot the first process that attaches restores the store from its home. Raises `StoreExists`, `StoreError`, and ValueError for
        options that are not valid.

        Args:
            name: The store's name.
            capacity: The most events in the ring, a power of two.
            memory_unit: Bytes; ``capacity * memory_unit`` is the ring's space for payloads, in both batch modes.
            batch_mode: Whether events alone bound the ring (ITEMSIZE), or their bytes, too (MEMSIZE).
            ddl_isolation: Whether a DDL comes alone in a batch.
            lag: Where unacked events of a subscription fill the log (without one, the ring): "block" the producer, or "evict" it `evict_after`
                seconds later.
            mode: The rights of memory and home, as those of a file; they belong to `group`, by name or number.
            path: A file for the ring, instead of shared memory.
            checksum: Whether each event has a CRC-32; None: only with `path`.
            first_sequence: The sequence of the first event.
            log: Whether there is a log; without one the store is the ring alone.
            log_size: The most bytes of the log. At this size events that all subscriptions have acked go before `log_keep`.
            log_keep: Seconds after a put for which the log keeps an event. What some subscription has not acked stays longer.
            state: The folder of homes; None: `state_directory()`.
        """
        options = checked(
            capacity=capacity,
            memory_unit=memory_unit,
            batch_mode=batch_mode,
            ddl_isolation=ddl_isolation,
            lag=lag,
            evict_after=evict_after,
            checksum=path is not None if checksum is None else checksum,
            first_sequence=first_sequence,
            home=os.fspath(Home.of(name, state)) if log else "",
            log_size=log_size,
            log_keep=log_keep,
        )
        return cls(made(name, options, path=path, mode=mode, group=group), state)

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        path: str | os.PathLike[str] | None = None,
        state: str | os.PathLike[str] | None = None,
        restore: bool = True,
    ) -> Self:
        """Attach to a store by name. A store that is in its home and not in memory, as after a reboot, is restored, unless `restore` is False.

        `path` is the file of a store in a file, `state` the folder of homes (None: `state_directory()`). Raises `StoreNotFound`,
        `LayoutMismatch` for a store of another version, and `StoreError` where this user has no right to it.
        """
        store = cls(attached(name, path=path, state=state, restore=restore), state)
        if store._checksum and not store.segment.home:  # only file-backed stores come back from a crash of the whole host
            repair_cursors(store.segment, store._lock)
        return store

    @staticmethod
    def unlink(
        name: str,
        *,
        path: str | os.PathLike[str] | None = None,
        force: bool = False,
        log: bool = False,
        state: str | os.PathLike[str] | None = None,
    ) -> None:
        """Remove a store's memory. Processes that are attached get `StoreClosed` from their next put or wait. Raises `StoreNotFound`.

        The next process that attaches restores the store from its home; with `log` the log and the rest of the home go, too.

        Raises `LayoutMismatch` for a damaged store, or one of another version, that a process uses: it would not notice. `force` removes it.
        """
        remove(name, path=path, force=force, log=log, state=state)

    def undo_create(self) -> None:
        """Remove a store that is of no use, its memory and its log, as its producer. Its home keeps the checkpoints of an earlier store.

        Raises `ProducerInUse`, `StoreError`."""
        self.claim()
        segment.unlink(self.name, path=self.segment.path, force=False)
        if self.has_log:
            with AppendLock.take(self.home, FLUSHING):  # once the keeper has seen that the memory is gone
                kinds.remove_log(self.home, self.epoch)

    def close(self) -> None:
        """Release all roles that this object holds, its memory, and the files of the log. The store stays. Idempotent.

        Batches that are still held stay valid, and keep what they need of both.
        """
        if self._closed:
            return
        with ExitStack() as rest:  # whatever happens to the others, as where the disk refuses one's checkpoint
            rest.callback(self._let_go)
            rest.callback(self._retire)
            if self._producer.held:
                rest.callback(self._resign)
            for subscription in list(self._subscriptions):
                rest.callback(subscription.close)

    def _resign(self) -> None:
        """Give the producer role up; what was put is in the log then, and on disk."""
        try:
            if self._keeper is not None:
                self._keeper.close(FLUSHING)
        finally:
            self._keeper = None
            self._words[header_word("producer_pid")] = 0
            self._producer.release()

    def _retire(self) -> None:
        self._closed = True
        if not isinstance(self._writer, Unclaimed):
            self._writer.close()
        self._writer = Closed(f"store {self.name!r} is closed: attach again")  # type: ignore[assignment]

    def _let_go(self) -> None:
        super()._let_go()
        _open_stores.discard(self)
        # All that has the memory in it: nothing is left to the collector of cycles, which may come late, or not at all.
        self._lock = self._table = self._wakeups = self._backpressure = self._writer  # type: ignore[assignment]

    def _abandon(self) -> None:
        """In a forked child: the parent keeps every role, so this copy must not touch a cursor again."""
        if self._closed:
            return
        for subscription in list(self._subscriptions):
            subscription._retire()
        if self._keeper is not None:
            self._keeper.abandon()
            self._keeper = None
        self._retire()

    # ------------------------------------------------------------ put

    def claim(self, *, start: Position | None = None) -> None:
        """Become the producer. Idempotent; the first `put` does it, too. Raises `ProducerInUse` while another producer lives.

        An empty store notes `start`, where the source was opened, so that `find` can tell "before the first event" from "lost". A producer
        that learns it only after its claim calls again. What a killed producer left half done was never visible, and is overwritten.
        """
        self._check_open()
        if not self._producer.acquire():
            pid = self._words[header_word("producer_pid")]
            if not pid:
                raise ProducerInUse(f"store {self.name!r} has a producer that begins or ends right now: try again in a moment")
            raise ProducerInUse(f"store {self.name!r} has a producer already (pid {pid}): stop it first, or choose another store")
        if start is not None and self._words[PUT] == self._views.first - 1:
            lookup.note_start(self.segment, start)
            if self.segment.home:
                identity.note_start(self.home, start)
        if not isinstance(self._writer, Unclaimed):
            return
        if (
            self.segment.home and not self.segment.linked
        ):  # the log is another's by now, or no process's: what is put would be lost
            self._producer.release()
            raise self._removed()
        note_producer(self.segment)
        self._words[ACK_WANTED] = DISARMED
        if self.segment.home:
            self._open_log()
        overflow.remove_orphans(self.segment)
        with self._table.locked():
            self._writer = writer_of(self._views)
        self._writer.may_put = not self._checksum

    def _open_log(self) -> None:
        """Append to the log from here on, in threads of this process. Raises `StoreError` where it cannot be written."""
        keeper = Keeper(self.segment, self._table, self._putting)
        try:
            keeper.check()
            catch_up(self._views, keeper.files, keeper.tail)
            keeper.start()
        except BaseException:
            keeper.close(0.0)
            self._producer.release()
            raise
        self._keeper = keeper

    def _claimed(self) -> Writer:
        self.claim()
        return self._writer

    def put(self, events: Events, *, timeout: float | None = None) -> int:
        """Store one event or a list of them, in order, all or nothing; return the sequence of the last.

        An event is an `Event`, or bytes of your own (bytes, bytearray or memoryview). Waits for free space up to `timeout` seconds: None
        without a limit, 0 not at all. Raises `StoreFull` at the deadline, `BatchTooLarge` where the list can never fit, ValueError or TypeError
        for values that do not fit their columns, `ProducerInUse`, `StoreClosed`. After an error or an interrupted wait nothing is stored.
        """
        if (sequence := self._writer.try_put(events)) is not None:
            return sequence
        if type(events) is not bytes or self._checksum or not self._put_one(events):
            encoded, payloads = listed(events)
            if encoded:
                return self.put_encoded(*codec.encode_batch(encoded), timeout=timeout)
            return self.put_encoded(b"".join(payloads), plain_slots(payloads), timeout=timeout)
        return self._published() if self._words[ARMED] or not ASYMMETRIC else self._writer.put

    def _put_one(self, payload: bytes) -> bool:
        """Publish one payload where nothing is unusual about it; False where it must go the long way, nothing was written."""
        writer = self._writer
        with self._putting:
            if self._words[STATE] != LIVE:
                raise self._removed()
            try:
                done = writer.put_one(payload)
            except BaseException:
                self._resync()
                raise
            if done and self._gave_up:
                self._withdraw()
        return done

    def put_encoded(self, blob: bytes | memoryview, slots: NDArray[np.void], *, timeout: float | None = None) -> int:
        """Store events that are encoded already: `blob` has their payloads back to back, `slots` a record for each, dtype `SLOT`, shape (n,).

        The caller fills in size, rows, time, file, offset, flags, entry and type. Otherwise as `put`.
        """
        writer = self._writer
        if (sequence := writer.try_put_encoded(blob, slots)) is not None:
            return sequence
        n = len(slots)
        if n == 0:
            return self._words[PUT]
        with self._putting:
            if self._words[STATE] != LIVE:
                raise self._removed()
            slots, sizes, total, oversized = admit(self.segment, blob, slots, writer.put)
            if self._checksum:
                slots = with_checks(blob, slots, writer.put + 1)
            try:
                if oversized:
                    self._backpressure.wait(writer, n, total, Deadline(timeout))
                    overflow.remove_orphans(self.segment)  # of readers that were evicted, or had no right to remove them
                    overflow.write(self.segment, writer.put + 1, blob)
                    lookup.note_oversized(self.segment, blob)
                    writer.announce_oversized()
                    writer.put_encoded(b"", slots, sizes)
                elif not writer.put_encoded(blob, slots, sizes):
                    self._backpressure.wait(writer, n, total, Deadline(timeout))
                    writer.put_encoded(blob, slots, sizes)
            except StoreFull:
                self._gave_up = True
                self._writer.may_put = False  # until the wish is taken back
                self._resync()
                raise
            except BaseException:
                self._resync()
                raise
            if self._gave_up:
                self._withdraw()
        return self._published()

    def _withdraw(self) -> None:
        """Take back the wish of a put that gave up: one after it has found free space, so no process holds this producer up."""
        self._gave_up = False
        self._words[ACK_WANTED] = DISARMED
        self._writer.may_put = not self._checksum

    def _published(self) -> int:
        """Wake the processes that wait for what was put. It may not fail: the process that puts again after an error puts twice."""
        if not ASYMMETRIC:
            fence()  # the cursor, before the look at who waits: see Subscription._await
        if self._words[ARMED]:
            self._wakeups.notify(armed_readers(self._views, everyone=False))
        return self._writer.put

    def _resync(self) -> None:
        if not isinstance(self._writer, Unclaimed):
            self._writer.resync()

    def heartbeat(self, source: str = "", position: Position | None = None, stream: StreamStat | None = None) -> None:
        """Say that the producer lives, what it reads from, how far it has read, and how its stream goes: about once a second, for `stat`.

        Raises `StoreClosed` where the store was removed, or this is not its producer.
        """
        self._check_open()  # a producer that has nothing to put learns here that the store is gone
        if not self.segment.look():  # by another process that does not know what it was: `rm`, or logind at the end of a session
            raise self._removed()
        if not self._producer.held:
            raise StoreClosed(f"only the producer of store {self.name!r} can give its heartbeat: claim() first")
        note_heartbeat(self.segment, source, position, stream)

    # ------------------------------------------------------------ wake-ups

    def _wake_producer(self) -> None:
        """Wake the producer that waits for free space."""
        self._wakeups.freed.notify()

    def _free_oversized(self, after: int) -> None:
        """Free the segments of oversized events after `after` that all subscriptions have acked."""
        overflow.free(self.segment, after)

    # ------------------------------------------------------------ subscriptions

    def subscribe(
        self, name: str, *, start: Start = "earliest", checkpoint: CheckpointFile | None = None, checkpoint_interval: float = 1.0
    ) -> Subscription:
        """Own the subscription `name` until `Subscription.close` or the death of this process. A known one continues after its ack.

        A new one begins at `start`: "earliest", "latest", the sequence of the first event wanted, a `Position` (the first event after it), a
        datetime (the first transaction that ends then or later), or one of these as text, as `shmstore.start_position` lists them.

        With a log the subscription is durable from here on: its ack is in the home, at most `checkpoint_interval` seconds behind and never
        ahead of what is on disk; `checkpoint` only says where a new one begins. Without a log `checkpoint` is the file of the acked
        position, written at most every `checkpoint_interval` seconds and at close: a new subscription continues from it, and does not get
        again what it had acked in an earlier life of the store. Raises `SubscriptionInUse`, `SubscriptionLost`, `PositionNotFound`.
        """
        self._check_open()
        saved = checkpoint.load() if checkpoint is not None else None
        if self.segment.home:
            checkpoint = self._durable(name)
            saved = checkpoint.load() or saved
        if saved is not None and saved.epoch != self.epoch and saved.position == NOWHERE:
            saved = None  # of a store of this name that was removed with its log
        of_ours = saved is not None and saved.epoch == self.epoch
        passed = None
        if saved is not None and (not of_ours or (self.segment.home and saved.position != NOWHERE)):
            passed = ReplayFilter(
                saved.position
            )  # with a log the position stays there until all of that earlier life has come again
        begin = start if saved is None else saved.sequence + 1 if of_ours else passed or start
        before = spared(self._views)
        entry, owner = self._table.take(name, begin)
        woken = self._wakeups.condition(entry)
        subscription = Subscription(self, name, entry, owner, woken, checkpoint, checkpoint_interval, passed)
        self._subscriptions.add(subscription)
        if self.segment.home:
            try:
                durable = self._durable(name).load()  # again, now that it is ours: the owner before may have written meanwhile
                subscription._remember(durable.sequence if durable is not None and durable.epoch == self.epoch else None)
            except BaseException:
                subscription.close()
                raise
            return subscription
        self._free_oversized(before)  # entry 0 may have been what held them, and the producer, up
        if self._words[ACK_WANTED] != DISARMED:
            self._wake_producer()
        return subscription

    def _durable(self, name: str) -> CheckpointFile:
        """Where a subscription's durable ack is, of a store with a log."""
        return CheckpointFile.of(self.home, name)

    def may_produce(self) -> bool:
        """Return True while this is the producer, and no other store has taken this one's place: only then may it write into the home
        (`Home.replace`). Raises `StoreClosed` otherwise."""
        if not self._producer.held or self.segment.replaced:
            raise StoreClosed(
                f"store {self.name!r} has another producer by now, or was made again: nothing is written into {self.home.path}"
            )
        return True

    def seek(self, name: str, start: Start) -> int:
        """Let the subscription `name`, which no process reads, continue at `start`, in a store with a log; return the sequence before that.

        Raises `SubscriptionNotFound`, `SubscriptionInUse`, `PositionNotFound`, and `StoreError` for a store without a log.
        """
        self._check_open()
        if not self.segment.home:
            raise StoreError(f"store {self.name!r} has no log: acked events are gone, so no reader can go back")

        def note(acked: int) -> None:
            self._durable(name).save(Checkpoint(NOWHERE, self.epoch, min(acked, self.sync(acked))), may=self._is_ours)

        return self._table.move(name, start, note)

    def resize(
        self,
        *,
        capacity: int | None = None,
        memory_unit: int | None = None,
        log_size: int | None = None,
        log_keep: float | None = None,
    ) -> bool:
        """Change the sizes of a store with a log, durably; None leaves one as it is. Return whether all of them hold already.

        The log's sizes hold at once. The ring keeps its sizes until the store is restored: after a reboot, or with `unlink` and `attach` when no
        process uses it (`in_use`). Raises `StoreError` without a log or where memory is short; ValueError as `create`.
        """
        self._check_open()
        return resized(self.segment, capacity=capacity, memory_unit=memory_unit, log_size=log_size, log_keep=log_keep)

    @property
    def in_use(self) -> bool:
        """True while a process produces into the store, or reads as a subscription, in this process or another."""
        return segment.has_users(self.segment.where)

    def trim(self, before: Start) -> Trimmed:
        """Remove whole files of the log, except the newest, that have only events before `before`, all acked by every subscription.

        Retention does this automatically. Raises `PositionNotFound`, and `StoreError` for a store without a log or where the disk refuses.
        """
        self._check_open()
        if not self.segment.home:
            raise StoreError(f"store {self.name!r} has no log: it keeps nothing that every reader has acked")
        sequence = lookup.first_wanted(self.segment, before)
        self.sync()  # what stays is on disk before anything goes
        acks = acks_of(self.home)
        saved = {name: file.sequence for name, file in acks.saved.items() if file.epoch == self.epoch}
        saved |= dict.fromkeys(acks.unreadable, self.oldest - 1)  # it may be anywhere
        acked = ((each.name, each.ack.sequence) for each in self.subscriptions() if each.state == "active")
        durable = ((name, min(ack, saved.get(name, ack))) for name, ack in acked)
        return trim(self.segment, self._table, sequence, min(durable, key=lambda each: each[1], default=None))

    # ------------------------------------------------------------ the log, for subscriptions

    def _hold(self, entry: int, sequence: int) -> None:
        """Let the cursors of a subscription stand at `sequence`, and the log keep what follows. Raises `PositionNotFound`."""
        self._table.hold(entry, sequence)

    def sync(self, sequence: int | None = None, timeout: float = 10.0) -> int:
        """Wait up to `timeout` seconds until the log has everything up to `sequence` on disk (None: all that was put); return the last
        sequence on disk, -1 where there is none, and always without a log."""
        words = self._words
        if not self.segment.home:
            return -1
        sequence = words[PUT] if sequence is None else sequence
        until = time.monotonic() + timeout
        while (synced := words[SYNCED]) < sequence:
            words[SYNC_WANTED] = max(words[SYNC_WANTED], sequence)  # of two who write at once, one writes again
            self._wakeups.notify([0])
            Condition(self._views.fixed, header_word("keeper")).notify()
            if time.monotonic() >= until:
                break
            if not self._producer.taken():
                self._flush()
                return words[SYNCED]
            time.sleep(0.001)
        return synced

    def _flush(self) -> None:
        """Put what a dead producer left in the ring into the log, if no other process does."""
        with suppress(StoreError):  # a process appends after all, or no process can: then it is not on disk
            keeper = Keeper(self.segment, self._table, self._putting)
            try:
                keeper.check()
                keeper.start()
            finally:
                keeper.close(FLUSHING)

    def _disown(self, subscription: Subscription) -> None:
        """Forget a subscription that was closed."""
        self._subscriptions.discard(subscription)

    def pause(self, subscription: str, by: str = "") -> None:
        """Give the reader of a subscription no events until `resume`, also after restarts; `by` is the user that asks, for the audit.

        What it has not acked is kept meanwhile. Raises `SubscriptionNotFound`, `StoreError`.
        """
        self._check_open()
        self._table.pause(subscription, by)

    def resume(self, subscription: str) -> None:
        """Undo `pause`. Raises `SubscriptionNotFound`, `StoreError`."""
        self._check_open()
        self._wakeups.notify([self._table.resume(subscription)])

    def unsubscribe(self, name: str) -> None:
        """Forget a subscription that no process reads. Raises `SubscriptionNotFound`, `SubscriptionInUse`.

        Without a log, what the last subscription had not acked is kept for the next one, unless that held up the producer.
        """
        self._check_open()
        # While no process can own it, or what a new reader of that name has just written would go.
        self._freeing(lambda: self._table.remove(name, lambda: self._durable(name).remove() if self.segment.home else None))

    def clear(self) -> None:
        """Discard everything that is not acked, for all subscriptions. Raises `SubscriptionInUse` while a process reads one."""
        self._check_open()
        self._freeing(self._table.clear)
        if self.segment.home:
            synced = self.sync()  # no durable ack is ahead of the disk
            for each in self.subscriptions():  # forward: a reader may be there again, and have written its own
                checkpoint = Checkpoint(NOWHERE, self.epoch, min(each.ack.sequence, synced))
                self._durable(each.name).save(checkpoint, may=self._is_ours, forward=True)

    def _is_ours(self) -> bool:
        """True while no other segment has taken this one's place."""
        return not self.segment.replaced

    def _freeing(self, change: Callable[[], None]) -> None:
        """Change the table, then free what no process holds any more."""
        before = spared(self._views)
        change()
        self._free_oversized(before)
        self._wake_producer()


def _after_fork() -> None:
    for store in list(_open_stores):
        store._abandon()


os.register_at_fork(after_in_child=_after_fork)
