"""Keeps the events of a transaction together until it is whole, or so large that a part of it must go.

An open transaction grows in `open`; when it ends, or overflows, what exists becomes a unit that is put all or nothing.
Units that are ready together leave together, up to the same bounds: small transactions share a put.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shmstore import SLOT, Event
from shmstore.encoding.codec import decode
from shmstore.producer.native_code import COMPILED, compiled
from shmstore.producer.transactions.allocation import keep_freed_blocks

_SLOT = struct.Struct("<qqIIIIHBBI")  # the fields of layout.SLOT, in its order
assert _SLOT.size == SLOT.itemsize


def resized(slot: bytes, size: int) -> bytes:
    """Return the slot record of an event whose payload now has `size` bytes."""
    fields = list(_SLOT.unpack(slot))
    fields[3] = size
    return _SLOT.pack(*fields)


class Unit(NamedTuple):
    """Events that are put together: payloads, their slot records, and what they count."""

    payloads: list[bytes]
    slots: list[bytes]
    size: int  # bytes of the payloads
    rows: int
    ends: int  # transactions and DDLs that end in it


class Flush(NamedTuple):
    """What one put takes. The compiled buffer lends its own memory: keep a copy of what is kept."""

    blob: memoryview
    slots: NDArray[np.void]
    rows: int
    ends: int
    whole: bool  # its last event ends a transaction, or is a DDL

    def events(self) -> list[Event]:
        """Decode the events."""
        ends = np.cumsum(self.slots["size"], dtype=np.int64).tolist()
        return [decode(self.blob[at:end]) for at, end in pairwise([0, *ends])]


class TransactionBuffer:
    """The open transaction and the units that are ready."""

    def __init__(self, *, events: int, size: int, empty_events: int = 8192, empty_seconds: float = 5.0) -> None:
        """Keep up to `events` events of `size` bytes together; of empty transactions let one in `empty_events`, or one in
        `empty_seconds`, pass."""
        self._most_events, self._most_bytes = events, size
        self._empty_events, self._empty_seconds = empty_events, empty_seconds
        self._ready: deque[Unit] = deque()
        self._dropped = 0
        self._passed = time.monotonic()
        self._held: Unit | None = None  # the last empty transaction dropped: it may yet pass, so that positions advance
        self.part = 0  # number of the part that is open
        self.ready_bytes = self.ready_events = 0
        self._clear_open()

    def _clear_open(self) -> None:
        self._payloads: list[bytes] = []
        self._slots: list[bytes] = []
        self._size = self._rows = 0
        self._marks: dict[str, tuple[int, int, int]] = {}

    def overflows(self, size: int) -> bool:
        """Whether an event of `size` bytes would make the open part too large; an event too large on its own goes alone."""
        return bool(self._payloads) and (self._size + size > self._most_bytes or len(self._payloads) >= self._most_events)

    def add(self, parts: list[bytes | memoryview], slot: tuple[int, int, int, int, int]) -> None:
        """Add an event, whose payload is in parts, to the open part. `slot`: (time, offset, file, rows, entry | type << 8)."""
        payload = b"".join(parts)
        time_ms, offset, file, rows, kind = slot
        self._payloads.append(payload)
        self._slots.append(_SLOT.pack(time_ms, offset, file, len(payload), rows, 0, 0, kind & 255, kind >> 8, 0))
        self._size += len(payload)
        self._rows += rows

    @property
    def last(self) -> bytes | memoryview:
        """The payload added last; the compiled buffer lends its own memory: let go of it before anything is written."""
        return self._payloads[-1]

    def replace_head(self, size: int, head: bytes) -> None:
        """Replace the first `size` bytes of the payload added last; its slot record stays, but for the size."""
        payload = b"".join((head, memoryview(self._payloads[-1])[size:]))
        self._size += len(payload) - len(self._payloads[-1])
        self._payloads[-1], self._slots[-1] = payload, resized(self._slots[-1], len(payload))

    def cut(self) -> None:
        """Make what is open a part of its own."""
        self._push(self._unit(0))
        self.part += 1

    def end(self, flag: int, *, empty: bool = False) -> None:
        """The last event added ends the transaction; its slot gets `flag`. An `empty` one passes only now and then."""
        fields = list(_SLOT.unpack(self._slots[-1]))
        fields[6] = flag
        self._slots[-1] = _SLOT.pack(*fields)
        unit = self._unit(1)
        self.part = 0
        if empty and not self._lets_through():
            self._held = unit
            return
        self._push(unit)
        self._held, self._dropped, self._passed = None, 0, time.monotonic()

    def _lets_through(self) -> bool:
        self._dropped += 1
        return self._dropped >= self._empty_events or time.monotonic() - self._passed >= self._empty_seconds

    def tick(self) -> None:
        """Let the last empty transaction pass when it was held back for long enough."""
        if self._held is None or self._ready or self._payloads:
            return  # a part of the open transaction may have left: nothing older may follow it
        if time.monotonic() - self._passed >= self._empty_seconds:
            self._push(self._held)
            self._held, self._dropped, self._passed = None, 0, time.monotonic()

    def discard(self) -> None:
        """Forget the open transaction."""
        self._clear_open()
        self.part = 0

    def reset(self) -> None:
        """Forget everything that was not taken: the stream begins again."""
        self.discard()
        self._ready.clear()
        self.ready_bytes = self.ready_events = 0
        self._held = None

    def mark(self, name: str) -> None:
        """Remember this place as savepoint `name`."""
        self._marks.pop(name, None)
        self._marks[name] = (len(self._payloads), self._size, self._rows)

    def rollback_to(self, name: str) -> bool:
        """Take back what came after savepoint `name`; False where it is unknown: set before this part, or never."""
        if name not in self._marks:
            return False
        count, self._size, self._rows = self._marks[name]
        del self._payloads[count:], self._slots[count:]
        while next(reversed(self._marks)) != name:
            self._marks.popitem()
        return True

    def _unit(self, ends: int) -> Unit:
        unit = Unit(self._payloads, self._slots, self._size, self._rows, ends)
        self._clear_open()
        return unit

    def _push(self, unit: Unit) -> None:
        self._ready.append(unit)
        self.ready_bytes += unit.size
        self.ready_events += len(unit.payloads)

    @property
    def full(self) -> bool:
        """Whether more is ready than one put should take."""
        return self.ready_bytes >= self._most_bytes or self.ready_events >= self._most_events

    def take(self) -> Flush | None:
        """Return the oldest units, as many as go into one put; None when none is ready."""
        if not self._ready:
            return None
        payloads: list[bytes] = []
        slots: list[bytes] = []
        size = rows = ends = 0
        whole = False
        while self._ready:
            unit = self._ready[0]
            if payloads and (size + unit.size > self._most_bytes or len(payloads) + len(unit.payloads) > self._most_events):
                break
            self._ready.popleft()
            payloads += unit.payloads
            slots += unit.slots
            size, rows, ends = size + unit.size, rows + unit.rows, ends + unit.ends
            whole = unit.ends > 0
        self.ready_bytes -= size
        self.ready_events -= len(payloads)
        return Flush(memoryview(bytearray().join(payloads)), np.frombuffer(b"".join(slots), SLOT), rows, ends, whole)


def new_buffer(*, compiled_code: bool = COMPILED, **bounds: Any) -> TransactionBuffer:
    """Return a transaction buffer, compiled where that is there; `bounds` are those of `TransactionBuffer`.

    From then on the process keeps freed blocks of a put's size (`allocation`).
    """
    keep_freed_blocks()
    if not (compiled_code and COMPILED):
        return TransactionBuffer(**bounds)
    made: TransactionBuffer = compiled.TransactionBuffer(
        **bounds, clock=time.monotonic, flush=Flush, dtype=lambda raw: np.frombuffer(raw, SLOT)
    )
    return made
