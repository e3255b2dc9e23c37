"""Transactions of several sources, and the events that a producer of them all puts, in any of their orders."""

from __future__ import annotations

import random
from typing import NamedTuple

from shmstore import EntryType, Event, EventType, Position, Row
from shmstore.event import Cut, Sources
from tests.consumer.spark.events import ORDERS, order_row

UUID = "3e11fa47-71ca-11e1-9e33-c80aa942956"
FILES = {"a": "x.000009", "b": "y.000001", "c d": "x.000009"}
GTIDS = {"a": "0-1-%d", "b": f"{UUID}2:%d", "c d": f"{UUID}3:%d"}
SETS = {"a": "0-1-%d", "b": f"{UUID}2:1-%d", "c d": f"{UUID}3:1-%d"}


class Transaction(NamedTuple):
    """`parts`: the rows of each event in each part that it is put in; `read`: rows of a snapshot."""

    source: str
    number: int
    parts: tuple[tuple[int, ...], ...]
    read: bool = False


def transactions(rng: random.Random, count: int, *, large: int = 0) -> dict[str, list[Transaction]]:
    """Random ones of each source, about one of `large` of them in parts. Keys of rows say source and number."""
    found: dict[str, list[Transaction]] = {source: [] for source in FILES}
    for _ in range(count):
        source = rng.choice(list(FILES))
        parts = rng.randrange(2, 6) if large and not rng.randrange(large) else 1
        rows = tuple(tuple(rng.randrange(1, 4) for _ in range(rng.randrange(1, 4))) for _ in range(parts))
        found[source].append(Transaction(source, len(found[source]) + 1, rows))
    return found


def merged(rng: random.Random, given: dict[str, list[Transaction]]) -> list[Transaction]:
    """The transactions of all sources in some order that keeps each source's."""
    left = {source: list(some) for source, some in given.items() if some}
    order = []
    while left:
        source = rng.choice(list(left))
        order.append(left[source].pop(0))
        left = {source: some for source, some in left.items() if some}
    return order


def place(source: str, number: int) -> Position:
    """Where a source stands after its transaction `number`."""
    return Position(FILES[source], 1000 * number + 999, SETS[source] % number)


class Group:
    """Puts transactions as a producer of several sources does; `at`: the number of the last one of each before."""

    def __init__(self, at: dict[str, int] | None = None) -> None:
        self.at = at or dict.fromkeys(FILES, 0)

    @property
    def sources(self) -> Sources:
        return tuple(sorted((source, place(source, number)) for source, number in self.at.items()))

    def start(self) -> list[Event]:
        """The empty transaction with which a store begins."""
        begin = Event(EntryType.BEGIN, EventType.NONE, Position("", 0), 1, transaction="group")
        return [begin, begin._replace(entry=EntryType.END, position=Position("", 0, sources=self.sources), order=1)]

    def puts(self, one: Transaction) -> list[list[Event]]:
        """The events of a transaction, by part."""
        source, number = one.source, one.number
        file, end = FILES[source], 1000 * number
        type_, name = EventType.INSERT, GTIDS[source] % number
        own = ""
        if one.read:
            stands = place(source, self.at[source])
            type_, name, own, end = EventType.READ, f"{file}:{stands.offset}:0", stands.gtids, stands.offset
        begin = Event(EntryType.BEGIN, EventType.READ if one.read else EventType.NONE, Position(file, end, own), 1, 5, 10, name)
        puts, order, key = [[begin]], 0, 0
        for number_of_part, events in enumerate(one.parts):
            if number_of_part:
                last = puts[-1][-1]
                puts[-1][-1] = last._replace(props={"source": source}, cut=Cut(self.sources, last.order))
                puts.append([])
            for rows in events:
                order += 1
                made = tuple(Row(None, order_row(_key(one, key + i))) for i in range(rows))
                key += rows
                at = Position(file, end if one.read else end + order, own)
                rows_event = begin._replace(entry=EntryType.ROWS, type=type_, position=at, order=order, part=number_of_part)
                puts[-1].append(rows_event._replace(database="shop", table=ORDERS, rows=made))
        if not one.read:
            self.at[source] = number
        at = Position(file, end if one.read else end + 999, SETS[source] % self.at[source], sources=self.sources)
        puts[-1].append(begin._replace(entry=EntryType.END, position=at, order=order + 1, props={"source": source}))
        if not one.read and number % 4 == 0:
            puts.append([self.change(source)])
        return puts

    def change(self, source: str) -> Event:
        """The event that changes the filters of a source."""
        props = {"filters_changed": "include", "tables_in": "shop.other", "filters_of": source}
        return Event(
            EntryType.HEARTBEAT, EventType.NONE, Position("", 0, sources=self.sources), 1, transaction="group", props=props
        )


def _key(one: Transaction, number: int) -> int:
    return (one.number * 1000 + number) * 10 + list(FILES).index(one.source) * 2 + one.read


def keys(one: Transaction) -> list[tuple[str, int]]:
    """Source and key of each row of a transaction, in order."""
    return [(one.source, _key(one, i)) for i in range(sum(map(sum, one.parts)))]
