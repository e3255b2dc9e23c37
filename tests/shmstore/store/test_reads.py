"""A snapshot's rows have the position that the stream had reached: a reader that continues from there still gets them."""

from __future__ import annotations

import pytest

from shmstore import Checkpoint, CheckpointFile, EntryType, Event, EventStore, EventType, Position, PositionNotFound

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def transaction(offset: int, number: int) -> list[Event]:
    """A transaction of the stream that ends at `offset`."""
    executed = f"{UUID}:1-{number}"
    return [
        Event(EntryType.BEGIN, EventType.NONE, Position("b.000001", offset - 5), 1, transaction=f"{UUID}:{number}"),
        Event(EntryType.END, EventType.NONE, Position("b.000001", offset, executed), 1, transaction=f"{UUID}:{number}", order=1),
    ]


def chunk(offset: int, number: int, order: int) -> list[Event]:
    """A snapshot's transaction at that end."""
    name = f"b.000001:{offset}:{order}"
    events = [Event(entry, EventType.READ, Position("b.000001", offset), 1, transaction=name) for entry in EntryType if entry < 4]
    events[-1] = events[-1]._replace(position=Position("b.000001", offset, f"{UUID}:1-{number}"))
    return [event._replace(order=order + i) for i, event in enumerate(events)]


@pytest.mark.parametrize("place", [Position("b.000001", 100), Position("", 0, f"{UUID}:1-4")])
def test_what_is_found_behind_a_place_begins_with_the_snapshot_put_there(make: type[EventStore], place: Position) -> None:
    """By file and offset, and by GTIDs; with the stream's own transaction still there, and without."""
    store = make(capacity=64)
    store.claim(start=Position("b.000001", 4))
    store.put([*transaction(100, 4), *chunk(100, 4, 2), *chunk(100, 4, 5), *transaction(200, 5)])
    assert store.find(place) == 2
    name = store.name
    store.close()
    EventStore.unlink(name)
    other = make(capacity=64)
    other.claim(start=Position("b.000001", 100))
    other.put([*chunk(100, 4, 0), *chunk(100, 4, 3), *transaction(200, 5), *chunk(200, 5, 2)])
    assert other.find(place) == 0
    with pytest.raises(PositionNotFound):
        other.find(place._replace(offset=place.offset and 90, gtids=place.gtids and f"{UUID}:1-3"))


def test_a_reader_with_a_checkpoint_gets_the_snapshot_put_at_it(make: type[EventStore], name: str, tmp_path) -> None:
    """In a recreated store, what it had acked is left out, and what a snapshot put at that place is not."""
    file = CheckpointFile(tmp_path, name, "a")
    file.save(Checkpoint(Position("b.000001", 100, f"{UUID}:1-4"), 1, 10))
    store = make(capacity=64)
    store.claim(start=Position("b.000001", 50))
    store.put([*transaction(90, 3), *transaction(100, 4), *chunk(100, 4, 2), *transaction(200, 5), *chunk(200, 5, 2)])
    with store.subscribe("a", checkpoint=file) as reader:
        got = [(event.type, event.position.offset) for event in reader.get(timeout=0)]
    assert got[:3] == [(EventType.READ, 100)] * 3
    assert [offset for _, offset in got[3:]] == [195, 200, 200, 200, 200]
