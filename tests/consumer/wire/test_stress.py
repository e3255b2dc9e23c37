"""The server under nonsense and abrupt ends. Marked `long`: 100,000 packets and 1,000 disconnects; CI runs a few of each."""

from __future__ import annotations

import gc
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shmstore import BatchMode, EventStore
from shmstore.consumer.wire.protocol import messages as m
from shmstore.consumer.wire.protocol.framing import frame
from shmstore.consumer.wire.protocol.messages import PacketType as T
from tests.consumer.wire.harness import RawClient, ServerThread, events, ids

LONG = pytest.mark.long


def resident_kib() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def bystander(server: ServerThread, store: EventStore) -> Iterator[list[int]]:
    """A well-behaved client, and its producer, at work all the while: it must see every row once, in order."""
    seen: list[int] = []
    stop = threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        try:
            client = RawClient(server.port, store.name, 30000)
            client.subscribe()
            number = 0
            while not stop.is_set():
                store.put(events([number]), timeout=20)
                number += 1
                while len(seen) < number:
                    answer = client.get(3, timeout=5000)
                    assert isinstance(answer, m.Messages)
                    seen.extend(ids(answer))
                    client.ack(answer.batch_id)
            client.close()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join(30)
    assert not problems
    assert len(seen) > 10
    assert seen == list(range(len(seen)))


def packets(store: EventStore) -> list[bytes]:
    """One of each good packet, as the subscription of a client of its own."""
    name: dict[str, Any] = {"destination": store.name, "client_id": "66"}
    bodies = [
        (T.CLIENTAUTHENTICATION, m.ClientAuth(username="u", password=b"p", **name)),
        (T.SUBSCRIPTION, m.Sub(**name, filter=r"shop\.audit")),
        (T.UNSUBSCRIPTION, m.Unsub(**name)),
        (T.GET, m.Get(**name, fetch_size=10, timeout=1, unit=2)),
        (T.CLIENTACK, m.ClientAck(**name, batch_id=1)),
        (T.CLIENTROLLBACK, m.ClientRollback(**name)),
        (T.HEARTBEAT, None),
    ]
    return [m.Packet(type=kind, body=body.SerializeToString() if body else b"").SerializeToString() for kind, body in bodies]


def mutated(rng: random.Random, good: list[bytes]) -> bytes:
    """A frame: good, bent at random, of random bytes, or with a length that lies."""
    data = bytearray(rng.choice(good))
    kind = rng.random()
    if kind < 0.6:
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
    elif kind < 0.8:
        data = bytearray(rng.randbytes(rng.randrange(60)))
    elif kind < 0.82:
        return struct.pack(">i", rng.choice([-1, 2**31 - 1, 1 << 21])) + bytes(data)
    return frame(bytes(data))


PROBE = frame(m.Packet(type=T.HEARTBEAT).SerializeToString())


class Fuzzed:
    """A connection that takes anything, and knows when the server has dealt with it."""

    def __init__(self, server: ServerThread) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=0.5)
        self.file = self.socket.makefile("rb")

    def send(self, data: bytes) -> bool:
        """Send, and read on until the server has answered what came after it; False where the connection is done for."""
        try:
            self.socket.sendall(data + PROBE)
            while True:
                head = self.file.read(4)
                if len(head or b"") < 4:
                    return False
                packet = m.Packet.FromString(self.file.read(struct.unpack(">i", head)[0]))
                if packet.type == T.ACK and "packet type 11 " in m.Ack.FromString(packet.body).error_message:
                    return True
        except OSError:  # a GET that waits for days, or the server has closed
            return False

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=[LONG, pytest.mark.timeout(1800)])])
def test_fuzzed_packets(count: int, server: ServerThread, new_store: Callable[..., EventStore], seed: int) -> None:
    """Bent packets end at worst their own connection: no other client is disturbed, nothing leaks, memory stays flat."""
    store = new_store(batch_mode=BatchMode.ITEMSIZE, lag="evict", evict_after=5)
    rng = random.Random(seed)
    good = packets(store)
    sizes = []
    with bystander(server, store):
        client = None
        for number in range(count):
            if client is None:
                client = Fuzzed(server)
                if rng.random() < 0.9:
                    assert client.send(frame(good[0]))
            if not client.send(mutated(rng, good)) or rng.random() < 0.02:
                client.close()
                client = None
            if number in (count // 2, count - 1):
                sizes.append((resident_kib(), descriptors()))
        if client is not None:
            client.close()
    last = RawClient(server.port, store.name, 66)
    assert last.subscribe().error_code == 0
    last.close()
    (half_kib, half_open), (end_kib, end_open) = sizes
    assert end_kib - half_kib < 30_000 + half_kib * 0.1, sizes
    assert end_open - half_open < 20, sizes
    errors = sum(server.server.metrics.client("", "").errors.values())
    assert errors > count // 10


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=[LONG, pytest.mark.timeout(900)])])
def test_abrupt_disconnects(count: int, server: ServerThread, new_store: Callable[..., EventStore], seed: int) -> None:
    """Connections cut at any byte, with a reset or without, in the middle of a wait or of an answer, leave nothing behind."""
    store = new_store(batch_mode=BatchMode.ITEMSIZE)
    rng = random.Random(seed)
    name: dict[str, Any] = {"destination": store.name, "client_id": "8"}
    stream = b"".join(
        frame(m.Packet(type=kind, body=body.SerializeToString()).SerializeToString())
        for kind, body in [
            (T.CLIENTAUTHENTICATION, m.ClientAuth()),
            (T.CLIENTROLLBACK, m.ClientRollback(**name)),
            (T.SUBSCRIPTION, m.Sub(**name)),
            (T.GET, m.Get(**name, fetch_size=5)),
            (T.CLIENTACK, m.ClientAck(**name, batch_id=-1)),
            (T.GET, m.Get(**name, fetch_size=1 << 20, timeout=0)),
        ]
    )
    with bystander(server, store):
        before = None
        for number in range(count):
            client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            if rng.random() < 0.5:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
            client.sendall(stream[: rng.choice([rng.randrange(len(stream)), len(stream)])])
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.02)
            client.close()
            if number == count // 2:
                before = descriptors()
            if number % 10 == 0:
                # What the cut connections took is acked here, or the ring would fill up for the bystander.
                sweeper = RawClient(server.port, store.name, 8)
                assert sweeper.subscribe().error_code == 0
                sweeper.rollback()
                answer = sweeper.get(1 << 20)
                sweeper.ack(answer.batch_id)
                sweeper.close()
        deadline = time.monotonic() + 20
        while server.server.metrics.connections > 1:
            assert time.monotonic() < deadline, "a connection was never let go"
            time.sleep(0.01)
        assert before is not None
        assert descriptors() - before < 20
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("canal")]
    assert len(threads) < 40


def test_many_idle_clients(server: ServerThread, new_store: Callable[..., EventStore]) -> None:
    """Hundreds of connected clients that do nothing cost no thread and hold up no other."""
    store = new_store(batch_mode=BatchMode.ITEMSIZE)
    idle = [RawClient(server.port, store.name, number) for number in range(300)]
    for client in idle[:40]:
        assert client.subscribe().error_code == 0
    with bystander(server, store) as seen:
        deadline = time.monotonic() + 20
        while len(seen) < 50:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert all(len(ids(client.get(3))) == 1 for client in idle[:40])
    for client in idle:
        client.close()
