"""Other sizes for a store that is there: the log's at once, the ring's when it is restored; nothing is lost either way."""

from __future__ import annotations

from typing import Any

import pytest

from shmstore import BatchMode, EventStore, StoreError
from shmstore.home.home import Home
from shmstore.log import format as log_format
from shmstore.log.files import set_firsts
from shmstore.memory import segment
from tests.shmstore.store.logged import payload, reboot, taken, wait_for


@pytest.fixture(name="name")
def _name(both_ways: str) -> str:
    return both_ways


def test_the_log_has_its_size_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The running producer lets go of what the new limits want no more; they are there after a reboot."""
    monkeypatch.setattr(log_format, "file_bytes", lambda log_size: 1 << 16)
    with EventStore.create(name, capacity=64, memory_unit=1 << 14) as store:
        for _ in range(40):
            store.put(bytes(1 << 15))
        store.sync()
        folder = Home.of(name).log
        assert len(set_firsts(folder)) >= 20
        with EventStore.attach(name) as other:  # as another process would
            assert other.resize(log_keep=0)
        wait_for(lambda: len(set_firsts(folder)) <= 2)
        assert store.resize(log_size=32 << 20, log_keep=7)
        log = store.stat().log
        assert log is not None
        assert (log.size, log.keep_ms) == (32 << 20, 7000)
        assert store.newest == 39
    reboot(name)
    with EventStore.attach(name) as store:
        log = store.stat().log
        assert log is not None
        assert (log.size, log.keep_ms) == (32 << 20, 7000)
        for _ in range(3):
            store.put(b"on")


@pytest.mark.parametrize(("capacity", "unit"), [(64, 64), (4, 32), (8, 4)])
def test_the_ring_has_its_size_when_it_is_put_together(name: str, capacity: int, unit: int) -> None:
    """Larger or smaller, so that more or fewer events fit into the ring: all events are there, and the store continues."""
    with EventStore.create(name, capacity=16, memory_unit=8, batch_mode=BatchMode.ITEMSIZE, ddl_isolation=True) as store:
        payloads = [payload(k) for k in range(20)] + [bytes(200), b"x" * 100, b"last"]
        for each in payloads:
            store.put(each)
        with store.subscribe("r") as reader:
            assert taken(reader, 5, limit_events=5) == payloads[:5]
        total = store.put_cursor
        epoch = store.epoch
        assert store.in_use
        assert not store.resize(capacity=capacity, memory_unit=unit)
        assert (store.capacity, store.memory_unit) == (16, 8)
        assert store.put(b"still") == len(payloads)
        payloads.append(b"still")
    with EventStore.attach(name) as store:
        assert not store.in_use
        assert (store.capacity, store.memory_unit) == (16, 8)
    EventStore.unlink(name)
    with EventStore.attach(name) as store:
        assert (store.capacity, store.memory_unit, store.limit_bytes, store.epoch) == (capacity, unit, capacity * unit, epoch)
        assert (store.batch_mode, store.segment.flags & 1) == (BatchMode.ITEMSIZE, 1)
        assert store.put_cursor[1] == total.bytes + len(b"still")
        assert store.resize(capacity=capacity, memory_unit=unit)
        with store.subscribe("r") as reader:
            assert taken(reader, len(payloads) - 5) == payloads[5:]
            for k in range(3 * capacity):
                assert store.put(payload(k)) == len(payloads) + k
                assert taken(reader, 1) == [payload(k)]
            assert reader.lag_events == 0
        assert store.check() == []
        assert [s.lag_bytes for s in store.subscriptions()] == [0]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"capacity": 3}, "power of two"),
        ({"memory_unit": 0}, "memory_unit is 0"),
        ({"log_size": 1}, "16 MiB"),
        ({"log_keep": -1.0}, "log_keep"),
    ],
)
def test_sizes_are_checked(name: str, sizes: dict[str, Any], message: str) -> None:
    """What cannot be is refused, and nothing changes."""
    with EventStore.create(name, capacity=16) as store:
        with pytest.raises(ValueError, match=message):
            store.resize(**sizes)
        assert store.resize(capacity=16, memory_unit=1024)


def test_a_ring_for_which_there_is_no_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before anything is written down, with how much there is."""
    with EventStore.create(name, capacity=16) as store:
        monkeypatch.setattr(segment, "free_memory", lambda: 1 << 20)
        with pytest.raises(StoreError, match=r"would need .* bytes in /dev/shm.*1,048,576 more are free"):
            store.resize(capacity=1 << 14)
    reboot(name)
    with EventStore.attach(name) as store:
        assert store.capacity == 16


def test_a_store_without_a_log_keeps_its_size(name: str) -> None:
    """The message says how it gets another."""
    with EventStore.create(name, capacity=16, log=False) as store, pytest.raises(StoreError, match=r"no log.*shmstore rm"):
        store.resize(capacity=32)
