"""shmstore.consumer.wire.server in a cluster: who is served, and what is kept for whom. Two servers of this process, a real ZooKeeper."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from shmstore import BatchMode, EventStore, StoreNotFound
from shmstore.consumer.wire import CanalSettings
from shmstore.consumer.wire.protocol.connection_state import Client
from shmstore.consumer.wire.server import server as server_module
from tests.consumer.wire.cluster.hosts import wait_for
from tests.consumer.wire.cluster.transactions import put
from tests.consumer.wire.harness import RawClient, ServerThread, ids, refused
from tests.servers.zookeeper import Zookeeper, zookeeper

pytestmark = pytest.mark.server
NAME = "orders"


@pytest.fixture(scope="module")
def running() -> Iterator[Zookeeper]:
    with zookeeper() as found:
        yield found


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[EventStore]]:
    """Two stores with logs, as of two hosts; the second one reads another server's files."""
    names = [f"cluster-{os.getpid()}-{letter}" for letter in "xy"]
    made = [EventStore.create(name, capacity=64, batch_mode=BatchMode.ITEMSIZE, state=tmp_path / name) for name in names]
    yield made
    for name, store in zip(names, made, strict=True):
        store.close()
        with suppress(StoreNotFound):
            EventStore.unlink(name, log=True, state=tmp_path / name)


@pytest.fixture
def serve(running: Zookeeper, stores: list[EventStore], tmp_path: Path) -> Iterator[Callable[..., ServerThread]]:
    """Serve one of the stores as a destination of the test's own, below a root of its own in ZooKeeper."""
    made: list[ServerThread] = []
    root = tmp_path.name
    from kazoo.client import KazooClient

    client = KazooClient(f"127.0.0.1:{running.port}")
    client.start()
    client.ensure_path(f"/{root}")
    client.stop()
    client.close()

    def start(index: int, **options: object) -> ServerThread:
        settings = {"port": 0, "stores": (f"{NAME}={stores[index].name}",), "state": tmp_path / f"state{index}"}
        settings |= {"zookeeper": f"127.0.0.1:{running.port}/{root}", "zookeeper_timeout": 1.5}
        made.append(ServerThread(CanalSettings(**settings | options)))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for server in made:
        server.stop()


def active(server: ServerThread) -> bool:
    return server.server.metrics.active[NAME]


def names(store: EventStore) -> dict[str, int]:
    return {stat.name: stat.ack.sequence for stat in store.subscriptions()}


def test_only_the_active_one_serves(serve: Callable[..., ServerThread], stores: list[EventStore]) -> None:
    """The other one refuses, and says where to go; when the active one ends it serves, and the client continues at its ack, with what it
    was given and had not acked."""
    put(stores[0], range(1, 11))
    put(stores[1], range(1, 11), file="mysql-bin.000900")
    one = serve(0)
    wait_for(lambda: active(one), "the first is active")
    two = serve(1)
    registration = two.server._registration
    assert registration is not None
    wait_for(lambda: registration.active_elsewhere(NAME) != "", "the second knows")
    with closing(RawClient(two.port, NAME)) as client:
        assert f"127.0.0.1:{one.port}" in refused(client.subscribe(), 400)
        refused(client.get(), 400)
        assert client.unsubscribe().error_code == 400
    assert registration.clients(NAME) == []
    assert names(stores[1]) == {}
    with closing(RawClient(one.port, NAME)) as client:
        assert client.subscribe("shop.*").error_code == 0
        answer = client.get(2)  # a row and the transaction's end; of MariaDB there is no beginning
        acked = ids(answer)
        assert acked == [1]
        client.ack(answer.batch_id)
        held = client.get(2)
        assert ids(held)
        assert "shmstore_serve_active" in one.server.metrics.exposition()
        one.stop()
    wait_for(lambda: active(two), "the second is active")
    with closing(RawClient(two.port, NAME)) as client:
        answer = client.get(1000)  # it is subscribed: that is in ZooKeeper
        assert acked + ids(answer) == list(range(1, 11))
        client.ack(answer.batch_id)
    wait_for(lambda: names(stores[1]).get("canal-1001") == stores[1].newest, "its subscription is here now")


def test_the_others_follow(serve: Callable[..., ServerThread], stores: list[EventStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not active keeps in its store what the clients have not acked, and lets go of clients that leave."""
    monkeypatch.setattr(server_module, "_FOLLOW", 0.1)
    put(stores[0], range(1, 11))
    put(stores[1], range(5, 11))
    one = serve(0, start="latest")
    wait_for(lambda: active(one), "the first is active")
    two = serve(1)
    with closing(RawClient(one.port, NAME)) as client, closing(RawClient(one.port, NAME, 7)) as other:
        assert client.subscribe().error_code == 0
        assert other.subscribe().error_code == 0
        wait_for(lambda: names(stores[1]) == {"canal-1001": 17, "canal-7": 17}, "both are at the end, by what was last")
        put(stores[0], range(11, 14))
        put(stores[1], range(11, 14))
        answer = client.get(2)
        client.ack(answer.batch_id)
        last = max(ids(answer))
        wait_for(lambda: names(stores[1])["canal-1001"] == 3 * (last - 4) - 1, "the one follows")
        assert names(stores[1])["canal-7"] == 17
        assert other.unsubscribe().error_code == 0
        wait_for(lambda: "canal-7" not in names(stores[1]), "the other is removed here, too")
        registration = one.server._registration
        assert registration is not None
        assert registration.clients(NAME) == [Client(NAME, 1001)]
    one.stop()
    wait_for(lambda: active(two), "the second is active")
    with closing(RawClient(two.port, NAME)) as client:
        assert ids(client.get()) == list(range(last + 1, 14))


def test_a_store_that_does_not_have_it(serve: Callable[..., ServerThread], stores: list[EventStore]) -> None:
    """Where what the client wants next is lost, or has not come yet, it is refused, until it unsubscribes or that has come."""
    put(stores[0], range(1, 6))
    put(stores[1], range(1, 3))
    one = serve(0)
    wait_for(lambda: active(one), "the first is active")
    with closing(RawClient(one.port, NAME)) as client, closing(RawClient(one.port, NAME, 7)) as other:
        for each in (client, other):
            assert each.subscribe().error_code == 0
        client.ack(client.get().batch_id)
        assert other.get(2).batch_id == 1
    one.stop()
    two = serve(1)
    wait_for(lambda: active(two), "the second is active")
    with closing(RawClient(two.port, NAME)) as client, closing(RawClient(two.port, NAME, 7)) as other:
        assert ids(other.get()) == [1, 2]
        assert "not reached" in refused(client.subscribe(), 400)
        put(stores[1], range(3, 8))
        assert client.subscribe().error_code == 0
        assert ids(client.get()) == [6, 7]
        client.ack(1)
    two.stop()
    stores[0].close()
    EventStore.unlink(stores[0].name, log=True, state=Path(stores[0].segment.home).parent)
    stores[0] = EventStore.create(stores[0].name, capacity=64, state=Path(stores[0].segment.home).parent)
    put(stores[0], range(10, 12))
    three = serve(0)
    wait_for(lambda: active(three), "the store that was made again is served")
    with closing(RawClient(three.port, NAME)) as client:
        assert "older than what store" in refused(client.subscribe(), 400)
        assert client.unsubscribe().error_code == 0
        assert client.subscribe().error_code == 0
        assert ids(client.get()) == [10, 11]


def test_what_a_cluster_needs(serve: Callable[..., ServerThread], stores: list[EventStore], tmp_path: Path) -> None:
    """Names, a way to be reached, and a log."""
    with pytest.raises(ValueError, match="names of its stores"):
        CanalSettings(zookeeper="127.0.0.1:1")
    for wrong in ("host", "host:", ":1", "host:0", "host:70000", "::1:5"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            CanalSettings(advertise=wrong)
    with EventStore.create(f"cluster-{os.getpid()}-z", log=False) as bare:
        server = serve(0, stores=(f"{NAME}={bare.name}",), advertise="changes.example:11111")
        registration = server.server._registration
        assert registration is not None
        wait_for(lambda: "no log" in registration._refusals.get(NAME, ""), "it says why it is not active")
        assert registration._address == "changes.example:11111"
        assert not active(server)
    EventStore.unlink(bare.name)
