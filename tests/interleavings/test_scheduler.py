"""The scheduler itself finds what x86 allows and what it forbids: the litmus tests of its manual."""

from __future__ import annotations

from tests.interleavings.scheduler import explore


def litmus(*, fence: str = ""):
    def scenario(memory):
        def side(mine, yours, heavy):
            def body():
                memory.store(mine, 1)
                if fence == "both" or (fence == "asymmetric" and heavy):
                    memory.heavy_fence() if fence == "asymmetric" else memory.fence()
                return memory.load(yours)

            return body

        bodies = {"p": side("x", "y", False), "q": side("y", "x", True)}
        return bodies, lambda m: tuple(process.result for process in m.processes)

    return explore(scenario)


def test_store_buffering():
    """Each of two stores may be overtaken by the other side's load: both see 0, unless fences forbid it."""
    assert set(litmus()) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert set(litmus(fence="both")) == {(0, 1), (1, 0), (1, 1)}
    assert set(litmus(fence="asymmetric")) == {(0, 1), (1, 0), (1, 1)}


def test_message_passing():
    """Stores are seen in order: whoever sees the flag sees the message."""

    def scenario(memory):
        def send():
            memory.store("message", 1)
            memory.store("flag", 1)

        return {"p": send, "q": lambda: (memory.load("flag"), memory.load("message"))}, lambda m: m.of("q").result

    assert set(explore(scenario)) == {(0, 0), (0, 1), (1, 1)}


def test_increments_get_lost():
    """Two unguarded increments lose one in some schedule, and in none under a lock."""

    def scenario(memory, guarded):
        def add():
            if guarded:
                memory.lock("l")
            memory.store("n", memory.load("n") + 1)
            if guarded:
                memory.unlock("l")

        return {"p": add, "q": add}, lambda m: m.cells["n"]

    assert set(explore(lambda m: scenario(m, False))) == {1, 2}
    assert set(explore(lambda m: scenario(m, True))) == {2}


def test_a_lost_wake_up_is_found():
    """A waiter that looks, and then sleeps without having said so, is stuck in some schedule."""

    def scenario(memory):
        def sleep():
            if not memory.load("there"):
                memory.store("asleep", 1)
                memory.wait("s")

        def wake():
            memory.store("there", 1)
            memory.fence()
            if memory.load("asleep"):
                memory.post("s")

        return {"sleeper": sleep, "waker": wake}, lambda m: "fine"

    assert set(explore(scenario)) == {"fine", ("stuck", "sleeper")}


def test_own_stores_are_seen_at_once():
    """A process sees its own stores before anybody else does."""

    def scenario(memory):
        def one():
            memory.store("x", 1)
            return memory.load("x"), memory.load("y")

        def two():
            memory.store("y", 1)
            return memory.load("y"), memory.load("x")

        return {"p": one, "q": two}, lambda m: (m.of("p").result, m.of("q").result)

    assert set(explore(scenario)) == {((1, a), (1, b)) for a in (0, 1) for b in (0, 1)}
