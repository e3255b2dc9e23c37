"""Types of the compiled extension; `consumer/queues/native/rows.pyx` is its source."""

from collections.abc import Callable
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
    def messages(self, payload: bytes | memoryview, sequence: int, thread: int | None, now: int) -> Any: ...
