"""The scheduler's two models once more, by the book and without any reduction, for programs that are lists of operations.

It shares no code with the scheduler, so that the two can be compared. A weak load gives any store to its place that was the newest
at some moment since the process's view (`since`), and no older one than the process has seen there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Operation = tuple[Any, ...]
Program = tuple[Operation, ...]


class Machine(NamedTuple):
    """One moment."""

    stores: tuple[tuple[str, Any], ...]  # all that were seen, in order: the moments of time
    locks: tuple[tuple[str, int], ...]  # and semaphores
    at: tuple[int, ...]
    seen: tuple[tuple[Any, ...], ...]
    buffers: tuple[tuple[tuple[str, Any, str], ...], ...]
    since: tuple[int, ...]
    newest: tuple[tuple[tuple[str, int], ...], ...]  # of each: the newest store it has seen at a place
    told: tuple[frozenset[int], ...]  # of each: who has made the fence that its heavy fence asks for
    killed: frozenset[int]
    freed: frozenset[int]  # of the killed: whose locks are free


def outcomes(programs: list[Program], mortal: frozenset[int] = frozenset(), *, weak: bool = False) -> set[Any]:
    """Return (what each saw, or "killed", or "stuck"; all words at the end) for every schedule."""
    n = len(programs)
    none: tuple[Any, ...] = ((),) * n
    first = Machine((), (), (0,) * n, none, none, (0,) * n, none, (frozenset(),) * n, frozenset(), frozenset())
    todo, met, found = [first], {first}, set()
    while todo:
        machine = todo.pop()
        nexts = list(_nexts(programs, mortal, machine, weak))
        if not nexts:
            words = tuple(sorted((place, value) for place, value in dict(machine.stores).items() if value))
            seen = tuple(
                "killed" if i in machine.killed else machine.seen[i] if machine.at[i] > len(programs[i]) else "stuck"
                for i in range(n)
            )
            found.add((seen, words))
        for machine in nexts:
            if machine not in met:
                met.add(machine)
                todo.append(machine)
    return found


def _put(items: tuple[Any, ...], i: int, value: Any) -> tuple[Any, ...]:
    return (*items[:i], value, *items[i + 1 :])


def _flushes(m: Machine, i: int, weak: bool) -> Iterator[Machine]:
    buffer = m.buffers[i]
    for k, (place, value, what) in enumerate(buffer[: None if weak else 1]):
        if k and (what != "store" or any(earlier[0] == place for earlier in buffer[:k])):
            continue
        buffers = _put(m.buffers, i, buffer[:k] + buffer[k + 1 :])
        if what in ("post", "unlock"):
            locks = dict(m.locks)
            locks[place] = locks.get(place, 0) + 1 if what == "post" else 0
            yield m._replace(locks=tuple(sorted(locks.items())), buffers=buffers)
            continue
        yield m._replace(
            stores=(*m.stores, (place, value)),
            buffers=buffers,
            newest=_put(m.newest, i, tuple(sorted({**dict(m.newest[i]), place: len(m.stores) + 1}.items()))),
        )


def _loads(m: Machine, i: int, place: str, acquire: bool, weak: bool) -> Iterator[tuple[Any, Machine]]:
    for where, value, _ in reversed(m.buffers[i]):
        if where == place:
            yield value, m
            return
    times = [0, *(t for t, (where, _) in enumerate(m.stores, 1) if where == place)]
    oldest = max([t for t in times if t <= m.since[i]][-1], dict(m.newest[i]).get(place, 0)) if weak else times[-1]
    for t in times:
        if t >= oldest:
            newest = tuple(sorted({**dict(m.newest[i]), place: t}.items()))
            since = _put(m.since, i, max(m.since[i], t)) if acquire else m.since
            yield m.stores[t - 1][1] if t else 0, m._replace(newest=_put(m.newest, i, newest), since=since)


def _nexts(programs: list[Program], mortal: frozenset[int], m: Machine, weak: bool) -> Iterator[Machine]:
    for i, program in enumerate(programs):
        locks = dict(m.locks)
        yield from _flushes(m, i, weak)
        if i in m.killed:
            if not m.buffers[i] and i not in m.freed:
                free = {k: 0 if k[0] == "l" and v == i + 1 else v for k, v in locks.items()}
                yield m._replace(locks=tuple(sorted(free.items())), freed=m.freed | {i})
            continue
        if m.at[i] > len(program):
            continue
        if i in mortal:
            yield m._replace(killed=m.killed | {i})
        on = _put(m.at, i, m.at[i] + 1)
        if m.at[i] == len(program):
            yield m._replace(at=on)
            continue
        what, *rest = program[m.at[i]]
        place = rest[0] if rest else ""
        now, empty = locks.get(place, 0), not m.buffers[i]
        if what in ("wait", "lock", "try", "value", "taken") and any(where == place for where, _, _ in m.buffers[i]):
            continue
        caught_up = _put(m.since, i, len(m.stores))

        def locked(value: int, m: Machine = m, on: Any = on, locks: Any = locks, place: str = place, **changes: Any) -> Machine:
            return m._replace(at=on, locks=tuple(sorted({**locks, place: value}.items())), **changes)

        def saw(value: Any, i: int = i, m: Machine = m) -> dict[str, Any]:
            return {"seen": _put(m.seen, i, (*m.seen[i], value))}

        if what in ("load", "acquire", "unless"):  # the last ends the program where it finds something
            for value, after in _loads(m, i, place, what == "acquire", weak):
                end = _put(m.at, i, len(program)) if what == "unless" and value else on
                yield after._replace(at=end, **saw(value))
        elif what in ("store", "release"):
            yield m._replace(at=on, buffers=_put(m.buffers, i, (*m.buffers[i], (*rest, what))))
        elif what in ("post", "unlock") and weak:
            yield m._replace(at=on, buffers=_put(m.buffers, i, (*m.buffers[i], (place, 0, what))))
        elif what == "fence" and empty:
            yield m._replace(at=on, since=caught_up)
        elif what == "heavy" and (empty or m.told[i]):
            others = frozenset(range(len(programs))) - {i}
            for j in others - m.told[i]:
                if not m.buffers[j]:
                    yield m._replace(told=_put(m.told, i, m.told[i] | {j}), since=_put(m.since, j, len(m.stores)))
            if m.told[i] == others:
                yield m._replace(at=on, since=caught_up, told=_put(m.told, i, frozenset()))
        elif what == "post" and empty:
            yield locked(now + 1)
        elif what == "unlock" and empty:
            yield locked(0)
        elif what == "wait" and now and (empty or weak):
            yield locked(now - 1, since=caught_up)
        elif what == "try" and (empty or weak):
            yield locked(now or i + 1, since=caught_up, **saw(int(not now)))
        elif what == "lock" and not now and (empty or weak):
            yield locked(i + 1, since=caught_up)
        elif what in ("value", "taken"):
            yield m._replace(at=on, **saw(int(bool(now)) if what == "taken" else now))
