"""The crc32 of every event, for stores that keep one: file-backed stores by default.

It covers the sequence, the slot record and the payload. The sequence, because after a crash of the host a whole, older event
may stand where a younger one should.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from shmstore.errors import StoreCorrupt


def with_checks(blob: bytes | memoryview, slots: NDArray[np.void], first: int) -> NDArray[np.void]:
    """Return a copy of `slots` with the checksum of each event; the payloads lie back to back in `blob`, `first` is the first's sequence."""
    slots = slots.copy()
    slots["check"] = list(_checks(first, _cut(memoryview(blob), slots["size"].tolist()), slots))
    return slots


def verify(first: int, payloads: Iterable[memoryview], slots: NDArray[np.void]) -> None:
    """Raise `StoreCorrupt` where an event is not what was put; `first` is the sequence of the first."""
    for i, (found, wanted) in enumerate(zip(_checks(first, payloads, slots), slots["check"].tolist(), strict=True)):
        if found != wanted:
            raise StoreCorrupt(
                f"event {first + i} is damaged: crc32 {found:08x}, wanted {wanted:08x}: its bytes were changed after the put"
            )


def _cut(blob: memoryview, sizes: list[int]) -> Iterator[memoryview]:
    start = 0
    for size in sizes:
        yield blob[start : start + size]
        start += size


def _checks(first: int, payloads: Iterable[memoryview], slots: NDArray[np.void]) -> Iterator[int]:
    records = slots.copy()
    records["check"] = 0
    raw, width = records.tobytes(), records.dtype.itemsize
    for i, payload in enumerate(payloads):
        where = zlib.crc32((first + i).to_bytes(8, "little", signed=True))
        yield zlib.crc32(payload, zlib.crc32(raw[i * width : (i + 1) * width], where))
