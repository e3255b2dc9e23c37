"""Finding sequences by binlog position, with nothing missed in between."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmstore import BatchTooLarge, Event, EventStore, Position, PositionNotFound, StoreFull
from shmstore.encoding import codec
from shmstore.ring.cursors import PUT
from shmstore.ring.writer import Writer
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
    with pytest.raises(PositionNotFound, match=r"is not a GTID set: write UUID:.* MySQL .*0-1-.* MariaDB"):
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


class Killed(BaseException):
    """The producer dies here."""


class Dying:
    """The words of a segment, for a producer that is killed when it would publish."""

    def __init__(self, words: Any) -> None:
        self._words = words

    def __getitem__(self, i: int) -> int:
        word: int = self._words[i]
        return word

    def __setitem__(self, i: int, value: int) -> None:
        if i == PUT:
            raise Killed
        self._words[i] = value


def die_putting(store: EventStore, events: list[Event]) -> None:
    """Write `events` as a producer does that is killed just before it publishes them, where they fit."""
    blob, slots = codec.encode_batch(events)
    views = store.segment.views
    writer = Writer(views._replace(words=Dying(views.words)))
    writer.refresh(len(slots), len(blob))
    if writer.fits(len(slots), len(blob)):
        with suppress(Killed):
            writer.put_encoded(blob, slots, slots["size"].astype(np.int64))


def test_the_end_of_a_transaction_that_was_never_published_is_none(make):
    """A killed put leaves slots where those of long ago were. A producer that took one for the last transaction's end would begin behind
    a transaction that it has put in part."""
    store = make(capacity=16, memory_unit=1024)
    store.claim(start=position(-1))
    reader = store.subscribe("a")
    store.put(end(0, "u:1-1"))
    for i in range(1, 600):
        reader.ack(reader.get(timeout=0))
        store.put(rows(i))
    reader.ack(reader.get(timeout=0))
    die_putting(store, [*(rows(i) for i in range(600, 608)), end(608, "u:1-2")])
    assert store.ack_point_until(store.newest) is None
    assert store.last_ack_point() is None
    assert store.latest_event == rows(599)


@given(
    st.sampled_from([2, 8, 256]),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 900), st.booleans(), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 9),
    st.integers(0, 900),
)
@settings(max_examples=60)
def test_what_a_killed_put_wrote_over_is_never_read(capacity, puts, last, size):
    """All is acked, and a producer is killed just before it publishes: the next one gets events as they were put, or hears that they
    are gone; never bytes, or a transaction's end, that no process could see."""
    store = EventStore.create(f"lookup-{os.getpid()}", capacity=capacity, memory_unit=8192 // capacity, log=False)
    try:
        store.claim(start=Position(FILE, 4))
        reader = store.subscribe("a")
        events, clock = [], 0
        for number, note, ends, acks in puts:
            number = min(number, capacity)
            made = [rows(clock + i, note="x" * note) for i in range(number - ends)]
            made += [end(clock + number - 1, f"u:1-{clock + 1}")] if ends else []
            if made:
                with suppress(StoreFull, BatchTooLarge):
                    store.put(made, timeout=0)
                    events += made
                    clock += number
            while acks and (batch := reader.get(timeout=0)):
                reader.ack(batch)
        if not events:
            return
        half = [rows(clock + i, note="y" * size) for i in range(min(last, capacity) - 1)]
        die_putting(store, [*half, end(clock + 9, "u:1-999")])
        newest = len(events) - 1
        assert store.newest == newest
        ends = [i for i, event in enumerate(events) if event.transaction and event.entry == end(0).entry]
        point = store.ack_point_until(newest)
        assert point is None or point == ends[-1]
        if (found := store.last_ack_point()) is not None:
            assert found in (events[ends[-1]].position, events[ends[-1]].position._replace(gtids=""))
        if (event := store.latest_event) is not None:
            assert (event, event.sequence) == (events[-1], newest)
        assert store.latest_position in (None, events[-1].position, events[-1].position._replace(gtids=""))
        held = list(store.open_transaction())
        for payload, event in zip(reversed(held), reversed(events), strict=False):
            assert payload is None or codec.decode(payload) == event
    finally:
        EventStore.unlink(store.name)
