"""Batches of a store with a log that are looked at where they lie in the ring: what comes is the events, whatever the producer writes over meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from shmstore import Batch, EventStore, EventType, StoreCorrupt
from shmstore.encoding.codec import decode
from tests.shmstore import samples
from tests.shmstore.tables import NARROW, random_events, rows_event

pa = pytest.importorskip("pyarrow")
arrow_table = pytest.importorskip("shmstore.encoding.arrow_table")
READ_TABLE = arrow_table.read_table


@pytest.fixture(name="store")
def _store(both_ways: str) -> Any:
    with EventStore.create(both_ways, capacity=256, memory_unit=1024) as store:
        yield store


def put(store: EventStore, first: int, count: int, note: str = "x") -> None:
    payloads = [rows_event(i, EventType.INSERT, None, [[i, note], [i, None]], NARROW) for i in range(first, first + count)]
    put_payloads(store, payloads)


def put_payloads(store: EventStore, payloads: list[bytes]) -> None:
    rows = [len(decode(payload).rows) for payload in payloads]
    store.put_encoded(*samples.encoded(payloads, rows=rows), timeout=20)


def write_over(store: EventStore, first: int) -> None:
    """Put more events than the ring has places for, of other sizes."""
    for at in range(first, first + 600, 50):
        put(store, at, 50, "y" * 70)


def ids(table: pa.Table) -> list[int]:
    return [row["id"] for row in table["after"].to_pylist()]


def test_what_the_ring_has_is_read_there(store: EventStore) -> None:
    """No payload is copied for a table or for the number of rows; what was looked at before is looked at there."""
    with store.subscribe("a") as reader:
        put(store, 0, 40)
        batch = reader.get(timeout=5)
        table = batch.to_arrow()
        assert ids(table) == [i for i in range(40) for _ in range(2)]
        assert batch.rows == 80
        if batch._segment.views.native is not None:
            assert batch._raw is None
            assert not hasattr(batch, "_found")
        _ = batch.raw
        assert batch.to_arrow().equals(table)
        assert batch.copy().to_arrow().equals(table)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("then", ["read", "fail"])
def test_a_ring_that_is_written_over_meanwhile(store: EventStore, when: str, then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is that of the batch, whether the bytes change before they are read or once they were, and whatever is made of them."""
    calls = 0

    def overtaken(raw: memoryview, *rest: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            return READ_TABLE(raw, *rest)
        if when == "before":
            write_over(store, 40)
            store.sync(timeout=20)
        table = READ_TABLE(raw, *rest) if when == "after" else None
        if when == "after":
            write_over(store, 40)
            store.sync(timeout=20)
        if then == "fail":
            raise StoreCorrupt("what was written over is no event")
        return table if table is not None else READ_TABLE(raw, *rest)

    with store.subscribe("a") as reader:
        put(store, 0, 40)
        batch = reader.get(timeout=5)
        monkeypatch.setattr(arrow_table, "read_table", overtaken)
        in_place = batch._in_ring() is not None
        if then == "fail" and not in_place:  # of a copy there is no second look
            with pytest.raises(StoreCorrupt, match="written over"):
                batch.to_arrow()
            return
        table = batch.to_arrow()
        assert calls == (2 if in_place else 1)
        assert ids(table) == [i for i in range(40) for _ in range(2)]
        assert table["after"].to_pylist()[0] == {"id": 0, "note": "x"}
        assert batch.rows == 80


def test_batches_of_every_kind(store: EventStore, seed: int) -> None:
    """Of the ring or of the log, whole or chosen from, looked at before or not: the same rows, and as many as there are."""
    chance = random.Random(seed)
    payloads = [payload for _ in range(20) for payload in random_events(chance, 20, NARROW)]
    with store.subscribe("a") as reader, store.subscribe("b") as other:
        for at in range(0, len(payloads), 40):
            put_payloads(store, payloads[at : at + 40])
            if chance.random() < 0.5:
                check(reader.get(limit_events=chance.choice([1, 7, 40]), timeout=5), chance)
        while batch := reader.get(limit_events=chance.choice([1, 30, 100]), timeout=0):
            check(batch, chance)
        first = chance.randrange(len(payloads) // 2)
        other.seek(first)
        while batch := other.get(timeout=0):
            check(batch, chance)


def check(batch: Batch, chance: random.Random) -> None:
    looks: list[Callable[[], Any]] = [
        lambda: batch.rows,
        lambda: batch.to_arrow(NARROW),
        lambda: bytes(batch.raw),
        lambda: batch.slots,
    ]
    found = [look() for look in chance.sample(looks, chance.randrange(4))]
    del found
    rows = [(event.sequence, row.before, row.after) for event in batch for row in event.rows]
    assert batch.rows == len(rows)
    table = batch.to_arrow(NARROW)
    table.validate(full=True)
    images = [[None if row is None else tuple(row.values()) for row in table[image].to_pylist()] for image in ("before", "after")]
    assert list(zip(table["seq"].to_pylist(), *images, strict=True)) == rows
    chosen = [chance.random() < 0.5 for _ in range(len(batch))]
    some = batch.select(chosen)
    assert some.to_arrow(NARROW)["seq"].to_pylist() == [sequence for sequence, _, _ in rows if chosen[sequence - batch.first]]


def test_damage_in_the_ring_is_an_error(store: EventStore) -> None:
    """Bytes in the ring that are no event are refused, as everywhere; the next batch is read."""
    with store.subscribe("a") as reader:
        good = rows_event(0, EventType.INSERT, None, [[1, "a"]], NARROW)
        store.put_encoded(*samples.encoded([good, good[:-1]]), timeout=5)
        put(store, 5, 1)
        batch = reader.get(limit_events=2, timeout=5)
        with pytest.raises(StoreCorrupt):
            batch.to_arrow()
        assert ids(reader.get(timeout=5).to_arrow()) == [5, 5]
