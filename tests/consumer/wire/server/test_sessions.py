"""shmstore.consumer.wire.server.sessions: subscriptions that are given back, and two servers that share a store's clients."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmstore import BatchMode, CheckpointFile, EventStore
from shmstore.consumer.wire.protocol import messages as m
from shmstore.consumer.wire.protocol.connection_state import Client
from shmstore.consumer.wire.protocol.messages import PacketType as T
from shmstore.consumer.wire.server import sessions
from shmstore.consumer.wire.session import session as session_module
from shmstore.consumer.wire.session import unacked
from shmstore.home.home import Home
from tests.consumer.test_begin import STORE, at_each_line, take_away
from tests.consumer.wire.harness import RawClient, ServerThread, events, ids, refused, wait_for

pytestmark = pytest.mark.usefixtures("state")
NewServer = Callable[..., ServerThread]


@pytest.fixture
def store(new_store: Callable[..., EventStore]) -> EventStore:
    return new_store(batch_mode=BatchMode.ITEMSIZE)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server does a moment later it does at once."""
    monkeypatch.setattr(sessions, "GRACE", 0.2)
    monkeypatch.setattr(sessions, "_LOOK", 0.05)


@pytest.fixture
def logged(store_name: str, state: object) -> Iterator[EventStore]:
    """A store with a log."""
    with EventStore.create(store_name, capacity=64) as made:
        yield made
    EventStore.unlink(store_name, log=True)


def owners(store: EventStore) -> list[int]:
    return [stat.owner_pid for stat in store.subscriptions()]


# ---------------------------------------------------------------- begun


def test_begun_while_its_store_is_removed(new_server: NewServer, store_name: str) -> None:
    """At whichever line of it the store is removed, the session begins, in the store as it was restored where it was removed before."""
    made = new_server().server._sessions
    client = Client(store_name, 1001)
    login = SimpleNamespace(new_clients=set())
    for block in at_each_line((session_module.__file__, *STORE), store_name, lambda: take_away(store_name), log=True):
        with block():
            session, new = made._make(client, login)
        assert new
        assert session.subscription.ack_cursor.sequence == -1
        session.close()


# ---------------------------------------------------------------- given back


def test_given_back_when_the_last_connection_ends(new_server: NewServer, store: EventStore) -> None:
    """With the last connection that used it the subscription is free, at its ack; the batches keep their ids for the next connection."""
    server = new_server()
    with closing(RawClient(server.port, store.name)) as one, closing(RawClient(server.port, store.name)) as two:
        one.subscribe()
        for number in range(3):
            store.put(events([number]))
        assert [ids(client.get(3)) for client in (one, two)] == [[0], [1]]
        assert owners(store) == [os.getpid()]
        one.close()
        time.sleep(0.6)
        assert owners(store) == [os.getpid()]
    wait_for(lambda: not server.server._sessions._shared, "the session is given back")
    assert owners(store) == [0]
    with closing(RawClient(server.port, store.name)) as again:
        answer = again.get()
        assert (answer.batch_id, ids(answer)) == (3, [2])
        for number in (1, 2, 3):
            again.ack(number)
        assert again.get().batch_id == -1
    assert store.subscriptions()[0].ack.sequence == store.newest


def test_given_back_by_a_client_that_asks_nothing(new_server: NewServer, store: EventStore) -> None:
    """A connection that is open and asks nothing gives it back after the time; one that waits in a GET asks; it continues where it was."""
    server = new_server(release_after=0.4)
    with closing(RawClient(server.port, store.name, 1)) as idle, closing(RawClient(server.port, store.name, 2)) as waiting:
        idle.subscribe()
        store.put(events([1]))
        assert ids(idle.get()) == [1]
        waiting.subscribe()
        waiting.ack(waiting.get().batch_id)
        waiting.send(T.GET, m.Get(**waiting.name, fetch_size=1, timeout=0))
        wait_for(lambda: owners(store) == [0, os.getpid()], "one is free")
        time.sleep(0.8)
        assert owners(store) == [0, os.getpid()]
        with closing(RawClient(server.port, store.name, 3)) as third:  # the one that waits keeps no other from being served
            third.subscribe()
        wait_for(lambda: owners(store) == [0, os.getpid(), 0], "one that came later is free")
        EventStore.attach(store.name).subscribe("canal-1").close()  # for its next owner
        idle.ack(1)
        store.put(events([2]))
        assert ids(idle.get()) == [2]
        assert waiting.receive().batch_id == 2


def test_removed_while_it_is_free(new_server: NewServer, store: EventStore) -> None:
    """A subscription that was given back can be removed; its client has to subscribe again, and may."""
    server = new_server(release_after=0.2)
    with closing(RawClient(server.port, store.name)) as client:
        client.subscribe()
        wait_for(lambda: owners(store) == [0], "it is free")
        store.unsubscribe("canal-1001")
        assert "subscribe" in refused(client.get(), 400)
        assert client.subscribe().error_code == 0


def test_a_release_meets_requests(new_server: NewServer, store: EventStore, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that come while the subscription is being given back are answered as if it were not."""
    monkeypatch.setattr(sessions, "_LOOK", 0.002)
    server = new_server(release_after=0.01)
    rng = random.Random(seed)
    with closing(RawClient(server.port, store.name)) as client:
        client.subscribe()
        for number in range(60):
            store.put(events([number]))
            time.sleep(rng.random() * 0.03)
            answer = client.get()
            assert ids(answer) == [number]
            time.sleep(rng.random() * 0.03)
            client.ack(answer.batch_id)
        assert client.get().batch_id == -1
    assert store.subscriptions()[0].ack.sequence == store.newest


# ---------------------------------------------------------------- two servers


class Balancer:
    """Listens on a port and joins each connection to one server or the other, by turns."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.turns = [0] * len(ports)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        turn = 0
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                turn = (turn + 1) % len(self.ports)
                self.turns[turn] += 1
                server = socket.create_connection(("127.0.0.1", self.ports[turn]))
                for here, there in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(here, there), daemon=True).start()

    @staticmethod
    def _pump(here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while chunk := here.recv(65536):
                there.sendall(chunk)
        for one in (here, there):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def test_two_servers_behind_a_load_balancer(new_server: NewServer, logged: EventStore, seed: int) -> None:
    """Clients that come back at once, now to one server and now to the other, get everything once and in order; what they hold un-acked
    goes with them."""
    rng = random.Random(seed)
    with closing(Balancer([new_server().port, new_server().port])) as balancer:
        seen: dict[int, list[int]] = {1: [], 2: [], 3: []}
        number = 0
        for _ in range(4):
            for client_id, found in seen.items():
                with closing(RawClient(balancer.port, logged.name, client_id)) as client:
                    assert client.subscribe().error_code == 0
                    for _ in range(3):
                        logged.put(events([number], offset=1000 * (number + 1)))
                        number += 1
                    if rng.random() < 0.5:  # it dies with a batch in hand, and is given that again
                        client.rollback()
                        assert client.get().batch_id > 0
                        continue
                    client.rollback()
                    answer = client.get()
                    found += ids(answer)
                    client.ack(answer.batch_id)
                    client.get()
        for client_id, found in seen.items():
            with closing(RawClient(balancer.port, logged.name, client_id)) as client:
                assert client.subscribe().error_code == 0
                client.rollback()
                found += ids(client.get())
            assert found == list(range(number))
        assert min(balancer.turns) >= 6


# ---------------------------------------------------------------- what outlives a power cut


def test_a_client_that_left_goes_on_at_what_was_on_disk(
    new_server: NewServer, logged: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client that unsubscribed had acked counts as far as it is on disk: behind that, a power cut gives the sequences to others."""
    server = new_server()
    for number in range(4):
        logged.put(events([number], offset=1000 * (number + 1)))
    on_disk = 5  # the second transaction
    with closing(RawClient(server.port, logged.name)) as client:
        client.subscribe()
        client.ack(client.get().batch_id)
        with monkeypatch.context() as patch:
            patch.setattr(EventStore, "sync", lambda self, sequence=None, timeout=10.0: on_disk)
            assert client.unsubscribe().error_code == 0
        assert client.subscribe().error_code == 0
        assert ids(client.get()) == [2, 3]


def test_batches_of_an_earlier_boot(new_server: NewServer, logged: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reboot no batch counts as given: what the client holds may be other events by now. It is given all again, under new ids."""
    server = new_server()
    logged.put(events([1]))
    logged.put(events([2], offset=9000))
    with closing(RawClient(server.port, logged.name)) as client:
        client.subscribe()
        assert ids(client.get()) == [1, 2]
        client.rollback()
        assert client.get().batch_id == 2
    server.stop()
    monkeypatch.setattr(session_module, "boot_id", lambda: unacked.boot_id() ^ 1)
    with closing(RawClient(new_server().port, logged.name)) as client:
        answer = client.get()
        assert (answer.batch_id, ids(answer)) == (3, [1, 2])
        client.ack(2)
        refused(client.receive(), 400)
        client.ack(3)
        assert client.get().batch_id == -1


# ---------------------------------------------------------------- the event loop


def test_a_store_that_is_lost_keeps_no_other_client_waiting(
    new_server: NewServer, logged: EventStore, new_store: Callable[..., EventStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the session of a store that was removed is closed, which may wait for the disk, another client is answered."""
    other, server = new_store(), new_server()
    closing_now, go_on = threading.Event(), threading.Event()
    with closing(RawClient(server.port, logged.name)) as client, closing(RawClient(server.port, other.name)) as second:
        client.subscribe()
        second.subscribe()
        close = session_module.ClientSession.close

        def slow(self: Any) -> None:
            closing_now.set()
            assert go_on.wait(60)
            close(self)

        monkeypatch.setattr(session_module.ClientSession, "close", slow)
        os.unlink(logged.segment.where)
        client.send(T.GET, m.Get(**client.name, fetch_size=1, timeout=0))
        assert closing_now.wait(20)
        other.put(events([7]))
        assert ids(second.get()) == [7]
        go_on.set()


def test_a_durable_ack_is_made_outside_the_event_loop(
    new_server: NewServer, logged: EventStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No ack waits for the disk in the event loop, and each is durable a second or so later, also where nothing comes after it."""
    threads: set[str] = set()
    save = CheckpointFile.save

    def noted(self: CheckpointFile, checkpoint: Any, **options: Any) -> bool:
        threads.add(threading.current_thread().name)
        return save(self, checkpoint, **options)

    monkeypatch.setattr(CheckpointFile, "save", noted)
    server = new_server()
    home = Home.of(logged.name).path
    with closing(RawClient(server.port, logged.name)) as client:
        client.subscribe()
        for number in range(30):
            logged.put(events([number], offset=1000 * (number + 1)))
            client.ack(client.get().batch_id)
            time.sleep(0.05)
        client.send(T.GET, m.Get(**client.name, fetch_size=1, timeout=60, unit=3))
        durable = CheckpointFile(home.parent, home.name, "canal-1001")
        wait_for(lambda: (saved := durable.load()) is not None and saved.sequence == logged.newest, "the last ack is durable")
    assert threads
    assert all(name.startswith("canal") for name in threads), threads
