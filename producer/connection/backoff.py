"""How long to wait before the next attempt to connect."""

from __future__ import annotations

import random

from shmstore.producer.settings import Settings


class Backoff:
    """A delay that doubles with each failure, up to a limit; drawn from its upper half, so that those who lost the same server do
    not come back all at once."""

    def __init__(self, settings: Settings) -> None:
        self._first, self._longest = settings.retry_first, settings.retry_longest
        self.failures = 0  # in a row

    def failed(self) -> float:
        """Count a failure; return the seconds to wait."""
        self.failures += 1
        return min(self._longest, self._first * (1 << min(self.failures - 1, 30))) * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Let the next failure count as the first."""
        self.failures = 0
