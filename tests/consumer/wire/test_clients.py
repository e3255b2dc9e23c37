"""The canal clients on PyPI, unmodified, against the server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shmstore import EventStore
from tests.consumer.wire.harness import OTHER, PackagedClient, ServerThread, events

PACKAGES = ["canal", "pycanal"]
ROW, BEGIN, END, INSERT = 2, 1, 3, 1


def start(
    client: PackagedClient, server: ServerThread, store: EventStore, *, client_id: str = "1001", filter: str = r".*\..*"
) -> None:
    client.connect(host="127.0.0.1", port=server.port)
    client.check_valid(username="", password="")
    client.subscribe(client_id=client_id, destination=store.name, filter=filter)


def row_ids(message: dict) -> list[str]:
    return [after["id"] for entry in message["entries"] for _, after in entry[4]]


@pytest.mark.parametrize("package", PACKAGES)
def test_get_ack_rollback(
    package: str, packaged: Callable[[str], PackagedClient], server: ServerThread, store: EventStore
) -> None:
    """Connect, authenticate, subscribe, get, ack and roll back as the package's example does; rows arrive as they were put."""
    client = packaged(package)
    start(client, server, store)
    assert client.get_without_ack(batch_size=100) == {"id": 0, "entries": []}
    store.put(events(range(3)))
    message = client.get_without_ack(batch_size=100)
    assert message["id"] == 1
    assert [entry[0] for entry in message["entries"]] == [BEGIN, ROW, ROW, ROW, END]
    assert message["entries"][1] == [ROW, INSERT, "shop", "orders", [[{}, {"id": "0", "name": "näme 0", "note": None}]]]
    client.rollback(batch_id=0)
    again = client.get_without_ack(batch_size=100)
    assert (again["id"], again["entries"]) == (2, message["entries"])
    client.ack(message_id=2)
    store.put(events([7]))
    assert row_ids(client.get(size=100)) == ["7"]
    assert client.get_without_ack(batch_size=100)["id"] == 0
    client.disconnect()


@pytest.mark.parametrize("package", PACKAGES)
def test_reconnect(package: str, packaged: Callable[[str], PackagedClient], server: ServerThread, store: EventStore) -> None:
    """After a disconnect what was acked is not seen again, what was not acked is."""
    store.put(events(range(2)))
    first = packaged(package)
    start(first, server, store)
    assert row_ids(first.get(size=100)) == ["0", "1"]
    store.put(events([2]))
    assert row_ids(first.get_without_ack(batch_size=100)) == ["2"]
    first.disconnect()
    second = packaged(package)
    start(second, server, store)  # both packages roll back before they subscribe
    assert row_ids(second.get(size=100)) == ["2"]


def test_two_clients_at_once(packaged: Callable[[str], PackagedClient], server: ServerThread, store: EventStore) -> None:
    """Two client ids are two subscriptions: each sees everything its filter wants, at its own pace."""
    one, two = packaged("canal"), packaged("pycanal")
    start(one, server, store, client_id="1001")
    start(two, server, store, client_id="1002", filter=r"shop\.audit")
    store.put(events([1, 2]))
    store.put(events([3], OTHER))
    assert row_ids(one.get(size=100)) == ["1", "2", "3"]
    assert row_ids(two.get(size=100)) == ["3"]
    one.rollback(batch_id=0)
    store.put(events([4], OTHER))
    assert row_ids(two.get(size=100)) == ["4"]
    assert row_ids(one.get(size=100)) == ["4"]


@pytest.mark.parametrize("package", PACKAGES)
def test_password(
    package: str, packaged: Callable[[str], PackagedClient], new_server: Callable[..., ServerThread], store: EventStore
) -> None:
    """The Python clients send the password itself: the right one is let in, a wrong one is refused and may try again."""
    server = new_server(user="canal", password="sesame")
    client = packaged(package)
    client.connect(host="127.0.0.1", port=server.port)
    with pytest.raises(RuntimeError, match="auth failed for user:canal"):
        client.check_valid(username="canal", password="wrong")
    client.check_valid(username="canal", password="sesame")
    client.subscribe(client_id="1001", destination=store.name, filter="")


@pytest.mark.parametrize("package", PACKAGES)
def test_server_restart(
    package: str, packaged: Callable[[str], PackagedClient], new_server: Callable[..., ServerThread], store: EventStore
) -> None:
    """When the server comes back on its port, a client that connects again continues after what it acked, under rising ids."""
    server = new_server()
    port = server.port
    client = packaged(package)
    start(client, server, store)
    store.put(events([1]))
    assert row_ids(client.get(size=100)) == ["1"]
    store.put(events([2]))
    assert client.get_without_ack(batch_size=100)["id"] == 2
    server.stop()
    with pytest.raises((RuntimeError, ConnectionError)):
        client.get_without_ack(batch_size=100)
    client = packaged(package)
    start(client, new_server(port=port), store)
    again = client.get_without_ack(batch_size=100)
    assert (again["id"], row_ids(again)) == (3, ["2"])
    client.ack(message_id=3)
    assert client.get_without_ack(batch_size=100)["id"] == 0
