"""Batch: what one get returns, as events, payloads, slots and raw shared memory."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from shmstore import Batch, EventStore, StoreCorrupt
from shmstore.encoding.codec import encode
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
    for payload in (b"raw", b"\x95\x02\x05\xc0\xc0\xc0", b"\x95\x02\x91\x01\xc0\xc0\xc0"):
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


@pytest.mark.parametrize("log", [False, True])
def test_events_have_their_sequences(name, log, tmp_path):
    """Each event that is read has its sequence, out of the ring and out of the log, by get, peek and a copy."""
    with EventStore.create(name, capacity=16, first_sequence=5, log=log, state=tmp_path) as store, store.subscribe("a") as reader:
        for first in range(0, 40, 4):
            store.put([rows(i) for i in range(first, first + 4)])
            batch = reader.get(timeout=0)
            for each in (batch, batch.copy(), store.peek(batch.first)):
                assert [event.sequence for event in each] == each.sequences.tolist() == list(range(5 + first, 9 + first))
            if not log:
                reader.ack(batch)
        if log:
            out_of_the_log = store.peek(7, limit_events=5)
            assert [event.sequence for event in out_of_the_log] == [7, 8, 9, 10, 11]


@pytest.mark.parametrize("log", [False, True])
def test_some_events_of_a_batch(name, log, tmp_path, seed):
    """What is selected of a batch is what the batch has at these places, in every form; it is acked as the whole."""
    chance = random.Random(seed)
    with EventStore.create(name, capacity=64, checksum=True, log=log, state=tmp_path) as store, store.subscribe("a") as reader:
        for start in range(0, 1600, 16):
            events = [chance.choice([begin, rows, end, ddl])(start + i) for i in range(chance.randint(1, 16))]
            store.put(events)
            batch = reader.get(timeout=0)
            marks = [chance.random() < 0.5 for _ in events]
            some, places = batch.select(marks), [i for i, mark in enumerate(marks) if mark]
            chosen = [events[i] for i in places]
            assert (len(some), bool(some), some.events, (some.first, some.last)) == (
                *(len(places), bool(places), chosen),
                (batch.first, batch.last),
            )
            assert some.sequences.tolist() == [event.sequence for event in some] == [batch.first + i for i in places]
            assert [bytes(each) for each in some.payloads()] == [encode(event) for event in chosen]
            assert bytes(some.raw) == b"".join(encode(event) for event in chosen)
            assert some.ends.tolist() == list(itertools.accumulate(len(encode(event)) for event in chosen))
            assert some.slots.tolist() == batch.slots[places].tolist()
            assert some.rows == sum(len(event.rows) for event in chosen)
            assert some.to_arrow("shop.orders").column("seq").to_pylist() == [e.sequence for e in some for _ in e.rows]
            assert (some.position, some.ack_point, some.ends_transaction) == (
                batch.position,
                batch.ack_point,
                batch.ends_transaction,
            )
            again = [chance.random() < 0.5 for _ in chosen]
            assert some.select(again).events == [event for event, mark in zip(chosen, again, strict=True) if mark]
            some.verify()
            reader.ack(some.copy())
            assert reader.ack_cursor.sequence == batch.last
            assert some.events == chosen, "it is valid as long as it is held"
        store.put(rows(1))
        batch = reader.get(timeout=0)
        with pytest.raises(ValueError, match="2 marks are given for a batch of 1 events"):
            batch.select([True, False])


def test_raw_bytes_are_no_event(make):
    """Bytes that a program put as they are come back by payloads(); asked for events, a batch says what they are, and where."""
    store = make(capacity=8)
    reader = store.subscribe("a")
    store.put([b"own", b'{"json": 1}'])
    batch = reader.get(timeout=0)
    assert [bytes(each) for each in batch.payloads()] == [b"own", b'{"json": 1}']
    for read in (lambda: batch.events, lambda: batch.to_arrow("shop.orders"), lambda: batch.position):
        with pytest.raises(StoreCorrupt, match=r"not an event: \d+ bytes.*put as they are.*payloads"):
            read()
    with pytest.raises(StoreCorrupt, match="at sequence 0 "):
        next(iter(batch))
