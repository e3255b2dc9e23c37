"""Takes readings of the stores that can be seen, once a second while there is a viewer, with access to read alone."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from shmstore import ShmStoreError, StoreStat, StoreView
from shmstore.clock import calendar_ms
from shmstore.consumer.live.figures import Host
from shmstore.consumer.live.history import EVERY, History
from shmstore.consumer.live.model import Model, Reading, TableFigures
from shmstore.consumer.monitoring.metrics import look
from shmstore.consumer.monitoring.table_counts import Counting, TableCounts
from shmstore.home.home import Home
from shmstore.home.snapshot_progress import Progress
from shmstore.home.snapshots import snapshot_status
from shmstore.store.remembered import Homes

PERIOD: Final = 1.0  # seconds between two readings
MOST_EVENTS: Final = 4000  # of a store that are counted one by one each half a second; of more these stand for all
LINGER: Final = 20.0  # seconds without a watcher after which it ends: a page that is loaded again finds its counts

_log = logging.getLogger("shmstore.live")


class Observer:
    """Observes the stores `names`, or all of this host; those that are not in memory in their homes, in the folder `state`. It takes a reading
    every `period` seconds while there is a viewer. With `always` it also takes one every `EVERY` seconds without one, for the lines
    of the last minutes, and counts no events meanwhile; without, it does nothing then.

    Any thread may `watch`, `wait` and read `history`; `close` ends it.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        *,
        state: str | os.PathLike[str] | None = None,
        period: float = PERIOD,
        linger: float = LINGER,
        always: bool = False,
    ) -> None:
        self._names, self._homes, self.state = tuple(names), Homes(state), state
        self._period, self._linger, self._always = period, linger, always
        self.history = History()
        self._changed = threading.Condition()
        self._watchers = 0
        self._closed = False
        self._quiet = True  # no viewer watches, nor did within `linger` seconds
        self._host: Host | None = None
        self._number = 0  # of the reading that made it
        self._thread: threading.Thread | None = None
        if always:
            with self._changed:
                self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._thread.start()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Have the stores observed while the block runs."""
        with self._changed:
            self._watchers += 1
            if self._quiet:
                self._host = None  # what was seen when there was no viewer is old
                self._changed.notify_all()
            if self._thread is None and not self._closed:
                self._start()
        try:
            yield
        finally:
            with self._changed:
                self._watchers -= 1
                self._changed.notify_all()

    def wait(self, after: int, seconds: float) -> tuple[int, Host | None]:
        """Return the number and the host of the first reading with a number above `after`; None where there is none after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._number > after and self._host is not None), seconds)
            return (self._number, self._host) if self._number > after and self._host is not None else (after, None)

    def names(self) -> list[str]:
        """The stores that are observed, as far as they are in memory."""
        return list(self._names) or StoreView.names()

    def close(self) -> None:
        """Observe no more, and let all who wait go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        model, counting = Model(), None
        watched = -math.inf
        try:
            while True:
                now = time.monotonic()
                with self._changed:
                    watched = now if self._watchers else watched
                    self._quiet = now - watched > self._linger
                    if self._closed or (self._quiet and not self._always):
                        self._thread = None  # the process that watches next begins again
                        return
                if self._quiet and counting is not None:
                    counting.close()
                    counting = None
                elif not self._quiet and counting is None:
                    counting = Counting(self.names, MOST_EVENTS)
                    counting.start()
                try:
                    host = model.take(self._reading(counting.counts if counting is not None else {}))
                except Exception:  # a view that shows nothing new for a second is no reason to end
                    _log.exception("the stores could not be observed")
                else:
                    self.history.take(now, host)
                    with self._changed:
                        self._host = host
                        self._number += 1
                        self._changed.notify_all()
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._closed or (self._quiet and self._watchers > 0), EVERY if self._quiet else self._period
                    )
        finally:
            if counting is not None:
                counting.close()

    def _reading(self, counts: dict[str, TableCounts]) -> Reading:
        stats, missing = look(self._names)
        if not stats:  # where others can be seen, what belongs to another user is no alarm
            stats, missing = look(self._names, all_reasons=True)
        remembered, unreadable = self._homes.look(self._names, {*StoreView.names(), *(stat.name for stat in stats)})
        for store in remembered:
            missing.pop(store.name, None)
        tables = {name: tables_of(each) for name, each in list(counts.items())}
        snapshots = {stat.name: found for stat in stats if (found := self._snapshot(stat)) is not None}
        return Reading(time.monotonic(), calendar_ms(), stats, missing | unreadable, tables, snapshots, remembered)

    def _snapshot(self, stat: StoreStat) -> Progress | None:
        """How far a store's snapshots are; None where there are none, or this user may not look."""
        state = Home(stat.log.home).state if stat.log is not None else self.state
        with suppress(ShmStoreError, OSError):
            return snapshot_status(stat.name, state=state)
        return None


def tables_of(counts: TableCounts) -> dict[tuple[str, str], TableFigures]:
    """Return what was counted, by table. The thread that counts may continue meanwhile."""
    rows: dict[tuple[str, str], dict[str, int]] = {}
    for (database, table, operation), count in list(counts.rows.items()):
        rows.setdefault((database, table), {})[operation] = count
    ddls = dict(list(counts.ddls.items()))
    found = {}
    for name in [*rows, *(ddls.keys() - rows.keys())]:
        ddl_ms, kind, sql = ddls.get(name, (0, "", ""))
        found[name] = TableFigures(rows.get(name, {}), counts.bytes.get(name, 0), counts.last_ms.get(name, 0), kind, ddl_ms, sql)
    return found
