"""shmstore.consumer.wire.server.server: restarts, two servers, stores that go, limits, TLS and metrics."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmstore import BatchMode, EventStore
from shmstore.consumer.wire import CanalProcess, CanalSettings
from shmstore.consumer.wire.protocol import messages as m
from shmstore.consumer.wire.protocol.messages import PacketType as T
from tests.certificates import self_signed
from tests.consumer.wire.harness import OTHER, RawClient, ServerThread, events, ids, refused, wait_for

Connect = Callable[..., RawClient]
NewStore = Callable[..., EventStore]
NewServer = Callable[..., ServerThread]


@pytest.fixture
def store(new_store: NewStore) -> EventStore:
    return new_store(batch_mode=BatchMode.ITEMSIZE)


# ---------------------------------------------------------------- restarts


def test_server_restart(new_server: NewServer, store: EventStore) -> None:
    """Un-acked batches, their ids, the filter and the position survive the server; the client needs to know nothing of it."""
    server = new_server()
    client = RawClient(server.port, store.name)
    client.subscribe(r"shop\.audit")
    store.put(events([0]))
    for i in (1, 2, 3):
        store.put(events([i], OTHER))
    assert [ids(client.get(3)) for _ in range(2)] == [[1], [2]]
    client.ack(1)
    server.stop()
    with pytest.raises(OSError, match=r".*"):
        client.get(3)
    client = RawClient(new_server().port, store.name)
    answer = client.get(3)
    assert (answer.batch_id, ids(answer)) == (3, [3])
    client.ack(2)
    client.ack(3)
    assert client.get().batch_id == -1
    assert store.subscriptions()[0].ack.sequence == store.newest


SERVE = """
import sys
from shmstore.cli.signals import on_signal
from shmstore.consumer.wire import CanalProcess, CanalSettings
server = CanalProcess(CanalSettings(port=0, state=sys.argv[1], ready=lambda at: print(at[1], flush=True)))
with on_signal(server.stop):
    server.run()
"""


def spawn(state: Path) -> tuple[subprocess.Popen[str], int]:
    root = Path(__file__).resolve().parents[4]
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(state)], stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_killed_server(tmp_path: Path, store: EventStore) -> None:
    """kill -9 of the server loses nothing acked and nothing un-acked; another server takes over; SIGTERM ends it in order."""
    process, port = spawn(tmp_path)
    client = RawClient(port, store.name)
    client.subscribe()
    for i in range(4):
        store.put(events([i]))
    assert [ids(client.get(3)) for _ in range(3)] == [[0], [1], [2]]
    client.ack(1)
    client.send(T.GET, m.Get(**client.name, fetch_size=100, timeout=0))
    wait_for(lambda: store.subscriptions()[0].ack.sequence == 2, "the ack counted")
    process.kill()
    process.wait()
    process, port = spawn(tmp_path)
    client = RawClient(port, store.name)
    client.ack(2)
    answer = client.get(3)
    assert (answer.batch_id, ids(answer)) == (4, [3])
    client.rollback()
    assert ids(client.get(6)) == [2, 3]
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert [stat.owner_pid for stat in store.subscriptions()] == [0]
    for left in (process.stdout,):
        assert left is not None
        left.close()


def test_two_servers(new_server: NewServer, store: EventStore) -> None:
    """A subscription that another server has is refused with its name; it is free when that server ends."""
    one, two = new_server(), new_server()
    first = RawClient(one.port, store.name)
    assert first.subscribe().error_code == 0
    second = RawClient(two.port, store.name)
    assert "canal-1001" in refused(second.subscribe(), 400)
    one.stop()
    assert second.subscribe().error_code == 0


def test_store_removed_and_made_again(connect: Connect, store: EventStore) -> None:
    """When a store is removed its clients get an error; when one of its name is back they continue there."""
    client = connect()
    name = store.name
    store.close()
    EventStore.unlink(name)
    refused(client.get(1, timeout=100), 400)
    refused(client.get(), 400)
    with EventStore.create(name, log=False) as again:
        again.put(events([5], offset=99000))
        assert client.subscribe().error_code == 0
        assert ids(client.get()) == [5]
        store._closed = True


def test_evicted(new_store: NewStore, server: ServerThread) -> None:
    """A client that was evicted hears that events are gone, on every request, until it unsubscribes."""
    store = new_store(capacity=16, lag="evict", evict_after=0.05)
    client = RawClient(server.port, store.name)
    client.subscribe()
    for i in range(20):
        store.put(events([i]))
    for _ in range(2):
        assert "evicted" in refused(client.get(), 400)
        assert "evicted" in refused(client.subscribe(), 400)
    assert client.unsubscribe().error_code == 0
    assert client.subscribe().error_code == 0
    assert ids(client.get()) != []
    client.close()


# ---------------------------------------------------------------- limits, TLS, numbers


def test_filter_that_takes_too_long(connect: Connect, store: EventStore) -> None:
    """A filter made to burn time costs its own client an error and no events; other clients continue meanwhile."""
    long = OTHER._replace(database="a" * 64, table="a" * 64)
    for filter, refusal in ((r"(a+)+\.x,(.*)*b", False), (f"(?:(?!(?:{'|'.join('a' * i for i in range(1, 99))})*x)a)*", True)):
        evil = connect(666, filter=filter)
        other = connect(1)
        store.put(events([1], long))
        store.put(events([2]))
        for _ in range(3):
            if refusal:
                assert "simplify" in refused(evil.get(), 400)
            else:
                assert evil.get().batch_id == -1
        answer = other.get()
        assert ids(answer) == [1, 2]
        other.ack(answer.batch_id)
        assert evil.subscribe(r"a+\.a+,shop\..*").error_code == 0
        answer = evil.get()
        assert ids(answer) == ([1, 2] if refusal else [])
        if refusal:
            evil.ack(answer.batch_id)


def test_only_these_stores(new_server: NewServer, new_store: NewStore) -> None:
    """A server with a list of stores serves no other."""
    store, other = new_store(), new_store()
    server = new_server(stores=(store.name,))
    client = RawClient(server.port, other.name)
    assert other.name in refused(client.subscribe(), 400)
    client.name["destination"] = store.name
    assert client.subscribe().error_code == 0


def test_idle_and_unauthenticated(new_server: NewServer, store: EventStore) -> None:
    """A silent connection is closed after its time, sooner where it never authenticated; a GET that waits is not silence."""
    server = new_server(idle_timeout=2.0, auth_timeout=1.0)
    stranger = RawClient(server.port, store.name, login=False)
    asked = RawClient(server.port, store.name, net_read_timeout=1500)
    busy = RawClient(server.port, store.name)
    busy.subscribe()
    busy.send(T.GET, m.Get(**busy.name, fetch_size=1, timeout=0))
    silent = RawClient(server.port, store.name)  # when its time is over, so would be that of the one before
    ended = []
    with selectors.DefaultSelector() as selector:
        for name, client in (("stranger", stranger), ("asked", asked), ("silent", silent)):
            selector.register(client.socket, selectors.EVENT_READ, name)
        while selector.get_map():
            for key, _ in selector.select(60):
                assert key.fileobj.recv(1) == b""  # type: ignore[union-attr]
                ended.append(selector.unregister(key.fileobj).data)
    assert ended == ["stranger", "asked", "silent"]
    store.put(events([1]))
    assert len(busy.receive().messages) == 1


def test_frames_and_connections(new_server: NewServer, store: EventStore) -> None:
    """A frame above the limit is answered and the connection closed; connections above the limit get an error, and are closed."""
    server = new_server(max_frame=200, max_connections=2)
    client = RawClient(server.port, store.name)
    assert "allowed are 0 to 200" in refused(client.subscribe("x" * 300), 400)
    assert client.socket.recv(1) == b""
    wait_for(lambda: server.server.metrics.connections == 0, "the connection was closed")
    kept = [RawClient(server.port, store.name) for _ in range(2)]
    more = RawClient(server.port, store.name, login=False)
    assert "2 connections are open" in refused(more.authenticate(), 400)
    with pytest.raises(ConnectionError):
        more.read()
    for client in kept:
        assert client.subscribe().error_code == 0
    assert server.server.metrics.as_dict()["refused_connections"] == 1


def test_tls(new_server: NewServer, store: EventStore, tmp_path: Path) -> None:
    """With a certificate the server speaks TLS and nothing else."""
    import ssl

    cert, key = self_signed(tmp_path)
    server = new_server(tls_cert=cert, tls_key=key)
    context = ssl.create_default_context(cafile=cert)
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    client = RawClient.__new__(RawClient)
    client.socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
    client.name = {"destination": store.name, "client_id": "1"}
    assert m.Packet.FromString(client.read()).type == T.HANDSHAKE
    assert client.authenticate().error_code == 0
    assert client.subscribe().error_code == 0
    store.put(events([1]))
    assert ids(client.get()) == [1]
    client.close()


def test_metrics(new_server: NewServer, store: EventStore) -> None:
    """Packets by type, bytes, batches, empty batches, errors and latency are counted by client."""
    server = new_server()
    client = RawClient(server.port, store.name)
    client.subscribe()
    client.get()
    store.put(events([1, 2]))
    client.get()
    client.ack(1)
    client.ack(9)
    client.receive()
    numbers = server.server.metrics.as_dict()
    assert numbers["connections"] == 1
    (counted,) = (one for one in numbers["clients"] if one["destination"] == store.name)
    assert counted["packets"] == {"SUBSCRIPTION": 1, "GET": 2, "CLIENTACK": 2}
    assert counted["errors"] == {400: 1}
    assert (counted["batches"], counted["empty_batches"], counted["entries"], counted["rows"]) == (1, 1, 4, 2)
    assert counted["latency_count"] == 5
    assert counted["bytes_in"] > 100
    assert counted["bytes_out"] > 300
    text = server.server.metrics.exposition()
    assert f'shmstore_serve_client_rows_total{{destination="{store.name}",client="1001"}} 2' in text


def test_pid_is_the_servers(connect: Connect, store: EventStore) -> None:
    """`shmstore stat` shows the server as the owner of its clients' subscriptions."""
    connect(5)
    (stat,) = store.subscriptions()
    assert (stat.name, stat.owner_pid) == ("canal-5", os.getpid())


def test_unusable_certificates(tmp_path: Path) -> None:
    """A certificate or key that cannot be used is an error that names the files; a passphrase is never asked for."""
    (tmp_path / "plain.pem").write_text("nothing of the kind")
    self_signed(tmp_path, "locked", passphrase="secret")
    for certificate, key, said in (("plain.pem", "plain.pem", "PEM"), ("locked.pem", "locked.key", "encrypted")):
        with pytest.raises(ValueError, match=said) as refusal:
            CanalProcess(
                CanalSettings(port=0, tls_cert=str(tmp_path / certificate), tls_key=str(tmp_path / key), state=tmp_path)
            ).run()
        assert key in str(refusal.value)
        assert "secret" not in str(refusal.value)


def test_open_to_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server that others can reach says so where no password is set; one on loopback, or with a password, does not."""

    def said(**options: Any) -> bool:
        caplog.clear()
        server = CanalProcess(CanalSettings(port=0, state=tmp_path, ready=lambda _: server.stop(), **options))
        server.run()
        return "no password" in caplog.text

    assert [said(), said(host="0.0.0.0"), said(host="0.0.0.0", password="p")] == [False, True, False]
