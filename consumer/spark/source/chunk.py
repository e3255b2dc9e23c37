"""Chunk: events out of a store on their way to an executor, and the address where other hosts request them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Address(NamedTuple):
    """Where events are served, the token to request them, and with TLS the certificate (PEM) to trust."""

    host: str
    port: int
    token: str
    roots: bytes | None


class Chunk(NamedTuple):
    """Events out of a store: their payloads back to back, where each ends, and their slots."""

    first: int
    raw: memoryview | bytes
    ends: np.ndarray[tuple[int], np.dtype[np.int64]]
    slots: np.ndarray[tuple[int], np.dtype[np.void]]

    def payloads(self) -> Iterator[memoryview]:
        """Yield the payload of each event."""
        raw, start = memoryview(self.raw), 0
        for end in self.ends.tolist():
            yield raw[start:end]
            start = end
