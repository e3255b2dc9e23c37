"""What may be put, and by whom: what comes before anything of a put is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmstore.encoding import codec
from shmstore.errors import BatchTooLarge
from shmstore.event import Event
from shmstore.memory.layout import MAX_SEQUENCE, SLOT, SlotFlag
from shmstore.memory.segment import Segment
from shmstore.ring.writer import NO_BYTES, Writer

Payload = bytes | bytearray | memoryview
Events = Event | Payload | Sequence[Event] | Sequence[Payload]


class Unclaimed:
    """Stands in for the writer until a process puts: claims the producer role then, or says why not."""

    def __init__(self, claim: Callable[[], Writer]) -> None:
        self._claim = claim

    def try_put(self, events: object, /) -> None:
        """As `Writer`, of which the caller makes one."""

    def try_put_encoded(self, blob: object, slots: NDArray[np.void], /) -> None:
        """As `try_put`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claim(), name)


class Admitted(NamedTuple):
    """Events ready to be written: `sizes` are the bytes charged for each, `total` their sum."""

    slots: NDArray[np.void]
    sizes: NDArray[np.int64]
    total: int
    oversized: bool


def listed(events: object) -> tuple[list[Event], list[bytes]]:
    """Return what is put: events that are still to be encoded, or else payloads. Raises TypeError."""
    if isinstance(events, list) and set(map(type, events)) == {bytes}:  # the usual ones, at once
        codec.check_size(max(map(len, events)))
        return [], events
    if isinstance(events, Event | Payload):
        events = [events]
    if not isinstance(events, list | tuple):
        raise TypeError(f"{events!r} is no event: give an Event, bytes, or a list of either")
    if all(isinstance(event, Event) for event in events):
        return list(events), []
    if all(isinstance(event, Payload) for event in events):
        for event in events:
            codec.check_size(event.nbytes if isinstance(event, memoryview) else len(event))
        return [], [bytes(event) for event in events]
    kinds = sorted({type(event).__name__ for event in events})
    raise TypeError(f"a list of {', '.join(kinds)} cannot be put: give one of Event, or one of bytes")


def admit(segment: Segment, blob: bytes | memoryview, slots: NDArray[np.void], put: int) -> Admitted:
    """Return the events of `slots` as they are written after sequence `put`.

    Raises `BatchTooLarge` where they could never fit, and `ValueError` where slots and payloads do not belong together.
    """
    views, n = segment.views, len(slots)
    if slots.dtype != SLOT:
        raise ValueError(f"slots have dtype {slots.dtype}, wanted layout.SLOT")
    if n == 1:
        codec.check_size(len(blob))
    slots = np.ascontiguousarray(slots)
    sizes = slots["size"].astype(np.int64)
    total = int(sizes.sum())
    if total != len(blob):
        raise ValueError(f"the slots' sizes sum to {total} bytes, the blob has {len(blob)}")
    if np.count_nonzero(sizes) < n:
        raise ValueError(NO_BYTES)
    oversized = total > views.limit and n == 1
    if oversized:  # charged all there is: it will be alone in flight, in a segment of its own
        sizes[0] = total = views.limit
        slots = slots.copy()
        slots["flags"] |= np.uint16(SlotFlag.OVERSIZED)
    if n > views.capacity or total > views.limit:
        raise BatchTooLarge(
            f"{n} events of {total} bytes can never fit: store {segment.name!r} holds {views.capacity} events and {views.limit} bytes; "
            "put them in parts"
        )
    if put + n > MAX_SEQUENCE:
        raise BatchTooLarge(f"store {segment.name!r} has used up its sequences: create another")
    return Admitted(slots, sizes, total, oversized)
