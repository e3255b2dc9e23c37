"""Types of the compiled extension; `shmstore/native/columns.pyx` is its source."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

Steps = list[tuple[str, int, int]]

class Index:
    failed: int
    records: pa.Buffer
    files: list[str]
    schemas: list[bytes]
    def __init__(self, raw: Any, ends: Any) -> None: ...
    def runs(self, most: int) -> list[pa.Buffer]: ...
    def images(
        self, events: Any, steps_before: Steps, steps_after: Steps, zeros: bool, schema: pa.Schema
    ) -> pa.RecordBatch | None: ...
    def rows(
        self,
        events: Any,
        steps_before: Steps,
        steps_after: Steps,
        zeros: bool,
        numbers: Any,
        sequences: Any,
        ops: bytes,
        database: bytes,
        table: bytes,
        schema: pa.Schema,
    ) -> pa.RecordBatch | None: ...

class EventWriter:
    def __init__(
        self, schema: bytes | None, kinds: Sequence[tuple[int, int, int]], row: type, absent: Any, decimal: type, utc: Any
    ) -> None: ...
    def event(self, header: tuple[Any, ...], rows: Any) -> bytes | None: ...

class EventReader:
    def __init__(
        self,
        event: type,
        position: type,
        row: type,
        header: type,
        absent: Any,
        decimal: type,
        entries: tuple[Any, ...],
        types: tuple[Any, ...],
        known: Callable[[bytes], tuple[Any, bytes]],
        unpack: Callable[[bytes], Any],
        reference: Callable[[Any, int], Any],
    ) -> None: ...
    def event(self, payload: Any, sequence: int) -> Any: ...
    def events(self, payloads: Iterable[Any], sequences: Iterable[int]) -> Iterator[Any]: ...

def pack(value: Any, packed: type) -> bytes | None: ...
def head(payload: Any, header: type, unpack: Any) -> tuple[Any, bytes | None, int] | None: ...
def split(payload: Any, header: type, unpack: Any, packed: type) -> tuple[Any, bytes | None, Any] | None: ...
