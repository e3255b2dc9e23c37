"""Types of the compiled extension; `consumer/queues/native/rows.pyx` is its source."""

from collections.abc import Callable, Iterator
from typing import Any

from shmstore.consumer.queues.queue import Message

class RowMessages:
    def __init__(
        self,
        plan_of: Callable[[bytes], Any],
        message: type[Message],
        shape: str,
        name: bytes,
        *,
        gtids: bool,
        headers: bool,
        tombstones: bool,
        real: Callable[[float], bytes],
    ) -> None: ...
    def messages(
        self,
        found: list[Message],
        payloads: Iterator[bytes | memoryview],
        sequence: int,
        thread: int | None,
        now: int,
        messages: int,
        size: int,
    ) -> tuple[int, bytes | memoryview | None, bool | None, int, int | None]: ...
