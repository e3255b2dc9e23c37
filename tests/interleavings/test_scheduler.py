"""The scheduler itself finds what x86 allows and what it forbids: the litmus tests of its manual, and random programs."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import pytest

from tests.interleavings import reference
from tests.interleavings.process import Memory, Scenario
from tests.interleavings.reference import Operation, Program
from tests.interleavings.scheduler import explore


def _perform(memory: Memory, program: Program) -> tuple[Any, ...]:
    seen = []
    for what, *rest in program:
        match what:
            case "load" | "value":
                seen.append(getattr(memory, what)(rest[0]))
            case "try":
                seen.append(int(memory.try_lock(rest[0])))
            case "taken":
                seen.append(int(memory.taken(rest[0])))
            case "heavy":
                memory.heavy_fence()
            case "unless":
                seen.append(memory.load(rest[0]))
                if seen[-1]:
                    break
            case _:
                getattr(memory, what)(*rest)
    return tuple(seen)


def shared(programs: Collection[Program]) -> list[str]:
    """The words that more than one side touches."""
    touched = [{rest[0] for what, *rest in program if what in ("load", "unless", "store")} for program in programs]
    return sorted(word for word in set().union(*touched) if sum(word in each for each in touched) > 1)


def scenario_of(*programs: Program) -> Scenario:
    """Each program is a side's; the outcome is what each has seen, and all words at the end."""

    def scenario(memory: Memory) -> Any:
        bodies = {f"p{i}": lambda program=program: _perform(memory, program) for i, program in enumerate(programs)}
        words = shared(programs)
        memory.watch(*words)
        return bodies, lambda end: (
            tuple(end[name] for name in bodies),
            tuple((word, end.cells[word]) for word in words if end.cells.get(word)),
        )

    return scenario


def seen(*programs: Program, reduced: bool = True) -> set[Any]:
    """What each side may see."""
    return {outcome[0] for outcome in explore(scenario_of(*programs), reduced=reduced).outcomes}


def both(*programs: Program) -> set[Any]:
    """What each side may see: the same with and without reduction, and by the book."""
    found = seen(*programs)
    assert found == seen(*programs, reduced=False) == {outcome[0] for outcome in reference.outcomes(list(programs))}
    return found


def swap(*between: Operation) -> Program:
    return ("store", "x", 1), *between, ("load", "y")


def test_store_buffering():
    """Each of two stores may be overtaken by the other side's load: both see 0, unless fences forbid it."""
    p, q = swap(), (("store", "y", 1), ("load", "x"))
    some = {((0,), (1,)), ((1,), (0,)), ((1,), (1,))}
    assert both(p, q) == {*some, ((0,), (0,))}
    assert both(swap(("fence",)), q) == {*some, ((0,), (0,))}
    assert both(swap(("fence",)), (q[0], ("fence",), q[1])) == some
    assert both(swap(("heavy",)), q) == some


def test_message_passing():
    """Stores are seen in order: whoever sees the flag sees the message."""
    send = ("store", "message", 1), ("store", "flag", 1)
    assert both(send, (("load", "flag"), ("load", "message"))) == {((), (0, 0)), ((), (0, 1)), ((), (1, 1))}


def test_loads_and_stores_keep_their_order():
    """A load is not overtaken by a later store: not both sides see the other's."""
    assert both((("load", "x"), ("store", "y", 1)), (("load", "y"), ("store", "x", 1))) == {
        ((0,), (0,)),
        ((0,), (1,)),
        ((1,), (0,)),
    }


def test_own_stores_are_seen_at_once():
    """A process sees its own stores before anybody else does."""
    p, q = (("store", "x", 1), ("load", "x"), ("load", "y")), (("store", "y", 1), ("load", "y"), ("load", "x"))
    assert both(p, q) == {((1, a), (1, b)) for a in (0, 1) for b in (0, 1)}


def test_all_see_stores_in_one_order():
    """Two who look at two writers' words never disagree on which was written first."""
    found = both((("store", "x", 1),), (("store", "y", 1),), (("load", "x"), ("load", "y")), (("load", "y"), ("load", "x")))
    assert len(found) == 15
    assert ((), (), (1, 0), (1, 0)) not in found


def test_a_store_is_seen_by_whom_its_seer_tells():
    """What was seen before a store is seen by whoever sees the store."""
    found = both((("store", "x", 1),), (("load", "x"), ("store", "y", 1)), (("load", "y"), ("load", "x")))
    assert ((), (1,), (1, 0)) not in found
    assert len(found) == 7


@pytest.mark.parametrize("fence", [(), (("fence",),)])
def test_dekker(fence):
    """Dekker's entry protocol excludes with a fence in each side, and does not without."""

    def scenario(memory: Memory) -> Any:
        def side(mine: str, yours: str) -> bool:
            memory.store(mine, 1)
            for _ in fence:
                memory.fence()
            if memory.load(yours):
                return False
            memory.store("inside", memory.load("inside") + 1)  # two at once would both write 1
            return True

        bodies = {"p": lambda: side("x", "y"), "q": lambda: side("y", "x")}
        return bodies, lambda end: (end["p"], end["q"], end.cells["inside"] if end["p"] or end["q"] else 0)

    found = set(explore(scenario).outcomes)
    assert found == set(explore(scenario, reduced=False).outcomes)
    assert any(p and q for p, q, _ in found) == (not fence)
    assert {(True, False, 1), (False, True, 1)} < found


def test_increments_get_lost():
    """Two unguarded increments lose one in some schedule, and in none under a lock."""

    def scenario(memory: Memory, guarded: bool) -> Any:
        def add() -> None:
            if guarded:
                memory.lock("l")
            memory.store("n", memory.load("n") + 1)
            if guarded:
                memory.unlock("l")

        return {"p": add, "q": add, "r": add}, lambda end: end.cells["n"]

    assert set(explore(lambda m: scenario(m, False)).outcomes) == {1, 2, 3}
    assert set(explore(lambda m: scenario(m, True)).outcomes) == {3}


def sleeping(memory: Memory) -> Any:
    """A waiter that looks, and then sleeps without looking again."""

    def sleep() -> bool:
        if not memory.load("there"):
            memory.store("asleep", 1)
            return memory.wait("s")
        return True

    def wake() -> None:
        memory.store("there", 1)
        memory.fence()
        if memory.load("asleep"):
            memory.post("s")

    return {"sleeper": sleep, "waker": wake}, lambda end: end["sleeper"]


def test_a_lost_wake_up_is_found():
    """Who sleeps for ever is found, and with time-outs goes on late."""
    found = explore(sleeping).outcomes
    assert set(found) == {True, ("stuck", "sleeper")}
    assert set(explore(sleeping, timeouts=1).outcomes) == {True, ("late", False)}
    assert found["stuck", "sleeper"][-1].startswith("sleeper") or found["stuck", "sleeper"][-1].startswith("waker")


def test_a_killed_process_stores_up_to_there():
    """Killed between any two stores; what it stored is seen in order, and its lock is free."""

    def scenario(memory: Memory) -> Any:
        def write() -> None:
            memory.lock("l")
            memory.store("x", 1)
            memory.store("y", 1)
            memory.unlock("l")

        def look() -> tuple[int, int]:
            memory.lock("l")
            seen = memory.load("x"), memory.load("y")
            memory.unlock("l")
            return seen

        return {"write": write, "look": look}, lambda end: (end["write"], end["look"])

    assert set(explore(scenario).outcomes) == {(None, (0, 0)), (None, (1, 1))}
    killed = {("killed", (x, y)) for x, y in ((0, 0), (1, 0), (1, 1))}
    assert set(explore(scenario, mortal=["write"]).outcomes) == {(None, (0, 0)), (None, (1, 1)), *killed}


def test_sides_share_nothing_but_memory():
    """A scenario whose sides talk past the memory is refused."""
    told: list[int] = []

    def scenario(memory: Memory) -> Any:
        told.clear()

        def tell() -> None:
            told.append(memory.load("x"))
            memory.store("y", 1)

        def hear() -> Any:
            memory.store("x", 1)
            return memory.load("y"), tuple(told)

        return {"p": tell, "q": hear}, lambda end: end["q"]

    with pytest.raises(AssertionError, match="share more than memory"):
        explore(scenario)


def random_program(rng: random.Random, length: int) -> Program:
    program: list[Operation] = []
    held: set[str] = set()
    for _ in range(length):
        what = rng.choices(
            ["load", "unless", "store", "fence", "heavy", "lock", "unlock", "post", "wait", "try", "value", "taken"],
            [7, 2, 8, 2, 2, 2, 2, 1, 1, 1, 1, 1],
        )[0]
        if what in ("load", "unless", "store"):
            program.append((what, rng.choice("xyz"), *([rng.randrange(1, 3)] if what == "store" else [])))
        elif what in ("post", "wait", "value"):
            program.append((what, "s"))
        elif what == "unlock":
            if held:
                program.append((what, held.pop()))
        elif what in ("lock", "try", "taken"):
            lock = "l" if what == "lock" else "lr"  # a try may fail, so it is never given back
            if what != "lock" or lock not in held:
                program.append((what, lock))
            if what == "lock":
                held.add(lock)
        else:
            program.append((what,))
    return tuple(program)


def compared(rng: random.Random, mortal: Collection[int] = ()) -> None:
    """Compare one random scenario with the book."""
    sides = rng.choice([2, 2, 3])
    programs = [random_program(rng, rng.randrange(2, 7 if sides == 2 else 5)) for _ in range(sides)]
    found = set()
    for outcome in explore(scenario_of(*programs), mortal=[f"p{i}" for i in mortal]).outcomes:
        if outcome[0] == "stuck":
            outcome = tuple(f"p{i}" in outcome for i in range(sides))
        found.add(outcome)
    expected = set()
    for outcome in reference.outcomes(programs, frozenset(mortal)):
        if "stuck" in outcome[0]:
            outcome = tuple(each == "stuck" for each in outcome[0])
        else:
            outcome = outcome[0], tuple((word, value) for word, value in outcome[1] if word in shared(programs))
        expected.add(outcome)
    assert found == expected, f"mortal {mortal}: {programs}"


@pytest.mark.parametrize("mortal", [(), (0,), (0, 1)])
def test_the_reduction_loses_nothing(mortal, seed):
    """Random programs have the same outcomes, reduced, as by the book."""
    rng = random.Random(seed)
    for _ in range(30):
        compared(rng, mortal)


@pytest.mark.long
@pytest.mark.parametrize("mortal", [(), (0,), (0, 1)])
def test_the_reduction_loses_nothing_in_many_programs(mortal, seed):
    """Thousands of random programs have the same outcomes, reduced, as by the book."""
    rng = random.Random(seed)
    for _ in range(3000):
        compared(rng, mortal)
