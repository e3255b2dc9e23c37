"""consumer.wire.server: conversations over real sockets with a real store."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumer.wire import messages as m
from consumer.wire.messages import PacketType as T
from shmstore import BatchMode, EventStore, Row
from tests.consumer.wire.harness import OTHER, RawClient, ServerThread, entries, events, ids

Connect = Callable[..., RawClient]
NewStore = Callable[..., EventStore]
NewServer = Callable[..., ServerThread]


@pytest.fixture
def store(new_store: NewStore) -> EventStore:
    return new_store(batch_mode=BatchMode.ITEMSIZE)


def wait_for(holds: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)


# ---------------------------------------------------------------- the conversation


def test_handshake(connect: Connect) -> None:
    """The server speaks first: version 1, eight seed bytes, new ones each time."""
    seeds = set()
    for client_id in (1, 2):
        client = connect(client_id, login=False, subscribe=False)
        assert client.handshake.type == T.HANDSHAKE
        assert client.handshake.HasField("version")
        assert client.handshake.version == 1
        seeds.add(m.Handshake.FromString(client.handshake.body).seeds)
    assert [len(seed) for seed in seeds] == [8, 8]


def test_get_and_ack(connect: Connect, store: EventStore) -> None:
    """What is there comes at once; nothing there is batch -1; ids rise from 1; acks of -1 are ignored."""
    client = connect()
    assert client.get().batch_id == -1
    client.ack(-1)
    store.put(events([1, 2]))
    answer = client.get()
    assert (answer.batch_id, ids(answer)) == (1, [1, 2])
    begin, row, _, end = entries(answer)
    assert (begin.entryType, row.entryType, end.entryType) == (1, 2, 3)
    assert (row.header.schemaName, row.header.tableName, row.header.eventType) == ("shop", "orders", 1)
    assert m.TransactionEnd.FromString(end.storeValue).transactionId == "99"
    client.ack(1)
    store.put(events([3]))
    assert client.get().batch_id == 2


def test_errors_keep_the_connection(connect: Connect, store: EventStore) -> None:
    """Errors are answered with Canal's codes and one line of text, and the next request is served."""
    client = connect(subscribe=False)
    assert "should subscribe first" in _refused(client.get(), 400)
    client.rollback()  # silently ignored before a subscription
    client.ack(-1)
    assert client.subscribe().error_code == 0
    client.name["destination"] = "nothing-here"
    assert "nothing-here" in _refused(client.subscribe(), 400)
    assert "nothing-here" in _refused(client.get(), 400)
    client.rollback()
    assert "nothing-here" in _refused(client.receive(), 400)
    client.name["destination"] = "../etc/passwd"
    _refused(client.subscribe(), 400)
    client.name["destination"] = ""
    _refused(client.subscribe(), 401)
    client.name["destination"] = store.name
    assert "regular expression" in _refused(client.subscribe("("), 400)
    for batch_id, code in ((0, 402), (7, 400)):
        client.ack(batch_id)
        _refused(client.receive(), code)
    for kind in (T.HEARTBEAT, T.DUMP, T.SHUTDOWN, 99):
        _refused(client.ask(kind), 400)
    store.put(events([1]))
    assert ids(client.get()) == [1]


def _refused(answer: Any, code: int) -> str:
    assert isinstance(answer, m.Ack)
    assert answer.error_code == code
    assert answer.error_message
    assert "\n" not in answer.error_message
    assert "Traceback" not in answer.error_message
    return str(answer.error_message)


def test_two_clients_have_two_subscriptions(connect: Connect, store: EventStore) -> None:
    """Each client id reads everything at its own pace; rollbacks and filters of one are nothing to the other."""
    one, two = connect(1), connect(2, filter=r"shop\.audit")
    store.put(events([1]))
    store.put(events([2], OTHER))
    assert ids(one.get()) == [1, 2]
    assert ids(two.get()) == [2]
    two.ack(1)
    one.rollback()
    assert ids(one.get()) == [1, 2]
    assert two.get().batch_id == -1


def test_state_belongs_to_the_client_not_the_connection(connect: Connect, store: EventStore) -> None:
    """A client that comes back without a rollback gets what follows; its batches can be acked from another connection."""
    first = connect()
    for i in range(3):
        store.put(events([i]))
    assert ids(first.get(3)) == [0]
    first.close()
    second, third = connect(subscribe=False), connect()
    assert ids(second.get(3)) == [1]
    third.ack(1)
    third.ack(2)
    answer = third.get(3)
    assert (answer.batch_id, ids(answer)) == (3, [2])


def test_unsubscribe(connect: Connect, store: EventStore) -> None:
    """An unsubscribed client holds nothing and is told to subscribe; it goes on where it had acked."""
    client = connect()
    for i in range(2):
        store.put(events([i]))
    assert ids(client.get(3)) == [0]
    client.ack(1)
    assert client.unsubscribe().error_code == 0
    assert store.subscriptions() == ()
    _refused(client.get(), 400)
    assert client.unsubscribe().error_code == 0
    assert client.subscribe().error_code == 0
    assert ids(client.get(3)) == [1]


# ---------------------------------------------------------------- waiting


def test_waits_until_full(connect: Connect, store: EventStore) -> None:
    """Time-out 0 waits until the batch is full, however the events come."""
    client = connect()
    client.send(T.GET, m.Get(**client.name, fetch_size=7, timeout=0))
    for i in range(3):
        time.sleep(0.05)
        store.put(events([i]))
    assert len(client.receive().messages) == 7


def test_waits_until_the_deadline(connect: Connect, store: EventStore) -> None:
    """A time-out gives what is there at the deadline: too few, or nothing."""
    client = connect()
    began = time.monotonic()
    assert client.get(5, timeout=200, unit=-1).batch_id == -1
    store.put(events([1]))
    assert ids(client.get(5, timeout=200_000, unit=1)) == [1]
    assert time.monotonic() - began >= 0.4


def test_waits_by_bytes(new_store: NewStore, server: ServerThread) -> None:
    """In a MEMSIZE store a GET that waits is full when its KiB are there."""
    store = new_store(batch_mode=BatchMode.MEMSIZE)
    client = RawClient(server.port, store.name)
    client.subscribe()
    client.send(T.GET, m.Get(**client.name, fetch_size=4, timeout=0))
    for i in range(60):
        store.put(events([i]))
        time.sleep(0.002)
    answer = client.receive()
    size = answer.ByteSize()
    assert 3000 < size <= 4096 + 20
    client.close()


def test_waiting_ends_when_the_ring_is_full(new_store: NewStore, server: ServerThread) -> None:
    """A GET for more than the ring can hold is answered when the producer waits for room: no dead-lock as in Canal."""
    store = new_store(capacity=16, batch_mode=BatchMode.ITEMSIZE)
    client = RawClient(server.port, store.name)
    client.subscribe()
    seen: list[int] = []

    def produce() -> None:
        for i in range(30):
            store.put(events([i]), timeout=60)

    producer = threading.Thread(target=produce)
    producer.start()
    while len(seen) < 25:
        answer = client.get(10_000, timeout=0)
        seen += ids(answer)
        client.ack(answer.batch_id)
    while len(seen) < 30:
        answer = client.get(10_000)
        seen += ids(answer)
        client.ack(answer.batch_id)
    producer.join(20)
    assert seen == list(range(30))
    client.close()


def test_a_waiting_client_holds_up_nobody(connect: Connect, store: EventStore) -> None:
    """While many clients wait without end, others and even other connections of the same client are served."""
    waiting = [connect(client_id) for client_id in range(20)]
    for client in waiting:
        client.send(T.GET, m.Get(**client.name, fetch_size=4, timeout=0))
    store.put(events([1]))
    assert ids(connect(100).get()) == [1]
    same = connect(3)
    assert len(same.get(1).messages) == 1
    same.rollback()
    _refused(same.ask(T.HEARTBEAT), 400)  # answered, so the rollback before it is done
    store.put(events([2]))
    for client in waiting:
        if client is not waiting[3]:
            assert ids(client.receive())[0] == 1
    assert sorted(ids(waiting[3].receive()) + ids(same.get())) == [1, 2]


def test_client_gone_while_it_waits(connect: Connect, store: EventStore, server: ServerThread) -> None:
    """A client that goes away during a GET loses nothing and blocks nothing: the next connection gets the events."""
    client = connect()
    store.put(events([1]))
    client.send(T.GET, m.Get(**client.name, fetch_size=100, timeout=0))
    time.sleep(0.1)
    client.close()
    wait_for(lambda: server.server.metrics.connections == 0, "the server saw the client go")
    again = connect(subscribe=False)
    answer = again.get()
    assert (answer.batch_id, ids(answer)) == (1, [1])


def test_slow_reader(connect: Connect, store: EventStore, server: ServerThread) -> None:
    """A client that asks and does not read is not served on, costs one answer's memory, and holds up nobody."""
    slow = connect(1)
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    for i in range(40):
        put = events(range(i * 100, i * 100 + 100))
        store.put(
            [event._replace(rows=tuple(Row(None, (*(row.after or ())[:2], "x" * 3000)) for row in event.rows)) for event in put]
        )
    for _ in range(41):
        slow.send(T.GET, m.Get(**slow.name, fetch_size=100))
    quick = connect(2)
    seen: list[int] = []
    while len(seen) < 4000:
        seen += ids(quick.get(500))
    assert seen == list(range(4000))
    counted = server.server.metrics.client(store.name, "1")
    assert 0 < counted.batches < 30  # it stands where the socket's buffers are full
    seen = []
    while len(seen) < 4000:
        seen += ids(slow.receive())
    assert seen == list(range(4000))


def test_requests_in_one_segment(connect: Connect, store: EventStore) -> None:
    """Requests that arrive together are answered one by one, in order."""
    client = connect()
    store.put(events(range(10)))
    get = m.Packet(type=T.GET, body=m.Get(**client.name, fetch_size=2).SerializeToString()).SerializeToString()
    frame = len(get).to_bytes(4, "big") + get
    client.socket.sendall(frame * 7)
    answers = [client.receive() for _ in range(7)]
    assert [answer.batch_id for answer in answers] == [1, 2, 3, 4, 5, 6, -1]


def test_ack_and_close_at_once(connect: Connect, store: EventStore, server: ServerThread) -> None:
    """An ack that comes with the end of the connection counts."""
    client = connect()
    store.put(events([1]))
    client.get()
    client.ack(1)
    client.close()
    wait_for(lambda: server.server.metrics.connections == 0, "the server saw the client go")
    wait_for(lambda: store.subscriptions()[0].ack.sequence == store.newest, "the ack counted")


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


SERVE = "import sys; from consumer.wire import *; serve(Settings(port=0, state=sys.argv[1], ready=lambda at: print(at[1], flush=True)))"


def spawn(state: Path) -> tuple[subprocess.Popen[str], int]:
    root = Path(__file__).resolve().parents[3]
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
    time.sleep(0.1)
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
    assert "canal-1001" in _refused(second.subscribe(), 400)
    one.stop()
    assert second.subscribe().error_code == 0


def test_store_removed_and_made_again(connect: Connect, store: EventStore) -> None:
    """When a store is removed its clients are told; when one of its name is back they go on there."""
    client = connect()
    name = store.name
    store.close()
    EventStore.unlink(name)
    _refused(client.get(1, timeout=100), 400)
    _refused(client.get(), 400)
    with EventStore.create(name) as again:
        again.put(events([5], offset=99000))
        assert client.subscribe().error_code == 0
        assert ids(client.get()) == [5]
        store._closed = True


def test_evicted(new_store: NewStore, server: ServerThread) -> None:
    """A client that was evicted is told that events are gone, on every request, until it unsubscribes."""
    store = new_store(capacity=16, lag="evict", evict_after=0.05)
    client = RawClient(server.port, store.name)
    client.subscribe()
    for i in range(20):
        store.put(events([i]))
    for _ in range(2):
        assert "evicted" in _refused(client.get(), 400)
        assert "evicted" in _refused(client.subscribe(), 400)
    assert client.unsubscribe().error_code == 0
    assert client.subscribe().error_code == 0
    assert ids(client.get()) != []
    client.close()


# ---------------------------------------------------------------- limits, TLS, numbers


def test_only_these_stores(new_server: NewServer, new_store: NewStore) -> None:
    """A server told which stores to serve serves no other."""
    store, other = new_store(), new_store()
    server = new_server(stores=(store.name,))
    client = RawClient(server.port, other.name)
    assert other.name in _refused(client.subscribe(), 400)
    client.name["destination"] = store.name
    assert client.subscribe().error_code == 0


def test_idle_and_unauthenticated(new_server: NewServer, store: EventStore) -> None:
    """A silent connection is closed after its time, sooner where it never authenticated; a GET that waits is not silence."""
    server = new_server(idle_timeout=0.6, auth_timeout=0.2)
    began = time.monotonic()
    stranger, silent, busy = (
        RawClient(server.port, store.name, login=False),
        RawClient(server.port, store.name),
        RawClient(server.port, store.name),
    )
    asked = RawClient(server.port, store.name, net_read_timeout=300)
    busy.subscribe()
    busy.send(T.GET, m.Get(**busy.name, fetch_size=1, timeout=0))
    ends = {}
    for name, client in (("stranger", stranger), ("asked", asked), ("silent", silent)):
        assert client.socket.recv(1) == b""
        ends[name] = time.monotonic() - began
    assert ends["stranger"] <= ends["asked"] <= ends["silent"]
    time.sleep(0.3)
    store.put(events([1]))
    assert len(busy.receive().messages) == 1


def test_frames_and_connections(new_server: NewServer, store: EventStore) -> None:
    """A frame above the limit is answered and the connection closed; connections above the limit are closed at once."""
    server = new_server(max_frame=200, max_connections=2)
    client = RawClient(server.port, store.name)
    assert "allowed are 0 to 200" in _refused(client.subscribe("x" * 300), 400)
    assert client.socket.recv(1) == b""
    wait_for(lambda: server.server.metrics.connections == 0, "the connection was closed")
    kept = [RawClient(server.port, store.name) for _ in range(2)]
    with pytest.raises(OSError, match=r".*"):
        RawClient(server.port, store.name)
    for client in kept:
        assert client.subscribe().error_code == 0
    assert server.server.metrics.refused_connections == 1


def test_tls(new_server: NewServer, store: EventStore, tmp_path: Path) -> None:
    """With a certificate the server speaks TLS and nothing else."""
    import ssl

    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run(
        [*command, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    server = new_server(tls_cert=str(cert), tls_key=str(key))
    context = ssl.create_default_context(cafile=str(cert))
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


def test_metrics_port(store: EventStore, tmp_path: Path) -> None:
    """The metrics port answers with Prometheus' text."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = SERVE.replace("port=0", f"port=0, metrics_port={port}")
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[3]
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert b"# TYPE shmstore_serve_connections gauge" in answer.read()
    process.terminate()
    assert process.wait(20) == 0
    process.stdout.close()


def test_pid_is_the_servers(connect: Connect, store: EventStore) -> None:
    """`shmstore stat` shows the server as the owner of its clients' subscriptions."""
    connect(5)
    (stat,) = store.subscriptions()
    assert (stat.name, stat.owner_pid) == ("canal-5", os.getpid())
