"""What every queue promises (consumer/queues/queue.py), of each that there is."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shmstore import Consumer, EventStore
from shmstore.consumer.queues import kinds, sender
from shmstore.consumer.queues.kafka import Kafka
from shmstore.consumer.queues.messages import MessageOptions
from shmstore.consumer.queues.nats_stream import NatsStream
from shmstore.consumer.queues.pulsar import Pulsar
from shmstore.consumer.queues.queue import EarlyQueue, Mark, Message, MessageTooLarge, Queue, QueueRefused
from shmstore.consumer.queues.rabbitmq import RabbitMQ
from shmstore.consumer.queues.redis_streams import RedisStreams
from shmstore.consumer.queues.rocketmq import RocketMQ
from tests.certificates import self_signed
from tests.consumer.queues import memory
from tests.consumer.queues.reading import added, committed, consumed, delivered, published, pulled
from tests.consumer.queues.senders import Read, wait_for
from tests.consumer.queues.test_sender import inserts, transaction
from tests.servers.kafka import Broker
from tests.servers.nats import NatsServer
from tests.servers.pulsar import PulsarServer
from tests.servers.rabbitmq import RabbitServer
from tests.servers.redis import RedisServer
from tests.servers.rocketmq import RocketServer

_numbers = itertools.count()


@dataclass
class Tried:
    """A kind of queue: opens one for a reader, and reads a topic by partition as a reader of what is committed."""

    connect: Callable[[str], Queue]
    read: Callable[[str], Read]
    server: Any = None  # can be held


def _memory(request: pytest.FixtureRequest) -> Tried:
    brokers: dict[str, memory.Broker] = {}

    def read(topic: str) -> Read:
        found: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
        for broker in brokers.values():
            for (name, partition), messages in broker.kept.items():
                if name == topic:
                    found.setdefault(partition, []).extend((each.key, each.value) for each in messages)
        return found

    return Tried(lambda reader: memory.MemoryQueue(brokers.setdefault(reader, memory.Broker())), read)


def _kafka(request: pytest.FixtureRequest) -> Tried:
    broker: Broker = request.getfixturevalue("kafka_broker")
    return Tried(lambda reader: Kafka(broker.address, reader), lambda topic: committed(broker, topic), broker)


def _nats(request: pytest.FixtureRequest) -> Tried:
    server: NatsServer = request.getfixturevalue("nats_there")
    return Tried(lambda reader: NatsStream(server.address, reader, partitions=3), lambda topic: published(server, topic), server)


def _pulsar(request: pytest.FixtureRequest) -> Tried:
    server: PulsarServer = request.getfixturevalue("pulsar_there")
    limit = {"max_message_size": "1000000"}
    return Tried(lambda reader: Pulsar(server.address, reader, settings=limit), lambda topic: consumed(server, topic), server)


def _rabbitmq(request: pytest.FixtureRequest) -> Tried:
    server: RabbitServer = request.getfixturevalue("rabbit_there")

    def read(topic: str) -> Read:
        return delivered(server, *(f"{topic}.{number}" for number in range(3)))

    return Tried(lambda reader: RabbitMQ(server.address, partitions=3), read, server)


def _redis(request: pytest.FixtureRequest) -> Tried:
    server: RedisServer = request.getfixturevalue("redis_there")
    return Tried(lambda reader: RedisStreams(server.address, reader, partitions=3), lambda topic: added(server, topic), server)


def _rocketmq(request: pytest.FixtureRequest) -> Tried:
    server: RocketServer = request.getfixturevalue("rocket_there")
    assert server.login is not None
    user, password = server.login
    return Tried(
        lambda reader: RocketMQ(server.address, user=user, password=password, partitions=3),
        lambda topic: pulled(server, topic),
        server,
    )


WITH_MARKS: dict[str, Callable[[pytest.FixtureRequest], Tried]] = {
    "memory": _memory,
    "kafka": _kafka,
    "nats": _nats,
    "pulsar": _pulsar,
    "redis": _redis,
}
ALL = WITH_MARKS | {"rabbitmq": _rabbitmq, "rocketmq": _rocketmq}


@pytest.fixture(params=ALL)
def tried(request: pytest.FixtureRequest) -> Iterator[Tried]:
    """Each queue."""
    yield from _closed(ALL[request.param](request))


@pytest.fixture(params=WITH_MARKS)
def marked(request: pytest.FixtureRequest) -> Iterator[Tried]:
    """Each that keeps marks."""
    yield from _closed(WITH_MARKS[request.param](request))


@pytest.fixture(params=("memory", "kafka"))
def early(request: pytest.FixtureRequest) -> Iterator[Tried]:
    """Each that takes messages before their batch is sent."""
    yield from _closed(WITH_MARKS[request.param](request))


def _closed(kind: Tried) -> Iterator[Tried]:
    made: list[Queue] = []

    def connect(reader: str) -> Queue:
        made.append(kind.connect(reader))
        return made[-1]

    yield Tried(connect, kind.read, kind.server)
    for queue in made:
        queue.close()


@pytest.fixture
def topic() -> str:
    return f"contract{next(_numbers)}"


def test_the_mark_comes_in_with_the_messages(marked: Tried, topic: str) -> None:
    """What is read back after each send, by another connection too, is its mark; of another reader there is none."""
    queue = marked.connect(f"s/{topic}")
    assert queue.open() is None
    for number in range(3):
        mark = Mark(7, number, f"binlog.000001:{number}", "0-1-2")
        queue.send([Message(topic, b"k", b"%d" % number)], mark)
        assert marked.connect(f"s/{topic}").open() == mark
        assert queue is not None
        queue = marked.connect(f"s/{topic}")
        assert queue.open() == mark
    assert marked.connect(f"other/{topic}").open() is None
    assert [value for each in marked.read(topic).values() for _, value in each] == [b"0", b"1", b"2"]


def test_order_of_each_partition(tried: Tried, topic: str) -> None:
    """Messages stay in order in each partition; equal keys are in one; a partition that is named is taken; tombstones come."""
    queue = tried.connect(f"s/{topic}")
    queue.open()
    count = queue.partitions(topic)
    assert count == 3
    sent = [Message(topic, b"k%d" % (number % 7), b"%d" % number if number % 5 else None) for number in range(60)]
    queue.send(sent[:30], Mark(1, 1))
    queue.send([*sent[30:], *[Message(topic, None, b"named", partition) for partition in range(count)]], Mark(1, 2))
    found = tried.read(topic)
    assert set(found) == set(range(3))
    places: dict[bytes | None, int] = {}
    for partition, messages in found.items():
        assert messages[-1] == (None, b"named")
        for key, _ in messages[:-1]:
            assert places.setdefault(key, partition) == partition
    for key, partition in places.items():
        assert [each[1] for each in found[partition] if each[0] == key] == [each.value for each in sent if each.key == key]


def test_a_second_instance_takes_over(marked: Tried, topic: str) -> None:
    """Where another one was opened, the first sends nothing any more, and says why."""
    first, second = marked.connect(f"s/{topic}"), marked.connect(f"s/{topic}")
    first.open()
    first.send([Message(topic, b"k", b"1")], Mark(1, 1))
    assert second.open() == Mark(1, 1)
    with pytest.raises(QueueRefused, match="another instance"):
        first.send([Message(topic, b"k", b"lost")], Mark(1, 2))
    second.send([Message(topic, b"k", b"2")], Mark(1, 3))
    assert [value for each in marked.read(topic).values() for _, value in each] == [b"1", b"2"]


def test_all_or_nothing(marked: Tried, topic: str) -> None:
    """With one that is too large nothing of a send comes in, and the error has that message; the next one goes."""
    queue = marked.connect(f"s/{topic}")
    queue.open()
    large = Message(topic, b"k", b"x" * (2 << 20))
    with pytest.raises(MessageTooLarge) as caught:
        queue.send([Message(topic, b"k", b"1"), large, Message(topic, b"k", b"3")], Mark(1, 1))
    assert caught.value.message is large
    assert queue.open() is None
    queue.send([Message(topic, b"k", b"4")], Mark(1, 2))
    assert [value for each in marked.read(topic).values() for _, value in each] == [b"4"]


def test_what_is_taken_early(early: Tried, topic: str) -> None:
    """It comes in with the send behind it, in order, or not at all; one that is too large ends it as in a send."""
    queue = early.connect(f"s/{topic}")
    assert isinstance(queue, EarlyQueue)
    queue.open()
    queue.send([Message(topic, b"k", b"0")], Mark(1, 1))
    queue.take([Message(topic, b"k", b"lost")])
    assert queue.open() == Mark(1, 1)
    queue.take([Message(topic, b"k", b"1")])
    queue.take([Message(f"{topic}-more", b"k", b"2")])
    queue.send([Message(topic, b"k", b"3")], Mark(1, 2))
    queue.take([Message(topic, b"k", b"4")])
    queue.send([], Mark(1, 3))
    queue.take([Message(topic, b"k", b"never")])
    large = Message(topic, b"k", b"x" * (2 << 20))
    with pytest.raises(MessageTooLarge) as caught:
        queue.take([large])
    assert caught.value.message is large
    assert queue.open() == Mark(1, 3)
    queue.send([Message(topic, b"k", b"5")], Mark(1, 4))
    assert [value for each in early.read(topic).values() for _, value in each] == [b"0", b"1", b"3", b"4", b"5"]
    assert [value for each in early.read(f"{topic}-more").values() for _, value in each] == [b"2"]


def test_nothing_but_a_mark(marked: Tried, topic: str) -> None:
    """A batch without messages moves the mark all the same."""
    queue = marked.connect(f"s/{topic}")
    queue.open()
    queue.send([], Mark(5, 50))
    assert queue.open() == Mark(5, 50)


def test_what_is_too_large(tried: Tried, topic: str) -> None:
    """The error has the message, wherever that was in the batch, and the queue takes the others after it was opened again."""
    queue = tried.connect(f"s/{topic}")
    queue.open()
    large = Message(topic, b"k", b"x" * (2 << 20), sequence=3)
    for number in range(2):
        with pytest.raises(MessageTooLarge, match=r"event 3|too large") as caught:
            queue.send([*[Message(topic, b"k", b"%d" % number)] * number, large], Mark(1, number))
        assert caught.value.message is large
        queue.open()
    queue.send([Message(topic, b"k", b"last")], Mark(1, 5))
    assert [value for each in tried.read(topic).values() for _, value in each][-1] == b"last"


def test_it_is_opened_again(tried: Tried, topic: str) -> None:
    """As often as its sender likes, after a `close` too, and what was sent stays."""
    queue = tried.connect(f"s/{topic}")
    for number in range(4):
        queue.open()
        queue.send([Message(topic, b"k", b"%d" % number)], Mark(1, number))
        if number % 2:
            queue.close()
    assert [value for each in tried.read(topic).values() for _, value in each] == [b"0", b"1", b"2", b"3"]


def test_a_server_that_is_held(
    tried: Tried, log_store: EventStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While it answers nothing its sender tells that, and how many messages wait; then they come in."""
    if tried.server is None:  # in memory there is none: test_sender.py
        return
    monkeypatch.setattr(sender, "FIRST_REPORT", 0.05)
    topic = f"{log_store.name}.shop.orders".replace(".", "_" if isinstance(tried.connect("s/x"), RocketMQ) else ".")
    with Consumer(log_store.name, "queue") as reader:
        sending = sender.Sender(reader, tried.connect(f"{log_store.name}/queue"), MessageOptions(log_store.name))
        thread = threading.Thread(target=sending.run)
        thread.start()
        try:
            log_store.put(transaction(0, inserts(1)))
            wait_for(lambda: sending.counters.sequence == log_store.newest)
            caplog.clear()
            tried.server.pause()
            try:
                log_store.put(transaction(1, inserts(2, 3)))
                wait_for(lambda: ", and 2 messages wait: " in caplog.text)
                assert sending.counters.trouble
            finally:
                tried.server.resume()
            wait_for(lambda: sending.counters.sequence == log_store.newest)
            wait_for(lambda: not sending.counters.trouble)
        finally:
            sending.stop()
            thread.join(120)
    assert not thread.is_alive()
    found = [json.loads(value or b"")["pk"]["id"] for each in tried.read(topic).values() for _, value in each]
    assert sorted(set(found)) == [1, 2, 3]


NAMES = (
    "ü 鍵",
    "n" * 300,
    "n" * 5000,
    "a..b",
    "a*",
    "*",
    "a.>",
    "a b",
    "../x",
    "a\nb",
    "persistent://x",
    "$x",
    "a/b/c",
    "-",
    ".",
    "\0",
)


def test_names_of_topics(tried: Tried) -> None:
    """Each name is taken, or refused by a line that says what is: it is not tried again and again."""
    queue, said = tried.connect("s/names"), []
    for number, name in enumerate(NAMES):
        queue.open()
        try:
            queue.send([Message(name, b"k", b"1")], Mark(1, number))
        except QueueRefused as error:
            said.append(str(error))
    assert [line for line in said if "cannot be one of" not in line or not line.endswith("give another --topic")] == []
    assert [line for line in said if not line.isprintable() or len(line) > 400] == []


@pytest.mark.parametrize("kind", ["nats", "pulsar", "rabbitmq", "redis", "rocketmq"])
def test_a_key_with_a_passphrase(kind: str, tmp_path: Path) -> None:
    """It is refused before anything is sent: no passphrase is asked for on the terminal."""
    certificate, key = self_signed(tmp_path, passphrase="secret")
    given = kinds.QueueConnection(
        "127.0.0.1:1", "s/x", exactly_once=kind in ("nats", "redis"), tls_cert=str(certificate), tls_key=str(key)
    )
    with pytest.raises(ValueError, match=r"key .* is encrypted"):
        kinds.make(kind, given)
