"""kill -9 at every line of a put, a get, an ack and a removal, one after the other, in a fresh store each time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from shmstore import Batch, EventStore, StoreClosed, StoreExists, StoreNotFound
from tests.shmstore.samples import leftovers


@pytest.fixture(autouse=True)
def _pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference in Python: compiled code has no lines to stop at. `test_kill` kills within it."""
    monkeypatch.setattr("shmstore.memory.mapping.COMPILED", False)


@pytest.fixture(name="name")
def _name() -> Iterator[str]:
    """A store name of this test's own; a store that a failure leaves under it is removed."""
    name = f"kill-line-{os.getpid()}"
    yield name
    with suppress(StoreNotFound):
        EventStore.unlink(name)


BEFORE = [b"one", b"two", b"three"]  # put, and `one` acked, before the child runs
KINDS: dict[str, Any] = {
    "one": b"four",
    "many": [b"four", b"five"],
    "larger than the arena": b"L" * 700,
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class AtLine:
    """A trace function that does something, once, at the k-th line executed in the store's modules."""

    def __init__(self, k: int, action: Callable[[], None]) -> None:
        self.left, self.action = k, action

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        return self.line if f"{os.sep}shmstore{os.sep}" in frame.f_code.co_filename else None

    def line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == -1:
                self.action()
        return self.line


def killed_at(k: int, prepare: Callable[[], Any], action: Callable[[Any], None]) -> bool:
    """Run `action` in a child that is killed at its line k; False when it ended before."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ready = prepare()
            sys.settrace(AtLine(k, die))
            action(ready)
            sys.settrace(None)
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the child failed at line {k}"
    return status != 0


def contents(batch: Batch) -> list[bytes]:
    return [bytes(payload) for payload in batch.payloads()]


def fresh(name: str, *, acked: int) -> EventStore:
    store = EventStore.create(name, capacity=8, memory_unit=64, checksum=True, log=False)
    with store.subscribe("r") as reader:
        store.put(BEFORE)
        reader.ack(reader.get(limit_events=acked))
    store.close()
    return EventStore.attach(name)


def sane(store: EventStore) -> None:
    (stat,) = store.subscriptions()
    assert stat.ack.sequence <= stat.get.sequence <= store.newest
    assert [found for found in store.check() if "died without closing" not in found and "next producer" not in found] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_put_killed_at_any_line_shows_all_of_it_or_nothing(name: str, kind: str) -> None:
    """After the kill the events are there whole or not at all, and the next producer puts behind them."""
    events = KINDS[kind]
    wanted = [events] if isinstance(events, bytes) else events
    acked = 3 if kind.startswith("larger") else 1  # such an event waits until it is alone
    seen = set()
    k = 0
    while True:
        with fresh(name, acked=acked) as store:

            def prepare() -> EventStore:
                mine = EventStore.attach(name)
                mine.claim()
                return mine

            killed = killed_at(k, prepare, lambda mine: mine.put(events))
            sane(store)
            store.claim()
            with store.subscribe("r") as reader:
                got = contents(reader.get(timeout=0))
                assert got in (BEFORE[acked:], BEFORE[acked:] + wanted), f"line {k}"
                seen.add(len(got) > 3 - acked)
                reader.rollback()
                while batch := reader.get(timeout=0):
                    reader.ack(batch)
                store.put(b"after")
                assert contents(reader.get(timeout=0)) == [b"after"]
            sane(store)
        EventStore.unlink(name)
        assert leftovers(name) == []
        if not killed:
            break
        k += 1
    print(f"{k} lines")
    assert k > 10
    assert seen == {False, True}


@pytest.mark.parametrize("limit", [1, None])
def test_a_reader_killed_at_any_line_of_get_and_ack_loses_and_repeats_nothing(name: str, limit: int | None) -> None:
    """What was acked at the kill does not come again; all that was not comes, whole and in order."""
    seen = set()
    k = 0
    while True:
        with fresh(name, acked=1) as store:

            def prepare() -> Any:
                return EventStore.attach(name).subscribe("r")

            def action(reader: Any) -> None:
                reader.ack(reader.get(limit_events=limit, timeout=0))

            killed = killed_at(k, prepare, action)
            sane(store)
            acked = store.subscriptions()[0].ack.sequence
            seen.add(acked)
            with store.subscribe("r") as reader:
                assert contents(reader.get(timeout=0)) == BEFORE[acked + 1 :], f"line {k}"
                store.put(b"after")
        EventStore.unlink(name)
        assert leftovers(name) == []
        if not killed:
            break
        k += 1
    print(f"{k} lines")
    assert k > 10
    assert seen == {0, 1 if limit else 2}


def test_a_creator_killed_at_any_line_leaves_nothing_or_a_store(name: str) -> None:
    """No process ever finds half a segment, and nothing of a creator that died before it was whole needs to be removed."""
    seen, killed, k = set(), True, 0
    while killed:
        killed = killed_at(k, lambda: None, lambda _: EventStore.create(name, capacity=8, memory_unit=64, log=False))
        left = leftovers(name)
        seen.add(bool(left))
        if left:
            assert left == [f"shmstore.{name}"], f"line {k}"
            with EventStore.attach(name) as store:
                assert store.check() == [], f"line {k}"
            EventStore.unlink(name)
        k += 1
    print(f"{k} lines")
    assert seen == {False, True}


def removed(name: str, *, first_used_again: bool) -> None:
    """Remove what is left of a store, as `shmstore rm` does."""
    with suppress(StoreExists):
        if first_used_again:  # the removal then is that of the new store alone
            EventStore.create(name, capacity=8, log=False).close()
    with suppress(StoreNotFound):
        EventStore.unlink(name)


def test_what_a_removal_killed_at_any_line_leaves_goes_with_the_next(name: str) -> None:
    """Overflow segments without a store go when the store is removed again, or one of its name is made."""
    seen = set()
    killed, k = True, 0
    while killed:
        with fresh(name, acked=3) as store:
            store.put(KINDS["larger than the arena"])
        killed = killed_at(k, lambda: None, lambda _: EventStore.unlink(name))
        left = leftovers(name)
        seen.add((name in EventStore.names(), bool(left), k % 2 == 1))
        removed(name, first_used_again=k % 2 == 1)
        assert leftovers(name) == [], f"line {k}"
        k += 1
    print(f"{k} lines")
    assert {(False, True, False), (False, True, True)} <= seen


def test_a_store_removed_while_another_takes_its_lock_leaves_nothing(name: str) -> None:
    """Waking and locking in a store that is being removed, or was, makes nothing that stays."""
    for k in range(200):
        store = EventStore.create(name, capacity=8, log=False)
        removal = AtLine(k, lambda: EventStore.unlink(name))
        before = sys.gettrace()
        sys.settrace(removal)
        try:
            with suppress(StoreClosed):
                store._wakeups.freed.notify()
                with store._lock:
                    pass
        finally:
            sys.settrace(before)
            store.close()
        if removal.left >= 0:  # the store outlived it
            break
        assert leftovers(name) == [], f"line {k}"
    assert k > 10


def test_one_killed_after_the_removal_leaves_nothing(name: str) -> None:
    """A process killed at any line of taking the lock of a removed store leaves nothing."""
    killed, k = True, 0
    while killed:
        EventStore.create(name, capacity=8, log=False).close()

        def prepare() -> EventStore:
            mine = EventStore.attach(name)
            EventStore.unlink(name)
            return mine

        def action(mine: EventStore) -> None:
            with mine._lock:
                pass

        killed = killed_at(k, prepare, action)
        assert leftovers(name) == [], f"line {k}"
        k += 1
    assert k > 5
