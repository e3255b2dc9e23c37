"""shmstore.consumer.wire.server.server: conversations over real sockets with a real store."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable

import pytest

from shmstore import BatchMode, EventStore, Row
from shmstore.consumer.wire.protocol import messages as m
from shmstore.consumer.wire.protocol.messages import PacketType as T
from tests.consumer.wire.harness import OTHER, RawClient, ServerThread, entries, events, ids, refused, wait_for

Connect = Callable[..., RawClient]
NewStore = Callable[..., EventStore]
NewServer = Callable[..., ServerThread]


@pytest.fixture
def store(new_store: NewStore) -> EventStore:
    return new_store(batch_mode=BatchMode.ITEMSIZE)


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
    """Present events come at once; nothing there is batch -1; ids rise from 1; acks of -1 are ignored."""
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
    assert "should subscribe first" in refused(client.get(), 400)
    client.rollback()  # silently ignored before a subscription
    client.ack(-1)
    assert client.subscribe().error_code == 0
    client.name["destination"] = "nothing-here"
    assert "nothing-here" in refused(client.subscribe(), 400)
    assert "nothing-here" in refused(client.get(), 400)
    client.rollback()
    assert "nothing-here" in refused(client.receive(), 400)
    client.name["destination"] = "../etc/passwd"
    refused(client.subscribe(), 400)
    client.name["destination"] = ""
    refused(client.subscribe(), 401)
    client.name["destination"] = store.name
    assert "no regular expression" in refused(client.subscribe("("), 400)
    for batch_id, code in ((0, 402), (7, 400)):
        client.ack(batch_id)
        refused(client.receive(), code)
    for kind in (T.HEARTBEAT, T.DUMP, T.SHUTDOWN, 99):
        refused(client.ask(kind), 400)
    store.put(events([1]))
    assert ids(client.get()) == [1]


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
    """An unsubscribed client holds nothing and gets an error that says to subscribe; it continues where it had acked."""
    client = connect()
    for i in range(2):
        store.put(events([i]))
    assert ids(client.get(3)) == [0]
    client.ack(1)
    assert client.unsubscribe().error_code == 0
    assert store.subscriptions() == ()
    refused(client.get(), 400)
    assert client.unsubscribe().error_code == 0
    assert client.subscribe().error_code == 0
    assert ids(client.get(3)) == [1]


def test_acked_after_unsubscribing_and_subscribing_again(connect: Connect, store: EventStore) -> None:
    """As with Canal, a client that has unsubscribed and subscribed again may ack its batches; what it does not ack comes again."""
    client = connect()
    for i in range(3):
        store.put(events([i]))
    assert ids(client.get(3)) == [0]
    assert ids(client.get(3)) == [1]
    assert client.unsubscribe().error_code == 0
    assert client.subscribe().error_code == 0
    client.ack(1)
    assert ids(client.get(3)) == [1]  # batch 3, which takes the place of 2
    client.ack(2)
    assert ids(client.get(3)) == [2]
    client.ack(3)
    client.ack(4)
    assert client.get(3).batch_id == -1
    assert store.subscriptions()[0].ack.sequence == store.newest


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
    """A time-out gives the events at the deadline: too few, or nothing."""
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
    *others, last = map(len, answer.messages)
    assert 3000 < sum(others) <= 4096
    assert sum(others) + last > 3900
    client.close()


def test_waiting_ends_when_the_ring_is_full(new_store: NewStore, server: ServerThread) -> None:
    """A GET for more than the ring can hold is answered when the producer waits for free space: no dead-lock as in Canal."""
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
    refused(same.ask(T.HEARTBEAT), 400)  # answered, so the rollback before it is done
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
    wait_for(
        lambda: not any(shared.lock.locked() for shared in server.server._sessions._shared.values()),
        "the wait ended with the client",
        10,
    )
    again = connect(subscribe=False)
    answer = again.get()
    assert (answer.batch_id, ids(answer)) == (1, [1])


def test_slow_reader(connect: Connect, store: EventStore, server: ServerThread) -> None:
    """A client that asks and does not read is not served on, costs one answer's memory, and holds up no other."""
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


def test_two_connections_of_a_client_wait(connect: Connect, store: EventStore) -> None:
    """Two GETs of one client that wait get different batches; one whose time ends is answered in time while the other waits."""
    one, two = connect(), connect()
    one.send(T.GET, m.Get(**one.name, fetch_size=3, timeout=0))
    assert two.get(3, timeout=200).batch_id == -1
    two.send(T.GET, m.Get(**two.name, fetch_size=3, timeout=0))
    time.sleep(0.1)
    store.put(events([1]))
    store.put(events([2]))
    first, second = one.receive(), two.receive()
    assert sorted((answer.batch_id, *ids(answer)) for answer in (first, second)) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("capacity", [64, 16384])
def test_one_enormous_event(capacity: int, new_store: NewStore, server: ServerThread) -> None:
    """An event far larger than what was asked for, or than the ring, arrives alone and whole, while others are served."""
    store = new_store(capacity=capacity)
    client, other = RawClient(server.port, store.name, 1), RawClient(server.port, store.name, 2)
    client.subscribe()
    row = events([1])[1]
    huge = row._replace(rows=tuple(Row(None, (i, "x" * 5000, None)) for i in range(2000)))
    store.put([huge])
    client.send(T.GET, m.Get(**client.name, fetch_size=1 << 20))
    other.subscribe()
    answer = client.receive()
    assert ids(answer) == list(range(2000))
    client.close()
    other.close()


def test_full_disk(connect: Connect, store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the state cannot be written the client gets an error, and nothing is lost: the batch comes when it can be."""
    client = connect()
    store.put(events([1]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        assert "No space left on device" in refused(client.get(), 400)
    answer = client.get()
    assert (answer.batch_id, ids(answer)) == (1, [1])
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: 0)
        client.ack(1)
        assert client.get().batch_id == -1
    store.put(events([2]))
    assert ids(client.get()) == [2]


def test_without_transaction_entries(new_store: NewStore, new_server: NewServer) -> None:
    """As Canal with filter.transaction.entry: rows alone, and the ends of their transactions count as acked with them."""
    store = new_store(batch_mode=BatchMode.ITEMSIZE)
    server = new_server(transaction_entries=False)
    client = RawClient(server.port, store.name)
    client.subscribe()
    store.put(events([1, 2]))
    answer = client.get()
    assert [entry.entryType for entry in entries(answer)] == [2, 2]
    client.ack(answer.batch_id)
    wait_for(lambda: store.subscriptions()[0].ack.sequence == 3, "the ack of the whole transaction")
    client.close()


def test_a_hash_in_place_of_the_password(new_store: NewStore, new_server: NewServer) -> None:
    """What canal.passwd is lets the password's owner in, by Canal's scramble and in clear, and no client that has the hash alone."""
    hashed = "E3619321C1A937C46A0D8BD1DAC39F93B27D4458"  # of "canal"
    store = new_store()
    server = new_server(user="me", password_hash=lambda: hashed)
    for password, right in (("canal", True), (hashed, False), (hashed.lower(), False), ("", False)):
        client = RawClient(server.port, store.name, login=False)
        answer = client.authenticate(username="me", password=password.encode())
        assert (answer.error_code == 0) is right
        client.close()
