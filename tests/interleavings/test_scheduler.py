"""The scheduler itself finds what x86 and ARM allow and what they forbid: the litmus tests of their manuals, and random programs."""

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
            case "acquire":
                seen.append(memory.load(rest[0], acquire=True))
            case "release":
                memory.store(*rest, release=True)
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


WORDS = ("load", "acquire", "unless", "store", "release")


def shared(programs: Collection[Program]) -> list[str]:
    """The words that more than one side touches."""
    touched = [{rest[0] for what, *rest in program if what in WORDS} for program in programs]
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


def seen(*programs: Program, **how: bool) -> set[Any]:
    """What each side may see."""
    return {outcome[0] for outcome in explore(scenario_of(*programs), **how).outcomes}


def both(*programs: Program, weak: bool = False) -> set[Any]:
    """What each side may see: the same with and without reduction, and by the book."""
    found = seen(*programs, weak=weak)
    book = {outcome[0] for outcome in reference.outcomes(list(programs), weak=weak)}
    assert found == seen(*programs, weak=weak, reduced=False) == book
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
    """Stores are seen in order: a process that sees the flag sees the message."""
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
    """A process sees its own stores before the others do."""
    p, q = (("store", "x", 1), ("load", "x"), ("load", "y")), (("store", "y", 1), ("load", "y"), ("load", "x"))
    assert both(p, q) == {((1, a), (1, b)) for a in (0, 1) for b in (0, 1)}


def test_all_see_stores_in_one_order():
    """Two who look at two writers' words never disagree on which was written first."""
    found = both((("store", "x", 1),), (("store", "y", 1),), (("load", "x"), ("load", "y")), (("load", "y"), ("load", "x")))
    assert len(found) == 15
    assert ((), (), (1, 0), (1, 0)) not in found


def test_a_store_is_seen_by_whom_its_seer_tells():
    """What was seen before a store is seen by each process that sees the store."""
    found = both((("store", "x", 1),), (("load", "x"), ("store", "y", 1)), (("load", "y"), ("load", "x")))
    assert ((), (1,), (1, 0)) not in found
    assert len(found) == 7


SEND = ("store", "message", 1), ("store", "flag", 1)
TORN = ((), (1, 0))


@pytest.mark.parametrize(
    ("send", "receive", "torn"),
    [
        (SEND, (("load", "flag"), ("load", "message")), True),
        (SEND, (("acquire", "flag"), ("load", "message")), True),
        ((SEND[0], ("release", "flag", 1)), (("load", "flag"), ("load", "message")), True),
        ((SEND[0], ("release", "flag", 1)), (("acquire", "flag"), ("load", "message")), False),
        ((SEND[0], ("fence",), SEND[1]), (("load", "flag"), ("fence",), ("load", "message")), False),
        ((SEND[0], ("fence",), SEND[1]), (("load", "flag"), ("acquire", "message")), True),
        ((("release", "message", 1), SEND[1]), (("acquire", "flag"), ("load", "message")), True),
    ],
)
def test_a_message_behind_a_flag_wants_release_and_acquire(send, receive, torn):
    """In the weak model who sees the flag sees the message only where it was released and acquired, or fenced on both sides."""
    assert (TORN in both(send, receive, weak=True)) == torn


def test_a_copy_that_is_checked_wants_a_fence():
    """A load may come after an acquire that follows it: what says that a copy is whole must be looked at behind a fence."""
    mark, write = ("release", "marked", 1), ("store", "message", 1)
    copy, check = ("load", "message"), ("acquire", "marked")
    assert ((), (1, 0)) in both((mark, ("fence",), write), (copy, check), weak=True)
    assert ((), (1, 0)) in both((mark, write), (copy, ("fence",), check), weak=True)
    assert ((), (1, 0)) not in both((mark, ("fence",), write), (copy, ("fence",), check), weak=True)
    assert ((), (1, 0)) not in both((mark, write), (copy, check))


def test_a_word_never_goes_back():
    """Two loads of one word see its history in order, in the weak model, too; and an own store is not forgotten."""
    found = both((("store", "x", 1), ("store", "x", 2)), (("load", "x"), ("load", "x")), weak=True)
    assert {pair for _, pair in found} == {(a, b) for a in range(3) for b in range(a, 3)}
    own = both((("store", "x", 1),), (("store", "x", 2), ("load", "x"), ("load", "x")), weak=True)
    assert {pair for _, pair in own} == {(2, 2), (2, 1), (1, 1)}


def test_all_see_stores_in_one_order_on_arm():
    """Two who look with acquires never disagree on which of two words was written first; with loads they do."""
    writers = (("store", "x", 1),), (("store", "y", 1),)
    odd = ((), (), (1, 0), (1, 0))
    for load, there in (("load", True), ("acquire", False)):
        found = both(*writers, ((load, "x"), (load, "y")), ((load, "y"), (load, "x")), weak=True)
        assert (odd in found) == there


def test_a_release_is_overtaken_by_a_load():
    """Release and acquire do not keep a store before a later load: that takes a fence, or a heavy one on one side."""
    p, q = (("release", "x", 1), ("acquire", "y")), (("release", "y", 1), ("acquire", "x"))
    assert ((0,), (0,)) in both(p, q, weak=True)
    assert ((0,), (0,)) not in both((p[0], ("heavy",), p[1]), q, weak=True)
    assert ((0,), (0,)) not in both((p[0], ("fence",), p[1]), (q[0], ("fence",), q[1]), weak=True)


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
    """Who sleeps forever is found, and with time-outs continues late."""
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
            [*WORDS, "fence", "heavy", "lock", "unlock", "post", "wait", "try", "value", "taken"],
            [5, 2, 2, 5, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1],
        )[0]
        if what in WORDS:
            program.append((what, rng.choice("xyz"), *([rng.randrange(1, 3)] if what in ("store", "release") else [])))
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


def compared(rng: random.Random, mortal: Collection[int] = (), *, weak: bool = False) -> None:
    """Compare one random scenario with the book."""
    sides = rng.choice([2, 2, 3])
    programs = [random_program(rng, rng.randrange(2, 7 if sides == 2 else 5)) for _ in range(sides)]
    found = set()
    for outcome in explore(scenario_of(*programs), mortal=[f"p{i}" for i in mortal], weak=weak).outcomes:
        if outcome[0] == "stuck":
            outcome = tuple(f"p{i}" in outcome for i in range(sides))
        found.add(outcome)
    expected = set()
    for outcome in reference.outcomes(programs, frozenset(mortal), weak=weak):
        if "stuck" in outcome[0]:
            outcome = tuple(each == "stuck" for each in outcome[0])
        else:
            outcome = outcome[0], tuple((word, value) for word, value in outcome[1] if word in shared(programs))
        expected.add(outcome)
    assert found == expected, f"mortal {mortal}, weak {weak}: {programs}"


@pytest.mark.parametrize("mortal", [(), (0,), (0, 1)])
def test_the_reduction_loses_nothing(mortal, seed):
    """Random programs have the same outcomes, reduced, as by the book."""
    rng = random.Random(seed)
    for _ in range(30):
        compared(rng, mortal, weak=False)
        compared(rng, mortal, weak=True)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mortal", [(), (0,), (0, 1)])
def test_the_reduction_loses_nothing_in_many_programs(mortal, seed):
    """Thousands of random programs have the same outcomes, reduced, as by the book."""
    rng = random.Random(seed)
    for i in range(4000):
        compared(rng, mortal, weak=i % 4 == 0)
