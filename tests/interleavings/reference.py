"""The x86 model once more, by the book and without any reduction, for programs that are lists of operations.

It shares no code with the scheduler, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Operation = tuple[Any, ...]
Program = tuple[Operation, ...]


class Machine(NamedTuple):
    """One moment."""

    memory: tuple[tuple[str, Any], ...]
    at: tuple[int, ...]
    seen: tuple[tuple[Any, ...], ...]
    buffers: tuple[tuple[tuple[str, Any], ...], ...]
    told: tuple[frozenset[int], ...]  # of each: who has made the fence that its heavy fence asks for
    killed: frozenset[int]
    freed: frozenset[int]  # of the killed: whose locks are free


def outcomes(programs: list[Program], mortal: frozenset[int] = frozenset()) -> set[Any]:
    """Return (what each saw, or "killed", or "stuck"; all words at the end) for every schedule."""
    n = len(programs)
    first = Machine((), (0,) * n, ((),) * n, ((),) * n, (frozenset(),) * n, frozenset(), frozenset())
    todo, met, found = [first], {first}, set()
    while todo:
        machine = todo.pop()
        nexts = list(_nexts(programs, mortal, machine))
        ended = all(machine.at[i] > len(programs[i]) or i in machine.killed for i in range(n))
        if not nexts:
            words = tuple((k, v) for k, v in machine.memory if v and k[0] not in "ls")
            seen = tuple(
                "killed" if i in machine.killed else machine.seen[i] if machine.at[i] > len(programs[i]) else "stuck"
                for i in range(n)
            )
            assert ended or "stuck" in seen
            found.add((seen, words))
        for machine in nexts:
            if machine not in met:
                met.add(machine)
                todo.append(machine)
    return found


def _put(items: tuple[Any, ...], i: int, value: Any) -> tuple[Any, ...]:
    return (*items[:i], value, *items[i + 1 :])


def _nexts(programs: list[Program], mortal: frozenset[int], m: Machine) -> Iterator[Machine]:
    for i, program in enumerate(programs):
        words = dict(m.memory)
        buffer = m.buffers[i]

        def after(values: dict[str, Any], i: int = i, m: Machine = m, **changes: Any) -> Machine:
            return m._replace(memory=tuple(sorted(values.items())), **changes)

        if buffer:
            yield after({**words, buffer[0][0]: buffer[0][1]}, buffers=_put(m.buffers, i, buffer[1:]))
        if i in m.killed:
            if not buffer and i not in m.freed:
                yield after({k: 0 if k[0] == "l" and v == i + 1 else v for k, v in words.items()}, freed=m.freed | {i})
            continue
        if m.at[i] > len(program):
            continue
        if i in mortal:
            yield m._replace(killed=m.killed | {i})
        on = {"at": _put(m.at, i, m.at[i] + 1)}
        if m.at[i] == len(program):
            yield after(words, **on)
            continue
        what, *rest = program[m.at[i]]
        place = rest[0] if rest else ""
        drained = {**words, **dict(buffer)}
        empty = {**on, "buffers": _put(m.buffers, i, ())}

        def saw(value: Any, i: int = i, m: Machine = m) -> dict[str, Any]:
            return {"seen": _put(m.seen, i, (*m.seen[i], value))}

        now = drained.get(place, 0)
        if what in ("load", "unless"):  # the second ends the program where it finds something
            value = next((v for k, v in reversed(buffer) if k == place), words.get(place, 0))
            on = {"at": _put(m.at, i, len(program))} if what == "unless" and value else on
            yield after(words, **on, **saw(value))
        elif what == "store":
            yield after(words, **on, buffers=_put(m.buffers, i, (*buffer, tuple(rest))))
        elif what == "fence":
            yield after(drained, **empty)
        elif what == "heavy":
            others = frozenset(range(len(programs))) - {i}
            told = m.told[i]
            if buffer and not told:
                yield after(drained, buffers=_put(m.buffers, i, ()))
                continue
            for j in others - told:
                yield after({**words, **dict(m.buffers[j])}, buffers=_put(m.buffers, j, ()), told=_put(m.told, i, told | {j}))
            if told == others:
                yield after(words, **on, told=_put(m.told, i, frozenset()))
        elif what == "post" or (what == "wait" and now):
            yield after({**drained, place: now + (1 if what == "post" else -1)}, **empty)
        elif what == "unlock":
            yield after({**drained, place: 0}, **empty)
        elif what == "try":
            yield after({**drained, place: now or i + 1}, **empty, **saw(int(not now)))
        elif what == "lock" and not now:
            yield after({**drained, place: i + 1}, **empty)
        elif what in ("value", "taken"):
            yield after(words, **on, **saw(int(bool(words.get(place, 0))) if what == "taken" else words.get(place, 0)))
