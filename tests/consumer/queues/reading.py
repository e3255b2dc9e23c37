"""Reads topics as their users do: only what is committed."""

from __future__ import annotations

from typing import Any

import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.servers.kafka import Broker
from tests.servers.redis import RedisServer


def messages(broker: Broker, topic: str, **settings: Any) -> dict[int, list[Any]]:
    """All committed messages of a topic, by partition."""
    reader = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "reading",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
        | settings
    )
    try:
        about = reader.list_topics(topic, timeout=30).topics[topic]
        found: dict[int, list[Any]] = {}
        open_ = set(about.partitions)
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


def committed(broker: Broker, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """(key, value) of `messages`."""
    return {number: [(each.key(), each.value()) for each in found] for number, found in messages(broker, topic).items()}


def entries(server: RedisServer, topic: str, **how: Any) -> dict[int, list[dict[bytes, bytes]]]:
    """All entries of a topic in Redis, by partition: those of its streams."""
    with redis.Redis(port=server.port, **how) as client:
        numbers = {int(name.rpartition(b":")[2]): name for name in client.keys(f"{topic}:*") if client.type(name) == b"stream"}
        streams = {0: topic.encode()} if client.type(topic) == b"stream" else numbers
        return {number: [fields for _, fields in client.xrange(name)] for number, name in streams.items()}
