"""lag="evict": a reader that holds the producer up for too long is evicted, and hears it; so does the operator of the producer."""

from __future__ import annotations

import time

import pytest

from shmstore import SubscriptionInUse, SubscriptionLost
from shmstore.cli import text_report
from tests.shmstore.samples import contents

SOON = 30
pytestmark = pytest.mark.usefixtures("either_way")


def test_a_reader_that_stops_is_evicted_and_told(make, attach, start):
    """With lag="evict" a reader that held the producer up for too long is marked lost; get, ack and subscribe say so."""
    store, other = make(capacity=4, lag="evict", evict_after=0.2), attach()
    slow, fast = other.subscribe("slow"), other.subscribe("fast")
    store.put([b"1", b"2", b"3", b"4"])
    held = slow.get(limit_events=2, timeout=0)
    fast.ack(fast.get(timeout=0))
    began = time.monotonic()
    store.put([b"5", b"6", b"7"], timeout=SOON)
    assert time.monotonic() - began >= 0.2
    assert contents(held) == [b"1", b"2"]  # in a store that evicts, batches are copies
    for call in (
        lambda: slow.ack(held),
        lambda: slow.get(timeout=0),
        lambda: slow.get(),
        lambda: slow.get(min_events=3),
        lambda: store.subscribe("slow2") and attach().subscribe("slow"),
    ):
        with pytest.raises((SubscriptionLost, SubscriptionInUse)):
            call()
    with pytest.raises(SubscriptionLost):
        slow.get(timeout=0)
    assert {stat.name: stat.state for stat in store.subscriptions()} == {"slow": "lost", "fast": "active", "slow2": "active"}
    assert contents(fast.get(timeout=0)) == [b"5", b"6", b"7"]
    slow.close()
    with pytest.raises(SubscriptionLost, match="unsubscribe"):
        attach().subscribe("slow")
    store.unsubscribe("slow")
    assert contents(attach().subscribe("slow").get(timeout=0)) == [b"5", b"6", b"7"]


def test_an_eviction_is_logged_and_counted(make, name, caplog):
    """The producer's log has one line for each subscription evicted: which, how far behind, what to do; `stat` counts them."""
    store = make(capacity=4, lag="evict", evict_after=0.0)
    slow, fast = store.subscribe("slow"), store.subscribe("fast")
    store.put([b"1", b"2", b"3", b"4"])
    slow.ack(slow.get(limit_events=1, timeout=0))
    fast.ack(fast.get(timeout=0))
    assert "evicted" not in text_report.page(store.stat())
    store.put([b"5", b"6"], timeout=SOON)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "shmstore"]
    assert line.startswith(f"store {name!r}: subscription 'slow' was evicted after sequence 0, 3 events behind")
    assert f"`shmstore unsubscribe {name} slow`" in line
    assert store.stat().evictions == 1
    assert "lag=evict (1 evicted so far)" in text_report.page(store.stat())


def test_an_evicted_reader_hears_it_however_late(make):
    """A reader that comes back after the ring wrapped around hears that it was evicted, not that the store is corrupt."""
    store = make(capacity=4, lag="evict", evict_after=0.0)
    slow = store.subscribe("slow")
    store.put([b"1", b"2"])
    assert len(slow.get(limit_events=1, timeout=0)) == 1
    for i in range(5000):
        store.put(b"%d" % i, timeout=SOON)
    for call in (lambda: slow.get(timeout=0), lambda: slow.get(min_events=2), lambda: slow.ack(0)):
        with pytest.raises(SubscriptionLost):
            call()


def test_a_waiting_reader_that_is_evicted_is_woken(make, attach, start, no_slices):
    """A reader evicted while it waits for more than there is hears of it at once."""
    store, other = make(capacity=4, lag="evict", evict_after=0.0), attach()
    slow = other.subscribe("slow")
    store.put([b"1", b"2", b"3"])
    first = slow.get(timeout=0)
    waiting = start(slow.get, min_events=4)
    time.sleep(0.05)
    store.put([b"4", b"5"], timeout=SOON)
    with pytest.raises(SubscriptionLost):
        waiting.result(SOON)
    assert len(first) == 3


def test_eviction_counts_over_several_tries(make):
    """A producer that only tries, or waits a little at a time, evicts all the same when the bound has passed."""
    store = make(capacity=2, lag="evict", evict_after=0.1)
    store.subscribe("slow")
    store.put([b"1", b"2"])
    began = time.monotonic()
    while True:
        try:
            store.put(b"3", timeout=0.01)
            break
        except TimeoutError:
            assert time.monotonic() - began < SOON
    assert store.subscriptions()[0].state == "lost"


def test_eviction_leaves_the_next_subscriber_what_is_kept(make):
    """When the last reader is evicted the store keeps what is not overwritten, for the next subscriber."""
    store = make(capacity=4, lag="evict", evict_after=0.0)
    store.subscribe("slow").close()
    store.put([b"1", b"2", b"3", b"4"])
    store.put(b"5", timeout=0.01)
    with store.subscribe("new") as new:
        assert contents(new.get(timeout=0)) == [b"2", b"3", b"4", b"5"]
        store.unsubscribe("slow")
        new.rollback()
        assert len(new.get(timeout=0)) == 4


def test_nobody_is_evicted_without_need(make):
    """A store that may evict does not while there is space, however far a reader lags."""
    store = make(capacity=8, lag="evict", evict_after=0.0)
    slow = store.subscribe("slow")
    store.put([b"x"] * 8)
    time.sleep(0.02)
    assert len(slow.get(timeout=0)) == 8
