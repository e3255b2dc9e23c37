"""shmstore/cli/text_report.py: figures as people read them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from shmstore import EntryType, Event, EventStore, EventType, Position, StoreFull, StreamStat
from shmstore.cli import text_report
from tests.shmstore.commands import ran


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (16 << 20, "16.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (5 << 50, "5,120.0 TiB"),
    ],
)
def test_quantity(size: int, text: str) -> None:
    """Bytes come with the largest unit of which there is at least one."""
    assert text_report.quantity(size) == text


def test_owner() -> None:
    """No owner, a living owner, one that has noted no pid, and one that died are different texts."""
    found = [text_report.owner(pid, alive) for pid, alive in ((0, False), (7, True), (0, True), (7, False))]
    assert found == ["none", "pid 7", "begins or ends", "pid 7 died"]


def test_moment() -> None:
    """Times are shown in UTC, and say so."""
    assert text_report.moment(0) == "1970-01-01 00:00:00 UTC"


def test_a_hung_producer_fails_the_liveness_probe(make: Callable[..., EventStore]) -> None:
    """`stat --hung-after` prints nothing, and fails only where a producer's process runs and has given no sign of life for so long."""
    store = make()
    assert ran("stat", store.name, "--hung-after", "0.2") == (0, "", "")  # no producer
    store.put([b"x"])
    store.heartbeat()
    assert ran("stat", store.name, "--hung-after", "60") == (0, "", "")
    time.sleep(0.3)
    assert ran("stat", store.name, "--hung-after", "0.2") == (1, "", "")
    store.close()
    assert ran("stat", store.name, "--hung-after", "0.2") == (0, "", "")
    assert ran("stat", "no-such-store", "--hung-after", "0.2") == (0, "", "")


def test_a_producer_that_waits_for_free_space_is_seen(make: Callable[..., EventStore]) -> None:
    """While what is put does not fit, the line on free space says so and names the slowest subscription and its owner; afterwards it does not."""
    store = make(capacity=8)
    quick, slow = store.subscribe("quick"), store.subscribe("slow")
    store.put([b"x"] * 8)
    quick.ack(quick.get(timeout=0))
    slow.ack(slow.get(limit_events=1, timeout=0))
    slow.close()
    assert store.stat().space_wanted is None
    assert "waits" not in text_report.page(store.stat())  # full, but no reader wants more
    with pytest.raises(StoreFull):
        store.put([b"x"] * 2, timeout=0)
    assert store.stat().space_wanted == 1
    free = next(line for line in text_report.page(store.stat()).splitlines() if line.startswith("free"))
    assert free.endswith(
        "; the producer waits for free space: subscription 'slow' (no process reads it) has acked up to 0 of 7: start its reader, "
        f"move it with `shmstore seek {store.name} slow latest`, or forget it with `shmstore unsubscribe {store.name} slow`"
    )
    slow = store.subscribe("slow")
    slow.ack(slow.get(timeout=0))
    assert store.stat().space_wanted is None


def test_a_producer_that_ended_waits_for_nothing(make: Callable[..., EventStore], attach: Callable[[], EventStore]) -> None:
    """What a producer waited for when it ended is not shown any more."""
    store = make(capacity=8)
    store.put([b"x"] * 8)
    with pytest.raises(StoreFull):
        store.put(b"x", timeout=0)
    seen = attach()
    assert text_report.page(seen.stat()).count("the producer waits for free space: there is no subscription") == 1
    store.close()
    assert seen.stat().space_wanted is None


def test_what_the_producer_says_of_its_stream(make: Callable[..., EventStore]) -> None:
    """The page shows link, lag, reconnects, what is left of a snapshot and when the source purges; none of it where nothing was reported."""
    store = make(capacity=8)
    store.claim()
    assert {"link", "this run", "left out", "snapshot", "purge", "complete"}.isdisjoint(
        line[:11].strip() for line in text_report.page(store.stat()).splitlines()
    )
    end = Event(EntryType.END, EventType.NONE, Position("binlog.000001", 99, "0-1-7"), 0)
    store.put(end)
    stream = StreamStat(True, 7000, 6000, 250, 1500, 2, 12, 1, 5, 3, 1000, 8000, 4000, 70)
    store.heartbeat("db", end.position, stream)
    seen = store.stat()
    told = seen.stream  # times go by the clock of the host, and back
    assert abs(told.heard_ms - stream.heard_ms) <= 1 >= abs(told.put_ms - stream.put_ms)
    assert told._replace(heard_ms=stream.heard_ms, put_ms=stream.put_ms) == stream
    lines = {line[:11].strip(): line[11:] for line in text_report.page(store.stat()).splitlines()}
    assert lines["link"].startswith("connected, last data from the source ")
    assert lines["link"].endswith("; 0.250 s behind")
    assert lines["this run"] == "12 transactions, 2 reconnects, 1 events skipped, 1.5 s waiting for free space"
    assert lines["left out"] == "4,000 events of the binlog by the filters, 70 rows by row filters and operations"
    assert lines["snapshot"] == "3 of 5 tables left, 1,000 rows so far"
    assert lines["purge"] == "the source may delete the next binlog from 1970-01-01 00:00:08 UTC on"
    assert lines["complete"] == "all transactions up to binlog.000001:99 (0-1-7)"
    assert text_report.document(seen)["stream"] == told._asdict()


def test_no_link_without_a_producer(make: Callable[..., EventStore], attach: Callable[[], EventStore]) -> None:
    """What a producer said last does not stand for a link once it has ended; an eviction is counted."""
    store = make(capacity=8, lag="evict", evict_after=0.01)
    store.subscribe("slow")
    store.put([b"x"] * 8)
    store.heartbeat("db", None, StreamStat(connected=True, heard_ms=1))
    store.put(b"x")
    seen = attach()
    assert (seen.stat().stream.connected, seen.stat().evictions) == (True, 1)
    store.close()
    assert not seen.stat().stream.connected


def test_a_clock_that_jumped_makes_no_reader_late(make: Callable[..., EventStore]) -> None:
    """Lag counts from the latest time up to the ack: not thousands of seconds after a clock that went back and forth again."""
    store = make(capacity=64, memory_unit=1024)
    reader, now = store.subscribe("a"), time.time_ns() // 1_000_000

    def lag(*seconds: float) -> float:
        store.put([Event(EntryType.END, EventType.NONE, Position("binlog.000001", 99), int(now + 1000 * at)) for at in seconds])
        return store.subscriptions()[0].lag_ms / 1000

    assert lag(-100, -5000, -99) == 1  # nothing is acked: since the first
    reader.ack(reader.get(limit_events=2, timeout=0))
    assert lag() == 1
    assert lag(-90) == 10
    while reader.lag_events:
        reader.ack(reader.get(timeout=0))
    assert lag() == 0
    assert lag(7200) == 7290  # a clock that is ahead by hours ...
    while reader.lag_events:
        reader.ack(reader.get(timeout=0))
    assert lag(-80) == 0
    reader.ack(reader.get(timeout=0))
    assert lag(-20) == 60  # ... hides nothing once it is right again


def test_how_old_the_oldest_event_is_that_a_reader_has_not_acked(make: Callable[..., EventStore]) -> None:
    """It is the time of the event after the ack, which stands still while the reader hangs; 0 once all is acked."""
    store = make(capacity=8)
    reader = store.subscribe("slow")
    store.put([Event(EntryType.END, EventType.NONE, Position("binlog.000001", n), n * 1000) for n in (1, 2, 3)])
    seen = [store.stat().subscriptions[0].oldest_ms]
    for _ in range(3):
        reader.ack(reader.get(limit_events=1, timeout=0))
        seen.append(store.stat().subscriptions[0].oldest_ms)
    assert seen == [1000, 2000, 3000, 0]
