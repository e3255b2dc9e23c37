"""The conditions of one store: one for each subscription's reader, one for the producer that waits for room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmstore.segment import Segment
from shmstore.sync import Condition


class Wakeups:
    """Opens a condition when it is first needed, and keeps it."""

    def __init__(self, segment: Segment) -> None:
        self._stem = f"/{segment.semaphores}"
        self._rights = segment.mode, -1 if segment.mode == 0o600 else segment.gid, segment.fd
        self._readers: dict[int, Condition] = {}
        self._learn: Callable[[int, int], None] | None = None
        self.room = Condition(f"{self._stem}.room", *self._rights)

    def condition(self, place: int) -> Condition:
        """Return a new condition for the reader at `place` to wait on."""
        return Condition(f"{self._stem}.{place}", *self._rights)

    def notify(self, places: list[int]) -> None:
        """Wake the readers of `places`."""
        for place in places:
            condition = self._readers.get(place)
            if condition is None:
                condition = self._readers[place] = self.condition(place)
                if self._learn is not None:
                    self._learn(place, condition.address)
            condition.notify()

    def taught(self, writer: Any) -> Any:
        """Let a compiled writer wake the readers whose semaphores are open; return its put and put_encoded."""
        self._learn = writer.learn
        for place, condition in self._readers.items():
            writer.learn(place, condition.address)
        return writer.put_now, writer.put_encoded_now

    def close(self) -> None:
        """Forget the semaphores; they stay for others."""
        if self._learn is not None:
            for place in self._readers:
                self._learn(place, 0)
        for condition in (self.room, *self._readers.values()):
            condition.close()
