"""A producer that is paused: it reads nothing, holds no link to the source, and keeps its store, until it is resumed.

It has no link, since a server ends a replica that takes nothing from it (`net_write_timeout`). When it is resumed it continues as behind a lost
link, with all that is checked there: that the server is the same one, and still has what comes next. What pauses it is a file in the
store's home (`home.pauses`), so a restart stays paused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from shmstore import EventStore
from shmstore.clock import calendar_ms
from shmstore.home import pauses
from shmstore.home.pauses import Pause
from shmstore.producer.stop import Stop
from shmstore.units import moment

WINK: Final = 0.2  # seconds between two looks


class Pausing:
    """Whether the producer of `store` is to read."""

    def __init__(self, store: EventStore, log: logging.Logger) -> None:
        self._store, self._log = store, log
        #: That it is to be paused, by the last look.
        self.wanted: Pause | None = None
        #: Since when it reads nothing; 0: it reads.
        self.since_ms = 0

    def look(self) -> None:
        """See whether the producer is paused. Call it about once a second. Raises `StoreError`."""
        self.wanted = pauses.kept(self._store.home)

    def wait(self, stop: Stop, meanwhile: Callable[[], object]) -> None:
        """Wait as long as the producer is paused, or until `stop` says so; `meanwhile` is called again and again, and looks."""
        self.look()
        if self.wanted is None:
            return
        self.since_ms = calendar_ms()
        since = f" since {moment(self.wanted.since_ms)}" if self.wanted.since_ms else ""
        self._log.warning(
            "paused%s%s: nothing is read until `shmstore resume %s`; the source must keep its binlog until then",
            *(since, f" by {self.wanted.by}" if self.wanted.by else "", self._store.name),
        )
        while self.wanted is not None and not stop():
            meanwhile()
            time.sleep(WINK)
        if self.wanted is None:
            self._log.info("resumed after %.0f s", (calendar_ms() - self.since_ms) / 1000)
        self.since_ms = 0
