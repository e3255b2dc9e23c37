"""What a queue is: where messages go, with the mark of what is in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from shmstore import ShmStoreError


class QueueUnreachable(ShmStoreError, ConnectionError):
    """The queue does not answer, or lost what was being written: nothing of the batch is in it for its readers. Trying again may help."""


class QueueRefused(ShmStoreError, PermissionError):
    """The queue does not let this user do it, or another instance took its place: trying again does not help."""


class MessageTooLarge(ShmStoreError, ValueError):
    """A message is larger than the queue takes. `message` is that one."""

    def __init__(self, text: str, message: Message) -> None:
        super().__init__(text)
        self.message = message


class Message(NamedTuple):
    """A message. Without a `value` it is a tombstone: what is compacted by key forgets the key.

    `partition` is where it goes; None lets the queue choose by `key`, equal keys into one. `sequence` and `row` are those of the event that
    it was made of: 0 for the first row, also where it has none.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    sequence: int = -1
    row: int = 0
    headers: Sequence[tuple[str, bytes]] = ()  # a list, shared by the messages of an event, or empty


@dataclass(frozen=True, slots=True)
class Mark:
    """What is in a queue: all up to event `sequence` of the store whose epoch is `epoch`, which ends at `position` in the binlog.

    `position` is FILE:OFFSET, `gtids` the executed GTID set of the last transaction that ended, or where each of several sources was then, as
    text that ``gtid:`` takes (`shmstore.start_position`), and `transaction` that of which a part is in the queue. Each is empty where there is none.
    """

    epoch: int
    sequence: int
    position: str = ""
    gtids: str = ""
    transaction: str = ""

    def to_json(self) -> bytes:
        """Return it as a JSON object in UTF-8."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def of_json(cls, text: bytes) -> Mark:
        """Read what `to_json` wrote. Raises ValueError for anything else: others may be able to write into a queue."""
        try:
            mark = cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{text[:80]!r} is not a mark of shmstore") from error
        texts = (mark.position, mark.gtids, mark.transaction)
        if type(mark.epoch) is not int or type(mark.sequence) is not int or mark.sequence < -1:
            raise ValueError(f"{text[:80]!r} is not a mark of shmstore")
        if not all(isinstance(each, str) for each in texts):
            raise ValueError(f"{text[:80]!r} is not a mark of shmstore")
        return mark


class Queue(Protocol):
    """Where messages go. One thread uses it; after an error it is opened again, or closed.

    The contract, which ``tests/consumer/queues/test_contract.py`` checks for each: messages of one partition stay in the order in which they were sent.
    All messages of a `send` and its mark come in, or none of them for readers that wait for transactions. A queue without transactions has no
    mark: there a batch may come twice, never half without coming again.
    """

    exactly_once: bool  # whether it keeps marks

    def open(self) -> Mark | None:
        """Connect, end what a former instance left open, and return the mark of what is in the queue; None where nothing is.

        Raises `QueueUnreachable`, `QueueRefused`, or ValueError where the mark cannot be read.
        """

    def partitions(self, topic: str) -> int:
        """How many partitions `topic` has; it is made where it is not there. Raises `QueueUnreachable`, `QueueRefused`."""

    def send(self, messages: Sequence[Message], mark: Mark) -> None:
        """Bring in all messages with the mark of what they are; it returns when the queue keeps them.

        Raises `QueueUnreachable`, `QueueRefused`, `MessageTooLarge`; then the queue is to be opened before the next `send`.
        """

    def close(self) -> None:
        """Let go of all; what was sent stays."""


@runtime_checkable
class EarlyQueue(Queue, Protocol):
    """A queue that works on messages while the rest of their batch is made."""

    def take(self, messages: Sequence[Message]) -> None:
        """Begin to bring in messages: they come in with those of the next `send` and its mark, or not at all; without transactions at once.

        Raises what `send` raises.
        """


@runtime_checkable
class TellingQueue(Queue, Protocol):
    """A queue whose client says of itself what it meets while a call waits."""

    def says(self) -> str:
        """Return what it said last, on one line; empty where that is nothing. Another thread asks than the one that waits."""
