"""Where a search over a store begins, wherever its events are: in the ring, in the log, or in both."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shmstore import EntryType, Event, EventStore, EventType, Position, PositionNotFound, StoreView
from shmstore.log import format as log_format
from shmstore.sources import parse_sources

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
BEGAN = 1_700_000_000_000  # ms


class Put(NamedTuple):
    """What was put: an event, or None for bytes that are none."""

    event: Event | None

    @property
    def ends_unit(self) -> bool:
        return self.event is None or self.event.ends_transaction

    @property
    def place(self) -> tuple[int, int]:
        return self.event.position.order[:2] if self.event else (0, 0)

    @property
    def read(self) -> bool:
        return self.event is not None and self.event.type is EventType.READ


def transactions(random_: random.Random, gtids: Callable[[int], str], raw: bool) -> Iterator[list[Put]]:
    """Units without end: transactions of several events, DDLs, snapshots; times that are equal, and that go back, now and then far."""
    file, offset, number, now = 1, 4, 0, BEGAN

    def event(kind: EntryType, type_: EventType, set_: str = "", moment: int | None = None) -> Put:
        position = Position(f"binlog.{file:06d}", offset)
        position = position._replace(sources=parse_sources(set_)) if "=" in set_ else position._replace(gtids=set_)
        return Put(Event(kind, type_, position, now if moment is None else moment))

    while True:
        now += random_.choice((0, 0, 1000, 2000))
        if random_.random() < 0.04:
            now -= random_.choice((3_000, 40_000, 400_000))  # a clock was set back
        if random_.random() < 0.02:
            now += 100_000
        kind = random_.random()
        if kind < 0.12 and number:  # rows of a snapshot, at the place that the stream has reached
            rows = [event(EntryType.ROWS, EventType.READ) for _ in range(random_.randrange(3))]
            yield [*rows, event(EntryType.END, EventType.READ, gtids(number))]
            continue
        if raw and kind < 0.16:
            yield [Put(None)]
            continue
        if random_.random() < 0.1:
            file, offset = file + 1, 4
        number += 1
        offset += random_.randrange(1, 50)
        if kind < 0.25:
            yield [event(EntryType.DDL, EventType.ALTER, gtids(number))]
            continue
        unit = [event(EntryType.BEGIN, EventType.NONE)]
        for _ in range(random_.choice((0, 1, 1, 3, 7))):
            offset += random_.randrange(1, 100)
            unit.append(event(EntryType.ROWS, EventType.INSERT, moment=now + random_.choice((0, 0, -1000, 1000))))
        offset += 31
        now += random_.choice((0, 0, 2000))
        yield [*unit, event(EntryType.END, EventType.NONE, gtids(number))]


def at_time(puts: list[Put], oldest: int, moment: int) -> int:
    """The first event of the first unit that has an event at that moment or later."""
    later = next((i for i in range(oldest, len(puts)) if (each := puts[i].event) and each.time_ms >= moment), None)
    if later is None:
        return len(puts)
    while later > oldest and not puts[later - 1].ends_unit:
        later -= 1
    return later


def after_place(puts: list[Put], oldest: int, place: tuple[int, int]) -> int:
    """The first event after a place; a snapshot's rows that stand there come after it."""
    for i in range(oldest, len(puts)):
        if puts[i].place > place or (puts[i].place == place and puts[i].read):
            return i
    return len(puts)


def set_of(event: Event) -> Position:
    """A place by its GTID set, or by its sources, alone."""
    return Position("", 0, event.position.gtids, 0, event.position.sources)


def after_set(puts: list[Put], oldest: int, place: Position) -> int | None:
    """What follows the transaction that ends at a set, or the rows of a snapshot there, where the transaction is gone."""
    there = [i for i in range(oldest, len(puts)) if (each := puts[i].event) and each.ends_transaction and set_of(each) == place]
    stream = [i for i in there if not puts[i].read]
    if stream or not there:
        return stream[-1] + 1 if stream else None
    first = there[0]
    while first > oldest and not puts[first - 1].ends_unit:
        first -= 1
    return first


def found(view: StoreView, start: Any) -> int | None:
    try:
        return view.find(start)
    except PositionNotFound:
        return None


SETS = {
    "mysql": lambda number: f"{UUID}:1-{number}",
    "mariadb": lambda number: f"0-{1 + number % 3}-{number},5-1-9",
    "group": lambda number: f"a=binlog.000001:{number}/{UUID}:1-{number // 3 + 1};b=binlog.000001:{number}/",
    "none": lambda number: "",
}


@pytest.mark.parametrize("sets", SETS)
def test_every_start_is_found_as_in_a_list(
    store_name: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, sets: str
) -> None:
    """Time, position and GTID set lead where a list of all events says, whatever of it is in the ring, in the log, or in both."""
    random_ = random.Random(f"{seed} {sets}")
    monkeypatch.setattr(log_format, "file_slots", lambda size: 48)
    capacity = random_.choice((8, 16, 64))
    raw = sets == "none" and random_.random() < 0.5
    stream = transactions(random_, SETS[sets], raw)
    puts: list[Put] = []
    with EventStore.create(store_name, capacity=capacity, memory_unit=4096, log_size=16 << 20, state=tmp_path) as store:
        store.claim(start=Position("binlog.000001", 4))
        keeper = store._keeper
        assert keeper is not None

        def put(units: int) -> None:
            for _ in range(units):
                unit = next(stream)
                while unit:  # a unit may be put in parts
                    part = unit[: random_.randrange(1, 9)]
                    if len(part) > capacity - (store.newest - store.stat().log.written):  # type: ignore[union-attr]
                        return
                    for each in part:
                        store.put(b"raw" if each.event is None else each.event, timeout=20)
                    puts.extend(part)
                    unit = unit[len(part) :]

        for _ in range(3):
            for _ in range(random_.choice((3, 30))):
                put(1)
                if random_.random() < 0.5:
                    store.sync()
            store.sync()
            if random_.random() < 0.5 and len(puts) > 60:
                store.trim(random_.randrange(store.oldest, len(puts)))
            compare(store, puts, random_)
        keeper._end()  # from here on the ring alone has what is put
        keeper._threads[0].join(5)
        put(40)
        assert store.newest == len(puts) - 1
        compare(store, puts, random_)
        with StoreView.attach(store_name, state=tmp_path) as view:
            compare(view, puts, random_)


def compare(view: StoreView, puts: list[Put], random_: random.Random) -> None:
    oldest = view.oldest
    times = sorted({each.event.time_ms for each in puts if each.event})
    for moment in {*random_.sample(times, min(30, len(times))), times[0] - 1, times[-1] + 1}:
        for near in (moment - 500, moment, moment + 500):
            start = datetime.fromtimestamp(near / 1000, UTC)
            assert view.find(start) == at_time(puts, oldest, near), (near, oldest, view.newest)
    last = view.last_ack_point()
    group = last is not None and last.of_group
    for put in random_.sample(puts, min(30, len(puts))):
        if put.event is None:
            continue
        position = put.event.position
        for offset in (position.offset - 1, position.offset, position.offset + 1):
            start, place = Position(position.file, offset), (position.file_number, offset)
            wanted, got = after_place(puts, oldest, place), found(view, start)
            if group or any(each.event is None for each in puts):
                continue
            if wanted == oldest > 0 and puts[oldest - 1].place > place:
                assert got is None, "events after it are gone"
            elif wanted == oldest > 0:
                assert got in (None, oldest)
            else:
                assert got == wanted, (start, oldest, view.newest)
    for place_ in {set_of(each.event) for each in random_.sample(puts, min(30, len(puts))) if each.event} - {Position("", 0)}:
        assert found(view, place_) == after_set(puts, oldest, place_), (place_, oldest, view.newest)


def test_a_time_that_has_not_come(store_name: str, tmp_path: Path) -> None:
    """A time in the future is refused, not taken for latest; one of an event, and one just now, are not."""
    with EventStore.create(store_name, state=tmp_path) as store:
        now = datetime.now(UTC)
        ahead = now + timedelta(days=400)
        with pytest.raises(PositionNotFound, match=r"is in the future.* give an earlier time, or latest"):
            store.find(ahead.isoformat())
        store.put(Event(EntryType.END, EventType.NONE, Position("binlog.000001", 9), round(now.timestamp() * 1000)))
        assert store.find(now + timedelta(seconds=5)) == 1, "no event of it yet: the next one"
        with pytest.raises(PositionNotFound, match="is in the future"):
            store.subscribe("a", start=ahead)
        assert [each.name for each in store.subscriptions()] == []
        store.put(Event(EntryType.END, EventType.NONE, Position("binlog.000001", 19), round(ahead.timestamp() * 1000)))
        assert store.find(ahead) == 1, "the server's clock says so"
