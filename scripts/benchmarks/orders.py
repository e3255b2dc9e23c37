"""The table that copies are measured with, and its changes: of ten events nine bring new rows, one has updates of random keys."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from shmstore import Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.encoding.codec import encode

KEYS, BATCH, EVENT = 1_000_000, 100_000, 500  # rows that are there before, rows of a batch, rows of an event
TABLE = TableSchema(
    "shop",
    "orders",
    (
        Column("id", "bigint", nullable=False),
        Column("customer", "int", unsigned=True),
        Column("amount", "decimal", size=12, scale=2),
        Column("placed", "datetime", scale=3),
        Column("status", "varchar", size=40, charset="utf8mb4"),
    ),
    (0,),
)
Change = tuple[EventType, Iterable[int]]  # the kind of an event, and the keys of its rows


def row(key: int, status: str = "new") -> tuple[Any, ...]:
    """The values of the row with this key."""
    return (key, key % 1000, Decimal(key % 100_000).scaleb(-2), datetime(2026, 1, 1) + timedelta(seconds=key), status)


def event(type_: EventType, keys: Iterable[int]) -> bytes:
    """Return the encoded event of one kind, with the rows of these keys."""
    return encode(rows_event(type_, keys))


def rows_event(type_: EventType, keys: Iterable[int]) -> Event:
    """Return the event of one kind, with the rows of these keys."""
    images = tuple([Row(values if type_ is EventType.UPDATE else None, values) for values in map(row, keys)])
    place = Position("binlog.000001", 4)
    return Event(EntryType.ROWS, type_, place, 1_700_000_000_000, 1, 100, "0-1-1", 0, database="shop", table=TABLE, rows=images)


def filled(keys: int) -> list[bytes]:
    """Return the events that insert the rows of keys 0 to `keys` - 1."""
    return [event(EventType.INSERT, range(first, first + EVENT)) for first in range(0, keys, EVENT)]


def changes(keys: int, batches: int, batch: int) -> list[list[Change]]:
    """Return `batches` batches of `batch` rows, of a table with rows 0 to `keys` - 1."""
    choose, fresh, found = random.Random(1), keys, []
    for _ in range(batches):
        events: list[Change] = []
        for number in range(batch // EVENT):
            if number % 10 == 0:
                events.append((EventType.UPDATE, [choose.randrange(keys) for _ in range(EVENT)]))
            else:
                events.append((EventType.INSERT, range(fresh, fresh + EVENT)))
                fresh += EVENT
        found.append(events)
    return found
