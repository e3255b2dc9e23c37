"""The files of snapshots in a store's home, and the calls that ask for one.

    STATE/STORE/snapshot.progress        written by the producer: which tables, the last key read of each, rows so far
    STATE/STORE/snapshot-ID.request      written by the one that asks; the producer takes it in and removes it

Each file is replaced whole. `snapshot_progress` has the values.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from shmstore.clock import calendar_ms
from shmstore.errors import StoreError
from shmstore.home.acks import NOWHERE, acks_of
from shmstore.home.home import Home, May
from shmstore.home.snapshot_progress import ChunkMark, Progress, SnapshotRequest, TableProgress, Task
from shmstore.patterns.table_patterns import Patterns
from shmstore.stored_json import read_json

__all__ = ["ProgressFile", "cancel_snapshot", "new_id", "request_snapshot", "snapshot_status", "snapshot_waits"]

FORMAT = 1
NAME: Final = "snapshot.progress"
REQUEST: Final = ".request"


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
