"""Finding sequences by binlog position, with nothing missed in between."""

from __future__ import annotations

import numpy as np
import pytest

from shmstore import Position, PositionNotFound
from tests.shmstore.samples import END, FILE, begin, encoded, end, position, rows


@pytest.fixture
def store(make):
    """Events 0 to 5 put; 0 and 1 acked by the only subscription, "a"."""
    store = make(capacity=16, memory_unit=1024)
    store.claim(start=position(-1))
    reader = store.subscribe("a")
    store.put([begin(0), rows(1), end(2, "u:1-1"), begin(3), rows(4), end(5, "u:1-2")])
    reader.ack(reader.get(limit_events=2, timeout=0))
    return store


@pytest.mark.parametrize(
    ("where", "sequence"),
    [(1, 2), (2, 3), (3, 4), (5, 6)],
)
def test_find_is_the_first_event_after(store, where, sequence):
    """find gives the first event that ends after a position; newest + 1 after the last."""
    assert store.find(position(where)) == sequence


def test_find_between_two_events(store):
    """A position between two events' ends finds the later one."""
    assert store.find(Position(FILE, position(3).offset - 1)) == 3
    assert store.find(Position(FILE, position(3).offset + 1)) == 4


@pytest.mark.parametrize("where", [-1, 0])
def test_find_does_not_pretend(store, where):
    """A position before events that are gone raises PositionNotFound: something would be missing."""
    with pytest.raises(PositionNotFound, match="keeps"):
        store.find(position(where))


@pytest.mark.parametrize("claimed", [False, True])
def test_find_at_the_very_start(make, claimed):
    """A store knows where its producer began, also one that said so after it had claimed the store: from there nothing is
    missing, before there everything may be."""
    store = make(capacity=16, memory_unit=1024)
    if claimed:
        store.claim()
    with pytest.raises(PositionNotFound):
        store.find(position(0))
    store.claim(start=position(4))
    assert store.find(position(4)) == 0
    store.put([begin(5), end(6)])
    assert store.find(position(4)) == 0
    assert store.find(position(5)) == 1
    with pytest.raises(PositionNotFound):
        store.find(position(3))


def test_find_without_a_start(make):
    """Where the producer did not say where it began, the end of the first event is the first position known."""
    store = make(capacity=16, memory_unit=1024)
    store.put([begin(5), end(6)])
    assert store.find(position(5)) == 1
    with pytest.raises(PositionNotFound):
        store.find(position(4))


def test_files_count_before_offsets(make):
    """A later file comes after an earlier one whatever the offsets; 999999 before 1000000."""
    store = make(capacity=16)
    blob, slots = encoded([b"a", b"b", b"c"])
    slots["file"], slots["offset"] = [999999, 1000000, 1000000], [2**40, 4, 500]
    store.put_encoded(blob, slots)
    assert store.find(Position("b.999999", 2**40)) == 1
    assert store.find(Position("b.999999", 2**41)) == 1
    assert store.find(Position("b.1000000", 4)) == 2


def test_find_by_gtids(store):
    """A position of GTIDs alone finds what follows the transaction end that has just this set."""
    assert store.find(Position("", 0, "u:1-1")) == 3
    assert store.find(Position("", 0, "u:1-2")) == 6
    with pytest.raises(PositionNotFound, match="GTID"):
        store.find(Position("", 0, "u:1-9"))


@pytest.mark.parametrize("gtids", ["junk", "0-1", "0-1-7;0-1-8", "one=0-1-7", "3e11fa47-71ca-11e1-9e33-c80aa9429562", "0-1-7,"])
def test_find_of_no_gtid_set(store, gtids):
    """What is no GTID set of either server is called so, with the forms that are."""
    with pytest.raises(PositionNotFound, match=r"is no GTID set: write UUID:.* MySQL .*0-1-.* MariaDB"):
        store.find(Position("", 0, gtids))


UUID = "3E11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize("gtids", ["0-1-7", "0-1-7, 1-1-4", f"{UUID}:1-5:7,{UUID}:tag:3", f"{UUID}:1,\n{UUID}:2-3", "1-1-4"])
def test_find_of_gtids_that_are_not_there(store, gtids):
    """A set that is written as a server writes it is not called malformed because no transaction ends there."""
    with pytest.raises(PositionNotFound, match="no transaction kept"):
        store.find(Position("", 0, gtids))


def test_find_after_the_ring_went_round(make):
    """find looks at what is kept and one event back, however often the ring went round."""
    store = make(capacity=4, memory_unit=1024)
    reader = store.subscribe("a")
    for i in range(0, 2000, 2):
        store.put([begin(i), end(i + 1)])
        reader.ack(reader.get(limit_events=1, timeout=0))
        reader.ack(reader.get(timeout=0)) if i % 4 else None
    last = store.newest
    oldest = store.oldest
    for sequence in range(oldest - 1, last + 1):
        assert store.find(position(sequence)) == sequence + 1
    with pytest.raises(PositionNotFound):
        store.find(position(oldest - 2))


@pytest.mark.parametrize("known", [True, False])
def test_positions_survive_the_payload_of_an_oversized_event(make, known):
    """First and latest position are known, without GTIDs, also where the last event lay in a segment of its own and is acked."""
    store = make(capacity=8, memory_unit=64)
    if known:
        store.claim(start=Position("binlog.000003", 4))
    reader = store.subscribe("a")
    large = [rows(0, note="x" * 2000), end(1, "u:1-9")._replace(sql="y" * 2000)]
    for event in large:
        store.put(event, timeout=0)
        assert store.latest_position == event.position
        reader.ack(reader.get(timeout=0))
        assert store.first_position == store.latest_position == event.position._replace(gtids="")
    assert store.last_ack_point() == position(1)
    store.put(b"z" * 2000, timeout=0)  # no event
    assert store.latest_position is None
    reader.ack(reader.get(timeout=0))
    assert store.latest_position is None


def test_the_last_ack_point_survives_its_payload(make):
    """Inside a transaction that fills the ring a producer still learns where the last one ended, from its slot."""
    store = make(capacity=8, memory_unit=64)
    store.claim(start=Position("binlog.000007", 4))
    reader = store.subscribe("a")
    store.put_encoded(*encoded([b"x" * 400], flags=[END]))
    for _ in range(40):
        reader.ack(reader.get(timeout=0))
        store.put(b"y" * 400)
    assert store.last_ack_point() == Position("binlog.000007", 100)


def test_lag_counts_from_the_last_ack_point(store):
    """stat names the last ack point that each subscription has passed."""
    assert store.stat().subscriptions[0].ack_point is None
    with store.subscribe("b", start=3):
        assert {stat.name: stat.ack_point for stat in store.subscriptions()} == {"a": None, "b": 2}


def test_peek_at_what_is_not_there(make):
    """A sequence that is not kept is refused with those that are; where none is, with the next that will be."""
    store = make(capacity=16)
    with pytest.raises(PositionNotFound, match=r"sequence 5 .* it is empty, and its next event will be 0$"):
        store.peek(5)
    with pytest.raises(PositionNotFound, match=r"sequence 5 .* it is empty, and its next event will be 0$"):
        store.subscribe("late", start=5)
    store.put([b"1", b"2"])
    with pytest.raises(PositionNotFound, match=r"it keeps 0 to 1$"):
        store.peek(5)
    reader = store.subscribe("a")
    reader.ack(reader.get(timeout=0))
    for sequence in (1, 5):
        with pytest.raises(PositionNotFound, match=r"it is empty, and its next event will be 2$"):
            store.peek(sequence)


def test_peek_by_bytes(make):
    """peek's byte limit is exact, with one event at least."""
    store = make(capacity=16)
    store.put([b"1", b"22", b"333"])
    sizes = np.cumsum([1, 2, 3]).tolist()
    for limit in range(8):
        assert len(store.peek(0, limit_bytes=limit)) == max(1, sum(size <= limit for size in sizes))
