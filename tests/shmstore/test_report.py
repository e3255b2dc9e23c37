"""shmstore/report.py: figures as people read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shmstore import EventStore, StoreFull, report


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
    assert report.quantity(size) == text


def test_owner() -> None:
    """Nobody, a living owner and one that died in the role are told apart."""
    assert [report.owner(0, False), report.owner(7, True), report.owner(7, False)] == ["none", "pid 7", "pid 7 died"]


def test_moment() -> None:
    """Times are shown in UTC, and say so."""
    assert report.moment(0) == "1970-01-01 00:00:00 UTC"


def test_a_producer_that_waits_for_room_is_seen(make: Callable[..., EventStore]) -> None:
    """While a put finds no room the room line says so and names the slowest subscription and its owner; afterwards it does not."""
    store = make(capacity=8)
    quick, slow = store.subscribe("quick"), store.subscribe("slow")
    store.put([b"x"] * 8)
    quick.ack(quick.get(timeout=0))
    slow.ack(slow.get(limit_events=1, timeout=0))
    slow.close()
    assert store.stat().room_wanted is None
    assert "waits" not in report.page(store.stat())  # full, but nobody wants more
    with pytest.raises(StoreFull):
        store.put([b"x"] * 2, timeout=0)
    assert store.stat().room_wanted == 1
    room = next(line for line in report.page(store.stat()).splitlines() if line.startswith("room"))
    assert room.endswith("; the producer waits for room: subscription 'slow' (nobody reads it) has acked up to 0 of 7")
    slow = store.subscribe("slow")
    slow.ack(slow.get(timeout=0))
    assert store.stat().room_wanted is None


def test_a_producer_that_is_gone_waits_for_nothing(make: Callable[..., EventStore], attach: Callable[[], EventStore]) -> None:
    """What a producer waited for when it ended is not shown any more."""
    store = make(capacity=8)
    store.put([b"x"] * 8)
    with pytest.raises(StoreFull):
        store.put(b"x", timeout=0)
    seen = attach()
    assert report.page(seen.stat()).count("the producer waits for room: nobody is subscribed") == 1
    store.close()
    assert seen.stat().room_wanted is None
