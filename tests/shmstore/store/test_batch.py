"""Batch: what one get returns, as events, payloads, slots and raw shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from shmstore import Batch, StoreCorrupt
from tests.shmstore.samples import begin, contents, ddl, encoded, end, position, rows

pytestmark = pytest.mark.usefixtures("either_way")


def test_a_batch_is_its_events(make):
    """A batch has a length, a truth, an id, its events, payloads and slots, all of the same events in order."""
    store = make(capacity=16, memory_unit=1024)
    reader = store.subscribe("a")
    empty = reader.get(timeout=0)
    assert (len(empty), bool(empty), empty.last, empty.first, empty.events, empty.position) == (0, False, -1, 0, [], None)
    assert bytes(empty.raw) == b""
    assert len(empty.slots) == len(empty.ends) == 0
    assert not empty.ends_transaction
    store.put([begin(0), rows(1, count=4), end(2)])
    batch = reader.get(timeout=0)
    assert (len(batch), bool(batch), batch.id, batch.first, batch.last) == (3, True, 2, 0, 2)
    assert batch.events == list(batch) == [begin(0), rows(1, count=4), end(2)]
    assert batch.rows == 4
    assert b"".join(contents(batch)) == bytes(batch.raw)
    assert batch.ends.tolist() == np.cumsum(batch.slots["size"]).tolist()
    assert batch.position == position(2)
    assert [batch.position_of(i) for i in range(3)] == [event.position for event in batch]
    assert repr(batch) == "Batch(0..2)"


def test_raw_is_not_a_copy(make):
    """Batch.raw is the shared memory itself; a copy is not."""
    store = make(capacity=8)
    reader = store.subscribe("a")
    store.put([b"abc", b"def"])
    batch = reader.get(timeout=0)
    copy = batch.copy()
    store.segment.views.arena[0:1] = b"X"
    assert bytes(batch.raw) == b"Xbcdef"
    assert bytes(copy.raw) == b"abcdef"
    assert copy.copy() is copy
    assert (len(copy), copy.first, copy.last, copy.rows) == (2, 0, 1, 2)


def test_a_copy_survives_the_ring(make):
    """A copied batch can be read after its space was given away and written over; it can still be acked."""
    store = make(capacity=4, memory_unit=64)
    reader = store.subscribe("a")
    store.put([b"abc", b"def"])
    copy = reader.get(timeout=0).copy()
    reader.ack(copy)
    for i in range(2000):
        store.put([b"%d" % i] * 2)
        reader.ack(reader.get(timeout=0))
    assert contents(copy) == [b"abc", b"def"]
    assert copy.ends.tolist() == [3, 6]
    assert copy.slots["size"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("events", "point", "ends"),
    [
        ([begin(0), rows(1)], None, False),
        ([begin(0), rows(1), end(2)], 2, True),
        ([end(0), begin(1), rows(2)], 0, False),
        ([end(0), ddl(1), begin(2)], 1, False),
        ([ddl(0)], 0, True),
    ],
)
def test_ack_points(make, events, point, ends):
    """The ack point is the last transaction end or DDL of the batch; None where it lies within a transaction."""
    store = make(capacity=16, memory_unit=1024)
    reader = store.subscribe("a")
    store.put(events)
    batch = reader.get(timeout=0)
    assert (batch.ack_point, batch.ends_transaction) == (point, ends)


def test_payloads_that_contradict_are_refused(make):
    """Ends out of order or outside the batch raise StoreCorrupt before any byte beyond the batch is shown."""
    store = make(capacity=8)
    reader = store.subscribe("a")
    store.put([b"aaa", b"bbb", b"ccc"])
    views = store.segment.views
    for at, value in ((0, 7), (1, 2), (1, 10), (0, -1), (1, 2**62), (1, -(2**62))):
        kept = views.ends[at]
        views.ends[at] = value
        with pytest.raises(StoreCorrupt):
            list(reader.get(timeout=0).payloads())
        views.ends[at] = kept
        reader.rollback()
    for value in (-1, 2**62, -(2**62), 2**63 - 1, -(2**63)):
        kept = views.ends[2]
        views.ends[2] = value
        with pytest.raises(StoreCorrupt):
            list(reader.get(timeout=0).payloads())
        views.ends[2] = kept
        reader.rollback()
    assert contents(reader.get(timeout=0)) == [b"aaa", b"bbb", b"ccc"]


def test_raw_bytes_have_no_position(make):
    """Asking raw payloads, or forged ones, for their position raises StoreCorrupt."""
    store = make(capacity=8)
    reader = store.subscribe("a")
    for payload in (b"raw", b"\x94\x01\x05\xc0\xc0", b"\x94\x01\x91\x01\xc0\xc0"):
        store.put(payload)
        with pytest.raises(StoreCorrupt):
            _ = reader.get(timeout=0).position
    reader.rollback()
    with pytest.raises(StoreCorrupt):
        _ = reader.get(timeout=0).events


def test_verify_finds_every_flipped_bit(make):
    """With checksums verify() names the first damaged event, whichever bit was flipped."""
    store = make(capacity=8, checksum=True)
    store.subscribe("a").close()
    store.put_encoded(*encoded([b"abc", b"defg"]))
    batch = Batch(store.segment, 0, 1, 0)
    batch.verify()
    for bit in range(7 * 8):
        store.segment.views.arena[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreCorrupt, match=f"event {0 if bit < 24 else 1} "):
            batch.verify()
        store.segment.views.arena[bit // 8] ^= 1 << bit % 8
    batch.verify()
