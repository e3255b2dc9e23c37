"""The subscription table after a process died at any line inside it."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

import pytest

import shmstore.store.subscription_table
from shmstore import EventStore, PositionNotFound, StoreFull, SubscriptionInUse, SubscriptionLost, SubscriptionNotFound
from shmstore.memory.layout import SubscriptionState, subscription_word
from shmstore.ring.cursors import ACK_OF, ENTRIES, FLOOR, GET_OF, PUT, STATE_OF
from tests.shmstore.commands import until
from tests.shmstore.samples import contents


class Killing:
    """Kills this process with -9 at the k-th line executed in shmstore/store/subscription_table.py."""

    def __init__(self, k: int) -> None:
        self.left = k

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        return self.line if frame.f_code.co_filename == shmstore.store.subscription_table.__file__ else None

    def line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.line


def killed_at(k: int, name: str, action: Any) -> bool:
    """Run `action` on an attachment in a child that is killed at line k; False when it ended before that."""
    pid = os.fork()
    if pid == 0:
        try:
            store = EventStore.attach(name)
            sys.settrace(Killing(k))
            action(store)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def sane(store: EventStore) -> None:
    """ack <= get <= put for every entry that counts; one entry always holds events back."""
    words = store.segment.words
    active = [entry for entry in range(words[ENTRIES]) if words[STATE_OF[entry]] & 1]
    assert active
    for entry in active:
        assert words[ACK_OF[entry]] <= words[GET_OF[entry]] <= words[PUT]


def lines(name: str, prepare: Any, action: Any, verify: Any) -> int:
    """Kill `action` at each of its lines in turn, in a fresh store each time, and verify; return how many lines there were."""
    k = 0
    while True:
        with EventStore.create(name, capacity=4, memory_unit=64, lag="evict", evict_after=0.0, log=False) as store:
            prepare(store)
            killed = killed_at(k, name, action)
            sane(store)
            verify(store, killed)
            sane(store)
            with EventStore.attach(name) as other:
                assert [found for found in other.check() if "died without closing" not in found] == []
        EventStore.unlink(name)
        if not killed:
            return k
        k += 1


def drain(store: EventStore, name: str, **options: Any) -> list[bytes]:
    with store.subscribe(name, **options) as reader:
        out = []
        while batch := reader.get(timeout=0):
            out += contents(batch)
            reader.ack(batch)
        return out


def test_killed_while_subscribing(name):
    """A reader killed at any line of subscribe leaves its subscription made or not; the producer continues within a second."""

    def prepare(store: EventStore) -> None:
        store.put([b"1", b"2", b"3"])

    def verify(store: EventStore, killed: bool) -> None:
        assert [stat.name for stat in store.subscriptions() if stat.state == "active"] in ([], ["new"])
        assert drain(store, "new") == [b"1", b"2", b"3"]
        assert store.put([b"4", b"5", b"6", b"7"], timeout=0) == 6
        assert drain(store, "new") == [b"4", b"5", b"6", b"7"]

    assert lines(name, prepare, lambda store: store.subscribe("new"), verify) > 30


def test_killed_while_subscribing_without_a_successor(name):
    """Where the killed one never comes back, another reader and the producer do not wait for it once it is forgotten."""

    def prepare(store: EventStore) -> None:
        store.put([b"1", b"2"])

    def verify(store: EventStore, killed: bool) -> None:
        with store.subscribe("other") as other:
            assert contents(other.get(timeout=0)) == [b"1", b"2"]
            other.ack(1)
            if any(stat.name == "new" for stat in store.subscriptions()):
                store.unsubscribe("new")
            assert store.put([b"3", b"4", b"5", b"6"], timeout=0) == 5
            assert contents(other.get(timeout=0)) == [b"3", b"4", b"5", b"6"]
            other.ack(5)

    lines(name, prepare, lambda store: store.subscribe("new", start="latest"), lambda s, k: None)
    lines(name, prepare, lambda store: store.subscribe("new"), verify)


def test_killed_while_unsubscribing(name):
    """A process killed at any line of unsubscribe leaves the subscription whole or gone; what is kept is kept for someone."""

    def prepare(store: EventStore) -> None:
        store.subscribe("old").close()
        store.put([b"1", b"2", b"3"])
        with store.subscribe("old") as old:
            old.ack(old.get(limit_events=1, timeout=0))

    def verify(store: EventStore, killed: bool) -> None:
        names = [stat.name for stat in store.subscriptions()]
        assert names in (["old"], [])
        assert drain(store, names[0] if names else "new") == [b"2", b"3"]
        assert store.put([b"4", b"5", b"6", b"7"], timeout=0) == 6

    assert lines(name, prepare, lambda store: store.unsubscribe("old"), verify) > 10


def test_killed_while_clearing(name):
    """A process killed at any line of clear leaves each subscription where it was or at the end, ack <= get throughout."""

    def prepare(store: EventStore) -> None:
        for each in ("a", "b"):
            store.subscribe(each).close()
        store.put([b"1", b"2", b"3"])

    def verify(store: EventStore, killed: bool) -> None:
        for each in ("a", "b"):
            assert drain(store, each) in ([b"1", b"2", b"3"], [])
        assert store.put([b"4", b"5", b"6", b"7"], timeout=0) == 6
        for each in ("a", "b"):
            assert drain(store, each) == [b"4", b"5", b"6", b"7"]

    assert lines(name, prepare, lambda store: store.clear(), verify) > 10


@pytest.mark.parametrize("fast", [False, True])
def test_killed_while_evicting(name, fast):
    """A producer killed at any line of an eviction leaves readers that are lost and know it, or that lost nothing."""

    def prepare(store: EventStore) -> None:
        store.subscribe("slow").close()
        if fast:
            store.subscribe("fast").close()
        store.put([b"1", b"2", b"3", b"4"])
        if fast:
            assert drain(store, "fast") == [b"1", b"2", b"3", b"4"]
        store._resign()

    def verify(_: EventStore, killed: bool) -> None:
        with EventStore.attach(name) as store:
            events = [b"1", b"2", b"3", b"4"] + ([b"5"] if store.newest == 4 else [])
            state = {stat.name: stat.state for stat in store.subscriptions()}["slow"]
            if state == "lost":
                with pytest.raises(SubscriptionLost):
                    store.subscribe("slow")
                store.unsubscribe("slow")
                if not fast:
                    assert drain(store, "slow")[-1] == events[-1]
            else:
                assert store.newest == 3
                assert drain(store, "slow") == events
            if fast:
                assert drain(store, "fast") == events[4:]
            assert store.put([b"6", b"7", b"8"], timeout=0) > 3

    assert lines(name, prepare, lambda store: store.put(b"5", timeout=5), verify) > 10


def test_a_producer_without_space_repairs_the_table(make, attach):
    """What a killed subscriber left is undone by the producer itself, when no other process comes."""
    store = make(capacity=4)
    reader = store.subscribe("a")
    words = store.segment.words
    for leave in ("joining", "stand-in"):
        store.put([b"1", b"2", b"3", b"4"])
        if leave == "joining":
            words[ENTRIES] = 3
            words[ACK_OF[2]] = words[GET_OF[2]] = words[PUT] - 4
            words[STATE_OF[2]] = SubscriptionState.JOINING
        else:
            words[ACK_OF[0]] = words[GET_OF[0]] = words[PUT] - 4
            words[STATE_OF[0]] = SubscriptionState.ACTIVE
        reader.ack(reader.get(timeout=0))
        store.put([b"5", b"6", b"7", b"8"], timeout=0)
        reader.ack(reader.get(timeout=0))
        assert [words[STATE_OF[entry]] for entry in range(3)] == [0, 1, 0]


def test_a_start_the_floor_has_passed(make):
    """A subscriber that finds the producer's floor above its start moves up, or is refused: it never gets half-kept events."""
    store = make(capacity=4)
    keeper = store.subscribe("keeper")
    store.put([b"1", b"2", b"3"])
    words = store.segment.words
    words[FLOOR] = 1  # the producer looks just now
    with pytest.raises(PositionNotFound):
        store.subscribe("new", start=0)
    assert [stat.name for stat in store.subscriptions()] == ["keeper"]
    assert contents(store.subscribe("new", start="earliest").get(timeout=0)) == [b"3"]
    assert len(keeper.get(timeout=0)) == 3


def test_forgetting_a_lost_subscription_takes_nothing_back(make):
    """Unsubscribing an evicted reader does not move back what stands in for it: events freed stay freed."""
    store = make(capacity=4, lag="evict", evict_after=0.0)
    store.subscribe("slow").close()
    for i in range(9):
        store.put(b"%d" % i, timeout=5)
    before = store.oldest
    store.unsubscribe("slow")
    assert store.oldest == before
    assert store.segment.words[ACK_OF[0]] == before - 1


def test_unsubscribing_the_last_keeps_its_events(make):
    """What the last subscription had not acked is kept for the next; with others left it is freed."""
    store = make(capacity=8)
    with store.subscribe("a") as a, store.subscribe("b") as b:
        store.put([b"1", b"2", b"3", b"4"])
        a.ack(a.get(limit_events=1, timeout=0))
        b.ack(b.get(limit_events=2, timeout=0))
    store.unsubscribe("a")
    assert store.oldest == 2
    store.unsubscribe("b")
    assert store.oldest == 2
    with pytest.raises(SubscriptionNotFound):
        store.unsubscribe("b")
    assert contents(store.subscribe("c").get(timeout=0)) == [b"3", b"4"]


def test_unsubscribing_the_last_lets_a_producer_go_on_that_it_held_up(make, attach, start, no_slices):
    """The last subscription goes with what the producer waits for: no other process asked for that, and nothing could end the wait."""
    store = make(capacity=4)
    store.subscribe("slow").close()
    store.put([b"1", b"2", b"3", b"4"])
    waiting = start(store.put, b"5")
    other = attach()
    until(lambda: other.stat().space_wanted is not None)
    other.unsubscribe("slow")
    assert waiting.result(60) == 4
    assert store.put([b"6", b"7", b"8"], timeout=0) == 7
    with pytest.raises(StoreFull, match="there is no subscription"):
        store.put(b"9", timeout=0)
    assert contents(other.subscribe("next").get(timeout=0)) == [b"5", b"6", b"7", b"8"]


def test_unsubscribing_the_last_lets_the_next_producer_go_on(make, attach):
    """So it is where the producer gave up, or was stopped, and comes again."""
    store = make(capacity=4)
    store.subscribe("slow").close()
    store.put([b"1", b"2", b"3", b"4"])
    with pytest.raises(StoreFull, match=rf"`shmstore unsubscribe {store.name} slow`"):
        store.put(b"5", timeout=0)
    store.close()
    other = attach()
    other.unsubscribe("slow")
    assert other.put(b"5", timeout=0) == 4


def test_clear_takes_all_or_none(make, attach):
    """clear moves no cursor where one reader lives, wherever in the table its entry is."""
    store = make(capacity=8)
    for each in ("a", "b", "c"):
        store.subscribe(each).close()
    store.put([b"1", b"2"])
    with attach().subscribe("c"), pytest.raises(SubscriptionInUse, match="'c'"):
        store.clear()
    assert {stat.ack.sequence for stat in store.subscriptions()} == {-1}
    store.clear()
    assert {stat.ack.sequence for stat in store.subscriptions()} == {1}


def test_who_meets_a_move_is_told_no_pid_of_a_dead_reader(name):
    """While a command moves a subscription whose reader died, a new reader is refused, and is not sent to a process that is not there."""
    with EventStore.create(name) as store, EventStore.attach(name) as other:
        store.put(b"1")
        store.subscribe("a").close()
        store._words[subscription_word(1, "owner_pid")] = 4711  # as a reader leaves it that is killed

        def note(_: int) -> None:
            with pytest.raises(SubscriptionInUse, match="is let go or moved by a process right now: try again"):
                other.subscribe("a")

        assert store._table.move("a", "latest", note) == 0
    EventStore.unlink(name, log=True)
