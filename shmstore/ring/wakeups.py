"""The conditions of one store: one for each subscription's reader, one for the producer that waits for room."""

from __future__ import annotations

from shmstore.memory.layout import header_word, subscription_word
from shmstore.memory.segment import Segment
from shmstore.memory.semaphores import Condition


class Wakeups:
    """Finds the conditions, and keeps those of readers that were woken. Waking one cannot fail."""

    def __init__(self, segment: Segment) -> None:
        self._fixed = segment.views.fixed
        self._readers: dict[int, Condition] = {}
        self.room = Condition(self._fixed, header_word("room"))

    def condition(self, place: int) -> Condition:
        """Return the condition that the reader at `place` waits on."""
        return Condition(self._fixed, subscription_word(place, "woken"))

    def notify(self, places: list[int]) -> None:
        """Wake the readers of `places`."""
        for place in places:
            condition = self._readers.get(place)
            if condition is None:
                condition = self._readers[place] = self.condition(place)
            condition.notify()
