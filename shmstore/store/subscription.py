"""Subscription: a named reader of a store, with a get and an ack cursor of its own."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from contextlib import suppress
from typing import Final

from shmstore.clock import boot_ms
from shmstore.errors import AckError, PositionNotFound, StoreClosed, StoreCorrupt, StoreError, SubscriptionLost
from shmstore.event import Position
from shmstore.home.acks import NOWHERE, Checkpoint, CheckpointFile
from shmstore.memory.deadline import Deadline
from shmstore.memory.layout import DISARMED, StoreFlag, SubscriptionState, subscription_word
from shmstore.memory.locks import WAIT_SLICE, Ownership
from shmstore.memory.ordering import ASYMMETRIC, fence, heavy_fence
from shmstore.memory.segment import Closed
from shmstore.memory.semaphores import Condition
from shmstore.ring.cursors import (
    ACK_WANTED,
    ACTIVE,
    ARMED,
    OVERSIZED,
    PAUSED_OF,
    PUT,
    STATE_OF,
    WANTED_OF,
    Cursor,
    ack_is_wanted,
)
from shmstore.ring.reader import reader_of
from shmstore.start_position import Start
from shmstore.store import lookup
from shmstore.store.backpressure import SubscribedStore
from shmstore.store.batch import Batch
from shmstore.store.content import cursor_of, slot_of
from shmstore.store.reader_place import ReplayFilter
from shmstore.store.stats import after_eviction

_log = logging.getLogger("shmstore")

NO_LIMIT: Final = 2**62
BUSY: Final = 50e-6  # seconds; after a wait shorter than this, events are likely to come while the next one looks
SPINS: Final = 1000  # looks at the put cursor before a sleep in full flow, of ...
LOOK: Final = 40e-9  # ... so many seconds each
BRIEF: Final = 10e-6  # seconds; a look shorter than this costs less than a sleep (12 us on both sides): the next wait looks, too
CLOSING: Final = 2.0  # seconds that close() waits for the disk
A_MOMENT: Final = 1e-3  # compiled code looks for so long at most before Python may handle a signal


_CLOSED: Final = Closed("the subscription is closed: subscribe again")


class Subscription:
    """A reader's end of a store, with a get and an ack cursor.

        with store.subscribe("audit") as audit:
            batch = audit.get(limit_events=100, timeout=1.0)
            audit.ack(batch)

    `EventStore.subscribe` makes one; this process owns it until `close`. `spin` is how many seconds a get looks for events before it sleeps.
    """

    def __init__(
        self,
        store: SubscribedStore,
        name: str,
        entry: int,
        owner: Ownership,
        condition: Condition,
        checkpoint: CheckpointFile | None,
        checkpoint_interval: float,
        passed: ReplayFilter | None = None,
    ) -> None:
        self.store = store
        self.name = name
        self.entry = entry
        self._owner = owner
        self._views = store.segment.views
        self._segment = store.segment
        self._words = self._views.words
        self._condition = condition
        flags = store.segment.flags
        self._has_log = bool(flags & StoreFlag.LOG)
        self._reader = reader_of(store.segment, entry)
        # Batches are numbered by generation: a rollback starts a new one, and leaves of the older ones only what lies
        # before the sequence it went back to.
        # (g, last): of the generations up to g, and after the entry before, batches up to sequence `last` are valid. Both ascend.
        self._valid: list[tuple[int, int]] = []
        self._passed = passed  # until it is over
        self._careful = bool(flags & (StoreFlag.EVICT | StoreFlag.CHECKSUM)) or passed is not None
        self._checkpoint = checkpoint
        self._interval = checkpoint_interval
        self._unsaved: Checkpoint | None = None
        self._saved = -2  # sequence of the last checkpoint that was written, of a store with a log
        self._refused = False  # by the disk, when the checkpoint was last written
        self._saved_at = 0.0
        self._spins = 0
        self.spin = 0.0
        self._tune()

    def _tune(self) -> None:
        """Say what the reader may try: what has nothing unusual about it."""
        gets = not self._careful and not self._segment.flags & StoreFlag.DDL_ISOLATION
        acks = not self._careful and (self._checkpoint is None or self._has_log)
        self._reader.tune(self._segment, Batch, self._freed, gets, acks, BUSY, SPINS * LOOK, BRIEF)
        if self._has_log:
            self._reader.due = 1  # the first ack is done here, and says when the next is

    # ------------------------------------------------------------ get

    def get(
        self,
        limit: int | None = None,
        *,
        limit_events: int | None = None,
        limit_bytes: int | None = None,
        timeout: float | None = None,
        min_events: int = 1,
    ) -> Batch:
        """Return the next events, and move the get cursor over them. With DDL isolation a DDL comes alone.

        Raises `SubscriptionLost`, `StoreClosed`, `StoreCorrupt`, and ValueError for limits that cannot be met.

        Args:
            limit: Short for `limit_events`: ``get(100)``.
            limit_events: The most events. One event is returned whatever the limits.
            limit_bytes: The most bytes of payload.
            timeout: The most seconds to wait for `min_events`; None: without a limit, 0: not at all.
            min_events: The events to wait for. The wait ends early when the producer waits for free space.

        Returns:
            At the deadline the events so far, perhaps none; none while the subscription is paused (`EventStore.pause`).
        """
        if limit is not None:
            limit_events = limit if limit_events is None else min(limit, limit_events)
        deadline = None
        if limit_bytes is None and min_events == 1:
            taken: Batch | None = self._reader.try_get(limit_events)
            if taken is not None:
                return taken
            if self._reader.may_get and timeout != 0 and not self.spin:
                deadline = Deadline(timeout)
                taken = self._reader.try_wait(limit_events, deadline.left(WAIT_SLICE), WAIT_SLICE)
                if taken is not None:
                    return taken  # else look whether the store is there
        try:
            if min_events == 1 and not self.paused:  # what a reader that keeps up does a million times a second
                first, last = self._reader.take(NO_LIMIT if limit_events is None else limit_events, limit_bytes)
                if last >= first and not self._careful:
                    return Batch(self._segment, first, last, self._reader.generation)
            else:
                first, last = 1, 0
            while True:
                if last < first:
                    events = NO_LIMIT if limit_events is None else limit_events
                    if not 0 < min_events <= min(events, self._views.capacity):
                        raise ValueError(self._why_not(min_events, events))
                    deadline = deadline or Deadline(timeout)
                    if self._await(min_events, deadline):
                        first, last = self._reader.take(events, limit_bytes)
                    else:
                        first, last = self._reader.get + 1, self._reader.get
                batch = Batch(self._segment, first, last, self._reader.generation)
                if not self._careful or not batch:
                    return batch
                batch = self._checked(batch)
                if self._passed is None:
                    return batch
                fresh = self._pass_over(self._passed, batch)
                if fresh and (fresh.first == first or len(fresh) >= min_events):
                    return fresh
                self._reader.get_to(fresh.first - 1)
                first, last = 1, 0  # wait for more
        except (StoreCorrupt, PositionNotFound):
            self._check_state()  # an evicted reader finds nonsense where its events were, or nothing
            raise

    def _why_not(self, min_events: int, events: int) -> str:
        if events < 1:
            return f"the limit is {events} events: give at least 1"
        most = min(events, self._views.capacity)
        return f"min_events is {min_events}: give 1 to {most} (the limit, and the capacity of the store)"

    def _await(self, n: int, deadline: Deadline) -> bool:
        """Wait until `n` events are there, or any while the producer waits for free space; False at the deadline with nothing.

        Lost wake-ups are ruled out by order: wanted, armed, heavy fence, look. The producer publishes, looks at armed.
        """
        words, get, began = self._words, self._reader.get, time.perf_counter()
        wanted_word = WANTED_OF[self.entry]
        if (self._spins or self.spin) and not self.paused and self._spun(n, deadline):
            return self._reader.available() >= n
        try:
            while True:
                if self.paused and not self._resumed(deadline):
                    return False
                words[wanted_word] = get + n
                words[ARMED] = 1
                heavy_fence()
                there = self._reader.available()
                if there >= n or (there and words[ACK_WANTED] != DISARMED):
                    self._waited(began)
                    return True
                self._check_state()
                left = 0.0 if self._reader.interrupted else deadline.left(WAIT_SLICE)
                if left <= 0:
                    self._reader.interrupted = False
                    return there > 0
                self._live_on()
                self._condition.wait(left)
                if words[PUT] >= get + n and not self.paused:  # the usual end of a wait: nothing to arm again
                    self._waited(began)
                    return self._reader.available() >= n
        finally:
            words[wanted_word] = DISARMED

    def _waited(self, began: float) -> None:
        """Say that events came: after a short wait the producer is in full flow, and the next wait looks a while before it sleeps."""
        self._spins = SPINS if time.perf_counter() - began < BUSY else 0

    def _resumed(self, deadline: Deadline) -> bool:
        """Sleep until the subscription is resumed; False at the deadline.

        Who resumes clears the word, then notifies; here the word is looked at before each sleep. So the notice comes before the sleep,
        which then ends at once, or ends it.
        """
        self._words[WANTED_OF[self.entry]] = DISARMED  # no put is to wake it
        while self.paused:
            self._check_state()
            left = 0.0 if self._reader.interrupted else deadline.left(WAIT_SLICE)
            if left <= 0:
                self._reader.interrupted = False
                return False
            self._live_on()
            self._condition.wait(left)
        return True

    def _live_on(self) -> None:
        """Give a sign of life in a wait, and save the checkpoint where it is due: no ack will."""
        self._words[subscription_word(self.entry, "heartbeat_ms")] = boot_ms()
        if self._has_log and self._saved < self._reader.ack and time.monotonic() - self._saved_at >= self._interval:
            with suppress(StoreError):  # the next ack says it
                self.save_checkpoint()

    def _spun(self, n: int, deadline: Deadline) -> bool:
        """Look at the put cursor for a while instead of sleeping; True as soon as `n` events seem to be there."""
        wanted = self._reader.get + n
        began = time.perf_counter()
        until = began + deadline.left(max(self.spin, self._spins * LOOK))
        while self._words[PUT] < wanted:
            left = until - time.perf_counter()
            if left <= 0 or self._reader.interrupted:
                self._spins = 0
                return False
            self._reader.look_for(n, min(left, A_MOMENT))
        if time.perf_counter() - began >= BRIEF:
            self._spins = 0
        return True

    def interrupt(self) -> None:
        """End the wait of the running get, or of the next one that would wait, as its deadline does. For another thread or a signal handler."""
        with suppress(StoreClosed):  # which ends a wait, too
            self._reader.interrupted = True
            self._condition.notify()

    def _check_state(self) -> None:
        state = self._words[STATE_OF[self.entry]]
        if state == SubscriptionState.LOST:
            raise SubscriptionLost(
                f"subscription {self.name!r} of store {self.store.name!r} held the producer up for too long and was evicted after sequence "
                f"{self._reader.ack}: {after_eviction(self.store.name, self.name, has_log=self._has_log)}"
            )
        if state != ACTIVE:
            raise StoreClosed(f"subscription {self.name!r} of store {self.store.name!r} was removed: subscribe again")
        if not self._segment.look():
            raise StoreClosed(f"store {self.store.name!r} was removed: attach again, or create it again")

    def _checked(self, batch: Batch) -> Batch:
        """The batch, known to be whole: copied before a producer that evicts could have overwritten it, checksums right."""
        try:
            if self._segment.flags & StoreFlag.EVICT:
                self._check_state()
                batch = batch.copy()
                fence()  # the copy was made before the state is looked at: still ACTIVE means nothing was overwritten
                self._check_state()
            if self._segment.flags & StoreFlag.CHECKSUM:
                batch.verify()
        except BaseException:
            self._reader.get_to(batch.first - 1)
            raise
        return batch

    def _pass_over(self, passed: ReplayFilter, batch: Batch) -> Batch:
        """The first events of the batch that were not acked in an earlier life of the store; those before them are acked again."""
        lead, fresh = passed.split(batch)
        first = batch.first + lead
        self._reader.get_to(first - 1)
        if lead:
            if self._reader.ack == batch.first - 1:
                self.ack(first - 1)
            else:
                passed.runs[batch.first - 1] = first - 1
        self._reader.get_to(first + fresh - 1)
        if passed.over and not passed.runs:
            self._end_earlier_life()
        if first == batch.first and fresh == len(batch):
            return batch
        rest = Batch(self._segment, first, first + fresh - 1, self._reader.generation)
        return self._checked(rest) if self._careful and rest else rest

    # ------------------------------------------------------------ ack, rollback

    def ack(self, what: Batch | int | Position) -> None:
        """Ack everything up to a batch's last event (an empty one is ignored), a sequence, or a binlog position. Later events stay got.

        Raises `AckError`, moving nothing, where the events were not got, were acked already, or belong to a batch that a rollback took back;
        `SubscriptionLost`; `StoreError` where the disk refuses the checkpoint: the ack counts, and the same call again only writes that."""
        reader = self._reader
        if reader.try_ack(what):
            return
        if isinstance(what, Batch):
            sequence = what.last
            if sequence < what.first:
                return
            if what.generation != self._reader.generation:
                self._check_generation(what)
        elif isinstance(what, Position):
            sequence = self._sequence_of(what)
        else:
            sequence = what
        if self._refused and sequence == reader.ack:
            self.save_checkpoint()  # this ack counted, and raised for its checkpoint alone: a retry is for the checkpoint
            return
        if not reader.ack < sequence <= reader.get:
            raise AckError(
                f"sequence {sequence} cannot be acked: {self.name!r} has acked up to {reader.ack} and got up to {reader.get}"
            )
        if self._careful:
            self._check_state()
            if self._passed is not None:
                sequence = self._passed.behind(sequence, reader.get)
        before = reader.ack
        if self._has_log:
            self._ack_logged(sequence)
            return
        reached = self._checkpoint_at(before, sequence) if self._checkpoint is not None else None
        oversized = self._words[OVERSIZED] > before  # said before the event could be got: nothing that is acked here comes later
        reader.ack_to(sequence)
        if reached is not None:
            self._unsaved = reached  # after the ack: what close() saves is never ahead of it
        if not ASYMMETRIC:
            fence()  # the ack, before the look at who waits for free space: see Backpressure.wait
        if self._words[ACK_WANTED] <= sequence:
            self._freed()
        if oversized:
            fence()  # our ack, before the look at the others': of two at once, one must see both
            self.store._free_oversized(before)
        if self._unsaved is not None and time.monotonic() - self._saved_at >= self._interval:
            self.save_checkpoint()

    def _freed(self) -> None:
        """Wake the producer where it waits for free space, and this ack was the last that it needs. With a log it waits for that alone."""
        if not self._has_log and ack_is_wanted(self._views, self._reader.ack):
            self.store._wake_producer()

    def _ack_logged(self, sequence: int) -> None:
        """Ack in a store with a log, which no process waits for: the producer follows the log, and retention looks on its own."""
        self._reader.ack_to(sequence)
        if time.monotonic() - self._saved_at >= self._interval:
            self.save_checkpoint()
        self._note_due()

    def _note_due(self) -> None:
        """Say from when on an ack is left to `ack` again, which writes the checkpoint."""
        self._reader.due = int((self._saved_at + self._interval) * 1e9)

    def rollback(self, what: Batch | int | None = None) -> None:
        """Give again what was got and not acked: all of it, or from a batch or a sequence on.

        Batches that are taken back cannot be acked any more. Raises `AckError`, moving nothing, as `ack` does.
        """
        reader = self._reader
        to = reader.ack
        if what is not None:
            if isinstance(what, Batch) and what.generation != self._reader.generation:
                self._check_generation(what)
            to = (what.first if isinstance(what, Batch) else what) - 1
            if not reader.ack <= to <= reader.get:
                raise AckError(
                    f"{what!r} cannot be rolled back: {self.name!r} has acked up to {reader.ack} and got up to {reader.get}"
                )
        reader.get_to(to)
        while self._valid and self._valid[-1][1] >= to:
            self._valid.pop()
        self._valid.append((self._reader.generation, to))
        reader.generation += 1
        while len(self._valid) > 1 and self._valid[1][1] <= reader.ack:
            del self._valid[0]  # what it says of older batches, the next one says as well: they are acked

    def seek(self, start: Start) -> None:
        """Continue at `start`, in the forms of `EventStore.subscribe`. What comes before it counts as acked.

        With a log, `start` may be before the ack: what is kept from there on comes again. Without one, "earliest", and a time before the
        ack, mean the first event that is not acked. Afterward events that were acked in an earlier life of the store come again, too.
        Raises `PositionNotFound`, moving nothing, where the event is not kept, not there yet, or, without a log, acked.
        """
        self._check_state()
        last = lookup.first_behind(self._segment, start, self._reader.ack, self.name) - 1
        self.rollback()
        self._end_earlier_life()
        if self._has_log:
            self._go_to(last)
            return
        if last > self._reader.ack:
            self.advance(last)
            self.ack(last)

    def advance(self, sequence: int) -> None:
        """Move the get cursor forward to `sequence`, or to the newest event before it, without reading: for a reader that has these events.

        Raises `SubscriptionLost`, `StoreClosed`."""
        self._check_state()
        while (
            self._passed is not None and self._reader.get < sequence
        ):  # which of them an earlier life has acked, their payloads say
            if not self.get(limit_events=sequence - self._reader.get, timeout=0):
                return
        reader = self._reader
        reader.get_to(max(reader.get, min(sequence, reader.get + reader.available())))
        reader._seen = reader.get  # the next get looks at put again

    def _go_to(self, last: int) -> None:
        """Let ack and get stand at `last`, wherever they were, and write that down."""
        reader = self._reader
        self.store._hold(self.entry, last)  # or retention could let go of it meanwhile
        reader.get = reader.ack = last
        reader._seen = last
        reader.generation += 1
        self._valid = [(reader.generation - 1, -2)]  # batches of before were of another place
        self._write_durable(last, forward=False)

    def _end_earlier_life(self) -> None:
        """From here on no event was acked in an earlier life of the store."""
        if self._passed is not None:
            self._passed = None
            self._careful = bool(self._segment.flags & (StoreFlag.EVICT | StoreFlag.CHECKSUM))
            self._tune()

    def _check_generation(self, batch: Batch) -> None:
        after = bisect_left(self._valid, (batch.generation, -2))
        if not 0 <= batch.generation < self._reader.generation or batch.last > self._valid[after][1]:
            raise AckError(
                f"batch {batch.first}..{batch.last} is stale: it was rolled back, and its events come again in other batches"
            )

    def _sequence_of(self, position: Position) -> int:
        for sequence in range(self._reader.get, self._reader.ack, -1):
            slot = slot_of(self._segment, sequence)
            if (int(slot["file"]), int(slot["offset"])) == position.order[:2]:
                return sequence
        raise AckError(
            f"no unacked event of this reader ends at {position.file}:{position.offset}: give the position of one, or its sequence"
        )

    # ------------------------------------------------------------ cursors, checkpoint, end

    @property
    def paused(self) -> bool:
        """Whether `get` is given nothing: `EventStore.pause`."""
        return bool(self._words[PAUSED_OF[self.entry]])

    @property
    def get_cursor(self) -> Cursor:
        """What was got so far."""
        return cursor_of(self._segment, self._reader.get)

    @property
    def ack_cursor(self) -> Cursor:
        """What was acked so far."""
        return cursor_of(self._segment, self._reader.ack)

    @property
    def lag_events(self) -> int:
        """Events put and not yet acked."""
        return self._words[PUT] - self._reader.ack

    def _checkpoint_at(self, before: int, sequence: int) -> Checkpoint | None:
        """Checkpoint at the last ack point up to `sequence`; its payload is read before the ack gives the space away."""
        if self._passed is not None:
            return None  # the one of the store's earlier life says more, until all of that has been passed over
        point = Batch(self._segment, before + 1, sequence, self._reader.generation).ack_point
        if point is None:
            return None
        try:
            position = Batch(self._segment, point, point, self._reader.generation).position_of(point)
        except StoreCorrupt:
            return None  # raw payloads of other users of the ring carry no position
        return Checkpoint(position, self._segment.epoch, point)

    def save_checkpoint(self) -> None:
        """Write the checkpoint of what was acked, if it changed. Raises `StoreError` where the disk refuses.

        With a log it covers only what is on disk: the rest is asked for, and is written the next time.
        """
        if self._has_log:
            self._save_durable(0.0)
        elif self._unsaved is not None and self._checkpoint is not None:
            if self._segment.removed and not self._checkpoint.path.exists():
                return  # forgotten, with the store
            self._saved_at = time.monotonic()  # also where the disk refuses: the next try is not at the very next ack
            self._refused = True
            self._checkpoint.save(self._unsaved, may=self.may_write)
            self._unsaved, self._refused = None, False

    def _save_durable(self, timeout: float) -> None:
        """Write the durable ack: up to what is acked and on disk, waiting `timeout` seconds for the disk to have it."""
        if self._checkpoint is None or self._reader.ack <= self._saved:
            return
        self._saved_at = time.monotonic()
        self.may_write()  # or the disk of a store that is another's by now would be waited for
        self._write_durable(self._reader.ack, timeout)

    def _remember(self, saved: int | None) -> None:
        """Continue from the durable ack `saved`, in a store with a log; None: this is a new subscription, so write down where it begins."""
        if saved is None:
            self._write_durable(self._reader.ack)
            return
        self._saved = saved
        if self._reader.ack < saved <= self._words[PUT]:  # its last owner wrote it after the store was restored
            self._go_to(saved)

    def _write_durable(self, sequence: int, timeout: float = CLOSING, *, forward: bool = True) -> None:
        """Write down the durable ack, where it is news: `sequence`, as far as the log is on disk within `timeout` seconds; not back behind what
        is there, where `forward`.

        The disk is asked once, and before the file is written. What it has then it has permanently, so the file is never ahead of the log: what is
        put again after a crash has the sequences behind that. In the other order a crash in between would leave an ack of events that come
        again under the same sequences, and would be passed over.
        """
        assert self._checkpoint is not None
        sequence = min(sequence, self.store.sync(sequence, timeout))
        if forward and sequence <= self._saved:
            return
        self._refused = True
        # The position of an earlier life, without a log, stays until that has come again: the next owner is not given it either.
        position = NOWHERE if self._passed is None else self._passed.position
        self._checkpoint.save(Checkpoint(position, self._segment.epoch, sequence), may=self.may_write, forward=forward)
        self._saved, self._refused = sequence, False

    def may_write(self) -> bool:
        """Return True while the subscription is this reader's, so that it may write into the home what is the reader's: see `Home.replace`.

        It owns the role, in a segment that no other has taken the place of. One whose memory was taken away, and not restored
        yet, still owns it: the process that restores the store locks the home, reads the ack, and makes the new segment before it unlocks. An eviction is
        written down as such, which its reader must not undo. Raises `StoreClosed`, `SubscriptionLost`.
        """
        if not self._owner.held or self._segment.replaced:
            raise StoreClosed(
                f"subscription {self.name!r} no longer belongs to this reader: store {self.store.name!r} was created again, or restored, "
                "and acks since then are not saved; attach again"
            )
        if self._has_log and self._words[STATE_OF[self.entry]] != ACTIVE:
            self._check_state()
        return True

    def close(self) -> None:
        """Release the subscription. The next owner starts at its ack. Saves the checkpoint. Idempotent."""
        try:
            if self._owner.held and self._has_log:
                self._save_durable(CLOSING)
                if self._saved < self._reader.ack:
                    _log.warning(
                        "subscription %r of store %r has acked up to %d, and the log is on disk up to %d: its ack is durable up to there, and "
                        "the producer makes the rest durable with the disk; where the host stops before, events are given again",
                        *(self.name, self.store.name, self._reader.ack, self._saved),
                    )
            elif self._owner.held:
                self.save_checkpoint()
        except (StoreClosed, SubscriptionLost) as error:
            _log.warning("%s", error)  # the next owner is there already, and gets again what was acked here last
        finally:
            if self._owner.held:
                self._words[subscription_word(self.entry, "owner_pid")] = 0
                self._owner.release()
                self.store._disown(self)
            self._retire()  # also where the disk refuses the checkpoint: the next owner may be there already

    def _resign(self) -> None:
        """Say that this process is not the owner, which it stays until it ends: one word, without a lock, for the handler of a signal that ends it."""
        if self._owner.held:
            self._words[subscription_word(self.entry, "owner_pid")] = 0

    def _retire(self) -> None:
        """Make every later call raise `StoreClosed`; the role is gone already."""
        if not isinstance(self._reader, Closed):
            self._reader.may_get = False  # a signal's handler may close while compiled code waits
        # All that has the memory in it: see EventStore._let_go.
        self._reader = self._segment = self._views = self._words = self._condition = _CLOSED  # type: ignore[assignment]

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
