"""A queue in memory, as strict as a real one, that fails on request: what the sender is tried with a thousand times."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from shmstore.consumer.queues.queue import Mark, Message, MessageTooLarge, QueueRefused, QueueUnreachable


@dataclass
class Broker:
    """What survives a sender: committed messages by topic and partition, the mark, who is fenced."""

    partitions: int = 3
    most_bytes: int = 1 << 20
    kept: dict[tuple[str, int], list[Message]] = field(default_factory=dict)
    mark: Mark | None = None
    epoch: int = 0
    transactional: bool = True
    early: int = 0  # messages that were taken before their batch was sent
    #: What goes wrong in the next calls: "" nothing, "open", "before", "half", "answer" (it came in, and the answer is lost), "gone" (all that
    #: was in, and the mark, is lost).
    faults: list[str] = field(default_factory=list)

    def fault(self) -> str:
        return self.faults.pop(0) if self.faults else ""

    def of(self, topic: str) -> list[Message]:
        """All of a topic, by partition."""
        return [one for (name, _), messages in sorted(self.kept.items()) if name == topic for one in messages]


class MemoryQueue:
    """One connection to a `Broker`."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._mine = broker, -1
        self._taken: list[Message] = []

    @property
    def exactly_once(self) -> bool:
        return self._broker.transactional

    def open(self) -> Mark | None:
        broker = self._broker
        if broker.fault() == "open":
            raise QueueUnreachable("memory does not answer")
        broker.epoch += 1
        self._mine = broker.epoch
        self._taken = []
        return broker.mark if broker.transactional else None

    def partitions(self, topic: str) -> int:
        return self._broker.partitions

    def take(self, messages: Sequence[Message]) -> None:
        if self._broker.fault():
            self._mine = -1
            raise QueueUnreachable("memory is lost")
        self._checked(messages)
        if self._broker.transactional:
            self._taken += messages
        else:
            self._keep(messages)
        self._broker.early += len(messages)
        self._mine = self._broker.epoch

    def _keep(self, messages: Sequence[Message]) -> None:
        for message in messages:
            at = message.partition
            if at is None:
                at = zlib.crc32(message.key or b"") % self._broker.partitions
            self._broker.kept.setdefault((message.topic, at), []).append(message)

    def _checked(self, messages: Sequence[Message]) -> None:
        if self._mine != self._broker.epoch:
            raise QueueRefused("another instance was opened")
        self._mine = -1  # until it went well
        for message in messages:
            if len(message.value or b"") > self._broker.most_bytes:
                raise MessageTooLarge("too large", message)

    def send(self, messages: Sequence[Message], mark: Mark) -> None:
        broker, fault = self._broker, self._broker.fault()
        self._checked(messages)
        messages, self._taken = [*self._taken, *messages], []
        if fault == "gone":
            broker.kept.clear()
            broker.mark = None
        if fault in ("before", "gone"):
            raise QueueUnreachable("memory is lost")
        whole = list(messages)
        if fault == "half" and not broker.transactional:
            whole = whole[: len(whole) // 2]
        if fault != "half" or not broker.transactional:
            self._keep(whole)
            broker.mark = mark
        if fault in ("half", "answer"):
            raise QueueUnreachable("memory is lost")
        self._mine = broker.epoch

    def close(self) -> None:
        self._mine = -1
