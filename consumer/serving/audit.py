"""What an administrator wants to know of: a line in the log for each kind of event and each place it comes from, and its count.

Lines are limited: of the same kind from the same place one in `QUIET` seconds is written, the next one says how many were not. Every event
is counted.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from enum import Enum
from typing import Final, NamedTuple

QUIET: Final = 10.0
PLACES: Final = 1024

_log = logging.getLogger("shmstore.serve")


class Incident(Enum):
    """A kind of event: the name of its counter, and what that counts."""

    CONNECTION = ("refused_connections", "Connections refused: the limit was reached, or the server ended.")
    LOGIN = ("failed_logins", "Logins with a wrong user name or password.")
    FILTER = ("refused_filters", "Filters refused: not understood, too long, or too costly to match.")
    SUBSCRIPTION = ("refused_subscriptions", "New client ids refused: a limit of clients was reached.")
    TAKEOVER = ("takeovers", "Clients that continued here after another server, or an earlier one, had served them.")
    UNACKED = ("unacked_disconnects", "Clients whose last connection ended while they held batches not acked.")

    def __init__(self, counter: str, help: str) -> None:
        self.counter = counter
        self.help = help


class _Written(NamedTuple):
    """When the last line of a kind and place was written, and how many were not written since."""

    at: float
    skipped: int


class Audit:
    """Counts incidents, and writes lines of them."""

    def __init__(self) -> None:
        self.counts: Counter[Incident] = Counter()
        self._written: dict[tuple[Incident, str], _Written] = {}

    def note(self, incident: Incident, place: str, text: str) -> None:
        """Count `incident`, and write `text` unless `place` had a line of the kind lately."""
        self.counts[incident] += 1
        now = time.monotonic()
        last = self._written.pop((incident, place), _Written(now - QUIET, 0))
        if now - last.at < QUIET:
            self._written[incident, place] = last._replace(skipped=last.skipped + 1)
            return
        more = f" (and {last.skipped} more like it)" if last.skipped else ""
        level = logging.INFO if incident is Incident.TAKEOVER else logging.WARNING
        _log.log(level, "%s%s", text, more)
        self._written[incident, place] = _Written(now, 0)
        if len(self._written) > PLACES:  # the longest ago
            del self._written[next(iter(self._written))]
