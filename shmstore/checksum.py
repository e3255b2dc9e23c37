"""The crc32 of every event, for stores that keep one: file-backed stores by default."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from shmstore.errors import StoreCorrupt


def with_checks(blob: bytes | memoryview, slots: NDArray[np.void]) -> NDArray[np.void]:
    """Return a copy of `slots` with the checksum of each payload in `blob`, where they lie back to back."""
    slots = slots.copy()
    view, start, checks = memoryview(blob), 0, []
    for size in slots["size"].tolist():
        checks.append(zlib.crc32(view[start : start + size]))
        start += size
    slots["check"] = checks
    return slots


def verify(first: int, payloads: Iterable[memoryview], slots: NDArray[np.void]) -> None:
    """Raise `StoreCorrupt` where a payload is not what was put; `first` is the sequence of the first."""
    for i, (payload, wanted) in enumerate(zip(payloads, slots["check"].tolist(), strict=True)):
        if (found := zlib.crc32(payload)) != wanted:
            raise StoreCorrupt(f"event {first + i} is damaged: crc32 {found:08x}, wanted {wanted:08x}")
