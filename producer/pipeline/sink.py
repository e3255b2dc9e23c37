"""Where a source goes: the `Sink` that a `Replicator` puts into, and the one that is a whole store.

A store is found or made as the settings say. A put waits for free space, and the log names what holds it up.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import numpy as np

from shmstore import (
    BatchMode,
    Checkpoint,
    CheckpointFile,
    EventStore,
    Position,
    PositionNotFound,
    StoreClosed,
    StoreError,
    StoreExists,
    StoreFull,
    StoreNotFound,
    StreamStat,
    SubscriptionInUse,
)
from shmstore.home.acks import checkpoints_in
from shmstore.producer.pipeline.behind import ReadersBehind
from shmstore.producer.pipeline.problems import FULL, Problems
from shmstore.producer.settings import Settings
from shmstore.producer.start.last_transaction import LastTransaction, last_transaction
from shmstore.producer.start.resume import Resume, StreamStart, resume_point
from shmstore.producer.stop import Stop
from shmstore.producer.transactions.buffer import Flush
from shmstore.units import duration, quantity, size

TRY = 0.5  # seconds after which a waiting put looks up
PATIENCE = 5.0  # seconds without free space before that is worth a line in the log ...
AGAIN = 60.0  # ... and between two such lines


_log = logging.getLogger("producer")

Worked = TypeVar("Worked")
Record = Callable[[int], None]


class Sink(Protocol):
    """What one source is put into: a store of its own, or its part of a group's store."""

    problems: Problems

    @property
    def source(self) -> str | None:
        """The source's name among the several of one store; None for the only one."""

    def resume(self) -> Resume | None:
        """Where the source continues; None where nothing of it was read yet. What was handed over and is not put is forgotten: it comes again."""

    @property
    def last(self) -> LastTransaction | None:
        """The last transaction that the store has of the source; None where it cannot be read any more."""

    @property
    def checkpoints(self) -> Mapping[str, Checkpoint]:
        """The readers' checkpoints that a source begins at, by subscription."""

    def claim(self, *, gtids: bool, domain: str) -> None:
        """Be the only one to put this source: whatever is written to the disk for it is written after this.

        Raises `ProducerInUse`; `SettingsError` where the source's transactions could not be distinguished from another's: without
        `gtids`, or where another MariaDB of the group has its `domain`.
        """

    def begin(self, start: StreamStart) -> None:
        """The source is read from `start` on: say so before anything is put."""

    def put(self, flush: Flush, stop: Stop, meanwhile: Callable[[], object], record: Record | None = None) -> bool:
        """Put, as soon as there is free space, and call `meanwhile` now and then until that; False when asked to stop before.

        With `record` the flush is one event, a change of filters. It is put behind all that was handed over before, once that is on disk, and
        `record` is called with its sequence just before. Raises what `record` raises.
        """

    def heard(self, *, drained: bool) -> None:
        """The source sent something; `drained`: that nothing more is there."""

    def heartbeat(self, source: str, position: Position | None, stream: StreamStat) -> None:
        """Say that the source is being read, how far it is and how it goes. Call it about once a second."""


class StoreSink:
    """A store of one source, claimed before anything is read of it."""

    source = None

    def __init__(self, settings: Settings, store: EventStore, log: logging.Logger) -> None:
        store.claim()
        self._settings, self._store = settings, store
        self.problems = Problems(settings, store, "", log)
        self._blocking = BlockingPut(store, log, self.problems)
        self._behind = ReadersBehind(store, log)
        self._begun: Position | None = None  # where the source was first read: while nothing was put, it continues there

    def resume(self) -> Resume | None:
        """Where the store ends; where nothing was put yet, where its first producer began to read."""
        resume = resume_point(self._store)
        if resume is None and (begun := self._begun or self._store.start_position) is not None:
            return Resume(begun, None)
        return resume

    @property
    def last(self) -> LastTransaction | None:
        """The store's last transaction."""
        return last_transaction(self._store)

    @property
    def checkpoints(self) -> Mapping[str, Checkpoint]:
        """Those of the store's readers."""
        return checkpoints_in(self._store.home)

    def claim(self, *, gtids: bool, domain: str) -> None:
        """It is ours already, and no other source is there."""

    def begin(self, start: StreamStart) -> None:
        """The source is read from `start` on: readers that come before the first event begin there."""
        if self._begun is None:
            self._store.claim(start=start.lost or start.position)  # after a snapshot, a reader from there misses nothing
            self._begun = start.position
            self._expect_readers(start)

    def _expect_readers(self, start: StreamStart) -> None:
        """Make the subscriptions that were asked for before the store existed, so that it keeps everything for their readers.

        The source is read from the lowest of their places on. A place that is before that was inside of a transaction, and `start` is that
        transaction's end: its rows were read. Where a place cannot be found before the first event (GTIDs alone), its reader finds it when it comes.
        """
        home = self._store.home
        for name, checkpoint in self.checkpoints.items():
            if checkpoint.epoch:
                continue
            file, place = CheckpointFile.of(home, name), checkpoint.position
            if start.lost is None and place.file and not place.gtids and place.order < start.position.order:
                file.save(checkpoint._replace(position=start.position))
            with suppress(SubscriptionInUse, PositionNotFound):
                self._store.subscribe(name, checkpoint=file).close()

    def put(self, flush: Flush, stop: Stop, meanwhile: Callable[[], object], record: Record | None = None) -> bool:
        """Put, as soon as there is free space. All that came before is on disk where there is a `record`: `LiveSettings.on_disk`."""
        if record is not None:
            record(self._store.newest + 1)
        return self._blocking.put(flush.blob, flush.slots, stop, meanwhile)

    def heard(self, *, drained: bool) -> None:
        """No other process waits for this source."""

    def heartbeat(self, source: str, position: Position | None, stream: StreamStat) -> None:
        """Report to the store, and to the log which readers have fallen behind its ring."""
        self._store.heartbeat(source, position, stream)
        self._behind.look()


class BlockingPut:
    """The puts of one producer."""

    def __init__(self, store: EventStore, log: logging.Logger, problems: Problems) -> None:
        self._store, self._log, self._problems = store, log, problems
        self._warned = float("-inf")

    def put(
        self,
        blob: bytes | memoryview,
        slots: np.ndarray[Any, np.dtype[np.void]],
        stop: Stop,
        meanwhile: Callable[[], object],
    ) -> bool:
        """Put, as soon as there is free space, and call `meanwhile` twice a second until then; False when asked to stop before."""
        began, warned = time.monotonic(), False
        while True:
            try:
                self._store.put_encoded(blob, slots, timeout=TRY)
                break
            except StoreFull:
                now = time.monotonic()
                if now - began >= PATIENCE:
                    self._problems.begin(
                        FULL, f"the ring has had no free space for {now - began:.0f} s: {self._store.stat().holdup}"
                    )
                if now - began >= PATIENCE and now - self._warned >= AGAIN:
                    self._warn(len(slots), len(blob), now - began)
                    self._warned, warned = now, True
                meanwhile()
                if stop():
                    return False
        self._problems.end(FULL)
        if warned:
            self._log.info("store %r has free space again, after %.1f s", self._store.name, time.monotonic() - began)
        return True

    def _warn(self, events: int, size: int, seconds: float) -> None:
        limit = self._store.limit_bytes
        larger = f" (more than the whole ring's {limit:,}: all before must be acked)" if size > limit else ""
        stat = self._store.stat()
        self._log.warning(
            "store %r has had no free space for %d events of %d bytes%s for %.0f s: %s",
            self._store.name,
            events,
            size,
            larger,
            seconds,
            stat.holdup,
        )


def with_store(settings: Settings, log: logging.Logger, work: Callable[[EventStore], Worked]) -> Worked:
    """Do `work` with the settings' store, attached or created. A store whose segment a process took away, as an administrator may, or the end
    of a login session, is restored from its home, and the work begun again. Raises what `work` raises."""
    while True:
        with opened(settings) as store:
            _warn_of_a_small_disk(store, log)
            try:
                return work(store)
            except StoreClosed:
                if not store.segment.home or store.segment.linked or store.removed:  # without a log, or by `shmstore rm`
                    raise
                log.warning(
                    "the memory of store %r was removed by another process: restoring it from %s",
                    store.name,
                    store.segment.home,
                )


def _warn_of_a_small_disk(store: EventStore, log: logging.Logger) -> None:
    """Say it before the disk is full, where the log may become larger than that."""
    kept, home = store.stat().log, store.segment.home
    with suppress(OSError):  # where it cannot be asked, writing will say so
        disk = os.statvfs(home)
        free = disk.f_bavail * disk.f_frsize
        if kept is not None and kept.size - kept.bytes > free:
            log.warning(
                "the log of store %r may grow by another %s, and the disk of %s has %s free: give a smaller --log-size, or make space there; when the "
                "disk is full the producer waits",
                *(store.name, quantity(kept.size - kept.bytes), home, quantity(free)),
            )


@contextmanager
def opened(settings: Settings) -> Iterator[EventStore]:
    """Attach to the store, or create it. One that was created, and is of no use when an error ends it all, or its source was never
    read, goes again."""
    created = False
    try:
        store = _attached(settings)
    except StoreNotFound:
        try:
            store, created = _created(settings), True
        except StoreExists:  # a process was faster
            store = _attached(settings)
    with store:
        try:
            yield store
        except Exception:
            if created and store.latest_position is None:
                _remove(store)
            raise
        if created and store.latest_position is None and store.start_position is None:
            _remove(store)


def _attached(settings: Settings) -> EventStore:
    """Attach, and give the store the sizes that were asked for. The ring's take restoring it, which no process may use then."""
    path, state = settings.store_path or None, settings.state or None
    store, sizes = EventStore.attach(settings.store, path=path, state=state), _sizes(settings)
    try:
        if not sizes or store.stat().producer_alive or (store.has_log and store.resize(**sizes)):
            return store  # where there is a producer already this one is about to be refused, and changes nothing
        if not store.has_log:
            if (
                sizes.get("capacity", store.capacity) != store.capacity
                or sizes.get("memory_unit", store.memory_unit) != store.memory_unit
            ):
                _log.warning(
                    "store %r has no log, and keeps the ring that it was created with: `shmstore rm` it to begin again",
                    store.name,
                )
            return store
        if store.in_use or store.sync() < store.newest:
            _log.warning(
                "the ring of store %r keeps its %d events and %d bytes while a process reads it: stop its readers and start this again, and it gets "
                "the new size; or at the next boot",
                *(store.name, store.capacity, store.limit_bytes),
            )
            return store
    except BaseException:
        store.close()
        raise
    with store:
        EventStore.unlink(store.name, path=path)  # all of it is in the log, on disk
    return EventStore.attach(settings.store, path=path, state=state)


def _sizes(settings: Settings) -> dict[str, Any]:
    given: dict[str, Any] = {"capacity": settings.capacity, "memory_unit": settings.memory_unit}
    given = {name: value for name, value in given.items() if value}
    if settings.log_keep:
        given["log_keep"] = duration(settings.log_keep)
    if settings.log_size:
        given["log_size"] = size(settings.log_size)
    return given


def _remove(store: EventStore) -> None:
    with suppress(StoreError):  # removed by another process, which may be the error; or another's by now
        store.undo_create()


def _created(settings: Settings) -> EventStore:
    return EventStore.create(
        settings.store,
        **_sizes(settings),
        batch_mode=BatchMode[settings.batch_mode],
        ddl_isolation=settings.ddl_isolation,
        lag="evict" if settings.lag == "evict" else "block",
        evict_after=settings.evict_after,
        mode=0o660 if settings.store_group else 0o600,
        group=settings.store_group or None,
        path=settings.store_path or None,
        checksum=settings.store_checksum or None,
        log=settings.log == "on",
        state=settings.state or None,
    )
