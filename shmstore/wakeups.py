"""The conditions of one store: one for each subscription's reader, one for the producer that waits for room."""

from __future__ import annotations

from shmstore.segment import Segment
from shmstore.sync import Condition


class Wakeups:
    """Opens a condition when it is first needed, and keeps it."""

    def __init__(self, segment: Segment) -> None:
        self._stem = f"/{segment.semaphores}"
        self._mode = segment.mode, -1 if segment.mode == 0o600 else segment.gid
        self._readers: dict[int, Condition] = {}
        self.room = Condition(f"{self._stem}.room", *self._mode)

    def condition(self, place: int) -> Condition:
        """Return a new condition for the reader at `place` to wait on."""
        return Condition(f"{self._stem}.{place}", *self._mode)

    def notify(self, places: list[int]) -> None:
        """Wake the readers of `places`."""
        for place in places:
            condition = self._readers.get(place)
            if condition is None:
                condition = self._readers[place] = self.condition(place)
            condition.notify()

    def close(self) -> None:
        """Forget the semaphores; they stay for others."""
        for condition in (self.room, *self._readers.values()):
            condition.close()
