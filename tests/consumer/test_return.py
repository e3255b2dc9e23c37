"""Readers of a store with a log: behind the ring, over a reboot, and where the segment is removed under them."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore, StoreClosed, StoreView
from shmstore.consumer import Consumer, consumer, tail
from shmstore.consumer.tail import Peek
from tests.consumer.conftest import Reach
from tests.consumer.test_consumer import transaction

pytestmark = pytest.mark.usefixtures("state")


@pytest.fixture
def store(store_name: str, state: object) -> Iterator[EventStore]:
    """A store with a log, its ring far smaller than what is put."""
    with EventStore.create(store_name, capacity=16) as made:
        yield made
    with suppress(FileNotFoundError):  # by the test
        EventStore.unlink(store_name, log=True)


def put(store: EventStore, numbers: range) -> None:
    for number in numbers:
        store.put(transaction(number), timeout=30)


def numbers_of(reader: Consumer) -> list[int]:
    """Which transactions the reader gives, acking each."""
    return [event.time_ms for event in reader.events() if event.rows]


def test_a_second_reader_gets_everything_kept(store: EventStore, reach: Reach) -> None:
    """A new subscription begins at the log's oldest event, though the first one has acked it all, and the ring has moved on."""
    put(store, range(40))
    for name in ("first", "second"):
        with Consumer(reach(store.name), name, start="earliest", timeout=0) as reader:
            assert numbers_of(reader) == list(range(40)), name
    with Consumer(reach(store.name), "first", timeout=0) as reader:
        assert numbers_of(reader) == []
        reader.seek(60)
        assert numbers_of(reader) == list(range(20, 40)), "also what was acked is given again where somebody goes back"


def test_a_reader_goes_on_after_a_reboot(store: EventStore, reach: Reach) -> None:
    """Its ack is durable without a checkpoint; after the segment is gone it continues there, however far behind the ring that is."""
    put(store, range(40))
    with Consumer(reach(store.name), "audit", limit_events=3, timeout=0) as reader:
        for count, _ in enumerate(reader, 1):
            if count == 5:
                break
    store.close()
    os.unlink(store.segment.where)
    with Consumer(reach(store.name), "audit", timeout=0) as reader:
        assert numbers_of(reader) == list(range(5, 40))


def test_a_store_removed_under_a_reader(store: EventStore, reach: Reach) -> None:
    """A reader whose store's memory was removed attaches again automatically: what it acked does not come again, what it did not does."""
    put(store, range(10))
    seen = []
    with Consumer(reach(store.name), "audit", limit_events=3, timeout=2) as reader:
        for batch in reader:
            seen.append((batch.first, batch.last))
            if len(seen) == 5:
                store.close()
                os.unlink(store.segment.where)
            if len(seen) == 10:
                with EventStore.attach(store.name) as again:
                    put(again, range(10, 12))
            if len(seen) == 12:
                break
        assert not reader.store.lost
    assert seen == [(first, first + 2) for first in range(0, 36, 3)]


def test_unacked_events_come_again_from_a_store_removed_under_a_reader(store: EventStore, reach: Reach) -> None:
    """What was given and not acked when the memory went is given again."""
    put(store, range(4))
    seen = []
    with Consumer(reach(store.name), "audit", limit_events=3, timeout=1, auto_ack=False) as reader:
        for batch in reader:
            seen.append(batch.first)
            if len(seen) == 2:
                reader.ack(2)
            if len(seen) == 4:
                store.close()
                EventStore.unlink(store.name)
            if len(seen) == 7:
                break
    assert seen == [0, 3, 6, 9, 3, 6, 9]


def test_a_store_that_does_not_come_back(store: EventStore, monkeypatch: pytest.MonkeyPatch, reach: Reach) -> None:
    """A reader whose store was removed with its log gets an error, after a bounded wait."""
    monkeypatch.setattr(consumer, "RETURN_SECONDS", 0.2)
    put(store, range(2))
    reader = Consumer(reach(store.name), "audit", timeout=5)
    next(reader)
    store.close()
    EventStore.unlink(store.name, log=True)
    with pytest.raises(StoreClosed):
        list(reader)
    reader.close()


@contextmanager
def away(store: EventStore, state: Path) -> Iterator[None]:
    """Memory and home of the store are not there during the block."""
    store.close()
    home = state / store.name
    aside = home.rename(state.parent / "aside")
    os.unlink(store.segment.where)
    yield
    aside.rename(home)


def test_a_store_that_comes_back_late(store: EventStore, monkeypatch: pytest.MonkeyPatch, reach: Reach, state: Path) -> None:
    """A reader that has got an error continues with its next call once the store is there again, and a new loop does."""
    put(store, range(1))
    with Consumer(reach(store.name), "audit", limit_events=3, timeout=2) as reader:
        assert next(reader).last == 2
        reader.ack()
        with away(store, state), monkeypatch.context() as patch:
            patch.setattr(consumer, "RETURN_SECONDS", 0.2)
            for _ in range(2):
                with pytest.raises(StoreClosed, match="was removed"):
                    next(reader)
        with EventStore.attach(store.name) as again:
            put(again, range(1, 2))
        assert [batch.first for batch in reader] == [3]


def test_a_wait_for_a_store_that_is_canceled(store: EventStore, monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    """A loop of asyncio that is canceled while its store is away continues with the next call once the store is there again."""
    put(store, range(1))
    retried, waits = consumer.retried, threading.Event()

    def noted(*arguments: Any) -> Any:
        waits.set()
        return retried(*arguments)

    monkeypatch.setattr(consumer, "retried", noted)

    async def main() -> list[int]:
        async with Consumer(store.name, "audit", limit_events=3, timeout=2) as reader:
            assert (await anext(reader)).last == 2
            reader.ack()
            with away(store, state):
                waiting = asyncio.ensure_future(anext(reader))
                await asyncio.to_thread(waits.wait)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            with EventStore.attach(store.name) as again:
                put(again, range(1, 2))
            return [batch.first async for batch in reader]

    assert asyncio.run(main()) == [3]


def test_stop_ends_the_wait_for_a_store(store: EventStore, reach: Reach) -> None:
    """`stop` ends a reader that waits for its store as it ends any other wait."""
    put(store, range(1))
    reader = Consumer(reach(store.name), "audit")
    next(reader)
    store.close()
    EventStore.unlink(store.name, log=True)
    threading.Timer(0.3, reader.stop).start()
    list(reader)
    reader.close()


@pytest.mark.parametrize("at", range(1, 4))  # the batch before which it is removed
def test_a_look_whose_store_is_removed_under_it(store: EventStore, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """One that was there when it was looked for, and is removed before it is read, is restored, too, and nothing is left out."""
    monkeypatch.setattr(tail, "BATCH_EVENTS", 10)
    put(store, range(10))
    store.close()
    peek, peeked = StoreView.peek, itertools.count(1)

    def late(view: StoreView, *arguments: Any, **limits: Any) -> Any:
        if next(peeked) == at:
            EventStore.unlink(store.name)
        return peek(view, *arguments, **limits)

    monkeypatch.setattr(StoreView, "peek", late)
    with StoreView.attach(store.name) as view, Peek(view, "earliest") as look:
        assert [batch.first for batch in look] == [0, 10, 20]


def test_a_look_follows_into_the_log(store: EventStore) -> None:
    """A look without a subscription misses nothing that the log keeps, and continues over a removed segment."""
    put(store, range(10))
    missed: list[int] = []
    look = Peek(StoreView.attach(store.name), "earliest", follow=True, missed=missed.append)
    batches, seen = iter(look), 0
    seen += len(next(batches))
    put(store, range(10, 60))
    while seen < 180:
        seen += len(next(batches))
    store.close()
    os.unlink(store.segment.where)
    with EventStore.attach(store.name) as again:
        put(again, range(60, 80))
        while seen < 240:
            seen += len(next(batches))
    look.stop()
    assert (seen, missed, list(batches)) == (240, [], [])
