"""Snapshots as values: what was asked for, how far each table is, and where a producer goes back to that lost the end of its store.

A chunk is put first and written down after: after a crash between the two it is read and put again, which changes nothing for a reader that
keeps rows by key. What was put may be lost with the host, as far as it was not yet on disk, or without a log with the store's memory; so each
table also remembers up to where the log is on disk, or how far every reader's checkpoint has come, and `Progress.rewind` goes back there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from shmstore.clock import calendar_ms

__all__ = ["ENTERED", "NO_TARGETS", "REPLACING", "ChunkMark", "Progress", "SnapshotRequest", "TableProgress", "Task"]

MARKS = 256  # chunks that may still be lost and are looked for; older ones are read again after a loss of the store
OPEN = ("waiting", "reading")
ENTERED: Final = "entered"  # reason of a request for tables that changed filters, or a RENAME, let in
REPLACING = ("purged", "repair", ENTERED)  # reasons for which a copy takes the rows in place of all that it has


class TableProgress(NamedTuple):
    """How far a table is. `state`: waiting, reading, done, gone (dropped), failed or canceled. `key`: SQL literals."""

    state: str = "waiting"
    key: tuple[str, ...] = ()
    rows: int = 0
    chunks: int = 0


_NOTHING_READ = TableProgress()
NO_TARGETS: Final[Mapping[tuple[str, str], str]] = MappingProxyType({})


@dataclass(slots=True)
class Task:
    """One table of a request."""

    request: str
    database: str
    table: str
    progress: TableProgress = _NOTHING_READ
    safe: TableProgress = _NOTHING_READ  # what all readers have acked permanently
    by: tuple[str, ...] = ()  # the columns of the key
    estimate: int = 0  # rows, as the server guesses
    problem: str = ""
    began_ms: int = 0
    ended_ms: int = 0
    target: str = ""  # ``DATABASE.TABLE`` that readers see, where that is another

    @property
    def open(self) -> bool:
        """Whether there is something to do."""
        return self.progress.state in OPEN

    def rate(self, now_ms: int) -> float:
        """Rows a second since it began, until its end or now."""
        seconds = ((self.ended_ms or now_ms) - self.began_ms) / 1000 if self.began_ms else 0.0
        return self.progress.rows / seconds if seconds > 0 else 0.0

    def left(self, now_ms: int) -> float | None:
        """Seconds until it is done at that rate; None where that is not known, or nothing is left to do."""
        rate = self.rate(now_ms)
        return max(0.0, self.estimate - self.progress.rows) / rate if self.open and rate else None


class ChunkMark(NamedTuple):
    """A chunk that is in the store: the sequence of its last event, and where it left its table."""

    sequence: int
    task: int
    progress: TableProgress


class SnapshotRequest(NamedTuple):
    """A wish: tables by pattern, why (initial, asked, purged, missing, reread, repair, entered), or to cancel what is open.

    `where`: a condition on the rows, `columns`: of these only; both empty: whole tables.
    """

    id: str
    tables: tuple[str, ...] = ()
    reason: str = "asked"
    asked_ms: int = 0
    cancel: bool = False
    problem: str = ""
    where: str = ""
    columns: tuple[str, ...] = ()

    @property
    def part(self) -> tuple[str, tuple[str, ...]]:
        """What part of its tables is wanted."""
        return self.where, self.columns


@dataclass(slots=True)
class Progress:
    """All requests of a store that are not forgotten yet, and their tables in the order in which they are read."""

    epoch: int = 0
    requests: list[SnapshotRequest] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    marks: list[ChunkMark] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether any table is waiting or being read."""
        return any(task.open for task in self.tasks)

    @property
    def failed(self) -> bool:
        """Whether any table or request could not be served."""
        return any(task.progress.state == "failed" for task in self.tasks) or any(request.problem for request in self.requests)

    def take(
        self, request: SnapshotRequest, tables: Iterable[tuple[str, str]], targets: Mapping[tuple[str, str], str] = NO_TARGETS
    ) -> None:
        """Add a request for `tables`, but for those that already wait and will give its readers the same. When nothing else is open, the
        requests before it are forgotten. `targets`: the names that readers see, where they are others; such a target is read whole.
        """
        if not self.open:
            self.requests, self.tasks, self.marks = [], [], []
        replaces = request.reason in REPLACING
        alike = {one.id for one in self.requests if one.part == request.part and (one.reason in REPLACING or not replaces)}
        waiting = {
            (task.database, task.table) for task in self.tasks if task.progress.state == "waiting" and task.request in alike
        }
        wanted = list(tables)
        unread = {targets[name] for name in wanted if name in targets and name not in waiting}
        added = [
            Task(request.id, *name, target=targets.get(name, ""))
            for name in wanted
            if name not in waiting or targets.get(name) in unread
        ]
        self.requests.append(request)
        self.tasks += added

    def cancel(self) -> None:
        """Leave out what is not done."""
        for task in self.tasks:
            if task.open:
                self.settle(task, "cancelled")

    def settle(self, task: Task, state: str, problem: str = "") -> None:
        """A table has come to its end."""
        task.progress = task.progress._replace(state=state)
        task.problem, task.ended_ms = problem, calendar_ms()

    def ahead_of(self, newest: int) -> bool:
        """Whether chunks count as put that a store, whose last event is `newest`, does not have."""
        return bool(self.marks) and self.marks[-1].sequence > newest

    def mark(self, sequence: int, task: Task, acked: int) -> None:
        """A chunk of `task` is in the store, up to `sequence`; what is up to `acked` is on disk, or all readers have acked it, permanently."""
        self.marks.append(ChunkMark(sequence, self.tasks.index(task), task.progress))
        while self.marks and (self.marks[0].sequence <= acked or len(self.marks) > MARKS):
            mark = self.marks.pop(0)
            if mark.sequence <= acked:
                self.tasks[mark.task].safe = mark.progress

    def rewind(self, acked: int | None) -> None:
        """The store is another one, or lost its end: go back to what is kept of it, or every reader had acked; None: there is no reader."""
        for mark in self.marks:
            if acked is not None and mark.sequence <= acked:
                self.tasks[mark.task].safe = mark.progress
        for task in self.tasks:
            if task.open or (acked is not None and task.progress.state == "done"):
                task.progress = task.safe
        self.marks = []
