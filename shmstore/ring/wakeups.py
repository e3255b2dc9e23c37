"""The conditions of one store: one for each subscription's reader, one for the producer that waits for free space."""

from __future__ import annotations

from shmstore.memory.layout import header_word, subscription_word
from shmstore.memory.segment import Segment
from shmstore.memory.semaphores import Condition


class Wakeups:
    """Finds the conditions, and keeps those of readers that were woken. Waking one cannot fail."""

    def __init__(self, segment: Segment) -> None:
        self._fixed = segment.views.fixed
        self._readers: dict[int, Condition] = {}
        self.freed = Condition(self._fixed, header_word("freed"))

    def condition(self, entry: int) -> Condition:
        """Return the condition that the reader at `entry` waits on."""
        return Condition(self._fixed, subscription_word(entry, "woken"))

    def notify(self, entries: list[int]) -> None:
        """Wake the readers of `entries`."""
        for entry in entries:
            condition = self._readers.get(entry)
            if condition is None:
                condition = self._readers[entry] = self.condition(entry)
            condition.notify()
