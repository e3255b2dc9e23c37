"""consumer/tail.py: what is written, and that nothing is acked before it is flushed."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator

import pytest

from shmstore import EventStore
from shmstore.consumer import Consumer
from shmstore.consumer.formats.formatter import Formatter
from shmstore.consumer.tail import Peek, tables, tail
from shmstore.event import Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.start_position import Start
from tests.shmstore.commands import alone


def change(number: int, table: str = "orders", note: str = "n") -> Event:
    schema = TableSchema("shop", table, (Column("id", "bigint", nullable=False), Column("note", "varchar")), (0,))
    place = Position("binlog.000001", 10 * (number + 1))
    return Event(EntryType.ROWS, EventType.INSERT, place, number, table=schema, rows=(Row(None, (number, note)),))


def ddl(sql: str, database: str = "shop") -> Event:
    return Event(EntryType.DDL, EventType.ALTER, Position("binlog.000001", 5), 0, database=database, sql=sql)


@pytest.fixture
def store(store_name: str) -> Iterator[EventStore]:
    with EventStore.create(store_name, capacity=64, log=False) as made:
        yield made


def reader(store: EventStore, limit: int = 2) -> Consumer:
    return Consumer(store, "out", timeout=0, limit_events=limit, checkpoint=False)


def ack(store: EventStore) -> int:
    return store.subscriptions()[0].ack.sequence


class Pipe(io.BytesIO):
    """An output that notes what is acked when it is flushed, and may fail then."""

    def __init__(self, store: EventStore, fails_at: int = -1) -> None:
        super().__init__()
        self.store, self.fails_at, self.acks = store, fails_at, list[int]()

    def flush(self) -> None:
        if len(self.acks) == self.fails_at:
            raise BrokenPipeError
        self.acks.append(ack(self.store))


def test_flush_then_ack(store: EventStore) -> None:
    """Each batch is flushed before it is acked."""
    store.put([change(number) for number in range(6)])
    out = Pipe(store)
    with reader(store) as consumer:
        tail(consumer, out)
    assert out.acks == [-1, 1, 3]
    assert [json.loads(line)["seq"] for line in out.getvalue().splitlines()] == [0, 1, 2, 3, 4, 5]
    assert ack(store) == 5


def test_failed_flush_acks_nothing(store: EventStore) -> None:
    """What could not be flushed is not acked and comes again."""
    store.put([change(number) for number in range(6)])
    with pytest.raises(BrokenPipeError), reader(store) as consumer:
        tail(consumer, Pipe(store, fails_at=1))
    assert ack(store) == 1


@pytest.mark.parametrize("peeks", [True, False])
def test_an_output_that_nobody_reads_ends_the_wait(store: EventStore, peeks: bool) -> None:
    """`tail | head -1` ends when head does, not with the next event: nothing is left that holds the subscription."""
    store.put([change(0)])
    reading, writing = os.pipe()
    follow = Consumer(store, "out", checkpoint=False)
    reader = Peek(store, "earliest", follow=True, missed=lambda count: None) if peeks else follow
    with follow, open(writing, "wb") as out, open(reading, "rb") as pipe:
        threading.Thread(target=lambda: (pipe.readline(), pipe.close())).start()
        with pytest.raises(BrokenPipeError):
            tail(reader, out)
    assert ack(store) == (-1 if peeks else 0)


def test_nothing_watches_an_output_that_is_done_with(store: EventStore) -> None:
    """When tail is over, no thread is left that holds the reader, and so its store's memory, until the process exits."""
    store.put([change(0)])
    alone(WATCHED, store.name)


WATCHED = """
import os, sys, threading
from contextlib import suppress
from shmstore import EventStore
from shmstore.consumer import Consumer
from shmstore.consumer.tail import tail

reading, writing = os.pipe()
with EventStore.attach(sys.argv[1]) as store, open(reading, "rb"), open(writing, "wb") as out:
    found = [(1, len(os.listdir("/proc/self/fd")))]
    for failing in (False, True):
        with suppress(ZeroDivisionError), Consumer(store, "out", timeout=0, limit_events=2, checkpoint=False) as consumer:
            tail(consumer, out, chosen=(lambda event: bool(1 // 0)) if failing else None)
        found.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))
assert found == [found[0]] * 3, found
"""


def test_count_counts_what_is_printed(store: EventStore) -> None:
    """`count` counts events that the format has documents for, and only what was looked at is acked."""
    begin = Event(EntryType.BEGIN, EventType.NONE, Position("binlog.000001", 1), 0)
    store.put([begin, change(1), begin, change(3), change(4)])
    out = io.BytesIO()
    with reader(store, limit=5) as consumer:
        tail(consumer, out, formatter=Formatter("maxwell"), count=2)
    assert [json.loads(line)["data"]["id"] for line in out.getvalue().splitlines()] == [1, 3]
    assert ack(store) == 3


def test_text_that_is_no_unicode(store: EventStore) -> None:
    """A lone surrogate is written as an escape that JSON reads back, not as bytes that are no UTF-8."""
    event = change(1)._replace(rows=(Row(None, (1, "é\udc80")),))
    batch = [event]

    class Once(list[object]):
        first, last = 0, 0

    class Reader(list[object]):
        def ack(self, sequence: int | None = None) -> None: ...

    out = io.BytesIO()
    tail(Reader([Once(batch)]), out)  # type: ignore[arg-type]
    assert json.loads(out.getvalue().decode("utf-8"))["after"]["note"] == "é\udc80"
    assert "é".encode() in out.getvalue()


@pytest.mark.parametrize("start", ["2", 2, Position("binlog.000001", 20), "binlog.000001:20", "time:1970-01-01T00:00:00.002Z"])
def test_peek_begins_where_a_subscription_would(store: EventStore, start: Start) -> None:
    """A look begins at the same event as a subscription of the same start, whatever form that has."""
    store.put([change(number)._replace(entry=EntryType.END) for number in range(4)])
    batches = iter(Peek(store, start, follow=False, missed=lambda count: None))
    assert next(batches).first == 2
    with store.subscribe("new", start=start) as new:
        assert new.get(timeout=0).first == 2


def test_peek_follows_and_stops(store: EventStore) -> None:
    """A peek that follows sees what is put later, and ends on request."""
    store.put([change(0)])
    peek = Peek(store, "earliest", follow=True, missed=lambda count: None)
    batches = iter(peek)
    assert [event.position.offset for event in next(batches)] == [10]
    store.put([change(1)])
    assert [event.position.offset for event in next(batches)] == [20]
    peek.stop()
    assert list(batches) == []


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        ("shop.orders", ["orders", "ddl orders", "statement"]),
        ("shop.*", ["orders", "log", "ddl orders", "statement", "rename", "move"]),
        ("*.log", ["log"]),
        ("shop.o?ders , x.y", ["orders", "ddl orders", "statement"]),
        ("other.*", ["ddl other"]),
        ("SHOP.ORDERS", []),
        ("attic.*", ["rename", "move"]),
        ("shop.*,!shop.log", ["orders", "ddl orders", "statement", "rename", "move"]),
        ("!*.log , shop.*, !shop.a", ["orders", "ddl orders", "statement", "rename"]),
        ("!shop.*", ["ddl other", "rename", "move"]),
        ("*", ["orders", "log", "ddl orders", "ddl other", "statement", "rename", "move"]),
        ("*,!*.*", []),
    ],
)
def test_patterns(patterns: str, wanted: list[str]) -> None:
    """Globs over database.table choose row events and statements, by the table that the statement names; markers are left out."""
    events = {
        "orders": change(0),
        "log": change(0, "log"),
        "ddl orders": ddl("ALTER TABLE orders ADD x INT"),
        "ddl other": ddl("ALTER TABLE other.orders ADD x INT"),
        "statement": ddl("INSERT INTO orders VALUES (1)")._replace(entry=EntryType.ROWS, props={"table": "orders"}),
        "rename": ddl("RENAME ...")._replace(props={"tables": "shop.a,shop.b", "to_table": "shop.a,attic.b"}),
        "move": ddl("RENAME ...")._replace(props={"table": "a", "to_table": "attic.a"}),
        "begin": Event(EntryType.BEGIN, EventType.NONE, Position("binlog.000001", 1), 0),
    }
    chosen = tables(patterns)
    assert [name for name, event in events.items() if chosen(event)] == wanted


@pytest.mark.parametrize("patterns", ["orders", "shop.orders,log", "shop.*,!log", "!", "", " , "])
def test_bad_patterns(patterns: str) -> None:
    """A pattern without a database is refused with what it should be."""
    with pytest.raises(ValueError, match=r"DATABASE\.TABLE"):
        tables(patterns)
