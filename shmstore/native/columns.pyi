"""Types of the compiled extension; `shmstore/native/columns.pyx` is its source."""

from collections.abc import Sequence
from typing import Any

Filled = tuple[int, int, Any, Any, Any]

class Memory:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Index:
    failed: int
    records: Memory
    files: list[str]
    schemas: list[bytes]
    def __init__(self, raw: Any, ends: Any) -> None: ...
    def transactions(self, events: Any, counts: Any) -> tuple[Memory, Memory] | None: ...
    def positions(
        self, events: Any, numbers: Any, ops: bytes
    ) -> tuple[Memory, Memory, Memory, Memory, Memory, Memory, Memory] | None: ...
    def images(
        self, events: Any, steps: Sequence[tuple[str, int, int]]
    ) -> tuple[list[Filled | None] | None, list[Filled | None] | None] | None: ...

def rows(body: Any, makes: bytes, row: type, absent: Any, decimal: Any) -> tuple[Any, ...] | None: ...
