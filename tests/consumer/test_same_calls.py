"""The calls that the documentation shows give the same for a store of this host and for one at grpc://."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from shmstore import AckError, Consumer, EventStore
from tests.consumer.conftest import Reach
from tests.consumer.test_consumer import transaction
from tests.consumer.test_tables import ddl, of


async def every_call(address: str, name: str, where: dict[str, Any]) -> list[Any]:
    """Return what a reader of two tables sees that commits sequences, is lost, and resumes."""
    found: list[Any] = []
    async with Consumer(address, name, tables="shop.orders,crm.*", limit=5, timeout=0, auto_ack=False, **where) as consumer:
        async for batch in consumer:
            found.append((batch.first, batch.last, len(batch), batch.rows, batch.position, batch.ends_transaction))
            found.append([(event.sequence, event) for event in batch])
            found.append([bytes(payload) for payload in batch.payloads()])
            found.append(batch.sequences.tolist())
            found.append(batch.to_arrow("shop.orders").to_pylist())
            consumer.sync(batch)
            committed = batch.last
            if len(found) > 20:
                break
        epoch = consumer.store.epoch
        found.append((consumer.store.name, epoch, consumer.store.newest, consumer.store.oldest, consumer.store.has_log))
    with Consumer(address, name, limit_bytes=200, timeout=0, **where) as consumer:
        found.append(consumer.resume(epoch + 1, committed))
        found.append(next(consumer).first)
        found.append(consumer.resume(epoch, committed))
        found.append([(event.sequence, event.position) for event in consumer.events()])
        found.append((consumer.subscription.name, consumer.subscription.ack_cursor, consumer.subscription.get_cursor))
        with pytest.raises(AckError) as refused:
            consumer.ack(10_000)
        found.append(str(refused.value))
        consumer.seek(committed)
        consumer.ack(next(consumer).position)
        consumer.rollback()
        found.append(consumer.subscription.lag_events)
    return found


def test_the_same_calls(
    store_name: str, tmp_path: Path, flight_server: Reach, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """`state=` is where a store of this host has its home; at grpc:// the server knows that."""
    where = {"state": tmp_path}
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path))  # the server's
    chance = random.Random(seed)
    with EventStore.create(store_name, capacity=1024, **where) as store:
        for number in range(40):
            some = chance.choice(["orders", "lines", "log"])
            store.put(
                chance.choice(
                    [of(number, some), of(number, some, "crm"), transaction(number), [ddl(number, f"DROP TABLE {some}")]]
                )
            )
        here = asyncio.run(every_call(store_name, "here", where))
        there = asyncio.run(every_call(flight_server(store_name), "there", {}))
    swapped = [("there", *each[1:]) if isinstance(each, tuple) and each[0] == "here" else each for each in here]
    assert there == [each.replace("'here'", "'there'") if isinstance(each, str) else each for each in swapped]
