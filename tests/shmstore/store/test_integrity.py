"""`check`: a sound store is sound at any moment, and damage is named with its place."""

from __future__ import annotations

import os
import signal

import pytest

from shmstore import EventStore
from shmstore.memory import layout
from shmstore.ring.cursors import ACK_OF, GET_OF, PUT
from shmstore.ring.overflow import write
from tests.shmstore.samples import leftovers, rows


@pytest.fixture
def store(make):
    store = make(capacity=8, memory_unit=1024, checksum=True)
    store.subscribe("a")
    store.put([rows(0), rows(1, count=3), rows(2)])
    return store


def test_a_sound_store_has_no_findings(store, make):
    """check finds nothing wrong with a store that is used as it should be, at any moment."""
    assert store.check() == []
    reader = store.subscribe("b")
    for i in range(50):
        store.put(b"x") if store.stat().free_events else None
        if i % 2:
            for each in (reader, *[s for s in store._subscriptions if s.name == "a"]):
                each.ack(each.get(timeout=0))
        assert store.check() == []


@pytest.mark.parametrize(
    ("word", "value", "said"),
    [
        (ACK_OF[1], 9, "out of order"),
        (GET_OF[1], -5, "out of order"),
        (GET_OF[1], 99, "out of order"),
        (ACK_OF[1], -9, "out of order"),
        (PUT, -3, "out of order"),
    ],
)
def test_cursors_out_of_order(store, word, value, said):
    """Cursors that contradict each other are named, with the subscription."""
    store.segment.words[word] = value
    assert any(said in found for found in store.check())


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda v: v.slots.__getitem__("size").__setitem__(1, 7), "event 1: length differs"),
        (lambda v: v.slots["rows"].__setitem__(1, 7), "event 1: row count differs"),
        (lambda v: v.slots["flags"].__setitem__(2, 64), "event 2: flags are unknown"),
        (lambda v: v.ends.__setitem__(0, 2**40), "length differs"),
        (lambda v: v.arena.__setitem__(slice(3, 4), b"\xff"), "event 0 is damaged"),
    ],
)
def test_damaged_events(store, damage, said):
    """A damaged length, row count, flag, end or payload is named with its event."""
    damage(store.segment.views)
    assert any(said in found for found in store.check()), store.check()


def test_more_bytes_than_allowed(make):
    """More bytes in flight than the limit are named."""
    store = make(capacity=8, memory_unit=1024)
    store.put([b"x" * 100] * 3)
    views = store.segment.views
    views.ends[0] = views.ends[2] - 200 - 10_000
    views.ends[views.slot_count - 1] = -20_000
    assert any("limit" in found for found in store.check())


def test_the_dead_are_named(make, name, attach):
    """A producer and a reader that were killed are named, until they have a successor."""
    make().close()
    pid = os.fork()
    if pid == 0:
        other = EventStore.attach(name)
        other.put(b"x")
        other.subscribe("a")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    store = attach()
    found = " ".join(store.check())
    assert f"the producer (pid {pid}) died" in found
    assert f"the reader of a (pid {pid}) died" in found
    store.claim()
    store.subscribe("a")
    assert store.check() == []


def test_what_is_left_behind_is_named(make, name):
    """Overflow segments that belong to nothing, and a store that was removed, are named."""
    store = make()
    write(store.segment, 5, b"x")
    assert any("not in flight" in found for found in store.check())
    os.unlink(f"{store.segment.overflow_prefix}.5")
    assert store.check() == []
    EventStore.unlink(name)
    assert any("removed" in found for found in store.check())
    assert leftovers(name) == []


def test_places_are_all_looked_at(store):
    """A finding in the last entry of the table is found as well."""
    words = store.segment.words
    words[layout.header_word("entries")] = 64
    words[layout.subscription_word(63, "state")] = 1
    words[ACK_OF[63]] = 17
    assert any("out of order" in found for found in store.check())
