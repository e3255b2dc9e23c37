"""shmstore.consumer.wire.session.session: one client's batches over a real store, without a socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmstore import BatchMode, EntryType, Event, EventStore, EventType, Position, ProtocolError
from shmstore.consumer.formats.canal_values import Values
from shmstore.consumer.wire.encoding.entry import Encoder
from shmstore.consumer.wire.protocol import messages as m
from shmstore.consumer.wire.protocol.connection_state import Client
from shmstore.consumer.wire.session.entry_cache import EntryCache
from shmstore.consumer.wire.session.outbox import Limit
from shmstore.consumer.wire.session.session import ClientSession
from shmstore.consumer.wire.session.unacked import Given
from tests.consumer.wire.harness import OTHER, events, ids

Make = Callable[..., ClientSession]


@pytest.fixture
def open_session(tmp_path: Path) -> Iterator[Make]:
    made: list[ClientSession] = []

    def make(store: EventStore, client_id: int = 1, **options: Any) -> ClientSession:
        options = {"start": "earliest", "filter": "", "max_outstanding": 100, "max_reply": 1 << 20} | options
        encoder, cache = Encoder(Values.CANAL), EntryCache(store.epoch, 1 << 20)
        made.append(
            ClientSession(EventStore.attach(store.name, state=tmp_path), Client(store.name, client_id), encoder, cache, **options)
        )
        return made[-1]

    yield make
    for session in made:
        session.close()


def fill(session: ClientSession, limit: Limit) -> None:
    while (batch := session.take(limit)) is not None:
        session.absorb(batch)


def get(session: ClientSession, size: int) -> tuple[int, list[int], int] | None:
    """(id, row ids, entries) of a GET that does not wait."""
    limit = session.limit(size)
    fill(session, limit)
    batch = session.deliver(limit)
    if batch is None:
        return None
    answer = m.Messages.FromString(b"".join(batch[1]))
    assert batch[2] == len(ids(answer))
    return batch[0], ids(answer), len(batch[1])


def itemsize(new_store: Callable[..., EventStore], **options: Any) -> EventStore:
    return new_store(batch_mode=BatchMode.ITEMSIZE, **options)


def test_sizes_in_entries(new_store: Callable[..., EventStore], open_session: Make) -> None:
    """In an ITEMSIZE store a batch has as many entries as asked for, begin and end counted."""
    store = itemsize(new_store)
    store.put(events(range(4)))
    session = open_session(store)
    assert [get(session, 4), get(session, 1), get(session, 100), get(session, 100)] == [
        (1, [0, 1, 2], 4),
        (2, [3], 1),
        (3, [], 1),
        None,
    ]


def test_sizes_in_bytes(store: EventStore, open_session: Make) -> None:
    """In a MEMSIZE store a batch has that many KiB of entries as sent, and as with Canal the entry that exceeds them."""
    store.put(events(range(200)))
    store.put([event._replace(sql="x" * 5000, table=None, rows=(), entry=EntryType.DDL) for event in events([1])[1:2]])
    session = open_session(store)
    limit = session.limit(2)
    seen = []
    while True:
        fill(session, limit)
        batch = session.deliver(limit)
        if batch is None:
            break
        *others, last = map(len, batch[1])
        assert sum(others) <= 2048
        assert sum(others) + last > 2048 or len(seen) > 190
        seen += ids(m.Messages.FromString(b"".join(batch[1])))
    assert seen == list(range(200))


def test_acks_oldest_first(new_store: Callable[..., EventStore], open_session: Make) -> None:
    """Several batches may be out; they are acked one by one, oldest first; anything else is refused and changes nothing."""
    store = itemsize(new_store)
    for i in range(3):
        store.put(events([i]))
    session = open_session(store)
    assert [get(session, 3) for _ in range(3)] == [(1, [0], 3), (2, [1], 3), (3, [2], 3)]
    for wrong in (2, 3, 99, -5):
        with pytest.raises(ProtocolError):
            session.ack(wrong)
    first = session.outstanding[0]
    session.ack(1)
    assert session.subscription.ack_cursor.sequence == first.last
    with pytest.raises(ProtocolError):
        session.ack(1)
    with pytest.raises(ProtocolError):
        session.rollback(3)


def test_rollback(store: EventStore, open_session: Make) -> None:
    """A rollback gives everything un-acked again, in the same order and bytes, under new ids; old ids are refused."""
    store.put(events(range(3)))
    store.put(events(range(3, 6)))
    session = open_session(store)
    limit = session.limit(1)
    fill(session, limit)
    first, second = session.deliver(limit), session.deliver(limit)
    assert first is not None
    assert second is not None
    for batch_id in (0, 3):
        session.rollback(batch_id)
        assert session.outstanding == ()
        for wrong in (1, 2):
            with pytest.raises(ProtocolError):
                session.ack(wrong)
        fill(session, limit)
        again = session.deliver(limit)
        assert again is not None
        assert again[1] == first[1]
        assert again[0] == (3 if batch_id == 0 else 4)


def test_new_owner_goes_on(new_store: Callable[..., EventStore], open_session: Make) -> None:
    """A session opened again holds the same batches, gives what comes after them, and takes their acks."""
    store = itemsize(new_store)
    for i in range(4):
        store.put(events([i]))
    session = open_session(store)
    assert [get(session, 3) for _ in range(3)] == [(1, [0], 3), (2, [1], 3), (3, [2], 3)]
    session.ack(1)
    session.close()
    again = open_session(store)
    assert again.outstanding == (Given(2, 5), Given(3, 8))
    assert get(again, 3) == (4, [3], 3)
    for batch_id in (2, 3, 4):
        again.ack(batch_id)
    assert again.subscription.ack_cursor.sequence == store.newest


@pytest.mark.parametrize("lost", ["given", "acked", "rolled back"])
def test_killed_before_the_record_was_written(
    lost: str, new_store: Callable[..., EventStore], open_session: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server killed between the store's cursor and the record loses nothing: a batch that no client was given comes again."""
    store = itemsize(new_store)
    for i in range(3):
        store.put(events([i]))
    session = open_session(store)
    assert get(session, 3) == (1, [0], 3)
    monkeypatch.setattr(session._record_file, "write", lambda record: None)
    if lost == "given":
        assert get(session, 3) is not None
    elif lost == "acked":
        session.ack(1)
    else:
        session.rollback(0)
    session.close()
    again = open_session(store)
    if lost == "acked":
        assert again.outstanding == ()
    else:
        assert again.outstanding == (Given(1, 2),)
        again.ack(1)
    assert [get(again, 3) for _ in range(3)] == [(2, [1], 3), (3, [2], 3), None]


def test_another_life_of_the_store(new_store: Callable[..., EventStore], open_session: Make, tmp_path: Path) -> None:
    """Batches given from a store that was removed are forgotten; ids continue rising."""
    store = new_store()
    store.put(events([1]))
    session = open_session(store)
    assert get(session, 100) == (1, [1], 3)
    session.close()
    name = store.name
    store.close()
    EventStore.unlink(name)
    with EventStore.create(name, log=False) as store:
        store.put(events([2], offset=9000))
        again = open_session(store)
        assert again.outstanding == ()
        assert get(again, 100) == (2, [2], 3)


def test_filter_frees_what_it_drops(new_store: Callable[..., EventStore], open_session: Make) -> None:
    """A client that wants little of a busy store holds up no other: what its filter drops is acked as it passes."""
    store = itemsize(new_store, capacity=64)
    session = open_session(store)
    session.filter(r"shop\.audit")
    for i in range(100):
        store.put(events([i]), timeout=0)
        assert get(session, 10) is None
    store.put(events([5], OTHER), timeout=0)
    assert get(session, 10) == (1, [5], 3)
    store.put(events([6]), timeout=0)
    assert get(session, 10) is None
    session.ack(1)
    assert session.subscription.ack_cursor.sequence == store.newest


def test_filter_keeps_transactions(new_store: Callable[..., EventStore], open_session: Make) -> None:
    """Transactions of which nothing is wanted are left out whole; others keep their begin and end."""
    store = itemsize(new_store)
    mixed = events([1, 2])
    mixed[1] = mixed[1]._replace(table=OTHER)
    for transaction in (events([7]), mixed, events([8]), events([9], OTHER)):
        store.put(transaction)
    session = open_session(store)
    session.filter(r"shop\.audit")
    limit = session.limit(100)
    fill(session, limit)
    batch = session.deliver(limit)
    assert batch is not None
    parsed = [m.Entry.FromString(data) for data in m.Messages.FromString(b"".join(batch[1])).messages]
    assert [entry.entryType for entry in parsed] == [1, 2, 3, 1, 2, 3]


def test_new_filter(new_store: Callable[..., EventStore], open_session: Make) -> None:
    """A new filter counts for all that was not yet given; a session opened again still has it."""
    store = itemsize(new_store)
    for i in range(3):
        store.put(events([i]))
        store.put(events([10 + i], OTHER))
    session = open_session(store)
    assert get(session, 3) == (1, [0], 3)
    session.filter(r"shop\.audit")
    assert get(session, 3) == (2, [10], 3)
    session.ack(1)
    session.close()
    again = open_session(store)
    assert again.outstanding == (Given(2, 8),)  # with the transaction after it that no client wants
    assert get(again, 3) == (3, [11], 3)


def test_forgotten_and_back(new_store: Callable[..., EventStore], open_session: Make) -> None:
    """After an unsubscribe nothing holds the store; who subscribes again continues at what was acked, while it is there."""
    store = itemsize(new_store, capacity=16)
    keeper = store.subscribe("keeper")
    session = open_session(store)
    store.put(events([1]))
    store.put(events([2]))
    assert get(session, 3) == (1, [1], 3)
    assert get(session, 3) == (2, [2], 3)
    session.ack(1)
    session.forget()
    assert [stat.name for stat in store.subscriptions()] == ["keeper"]
    session = open_session(store)
    assert get(session, 3) == (3, [2], 3)
    session.forget()
    keeper.ack(keeper.get(timeout=0))
    for i in range(10, 20):
        store.put(events([i]))
        keeper.ack(keeper.get(timeout=0))
    session = open_session(store)
    store.put(events([30]))
    assert get(session, 3) == (4, [30], 3)
    keeper.close()


def test_start_latest(store: EventStore, open_session: Make) -> None:
    """A client never seen before may start at what comes next."""
    store.put(events([1]))
    session = open_session(store, start="latest")
    store.put(events([2]))
    assert get(session, 100) == (1, [2], 3)


def test_ddl_isolation(new_store: Callable[..., EventStore], open_session: Make) -> None:
    """In a store that isolates DDL, a DDL is a batch of its own."""
    store = itemsize(new_store, ddl_isolation=True)
    ddl = Event(
        EntryType.DDL, EventType.ALTER, Position("binlog.000001", 5000), 0, database="shop", sql="alter table orders add x int"
    )
    store.put([*events([1]), ddl, ddl, *events([2])])
    session = open_session(store)
    assert [get(session, 100) for _ in range(4)] == [(1, [1], 3), (2, [], 1), (3, [], 1), (4, [2], 3)]


def test_too_many_out(new_store: Callable[..., EventStore], open_session: Make) -> None:
    """A client may hold so many batches and no more; an ack makes space for the next."""
    store = itemsize(new_store)
    store.put(events(range(10)))
    session = open_session(store, max_outstanding=3)
    assert [get(session, 1) is not None for _ in range(3)] == [True] * 3
    with pytest.raises(ProtocolError, match="allowed are 3"):
        get(session, 1)
    session.ack(1)
    assert get(session, 1) == (4, [2], 1)


def test_largest_reply(new_store: Callable[..., EventStore], open_session: Make) -> None:
    """An answer stays below max_reply, but for a single entry that is larger."""
    store = itemsize(new_store)
    store.put(events(range(50)))
    session = open_session(store, max_reply=1000)
    limit = session.limit(1000)
    count = 0
    while True:
        fill(session, limit)
        batch = session.deliver(limit)
        if batch is None:
            break
        assert sum(map(len, batch[1])) <= 1000
        count += len(batch[1])
    assert count == 52


def test_heartbeats_are_not_delivered(new_store: Callable[..., EventStore], open_session: Make) -> None:
    """Heartbeats are acked and never sent."""
    store = itemsize(new_store)
    session = open_session(store)
    store.put([Event(EntryType.HEARTBEAT, EventType.MHEARTBEAT, Position("binlog.000001", 5), 0)])
    assert get(session, 10) is None
    assert session.subscription.ack_cursor.sequence == store.newest
