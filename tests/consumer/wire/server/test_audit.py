"""shmstore.consumer.serving.audit: one line for each kind and place, a count for every incident, nothing long repeated."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import closing

import pytest

from shmstore import EventStore
from shmstore.consumer.serving import audit
from shmstore.consumer.serving.audit import Audit, Incident
from shmstore.consumer.wire.server import sessions
from tests.consumer.wire.harness import RawClient, ServerThread, events, refused, wait_for

NewServer = Callable[..., ServerThread]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """The lines that hold a text."""
    caplog.set_level(logging.INFO, "shmstore.serve")
    return lambda text: [record.getMessage() for record in caplog.records if text in record.getMessage()]


def count(server: ServerThread, incident: Incident) -> int:
    text = server.server.metrics.exposition()
    return int(
        next(line for line in text.splitlines() if line.startswith(f"shmstore_serve_{incident.counter}_total ")).split()[-1]
    )


def test_lines_are_limited_and_counts_are_not(lines: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kind and a place one line in a while; the next says how many were left out; another place or kind has its own."""
    now = [100.0]
    monkeypatch.setattr(audit.time, "monotonic", lambda: now[0])
    noted = Audit()
    for _ in range(5):
        noted.note(Incident.LOGIN, "10.0.0.1", "here")
    noted.note(Incident.LOGIN, "10.0.0.2", "there")
    noted.note(Incident.FILTER, "10.0.0.1", "filter")
    assert (lines("here"), lines("filter")) == (["here", "there"], ["filter"])
    now[0] += audit.QUIET
    noted.note(Incident.LOGIN, "10.0.0.1", "here")
    assert lines("here")[-1] == "here (and 4 more like it)"
    assert (noted.counts[Incident.LOGIN], noted.counts[Incident.FILTER]) == (7, 1)
    for number in range(3000):
        noted.note(Incident.LOGIN, str(number), "x")
    assert len(noted._written) <= audit.PLACES


def test_wrong_passwords(new_server: NewServer, store: EventStore, lines: Callable[[str], list[str]]) -> None:
    """Each wrong login counts, with its address and user in the log once; neither the log nor the answer repeats a long name, or a line
    that the name brought along."""
    server = new_server(user="canal", password="sesame")
    with closing(RawClient(server.port, store.name, login=False)) as client:
        for _ in range(20):
            refused(client.authenticate(username="eve", password=b"open"), 400)
        answer = client.authenticate(username="x\nERROR forged " * 5000, password=b"open")
        assert len(refused(answer, 400)) < 200
        assert client.authenticate(username="canal", password=b"sesame").error_code == 0
    assert count(server, Incident.LOGIN) == 21
    (line,) = lines("login refused")
    assert "127.0.0.1" in line
    assert "eve" in line
    assert not lines("open")
    assert not lines("\n")


def test_long_input_is_not_repeated(new_server: NewServer, store: EventStore) -> None:
    """Whatever a client sends, an error repeats a short piece of it at most."""
    server = new_server(stores=(store.name,))
    long = "y" * 100_000
    with closing(RawClient(server.port, store.name)) as client:
        for name in (
            {"destination": long, "client_id": "1"},
            {"destination": "z" * 100, "client_id": "1"},
            {"destination": store.name, "client_id": long},
        ):
            client.name = name
            for answer in (client.subscribe(), client.get(), client.unsubscribe()):
                assert len(refused(answer, 400)) < 400
        client.name = {"destination": store.name, "client_id": "1"}
        assert len(refused(client.subscribe("(" * 30_000), 400)) < 400
        assert len(refused(client.subscribe(long), 400)) < 400


def test_refused_filters(new_server: NewServer, store: EventStore, lines: Callable[[str], list[str]]) -> None:
    """A filter that is none, and one that takes too long once it meets a name, are noted with client and address."""
    server = new_server()
    with closing(RawClient(server.port, store.name, 7)) as client:
        refused(client.subscribe("("), 400)
        assert client.subscribe(f"(?:(?!(?:{'|'.join('a' * i for i in range(1, 99))})*x)a)*").error_code == 0
        store.put(events([1], events([1])[1].table._replace(database="a" * 64, table="a" * 64)))
        assert "simplify" in refused(client.get(), 400)
    assert count(server, Incident.FILTER) == 2
    (line,) = lines("refused: filter")
    assert "client 7" in line
    assert "127.0.0.1" in line


def test_refused_connections(new_server: NewServer, store: EventStore, lines: Callable[[str], list[str]]) -> None:
    """Connections above the limit are counted, and one line says where they came from."""
    server = new_server(max_connections=1)
    with closing(RawClient(server.port, store.name)):
        for _ in range(3):
            with closing(RawClient(server.port, store.name, login=False)) as more:
                refused(more.authenticate(), 400)
    assert count(server, Incident.CONNECTION) == 3
    (line,) = lines("connection from 127.0.0.1 refused")
    assert "1 connections" in line


def test_new_clients_of_one_login(new_server: NewServer, store: EventStore, lines: Callable[[str], list[str]]) -> None:
    """One login begins so many client ids and no more; those there continue, one unsubscribed makes place for another, others log in."""
    server = new_server(max_new_clients=2)
    with closing(RawClient(server.port, store.name)) as client, closing(RawClient(server.port, store.name, 50)) as other:
        for number in (1, 2):
            client.name["client_id"] = str(number)
            assert client.subscribe().error_code == 0
        client.name["client_id"] = "3"
        assert "2 client ids" in refused(client.subscribe(), 400)
        assert other.subscribe().error_code == 0
        client.name["client_id"] = "1"
        assert client.subscribe("shop.*").error_code == 0
        assert client.unsubscribe().error_code == 0
        client.name["client_id"] = "3"
        assert client.subscribe().error_code == 0
        client.name["client_id"] = "50"
        assert client.subscribe().error_code == 0
        assert {stat.name for stat in store.subscriptions()} == {"canal-2", "canal-3", "canal-50"}
    assert count(server, Incident.SUBSCRIPTION) == 1
    assert len(lines("--max-new-clients")) == 1


def test_a_store_that_is_full(new_server: NewServer, store: EventStore, lines: Callable[[str], list[str]]) -> None:
    """Where all of a store's subscriptions are used, the next client id is refused with what to do, and noted."""
    server = new_server()
    kept = [store.subscribe(f"reader-{number}") for number in range(63)]
    with closing(RawClient(server.port, store.name)) as client:
        assert "63 subscriptions" in refused(client.subscribe(), 400)
    assert count(server, Incident.SUBSCRIPTION) == 1
    assert len(lines("63 subscriptions")) == 1
    for subscription in kept:
        subscription.close()


def test_left_with_batches(new_server: NewServer, store: EventStore, lines: Callable[[str], list[str]]) -> None:
    """A client whose last connection ends while it holds batches is noted; one that acked all, or has another connection, is not."""
    server = new_server()
    for number in (1, 2, 3):
        with closing(RawClient(server.port, store.name, number)) as client:
            client.subscribe()
            store.put(events([number]))
            answer = client.get()
            if number == 2:
                client.ack(answer.batch_id)
                client.get()
            if number == 3:
                with closing(RawClient(server.port, store.name, 3)) as second:
                    second.get()
                wait_for(lambda: server.server.metrics.connections == 1, "the second connection's end")
                assert count(server, Incident.UNACKED) == 1
                client.ack(answer.batch_id)
                client.ack(answer.batch_id + 1)
                client.get()
        wait_for(lambda: server.server.metrics.connections == 0, "the connection's end")
    assert count(server, Incident.UNACKED) == 1
    (line,) = lines("batches not acked")
    assert "client 1 of" in line


def test_takeovers(
    new_server: NewServer, store: EventStore, lines: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that another server had is noted where it continues; one that comes back to the same server is not."""
    monkeypatch.setattr(sessions, "_LOOK", 0.05)
    one, two = new_server(release_after=0.1), new_server(release_after=0.1)
    for server in (one, one, two, two, one):
        wait_for(lambda: all(not stat.owner_pid for stat in store.subscriptions()), "the client to be given back")
        with closing(RawClient(server.port, store.name)) as client:
            assert client.subscribe().error_code == 0
    assert (count(one, Incident.TAKEOVER), count(two, Incident.TAKEOVER)) == (1, 1)
    assert len(lines("continues here")) == 2


def test_the_log_of_a_stranger(new_server: NewServer, store: EventStore, lines: Callable[[str], list[str]]) -> None:
    """Bytes that are no packet are no incident, and what they were is not in the log."""
    server = new_server()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as stranger:
        stranger.sendall(b"GET /secret HTTP/1.1\r\n\r\n")
        wait_for(lambda: server.server.metrics.connections == 0, "the connection's end")
    assert not lines("secret")
    assert sum(server.server.metrics.as_dict()[incident.counter] for incident in Incident) == 0
