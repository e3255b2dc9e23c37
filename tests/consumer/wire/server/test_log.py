"""Canal clients of a store with a log: new ones, and those whose store's memory goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from shmstore import EventStore
from tests.consumer.wire.harness import PackagedClient, RawClient, ServerThread, events, ids
from tests.consumer.wire.test_clients import row_ids, start

pytestmark = pytest.mark.usefixtures("state")
NewServer = Callable[..., ServerThread]


@pytest.fixture
def store(store_name: str, state: object) -> Iterator[EventStore]:
    """A store with a log, its ring far smaller than what is put."""
    with EventStore.create(store_name, capacity=16) as made:
        yield made
    EventStore.unlink(store_name, log=True)


def put(store: EventStore, numbers: range) -> None:
    for number in numbers:
        store.put(events([number], offset=1000 * number), timeout=30)


def read(client: RawClient, count: int) -> list[int]:
    """The next `count` rows at least, acked."""
    found: list[int] = []
    while len(found) < count:
        answer = client.get(6, timeout=1000)
        assert answer.batch_id != -1, found
        found += ids(answer)
        client.ack(answer.batch_id)
    return found


def test_a_new_client_begins_at_the_logs_beginning(server: ServerThread, store: EventStore) -> None:
    """A client id never seen before gets everything kept, though another one has acked it, and the ring has moved on."""
    put(store, range(40))
    for number in (1001, 1002):
        client = RawClient(server.port, store.name, number)
        client.subscribe()
        assert read(client, 40) == list(range(40))
        client.close()


def test_a_client_that_left_goes_on_after_a_reboot(new_server: NewServer, store: EventStore) -> None:
    """Unsubscribed, away over a reboot and far behind the ring: it continues at what it had acked."""
    put(store, range(10))
    server = new_server()
    client = RawClient(server.port, store.name)
    client.subscribe()
    seen = read(client, 4)
    assert client.unsubscribe().error_code == 0
    client.close()
    server.stop()
    put(store, range(10, 30))
    store.close()
    os.unlink(store.segment.where)
    client = RawClient(new_server().port, store.name)
    client.subscribe()
    assert seen + read(client, 30 - len(seen)) == list(range(30))
    client.close()


def test_a_client_whose_store_is_removed(server: ServerThread, store: EventStore) -> None:
    """A client that reads on sees nothing of it: what it acked does not come again, its batches keep their ids."""
    put(store, range(10))
    client = RawClient(server.port, store.name)
    client.subscribe()
    seen = read(client, 4)
    held = client.get(6, timeout=1000)
    store.close()
    os.unlink(store.segment.where)
    rest = client.get(1000, timeout=1000)
    while not (more := client.get(1000, timeout=1000)).messages:
        with EventStore.attach(store.name) as again:
            put(again, range(10, 20))
    client.ack(held.batch_id)
    client.ack(rest.batch_id)
    client.ack(more.batch_id)
    found = seen + ids(held) + ids(rest) + ids(more)
    found += read(client, 20 - len(found)) if len(found) < 20 else []
    assert found == list(range(20))
    client.close()


@pytest.mark.parametrize("package", ["canal", "pycanal"])
def test_a_packaged_client_over_a_reboot(
    package: str, packaged: Callable[[str], PackagedClient], new_server: NewServer, store: EventStore
) -> None:
    """An unmodified client continues at its ack after server and memory were gone; what it had and did not ack comes again or is its own."""
    put(store, range(10))
    server, first = new_server(), packaged(package)
    start(first, server, store)
    seen = [int(key) for key in row_ids(first.get(size=6))]
    first.disconnect()
    server.stop()
    store.close()
    os.unlink(store.segment.where)
    server, second = new_server(), packaged(package)
    start(second, server, store)
    while len(seen) < 10:
        seen += [int(key) for key in row_ids(second.get(size=6))]
    assert seen == list(range(10))
    second.disconnect()
