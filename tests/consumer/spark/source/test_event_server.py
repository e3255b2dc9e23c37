"""Events over TCP: clients that know the key get what they request, others nothing."""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from shmstore import EventStore, PositionNotFound
from shmstore.consumer.spark.source import event_server
from shmstore.consumer.spark.source.chunk import Chunk
from shmstore.consumer.spark.source.event_server import EventServer, fetch
from shmstore.consumer.spark.source.partition import read_store
from shmstore.encoding.codec import encode
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


def test_missing_events_are_an_error(server: EventServer, store: EventStore, binlog: Binlog) -> None:
    """A range that the store does not hold is the error that the store gives."""
    store.put(binlog.insert(order_row(1)))
    with pytest.raises(PositionNotFound, match="is not in store"):
        list(fetch(server.address, 100, 120))


def test_strangers_get_nothing_and_hold_nobody_up(server: EventServer, store: EventStore, binlog: Binlog) -> None:
    """A wrong key is refused, and a client that says nothing keeps nobody waiting."""
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
    """A server that dies in the middle of a reply is an error, not the end of the events."""
    store.put(binlog.insert(order_row(1)))

    def broken(first: int, last: int) -> Iterator[Chunk]:
        yield from read_store(store, first, last)
        raise OSError("the store's host is down")

    server = EventServer(broken, "127.0.0.1")
    with pytest.raises(ConnectionError, match="in the middle of a reply"):
        list(fetch(server.address, 0, 2))
    server.close()


# ---------------------------------------------------------------- strangers, and limits of the system


def readers() -> int:
    """Threads that serve a connection."""
    return sum(thread.name == "shmstore-events-reader" for thread in threading.enumerate())


def await_that(holds: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def connected(server: EventServer) -> socket.socket:
    return socket.create_connection((server.address.host, server.address.port), timeout=60)


def at_its_end(stranger: socket.socket) -> bool:
    """Wait for the server to close a connection; whatever it sent before is thrown away."""
    try:
        while stranger.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_stranger_has_its_time(server: EventServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does not prove that it knows the key is closed after its time, also one that sends a byte now and then."""
    monkeypatch.setattr(event_server, "LOGIN_SECONDS", 0.5)
    with connected(server) as silent, connected(server) as dribbling:
        over = threading.Event()

        def dribble() -> None:
            for byte in b"\0\0\0\x40" + bytes(200):
                if over.wait(0.05):
                    return
                try:
                    dribbling.sendall(bytes([byte]))
                except OSError:
                    return

        thread = threading.Thread(target=dribble)
        thread.start()
        try:
            began = time.monotonic()
            assert at_its_end(silent)
            assert at_its_end(dribbling)
            assert time.monotonic() - began < 5  # 200 bytes take twice as long
        finally:
            over.set()
            thread.join()
    await_that(lambda: readers() == 0)


def test_strangers_take_no_threads_from_readers(store: EventStore, binlog: Binlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are so many threads and no more, and strangers that take all of them soon go for one who knows the key."""
    monkeypatch.setattr(event_server, "MOST", 4)
    monkeypatch.setattr(event_server, "LOGIN_SECONDS_BUSY", 0.1)
    monkeypatch.setattr(event_server, "LOGIN_SECONDS", 600.0)
    store.put(binlog.insert(order_row(1)))
    server = EventServer(partial(read_store, store), "127.0.0.1")
    strangers = [connected(server) for _ in range(20)]
    try:
        await_that(lambda: readers() == 4)
        assert sum(len(chunk.slots) for chunk in fetch(server.address, 0, 2)) == 3
        assert all(map(at_its_end, strangers[:16]))
        assert readers() <= 4
    finally:
        for stranger in strangers:
            stranger.close()
        server.close()
    await_that(lambda: readers() == 0)


def test_more_readers_than_threads(store: EventStore, binlog: Binlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who know the key and find no thread free wait for one, and get all they asked for."""
    monkeypatch.setattr(event_server, "MOST", 2)
    store.put(binlog.insert(order_row(1)))
    going, most = threading.Event(), [0]

    def slow(first: int, last: int) -> Iterator[Chunk]:
        assert going.wait(60)
        most.append(readers())
        yield from read_store(store, first, last)

    server = EventServer(slow, "127.0.0.1")
    found: list[int] = []
    asking = [
        threading.Thread(target=lambda: found.append(sum(len(chunk.slots) for chunk in fetch(server.address, 0, 2))))
        for _ in range(8)
    ]
    for thread in asking:
        thread.start()
    await_that(lambda: readers() == 2)
    going.set()
    for thread in asking:
        thread.join(60)
    server.close()
    assert (found, max(most)) == ([3] * 8, 2)


def test_who_asks_nothing_or_reads_nothing_goes(store: EventStore, binlog: Binlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that knows the key keeps no thread for ever: it has a time to ask, and one in which to take some of the answer."""
    monkeypatch.setattr(event_server, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(event_server, "STALLED_SECONDS", 0.3)
    store.put(binlog.insert(order_row(1)))

    def endless(first: int, last: int) -> Iterator[Chunk]:
        (chunk,) = read_store(store, first, last)
        while True:
            yield chunk._replace(raw=bytes(1 << 20))

    server = EventServer(endless, "127.0.0.1")
    address = (server.address.host, server.address.port)
    with Client(address, authkey=server.address.key) as silent, Client(address, authkey=server.address.key) as stalled:
        os.write(stalled.fileno(), event_server._REQUEST.pack(0, 2))
        await_that(lambda: readers() == 2)
        with pytest.raises((EOFError, ConnectionError)):
            silent.recv_bytes()
        await_that(lambda: readers() == 0)
    server.close()


def test_used_up_files_do_not_end_the_server(
    server: EventServer, store: EventStore, binlog: Binlog, caplog: pytest.LogCaptureFixture
) -> None:
    """While the process may open no more files nobody is served, and it is said; when it may again, all are, those who waited too."""
    store.put(binlog.insert(order_row(1)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as waiting:
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        try:
            with caplog.at_level(logging.WARNING, "shmstore.spark"):
                resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
                waiting.connect((server.address.host, server.address.port))
                await_that(lambda: "Too many open files" in caplog.text, 20)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert sum(len(chunk.slots) for chunk in fetch(server.address, 0, 2)) == 3
        waiting.settimeout(60)
        assert waiting.recv(1)  # the first byte of the proof


def test_no_thread_to_be_had_does_not_end_the_server(
    server: EventServer, store: EventStore, binlog: Binlog, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection for which no thread starts is closed, and the next one is served."""
    store.put(binlog.insert(order_row(1)))
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING, "shmstore.spark"):
        patch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread")))
        with connected(server) as refused:
            assert at_its_end(refused)
    assert "can't start new thread" in caplog.text
    assert sum(len(chunk.slots) for chunk in fetch(server.address, 0, 2)) == 3
