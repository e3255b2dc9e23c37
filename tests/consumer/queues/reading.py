"""Reads topics as their users do: only what is committed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import nats
import pika
import pulsar
import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from nats.js.errors import ServiceUnavailableError

from shmstore.consumer.queues.kafka_readers import hiding
from tests.servers.kafka import Broker
from tests.servers.nats import NatsServer
from tests.servers.pulsar import PulsarServer
from tests.servers.rabbitmq import RabbitServer
from tests.servers.redis import RedisServer
from tests.servers.rocketmq import RocketServer

LAST = b"the last message"
MARKERS_SECONDS = 10
LEADER_SECONDS = 60


def messages(broker: Broker, topic: str, **settings: Any) -> dict[int, list[Any]]:
    """All committed messages of a topic, by partition."""
    reader = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "reading",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,  # the last fetch, which brings nothing, is answered soon
        }
        | settings
    )
    try:
        about = reader.list_topics(topic, timeout=30).topics[topic]
        found: dict[int, list[Any]] = {}
        open_ = set(about.partitions)
        _decided(broker, [TopicPartition(topic, number) for number in open_], settings)
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in open_])
        while open_:
            message = reader.poll(30)
            assert message is not None, f"{topic} is not read to its end: partitions {open_}"
            if message.error() is None:
                found.setdefault(message.partition(), []).append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                open_.discard(message.partition())
        return found
    finally:
        reader.close()


def _decided(broker: Broker, places: list[TopicPartition], settings: Mapping[str, Any]) -> None:
    """Wait until what is being committed is there: a coordinator answers a commit before the partitions have its markers, and until then readers of
    committed messages stop in front of it. A transaction that is left open is not waited for any longer than those markers could take."""
    admin = AdminClient({"bootstrap.servers": broker.address} | settings)
    until = time.monotonic() + MARKERS_SECONDS
    while hiding(admin, places) and time.monotonic() < until:
        time.sleep(0.02)


def committed(broker: Broker, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """(key, value) of `messages`."""
    return {number: [(each.key(), each.value()) for each in found] for number, found in messages(broker, topic).items()}


def entries(server: RedisServer, topic: str, **how: Any) -> dict[int, list[dict[bytes, bytes]]]:
    """All entries of a topic in Redis, by partition: those of its streams."""
    with redis.Redis(port=server.port, **how) as client:
        numbers = {int(name.rpartition(b":")[2]): name for name in client.keys(f"{topic}:*") if client.type(name) == b"stream"}
        streams = {0: topic.encode()} if client.type(topic) == b"stream" else numbers
        return {number: [fields for _, fields in client.xrange(name)] for number, name in streams.items()}


def added(server: RedisServer, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """(key, value) of `entries`."""
    return {
        number: [(each.get(b"key"), each.get(b"value")) for each in found] for number, found in entries(server, topic).items()
    }


def streamed(server: NatsServer, topic: str) -> dict[int, list[Any]]:
    """All messages of a topic in JetStream, by partition."""
    return asyncio.run(_streamed(server, topic))


async def _streamed(server: NatsServer, topic: str) -> dict[int, list[Any]]:
    client = await nats.connect([f"nats://{address}" for address in server.address.split(",")])
    jetstream = client.jetstream()
    found: dict[int, list[Any]] = {}
    for subject in (topic, f"{topic}.*"):
        asked = json.dumps({"subject": subject}).encode()
        names = "$JS.API.STREAM.NAMES"
        while "error" in (answer := json.loads((await _answered(lambda: client.request(names, asked))).data)):  # noqa: B023
            await asyncio.sleep(0.1)  # a cluster whose leader just came back
        for stream in answer["streams"] or ():
            about = await _answered(lambda: jetstream.stream_info(stream, subjects_filter=subject))  # noqa: B023
            for name, count in (about.state.subjects or {}).items():
                reader = await _answered(lambda: jetstream.subscribe(name, stream=stream, ordered_consumer=True))  # noqa: B023
                number = int(name.rpartition(".")[2]) if name != topic else 0
                found[number] = [await reader.next_msg(30) for _ in range(count)]
                await reader.unsubscribe()
    await client.close()
    return found


async def _answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask again until there is an answer: a stream of several servers may have no leader now. Where the leader just changed, servers of version 2.9 may
    answer with something else, of which nats-py makes a TypeError."""
    until = time.monotonic() + LEADER_SECONDS
    while True:
        try:
            return await ask()
        except (nats.errors.TimeoutError, ServiceUnavailableError, TypeError):
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)


def published(server: NatsServer, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """(key, value) of `streamed`."""
    return {
        number: [((each.headers["key"].encode() if "key" in each.headers else None), each.data or None) for each in some]
        for number, some in streamed(server, topic).items()
    }


def kept(server: PulsarServer, topic: str, **how: Any) -> dict[int, list[Any]]:
    """All messages of a topic in Pulsar, by partition."""
    client = server.client(**how)
    found: dict[int, list[Any]] = {}
    for number, name in enumerate(client.get_topic_partitions(topic)):
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        while reader.has_message_available():
            found.setdefault(number, []).append(reader.read_next(30_000))
    client.close()
    return found


def consumed(server: PulsarServer, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """(key, value) of `kept`."""
    return {
        number: [(each.partition_key().encode() or None, None if each.has_null_value() else each.data()) for each in some]
        for number, some in kept(server, topic).items()
    }


def taken(port: int, *queues: str) -> dict[int, list[tuple[Any, bytes]]]:
    """Take all messages, (properties, body), out of RabbitMQ's queues, by the number of each."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        found: dict[int, list[tuple[Any, bytes]]] = {}
        for number, queue in enumerate(queues):
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
            channel.basic_publish("", queue, LAST, mandatory=True)  # a queue says how many it has only after a while
            for method, properties, body in channel.consume(queue):
                channel.basic_ack(method.delivery_tag)
                if body == LAST:
                    break
                found.setdefault(number, []).append((properties, body))
            channel.cancel()
        return found


def delivered(server: RabbitServer, *queues: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """(key, value) of `taken`."""
    return {
        number: [((each.headers["key"].encode() if "key" in each.headers else None), body or None) for each, body in some]
        for number, some in taken(server.port, *queues).items()
    }


def taken_once(port: int, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """(key, value) of the messages in two queues of a topic, each once: by its id, where it came first."""
    found = taken(port, *(f"{topic}.{number}" for number in range(2)))
    named = {
        number: {properties.message_id: (properties.headers["key"].encode(), body) for properties, body in some}
        for number, some in found.items()
    }
    return {number: list(some.values()) for number, some in named.items()}


def pulled(server: RocketServer, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """(key, value) of all messages of a topic in RocketMQ, by queue."""
    return {
        number: [((each.properties["KEYS"].encode() if "KEYS" in each.properties else None), each.body or None) for each in some]
        for number, some in server.read(topic.replace(".", "_")).items()
    }


def pulled_once(server: RocketServer, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """The same, each once: by its id, where it came first."""
    named = {
        number: {each.id: (each.properties["KEYS"].encode(), each.body) for each in some}
        for number, some in server.read(topic.replace(".", "_")).items()
    }
    return {number: list(some.values()) for number, some in named.items()}
