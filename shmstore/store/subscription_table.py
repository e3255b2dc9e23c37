"""The subscription table: who reads a store, from where, and who owns which entry. All changes are made under its lock.

An entry is filled from its name to its state, and freed from its state on: a process that dies in between leaves an entry
that is FREE, JOINING, or ACTIVE and whole. Place 0 has no name. It stands in while there is no subscription, so that what is
put is kept for the first subscriber; it becomes ACTIVE before the last subscription goes, where that one stood (behind all that was
put, where it held the producer up), and FREE after the first came.
The process that takes the lock first undoes what a dead holder left: an entry still JOINING, or entry 0 next to an ACTIVE one. The
producer does so, too, when it finds no free space, because either could hold it up forever.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from typing import Final

from shmstore.clock import calendar_ms
from shmstore.errors import PositionNotFound, StoreError, SubscriptionInUse, SubscriptionLost, SubscriptionNotFound
from shmstore.home import pauses
from shmstore.home.acks import NOWHERE, Checkpoint, CheckpointFile
from shmstore.home.home import Home
from shmstore.home.reader_state import keep_filter
from shmstore.memory.layout import (
    DISARMED,
    LOCK_SUBSCRIPTION,
    NAME_BYTES,
    SUBSCRIPTIONS,
    StoreFlag,
    SubscriptionState,
    header_word,
    subscription_word,
)
from shmstore.memory.locks import Lock, Ownership, is_locked, start_time
from shmstore.memory.ordering import fence
from shmstore.memory.segment import Segment, check_name
from shmstore.ring.cursors import (
    ACK_OF,
    ACK_WANTED,
    ACTIVE,
    ENTRIES,
    FLOOR,
    GET_OF,
    LOG_FIRST,
    PAUSED_OF,
    PUT,
    STATE_OF,
    WANTED_OF,
)
from shmstore.start_position import Start, parse_start
from shmstore.store.lookup import first_wanted
from shmstore.store.reader_place import ReplayFilter
from shmstore.store.restore import home_of
from shmstore.store.stats import after_eviction, forgetting

FREE: Final = int(SubscriptionState.FREE)
LOST: Final = int(SubscriptionState.LOST)
JOINING: Final = int(SubscriptionState.JOINING)
EVICTIONS: Final = header_word("evictions")
Beginning = Start | ReplayFilter


class SubscriptionTable:
    """The table of one attached store."""

    def __init__(self, segment: Segment, lock: Lock, home: Home) -> None:
        """`home` is where pauses are kept."""
        self._segment, self._home = segment, home
        self._words = segment.words
        self._lock = lock
        self._logged = bool(segment.flags & StoreFlag.LOG)  # then entry 0 is the log's, and retention asks what is held
        self._settled: dict[int, tuple[int, int]] = {}  # entry -> generation and ack that were found, or made, durable

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, with nothing half done in the table."""
        with self._lock:
            words = self._words
            for entry in self._half_done():
                words[STATE_OF[entry]] = FREE
            yield

    def repair(self) -> bool:
        """Undo what a process killed in here left, where something is left; True when there was."""
        if not self._half_done():
            return False
        with self.locked():
            return True

    def _half_done(self) -> list[int]:
        words = self._words
        entries = range(1, words[ENTRIES])
        found = [entry for entry in entries if words[STATE_OF[entry]] == JOINING]
        if not self._logged and words[STATE_OF[0]] == ACTIVE and any(words[STATE_OF[entry]] == ACTIVE for entry in entries):
            found.append(0)
        return found

    def take(self, name: str, start: Beginning) -> tuple[int, Ownership]:
        """Own the subscription `name`, made at `start` if it is new; return its entry. Raises as `EventStore.subscribe`."""
        check_subscription_name(name)
        if isinstance(start, str):
            start = parse_start(start)
        with self.locked():
            entry = self._find(name) or self._vacant()
            owner = Ownership(self._segment.fd, LOCK_SUBSCRIPTION + entry)
            if not owner.acquire():
                pid = self._pid_of_owner(entry, name)
                raise SubscriptionInUse(
                    f"subscription {name!r} of store {self._segment.name!r} has a reader already (pid {pid}): stop it, or choose another name"
                )
            try:
                state = self._words[STATE_OF[entry]]
                if state == LOST:
                    raise SubscriptionLost(
                        f"subscription {name!r} of store {self._segment.name!r} was evicted: "
                        f"{after_eviction(self._segment.name, name, has_log=self._logged)}"
                    )
                if state == FREE:
                    self._fill(entry, name, start)
                self._note_owner(entry)
                self._words[PAUSED_OF[entry]] = pauses.is_kept(self._home, name, unseen=bool(self._words[PAUSED_OF[entry]]))
            except BaseException:
                if self._words[STATE_OF[entry]] == JOINING:
                    self._words[STATE_OF[entry]] = FREE
                owner.release()
                raise
        return entry, owner

    def _fill(self, entry: int, name: str, start: Beginning) -> None:
        words = self._words
        words[PAUSED_OF[entry]] = 0
        first = start.place.first_new(self._segment) if isinstance(start, ReplayFilter) else first_wanted(self._segment, start)
        ack = first - 1
        self._segment.write_text("name", name, entry)
        words[subscription_word(entry, "generation")] += 1
        words[subscription_word(entry, "created_ms")] = calendar_ms()
        words[WANTED_OF[entry]] = DISARMED
        words[GET_OF[entry]] = words[ACK_OF[entry]] = ack
        words[ENTRIES] = max(words[ENTRIES], entry + 1)
        words[STATE_OF[entry]] = JOINING
        if self._logged:  # what is kept changes under our lock alone
            if first < words[LOG_FIRST]:
                raise self._too_old(start, words[LOG_FIRST])
            words[STATE_OF[entry]] = ACTIVE
            return
        fence()  # from here the producer keeps what follows our ack, unless its floor passed it before: see ring's plan
        floor = words[FLOOR]
        if floor > ack:
            if not isinstance(start, str | datetime):
                raise self._too_old(start, floor + 1)
            words[GET_OF[entry]] = words[ACK_OF[entry]] = floor
        words[STATE_OF[entry]] = ACTIVE
        words[STATE_OF[0]] = FREE

    def _too_old(self, start: object, oldest: int) -> PositionNotFound:
        return PositionNotFound(
            f"start {start!r} is older than what store {self._segment.name!r} keeps: its oldest event is {oldest}; start there, or take "
            f"a snapshot (`shmstore snapshot {self._segment.name} --tables ...`)"
        )

    def hold(self, entry: int, sequence: int) -> None:
        """Move the cursors of `entry` to `sequence`, in a store with a log: what follows is kept. Raises `PositionNotFound`."""
        words = self._words
        with self.locked():
            if sequence + 1 < words[LOG_FIRST]:
                raise self._too_old(sequence + 1, words[LOG_FIRST])
            back = sequence < words[ACK_OF[entry]]
            for cursor in (ACK_OF, GET_OF) if back else (GET_OF, ACK_OF):  # ack <= get throughout
                words[cursor[entry]] = sequence

    def move(self, name: str, start: Start, note: Callable[[int], object]) -> int:
        """Let the subscription `name`, which no process reads, stand before `start`, in a store with a log; return the sequence that it has then
        acked, once `note` has written it down: before a new owner could write there. Raises `SubscriptionNotFound`, `SubscriptionInUse`,
        `PositionNotFound`."""
        with self.locked():
            entry = self._known(name)
            owned = self._owned(entry)
            self._words[subscription_word(entry, "owner_pid")] = (
                0  # not a dead reader's: a reader that comes meanwhile is refused with it
            )
        with owned:
            sequence = first_wanted(self._segment, start) - 1
            self.hold(entry, sequence)
            if self._words[STATE_OF[entry]] == LOST:  # it may continue from where the events are
                self._words[STATE_OF[entry]] = ACTIVE
            note(sequence)
            return sequence

    def let_go(self, last: int, *, evict: bool) -> list[str] | None:
        """Let the log lose what is up to `last`, where every subscription has acked that; with `evict` the process that has not is marked lost.

        Return the names of those; None where a process needs it still. For stores with a log.
        """
        words = self._words
        with self.locked():
            entries = [entry for entry in range(1, words[ENTRIES]) if words[STATE_OF[entry]] == ACTIVE]
            late = [entry for entry in entries if words[ACK_OF[entry]] < last]
            if late and not evict:
                return None
            for entry in late:
                words[STATE_OF[entry]] = LOST
                words[WANTED_OF[entry]] = DISARMED
            words[EVICTIONS] += len(late)
            words[LOG_FIRST] = last + 1
            files = [(entry, self._durable(entry), words[ACK_OF[entry]]) for entry in late]
            names = [self._segment.read_text("name", entry) for entry in late]
        for entry, file, ack in files:  # or after a reboot it would continue as if nothing were missing
            if file is not None:
                # Not where it was moved to what is kept meanwhile, or forgotten: that was written down already.
                file.save(Checkpoint(NOWHERE, self._segment.epoch, ack, lost=True), may=partial(self._is_lost, entry))
        return names

    def _is_lost(self, entry: int) -> bool:
        return self._words[STATE_OF[entry]] == LOST

    def _durable(self, entry: int) -> CheckpointFile | None:
        """Where the durable ack of an entry is; None where its name is damaged, and no file's."""
        try:
            return CheckpointFile.of(home_of(self._segment), self._segment.read_text("name", entry))
        except ValueError:
            return None

    def settle(self, synced: int) -> None:
        """Make durable what subscriptions without a reader have acked up to `synced`, the last event on disk: their readers closed before
        the disk had it. For stores with a log. Raises `StoreError` where the home cannot be written.
        """
        words = self._words
        late = [entry for entry in range(1, words[ENTRIES]) if self._unsettled(entry, synced)]
        if not late:
            return
        with self.locked():  # an entry gets an owner, and is freed, under the lock alone: so no process writes meanwhile
            for entry in late:
                if not self._unsettled(entry, synced):
                    continue
                ack, file = words[ACK_OF[entry]], self._durable(entry)
                saved = None if file is None else file.load()
                if file is not None and saved is not None and saved.epoch == self._segment.epoch and saved.sequence < ack:
                    file.save(saved._replace(sequence=ack), may=lambda: not self._segment.replaced, forward=True)
                self._settled[entry] = words[subscription_word(entry, "generation")], ack

    def _unsettled(self, entry: int, synced: int) -> bool:
        words = self._words
        ack = words[ACK_OF[entry]]
        if words[STATE_OF[entry]] != ACTIVE or ack > synced:
            return False
        known = self._settled.get(entry) == (words[subscription_word(entry, "generation")], ack)
        return not known and not is_locked(self._segment.fd, LOCK_SUBSCRIPTION + entry, 1)

    def _known(self, name: str) -> int:
        if entry := self._find(name):
            return entry
        raise SubscriptionNotFound(
            f"store {self._segment.name!r} has no subscription {name!r}: it has {', '.join(self.names()) or 'none'}"
        )

    def remove(self, name: str, forget: Callable[[], object] | None = None) -> None:
        """Forget a subscription no process owns, in memory and by `forget` in its home. Raises `SubscriptionNotFound`, `SubscriptionInUse`."""
        words = self._words
        with self.locked():
            entry = self._known(name)
            with self._owned(entry):
                if forget is not None:
                    forget()
                others = [p for p in range(1, words[ENTRIES]) if p != entry and words[STATE_OF[p]] == ACTIVE]
                if (
                    not self._logged and not others and words[STATE_OF[0]] != ACTIVE
                ):  # after an eviction it stands in already, and ahead of us
                    # What kept the producer waiting goes with who did not read it, or it would wait on, now for no process; so would the next
                    # one, where it gave up or was killed. A put that succeeds takes the wish back.
                    wish, ack = words[ACK_WANTED], words[ACK_OF[entry]]
                    words[GET_OF[0]] = words[ACK_OF[0]] = words[PUT] if wish != DISARMED and ack < wish else ack
                    words[STATE_OF[0]] = ACTIVE
                words[STATE_OF[entry]] = FREE
                pauses.forget(self._home, name)
                keep_filter(self._home, name, [])

    def clear(self) -> None:
        """Move every subscription to the put cursor. Raises `SubscriptionInUse` where a reader lives; then nothing was moved."""
        words = self._words
        with self.locked(), ExitStack() as owned:
            entries = [entry for entry in range(int(self._logged), words[ENTRIES]) if words[STATE_OF[entry]] == ACTIVE]
            for entry in entries:
                owned.enter_context(self._owned(entry))
            put = words[PUT]
            for entry in entries:  # a crash in between leaves some moved and some not, each whole: call it again
                words[GET_OF[entry]] = put  # get first: ack <= get throughout
                words[ACK_OF[entry]] = put

    def evict(self, wanted: int) -> list[int]:
        """Mark as lost the subscriptions whose ack is below `wanted`; return their entries. For the producer alone."""
        words = self._words
        with self.locked():
            entries = [entry for entry in range(1, words[ENTRIES]) if words[STATE_OF[entry]] == ACTIVE]
            late = [entry for entry in entries if words[ACK_OF[entry]] < wanted]
            if len(late) == len(entries):
                words[GET_OF[0]] = words[ACK_OF[0]] = wanted
                words[STATE_OF[0]] = ACTIVE
            for entry in late:
                words[STATE_OF[entry]] = LOST
                words[WANTED_OF[entry]] = DISARMED
            words[EVICTIONS] += len(late)
        fence()  # before anything is overwritten: a reader looks at its state after each copy
        return late

    def pause(self, name: str, by: str) -> None:
        """Let the reader of the subscription `name` be given nothing from now on. Raises `SubscriptionNotFound`, `StoreError`."""
        with self.locked():
            entry = self._known(name)
            pauses.keep(
                self._home, by, name
            )  # first: a process that is killed after this line has at least paused the next owner
            self._words[PAUSED_OF[entry]] = 1

    def resume(self, name: str) -> int:
        """Undo `pause`; return the entry, whose reader is to be notified. Raises `SubscriptionNotFound`, `StoreError`."""
        with self.locked():
            entry = self._known(name)
            pauses.forget(self._home, name)
            self._words[PAUSED_OF[entry]] = 0
            fence()  # before the notice: see Subscription._resumed
            return entry

    def names(self) -> list[str]:
        """Names of all subscriptions, lost ones included."""
        return [
            self._segment.read_text("name", entry)
            for entry in range(1, self._words[ENTRIES])
            if self._words[STATE_OF[entry]] != FREE
        ]

    def _find(self, name: str) -> int:
        """Place of a subscription; 0 where there is none."""
        for entry in range(1, self._words[ENTRIES]):
            if self._words[STATE_OF[entry]] != FREE and self._segment.read_text("name", entry) == name:
                return entry
        return 0

    def _vacant(self) -> int:
        for entry in range(1, SUBSCRIPTIONS):
            if self._words[STATE_OF[entry]] == FREE:
                return entry
        raise StoreError(
            f"store {self._segment.name!r} has {SUBSCRIPTIONS - 1} subscriptions, the most that it can have: "
            f"forget one with `{forgetting(self._segment.name, 'NAME')}`"
        )

    def _owned(self, entry: int) -> ExitStack:
        owner = Ownership(self._segment.fd, LOCK_SUBSCRIPTION + entry)
        if not owner.acquire():
            name = self._segment.read_text("name", entry)
            pid = self._pid_of_owner(entry, name)
            raise SubscriptionInUse(
                f"subscription {name!r} of store {self._segment.name!r} has a reader (pid {pid}): stop it first"
            )
        stack = ExitStack()
        stack.callback(owner.release)
        return stack

    def _pid_of_owner(self, entry: int, name: str) -> int:
        """The pid of the process that owns an entry. Raises `SubscriptionInUse` where it has noted none: it is about to let go, or no reader."""
        pid = self._words[subscription_word(entry, "owner_pid")]
        if not pid:
            raise SubscriptionInUse(
                f"subscription {name!r} of store {self._segment.name!r} is let go or moved by a process right now: try again in a moment"
            )
        return pid

    def _note_owner(self, entry: int) -> None:
        pid = os.getpid()
        self._words[subscription_word(entry, "owner_pid")] = pid
        self._words[subscription_word(entry, "owner_start")] = start_time(pid)


def check_subscription_name(name: str) -> None:
    """Raise `ValueError` where `name` cannot name a subscription."""
    check_name(name)
    if len(name) > NAME_BYTES:
        raise ValueError(f"subscription name {name!r} has {len(name)} characters: use at most {NAME_BYTES}")
