"""The bytes of a segment: every offset aligned, every record where the drawing says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore.memory import layout
from shmstore.memory.layout import HEADER, LINE, PAGE, SLOT, SUBSCRIPTION, SUBSCRIPTIONS


@given(st.integers(0, 26), st.integers(1, 2**30))
def test_rings_are_whole_pages_and_do_not_overlap(power, limit):
    """Each ring can be mapped twice back to back: whole pages, one after the other, in a file of just that size."""
    capacity = 2**power
    sizes = layout.sizes(capacity, limit)
    starts = [layout.FIXED_SIZE, sizes.rows, sizes.slots, sizes.arena, sizes.total]
    assert sizes.ends == layout.FIXED_SIZE
    assert all(start % PAGE == 0 for start in starts)
    assert sizes.rows - sizes.ends >= sizes.slot_count * 8
    assert sizes.slots - sizes.rows >= sizes.slot_count * 8
    assert sizes.arena - sizes.slots >= sizes.slot_count * SLOT.itemsize
    assert sizes.arena_size == sizes.total - sizes.arena >= limit
    assert sizes.slot_count >= 2 * capacity
    assert sizes.slot_count & (sizes.slot_count - 1) == 0


def test_slot_ring_is_exact():
    """The slot ring has no gap before its second copy: its records fill whole pages."""
    for power in range(27):
        slot_count = layout.sizes(2**power, 1).slot_count
        assert slot_count * SLOT.itemsize % PAGE == 0


@pytest.mark.parametrize("record", [HEADER, SUBSCRIPTION])
def test_words_are_aligned_and_inside(record):
    """Every 8-byte field lies on an 8-byte boundary: one store each, never torn."""
    end = 0
    for field in record.names:
        dtype, offset = record.fields[field][:2]
        assert offset >= end, f"{field} overlaps its predecessor"
        end = offset + dtype.itemsize
        if dtype.itemsize == 8 and dtype.kind in "if":
            assert offset % 8 == 0
    assert end <= record.itemsize
    assert record.itemsize % LINE == 0


def test_busy_words_have_a_cache_line_each():
    """What different processes write lies on different cache lines."""
    lines = [HEADER.fields[f][1] // LINE for f in ("state", "entries", "put", "floor", "oversized", "armed", "ack_wanted")]
    assert len(set(lines)) == len(lines)
    assert layout.header_word("put") * 8 == HEADER.fields["put"][1]
    lines = [SUBSCRIPTION.fields[f][1] // LINE for f in ("name", "state", "ack", "wanted")]
    assert len(set(lines)) == len(lines)


def test_places_do_not_overlap():
    """The words of the last entry lie inside the fixed part."""
    last = layout.subscription_word(SUBSCRIPTIONS - 1, "wanted")
    assert (last + 1) * 8 <= layout.FIXED_SIZE
    assert layout.subscription_word(1, "ack") - layout.subscription_word(0, "ack") == SUBSCRIPTION.itemsize // 8


def test_an_ack_point_is_an_end_or_a_ddl():
    """The mask ACK_POINT is the union of the two flags, and none of the third."""
    flags = layout.SlotFlag
    assert int(flags.ACK_POINT) == int(flags.TRANSACTION_END) | int(flags.DDL)
    assert not int(flags.ACK_POINT) & int(flags.OVERSIZED)


def test_states_that_hold_events_back_are_odd():
    """`slowest_ack` tells by one bit whether an entry counts."""
    assert {state.name for state in layout.SubscriptionState if state & 1} == {"ACTIVE", "JOINING"}


def test_sequences_leave_space_above():
    """Arithmetic on the highest sequence stays inside 64 bits, a whole store beyond it."""
    assert layout.MAX_SEQUENCE + 2 * layout.MAX_CAPACITY < 2**63
    np.int64(layout.MAX_SEQUENCE + 2 * layout.MAX_CAPACITY)
