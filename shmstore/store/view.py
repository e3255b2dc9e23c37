"""StoreView: a store as the process that only looks at it sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from shmstore.errors import PositionNotFound, StoreClosed, StoreCorrupt, StoreError
from shmstore.event import Event, Position
from shmstore.home.home import Home
from shmstore.memory import segment
from shmstore.memory.layout import MAX_SEQUENCE, BatchMode, StoreFlag, StoreState, header_word
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import PUT, Cursor, cursor_at, oldest_kept
from shmstore.start_position import Start
from shmstore.store import lookup
from shmstore.store.batch import Batch
from shmstore.store.content import cursor_of
from shmstore.store.restore import attached, home_of
from shmstore.store.stats import StoreStat, SubscriptionStat, describe, subscriptions_of

READ_BYTES: Final = 4 << 20  # of payload in a batch of `read`: with 1 MB typed rows take a quarter longer, 8 MB are no better


class StoreView:
    """A store to look at: what it is, what it keeps, who reads it. Nothing in it moves or is locked, and it need not be writable.

    Make one with `attach`. An object serves one thread at a time.
    """

    def __init__(self, mapped: Segment, state: str | os.PathLike[str] | None = None) -> None:
        self.segment = mapped
        self._state = state
        self._views = mapped.views
        self._words = mapped.words
        self._closed = False

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        path: str | os.PathLike[str] | None = None,
        state: str | os.PathLike[str] | None = None,
        restore: bool = True,
    ) -> Self:
        """Look at a store by name.

        Args:
            name: The store's name.
            path: Its file, where it is in one.
            state: The folder of homes; None: `state_directory()`.
            restore: Whether a store that is in its home and not in memory is restored. A viewer that looks every few seconds says False.

        Raises:
            StoreNotFound: No store has this name.
            LayoutMismatch: The store is of another version.
            StoreError: This user has no right to read it.
        """
        return cls(attached(name, path=path, state=state, read_only=True, restore=restore), state)

    def attach_again(self, *, restore: bool = True, same: bool = False) -> Self:
        """Attach to the store that has this one's name now, where that was `lost`; this object stays as it is, and may be closed already.

        One that has a log is restored from its home, unless `restore` is False. Another `epoch` says that it was created again,
        which with `same` is an error: `StoreClosed`. Raises as `attach`; `retried` tries again for a while.
        """
        store = type(self).attach(self.name, path=self.segment.path, state=self.home.state, restore=restore)
        if same and store.epoch != self.epoch:
            store.close()
            raise StoreClosed(f"store {self.name!r} was removed with its log, and another one has its name: attach again")
        return store

    @staticmethod
    def names() -> list[str]:
        """Names of the stores in this host's shared memory."""
        return segment.names()

    @staticmethod
    def is_own(name: str) -> bool:
        """True where what has this name in shared memory, store or not, is for this user to put right."""
        return segment.is_own(name)

    @staticmethod
    def home_of(name: str, *, path: str | os.PathLike[str] | None = None, state: str | os.PathLike[str] | None = None) -> Home:
        """Return the home of a store: of one in memory that has a log its own, else the one that it would have in the folder `state`."""
        with suppress(StoreError), StoreView.attach(name, path=path, restore=False) as store:
            if store.has_log:
                return store.home
        return Home.of(name, state)

    def close(self) -> None:
        """Look no more, and let go of the memory and of the log's files, but for those of batches that are still held. Idempotent."""
        if not self._closed:
            self._closed = True
            self._let_go()

    def _let_go(self) -> None:
        """Hold nothing any more; each use says that the store is closed."""
        self.segment = self.segment.closed()
        self._views, self._words = self.segment.views, self.segment.words

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------ what the store is

    @property
    def name(self) -> str:
        """The store's name."""
        return self.segment.name

    @property
    def home(self) -> Home:
        """The folder that outlives its memory. Without a log there is perhaps none yet: then it is where it would be."""
        return home_of(self.segment, self._state)

    @property
    def removed(self) -> bool:
        """True where a process removed the store, as `shmstore rm` does; not where its memory was taken away and only its log is left."""
        return self._words[header_word("state")] == StoreState.REMOVED

    @property
    def epoch(self) -> int:
        """Random id of this life of the store; sequences compare only inside one epoch."""
        return self.segment.epoch

    @property
    def capacity(self) -> int:
        """Events that may be in flight."""
        return self._views.capacity

    @property
    def memory_unit(self) -> int:
        """Bytes of one memory unit."""
        return self.segment.memory_unit

    @property
    def limit_bytes(self) -> int:
        """Bytes of payload that may be in flight."""
        return self._views.limit

    @property
    def batch_mode(self) -> BatchMode:
        """What bounds what is in flight: events alone, or their bytes, too."""
        return self.segment.batch_mode

    @property
    def ddl_isolation(self) -> bool:
        """True where a DDL comes alone."""
        return bool(self.segment.flags & StoreFlag.DDL_ISOLATION)

    @property
    def has_log(self) -> bool:
        """True where the store remembers: what leaves the ring is read from its log, and its sequences outlive its memory."""
        return lookup.has_log(self.segment)

    @property
    def lost(self) -> bool:
        """True where its memory was removed, by whomever. A store with a log is restored by the process that attaches next."""
        return self.segment.removed or not self.segment.linked

    @property
    def source(self) -> str:
        """What the producer last said it reads from."""
        return self.segment.read_text("source")

    @property
    def put_cursor(self) -> Cursor:
        """What was put so far."""
        return cursor_at(self._views, self._words[PUT])

    @property
    def newest(self) -> int:
        """Last sequence put; ``oldest - 1`` when nothing is kept."""
        return self._words[PUT]

    @property
    def oldest(self) -> int:
        """First sequence that can still be read: the oldest in the log; without a log the first that some subscription has not acked."""
        return oldest_kept(self._views)

    # ------------------------------------------------------------ reading without taking

    def peek(self, first: int, *, limit_events: int | None = None, limit_bytes: int | None = None) -> Batch:
        """Return a copy of the events from sequence `first` on, at least one where one is there. Nothing moves.

        Args:
            first: The sequence of the first event.
            limit_events: The most events.
            limit_bytes: The most bytes of payload.

        Raises:
            PositionNotFound: `first` is no longer kept (see `oldest`), or is after ``newest + 1``.
        """
        self._check_open()
        return lookup.peek(self.segment, first, limit_events, limit_bytes)

    def read(
        self,
        first: int,
        last: int | None = None,
        *,
        limit_events: int | None = None,
        limit_bytes: int | None = READ_BYTES,
        gone: Callable[[int, int], object] | None = None,
        damaged: Callable[[int, int], object] | None = None,
    ) -> Iterator[Batch]:
        """Yield copies of the events `first` to `last`, from the ring or the log. Nothing moves.

        Args:
            first: The sequence of the first event.
            last: The sequence of the last one; None: the newest, including those that come meanwhile.
            limit_events: The most events of a batch.
            limit_bytes: The most bytes of payload in a batch.
            gone: Called with the first and last sequence of events that are no longer kept. Reading continues after them.
            damaged: The same for an event that cannot be read.

        Raises:
            PositionNotFound: Events are no longer kept, without `gone`.
            StoreCorrupt: An event cannot be read, without `damaged`.
        """
        while last is None or first <= last:
            most = limit_events if last is None else min(limit_events or MAX_SEQUENCE, last - first + 1)
            try:
                batch = self.peek(first, limit_events=most, limit_bytes=limit_bytes)
            except PositionNotFound:
                if gone is None or first > self.newest:
                    raise
                behind = max(first, self.oldest - 1)  # one at least: it may be there again, restored from what the disk has
                behind = behind if last is None else min(behind, last)
                gone(first, behind)
                first = behind + 1
                continue
            except StoreCorrupt:
                if damaged is None:
                    raise
                damaged(first, first)
                first += 1
                continue
            if not batch:
                return
            yield batch
            first = batch.last + 1

    def slots(self, first: int, last: int) -> NDArray[np.void]:
        """Return a copy of the slot records of events `first` to `last`: sizes, rows, times and kinds, without payloads.

        Returns:
            An array of dtype `SLOT`, shape (last - first + 1,).

        Raises:
            PositionNotFound: Some of them are not kept, or not there yet.
        """
        self._check_open()
        return lookup.slots_between(self.segment, first, last)

    def cursor_at(self, sequence: int) -> Cursor:
        """Return what was put up to and including event `sequence`, which is kept, or is the one before the oldest. Raises `PositionNotFound`."""
        self._check_open()
        return cursor_of(self.segment, sequence)

    def ack_point_until(self, sequence: int) -> int | None:
        """Return the last transaction end or DDL at or before event `sequence`; None where none is kept."""
        self._check_open()
        return lookup.last_ack_point_until(self.segment, sequence)

    def find(self, start: Start) -> int:
        """Return the sequence of the first event from `start` on, as `subscribe` takes it. Raises `PositionNotFound` where events may be missing."""
        return lookup.first_wanted(self.segment, start)

    @property
    def first_position(self) -> Position | None:
        """Position of the oldest event kept, or of the last event put where all are acked; None in an empty store."""
        return lookup.position_if_readable(self.segment, min(self.oldest, self.newest))

    @property
    def latest_position(self) -> Position | None:
        """Position of the last event put; None in an empty store."""
        return lookup.position_if_readable(self.segment, self.newest)

    @property
    def latest_event(self) -> Event | None:
        """The last event put, acked or not; None in an empty store and where its payload is gone (acked and oversized)."""
        while True:
            newest = self.newest
            event = lookup.event_at(self.segment, newest)
            if event is not None or newest == self.newest:  # else the producer has written over it meanwhile
                return event

    def open_transaction(self) -> Iterator[memoryview | None]:
        """Yield the payloads of the events after the last ack point, acked or not; None for each that cannot be read any more."""
        return lookup.open_transaction(self.segment)

    @property
    def start_position(self) -> Position | None:
        """Where the producer of the first event began to read, as it said when it claimed the empty store."""
        return lookup.start_position(self.segment)

    def last_ack_point(self) -> Position | None:
        """Position of the newest transaction end or DDL put, acked or not: where a restarted producer continues."""
        return lookup.last_ack_point(self.segment)

    @property
    def of_group(self) -> bool:
        """Whether the store has several sources, as the newest transaction end that was put says."""
        place = self.last_ack_point()
        return place is not None and place.of_group

    def stat(self) -> StoreStat:
        """Describe the store at this moment."""
        return describe(self.segment, self.subscriptions(), lookup.last_ack_point_if_readable(self.segment))

    def subscriptions(self) -> tuple[SubscriptionStat, ...]:
        """Describe every subscription."""
        self._check_mapped()
        return subscriptions_of(self.segment)

    def behind_ring(self) -> tuple[SubscriptionStat, ...]:
        """Describe the subscriptions that read the log, because the ring has moved on. Quick where there are none; none without a log."""
        self._check_mapped()
        return subscriptions_of(self.segment, behind_ring=True) if self.segment.home else ()

    def check(self) -> list[str]:
        """Return what is wrong with the store, a sentence each; an empty list where nothing is."""
        self._check_mapped()
        from shmstore.store.integrity import findings  # only here: it knows every part

        return findings(self.segment)

    def _check_mapped(self) -> None:
        if self._closed:
            raise StoreClosed(f"store {self.name!r} is closed: attach again")

    def _check_open(self) -> None:
        self._check_mapped()
        if self.segment.removed:
            raise self._removed()

    def _removed(self) -> StoreClosed:
        return StoreClosed(f"store {self.name!r} was removed: attach again, or create it again")
