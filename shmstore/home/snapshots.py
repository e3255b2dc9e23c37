"""What snapshots were asked for and how far they are: durable, in the store's home.

    STATE/STORE/snapshot.progress        written by the producer: which tables, the last key read of each, rows so far
    STATE/STORE/snapshot-ID.request      written by the one that asks; the producer takes it in and removes it

Each file is replaced whole. A chunk is put first and written down after: after a crash between the two it is read and put
again, which changes nothing for a reader that keeps rows by key. What was put may be lost with the host, as far as it was not yet
on disk, or without a log with the store's memory; so each table also remembers up to where the log is on disk, or how far every reader's
checkpoint has come, and `Progress.rewind` goes back there.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from shmstore.clock import calendar_ms
from shmstore.errors import StoreError
from shmstore.home.acks import NOWHERE, acks_of
from shmstore.home.home import Home, May
from shmstore.patterns.table_patterns import Patterns
from shmstore.stored_json import read_json

__all__ = [
    "REPLACING",
    "ChunkMark",
    "Progress",
    "ProgressFile",
    "SnapshotRequest",
    "TableProgress",
    "Task",
    "cancel_snapshot",
    "request_snapshot",
    "snapshot_status",
    "snapshot_waits",
]

FORMAT = 1
NAME: Final = "snapshot.progress"
REQUEST: Final = ".request"
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


class ProgressFile:
    """The files of one store. `may` is looked at before the progress is written, which the producer alone does: see `Home.replace`."""

    def __init__(self, home: Home, may: May | None = None) -> None:
        self.home, self._may = home, may
        self.path = home.path / NAME

    def load(self) -> Progress | None:
        """Return what is written; None where nothing ever was. Raises `StoreError` where the file is damaged."""
        try:
            value = _read(self.path)
            tasks = [_task(one) for one in value["tasks"]]
            marks = [ChunkMark(int(sequence), int(task), _table_progress(reached)) for sequence, task, reached in value["marks"]]
            if any(not 0 <= mark.task < len(tasks) for mark in marks):
                raise ValueError("a mark of no table")
            return Progress(int(value["epoch"]), [_request(one) for one in value["requests"]], tasks, marks)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"snapshot progress {self.path} cannot be read ({error}): restore it, or remove it and ask for the snapshot again"
            ) from error

    def save(self, progress: Progress) -> None:
        """Replace what is written. After a crash at any point it is the old or the new, whole."""
        requests = [request._asdict() for request in progress.requests]
        value = asdict(progress)
        for task in value["tasks"]:
            task["place"] = task.pop("progress")  # as the files of format 1 call it
        self._write(self.path, {**value, "requests": requests}, self._may)

    def ask(self, request: SnapshotRequest) -> None:
        """Leave a request for the producer."""
        self._write(self.home.path / f"snapshot-{request.id}{REQUEST}", request._asdict())

    def take_in(self, path: Path) -> None:
        """Remove a request, which is in the progress now. Raises `StoreError`."""
        self.home.remove(path, "snapshot request", self._may)

    def asked(self) -> list[tuple[Path, SnapshotRequest]]:
        """Return the requests that wait, oldest first. One that cannot be read says so itself, as its `problem`: the others are sound."""
        found = []
        for path in sorted(self.home.path.glob(f"snapshot-*{REQUEST}")):
            if not path.is_file():
                continue  # it could neither be read nor be removed
            try:
                request = _request(_read(path))
                Patterns.parse(request.tables)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError) as error:
                name = path.stem.removeprefix("snapshot-")
                request = SnapshotRequest(
                    name, asked_ms=calendar_ms(), problem=f"its file {path.name} cannot be read ({error}): ask again"
                )
            found.append((path, request))
        return sorted(found, key=lambda one: one[1].asked_ms)

    def acked(self, epoch: int) -> int | None:
        """The lowest sequence of `epoch` that every reader's checkpoint has reached; None where there is no reader."""
        acks = acks_of(self.home)
        reached = [saved.sequence if saved.epoch == epoch else -1 for saved in acks.saved.values() if saved.position != NOWHERE]
        return min([*reached, *([-1] if acks.unreadable else [])], default=None)

    def _write(self, path: Path, value: dict[str, Any], may: May | None = None) -> None:
        content = json.dumps({"shmstore_snapshot": FORMAT, **value}).encode()
        self.home.replace(path, content, "snapshot progress", may)


def request_snapshot(
    store: str,
    tables: str | Sequence[str],
    *,
    where: str = "",
    columns: Sequence[str] = (),
    state: str | os.PathLike[str] | None = None,
    reason: str = "asked",
    id: str = "",
) -> str:
    """Ask the producer of `store` for the rows of `tables` (patterns, as for filters); return the request's id.

    `where` and `columns` ask for a part of them; they are not looked at here, but by the producer. It
    looks about once a second; where none runs, the next one does. It takes a request with an `id` (eight hexadecimal
    digits) that it knows for the one that it has. Raises ValueError, also where there is no pattern: that is no wish for everything.
    """
    patterns = (tables,) if isinstance(tables, str) else tuple(tables)
    if not Patterns.parse(patterns):
        raise ValueError("no table is named: give patterns on DATABASE.TABLE, as in 'shop.*'")
    request = SnapshotRequest(id or new_id(), patterns, reason, calendar_ms(), where=where, columns=tuple(columns))
    ProgressFile(Home.of(store, state)).ask(request)
    return request.id


def cancel_snapshot(store: str, *, state: str | os.PathLike[str] | None = None) -> None:
    """Ask the producer of `store` to leave out what is not snapshotted yet. Rows that were put stay."""
    ProgressFile(Home.of(store, state)).ask(SnapshotRequest(new_id(), cancel=True, asked_ms=calendar_ms()))


def snapshot_status(store: str, *, state: str | os.PathLike[str] | None = None) -> Progress | None:
    """Return how far the snapshots of `store` are; None where none was ever begun. Raises `StoreError`."""
    return ProgressFile(Home.of(store, state)).load()


def snapshot_waits(store: str, *, state: str | os.PathLike[str] | None = None) -> int:
    """Return how many requests no producer has taken up yet."""
    return len(ProgressFile(Home.of(store, state)).asked())


def new_id() -> str:
    """Return a new request's id."""
    return uuid.uuid4().hex[:8]


def _read(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict) or value.get("shmstore_snapshot") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    return value


def _request(value: dict[str, Any]) -> SnapshotRequest:
    tables, columns = (tuple([str(one) for one in names]) for names in (value["tables"], value.get("columns", ())))
    return SnapshotRequest(
        str(value["id"]),
        tables,
        str(value["reason"]),
        int(value["asked_ms"]),
        bool(value["cancel"]),
        str(value["problem"]),
        str(value.get("where", "")),  # not there before a part could be asked for
        columns,
    )


def _table_progress(value: Sequence[Any]) -> TableProgress:
    state, key, rows, chunks = value
    return TableProgress(str(state), tuple([str(one) for one in key]), int(rows), int(chunks))


def _task(value: dict[str, Any]) -> Task:
    return Task(
        str(value["request"]),
        str(value["database"]),
        str(value["table"]),
        _table_progress(value["place"]),
        _table_progress(value["safe"]),
        tuple([str(one) for one in value["by"]]),
        int(value["estimate"]),
        str(value["problem"]),
        int(value["began_ms"]),
        int(value["ended_ms"]),
        str(value.get("target", "")),  # not there before tables could have another name
    )
