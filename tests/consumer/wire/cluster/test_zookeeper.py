"""shmstore.consumer.wire.cluster.zookeeper: who is active, by a real ZooKeeper, and the cursors there."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kazoo.handlers.threading import KazooTimeoutError

from shmstore.consumer.wire.cluster import zookeeper as module
from shmstore.consumer.wire.cluster.cursor import ClusterCursor
from shmstore.consumer.wire.cluster.zookeeper import Registration
from shmstore.consumer.wire.protocol.connection_state import Client
from tests.consumer.wire.cluster.hosts import wait_for
from tests.producer.proxy import CuttingProxy
from tests.servers.zookeeper import Zookeeper, zookeeper

pytestmark = pytest.mark.server
SESSION = 1.5
CURSOR = ClusterCursor("binlog.000001", 100)
_numbers = itertools.count(1)
Register = Callable[..., Registration]


@pytest.fixture(scope="module")
def server() -> Iterator[Zookeeper]:
    with zookeeper() as running:
        yield running


@pytest.fixture
def destination() -> str:
    return f"orders{next(_numbers)}"


@pytest.fixture
def register(server: Zookeeper, destination: str) -> Iterator[Register]:
    """Register servers, each with an address of its own."""
    made: list[Registration] = []

    def make(port: int | None = None, usable: Callable[[str], str] = lambda _: "", **more: Any) -> Registration:
        registration = Registration(
            f"127.0.0.1:{port or server.port}", [destination], SESSION, usable, more.get("changed", lambda *_: None)
        )
        registration.start(("127.0.0.1", 20000 + len(made)))
        made.append(registration)
        return registration

    yield make
    for registration in made:
        registration.close()


def test_nodes_are_canals(register: Register, destination: str, plain_client: Any) -> None:
    """A server, the destinations that it can serve and the one that it does are nodes as Canal's own, and end with it."""
    one = register()
    wait_for(lambda: one.serves(destination), "it is active")
    two = register()
    root = f"/otter/canal/destinations/{destination}"
    wait_for(lambda: len(plain_client.get_children(f"{root}/cluster")) == 2, "both are there")
    assert sorted(plain_client.get_children("/otter/canal/cluster")) == ["127.0.0.1:20000", "127.0.0.1:20001"]
    data, stat = plain_client.get(f"{root}/running")
    assert data == b'{"active":true,"address":"127.0.0.1:20000"}'
    assert stat.ephemeralOwner
    assert not two.serves(destination)
    wait_for(lambda: two.active_elsewhere(destination) == "127.0.0.1:20000", "the other knows where")
    one.close()
    wait_for(lambda: two.serves(destination), "the other is active at once", SESSION / 2)
    assert plain_client.get_children(f"{root}/cluster") == ["127.0.0.1:20001"]


def test_cut_off(server: Zookeeper, register: Register, destination: str) -> None:
    """A server that ZooKeeper cannot be heard by stops being active before another is, also while it writes cursors all the time."""
    with closing(CuttingProxy(server.port, lambda: None)) as proxy:
        ended: list[float] = []
        one = register(proxy.port, changed=lambda _, active: None if active else ended.append(module.clock()))
        wait_for(lambda: one.serves(destination), "it is active")
        two = register()
        client = Client(destination, 1001)
        assert one.read(client) is None
        term = one.term(destination)
        assert term
        proxy.stalled.set()
        both = 0
        while not two.serves(destination):
            one.acked(client, CURSOR)
            both += one.serves(destination) and two.serves(destination)
            time.sleep(0.002)
        taken = module.clock()
        assert not one.serves(destination)
        assert one.term(destination) == 0
        assert not both
        assert ended
        assert ended[0] < taken
        proxy.stalled.clear()
        wait_for(lambda: one.active_elsewhere(destination) != "", "it is back, and knows")
        assert not one.serves(destination)
        two.close()
        wait_for(lambda: one.serves(destination), "it is active again")
        assert one.term(destination) > term


def test_a_clock_that_was_stopped(register: Register, destination: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that slept past its session is not active when it wakes up, though it has not heard of anything yet."""
    one = register()
    wait_for(lambda: one.serves(destination), "it is active")
    now = module.clock
    monkeypatch.setattr(module, "clock", lambda: now() + SESSION * module._TRUST)
    assert not one.serves(destination)


def test_cursors(register: Register, destination: str) -> None:
    """Cursors are written soon, the newest of several, each client its own; the next server reads them; a client that leaves takes its
    with it."""
    one, client, other = register(), Client(destination, 1001), Client(destination, -7)
    wait_for(lambda: one.serves(destination), "it is active")
    assert one.read(client) is None
    one.begin(client, CURSOR)
    assert one.read(other) is None
    for offset in range(200, 1200):
        one.acked(client, CURSOR._replace(offset=offset))
    one.acked(other, CURSOR)
    one.subscribed(client, "shöp\\..*")
    one.subscribed(client, "")
    two = register()
    wait_for(lambda: two._session != 0, "it is there")
    wait_for(lambda: two.peek(client) == CURSOR._replace(offset=1199), "the last cursor")
    wait_for(lambda: sorted(two.clients(destination)) == sorted([client, other]), "both clients")
    one.acked(client, CURSOR._replace(offset=5000))
    one.close()
    assert two.peek(client) == CURSOR._replace(offset=5000)
    wait_for(lambda: two.serves(destination), "the other is active")
    assert two.read(other) == CURSOR
    two.forget(other)
    two.forget(other)
    assert two.clients(destination) == [client]


def test_cursors_that_were_not_answered_are_written_later(
    register: Register, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the answers about several cursors are lost, each of them is written again, though its client acks nothing more."""
    one, clients = register(), [Client(destination, number) for number in range(3)]
    wait_for(lambda: one.serves(destination), "it is active")
    for client in clients:
        assert one.read(client) is None
        one.begin(client, CURSOR)
    lost: list[str] = []
    write = one._client.set_async

    class Lost:
        def get(self, timeout: float) -> None:
            raise KazooTimeoutError

    def losing(path: str, *arguments: Any, **options: Any) -> Any:
        if len(lost) == len(clients):
            return write(path, *arguments, **options)
        lost.append(path)
        return Lost()

    monkeypatch.setattr(one._client, "set_async", losing)
    with one._lock:
        one._dirty.update(dict.fromkeys(clients, CURSOR._replace(offset=300)))
    one._poked.set()
    for client in clients:
        wait_for(lambda client=client: one.peek(client) == CURSOR._replace(offset=300), "its cursor")  # type: ignore[misc]


def test_what_is_acked_during_the_last_look_is_written(
    register: Register, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is closed while it looks, past the cursors already, looks once more before it ends."""
    one, client = register(), Client(destination, 1001)
    wait_for(lambda: one.serves(destination), "it is active")
    one.begin(client, CURSOR)
    looked, go_on, look = threading.Event(), threading.Event(), one._look

    def slow_look() -> None:
        look()
        looked.set()
        assert go_on.wait(60)

    monkeypatch.setattr(one, "_look", slow_look)
    one.acked(client, CURSOR._replace(offset=300))
    assert looked.wait(60)
    one.acked(client, CURSOR._replace(offset=5000))
    closing = threading.Thread(target=one.close)
    closing.start()
    wait_for(lambda: one._stopping, "it is being closed")
    go_on.set()
    closing.join(60)
    assert register().peek(client) == CURSOR._replace(offset=5000)


def test_two_that_write_one_cursor(register: Register, destination: str, plain_client: Any) -> None:
    """A cursor that another server has written is written again by the active server; by one that is not any more, it is left."""
    one, client = register(), Client(destination, 1001)
    path = f"/otter/canal/destinations/{destination}/1001/cursor"
    wait_for(lambda: one.serves(destination), "it is active")
    assert one.read(client) is None
    one.begin(client, CURSOR)
    plain_client.set(path, CURSOR._replace(offset=1).encode())
    one.acked(client, CURSOR._replace(offset=300))
    wait_for(lambda: one.peek(client) == CURSOR._replace(offset=300), "it is written again")
    plain_client.set(path, CURSOR._replace(offset=2).encode())
    running = f"/otter/canal/destinations/{destination}/running"
    one._look_again(client, CURSOR)  # as after a refusal, while ...
    wait_for(lambda: one.peek(client) == CURSOR, "it is written again")
    plain_client.set(path, CURSOR._replace(offset=2).encode())
    one._usable = lambda _: "it was taken away"
    wait_for(lambda: plain_client.exists(running) is None, "it has given up")
    one.acked(client, CURSOR._replace(offset=400))
    one._look_again(client, CURSOR._replace(offset=400))
    time.sleep(SESSION / 3)
    assert one.peek(client) == CURSOR._replace(offset=2)


def test_one_that_takes_itself_for_active(register: Register, destination: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not active any more and does not know it writes no cursor over that of the active one."""
    one, client = register(), Client(destination, 1001)
    wait_for(lambda: one.serves(destination), "it is active")
    assert one.read(client) is None
    one.begin(client, CURSOR)
    one._usable = lambda _: "it was taken away"
    two = register()
    wait_for(lambda: two.serves(destination), "the other is active")
    assert two.read(client) == CURSOR
    two.acked(client, CURSOR._replace(offset=900))
    wait_for(lambda: two.peek(client) == CURSOR._replace(offset=900), "the other's cursor")
    looked: list[Client] = []
    again = one._look_again
    monkeypatch.setattr(one, "_look_again", lambda *what: (looked.append(what[0]), again(*what)))
    monkeypatch.setattr(one, "serves", lambda _: True)
    one.acked(client, CURSOR._replace(offset=200))
    wait_for(lambda: looked == [client], "it was refused")
    monkeypatch.undo()
    time.sleep(SESSION / 3)
    assert two.peek(client) == CURSOR._replace(offset=900)


def test_a_store_that_cannot_be_served(register: Register, destination: str) -> None:
    """Where the store is missing another server is active, also where this one was."""
    why = [""]
    one = register(usable=lambda _: why[0])
    wait_for(lambda: one.serves(destination), "it is active")
    two = register()
    why[0] = "no such store"
    wait_for(lambda: two.serves(destination), "the other is active")
    assert not one.serves(destination)


def test_no_zookeeper(destination: str) -> None:
    """A server starts without ZooKeeper, is not active, says so when it is asked, and ends at once."""
    with closing(Registration("127.0.0.1:1", [destination], SESSION, lambda _: "", lambda *_: None)) as registration:
        registration.start(("127.0.0.1", 1))
        assert not registration.serves(destination)
        with pytest.raises(module.ZookeeperSilent, match="does not answer"):
            registration.read(Client(destination, 1))
        began = time.monotonic()
    assert time.monotonic() - began < 10
