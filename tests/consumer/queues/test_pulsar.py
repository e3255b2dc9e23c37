"""Pulsar as a queue (consumer/queues/pulsar.py, `shmstore queue --kind pulsar`): a real server, kills, parts of batches, logins, what it refuses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from shmstore import EventStore
from shmstore.consumer.queues import kinds, pulsar
from shmstore.consumer.queues.pulsar import Pulsar
from shmstore.consumer.queues.queue import Mark, Message, MessageTooLarge, QueueRefused, QueueUnreachable
from shmstore.event import EventType, Row
from tests.certificates import self_signed
from tests.consumer.queues.reading import consumed, kept
from tests.consumer.queues.senders import send
from tests.consumer.queues.test_sender import inserts, transaction
from tests.servers.ports import free_port
from tests.servers.pulsar import PulsarServer, pulsar_server

pytestmark = pytest.mark.usefixtures("state")


def some(topic: str, numbers: range) -> list[Message]:
    return [Message(topic, f"schlüssel 鍵 {number % 7}".encode(), b"%d" % number, sequence=number // 3) for number in numbers]


def test_a_part_of_a_batch(pulsar_there: PulsarServer, store_name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender goes at any message, or behind the last one before the mark, and the next batches have other limits: each message is in its
    partition once, in order."""
    chance, reader, done = random.Random(seed), f"s/{store_name}", 0
    place_of = Pulsar._place_of
    while done < 36:
        queue = Pulsar(pulsar_there.address, reader)
        mark = queue.open()
        assert (mark.sequence if mark else -1) == done // 3 - 1
        left = [chance.randint(0, 30)]

        def cut(self: Pulsar, message: Message, left: list[int] = left) -> str:
            left[0] -= 1
            if left[0] < 0:
                self._wait(0)
                raise QueueUnreachable("cut")
            return place_of(self, message)

        with monkeypatch.context() as patched:
            patched.setattr(Pulsar, "_place_of", cut)
            try:
                for _ in range(3):
                    upto = min(36, done + chance.randint(1, 5) * 3)
                    queue.send(some(store_name, range(done, upto)), Mark(1, upto // 3 - 1))
                    done = upto
            except QueueUnreachable:
                pass
        queue.close()
    found = consumed(pulsar_there, store_name)
    assert len(found) == 3
    assert sorted(int(value or b"") for each in found.values() for _, value in each) == list(range(36))
    assert all(each == sorted(each, key=lambda one: int(one[1] or b"")) for each in found.values())


def test_a_partition_that_a_topic_does_not_have(pulsar_there: PulsarServer, store_name: str) -> None:
    """It is taken modulo, as Canal does."""
    queue = Pulsar(pulsar_there.address, f"s/{store_name}")
    queue.open()
    queue.send([Message(store_name, None, b"%d" % number, number, sequence=number) for number in range(5)], Mark(1, 4))
    queue.close()
    found = consumed(pulsar_there, store_name)
    assert {number: [value for _, value in some] for number, some in found.items()} == {
        0: [b"0", b"3"],
        1: [b"1", b"4"],
        2: [b"2"],
    }


def test_another_store_begins_again(pulsar_there: PulsarServer, store_name: str) -> None:
    """Events of a store that was created again have lower numbers: none is taken for one of the former store."""
    queue = Pulsar(pulsar_there.address, f"s/{store_name}")
    queue.open()
    queue.send(some(store_name, range(30, 36)), Mark(1, 11))
    queue.send(some(store_name, range(6)), Mark(2, 1))
    assert queue.open() == Mark(2, 1)
    queue.send(some(store_name, range(6, 9)), Mark(2, 2))
    queue.close()
    values = [int(value or b"") for each in consumed(pulsar_there, store_name).values() for _, value in each]
    assert sorted(values) == [*range(9), *range(30, 36)]


@pytest.fixture
def namespace(pulsar_there: PulsarServer, store_name: str) -> str:
    """A namespace of its own, whose messages are deleted where no subscription waits for them."""
    name = f"public/{store_name}"
    pulsar_there.ask("PUT", f"/admin/v2/namespaces/{name}", {})
    pulsar_there.ask("POST", f"/admin/v2/namespaces/{name}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    return name


def test_the_broker_keeps_the_last_mark(pulsar_there: PulsarServer, namespace: str, store_name: str) -> None:
    """And no more: it may delete what no subscription waits for, and the marks' own waits for the last one."""
    topic = f"persistent/{namespace}/shmstore-progress.s.{store_name}-partition-0"
    for first in (0, 10):
        queue = Pulsar(pulsar_there.address, f"s/{store_name}", settings={"namespace": namespace})
        mark = queue.open()
        assert (mark.sequence if mark else -1) == first - 1
        for number in range(first, first + 10):
            queue.send([], Mark(1, number))
        queue.close()
        kept_there = pulsar_there.ask("GET", f"/admin/v2/{topic}/stats")["subscriptions"]["shmstore"]
        assert kept_there["msgBacklog"] == 1
        pulsar_there.ask("PUT", f"/admin/v2/{topic}/unload")
    queue = Pulsar(pulsar_there.address, f"s/{store_name}", settings={"namespace": namespace})
    assert queue.open() == Mark(1, 19)
    queue.close()


def test_without_deduplication(pulsar_there: PulsarServer, namespace: str, store_name: str) -> None:
    """Nothing is sent, and the message says what to turn on; at least once is sent all the same, and comes again after an error."""
    pulsar_there.ask("POST", f"/admin/v2/namespaces/{namespace}/deduplication", False)
    pulsar_there.ask(
        "POST", f"/admin/v2/namespaces/{namespace}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    )
    topic = f"persistent://{namespace}/{store_name}"
    settings = {"namespace": namespace}
    queue = Pulsar(pulsar_there.address, f"s/{store_name}", settings=settings)
    queue.open()
    with pytest.raises(QueueRefused, match="does not deduplicate"):
        queue.send(some(store_name, range(3)), Mark(1, 0))
    assert consumed(pulsar_there, topic) == {}
    queue = Pulsar(pulsar_there.address, f"s/{store_name}", exactly_once=False, settings=settings)
    for _ in range(2):
        assert queue.open() is None
        queue.send(some(store_name, range(30)), Mark(1, 9))
    queue.close()
    found = consumed(pulsar_there, topic)
    assert sorted(int(value or b"") for each in found.values() for _, value in each) == sorted([*range(30), *range(30)])
    by_key: dict[bytes | None, list[int]] = {}
    for each in found.values():
        for key, value in each:
            by_key.setdefault(key, []).append(int(value or b""))
    for key, values in by_key.items():
        once = [int(message.value or b"") for message in some(store_name, range(30)) if message.key == key]
        assert values == once * 2


def test_what_a_message_holds(log_store: EventStore, pulsar_there: PulsarServer) -> None:
    """Key and properties; a delete's tombstone has no value."""
    log_store.put(transaction(0, inserts(1)))
    log_store.put(transaction(1, [Row((1, "note 1"), None)], EventType.DELETE))
    send(log_store.name, "pulsar", pulsar_there.address, "--compression", "zstd")
    [found] = kept(pulsar_there, f"{log_store.name}.shop.orders").values()
    inserted, deleted, tombstone = found
    assert json.loads(inserted.partition_key()) == {"id": 1}
    assert json.loads(inserted.data())["after"] == {"id": 1, "note": "note 1"}
    assert inserted.properties()["shmstore.position"].startswith("binlog.000001:")
    assert json.loads(deleted.data())["op"] == "delete"
    assert tombstone.partition_key() == inserted.partition_key()
    assert tombstone.has_null_value()


def test_larger_than_the_broker_takes(pulsar_there: PulsarServer, store_name: str) -> None:
    """A limit of the broker that no setting names: the error has the message, what is before it is in, and comes once when the rest is sent."""
    queue = Pulsar(pulsar_there.address, f"s/{store_name}")
    queue.open()
    few = some(store_name, range(6))
    large = Message(store_name, b"k", b"x" * (2 << 20), sequence=1)
    with pytest.raises(MessageTooLarge, match="raise maxMessageSize") as caught:
        queue.send([*few[:4], large, *few[4:]], Mark(1, 1))
    assert caught.value.message is large
    assert queue.open() is None
    queue.send(few, Mark(1, 1))
    queue.close()
    values = [int(value or b"") for each in consumed(pulsar_there, store_name).values() for _, value in each]
    assert sorted(values) == list(range(6))


def _token(secret: bytes, user: str) -> str:
    def text(part: bytes) -> str:
        return base64.urlsafe_b64encode(part).rstrip(b"=").decode()

    signed = ".".join([text(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": user})])
    return f"{signed}.{text(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def test_logins_and_rights(log_store: EventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS the right token sends; one without rights ends with a line; a wrong one, none, and another certificate say so; none with the token."""
    certificate, key = self_signed(tmp_path)
    secret = b"s" * 32
    (tmp_path / "secret").write_bytes(secret)
    boss, weak, port = _token(secret, "boss"), _token(secret, "weak"), free_port()
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": f"file://{tmp_path}/secret",
        "superUserRoles": "boss",
        "brokerClientAuthenticationPlugin": plugin,
        "brokerClientAuthenticationParameters": f"token:{boss}",
        "brokerServicePortTls": str(port),
        "tlsCertificateFilePath": str(certificate),
        "tlsKeyFilePath": str(key),
    }
    log_store.put(transaction(0, inserts(1, 2)))
    with pulsar_server(boss, **settings) as server:
        tls = (f"127.0.0.1:{port}", "--tls-ca", str(certificate))

        def said(token: str, code: int, *words: str) -> str:
            login = ("--user", "token")
            return send(log_store.name, "pulsar", *tls, *login, *words, code=code, SHMSTORE_QUEUE_PASSWORD=token)

        assert "sent 2 messages" in said(boss, 0, "--set", f"admin={server.admin}", "--new-partitions", "2")
        assert sum(len(each) for each in consumed(server, f"{log_store.name}.shop.orders").values()) == 2
        line = said(weak, 2)
        assert "refuses: AuthorizationError; the user needs produce" in line
        assert weak not in line
        monkeypatch.setattr("shmstore.consumer.queues.pulsar.ANSWER_MS", 1000)
        for token in (_token(b"t" * 32, "boss"), ""):
            queue = kinds.make("pulsar", kinds.QueueConnection(server.address, "s/x", user="token" * bool(token), password=token))
            with pytest.raises(QueueUnreachable, match="or it does not take the login") as caught:
                queue.open()
            assert not token or token not in str(caught.value)
            queue.close()
        (tmp_path / "other").mkdir()
        other, _ = self_signed(tmp_path / "other")
        connection = kinds.QueueConnection(tls[0], "s/x", user="token", password=boss, tls_ca=str(other))
        queue = kinds.make("pulsar", connection)
        with pytest.raises((QueueUnreachable, QueueRefused)):
            queue.open()
        queue.close()


def test_a_topic_that_is_deleted(pulsar_there: PulsarServer, store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While messages are sent to it: that is found long before an answer is given up, and then the topic is made again."""
    monkeypatch.setattr(pulsar, "ANSWER_SECONDS", 600)
    monkeypatch.setattr(pulsar, "LOST_SECONDS", 0.5)
    queue = Pulsar(pulsar_there.address, f"s/{store_name}", partitions=2, settings={"admin": pulsar_there.admin})
    queue.open()
    queue.send(some(store_name, range(6)), Mark(1, 1))
    pulsar_there.ask("DELETE", f"/admin/v2/persistent/public/default/{store_name}/partitions?force=true")
    with pytest.raises(QueueUnreachable, match="no connection: its broker is away, or its topic was deleted"):
        queue.send(some(store_name, range(6, 12)), Mark(1, 3))
    assert queue.open() == Mark(1, 1)
    queue.send(some(store_name, range(6, 12)), Mark(1, 3))
    queue.close()
    found = kept(pulsar_there, store_name)
    assert sorted(int(each.data()) for messages in found.values() for each in messages) == list(range(6, 12))


@pytest.mark.parametrize(
    ("user", "password", "shown"),
    [("token", "a.b-c_d", "Bearer a.b-c_d"), ("ü&%", "p:/\"'鍵", "Basic " + base64.b64encode("ü&%:p:/\"'鍵".encode()).decode())],
)
def test_the_administration_gets_the_login(user: str, password: str, shown: str) -> None:
    """That of topics too, whatever is in it; the client gets it as it is."""
    seen: list[str] = []

    class Administration(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            seen.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Administration) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        settings = {"admin": f"http://127.0.0.1:{server.server_port}"}
        Pulsar("127.0.0.1:1", "s/x", user=user, password=password, partitions=2, settings=settings)._create("persistent://a/b/c")
        answering.join(60)
    assert seen == [shown]


def test_a_mark_that_is_none(pulsar_there: PulsarServer, store_name: str) -> None:
    """What another process wrote there stops with a line; so does a topic of another reader."""
    client = pulsar_there.client()
    for number, (properties, says) in enumerate([({}, r"hello.* is not a mark"), ({"shmstore.reader": "s/other"}, "s/other")]):
        topic = client.get_topic_partitions(f"shmstore-progress.s.{store_name}{number}")[0]
        client.create_producer(topic).send(b"hello", properties=properties)
        queue = Pulsar(pulsar_there.address, f"s/{store_name}{number}")
        with pytest.raises((ValueError, QueueRefused), match=says):
            queue.open()
        queue.close()
    client.close()


def test_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """`open` says so; `run` would try again."""
    monkeypatch.setattr("shmstore.consumer.queues.pulsar.ANSWER_MS", 1000)
    queue = Pulsar("127.0.0.1:1", "s/none")
    with pytest.raises(QueueUnreachable, match=r"127\.0\.0\.1:1 does not answer"):
        queue.open()
    queue.close()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"address": "nowhere"}, "no address"),
        ({"settings": {"db": "5"}}, "db is no setting of Pulsar: there are max_message_size, namespace, admin"),
        ({"settings": {"max_message_size": "-1"}}, "whole number"),
        ({"settings": {"admin": "nowhere:8080"}}, "write http://"),
        ({"partitions": 3}, "--new-partitions needs --set admin"),
        ({"replication": 3}, "--new-replication"),
        ({"create": False}, "--no-create-topics"),
        ({"mechanism": "PLAIN"}, "--sasl"),
        ({"tls_ca": "/none.pem"}, r"TLS: /none\.pem cannot be read"),
        ({"user": "token", "password": "a.b c"}, "the token of Pulsar has blanks"),
        ({"user": "token", "password": "a.ü"}, "letters that no token has"),
        ({"user": "a:b", "password": "c"}, "--user 'a:b' has a colon"),
    ],
)
def test_what_cannot_be(given: dict[str, object], says: str) -> None:
    """Each is refused before anything is sent, by its name."""
    connection = kinds.QueueConnection(**{"address": "127.0.0.1:1", "reader": "s/none", **given})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=says):
        kinds.make("pulsar", connection)
