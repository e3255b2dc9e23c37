"""Leaves a transaction in a broker's partitions that its coordinator does not know, as a broker that is killed at the wrong moment does.

No client does that: the requests are made here. The broker's guard against such writes is off meanwhile.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from shmstore.consumer.queues.queue import Message
from tests.servers.kafka import Broker

_PRODUCE, _INIT_PRODUCER_ID = (0, 7), (22, 1)  # number and version of a request


def leave_hanging(broker: Broker, reader: str, messages: Sequence[Message]) -> None:
    """Write messages as the sender of `reader` does in a transaction, one to a partition, which is never ended."""
    with _unguarded(broker):
        name = f"shmstore-{reader}"
        answer = _ask(broker, _INIT_PRODUCER_ID, _text(name) + struct.pack(">i", 60_000))
        error, producer, epoch = struct.unpack_from(">hqh", answer, 4)
        assert error == 0
        for message in messages:
            records = _batch(message, producer, epoch)
            body = _text(name) + struct.pack(">hii", -1, 10_000, 1) + _text(message.topic)
            body += struct.pack(">iii", 1, message.partition or 0, len(records)) + records
            answer = _ask(broker, _PRODUCE, body)
            at = 4 + 2 + len(message.topic) + 4 + 4
            assert struct.unpack_from(">h", answer, at) == (0,), answer


@contextmanager
def _unguarded(broker: Broker) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for wanted in ("false", "true"):
        entry = ConfigEntry("transaction.partition.verification.enable", wanted, incremental_operation=AlterConfigOpType.SET)
        broker_1 = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        for done in admin.incremental_alter_configs([broker_1]).values():
            done.result(30)
        if wanted == "false":
            of_one = ConfigResource(ResourceType.BROKER, "1")
            until = time.monotonic() + 60
            while admin.describe_configs([of_one])[of_one].result(30)[entry.name].value != wanted:
                assert time.monotonic() < until
            yield


def _ask(broker: Broker, request: tuple[int, int], body: bytes) -> bytes:
    """Send a request; return its answer without the header."""
    with socket.create_connection(("127.0.0.1", broker.port), 30) as link:
        whole = struct.pack(">hhi", *request, 1) + _text("test") + body
        link.sendall(struct.pack(">i", len(whole)) + whole)
        with link.makefile("rb") as answers:
            size = struct.unpack(">i", answers.read(4))[0]
            return answers.read(size)[4:]


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _batch(message: Message, producer: int, epoch: int) -> bytes:
    """One message as a batch of a transaction, Kafka's form 2."""
    record = b"\0" + _varint(0) + _varint(0)
    for value in (message.key, message.value):
        record += _varint(-1) if value is None else _varint(len(value)) + value
    record += _varint(len(message.headers))
    for name, value in message.headers:
        record += _varint(len(name)) + name.encode() + _varint(len(value)) + value
    now, transactional = int(time.time() * 1000), 0x10
    rest = struct.pack(">hiqqqhii", transactional, 0, now, now, producer, epoch, 0, 1) + _varint(len(record)) + record
    checked = struct.pack(">ibI", -1, 2, _crc32c(rest)) + rest
    return struct.pack(">qi", 0, len(checked)) + checked


def _varint(number: int) -> bytes:
    left, found = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
