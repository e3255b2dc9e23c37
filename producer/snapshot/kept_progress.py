"""How far a store's snapshots are: in memory, and in the store's home, where the next producer finds it."""

from __future__ import annotations

from collections.abc import Iterable

from shmstore import EventStore
from shmstore.home.snapshot_progress import Progress, SnapshotRequest, TableProgress, Task
from shmstore.home.snapshots import ProgressFile


class KeptProgress:
    """The progress of one store."""

    def __init__(self, store: EventStore) -> None:
        self._store, self.file = store, ProgressFile(store.home, store.may_produce)
        self.now = self.file.load() or Progress(store.epoch)
        if self.now.epoch == store.epoch and self.now.ahead_of(store.newest):  # the host crashed
            self.now.rewind(store.newest)
            self.save()  # before anything is put: what comes now has those sequences

    def save(self) -> None:
        """Write it down."""
        self.file.save(self.now)

    def start_over(self, request: SnapshotRequest) -> None:
        """Forget everything, and leave `request` alone, before anything is put."""
        self.now = Progress(self._store.epoch)
        self.save()
        self.file.ask(request)

    def begin(self) -> None:
        """A stream begins: take back what the store does not have."""
        for task in self.now.tasks:
            if task.open and not task.progress.chunks:
                task.progress = TableProgress()  # without a key, and left in the middle
        if self.now.epoch != self._store.epoch:
            if self.now.tasks:
                self.now.rewind(self.file.acked(self.now.epoch))
            self.now.epoch = self._store.epoch
            self.save()

    @property
    def next_open(self) -> Task | None:
        """The first table that is not at its end."""
        return next((task for task in self.now.tasks if task.open), None)

    def request_of(self, task: Task) -> SnapshotRequest:
        """The request that asked for the table."""
        return next(request for request in self.now.requests if request.id == task.request)

    def put(self, written: Iterable[tuple[Task, TableProgress]]) -> None:
        """Take in what is in the store now; the caller saves it."""
        newest = self._store.newest
        safe = self._store.sync(newest, 0.0) if self._store.has_log else self.file.acked(self._store.epoch)
        for task, progress in written:
            task.progress = progress
            if progress.state == "done":
                self.now.settle(task, "done")
            self.now.mark(newest, task, -1 if safe is None else safe)
