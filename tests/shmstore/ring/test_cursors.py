"""The ring's arithmetic: put, get, ack and rollback, to the ends of 64 bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmstore import StoreCorrupt
from shmstore.memory import layout
from shmstore.memory.layout import DISARMED, MAX_SEQUENCE, SUBSCRIPTIONS, SubscriptionState
from shmstore.memory.mapping import Views
from shmstore.ring.cursors import (
    ACK_OF,
    ACK_WANTED,
    ARMED,
    ENTRIES,
    FLOOR,
    GET_OF,
    PUT,
    STATE_OF,
    WANTED_OF,
    ack_is_wanted,
    armed_readers,
    cursor_at,
    slowest_ack,
)
from shmstore.ring.reader import Reader
from shmstore.ring.writer import Writer, plain_slots
from tests.shmstore.samples import DDL, encoded


def put_list(writer: Writer, payloads: list[bytes]) -> bool:
    slots = plain_slots(payloads)
    return writer.put_encoded(b"".join(payloads), slots, slots["size"].astype(np.int64))


def twice(ring: np.ndarray) -> np.ndarray:
    return np.concatenate([ring, ring])


class Ring:
    """A ring on plain memory: what the segment maps twice is copied here after each put. One subscription, at entry 1."""

    def __init__(self, capacity: int = 4, limit: int = 4096, first: int = 0) -> None:
        sizes = layout.sizes(capacity, limit)
        words = memoryview(bytearray(layout.FIXED_SIZE)).cast("q")
        ends, rows = np.zeros(2 * sizes.slot_count, np.int64), np.zeros(2 * sizes.slot_count, np.int64)
        slots = np.zeros(2 * sizes.slot_count, layout.SLOT)
        self.arena = np.zeros(2 * sizes.arena_size, np.uint8)
        self.views = Views(
            words, words.cast("B"), memoryview(ends), memoryview(rows), slots, memoryview(self.arena), ends, rows,
            memoryview(slots.view(np.uint8)), sizes.slot_count, capacity, limit, sizes.arena_size, first, 0,
        )  # fmt: skip
        words[PUT] = words[FLOOR] = first - 1
        words[ACK_WANTED] = DISARMED
        for entry in range(SUBSCRIPTIONS):
            words[WANTED_OF[entry]] = DISARMED
            words[GET_OF[entry]] = words[ACK_OF[entry]] = first - 1
        words[ENTRIES] = 2
        words[STATE_OF[1]] = SubscriptionState.ACTIVE
        self.words = words
        self.writer = Writer(self.views)
        self.reader = Reader(self.views, 1, ddl_isolation=False)

    def mirror(self) -> None:
        """What the double mapping does: the second copy is the first, and what was written beyond it came round."""
        for ring in (self.views.ends_array, self.views.rows_array, self.views.slots, self.arena):
            half = len(ring) // 2
            self.old = getattr(self, "old", {})
            before = self.old.get(id(ring), np.zeros(half, ring.dtype))
            changed = ring[half:] != before
            ring[:half][changed] = ring[half:][changed]
            ring[half:] = ring[:half]
            self.old[id(ring)] = ring[:half].copy()

    def put(self, *payloads: bytes) -> bool:
        self.writer.refresh()
        done = put_list(self.writer, list(payloads)) if len(payloads) > 1 else self.writer.put_one(payloads[0])
        self.mirror()
        return done

    def got(self, limit_events: int = 2**62, limit_bytes: int | None = None) -> list[bytes]:
        first, last = self.reader.take(limit_events, limit_bytes)
        out = []
        for sequence in range(first, last + 1):
            mask = self.views.slot_count - 1
            start, end = self.views.ends[(sequence - 1) & mask], self.views.ends[sequence & mask]
            at = start % self.views.arena_size
            out.append(bytes(self.arena[at : at + end - start]))
        return out


def test_nothing_is_seen_before_it_is_published():
    """A put that does not fit writes nothing; a put shows all of its events at once."""
    ring = Ring()
    assert ring.got() == []
    assert not ring.put(*[b"x"] * 5)
    assert ring.words[PUT] == -1
    assert ring.put(b"a", b"b", b"c")
    assert ring.got() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("first", [0, 1, 509, 2**31 - 3, 2**32 - 3, 2**53 - 3, 2**62, MAX_SEQUENCE - 5000])
def test_sequences_far_up(first):
    """Nothing wraps or rounds near 2^31, 2^32, 2^53 and the highest sequence: put, get, limits and acks are exact."""
    ring = Ring(capacity=4, first=first)
    for i in range(1200):
        text = [b"%d-%d" % (i, k) for k in range(1 + i % 4)]
        assert ring.put(*text)
        assert ring.got() == text
        ring.reader.ack_to(ring.reader.get)
    assert ring.words[PUT] == ring.reader.ack == first - 1 + 300 * 10
    assert cursor_at(ring.views, ring.words[PUT]).rows == 3000


def test_the_last_sequence_is_never_passed():
    """At the highest sequence puts of every kind are refused; nothing overflows 64 bits."""
    ring = Ring(capacity=4, first=MAX_SEQUENCE - 1)
    assert ring.put(b"a", b"b")
    ring.reader.ack_to(MAX_SEQUENCE) if ring.got() else None
    ring.writer.refresh()
    assert not ring.writer.put_one(b"c")
    assert not put_list(ring.writer, [b"c", b"d"])
    blob, slots = encoded([b"c"])
    assert not ring.writer.put_encoded(blob, slots, np.array([1]))
    assert ring.words[PUT] == MAX_SEQUENCE


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=60), st.integers(0, 2**40))
@settings(max_examples=150)
def test_limits_are_exact(plan, first):
    """take gives what fits events and bytes, at least one event, in order, nothing twice; the arena wraps unseen."""
    ring = Ring(capacity=64, limit=512, first=first)
    stored: list[bytes] = []
    for i, (size, limit) in enumerate(plan):
        payload = bytes([i % 251]) * size
        if ring.put(payload):
            stored.append(payload)
        got = ring.got(limit_bytes=limit) if i % 2 else ring.got(limit_events=limit // 10 + 1)
        assert stored[: len(got)] == got
        if got:
            assert len(got) == 1 or i % 2 == 0 or sum(map(len, got)) <= limit
            if len(got) < len(stored):
                assert sum(map(len, stored[: len(got) + 1])) > limit if i % 2 else len(got) == limit // 10 + 1
            del stored[: len(got)]
            ring.reader.ack_to(ring.reader.get)


@pytest.mark.parametrize("limit", [0, -1, -(2**40)])
def test_a_limit_below_one_moves_nothing(limit):
    """A limit of no events, or fewer, takes nothing and moves nothing, least of all backwards."""
    ring = Ring()
    ring.put(b"a", b"b")
    assert ring.got(1) == [b"a"]
    assert ring.reader.take(limit, None) == (1, 0)
    assert (ring.reader.get, ring.words[GET_OF[1]]) == (0, 0)


def test_ddl_comes_alone():
    """With DDL isolation a batch ends before a DDL, or is that DDL."""
    ring = Ring(capacity=8)
    ring.reader = Reader(ring.views, 1, ddl_isolation=True)
    blob, slots = encoded([b"a", b"b", b"C", b"D", b"e"], flags=[0, 0, DDL, DDL, 0])
    assert ring.writer.put_encoded(blob, slots, slots["size"].astype(np.int64))
    ring.mirror()
    assert [ring.got() for _ in range(5)] == [[b"a", b"b"], [b"C"], [b"D"], [b"e"], []]


def test_space_is_counted_to_the_byte_and_the_event():
    """wanted_ack names the lowest ack at which a put fits: one less, and it does not."""
    ring = Ring(capacity=4, limit=100)
    for size in (10, 20, 30):
        assert ring.put(b"x" * size)
    ring.got()
    for n, size, wanted in ((1, 41, 0), (1, 50, 0), (1, 51, 1), (1, 71, 2), (2, 1, 0), (3, 1, 1), (4, 100, 2)):
        assert ring.writer.wanted_ack(n, size) == wanted
    for ack in (0, 1, 2):
        ring.reader.ack_to(ack)
        ring.writer.refresh()
        free = 40 + (10, 30, 60)[ack]
        assert ring.writer.fits(1, free)
        assert not ring.writer.fits(1, free + 1)


def test_the_slowest_counts_and_joining_ones_do():
    """Space is freed at the slowest subscription, one that is joining included, the lost and free ones not."""
    ring = Ring()
    ring.words[ENTRIES] = 5
    for entry, (state, ack) in enumerate([(0, -9), (1, 7), (2, 1), (3, 5), (1, 6)]):
        ring.words[STATE_OF[entry]], ring.words[ACK_OF[entry]] = state, ack
    assert slowest_ack(ring.views) == 5
    for entry in range(5):
        ring.words[STATE_OF[entry]] = SubscriptionState.FREE
    ring.words[FLOOR] = 3
    assert slowest_ack(ring.views) == 3


def test_a_confirmed_floor_is_not_taken_back():
    """A subscription that appears below the floor gets no promise about what may be overwritten already."""
    ring = Ring()
    ring.put(b"a", b"b")
    ring.got()
    ring.reader.ack_to(1)
    ring.writer.refresh()
    assert ring.words[FLOOR] == 1
    ring.words[ENTRIES] = 3
    ring.words[ACK_OF[2]], ring.words[STATE_OF[2]] = 0, SubscriptionState.JOINING
    ring.writer.refresh()
    assert ring.words[FLOOR] == 1


def test_cursors_out_of_bounds_are_refused():
    """An ack beyond put, or further behind than the capacity, raises StoreCorrupt instead of indexing."""
    ring = Ring()
    ring.put(b"a")
    for put in (-2, 10, 2**62, -(2**63)):
        ring.words[PUT] = put
        with pytest.raises(StoreCorrupt):
            ring.reader.available()
    ring.words[PUT] = 0
    ring.words[ACK_OF[1]] = 5
    with pytest.raises(StoreCorrupt):
        ring.writer.refresh()


def test_the_next_owner_starts_at_the_ack():
    """What was got and not acked is given again to the next owner; what was acked is not."""
    ring = Ring()
    ring.put(b"a", b"b", b"c")
    ring.got(2)
    ring.reader.ack_to(0)
    ring.reader = Reader(ring.views, 1, ddl_isolation=False)
    assert ring.words[GET_OF[1]] == 0
    assert ring.got() == [b"b", b"c"]


def test_only_those_who_have_what_they_want_are_woken():
    """A wake-up goes to each reader whose wish is met, once; the flag stays while others wait."""
    ring = Ring()
    words = ring.words
    words[ENTRIES] = 4
    words[WANTED_OF[1]], words[WANTED_OF[2]], words[ARMED] = 0, 3, 1
    words[GET_OF[2]] = -1
    ring.put(b"a")
    assert armed_readers(ring.views, everyone=False) == [1]
    assert (words[ARMED], words[WANTED_OF[1]], words[WANTED_OF[2]]) == (1, DISARMED, 3)
    assert armed_readers(ring.views, everyone=False) == []
    assert armed_readers(ring.views, everyone=True) == [2]
    assert words[ARMED] == 0


def test_the_producer_is_woken_once_all_have_given_space():
    """The wish for space is answered by the ack that makes it true, and by no earlier one."""
    ring = Ring()
    words = ring.words
    words[ENTRIES] = 3
    words[STATE_OF[2]] = SubscriptionState.ACTIVE
    words[ACK_WANTED] = 1
    words[ACK_OF[1]] = 1
    assert not ack_is_wanted(ring.views, 1)
    words[ACK_OF[2]] = 0
    assert not ack_is_wanted(ring.views, 0)
    words[ACK_OF[2]] = 2
    assert ack_is_wanted(ring.views, 2)
    assert words[ACK_WANTED] == DISARMED
    assert not ack_is_wanted(ring.views, 2)


def test_an_event_has_bytes():
    """An event without bytes is refused, and nothing is stored; of a list `admit` says so: see test_store."""
    ring = Ring()
    with pytest.raises(ValueError, match="bytes"):
        ring.put(b"")
    assert ring.words[PUT] == -1
