"""RocketMQ as a queue (consumer/queues/rocketmq.py, `shmstore queue --kind rocketmq`): a real server, kills, logins, what it refuses."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from shmstore import EventStore
from shmstore.consumer.queues import kinds, rocketmq
from shmstore.consumer.queues.queue import Mark, Message, MessageTooLarge, Queue, QueueRefused, QueueUnreachable
from shmstore.consumer.queues.rocketmq import RocketMQ
from shmstore.event import EventType, Row
from tests.certificates import self_signed
from tests.consumer.queues.reading import pulled
from tests.consumer.queues.senders import send
from tests.consumer.queues.test_sender import inserts, transaction
from tests.servers.rocketmq import RocketServer

pytestmark = pytest.mark.usefixtures("state")
AT_LEAST = ("--delivery", "at-least-once")
LOGIN = {"user": "admin", "password": "let-me-in"}  # of `rocket_there`


@pytest.fixture
def login(tmp_path: Path) -> Sequence[str]:
    """The words that log in."""
    secret = tmp_path / "secret"
    secret.write_text(LOGIN["password"])
    return "--user", LOGIN["user"], "--password-file", str(secret)


def test_what_a_message_holds(log_store: EventStore, rocket_there: RocketServer, login: Sequence[str]) -> None:
    """Key, headers, id, tag; a delete's tombstone is empty; the dots of a topic are underscores."""
    log_store.put(transaction(0, inserts(1)))
    log_store.put(transaction(1, [Row((1, "note 1"), None)], EventType.DELETE))
    words = (*AT_LEAST, *login, "--set", "tag=shop", "--new-partitions", "1")
    send(log_store.name, "rocketmq", rocket_there.address, *words)
    inserted, deleted, tombstone = rocket_there.read(f"{log_store.name}_shop_orders")[0]
    assert json.loads(inserted.properties["KEYS"]) == {"id": 1}
    assert json.loads(inserted.body)["after"] == {"id": 1, "note": "note 1"}
    assert inserted.properties["shmstore.position"].startswith("binlog.000001:")
    assert inserted.properties["TAGS"] == "shop"
    assert inserted.id == f"{log_store.epoch}-1-0-0"
    assert json.loads(deleted.body)["op"] == "delete"
    assert tombstone.properties["KEYS"] == inserted.properties["KEYS"]
    assert tombstone.body == b""
    assert deleted.id.rpartition("-")[0] == tombstone.id.rpartition("-")[0]
    assert deleted.id != tombstone.id


def test_many_messages(rocket_there: RocketServer, store_name: str) -> None:
    """More than a request takes stay in order; small and large ones, of which a broker takes fewer at once than were in the request."""
    queue = RocketMQ(rocket_there.address, partitions=2, **LOGIN)
    queue.open()
    sizes = [random.Random(5).choice((0, 10, 1000, 200_000, 900_000)) for _ in range(30)]
    sent = [Message(store_name, b"%d" % (number % 5), b"%d " % number + b"x" * size) for number, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rocketmq, "REQUEST", 3 << 20)
        queue.send(sent, Mark(1, 1))
    small = [Message(store_name, b"%d" % (number % 5), b"%d" % number) for number in range(10_000)]
    queue.send(small, Mark(1, 2))
    queue.close()
    found = pulled(rocket_there, store_name)
    assert len(found) == 2
    for number in range(5):
        key = b"%d" % number
        [of_key] = [some for some in ([each for each in messages if each[0] == key] for messages in found.values()) if some]
        assert of_key == [(each.key, each.value) for each in sent + small if each.key == key]


def test_topics(rocket_there: RocketServer, store_name: str) -> None:
    """One that is there keeps its queues; one that is not there, or has a name that cannot be, ends sending where none is to be made."""
    rocket_there.make_topic(f"{store_name}_three", 3)
    queue = RocketMQ(rocket_there.address, create=False, **LOGIN)
    queue.open()
    assert queue.partitions(f"{store_name}.three") == 3
    with pytest.raises(QueueRefused, match=rf"no topic {store_name}_none: create it"):
        queue.partitions(f"{store_name}.none")
    with pytest.raises(QueueRefused, match=r"'ü_x' cannot be one of RocketMQ"):
        queue.send([Message("ü.x", b"k", b"1")], Mark(1, 1))
    queue.close()


def test_a_queue_that_goes(rocket_there: RocketServer, store_name: str) -> None:
    """Where a topic loses queues, nothing is sent to others, which would break the order of keys; where it gets more, keys stay where they are."""
    queue = RocketMQ(rocket_there.address, partitions=3, **LOGIN)
    queue.open()
    assert queue.partitions(store_name) == 3
    rocket_there.make_topic(store_name, 2)
    queue.open()
    with pytest.raises(QueueUnreachable, match=r"no queue 2 of broker b now"):
        queue.send([Message(store_name, b"k", b"1")], Mark(1, 1))
    rocket_there.make_topic(store_name, 5)
    queue.open()
    assert queue.partitions(store_name) == 3
    queue.close()


def test_brokers_tell_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new topic has the queues of all brokers that made it, also where the name server knows some of them first."""
    queue = RocketMQ("127.0.0.1:1")
    places = [rocketmq._Place(broker, number, ("127.0.0.1", 1)) for broker in ("a", "b") for number in range(4)]
    known = iter([[], places[4:], places[4:], places])
    monkeypatch.setattr(queue, "_route", lambda name: next(known))
    monkeypatch.setattr(queue, "_make", lambda name: {"a", "b"})
    assert queue.partitions("t") == 8


def test_a_name_server_that_forgot(rocket_there: RocketServer, store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that a broker has and the name server does not know is not made again with other queues."""
    rocket_there.make_topic(store_name, 3)
    queue = RocketMQ(rocket_there.address, partitions=1, **LOGIN)
    queue.open()
    monkeypatch.setattr(rocketmq, "KNOWN_SECONDS", 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(queue, "_route", lambda name: [])
        with pytest.raises(QueueUnreachable, match=r"a broker has topic"):
            queue.partitions(store_name)
    queue.open()
    assert queue.partitions(store_name) == 3
    queue.close()


def test_a_connection_that_was_idle(rocket_there: RocketServer, store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again before the server would close it; one that the server closed is an error that may be tried again."""
    queue = RocketMQ(rocket_there.address, partitions=1, **LOGIN)
    queue.open()
    queue.send([Message(store_name, b"k", b"1")], Mark(1, 1))
    for link in queue._links.values():
        link._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(QueueUnreachable):
        queue.send([Message(store_name, b"k", b"2")], Mark(1, 2))
    queue.open()
    queue.send([Message(store_name, b"k", b"2")], Mark(1, 2))
    monkeypatch.setattr(rocketmq, "IDLE_SECONDS", -1)
    for link in queue._links.values():
        link._socket.shutdown(socket.SHUT_RDWR)
    queue.send([Message(store_name, b"k", b"3")], Mark(1, 3))
    queue.close()
    assert [value for _, value in pulled(rocket_there, store_name)[0]] == [b"1", b"2", b"3"]


def test_logins_and_rights(log_store: EventStore, rocket_there: RocketServer) -> None:
    """No login, a wrong password, and a user without rights end with a line, without the password."""
    log_store.put(transaction(0, inserts(1, 2)))
    rocket_there.make_user("weak", "weak-one")

    def said(*words: str, password: str) -> str:
        return send(log_store.name, "rocketmq", rocket_there.address, *AT_LEAST, *words, code=2, SHMSTORE_QUEUE_PASSWORD=password)

    wrong = said("--user", "admin", password="wrong-one")
    assert "refuses" in wrong
    assert "wrong-one" not in wrong
    assert "refuses" in said(password="")
    weak = said("--user", "weak", password="weak-one")
    assert "the user needs the right to" in weak
    assert "weak-one" not in weak


@pytest.mark.parametrize(("user", "password"), [("weak&%:/\"'ü", "p&%:/\"'üß鍵"), ("a=b;c", "x\\y{}$"), ("ü", "a:b/c?d=e&f%20")])
def test_what_a_login_may_hold(
    log_store: EventStore, rocket_there: RocketServer, tmp_path: Path, user: str, password: str
) -> None:
    """The server knows the user, by a password in a file as by one in the environment; with another one it does not."""
    log_store.put(transaction(0, inserts(1)))
    rocket_there.make_user(user, password)
    secret = tmp_path / "secret"
    secret.write_text(f"{password}\n")

    def said(*words: str, **more: str) -> str:
        return send(log_store.name, "rocketmq", rocket_there.address, *AT_LEAST, "--user", user, *words, code=2, **more)

    assert f"User:{user} has no permission" in said("--password-file", str(secret))
    assert f"User:{user} has no permission" in said(SHMSTORE_QUEUE_PASSWORD=password)
    wrong = said(SHMSTORE_QUEUE_PASSWORD=password + "x")
    assert "signature" in wrong
    assert password not in wrong


def test_a_topic_that_is_deleted(rocket_there: RocketServer, store_name: str) -> None:
    """While messages are sent to it: that is an error which may be tried again, and then the topic is made again."""
    queue = RocketMQ(rocket_there.address, partitions=2, **LOGIN)
    queue.open()
    queue.send([Message(store_name, b"k", b"1")], Mark(1, 1))
    for place, code in (
        (queue._first[store_name][0].address, 215),
        (queue._names_at(), 216),
    ):  # at the broker, and the name server
        queue._ask(place, code, {"topic": store_name})
    with pytest.raises(QueueUnreachable, match=rf"topic\[{store_name}\] not exist"):
        queue.send([Message(store_name, b"k", b"2")], Mark(1, 2))
    queue.open()
    queue.send([Message(store_name, b"k", b"2")], Mark(1, 2))
    queue.close()
    assert [value for some in pulled(rocket_there, store_name).values() for _, value in some] == [b"2"]


def test_tls(rocket_there: RocketServer, store_name: str, tmp_path: Path) -> None:
    """Messages go over TLS; nothing is sent to a server whose certificate another signed."""

    def to(ca: str) -> Queue:
        given = kinds.QueueConnection(rocket_there.address, "s/x", exactly_once=False, tls_ca=ca, partitions=1, **LOGIN)
        return kinds.make("rocketmq", given)

    queue = to(rocket_there.certificate)
    queue.open()
    queue.send([Message(store_name, b"k", b"1" * 100_000)], Mark(1, 1))
    queue.close()
    assert pulled(rocket_there, store_name)[0] == [(b"k", b"1" * 100_000)]
    other, _ = self_signed(tmp_path)
    queue = to(str(other))
    with pytest.raises(QueueUnreachable, match="certificate"):
        queue.open()
    queue.close()


def test_what_no_server_takes(rocket_there: RocketServer, store_name: str) -> None:
    """A key that is too long, and a message at which a server would hang up, are found before they are sent."""
    queue = RocketMQ(rocket_there.address, partitions=1, **LOGIN)
    queue.open()
    for message in (Message(store_name, b"k" * 40_000, b"1"), Message(store_name, b"k", bytes(16 << 20))):
        with pytest.raises(MessageTooLarge) as caught:
            queue.send([message], Mark(1, 1))
        assert caught.value.message is message
        queue.open()
    queue.close()


def test_nothing_listens() -> None:
    """`open` tries each address, and says so; `run` would try again."""
    queue = RocketMQ("127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(QueueUnreachable, match=r"127\.0\.0\.1:2 does not take messages: .*refused"):
        queue.open()
    queue.close()


def frame(header: str, body: str = "") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header.encode() + body.encode()


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frame("[]"),
        frame("{"),
        frame("{}"),
        frame('{"flag": 1, "opaque": [], "code": 0}'),
        frame('{"flag": 1, "opaque": 1, "code": "none"}'),
        frame('{"flag": 1, "opaque": 1, "code": 0}'),
        frame('{"flag": 1, "opaque": 1, "code": 0}', '{"brokerDatas": 1}'),
        frame(
            '{"flag": 1, "opaque": 1, "code": 0}', '{"brokerDatas": [{"brokerName": "b", "brokerAddrs": {}}], "queueDatas": [7]}'
        ),
        frame(
            '{"flag": 1, "opaque": 1, "code": 0}',
            '{"brokerDatas": [{"brokerName": "b", "brokerAddrs": {0: "?"}}], "queueDatas": [{"brokerName": "b", "perm": 6, "writeQueueNums": 4}]}',
        ),
    ],
)
def test_another_server(sent: bytes) -> None:
    """An answer in another protocol, or without what it must have, is an error that names it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as link:
                link.recv(1)
                link.sendall(sent)

        answering = threading.Thread(target=answer)
        answering.start()
        queue = RocketMQ(f"127.0.0.1:{server.getsockname()[1]}")
        queue.open()
        with pytest.raises(QueueUnreachable, match="is not RocketMQ"):
            queue.partitions("t")
        queue.close()
        answering.join()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"address": "nowhere"}, "no address"),
        ({"settings": {"db": "5"}}, "db is no setting of RocketMQ: there are tag, group"),
        ({"compression": "lz4"}, "--compression"),
        ({"mechanism": "PLAIN"}, "--sasl"),
        ({"progress": "here"}, "--progress-topic"),
        ({"replication": 3}, "--new-replication"),
        ({"exactly_once": True}, "RocketMQ has no transaction .* --delivery at-least-once"),
    ],
)
def test_what_cannot_be(given: dict[str, object], says: str) -> None:
    """Each is refused before anything is sent, by its name."""
    connection = kinds.QueueConnection(**{"address": "127.0.0.1:1", "reader": "s/x", "exactly_once": False, **given})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=says):
        kinds.make("rocketmq", connection)
