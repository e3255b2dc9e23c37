"""What the live views draw as lines: a point of each store every few seconds, of the last minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from shmstore.consumer.live.figures import Host

SPAN: Final = 900.0  # seconds that the lines cover
EVERY: Final = 5.0  # seconds between two points


class StorePoint(NamedTuple):
    """A store at one moment: rows put a second, seconds that its producer is behind the source, bytes of its log, and for each reader how many
    seconds its oldest event has waited. None: not known, or there is none."""

    rows: float | None
    behind: float | None
    log: int | None
    readers: Mapping[str, float]


class Point(NamedTuple):
    """All stores in memory at one moment; `number` counts the points, `at_ms` is in milliseconds since 1970."""

    number: int
    at_ms: int
    stores: Mapping[str, StorePoint]


class History:
    """The points of the last `SPAN` seconds. One thread takes them; any may ask."""

    def __init__(self) -> None:
        self._points: tuple[Point, ...] = ()  # replaced as a whole, so that another thread sees the points before or after
        self._kept: deque[tuple[float, Point]] = deque()

    def take(self, at: float, host: Host) -> None:
        """Keep a point of what `host` shows at `at`, seconds of a clock that only goes forward, unless the last one is too near."""
        if self._kept and at - self._kept[-1][0] < EVERY:
            return
        number = self._kept[-1][1].number + 1 if self._kept else 1
        stores = {
            store.name: StorePoint(
                store.arrive.rate.rows if store.arrive.rate is not None else None,
                store.arrive.delay,
                store.log.bytes if store.log is not None else None,
                {reader.name: reader.waited if reader.lag_events else 0.0 for reader in store.readers},
            )
            for store in host.stores
        }
        self._kept.append((at, Point(number, host.now_ms, stores)))
        while at - self._kept[0][0] > SPAN:
            self._kept.popleft()
        self._points = tuple(point for _, point in self._kept)

    def after(self, number: int) -> Sequence[Point]:
        """The points with a number above this one, oldest first."""
        return [point for point in self._points if point.number > number]
