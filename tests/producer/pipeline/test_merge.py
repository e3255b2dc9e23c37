"""The order of several sources: pure, with a clock of the test's own."""

from __future__ import annotations

import heapq
import os
import random
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore import (
    SLOT,
    Checkpoint,
    CheckpointFile,
    EntryType,
    Event,
    EventStore,
    EventType,
    Position,
    PositionNotFound,
    SlotFlag,
)
from shmstore.encoding.codec import decode, encode
from shmstore.event import Cut
from shmstore.producer.errors import SettingsError
from shmstore.producer.pipeline.group import Group
from shmstore.producer.pipeline.merge import Lane, SourceMerge
from shmstore.producer.settings import Settings
from shmstore.producer.start.in_force import FiltersFile, InForce
from shmstore.producer.start.resume import Resume, by_source, lowest_by_source
from shmstore.producer.transactions.buffer import Flush
from shmstore.producer.transactions.state import HalfTransaction
from shmstore.sources import parse_sources, sources_text

TODAY = 2_000_000_000


def flush(*transactions: tuple[int, int, bool]) -> Flush:
    """(second, events, whole) of each; payloads are one byte an event."""
    count = sum(events for _, events, _ in transactions)
    slots = np.zeros(count, SLOT)
    slots["size"] = 1
    at = 0
    for second, events, whole in transactions:
        slots["time"][at : at + events] = second * 1000
        at += events
        slots["flags"][at - 1] = int(SlotFlag.TRANSACTION_END) if whole else 0
    return Flush(memoryview(bytes(count)), slots, 0, 0, True)


def take(merge: SourceMerge, now: float) -> tuple[str, int] | None:
    lane = merge.next(now)
    if lane is None:
        return None
    piece = lane.take()
    merge.took(lane, piece)
    return lane.name, piece.second


def lanes(*names: str) -> list[Lane]:
    made = [Lane(name) for name in names]
    for lane in made:
        lane.heard = 0.0
    return made


@given(st.lists(st.lists(st.integers(1, 30), max_size=20), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_all_that_is_there_comes_by_time(times: list[list[int]], rng: random.Random) -> None:
    """Where each source has brought all it has, transactions come in the order of their seconds, each source's in its own."""
    made = lanes(*(str(i) for i in range(len(times))))
    for lane, own in zip(made, times, strict=True):
        own.sort()
        if own:
            lane.add(flush(*[(second, rng.choice((1, 3)), True) for second in own]), 1.0, TODAY)
        lane.ended = True
    merge = SourceMerge(made, 10.0)
    came = []
    while (one := take(merge, 2.0)) is not None:
        came.append(one)
    assert [second for _, second in came] == list(heapq.merge(*times))
    for i, own in enumerate(times):
        assert [second for name, second in came if name == str(i)] == own


def test_waits_for_what_may_be_older() -> None:
    """A transaction waits for a source that may have an older one, until that has come as far, says that it has nothing, or
    `wait` seconds have passed; a source without a link holds up nothing more after `wait` seconds."""
    a, b = made = lanes("a", "b")
    merge = SourceMerge(made, 10.0)
    a.add(flush((100, 1, True)), 1.0, TODAY)
    assert take(merge, 1.0) is None
    assert merge.until(1.0) == pytest.approx(9.0)
    b.add(flush((99, 1, True)), 2.0, TODAY)
    assert take(merge, 2.0) == ("b", 99)
    assert take(merge, 2.0) is None, "b may have another one of second 99"
    b.heard = b.drained = 2.5
    assert take(merge, 2.5) == ("a", 100)
    a.add(flush((101, 1, True)), 3.0, TODAY)
    assert take(merge, 3.0) is None
    assert take(merge, 12.4) is None, "b was heard at 2.5"
    assert take(merge, 12.5) == ("a", 101), "it says nothing"
    b.heard = 12.6
    a.add(flush((102, 1, True)), 13.0, TODAY)
    assert take(merge, 22.5) is None
    b.heard = 22.9
    assert take(merge, 23.0) == ("a", 102), "it talks, but has held a up for long enough"
    b.add(flush((102, 1, True)), 23.0, TODAY)
    a.add(flush((102, 1, True)), 23.5, TODAY)
    assert [take(merge, 24.0), take(merge, 24.0)] == [("b", 102), ("a", 102)], "both have come as far as that"


def test_late_ones_come_as_they_arrive() -> None:
    """What is older than what was put waits for no source, and takes its turn by its arrival."""
    a, b = made = lanes("a", "b")
    merge = SourceMerge(made, 10.0)
    a.add(flush((100, 1, True)), 0.0, TODAY)
    assert take(merge, 10.0) == ("a", 100)
    b.add(flush((50, 1, True), (60, 1, True)), 11.0, TODAY)
    a.add(flush((101, 1, True)), 12.0, TODAY)
    a.heard = 12.0
    b.add(flush((70, 1, True), (102, 1, True)), 13.0, TODAY)
    assert [take(merge, 13.0) for _ in range(5)] == [("b", 50), ("b", 60), ("a", 101), ("b", 70), None]
    a.heard = a.drained = 13.5
    assert take(merge, 13.5) == ("b", 102)


def test_nobody_starves() -> None:
    """A source with a long backlog, always ready and always older, holds one that is up to date up for `wait` seconds, then
    they share the store by arrival."""
    a, b = made = lanes("a", "b")
    merge = SourceMerge(made, 1.0)
    now, waited = 0.0, []
    for step in range(400):
        now += 0.05
        for _ in range(3):
            if b.events < 100:
                b.add(flush((1000 + step // 100, 1, True)), now, TODAY)
        if not a.pieces and step % 5 == 0:
            a.add(flush((5000 + step, 1, True)), now, TODAY)
        for _ in range(3):
            before = a.pieces[0].arrived if a.pieces else now
            if (one := take(merge, now)) is not None and one[0] == "a":
                waited.append(now - before)
    assert len(waited) > 15
    assert max(waited) < 1.1


def test_half_a_transaction_owns_the_store() -> None:
    """From its first part to its last nothing else comes between, however long that takes; so too after a restart."""
    a, b = made = lanes("a", "b")
    merge = SourceMerge(made, 1.0)
    a.add(flush((100, 4, False)), 0.0, TODAY)
    b.add(flush((101, 1, True)), 0.0, TODAY)
    assert take(merge, 0.5) == ("a", 100)
    assert take(merge, 500.0) is None
    assert merge.until(500.0) == float("inf")
    a.add(flush((103, 2, False)), 500.0, TODAY)
    a.add(flush((104, 2, True)), 500.0, TODAY)
    assert [take(merge, 500.0), take(merge, 500.0)] == [("a", 103), ("a", 104)]
    assert take(merge, 500.0) == ("b", 101)
    b.add(flush((200, 1, True)), 500.0, TODAY)
    again = SourceMerge(made, 1.0, owner=a)
    assert take(again, 900.0) is None


def test_times_that_cannot_be() -> None:
    """A time after today is taken for today; one before what its source gave already, for that: its own order stays."""
    (a,) = made = lanes("a")
    a.add(flush((9, 1, True), (5, 2, True), (TODAY + 10**6, 1, True)), 0.0, TODAY)
    merge = SourceMerge(made, 1.0)
    assert [take(merge, 0.0) for _ in range(3)] == [("a", 9), ("a", 9), ("a", TODAY)]
    assert (a.bytes, a.events) == (0, 0)


def test_pieces_hold_what_was_brought() -> None:
    """The bytes and slots of the pieces, in order, are those of the flush."""
    (a,) = lanes("a")
    brought = flush((1, 3, True), (2, 1, True), (2, 5, False))
    a.add(brought, 0.0, TODAY)
    assert [(piece.events, piece.size, piece.ends) for piece in a.pieces] == [(3, 3, True), (1, 1, True), (5, 5, False)]
    assert b"".join(piece.slots for piece in a.pieces) == brought.slots.tobytes()
    assert b"".join(bytes(piece.payloads) for piece in a.pieces) == brought.blob


# ---- positions

ROOM = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=12)
UUID = "3e11fa47-71ca-11e1-9e33-c80aa942956"
SETS = st.sampled_from(["", "0-1-5", "0-1-5,3-9-77", f"{UUID}2:1-5:7", f"{UUID}2:1-5,{UUID}3:tag:1"])


@given(
    st.dictionaries(ROOM, st.builds(Position, ROOM, st.integers(0, 2**40), SETS, st.just(0), st.just(())), min_size=1, max_size=4)
)
def test_positions_are_read_as_written(positions: dict[str, Position]) -> None:
    """Whatever sources and files are called: as text, in an event, and in a checkpoint."""
    sources = tuple(sorted(positions.items()))
    position = Position("binlog.000001", 4, sources=sources)
    assert by_source(position) == positions
    assert parse_sources(sources_text(sources)) == sources
    end = Event(EntryType.END, EventType.NONE, position, 1, order=2)
    assert decode(encode(end)) == end
    cut = end._replace(entry=EntryType.ROWS, position=Position("binlog.000001", 4), cut=Cut(sources, 2, 5))
    assert decode(encode(cut)) == cut
    with tempfile.TemporaryDirectory() as folder:
        file = CheckpointFile(folder, "s", "r")
        file.save(Checkpoint(position, 7, 3))
        assert file.load() == Checkpoint(position, 7, 3)


@pytest.mark.parametrize("text", ["", "0-1-5", "a=b", "a=b:x/0-1-1", "a=b:4/;"])
def test_what_is_no_text_of_sources(text: str) -> None:
    """It is refused."""
    with pytest.raises(ValueError, match=r"is not NAME=FILE:OFFSET/GTIDS|invalid literal"):
        parse_sources(text)


@pytest.mark.parametrize("gtids", ["", "0-1-5", f"{UUID}2:1-5"])
def test_a_place_of_one_source_is_refused(gtids: str) -> None:
    """It does not say where the others stand."""
    with pytest.raises(PositionNotFound, match="from a store of one source"):
        by_source(Position("binlog.000001", 4, gtids))


def test_lowest_places() -> None:
    """Each source continues where the last of the readers is with it; a checkpoint that does not know a source is refused."""

    def at(**positions: Position) -> Position:
        return Position("x.000001", 9, sources=tuple(positions.items()))

    one = at(a=Position("x.000001", 10, "0-1-10"), b=Position("y.000001", 90, f"{UUID}2:1-9"))
    two = at(a=Position("x.000002", 10, "0-1-20"), b=Position("y.000001", 50, f"{UUID}2:1-5"))
    assert lowest_by_source({"r1": one, "r2": two}) == {
        "a": Position("x.000001", 10, "0-1-10"),
        "b": Position("y.000001", 50, f"{UUID}2:1-5"),
    }
    assert lowest_by_source({}) == {}
    with pytest.raises(PositionNotFound, match="checkpoint of 'old' is from before source 'b' came"):
        lowest_by_source({"old": at(a=Position("x.000001", 10, "0-1-10")), "new": two})
    with pytest.raises(PositionNotFound, match="from a store of one source"):
        lowest_by_source({"old": Position("x.000001", 9, "0-1-5"), "new": two})


def test_positions_in_a_store() -> None:
    """In a store of several sources a place is what says where all of them stand; file and offset of one alone are refused.
    A reader that comes back to a store made again is given what it has not acked of any source, in whatever order it comes."""
    name = f"group-positions-{os.getpid()}"

    def event(source: str, number: int, **counts: int) -> list[Event]:
        files = {"a": Position("x.000009", 1, ""), "b": Position("y.000001", 1, "")}
        gtids = {"a": "0-1-%d", "b": f"{UUID}2:1-%d"}
        positions = {one: files[one]._replace(offset=count, gtids=gtids[one] % count) for one, count in counts.items()}
        own = f"0-1-{number}" if source == "a" else f"{UUID}2:{number}"
        end = Event(
            EntryType.END,
            EventType.NONE,
            positions[source]._replace(sources=tuple(positions.items())),
            1,
            transaction=own,
            order=1,
        )
        return [end._replace(entry=EntryType.BEGIN, position=end.position._replace(gtids="", sources=()), order=0), end]

    try:
        with EventStore.create(name, capacity=64, log=False) as store:
            store.put([*event("a", 4, a=4, b=1), *event("b", 2, a=4, b=2), *event("a", 5, a=5, b=2), *event("b", 3, a=5, b=3)])
            place = store.peek(3, limit_events=1).position
            assert store.find(place) == 4
            with pytest.raises(PositionNotFound, match=r"holds several sources, so x\.000009:4 is not a place in it"):
                store.find(Position("x.000009", 4))
            with pytest.raises(PositionNotFound, match="no transaction kept"):
                store.find(place._replace(sources=(("a", Position("x.000009", 4, "0-1-3")), place.sources[1])))
        EventStore.unlink(name)
        with EventStore.create(name, capacity=64, log=False) as store, tempfile.TemporaryDirectory() as folder:
            store.put([*event("b", 2, a=3, b=2), *event("b", 3, a=3, b=3), *event("a", 4, a=4, b=3), *event("a", 5, a=5, b=3)])
            file = CheckpointFile(folder, name, "r")
            file.save(Checkpoint(place, 7, 3))  # has a to 4 and b to 2
            with store.subscribe("r", checkpoint=file) as reader:
                came = []
                while batch := reader.get(timeout=0):
                    came += [one.transaction for one in batch]
            assert came == [f"{UUID}2:3"] * 2 + ["0-1-5"] * 2
    finally:
        EventStore.unlink(name)


def test_half_a_transaction_of_a_source_that_is_gone() -> None:
    """Nothing can be put before it is whole, so a group without that source says so at once."""
    name = f"group-half-{os.getpid()}"
    cut = Cut((("a", Position("x.000001", 9, "0-1-5")), ("b", Position("y.000001", 4, f"{UUID}2:1-7"))), 1)
    begin = Event(EntryType.BEGIN, EventType.NONE, Position("y.000001", 50), 1, transaction=f"{UUID}2:8")
    part = begin._replace(
        entry=EntryType.ROWS,
        type=EventType.QUERY,
        position=Position("y.000001", 90),
        order=1,
        sql="x",
        props={"source": "b"},
        cut=cut,
    )
    try:
        with EventStore.create(name, capacity=16, log=False) as store:
            store.put([begin, part])
            with pytest.raises(
                SettingsError, match=rf"ends inside transaction {UUID}2:8 of source 'b', which only that source can finish"
            ):
                Group([Settings(store=name, name=one) for one in "ac"], store, lambda: True)
            group = Group([Settings(store=name, name=one) for one in "ab"], store, lambda: True)
            a, b = (member.resume() for member in group.members)
            assert a == Resume(Position("x.000001", 9, "0-1-5"), None)
            assert b is not None
            assert b.tail is not None
            assert b._replace(tail=b.tail._replace(replay=None)) == Resume(
                Position("y.000001", 4, f"{UUID}2:1-7"), HalfTransaction(f"{UUID}2:8", 1, 0, "b")
            )
    finally:
        EventStore.unlink(name)


def test_a_change_of_filters_keeps_the_order() -> None:
    """It has the present time, which says nothing of its source or of the others: what follows is older."""
    a, b = lanes("a", "b")
    a.add(flush((1, 1, True)), 0.0, TODAY)
    a.add(flush((1000, 1, True)), 0.0, TODAY, print)
    a.add(flush((3, 1, True)), 0.0, TODAY)
    b.add(flush((2, 1, True), (4, 1, True)), 0.0, TODAY)
    merge = SourceMerge([a, b], 5.0)
    assert [take(merge, 0.0) for _ in range(4)] == [("a", 1), ("a", 1), ("b", 2), ("a", 3)]


def test_a_change_of_filters_that_was_not_put_is_forgotten(store: EventStore) -> None:
    """Its sequence is another event's by now, which must not put it in force."""
    file = FiltersFile(store.home, "a")
    before = InForce(store.newest, {"include": ["d.t"]})
    file.save(store.epoch, before, InForce(store.newest + 1, {"include": ["d.other"]}))
    Group([Settings(store=store.name, name=one) for one in "ab"], store, lambda: True)
    assert file.load(store.epoch, store.newest + 1, again=False) == before
