"""kill -9 at lines of what writes a log, of what puts a store together again, and of what makes acks durable: each time in a fresh store.

The normal run takes lines at random, the long one takes each. After each second kill the memory goes, too.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from shmstore import EventStore, StoreNotFound
from shmstore.log import format as log_format
from tests.shmstore.samples import leftovers
from tests.stress.test_kill_each_line import AtLine, contents, die
from tests.stress.test_kill_log import lose_memory

WRITING = (
    "log/appender.py",
    "log/keeper.py",
    "home/identity.py",
    "home/append_lock.py",
    "home/home.py",
    "log/recovery.py",
    "store/restore.py",
)
BEFORE = [b"one", b"two", b"three"]
PUTS = [
    [b"four"],
    [b"five", b"six", b"seven"],
    [b"L" * 700],
    [b"eight"],
    [b"nine", b"ten"],
]  # more than a set; one that is oversized
ALL = BEFORE + [each for put in PUTS for each in put]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def _pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference in Python, with tiny sets."""
    monkeypatch.setattr("shmstore.memory.mapping.COMPILED", False)
    monkeypatch.setattr(log_format, "file_bytes", lambda size: 64)
    monkeypatch.setattr(log_format, "file_slots", lambda size: 3)


@pytest.fixture(name="name")
def _name() -> Iterator[str]:
    name = f"kill-log-line-{os.getpid()}"
    yield name
    with suppress(StoreNotFound):
        EventStore.unlink(name, log=True)


class AtLineOf(AtLine):
    """As `AtLine`, in some modules only, and in all threads."""

    def __init__(self, k: int, modules: tuple[str, ...]) -> None:
        super().__init__(k, die)
        self.modules = modules

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        return self.line if frame.f_code.co_filename.endswith(self.modules) else None


def killed_at(k: int, modules: tuple[str, ...], action: Callable[[], object]) -> bool:
    """Run `action` in a child that is killed at its line k in `modules`; False when it ended before."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            trace = AtLineOf(k, modules)
            threading.settrace(trace)
            sys.settrace(trace)
            action()
            sys.settrace(None)
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -9), f"the child failed at line {k}"
    return status != 0


def lines(request: pytest.FixtureRequest, seed: int, stride: int) -> Iterator[int]:
    """The lines to be killed at, without an end: each in the long run, else one of `stride`."""
    rng, k = random.Random(seed), -1
    while True:
        k += 1 if request.node.get_closest_marker("long") else rng.randrange(1, 2 * stride)
        yield k


def fresh(name: str) -> None:
    """A store with three events on disk, the first acked."""
    with EventStore.create(name, capacity=8, memory_unit=64) as store:
        with store.subscribe("r") as reader:
            store.put(BEFORE)
            reader.ack(reader.get(limit_events=1))
        store.sync()


def goes_on(name: str, k: int, *, reboot: bool, acked: tuple[int, ...] = (0,)) -> tuple[int, int]:
    """The store is sound, has a beginning of ALL, and takes the rest; return its last event and where its reader stood."""
    if reboot:
        lose_memory(name)
    with EventStore.attach(name) as store:
        newest = store.newest
        assert newest >= len(BEFORE) - 1, f"line {k}"
        with store.subscribe("r") as reader, store.subscribe("all") as everything:
            stood = reader.ack_cursor.sequence
            assert stood in acked, f"line {k}"
            got: list[bytes] = []
            while batch := reader.get(timeout=0):
                got += contents(batch)
                reader.ack(batch)
            assert got == ALL[stood + 1 : newest + 1], f"line {k}"
            for sequence in range(newest + 1, len(ALL)):
                assert store.put(ALL[sequence], timeout=20) == sequence
            assert store.sync() == len(ALL) - 1
            got = []
            while batch := everything.get(timeout=0):
                got += contents(batch)
            assert got == ALL, f"line {k}"
        assert [each for each in store.check() if "died" not in each] == [], f"line {k}"
    EventStore.unlink(name, log=True)
    assert leftovers(name) == []
    return newest, stood


def over(request: pytest.FixtureRequest, seed: int, stride: int, name: str, modules: tuple[str, ...], action: Callable[[], object],
         prepare: Callable[[], object] = lambda: None, acked: tuple[int, ...] = (0,)) -> set[tuple[int, int]]:  # fmt: skip
    """Kill `action` at line after line until it comes to its end; return what the stores were like."""
    seen = set()
    k = -1
    for count, k in enumerate(lines(request, seed, stride)):
        fresh(name)
        prepare()
        killed = killed_at(k, modules, action)
        seen.add(goes_on(name, k, reboot=count % 2 == 1, acked=acked))
        if not killed:
            break
    print(f"{k} lines, {sorted(seen)}")
    assert k > 20
    return seen


def producing(request: pytest.FixtureRequest, name: str, seed: int) -> None:
    def action() -> None:
        with EventStore.attach(name) as store:
            for each in PUTS:
                store.put(each, timeout=20)

    seen = over(request, seed, 40, name, WRITING, action)
    assert len(seen) > 1


def restoring(request: pytest.FixtureRequest, name: str, seed: int) -> None:
    over(request, seed, 6, name, WRITING, lambda: EventStore.attach(name).close(), prepare=lambda: lose_memory(name))


def acking(request: pytest.FixtureRequest, name: str, seed: int) -> None:
    def action() -> None:
        with EventStore.attach(name) as store, store.subscribe("r") as reader:
            reader.ack(reader.get(limit_events=1))
            reader.seek(0)
            reader.ack(reader.get(limit_events=3))

    modules = "store/subscription.py", "store/subscription_table.py", "home/acks.py", "home/home.py", "shmstore/atomic_file.py"
    seen = over(request, seed, 6, name, modules, action, acked=(-1, 0, 1, 2))
    assert {ack for _, ack in seen} >= {0, 2}


def test_a_producer_killed_at_any_line_of_the_log(request, name, seed):
    """What was on disk stays, what comes behind is whole and in order, the next producer continues: with the memory, and without."""
    producing(request, name, seed)


def test_a_restore_killed_at_any_line(request, name, seed):
    """The next who attaches restores the store as if none had tried."""
    restoring(request, name, seed)


def test_an_ack_killed_at_any_line(request, name, seed):
    """The subscription stands at one of the places where it was; all behind that comes again."""
    acking(request, name, seed)


@pytest.mark.long
@pytest.mark.parametrize("what", [producing, restoring, acking])
def test_killed_at_each_line(request, name, seed, what):
    """The same for all lines."""
    what(request, name, seed)
