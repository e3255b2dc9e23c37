"""What clients of canal's protocol want to be read besides the options: with ``client_filters = "replace"``, as in Canal.

There a client's filter takes the place of the server's, so a client decides what is read. Here each client that has given a filter adds the tables
that it names to those of `include`; `exclude` holds all the same. `shmstore serve` writes a client's filter into the store's home when it
subscribes. A filter that comes, changes or goes changes the filters as a reload does: at the end of a transaction, with an event.
"""

from __future__ import annotations

import dataclasses
import logging

from shmstore.home.home import Home
from shmstore.home.reader_state import filters_kept
from shmstore.patterns.table_patterns import Patterns
from shmstore.producer.settings import Settings


class ClientFilters:
    """The filters of the clients of one store, as of the last look. Without `on` there are none."""

    def __init__(self, home: Home, log: logging.Logger, *, on: bool) -> None:
        self._home, self._log, self._on = home, log, on
        self._kept: dict[str, list[str]] = {}  # expressions by subscription
        self._wanted: tuple[str, ...] = ()  # the same as patterns of the producer, each once, sorted
        self.look()

    def look(self) -> bool:
        """See which filters there are; return whether they name other tables than at the last look. Call it about once a second."""
        if not self._on or (kept := filters_kept(self._home)) == self._kept:
            return False
        before, self._kept = self._wanted, kept
        self._wanted = tuple(sorted({pattern for name in kept for pattern in self._patterns(name)}))
        return self._wanted != before

    def joined(self, settings: Settings) -> Settings:
        """Return `settings` with the tables that clients want besides. Where there is no `include`, all are read anyway."""
        more = tuple(pattern for pattern in self._wanted if pattern not in settings.include)
        if not settings.include or not more:
            return settings
        try:
            return dataclasses.replace(settings, include=(*settings.include, *more))
        except ValueError as error:
            self._log.error("the filters of clients are too long together, so none of them is read: %s", error)
            return settings

    def _patterns(self, subscription: str) -> list[str]:
        found = [f"regex:{expression}" for expression in self._kept[subscription]]
        for pattern in found:
            try:
                if Patterns.parse(pattern) == Patterns((pattern,)):
                    continue
                why = "it is another one here, or several"  # a comma behind a bracket that is escaped
            except ValueError as error:
                why = str(error)
            self._log.error("the filter of %s is not read, for its expression %r: %s", subscription, pattern[6:], why)
            return []
        return found
