"""One producer, sixteen subscriptions in sixteen processes, slow and fast: each sees every event, in order."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from typing import Any

import pytest

from shmstore import EventStore
from tests.shmstore.samples import leftovers

READERS = 16


def payload(i: int) -> bytes:
    """Event `i`: its number, and as many more bytes as its number says, so that nothing else can pass for it."""
    return i.to_bytes(8, "little") + bytes([i & 255]) * (i * 7919 % 60)


def read(name: str, place: int, total: int, seed: int, answer: Any) -> None:
    chance = random.Random(seed + place)
    slow = place % 4 == 3
    with EventStore.attach(name) as store, store.subscribe(f"s{place}") as reader:
        due = 0
        while due < total:
            batch = reader.get(limit_events=chance.choice([1, 50, 5000]) if slow else None, timeout=60)
            assert batch, f"nothing came after event {due - 1}"
            assert batch.first == due
            for found in batch.payloads():
                assert found == payload(due), f"reader {place}, event {due}"
                due += 1
            if slow:
                time.sleep(chance.random() * 0.002)
            if chance.random() < 0.05:
                reader.rollback()
                due = batch.first
            else:
                reader.ack(batch)
    answer.put((place, due))


def fan_out(total: int, seed: int) -> None:
    chance = random.Random(seed)
    name = f"fan-{os.getpid()}"
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    with EventStore.create(name, capacity=4096, memory_unit=64, log=False) as store:
        try:
            for place in range(READERS):
                store.subscribe(f"s{place}").close()
            readers = [context.Process(target=read, args=(name, place, total, seed, answer)) for place in range(READERS)]
            for reader in readers:
                reader.start()
            at = 0
            while at < total:
                n = min(chance.choice([1, 1, 10, 100, 1000]), total - at)
                events = [payload(i) for i in range(at, at + n)]
                store.put(events[0] if n == 1 else events, timeout=60)
                at += n
            for reader in readers:
                reader.join(120)
            assert [reader.exitcode for reader in readers] == [0] * READERS
            assert sorted(answer.get() for _ in readers) == [(place, total) for place in range(READERS)]
            assert {stat.ack.sequence for stat in store.subscriptions()} == {total - 1}
            assert store.check() == []
        finally:
            EventStore.unlink(name)
    assert leftovers(name) == []


def test_sixteen_readers_see_every_event(seed: int) -> None:
    """50,000 events to each of sixteen processes, some of them slow, some rolling back."""
    fan_out(50_000, seed)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_sixteen_readers_see_a_million_events(seed: int) -> None:
    """The same with a million."""
    fan_out(1_000_000, seed)
