"""Subscriptions that a server holds for clients on other hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyarrow import flight

from shmstore import (
    Consumer,
    EventStore,
    PositionNotFound,
    ProtocolError,
    StoreError,
    StoreUnreachable,
    SubscriptionInUse,
)
from shmstore.consumer import consumer
from shmstore.consumer.flight import FlightSettings, sessions
from shmstore.consumer.flight.process import serving
from shmstore.consumer.flight.server import FlightServer
from shmstore.consumer.remote import subscription
from tests.consumer.flight.test_endpoint import await_that
from tests.consumer.flight.test_server import ROOT, act, get, url
from tests.consumer.test_consumer import acked, transaction
from tests.servers.ports import free_port

pytestmark = pytest.mark.usefixtures("state")


def test_a_subscription_by_hand(client: flight.FlightClient, store: EventStore) -> None:
    """What a client in another language does: typed rows, an ack with the next request, and a request repeated whose answer was lost."""
    for number in range(4):
        store.put(transaction(number))
    session = "0123456789abcdef"
    state = act(client, "subscribe", store=store.name, subscription="audit", session=session)
    assert (state["new"], state["acked"][0]) == (True, -1)
    assert act(client, "subscribe", store=store.name, subscription="audit", session=session)["new"] is False
    rows = get(client, session=session, table="shop.orders", limit_events=3)
    assert rows.schema.metadata == {b"first": b"0", b"last": b"2"}
    assert rows.column("after").to_pylist() == [{"id": 0, "note": "note 0"}]
    for _ in range(2):  # the same once more: each request says up to where the client has got
        rows = get(client, session=session, table="shop.orders", limit_events=3, ack=2, got=2)
        assert (rows.schema.metadata[b"last"], acked(store)) == (b"5", 2)
    with pytest.raises(flight.FlightServerError, match="cannot be acked"):
        act(client, "ack", session=session, sequence=11)
    act(client, "ack", session=session, sequence=5)
    act(client, "close", session=session)
    assert acked(store) == 5
    with pytest.raises(flight.FlightServerError, match="subscribe again"):
        act(client, "ack", session=session, sequence=5)


def test_a_subscribe_that_takes_its_time(
    server: FlightServer, client: flight.FlightClient, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds up no other client, and a client that asks again meanwhile gets the session of its first call."""
    began, go_on = threading.Event(), threading.Event()

    def slow(real: str, name: str, **how: Any) -> Consumer:
        if name == "slow":
            began.set()
            assert go_on.wait(60)
        return Consumer(real, name, **how)

    monkeypatch.setattr(sessions, "Consumer", slow)
    asked = {"store": store.name, "subscription": "slow", "session": "s" * 32}
    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(act, client, "subscribe", **asked)
            assert began.wait(60)
            again = pool.submit(act, flight.FlightClient(f"grpc://127.0.0.1:{server.port}"), "subscribe", **asked)
            other = {"store": store.name, "subscription": "other", "session": "o" * 32}
            assert act(client, "subscribe", **other)["new"]
            act(client, "close", session=other["session"])
            assert not first.done()
            assert not again.done()
        finally:
            go_on.set()
        assert sorted(call.result(60)["new"] for call in (first, again)) == [False, True]


def test_one_owner(server: FlightServer, store: EventStore) -> None:
    """A second client, and a reader on the store's host, are refused while the first lives, with who has it; when it ends they are not."""
    with Consumer(url(server, store), "audit", timeout=0):
        with pytest.raises(SubscriptionInUse, match=r"a client at 127\.0\.0\.1 has it, and was heard \d+ s ago"):
            Consumer(url(server, store), "audit")
        with pytest.raises(SubscriptionInUse):
            Consumer(store.name, "audit")
    Consumer(store.name, "audit").close()
    with Consumer(store.name, "audit"), pytest.raises(SubscriptionInUse):
        Consumer(url(server, store), "audit")


VANISHING = """
import os, sys, signal
from shmstore import Consumer
consumer = Consumer(sys.argv[1], "audit", timeout=60, limit_events=3, auto_ack=False)
print(next(consumer).first, flush=True)
if sys.argv[2] == "waits":
    consumer.ack()
    for _ in range(3):
        next(consumer)
    next(consumer)
signal.pause()
"""


@pytest.mark.parametrize(("how", "number"), [("works", signal.SIGKILL), ("waits", signal.SIGKILL), ("works", signal.SIGSTOP)])
def test_a_client_that_vanishes(
    server: FlightServer,
    store: EventStore,
    caplog: pytest.LogCaptureFixture,
    how: str,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed or standing still, it has its subscription for a bounded time; what it had not acked comes to the next one, and the log says it."""
    for n in range(4):
        store.put(transaction(n))
    process = subprocess.Popen(
        [sys.executable, "-c", VANISHING, url(server, store), how], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        if how == "waits":
            await_that(lambda: store.subscriptions()[0].get.sequence == 11)
        process.send_signal(number)
        await_that(lambda: not store.subscriptions()[0].alive)
        with Consumer(url(server, store), "audit", timeout=0, limit_events=3) as consumer:
            assert [batch.first for batch in consumer] == ([3, 6, 9] if how == "waits" else [0, 3, 6, 9])
        assert "events not acked" in caplog.text
    finally:
        process.kill()
        process.wait()


def test_a_client_that_stood_still_goes_on(server: FlightServer, store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that lost its session, which no other took, acks what it holds and continues behind it; one that lost it to another gets an error."""
    for n in range(4):
        store.put(transaction(n))
    with Consumer(url(server, store), "audit", timeout=0, limit_events=3) as consumer:
        assert next(consumer).first == 0
        server._sessions.close_all()
        assert next(consumer).first == 3, "acks what it holds"
        assert acked(store) == 2
        server._sessions.close_all()
        with Consumer(store.name, "audit", timeout=0, limit_events=3), pytest.raises(SubscriptionInUse):
            next(consumer)
        server._sessions.close_all()


def restarted(settings: FlightSettings, at: Callable[[FlightServer], None]) -> None:
    for _ in range(2):
        with serving(settings) as server:
            at(server)


def test_a_server_that_is_started_again(log_store: EventStore) -> None:
    """Its clients continue by themselves: nothing that they acked comes again, nothing is left out, and what they hold can still be acked."""
    for n in range(40):
        log_store.put(transaction(n), timeout=30)
    settings, seen = FlightSettings(port=free_port()), []
    server = FlightServer(settings)
    consumer = Consumer(f"grpc://127.0.0.1:{settings.port}/{log_store.name}", "audit", timeout=0, limit_events=3)
    with consumer:
        for batch in consumer:
            seen.append(batch.first)
            if len(seen) % 10 == 5:
                server.close()
                server = FlightServer(settings)
    server.close()
    assert seen == list(range(0, 120, 3))
    assert acked(log_store) == 119


def test_a_server_that_is_gone(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a bounded time the client says so; it may continue when the server is there again. A first connection says it at once."""
    store.put([event for n in range(2) for event in transaction(n)])
    settings = FlightSettings(port=free_port())
    where = f"grpc://127.0.0.1:{settings.port}/{store.name}"
    with pytest.raises(StoreUnreachable, match="is `shmstore serve --flight` running there"):
        Consumer(where, "audit")
    server = FlightServer(settings)
    with Consumer(where, "audit", timeout=0, limit_events=3) as consumer:
        assert next(consumer).first == 0
        server.close()
        with monkeypatch.context() as patch:
            patch.setattr(subscription, "RECONNECT", 0.5)
            with pytest.raises(StoreUnreachable):
                next(consumer)
        server = FlightServer(settings)
        assert next(consumer).first == 3
    server.close()
    assert acked(store) == 5


def test_a_store_that_is_another_one(server: FlightServer, store_name: str) -> None:
    """A client of a store that was removed and created again gets an error: its sequences mean nothing there."""
    with EventStore.create(store_name, capacity=64, log=False) as store:
        store.put(transaction(0))
        consumer = Consumer(url(server, store), "audit", timeout=0)
        next(consumer)
    EventStore.unlink(store_name)
    with EventStore.create(store_name, capacity=64, log=False), pytest.raises(StoreError, match=r"attach again|another one"):
        next(consumer)
    consumer.close()


def test_an_ack_with_the_next_request_after_a_reboot(client: flight.FlightClient, log_store: EventStore) -> None:
    """What a request acks counts, though the store was restored since its events were given; what was given after that comes again."""
    for number in range(4):
        log_store.put(transaction(number))
    log_store.sync()
    session = "0123456789abcdef"
    act(client, "subscribe", store=log_store.name, subscription="audit", session=session)
    for first in ("0", "3"):
        rows = get(client, session=session, table="shop.orders", limit_events=3)
        assert rows.schema.metadata[b"first"] == first.encode()
    log_store.close()
    os.unlink(log_store.segment.where)
    rows = get(client, session=session, table="shop.orders", limit_events=3, ack=2, got=5)
    assert rows.schema.metadata == {b"first": b"3", b"last": b"5"}
    with EventStore.attach(log_store.name) as again:
        assert acked(again) == 2


def test_a_client_that_leaves_while_its_store_is_away(
    server: FlightServer,
    client: flight.FlightClient,
    log_store: EventStore,
    store_name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its session ends like every other one, and those of others after it."""
    monkeypatch.setattr(consumer, "RETURN_SECONDS", 0.2)
    monkeypatch.setattr(sessions, "GRACE", 0.0)
    ids = ["a" * 16, "b" * 16]
    with EventStore.create(f"{store_name}-too", capacity=64, log=False) as other:
        for store, session in zip((log_store, other), ids, strict=True):
            store.put(transaction(0))
            act(client, "subscribe", store=store.name, subscription="audit", session=session)
            get(client, session=session, timeout=0)
        log_store.close()
        EventStore.unlink(log_store.name, log=True)
        with pytest.raises(flight.FlightServerError, match="was removed"):
            get(client, session=ids[0], timeout=0)
        client.close()
        await_that(lambda: server._sessions.names() == [])
        assert [each.owner_pid for each in other.subscriptions()] == [0]
    EventStore.unlink(other.name)
    assert "could not be looked after" not in caplog.text


def test_new_subscriptions_are_bounded(store: EventStore, caplog: pytest.LogCaptureFixture) -> None:
    """One host may begin so many; those that are there already continue, and the log has it."""
    with serving(FlightSettings(port=0, max_new_subscriptions=2)) as server:
        for name in ("one", "two", "one"):
            Consumer(url(server, store), name).close()
        with pytest.raises(ProtocolError, match="has begun 2 subscriptions, all it may"):
            Consumer(url(server, store), "three")
    assert "has begun 2 subscriptions" in caplog.text
    assert {stat.name for stat in store.subscriptions()} == {"one", "two"}


def test_a_position_that_is_not_there(server: FlightServer, store: EventStore) -> None:
    """A start that cannot be is refused as here, and leaves no subscription."""
    with pytest.raises(PositionNotFound):
        Consumer(url(server, store), "audit", start=77)
    assert [stat.name for stat in store.subscriptions()] == []


def test_many_clients_at_once(server: FlightServer, log_store: EventStore, store_name: str) -> None:
    """64 clients of two stores, each with its own subscription, 16 of them in a process, all get everything while it is put."""
    code = (
        "import sys, threading\nfrom shmstore import Consumer\nfound = {}\n"
        "def read(n):\n"
        "    with Consumer(sys.argv[1], f'reader-{n}', timeout=60) as consumer:\n"
        "        found[n] = 0\n"
        "        for batch in consumer:\n"
        "            assert batch.first == found[n]\n"
        "            found[n] = batch.last + 1\n"
        "            if batch.last == 299: break\n"
        "first = int(sys.argv[2])\n"
        "threads = [threading.Thread(target=read, args=(n,)) for n in range(first, first + 16)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "assert set(found.values()) == {300} and len(found) == 16, found\n"
    )
    server._sessions._max_new = 64
    with EventStore.create(f"{store_name}-too", capacity=64) as other:
        stores, readers = [log_store, other], []
        try:
            for first in range(0, 64, 16):
                words = [sys.executable, "-c", code, url(server, stores[first // 32]), str(first)]
                readers.append(subprocess.Popen(words, cwd=ROOT))
            await_that(lambda: all(len(one.subscriptions()) == 32 for one in stores) or any(p.poll() for p in readers), 200)
            for number in range(100):
                for one in stores:
                    one.put(transaction(number), timeout=120)
            assert [reader.wait(200) for reader in readers] == [0, 0, 0, 0]
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
    EventStore.unlink(other.name, log=True)


def test_what_is_counted(server: FlightServer, client: flight.FlightClient, store: EventStore) -> None:
    """Streams, rows and bytes by store and subscription, actions, errors by name; what is open and held, as long as it is."""
    store.put([*transaction(0, rows=3), *transaction(1)])
    whole, typed = get(client, store=store.name), get(client, store=store.name, table="shop.orders")
    assert typed.num_rows == 4
    with pytest.raises(flight.FlightServerError):
        get(client, store="nowhere")
    session = "s" * 16
    act(client, "subscribe", store=store.name, subscription="counted", session=session)
    part = get(client, session=session, timeout=0)
    text = server.exposition()
    about = f'store="{store.name}",subscription'
    for line in (
        f'shmstore_flight_sessions{{store="{store.name}"}} 1',
        f'shmstore_flight_streams_total{{{about}=""}} 2',
        f'shmstore_flight_streams_total{{{about}="counted"}} 1',
        f'shmstore_flight_rows_total{{{about}=""}} 8',
        f'shmstore_flight_rows_total{{{about}="counted"}} 4',
        f'shmstore_flight_bytes_total{{{about}=""}} {whole.nbytes + typed.nbytes}',
        f'shmstore_flight_bytes_total{{{about}="counted"}} {part.nbytes}',
        'shmstore_flight_actions_total{action="subscribe"} 1',
        'shmstore_flight_errors_total{error="StoreNotFound"} 1',
    ):
        assert f"{line}\n" in text, text
    act(client, "close", session=session)
    assert "shmstore_flight_sessions{" not in server.exposition()
    await_that(lambda: f'shmstore_flight_open_streams{{store="{store.name}"}} 0\n' in server.exposition())
    await_that(lambda: "shmstore_flight_connections 1\n" in server.exposition())
