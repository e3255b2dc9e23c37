"""The producer's end of a ring: put. No lock, no clock, no waiting.

Plan. A put writes payloads, then ends, rows and slots, then the put cursor: what stands behind the cursor is whole, and a
producer killed between any two lines leaves events that no process can see, which the next put overwrites.

Space is counted from `floor`, the last sequence that all subscriptions had acked when the producer last looked. It looks
again only when the ring seems full: acks only grow, so an old floor is safe. While it looks, a process may subscribe at an
older sequence. Therefore the producer writes its new floor, fences, and looks a second time, while a new subscriber makes its
entry of the table JOINING, fences, and reads the floor: at least one of them sees the other (`Writer.refresh`,
`SubscriptionTable._fill`). What the second look confirmed is never taken back: below it things may be overwritten, and a
subscriber that comes too late must find that out.

An event that all have acked may be overwritten by the next put, or by one that a killed producer never published. Its payload is whole
while `reach` is at most an arena ahead of where it begins: the producer says there where a put will end, before it writes any byte of it. Its slot
is whole for longer, as the ring has more slots than its capacity (`cursors.first_slot`). A process that reads such an event, as the next
producer does, copies, fences, and looks at both (`store.lookup`).

In a store with a log no process holds events back in the ring but the log itself: the floor follows LOGGED, and lazily, so that readers find
in the ring what is new. A reader copies, fences, and looks at the floor; the producer moves the floor, fences, and writes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shmstore.errors import StoreCorrupt
from shmstore.memory.layout import (
    MAX_PAYLOAD,
    MAX_SEQUENCE,
    SLOT,
)
from shmstore.memory.mapping import Views
from shmstore.memory.ordering import WEAK_ORDER, fence, hot
from shmstore.ring.cursors import ABSURD_BYTES, FLOOR, LOG, LOGGED, OVERSIZED, PUT, REACH, cursor_at, slowest_ack, with_core


def plain_slots(payloads: list[bytes]) -> NDArray[np.void]:
    """Return slot records for payloads of which only their bytes are known: one row each."""
    slots = np.zeros(len(payloads), SLOT)
    slots["size"] = np.fromiter(map(len, payloads), np.int64, len(payloads))
    slots["rows"] = 1
    return slots


# ---------------------------------------------------------------- the producer's end


class Writer:
    """The put side of a ring. Make one only while owning the producer role and the table's lock.

    The lock, because a dead predecessor's floor may be one it never confirmed: the acks alone count then, and no process may
    be joining meanwhile.
    """

    __slots__ = (
        "_arena",
        "_arena_size",
        "_ends",
        "_floor",
        "_limit_end",
        "_limit_sequence",
        "_mask",
        "_rows",
        "_slot_bytes",
        "_templates",
        "_views",
        "_words",
        "end",
        "may_put",
        "put",
        "rows",
    )

    def __init__(self, views: Views) -> None:
        self._views = views
        self.may_put = False  # whether try_put may do anything
        self._words = views.words
        self._ends = views.ends
        self._rows = views.rows
        self._arena = views.arena
        self._arena_size = views.arena_size
        self._slot_bytes = views.slot_bytes
        self._mask = views.slot_count - 1
        self._templates: dict[int, bytes] = {}  # slot records for put_one, by size
        self.resync()
        self._limit_sequence = self._limit_end = -1
        # The last one confirmed; written by `refresh` alone. With a log each is: nothing is written over before the floor says so.
        self._floor = self._words[FLOOR] if views.flags & LOG else slowest_ack(views)
        self.refresh()

    def resync(self) -> None:
        """Read the cursor from the segment again, after an exception may have struck between two lines of a put."""
        self.put, self.end, self.rows, _ = cursor_at(self._views, self._words[PUT])
        if not 0 <= self.end < ABSURD_BYTES or not 0 <= self.rows < ABSURD_BYTES:
            raise StoreCorrupt(
                f"event {self.put} claims to end at byte {self.end} and row {self.rows}: `shmstore check` shows more"
            )

    def refresh(self, n: int = 1, size: int = 0) -> None:
        """Take over what the subscriptions have acked since the last look; in a store with a log, of what the log has taken over as
        much as leaves half of the ring, or as `n` more events of `size` bytes need."""
        words = self._words
        if self._views.flags & LOG:
            self._spare(n, size)
            return
        floor = max(self._floor, slowest_ack(self._views))
        words[FLOOR] = floor
        fence()  # a subscriber that comes meanwhile either is seen by the next line, or sees the floor just written
        floor = max(self._floor, min(floor, slowest_ack(self._views)))
        words[FLOOR] = self._floor = floor
        if not words[PUT] - self._views.capacity <= floor <= words[PUT]:
            raise StoreCorrupt(
                f"an ack cursor is at {floor}, put at {words[PUT]}, capacity {self._views.capacity}: `shmstore check` shows more"
            )
        acked = self._ends[floor & self._mask]
        if not acked <= self.end:  # the space would seem larger than the arena
            raise StoreCorrupt(
                f"acked event {floor} ends at byte {acked}, all that was put at {self.end}: `shmstore check` shows more"
            )
        self._limit_sequence = min(floor + self._views.capacity, MAX_SEQUENCE)
        self._limit_end = acked + self._views.limit

    def _spare(self, n: int, size: int) -> None:
        words, views, put = self._words, self._views, self.put
        logged, before = words[LOGGED], self._floor
        if not put - views.capacity <= before <= put or logged > put:
            raise StoreCorrupt(
                f"the log has events up to {logged}, the ring those from {before + 1} to {put}, capacity {views.capacity}: `shmstore check` shows more"
            )
        half = max(put - views.capacity // 2, self._ended(self.end - views.limit // 2))
        floor = max(before, min(logged, max(half, put + n - views.capacity, self._ended(self.end + size - views.limit))))
        acked = self._ends[floor & self._mask]
        if not acked <= self.end:
            raise StoreCorrupt(f"event {floor} ends at byte {acked}, all that was put at {self.end}: `shmstore check` shows more")
        if floor != before:
            words[FLOOR] = self._floor = floor
            fence()  # a reader that finds its copy above the floor has read it before anything of it is written over
        self._limit_sequence = min(floor + views.capacity, MAX_SEQUENCE)
        self._limit_end = acked + views.limit

    def _ended(self, end: int) -> int:
        """Return the first sequence from the floor up to put that ends at `end` or later."""
        i = self._floor & self._mask
        return self._floor + int(np.searchsorted(self._views.ends_array[i : i + self.put - self._floor + 1], end))

    def close(self) -> None:
        """Let every later put fail its space check, so that it goes the slow way and finds the store closed."""
        self._limit_sequence = self._limit_end = -2

    def try_put(self, events: object, /) -> int | None:
        """Publish bytes, or a list of them, of unknown kind with one row each, and wake who waits, where nothing is unusual and compiled code
        is there. Return the last sequence; None: nothing was done, the caller does it."""
        return None

    def try_put_encoded(self, blob: object, slots: NDArray[np.void], /) -> int | None:
        """As `try_put`, events that lie back to back in `blob`, with their slot records."""
        return None

    def put_one(self, payload: bytes) -> bool:
        """Publish one event of unknown kind with one row. False when the space known of is too small, or no slot can say its size; nothing was written."""
        size = len(payload)
        start = self.end
        end = start + size
        put = self.put + 1
        if put > self._limit_sequence or end > self._limit_end or size > MAX_PAYLOAD:
            return False
        self._announce(end)
        at = start % self._arena_size
        self._arena[at : at + size] = payload
        i = put & self._mask
        self._ends[i] = end
        self._rows[i] = rows = self.rows + 1
        slot = self._templates.get(size)
        if slot is None:
            slot = self._template(payload)
        i *= 40
        self._slot_bytes[i : i + 40] = slot
        self._words[PUT] = put  # publish: everything above is whole
        self.put, self.end, self.rows = put, end, rows
        return True

    def put_encoded(self, blob: bytes | memoryview, slots: NDArray[np.void], sizes: NDArray[np.int64]) -> bool:
        """Publish events whose payloads lie back to back in `blob`, all or none; `sizes` are the bytes charged for each.

        `sizes` is used up. False as in `put_one`.
        """
        n = len(slots)
        if not self.fits(n, int(sizes.sum())):
            return False
        i = (self.put + 1) & self._mask
        self._slot_bytes[i * 40 : (i + n) * 40] = slots.view(np.uint8).data
        rows = slots["rows"].astype(np.int64)
        rows[0] += self.rows
        np.add.accumulate(rows, out=self._views.rows_array[i : i + n])
        self._publish(i, blob, sizes, self._rows[i + n - 1])
        return True

    def fits(self, n: int, size: int) -> bool:
        """True where `n` more events of `size` bytes fit into the space known of."""
        return self.put + n <= self._limit_sequence and self.end + size <= self._limit_end

    def _publish(self, i: int, blob: bytes | memoryview, sizes: NDArray[np.int64], rows: int) -> None:
        """Write the payloads and ends of the slots from index `i` on, and move the cursor over them; `rows` is the new total."""
        self._announce(self.end + len(blob))
        at = self.end % self._arena_size
        self._arena[at : at + len(blob)] = blob
        n = len(sizes)
        sizes[0] += self.end
        np.add.accumulate(sizes, out=self._views.ends_array[i : i + n])
        after = self.put + n, self._ends[i + n - 1]
        self._words[PUT] = after[0]  # publish: everything above is whole
        self.put, self.end = after
        self.rows = rows

    def _announce(self, end: int) -> None:
        """Say that payloads up to `end` are going to be written, before any of their bytes is.

        Never less than before: a put that was cut short has left bytes up to there.
        """
        if end > self._words[REACH]:
            self._words[REACH] = end
            if WEAK_ORDER:  # else stores are seen in their order
                fence()

    def announce_oversized(self) -> None:
        """Say, before it is published, that the next event is in a segment of its own."""
        self._words[OVERSIZED] = self.put + 1

    def wanted_ack(self, n: int, size: int) -> int:
        """Return the lowest ack at which `n` more events of `size` bytes fit."""
        by_count = self.put + n - self._views.capacity
        floor = self._words[FLOOR]
        i = floor & self._mask
        ends = self._views.ends_array[i : i + self.put - floor + 1]
        by_bytes = floor + int(np.searchsorted(ends, self.end + size - self._views.limit))
        return max(by_count, by_bytes)

    def _template(self, payload: bytes) -> bytes:
        if not payload:
            raise ValueError(NO_BYTES)
        slot = plain_slots([payload]).tobytes()
        if len(self._templates) < 65536:
            self._templates[len(payload)] = slot
        return slot


NO_BYTES: Final = "an event has no bytes: give at least one"
assert SLOT.itemsize == 40, "Writer.put_one writes slots of 40 bytes"


_HotWriter = with_core(hot.Puts, Writer) if hot is not None else Writer


def writer_of(views: Views) -> Writer:
    """Return the put side of a ring; as `Writer`."""
    return Writer(views) if views.native is None else _HotWriter(views)
