"""shmstore.consumer.wire.session.entry_cache: what one client had encoded serves the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shmstore import EventStore
from shmstore.consumer.formats.canal_values import Values
from shmstore.consumer.wire.encoding.entry import Encoder
from shmstore.consumer.wire.protocol.connection_state import Client
from shmstore.consumer.wire.session.entry_cache import MISSING, EntryCache
from shmstore.consumer.wire.session.session import ClientSession
from tests.consumer.wire.harness import OTHER, events


def test_bounded() -> None:
    """The oldest entries make space; entries that no client is sent are remembered as that."""
    cache = EntryCache(1, 100)
    cache.keep(0, None)
    for sequence in range(1, 50):
        cache.keep(sequence, bytes(10))
    assert len(cache) == 10
    assert cache.find(39) is MISSING
    assert cache.find(40) == bytes(10)
    cache.keep(50, None)
    assert cache.find(50) is None


class Counting(Encoder):
    """Counts what it had to encode."""

    count = 0

    def encode(self, payload: Any, wanted: Any = None) -> bytes | None:
        Counting.count += 1
        return super().encode(payload, wanted)


def test_encoded_once(store: EventStore, tmp_path: Path) -> None:
    """With two clients an event is encoded once and arrives at both alike; one with a filter, or a single one, shares nothing."""
    cache = EntryCache(store.epoch, 1 << 20)

    def session(client_id: int) -> ClientSession:
        options: dict[str, Any] = {
            "start": "earliest",
            "filter": "",
            "max_outstanding": 9,
            "max_reply": 1 << 20,
        }
        return ClientSession(
            EventStore.attach(store.name, state=tmp_path), Client(store.name, client_id), Counting(Values.CANAL), cache, **options
        )

    def read(reader: ClientSession) -> list[bytes]:
        limit = reader.limit(1000)
        while (batch := reader.take(limit)) is not None:
            reader.absorb(batch)
        given = reader.deliver(limit)
        assert given is not None
        reader.ack(given[0])
        return given[1]

    Counting.count = 0
    keeper = store.subscribe("keeper")  # or what one has acked would be gone before two comes
    store.put([*events([1, 2]), *events([3], OTHER)])
    one = session(1)
    first = read(one)
    assert (Counting.count, len(cache)) == (7, 0)
    two, three = session(2), session(3)
    three.filter(r"shop\.audit")
    assert read(two) == first
    assert Counting.count == 14
    assert len(read(three)) == 3
    assert Counting.count == 21
    store.put(events([4]))
    assert read(one) == read(two)
    assert Counting.count == 24
    for reader in (one, two, three):
        reader.close()
    assert len(cache.readers) == 0
    keeper.close()
