"""Several servers as one: one of them is killed, held, and started again, while the others answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Member(Protocol):
    """One of the servers."""

    address: str

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Cluster:
    """Servers that keep the same. `choose` returns the number of the one that the next `stop` or `pause` hits; `start` and `resume` are for that one."""

    def __init__(self, members: Sequence[Member], choose: Callable[[], int], address: str = "") -> None:
        self.members, self._choose = members, choose
        self.address = address or ",".join(member.address for member in members)
        self._hit = members[0]

    def stop(self) -> None:
        """Kill one."""
        self._hit = self.members[self._choose()]
        self._hit.stop()

    def start(self) -> None:
        """Start it again."""
        self._hit.start()

    def pause(self) -> None:
        """Let one answer nothing."""
        self._hit = self.members[self._choose()]
        self._hit.pause()

    def resume(self) -> None:
        """End `pause`."""
        self._hit.resume()
