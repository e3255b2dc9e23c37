"""Events as they are, as Arrow: a row an event, its payload and its slot. Nothing is decoded, and payloads are not copied.

`SCHEMA` is what a client in any language sees; `pack` and `unpack` are the two ends of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shmstore import SLOT, Batch

SCHEMA: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("payload", pa.large_binary()),  # MessagePack: see docs/explanation/architecture-events.md
        ("time", pa.int64()),  # event time, ms since 1970 UTC
        ("offset", pa.int64()),  # end of the event in its binlog file
        ("file", pa.uint32()),  # number of the binlog file
        ("rows", pa.uint32()),
        ("check", pa.uint32()),  # crc32 of the payload, where the store has checksums
        ("flags", pa.uint16()),
        ("entry", pa.uint8()),
        ("type", pa.uint8()),
    ]
)
_FIELDS: Final = SCHEMA.names[2:]  # those of the slot
#: Bytes of one message, where it has more than one row: gRPC's clients take 4 MiB unless they are set otherwise, as few can be in some languages.
MESSAGE_BYTES: Final = 3 << 20


class RemoteEvents(NamedTuple):
    """A run of events out of a store: the first one's sequence, their payloads back to back, where each ends, and their slots."""

    first: int
    raw: memoryview | bytes
    ends: NDArray[np.int64]
    slots: NDArray[np.void]

    @classmethod
    def of(cls, batch: Batch) -> RemoteEvents:
        """Return the events of a batch, valid for as long as it is."""
        return cls(batch.first, batch.raw, batch.ends, batch.slots)

    def payloads(self) -> Iterator[memoryview]:
        """Yield the payload of each event."""
        raw, start = memoryview(self.raw), 0
        for end in self.ends.tolist():
            yield raw[start:end]
            start = end


def pack(events: RemoteEvents) -> Iterator[pa.RecordBatch]:
    """Yield `events` in record batches, as `slices`; one without rows where there are none."""
    count = len(events.ends)
    offsets = np.zeros(count + 1, np.int64)
    offsets[1:] = events.ends
    payload = pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(events.raw)], 0)
    numbers = np.arange(events.first, events.first + count, dtype=np.int64)
    slots = [pa.array(np.ascontiguousarray(events.slots[name])) for name in _FIELDS]
    yield from slices(pa.RecordBatch.from_arrays([pa.array(numbers), payload, *slots], schema=SCHEMA))


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a record batch in ones of at most `MESSAGE_BYTES` as they are sent, or of one row."""
    size, rows = pa.ipc.get_record_batch_size(batch), batch.num_rows
    if rows <= 1 or size <= MESSAGE_BYTES:
        yield batch
        return
    step = max(1, rows // (size // MESSAGE_BYTES + 1))
    for at in range(0, rows, step):
        yield from slices(batch.slice(at, step))


def unpack(batch: pa.RecordBatch) -> RemoteEvents:
    """Return the events in a record batch, which has some. Raises `ValueError` where it is not of `SCHEMA`."""
    if not batch.schema.equals(SCHEMA):
        raise ValueError(f"not events: {batch.schema.names}")
    _, offsets, raw = batch.column(1).buffers()
    ends: Any = np.frombuffer(offsets, np.int64)[batch.column(1).offset :][: batch.num_rows + 1]
    start = int(ends[0])
    content = memoryview(raw if raw is not None else b"")[start : int(ends[-1])]
    slots = np.zeros(batch.num_rows, SLOT)
    for name in _FIELDS:
        slots[name] = batch.column(name).to_numpy()
    ends = ends[1:] - start if start else ends[1:]
    slots["size"] = np.diff(ends, prepend=0)
    return RemoteEvents(batch.column(0)[0].as_py(), content, ends, slots)


def joined(parts: list[RemoteEvents]) -> RemoteEvents:
    """Return runs of events that follow each other, at least one, as one run."""
    if len(parts) == 1:
        return parts[0]
    sizes = np.cumsum([0, *(len(part.raw) for part in parts[:-1])])
    return RemoteEvents(
        parts[0].first,
        memoryview(b"".join(part.raw for part in parts)),
        np.concatenate([part.ends + size for part, size in zip(parts, sizes, strict=True)]),
        np.concatenate([part.slots for part in parts]),
    )
