"""RabbitMQ as a queue (consumer/queues/rabbitmq.py, `shmstore queue --kind rabbitmq`): a real server, kills, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pika
import pytest

from shmstore import EventStore
from shmstore.consumer.queues import kinds, rabbitmq
from shmstore.consumer.queues.queue import Mark, Message, Queue, QueueRefused, QueueUnreachable
from shmstore.consumer.queues.rabbitmq import RabbitMQ
from shmstore.event import EventType, Row
from tests.certificates import self_signed
from tests.consumer.queues.reading import taken
from tests.consumer.queues.senders import send, wait_for
from tests.consumer.queues.test_sender import inserts, transaction
from tests.servers.rabbitmq import RabbitServer, rabbit_server

pytestmark = pytest.mark.usefixtures("state")
AT_LEAST = ("--delivery", "at-least-once")


def test_what_a_message_holds(log_store: EventStore, rabbit_there: RabbitServer) -> None:
    """Key, headers, id, and on disk; a delete's tombstone is empty; the queue is a quorum queue."""
    queue = f"{log_store.name}.shop.orders"
    log_store.put(transaction(0, inserts(1)))
    log_store.put(transaction(1, [Row((1, "note 1"), None)], EventType.DELETE))
    send(log_store.name, "rabbitmq", rabbit_there.address, *AT_LEAST)
    (inserted, body), (deleted, _), (tombstone, nothing) = taken(rabbit_there.port, queue)[0]
    assert json.loads(inserted.headers["key"]) == {"id": 1}
    assert json.loads(body)["after"] == {"id": 1, "note": "note 1"}
    assert inserted.headers["shmstore.position"].startswith("binlog.000001:")
    assert inserted.delivery_mode == 2
    assert inserted.message_id == f"{log_store.epoch}-1-0-0"
    assert tombstone.headers["key"] == inserted.headers["key"]
    assert nothing == b""
    assert deleted.message_id.rpartition("-")[0] == tombstone.message_id.rpartition("-")[0]
    assert deleted.message_id != tombstone.message_id


def test_a_queue_that_is_deleted(rabbit_there: RabbitServer, store_name: str) -> None:
    """It is made again, when the batch is tried again."""
    queue = RabbitMQ(rabbit_there.address)
    queue.open()
    queue.send([Message(store_name, b"k", b"1")], Mark(1, 1))
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", rabbit_there.port)) as connection:
        connection.channel().queue_delete(store_name)
    with pytest.raises(QueueUnreachable, match=f"queue '{store_name}' was deleted"):
        queue.send([Message(store_name, b"k", b"2")], Mark(1, 2))
    queue.open()
    queue.send([Message(store_name, b"k", b"2")], Mark(1, 2))
    queue.close()
    assert [body for _, body in taken(rabbit_there.port, store_name)[0]] == [b"2"]


def test_an_exchange(rabbit_there: RabbitServer, store_name: str) -> None:
    """The topic is the routing key; what no queue is bound for ends sending, and is not lost; so does an exchange that is not there."""
    queue = RabbitMQ(rabbit_there.address, settings={"exchange": "amq.topic"})
    queue.open()
    with pytest.raises(QueueRefused, match=r"no queue for .* at exchange 'amq\.topic': bind one"):
        queue.send([Message(f"{store_name}.shop.orders", b"k", b"1")], Mark(1, 1))
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", rabbit_there.port)) as connection:
        channel = connection.channel()
        channel.queue_declare(store_name, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(store_name, "amq.topic", f"{store_name}.shop.*")
    queue.open()
    queue.send([Message(f"{store_name}.shop.orders", b"k", b"1")], Mark(1, 1))
    queue.close()
    assert [body for _, body in taken(rabbit_there.port, store_name)[0]] == [b"1"]
    for settings, create, says in (({"exchange": "none"}, True, "no exchange"), ({}, False, "no queue for 'none'")):
        queue = RabbitMQ(rabbit_there.address, settings=settings, create=create)
        queue.open()
        with pytest.raises(QueueRefused, match=says):
            queue.send([Message("none", b"k", b"1")], Mark(1, 1))
        queue.close()


def test_a_queue_that_is_full(rabbit_there: RabbitServer, store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes nothing until a reader makes room, and a server that answers nothing is given up: both are tried again."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", rabbit_there.port)) as connection:
        limits = {"x-queue-type": "quorum", "x-max-length": 10, "x-overflow": "reject-publish"}
        connection.channel().queue_declare(store_name, durable=True, arguments=limits)
    queue = RabbitMQ(rabbit_there.address, create=False)
    queue.open()
    some = [Message(store_name, b"k", b"%d" % number) for number in range(200)]
    sent = (queue.send(some, Mark(1, 1)) for _ in range(50))
    with pytest.raises(QueueUnreachable, match="a queue is full"):
        list(sent)
    monkeypatch.setattr(rabbitmq, "ANSWER_SECONDS", 0.5)
    queue.open()
    rabbit_there.pause()
    try:
        with pytest.raises(QueueUnreachable, match="did not confirm"):
            queue.send([Message(f"{store_name}", b"k", b"1")], Mark(1, 1))
        with pytest.raises(QueueUnreachable):
            queue.open()
    finally:
        rabbit_there.resume()
    queue.close()


def test_a_server_that_is_full(store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server blocks those who publish: the line says that, and it is tried again."""
    monkeypatch.setattr(rabbitmq, "ANSWER_SECONDS", 2.0)
    with rabbit_server("vm_memory_high_watermark.absolute = 1MB") as server:
        queue = RabbitMQ(server.address)

        def refused() -> bool:
            try:
                queue.open()
                queue.send([Message(store_name, b"k", b"1")], Mark(1, 1))
            except QueueUnreachable as error:
                return "in 2 s: low on memory; free memory or disk space" in str(error)
            return False

        wait_for(refused)
        queue.close()


def test_logins(log_store: EventStore, rabbit_there: RabbitServer) -> None:
    """A wrong password, and a host of queues that is not there, end with a line, without the password."""
    log_store.put(transaction(0, inserts(1, 2)))

    def said(*words: str) -> str:
        address = rabbit_there.address
        return send(log_store.name, "rabbitmq", address, *AT_LEAST, *words, code=2, SHMSTORE_QUEUE_PASSWORD="wrong-one")

    wrong = said("--user", "guest")
    assert "ACCESS_REFUSED" in wrong
    assert "wrong-one" not in wrong
    assert "vhost none not found" in said("--set", "vhost=none")


def test_tls(rabbit_there: RabbitServer, store_name: str, tmp_path: Path) -> None:
    """Messages go over TLS; nothing is sent to a server whose certificate another signed."""

    def to(ca: str) -> Queue:
        address = f"127.0.0.1:{rabbit_there.tls_port}"
        return kinds.make("rabbitmq", kinds.QueueConnection(address, "s/x", exactly_once=False, tls_ca=ca))

    queue = to(rabbit_there.certificate)
    queue.open()
    queue.send([Message(store_name, b"k", b"1")], Mark(1, 1))
    queue.close()
    assert [body for _, body in taken(rabbit_there.port, store_name)[0]] == [b"1"]
    other, _ = self_signed(tmp_path)
    queue = to(other)
    with pytest.raises((QueueUnreachable, QueueRefused), match="certificate"):
        queue.open()
    queue.close()


def test_nothing_listens() -> None:
    """`open` tries each address, and says so; `run` would try again."""
    queue = RabbitMQ("127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(QueueUnreachable, match=r"does not answer"):
        queue.open()
    queue.close()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"address": "nowhere"}, "no address"),
        ({"settings": {"db": "5"}}, "db is no setting of RabbitMQ: there are vhost, exchange"),
        ({"compression": "lz4"}, "--compression"),
        ({"mechanism": "PLAIN"}, "--sasl"),
        ({"progress": "here"}, "--progress-topic"),
        ({"exactly_once": True}, "--delivery at-least-once"),
    ],
)
def test_what_cannot_be(given: dict[str, object], says: str) -> None:
    """Each is refused before anything is sent, by its name."""
    connection = kinds.QueueConnection(**{"address": "127.0.0.1:1", "reader": "s/x", "exactly_once": False, **given})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=says):
        kinds.make("rabbitmq", connection)
