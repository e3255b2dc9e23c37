"""What every queue promises (consumer/queues/queue.py), of each that there is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from shmstore.consumer.queues.kafka import Kafka
from shmstore.consumer.queues.queue import Mark, Message, MessageTooLarge, Queue, QueueRefused
from shmstore.consumer.queues.redis_streams import RedisStreams
from tests.consumer.queues import memory
from tests.consumer.queues.reading import committed, entries
from tests.servers.kafka import Broker
from tests.servers.redis import RedisServer

_numbers = itertools.count()


@dataclass
class Tried:
    """A kind of queue: opens one for a reader, and reads a topic by partition as a reader of what is committed."""

    connect: Callable[[str], Queue]
    read: Callable[[str], dict[int, list[tuple[bytes | None, bytes | None]]]]


@pytest.fixture(params=["memory", "kafka", "redis"])
def tried(request: pytest.FixtureRequest) -> Iterator[Tried]:
    made: list[Queue] = []

    def kept(queue: Queue) -> Queue:
        made.append(queue)
        return queue

    if request.param == "memory":
        brokers: dict[str, memory.Broker] = {}

        def read(topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
            found: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
            for broker in brokers.values():
                for (name, partition), messages in broker.kept.items():
                    if name == topic:
                        found.setdefault(partition, []).extend((each.key, each.value) for each in messages)
            return found

        yield Tried(lambda reader: kept(memory.MemoryQueue(brokers.setdefault(reader, memory.Broker()))), read)
    elif request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_there")

        def added(topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
            return {
                number: [(each.get(b"key"), each.get(b"value")) for each in found]
                for number, found in entries(server, topic).items()
            }

        yield Tried(lambda reader: kept(RedisStreams(server.address, reader, partitions=3)), added)
    else:
        broker: Broker = request.getfixturevalue("kafka_broker")
        yield Tried(lambda reader: kept(Kafka(broker.address, reader)), lambda topic: committed(broker, topic))
    for queue in made:
        queue.close()


@pytest.fixture
def topic() -> str:
    return f"contract{next(_numbers)}"


def test_the_mark_comes_in_with_the_messages(tried: Tried, topic: str) -> None:
    """What is read back after each send, by another connection too, is its mark; of another reader there is none."""
    queue = tried.connect(f"s/{topic}")
    assert queue.open() is None
    for number in range(3):
        mark = Mark(7, number, f"binlog.000001:{number}", "0-1-2")
        queue.send([Message(topic, b"k", b"%d" % number)], mark)
        assert tried.connect(f"s/{topic}").open() == mark
        assert queue is not None
        queue = tried.connect(f"s/{topic}")
        assert queue.open() == mark
    assert tried.connect(f"other/{topic}").open() is None
    assert [value for each in tried.read(topic).values() for _, value in each] == [b"0", b"1", b"2"]


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


def test_a_second_instance_takes_over(tried: Tried, topic: str) -> None:
    """Where another one was opened, the first sends nothing any more, and says why."""
    first, second = tried.connect(f"s/{topic}"), tried.connect(f"s/{topic}")
    first.open()
    first.send([Message(topic, b"k", b"1")], Mark(1, 1))
    assert second.open() == Mark(1, 1)
    with pytest.raises(QueueRefused, match="another instance"):
        first.send([Message(topic, b"k", b"lost")], Mark(1, 2))
    second.send([Message(topic, b"k", b"2")], Mark(1, 3))
    assert [value for each in tried.read(topic).values() for _, value in each] == [b"1", b"2"]


def test_all_or_nothing(tried: Tried, topic: str) -> None:
    """With one that is too large nothing of a send comes in, and the error has that message; the next one goes."""
    queue = tried.connect(f"s/{topic}")
    queue.open()
    large = Message(topic, b"k", b"x" * (2 << 20))
    with pytest.raises(MessageTooLarge) as caught:
        queue.send([Message(topic, b"k", b"1"), large, Message(topic, b"k", b"3")], Mark(1, 1))
    assert caught.value.message is large
    assert queue.open() is None
    queue.send([Message(topic, b"k", b"4")], Mark(1, 2))
    assert [value for each in tried.read(topic).values() for _, value in each] == [b"4"]


def test_nothing_but_a_mark(tried: Tried, topic: str) -> None:
    """A batch without messages moves the mark all the same."""
    queue = tried.connect(f"s/{topic}")
    queue.open()
    queue.send([], Mark(5, 50))
    assert queue.open() == Mark(5, 50)
