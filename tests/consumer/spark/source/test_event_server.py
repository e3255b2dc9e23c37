"""Events for executors elsewhere: those that know the token get what they request, others nothing. Its connections: tests/consumer/flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from shmstore import EventStore, PositionNotFound, ShmStoreError, StoreError, StoreUnreachable
from shmstore.consumer.remote.events import RemoteEvents
from shmstore.consumer.spark.source.event_server import EventServer, fetch
from shmstore.consumer.spark.source.partition import read_store
from shmstore.encoding.codec import encode
from tests.certificates import self_signed
from tests.consumer.spark.events import Binlog, order_row


@pytest.fixture
def server(store: EventStore) -> Iterator[EventServer]:
    made = EventServer(partial(read_store, store), "127.0.0.1")
    yield made
    made.close()


def test_events_arrive_as_they_were_put(server: EventServer, store: EventStore, binlog: Binlog) -> None:
    """Payloads, ends and slots are those of the ring; a part of the range is a part of the events."""
    events = [event for n in range(20) for event in binlog.insert(order_row(n))]
    store.put(events)
    (chunk,) = fetch(server.executors_address, 3, 40)
    assert [bytes(payload) for payload in chunk.payloads()] == [encode(event) for event in events[3:41]]
    assert chunk.first == 3
    assert chunk.slots.tobytes() == store.slots(3, 40).tobytes()


def test_a_large_range_comes_in_parts(
    server: EventServer, store: EventStore, binlog: Binlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks follow each other without a gap, each within what one message may have."""
    monkeypatch.setattr("shmstore.consumer.remote.events.MESSAGE_BYTES", 1000)
    events = [event for n in range(100) for event in binlog.insert(order_row(n))]
    store.put(events)
    chunks = list(fetch(server.executors_address, 0, len(events) - 1))
    assert len(chunks) > 10
    assert [bytes(payload) for chunk in chunks for payload in chunk.payloads()] == [encode(event) for event in events]
    assert [chunk.first for chunk in chunks[1:]] == [chunk.first + len(chunk.ends) for chunk in chunks[:-1]]


def test_missing_events_are_an_error(server: EventServer, store: EventStore, binlog: Binlog) -> None:
    """A range that the store does not hold is the error that the store gives."""
    store.put(binlog.insert(order_row(1)))
    with pytest.raises(PositionNotFound, match="is not in store"):
        list(fetch(server.executors_address, 100, 120))


@pytest.mark.parametrize("token", ["", "x" * 43])
def test_strangers_get_nothing(server: EventServer, store: EventStore, binlog: Binlog, token: str) -> None:
    """Who does not know the token is refused, and does not learn whether there is a store."""
    store.put(binlog.insert(order_row(1)))
    with pytest.raises(StoreError, match="refused the login: wrong user name or password"):
        list(fetch(replace(server.executors_address, password=token), 0, 1))


def test_a_closed_server_refuses(server: EventServer) -> None:
    """After close no server answers."""
    server.close()
    with pytest.raises(StoreUnreachable):
        list(fetch(server.executors_address, 0, 1))


def test_an_answer_cut_short_is_no_answer(binlog: Binlog, store: EventStore) -> None:
    """A server that fails in the middle of a reply is an error, not the end of the events, and says nothing of its inside."""
    store.put(binlog.insert(order_row(1)))

    def broken(first: int, last: int) -> Iterator[RemoteEvents]:
        yield from read_store(store, first, last)
        raise OSError("the store's disk /dev/sdb is gone")

    server = EventServer(broken, "127.0.0.1")
    with pytest.raises(ShmStoreError, match=r"internal error: OSError: see the server's log$"):
        list(fetch(server.executors_address, 0, 2))
    server.close()


def test_with_a_certificate(store: EventStore, binlog: Binlog, tmp_path: Path) -> None:
    """Events travel by TLS; an executor trusts the query's certificate and no other."""
    own, other = self_signed(tmp_path, "own"), self_signed(tmp_path, "other")
    store.put(binlog.insert(order_row(1)))
    server = EventServer(partial(read_store, store), "127.0.0.1", own)
    address = server.executors_address
    assert sum(len(chunk.slots) for chunk in fetch(address, 0, 2)) == 3
    for wrong in (replace(address, roots=Path(other[0]).read_bytes()), replace(address, tls=False)):
        with pytest.raises(StoreUnreachable):
            list(fetch(wrong, 0, 2))
    server.close()
