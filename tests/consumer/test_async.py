"""`async for batch in consumer`: the event loop runs meanwhile, a cancellation loses nothing, and no thread is left."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import Consumer, EventStore, StoreClosed
from tests.consumer.conftest import Reach
from tests.consumer.test_consumer import acked, transaction

pytestmark = pytest.mark.usefixtures("state")
SOON = 30.0


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does, no thread of a get is there after it."""
    yield
    assert getters() == []


def getters() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "shmstore-get"]


async def waits() -> None:
    """Return once a get waits in its thread."""
    while not getters():
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)


def test_the_loop(store: EventStore, reach: Reach) -> None:
    """Batches are those of the plain loop; each is acked when the next is asked for, the last at the end of the block."""

    async def read() -> list[tuple[int, int, int]]:
        async with Consumer(reach(store.name), "audit", limit_events=3, timeout=0) as consumer:
            return [(batch.first, batch.last, acked(store)) async for batch in consumer]

    for number in range(3):
        store.put(transaction(number))
    assert asyncio.run(read()) == [(0, 2, -1), (3, 5, 2), (6, 8, 5)]
    assert acked(store) == 8


def test_an_exception_rolls_back(store: EventStore, reach: Reach) -> None:
    """The block left by an exception acks nothing of the batch in hand."""
    store.put(transaction(0))

    async def read() -> None:
        async with Consumer(reach(store.name), "audit", timeout=0) as consumer:
            async for _ in consumer:
                raise RuntimeError("body")

    with pytest.raises(RuntimeError, match="body"):
        asyncio.run(read())
    assert acked(store) == -1


def test_the_event_loop_runs_meanwhile(store: EventStore, reach: Reach) -> None:
    """While a get waits other tasks run, one of which puts what the get waits for; thousands of turns of the loop are no exception."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while turns < 200:
            turns += 1
            await asyncio.sleep(0.001)
        store.put(transaction(0))

    async def read() -> None:
        with Consumer(reach(store.name), "audit") as consumer:
            task = asyncio.create_task(others())
            async for batch in consumer:
                assert len(batch) == 3
                break
            await task

    asyncio.run(asyncio.wait_for(read(), SOON))
    assert turns == 200


def test_a_cancelled_get_takes_nothing(store: EventStore, reach: Reach, seed: int) -> None:
    """Canceled at any moment, also when its batch has just come: each event is given once, in order, and the thread has ended."""
    chance = random.Random(seed)
    count = 60

    async def put() -> None:
        for number in range(count):
            store.put(transaction(number))
            await asyncio.sleep(chance.random() * 0.006)

    async def read() -> list[int]:
        seen: list[int] = []
        with Consumer(reach(store.name), "audit", limit_events=3) as consumer:
            putting = asyncio.create_task(put())
            while len(seen) < 3 * count:
                get = asyncio.ensure_future(anext(consumer))
                await asyncio.wait([get], timeout=chance.random() * 0.006)
                get.cancel()
                try:
                    seen += [event.sequence for event in await get]
                except asyncio.CancelledError:
                    assert getters() == []
            await putting
        return seen

    assert asyncio.run(asyncio.wait_for(read(), SOON)) == list(range(3 * count))
    assert acked(store) == 3 * count - 1


def test_a_cancelled_task(store: EventStore, reach: Reach) -> None:
    """A task that is canceled in its loop ends soon, gives the subscription back, and acks what it asked for more behind."""
    store.put(transaction(0))

    async def read() -> None:
        async with Consumer(reach(store.name), "audit", limit_events=2) as consumer:
            async for _ in consumer:
                pass

    async def main() -> float:
        task = asyncio.create_task(read())
        while not store.subscriptions() or acked(store) < 2:
            await asyncio.sleep(0.001)
        await waits()
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert asyncio.run(asyncio.wait_for(main(), SOON)) < 5
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        assert list(consumer) == []


@pytest.mark.parametrize("how", ["ack", "position", "rollback", "seek", "sync"])
def test_other_tasks_between(store: EventStore, how: str, reach: Reach) -> None:
    """While one task waits for the next batch, others ack, roll back and seek: soon, and the waiting one gets what follows."""
    store.put([*transaction(0), *transaction(1)])

    async def main() -> None:
        with Consumer(reach(store.name), "audit", auto_ack=False) as consumer:
            batch = await anext(consumer)
            get = asyncio.ensure_future(anext(consumer))
            await waits()
            began = time.monotonic()
            if how == "ack":
                consumer.ack(1)
            elif how == "position":
                consumer.ack(batch.events[1].position)
            elif how == "rollback":
                consumer.rollback()
            elif how == "seek":
                consumer.seek(3)
            else:
                consumer.sync(batch)
            assert time.monotonic() - began < 5
            assert acked(store) == {"rollback": -1, "seek": 2, "sync": -1}.get(how, 1)
            if how in ("rollback", "seek"):
                assert (await get).first == {"rollback": 0, "seek": 3}[how]
            else:
                assert not get.done()
                store.put(transaction(2))
                assert (await get).first == 6

    asyncio.run(asyncio.wait_for(main(), SOON))


def test_two_tasks_do_not_share_a_loop(store: EventStore, reach: Reach) -> None:
    """A second task that asks for a batch meanwhile is refused, and the first one is not disturbed."""

    async def main() -> None:
        with Consumer(reach(store.name), "audit") as consumer:
            get = asyncio.ensure_future(anext(consumer))
            await waits()
            with pytest.raises(RuntimeError, match="another task waits"):
                await anext(consumer)
            store.put(transaction(0))
            assert len(await get) == 3

    asyncio.run(asyncio.wait_for(main(), SOON))


@pytest.mark.parametrize("how", ["stop", "close"])
def test_a_wait_that_is_ended(store: EventStore, how: str, reach: Reach) -> None:
    """stop() and close() from another task end the loop at once, in order."""

    async def main() -> None:
        consumer = Consumer(reach(store.name), "audit")
        get = asyncio.ensure_future(anext(consumer))
        await waits()
        getattr(consumer, how)()
        with pytest.raises(StopAsyncIteration):
            await get
        consumer.close()
        with pytest.raises(StoreClosed):
            await anext(consumer)

    asyncio.run(asyncio.wait_for(main(), SOON))


def test_a_loop_that_ends_with_its_event_loop(store: EventStore, reach: Reach) -> None:
    """A task that is dropped with its event loop, uncancelled, leaves no thread; the consumer is collected, and its events come again."""
    loop = asyncio.new_event_loop()
    store.put(transaction(0))
    consumer = Consumer(reach(store.name), "audit", limit_events=3)

    async def read() -> None:
        async for _ in consumer:
            pass

    task = loop.create_task(read())
    loop.run_until_complete(waits())
    while acked(store) < 2:
        loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    gone = weakref.ref(task)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    gc.collect()
    assert gone() is None
    assert getters() == []
    consumer.close()
    with Consumer(reach(store.name), "audit", timeout=0) as again:
        assert list(again) == []


def test_a_store_that_is_removed(store_name: str, reach: Reach) -> None:
    """In a store that was removed and restored from its home the loop continues, as the plain one does."""
    with EventStore.create(store_name, capacity=64) as store:
        store.put(transaction(0))

        async def main() -> list[int]:
            seen = []
            async with Consumer(reach(store_name), "audit", limit_events=3, timeout=5) as consumer:
                async for batch in consumer:
                    seen.append(batch.first)
                    if len(seen) == 1:
                        store.close()
                        os.unlink(f"/dev/shm/shmstore.{store_name}")
                        with EventStore.attach(store_name) as again:
                            again.put(transaction(1))
                    if len(seen) == 2:
                        break
            return seen

        assert asyncio.run(asyncio.wait_for(main(), SOON)) == [0, 3]


def test_with_the_default_executor_full(store: EventStore, reach: Reach, tmp_path: Path) -> None:
    """Readers wait in threads of their own: many of them, more than the default executor has, all read."""
    many = 40

    async def read(number: int) -> int:
        async with Consumer(reach(store.name), f"r{number}") as consumer:
            async for batch in consumer:
                return len(batch)
        return 0

    async def main() -> list[int]:
        tasks = [asyncio.create_task(read(number)) for number in range(many)]
        while len(getters()) < many:
            await asyncio.sleep(0.01)
        store.put(transaction(0))
        return await asyncio.gather(*tasks)

    assert asyncio.run(asyncio.wait_for(main(), SOON)) == [3] * many
