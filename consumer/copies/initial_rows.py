"""The rows that were there before the first change: a snapshot of the tables that have no copy yet, and how far it is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from shmstore import ShmStoreError, StoreView
from shmstore.clock import calendar_ms
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.home.snapshot_progress import Progress
from shmstore.home.snapshots import new_id, request_snapshot, snapshot_status
from shmstore.units import span

_LOOK_SECONDS = 1.0
_log = logging.getLogger(__name__)


def require_one_source(selection: CopiedTables) -> None:
    """Raise ValueError where the store cannot have snapshots, `StoreNotFound` where there is none."""
    with StoreView.attach(selection.store, path=selection.path, state=selection.state) as store:
        if store.of_group:
            raise ValueError(f"store {selection.store!r} has several sources: a snapshot needs a store with a single source")


class InitialRows(threading.Thread):
    """Asks the producer for the tables of `selection` but those that match the patterns `there`, once the subscription is read. While `active` it logs
    the progress."""

    def __init__(self, selection: CopiedTables, there: Iterable[str], active: Callable[[], bool]) -> None:
        super().__init__(name="initial rows", daemon=True)
        self._selection, self._active = selection, active
        tables = selection.tables
        self._tables = [*tables.wanted, *(f"!{pattern}" for pattern in (*tables.left_out, *there))]
        self._ending = threading.Event()
        self.finished = False  # all rows are in the store
        self.failed = False  # nothing was asked for

    def run(self) -> None:
        """Wait for the query's subscription: what is put from then on reaches it. Then ask, and look until the rows are in the store."""
        try:
            self._ask_and_look()
        except Exception as error:  # the query continues, and no other process would say that rows are missing
            self.failed = True
            _log.exception(
                "initial rows cannot be asked for, so copies begin without them: shmstore snapshot %s asks: %s",
                self._selection.store,
                error,
            )

    def _ask_and_look(self) -> None:
        while not self._reads():
            if not self._rest():
                return
        selection, request, said = self._selection, new_id(), ""
        state = StoreView.home_of(selection.store, path=selection.path, state=selection.state).state
        request_snapshot(selection.store, self._tables, state=state, reason="missing", id=request)
        while self._rest():
            try:
                progress = snapshot_status(selection.store, state=state)
            except ShmStoreError:
                continue  # being replaced by another version's
            line = _line(progress, request)
            if line and line != said:
                _log.info("%s", line)
                said = line
            if line.endswith("done") and progress is not None and not progress.open:  # nor rows that an earlier run asked for
                self.finished = True
                return

    def _rest(self) -> bool:
        """Wait a moment; False where the query has ended."""
        return not self._ending.wait(_LOOK_SECONDS) and self._active()

    def _reads(self) -> bool:
        selection = self._selection
        try:
            with StoreView.attach(selection.store, path=selection.path, restore=False) as store:
                return any(each.name == selection.subscription and each.alive for each in store.stat().subscriptions)
        except ShmStoreError:
            return False


def _line(progress: Progress | None, request: str) -> str:
    """How far `request` is; nothing while no producer has taken it up."""
    if progress is None or request not in [each.id for each in progress.requests]:
        return ""
    tasks = [task for task in progress.tasks if task.request == request]
    rows, left = sum(task.progress.rows for task in tasks), [task for task in tasks if task.open]
    if not left:
        failed = [f"{task.database}.{task.table} ({task.problem})" for task in tasks if task.progress.state == "failed"]
        wrong = f"; failed: {', '.join(failed)}" if failed else ""
        return f"initial rows: {len(tasks)} tables, {rows:,} rows in the store{wrong}: done"
    about = sum(max(task.estimate, task.progress.rows) for task in tasks if task.began_ms)
    now, clock = "", calendar_ms()
    for task in [task for task in left if task.began_ms][:1]:
        seconds = task.left(clock)
        time = "" if seconds is None else f", {span(seconds)} left"
        now = f", now {task.database}.{task.table} of about {task.estimate:,}{time}"
    return f"initial rows: {len(tasks) - len(left)} of {len(tasks)} tables, {rows:,} of about {about:,} rows begun{now}"
