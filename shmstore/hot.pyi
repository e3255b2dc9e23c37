"""Types of the compiled extension; `shmstore/native/hot.pyx` is its source."""

from collections.abc import Iterator
from typing import Any

class Mapped:
    def __init__(
        self,
        words: Any,
        ends: Any,
        rows: Any,
        slots: Any,
        arena: Any,
        places: int,
        capacity: int,
        arena_size: int,
        asymmetric: bool,
    ) -> None: ...

class Puts:
    put: int
    end: int
    rows: int
    def __init__(self, views: Any) -> None: ...
    def put_now(self, events: object) -> int: ...
    def learn(self, place: int, semaphore: int) -> None: ...

class Run:
    first: int
    last: int
    generation: int
    def __init__(self, segment: Any, first: int, last: int, generation: int) -> None: ...
    def __len__(self) -> int: ...
    @property
    def id(self) -> int: ...
    @property
    def raw(self) -> memoryview: ...
    def payloads(self) -> Iterator[memoryview]: ...

class Takes:
    get: int
    ack: int
    generation: int
    gets_now: bool
    acks_now: bool
    def __init__(self, views: Any, place: int, *, ddl_isolation: bool) -> None: ...
    def tune(self, segment: Any, batch: type, gets_now: bool, acks_now: bool) -> None: ...
    def take_now(self, limit_events: int | None) -> Any: ...
    def look_now(self, n: int, seconds: float) -> bool: ...
    def ack_now(self, what: object) -> int: ...

def sleep(semaphore: int, seconds: float) -> None: ...
