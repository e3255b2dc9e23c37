"""The same handshakes on processors that keep less order than x86: ARM's, with words stored with release and loaded with acquire.

What each test holds is what its namesake holds in the order of x86. The model is the scheduler's weaker one; its module says
what it leaves out. That a word is a release and an acquire is `hot.Words` and `sync.OrderedWords`; the compiled hot path's are its own.
"""

from __future__ import annotations

from typing import Any

import pytest

import shmstore.ring.overflow
import shmstore.store.lookup
from shmstore import EventStore, Subscription
from shmstore.memory.layout import SubscriptionState
from shmstore.ring.cursors import ACK_OF, ARMED, GET_OF, PUT, WANTED_OF
from shmstore.ring.writer import Writer
from shmstore.store.subscription_table import SubscriptionTable
from tests.interleavings import test_killing, test_publishing, test_table, test_waiting
from tests.interleavings.mutants import mutants, mutate
from tests.interleavings.process import Memory
from tests.interleavings.stage import Stage, read

LOST = int(SubscriptionState.LOST)


def publishing(memory: Memory) -> Any:
    """Two events of one byte are put one by one, and got meanwhile."""
    stage = Stage(memory, capacity=2, size=1)
    reader = stage.reader(1)

    def put() -> None:
        stage.producer.put(b"1", timeout=0)
        stage.producer.put(b"2", timeout=0)

    return {"put": put, "get": lambda: read(reader.get(timeout=0))}, lambda end: end["get"]


def test_an_event_is_seen_whole_or_not_at_all(outcomes):
    """A get during two puts sees none, the first, or both, as they were put."""
    assert outcomes(publishing, weak=True) == {(), (b"1",), (b"1", b"2")}


@pytest.mark.parametrize("plain", ["plain_stores", "plain_loads"])
def test_a_plain_put_cursor_is_caught(outcomes, plain):
    """A put cursor without release, or a look at it without acquire, shows bytes that were never put; x86 hides it."""
    whole = {(), (b"1",), (b"1", b"2")}
    assert outcomes(publishing, weak=True, asymmetric=True, **{plain: [PUT]}) - whole
    assert outcomes(publishing, asymmetric=True, **{plain: [PUT]}) == whole


def test_nothing_is_overwritten_before_its_ack(outcomes):
    """A producer that waits for free space writes over an event only after its ack, and always gets there."""
    assert outcomes(test_publishing.overwriting, weak=True) == {((b"ab", b"cd"), 2)}


def test_cursors_are_in_order_at_every_moment(outcomes):
    """A process that reads ack, get and put, in this order, finds them in this order."""
    assert outcomes(test_publishing.observing, weak=True) == {True}


@pytest.mark.parametrize("plain", ["plain_stores", "plain_loads"])
def test_plain_cursors_are_caught(outcomes, plain):
    """Cursors without release and acquire are seen out of order."""
    assert outcomes(test_publishing.observing, weak=True, asymmetric=True, **{plain: [ACK_OF[1], GET_OF[1], PUT]}) != {True}


# ---------------------------------------------------------------- wake-ups


def test_waiters_are_always_woken(outcomes):
    """A reader, each of two, and a producer that waits are woken, however wish, look and change meet."""
    assert outcomes(test_waiting.arming, weak=True) == {1}
    assert outcomes(test_waiting.two_armed, weak=True) == {2}
    assert outcomes(test_waiting.both_arming, weak=True) == {(1, 1)}
    assert outcomes(test_waiting.wanting_space, weak=True) == {2}
    assert outcomes(test_waiting.two_acks, weak=True) == {2}


@mutants(
    ("reader's fence", (Subscription, "_await", "                heavy_fence()\n", "")),
    ("producer's fence", (EventStore, "_published", "        if not ASYMMETRIC:\n", "        if False:\n")),
)
def test_waiting_without_a_fence_is_caught(outcomes, monkeypatch, changes):
    """Release and acquire alone leave a reader asleep."""
    mutate(monkeypatch, *changes)
    assert ("stuck", "get") in outcomes(test_waiting.arming, weak=True, asymmetric=False)


def test_a_plain_flag_is_caught(outcomes):
    """A flag that may be seen before its wish leaves a reader asleep; x86 hides it."""
    assert ("stuck", "one") in outcomes(test_waiting.two_armed, weak=True, asymmetric=True, plain_stores=[ARMED, WANTED_OF[1]])
    assert outcomes(test_waiting.two_armed, asymmetric=True, plain_stores=[ARMED, WANTED_OF[1]]) == {2}


# ---------------------------------------------------------------- copies that are checked


def test_a_peek_is_whole_or_refused(outcomes):
    """A peek gives events as they were put, or says that they are gone."""
    assert outcomes(test_publishing.peeking, weak=True, asymmetric=False) == {(b"0", b"1"), "gone"}


COPIED = "        fence()  # the copy, before the look whether the producer may have written over it\n"


def test_a_peek_without_its_fence_is_caught(outcomes, monkeypatch):
    """A look at the floor that may come before the copy lets bytes of the next event pass; x86 hides it."""
    mutate(monkeypatch, (shmstore.store.lookup, "peek", COPIED, ""))
    assert (b"2", b"1") in outcomes(test_publishing.peeking, weak=True, asymmetric=False)
    assert outcomes(test_publishing.peeking, asymmetric=False) == {(b"0", b"1"), "gone"}


def test_an_evicted_reader_gets_whole_events_or_hears_of_it(outcomes):
    """A reader evicted at any moment of its get has its events, as they were, or an error."""
    for verb in ("get", "rollback"):
        found = outcomes(test_table.evicting(verb), weak=True, asymmetric=True)
        assert found == {((b"0", b"1"), LOST), ("lost", LOST)}


@mutants(
    ("reader's fence", (Subscription, "_checked", test_table.CHECK, "")),
    ("producer's fence", (SubscriptionTable, "evict", "        fence()  # before anything", "        pass  # before anything")),
)
def test_an_eviction_without_its_fence_is_caught(outcomes, monkeypatch, changes):
    """A look at the state before the copy, or bytes written over before the state is seen, shows; x86 hides it."""
    mutate(monkeypatch, *changes)
    if changes[0][1] == "evict":  # refresh has a fence of its own, which would hide it
        mutate(monkeypatch, (Writer, "refresh", "    fence()  # a subscriber", "    pass  # a subscriber"))
    whole = {((b"0", b"1"), LOST), ("lost", LOST)}
    assert outcomes(test_table.evicting("get"), weak=True, asymmetric=True) - whole
    assert outcomes(test_table.evicting("get"), asymmetric=True) == whole


# ---------------------------------------------------------------- who comes while space is counted


def test_a_subscriber_is_kept_what_it_was_promised(outcomes):
    """A reader that subscribes while space is taken over starts where nothing can be written over, or is refused."""
    assert outcomes(test_table.joining(0), weak=True, asymmetric=True) == {-1, "refused"}
    assert outcomes(test_table.joining("earliest"), weak=True, asymmetric=True) == {-1, 0}


def test_who_leaves_clears_or_takes_over_is_seen_whole(outcomes):
    """Forgetting, clearing, evicting and succeeding come to what they come to in the order of x86."""
    for scenario in (
        test_table.leaving,
        test_table.clearing(True),
        test_table.evicting("ack"),
        test_table.one_late,
        test_table.succeeding,
    ):
        assert outcomes(scenario, weak=True, asymmetric=True) == outcomes(scenario, asymmetric=True)
    assert outcomes(test_waiting.evicted_asleep, weak=True) == {"lost"}
    assert outcomes(test_waiting.both_wait, weak=True) == {("stuck", "put")}


def test_a_successor_finds_whole_events_only(outcomes, monkeypatch):
    """Killed at any moment of a put, a producer leaves the event whole or not at all; the next begins after it."""
    monkeypatch.setattr(shmstore.ring.overflow, "overflows", lambda segment: [])
    found = outcomes(test_killing.succeeding, weak=True, asymmetric=True, mortal=["old"])
    assert found == outcomes(test_killing.succeeding, asymmetric=True, mortal=["old"])
