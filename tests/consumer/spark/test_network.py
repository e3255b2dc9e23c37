"""Events over TCP: those who know the key get what they ask for, others nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from multiprocessing import AuthenticationError

import pytest

from consumer.spark.network import Chunk, EventServer, fetch
from consumer.spark.partition import read_store
from shmstore import EventStore, PositionNotFound
from shmstore.codec import encode
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
    (chunk,) = fetch(server.address, 3, 40)
    assert [bytes(payload) for payload in chunk.payloads()] == [encode(event) for event in events[3:41]]
    assert chunk.first == 3
    assert chunk.slots["offset"].tolist() == [event.position.offset for event in events[3:41]]


def test_what_is_gone_is_said(server: EventServer, store: EventStore, binlog: Binlog) -> None:
    """A range that the store does not hold is the error that the store gives."""
    store.put(binlog.insert(order_row(1)))
    with pytest.raises(PositionNotFound, match="is not in store"):
        list(fetch(server.address, 100, 120))


def test_strangers_get_nothing_and_hold_nobody_up(server: EventServer, store: EventStore, binlog: Binlog) -> None:
    """A wrong key is refused, and a peer that says nothing keeps nobody waiting."""
    store.put(binlog.insert(order_row(1)))
    with socket.create_connection((server.address.host, server.address.port)):
        with pytest.raises((AuthenticationError, EOFError, ConnectionError)):
            list(fetch(server.address._replace(key=b"x" * 32), 0, 1))
        assert sum(len(chunk.slots) for chunk in fetch(server.address, 0, 2)) == 3


def test_a_closed_server_refuses(server: EventServer) -> None:
    """After close there is nobody to talk to."""
    server.close()
    with pytest.raises(ConnectionError):
        list(fetch(server.address, 0, 1))


def test_an_answer_cut_short_is_no_answer(binlog: Binlog, store: EventStore) -> None:
    """A server that dies in mid-answer is an error, not the end of the events."""
    store.put(binlog.insert(order_row(1)))

    def broken(first: int, last: int) -> Iterator[Chunk]:
        yield from read_store(store, first, last)
        raise OSError("the store's host is gone")

    server = EventServer(broken, "127.0.0.1")
    with pytest.raises(ConnectionError, match="mid-answer"):
        list(fetch(server.address, 0, 2))
    server.close()
