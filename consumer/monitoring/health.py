"""What keeps stores from making progress, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from shmstore import StoreStat
from shmstore.clock import calendar_ms

SILENCE_MS = 60_000  # no sign of life, no word of the source or no free space for so long is a problem
NONE: Final[Mapping[str, str]] = MappingProxyType({})


class HealthFinding(NamedTuple):
    """Something that is wrong: in which store (none: it is missing, and `says` names it), what it is, and what to do where that is not in it."""

    store: str
    says: str
    fix: str = ""

    def __str__(self) -> str:
        return (f"store {self.store!r}: " if self.store else "") + ": ".join(filter(None, (self.says, self.fix)))


def problems(stats: Iterable[StoreStat], missing: Mapping[str, str] = NONE) -> list[str]:
    """Return what keeps these stores, and those `missing` (and why), from making progress, a sentence each."""
    now = calendar_ms()
    return [*missing.values(), *(str(each) for stat in stats for each in findings(stat, now))]


def findings(stat: StoreStat, now_ms: int) -> Iterator[HealthFinding]:
    """Yield what keeps a store from making progress. Links that stand prove nothing: what counts is what came."""
    stream, name = stat.stream, stat.name
    if not stat.producer_alive:
        yield HealthFinding(name, "no producer runs", f"start one: `shmstore produce --store {name} --host ...`, or its service")
    elif stat.heartbeat_ms and now_ms - stat.heartbeat_ms > SILENCE_MS:
        says = f"its producer, pid {stat.producer_pid}, has given no sign of life for {_since(stat.heartbeat_ms, now_ms)}"
        yield HealthFinding(name, says, "is it stopped or starved? Look at its log, and start it again")
    elif stat.log is not None and stat.log.trouble:
        yield HealthFinding(name, stat.log.trouble)
    elif stat.space_wanted is not None:  # a source that is not read says nothing, either
        if now_ms - max(stream.put_ms, stat.created_ms) > SILENCE_MS:
            yield HealthFinding(name, f"nothing was put for {_since(stream.put_ms, now_ms)}", stat.holdup)
    elif stream.paused_ms:
        pass  # as it was asked to be: the live views say so
    elif stream.heard_ms and not stream.connected:
        yield HealthFinding(
            name, f"its producer has no link to {stat.source}", "its log says why; `shmstore doctor` checks server and account"
        )
    elif stream.heard_ms and now_ms - stream.heard_ms > SILENCE_MS:
        says = f"{stat.source} has been silent for {_since(stream.heard_ms, now_ms)}"
        yield HealthFinding(name, says, "is the server, or the network, down? `shmstore doctor` tries it")
    for each in stat.subscriptions:
        if each.state == "lost":
            yield HealthFinding(name, f"subscription {each.name!r} was evicted", stat.after_eviction(each.name))


def _since(then_ms: int, now_ms: int) -> str:
    return f"{(now_ms - then_ms) / 1000:,.0f} s" if then_ms else "ever"
