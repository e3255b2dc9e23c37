"""Reads topics as their users do: only what is committed."""

from __future__ import annotations

from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.servers.kafka import Broker


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
