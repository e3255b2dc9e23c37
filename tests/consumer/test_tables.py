"""Consumer(tables=...): what is given, what is acked without being given, and how long that waits."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import BatchMode, Consumer, EntryType, Event, EventStore, EventType, Position, StoreCorrupt, TableSchema
from shmstore.consumer.tail import tables, tail
from tests.consumer.conftest import Reach
from tests.consumer.test_consumer import TABLE, acked, transaction

pytestmark = pytest.mark.usefixtures("state")


@pytest.fixture(params=[True, False], ids=["log", "ring"])
def either_store(request: pytest.FixtureRequest, store_name: str, state: Path) -> Iterator[EventStore]:
    """A store with a log, or the ring alone."""
    with EventStore.create(store_name, capacity=1024, log=request.param) as made:
        yield made


def of(number: int, table: str, database: str = "shop") -> list[Event]:
    begin, row, end = transaction(number)
    return [begin, row._replace(table=TableSchema(database, table, TABLE.columns, (0,))), end]


def ddl(number: int, sql: str, **props: str) -> Event:
    return Event(EntryType.DDL, EventType.QUERY, Position("binlog.000001", number), 0, database="shop", sql=sql, props=props)


def test_rows_and_ddls_of_the_tables(either_store: EventStore, reach: Reach, seed: int) -> None:
    """Of any mixture the events are those that `tail --tables` prints, with their sequences; all is acked at the end."""
    chance = random.Random(seed)
    names = ["orders", "lines", "log", "Orders"]
    put: list[Event] = []
    for number in range(120):
        some = chance.choice(names)
        put += chance.choice(
            [
                of(number, some),
                of(number, some, "crm"),
                [ddl(number, f"ALTER TABLE {some} ADD c INT")],
                [ddl(number, f"DROP TABLE {some}, lines", tables=f"shop.{some},shop.lines")],
                [ddl(number, f"RENAME TABLE {some} TO x", table=some, to_table="shop.x")],
                [ddl(number, "CREATE DATABASE other")],
            ]
        )
    either_store.put(put)
    for patterns in (
        "shop.orders",
        "shop.*,!shop.log",
        "*.lines",
        r"(shop|crm)\.orders",
        ["shop.orders", "crm.*"],
        "shop.x",
        "none.none",
    ):
        text = patterns if isinstance(patterns, str) else ",".join(patterns)
        out = io.BytesIO()
        with Consumer(reach(either_store.name), "tail", auto_ack=False, timeout=0) as reader:
            tail(reader, out, chosen=tables(text))
            reader.seek("earliest") if either_store.has_log else reader.rollback()
        printed = {json.loads(line)["seq"] for line in out.getvalue().splitlines()}
        given = []
        with Consumer(reach(either_store.name), f"audit{len(text)}", tables=patterns, limit_events=7, timeout=0) as reader:
            for batch in reader:
                assert len(batch) > 0
                assert [event.sequence for event in batch] == batch.sequences.tolist()
                assert len(list(batch.payloads())) == len(batch.slots) == len(batch.ends) == len(batch)
                given += batch.events
        assert {event.sequence for event in given} == printed
        assert given == [put[event.sequence] for event in given]
        assert acked(either_store, f"audit{len(text)}") == len(put) - 1


def test_what_is_not_given_is_acked_after_what_was(store: EventStore, reach: Reach) -> None:
    """Events of other tables do not count as done before what was given ahead of them is, and do not hold the log up after it."""
    for number, table in enumerate(["orders", "log", "log", "orders", "log"]):
        store.put(of(number, table))
    with Consumer(reach(store.name), "audit", tables="shop.orders", limit_events=3, timeout=0, auto_ack=False) as reader:
        first = next(reader)
        assert (first.first, first.last, len(first)) == (0, 2, 1)
        second = next(reader)
        assert (second.first, acked(store)) == (9, -1)
        reader.ack(first)
        assert acked(store) == 2
        assert [batch.first for batch in reader] == [9], "a new loop is a retry"
        assert acked(store) == 8
    with Consumer(reach(store.name), "audit", tables="shop.orders", limit_events=3, timeout=0, auto_ack=False) as reader:
        batch = next(reader)
        assert (batch.first, acked(store)) == (9, 8)
        reader.ack(batch)
        assert next(reader, None) is None
        assert acked(store) == 14


def test_events_end_behind_their_batch(store: EventStore, reach: Reach) -> None:
    """events() acks a batch whole once its last wanted event was processed; left within it, only up to the current event."""
    store.put([*of(0, "orders"), *of(1, "orders"), *of(2, "log")])
    for left, done in ((True, 1), (False, 8)):
        with Consumer(reach(store.name), f"audit{left}", tables="shop.orders", timeout=0) as reader:
            for event in reader.events():
                assert event.table is not None
                if left:
                    break
        assert acked(store, f"audit{left}") == done


def test_a_batch_of_some_tables_as_arrow(store: EventStore, reach: Reach) -> None:
    """Rows of other tables are not in the Arrow table either; it needs no name where one table is wanted."""
    store.put([*of(0, "log"), *of(1, "orders"), *of(2, "log"), *of(3, "orders")])
    with Consumer(reach(store.name), "audit", tables="shop.orders", timeout=0) as reader:
        (batch,) = reader
    assert batch.to_arrow().column("seq").to_pylist() == [4, 10]
    assert batch.to_arrow("shop.log").num_rows == 0
    assert batch.position == transaction(3)[-1].position


def test_a_table_that_a_batch_has_no_row_of(store: EventStore, reach: Reach) -> None:
    """One that the store has is empty, with its columns; one that it never had is refused, with those that are there."""
    store.put([*of(0, "log"), *of(1, "orders")])
    with Consumer(reach(store.name), "audit", limit_events=3, timeout=0) as reader:
        batch = next(reader)
        other = batch.to_arrow("shop.orders")
        assert (other.num_rows, other.schema) == (0, batch.to_arrow("shop.log").schema)
        with pytest.raises(ValueError, match=r"'shop\.ordres' is not in the store.*: the batch holds rows of shop\.log"):
            batch.to_arrow("shop.ordres")


@pytest.mark.parametrize("patterns", ["", [], "orders", "shop.(", ["shop.*", "("]])
def test_a_pattern_that_cannot_be(store: EventStore, patterns: str | list[str], reach: Reach) -> None:
    """Patterns that name nothing, or are none, are refused before a subscription is made."""
    with pytest.raises(ValueError, match=r"pattern"):
        Consumer(reach(store.name), "audit", tables=patterns)
    assert store.subscriptions() == ()


def test_raw_bytes_have_no_table(store: EventStore, reach: Reach) -> None:
    """A store of other bytes has no tables: the error says that, and nothing is acked."""
    store.put([b"mine"])
    with pytest.raises(StoreCorrupt, match="not an event"), Consumer(reach(store.name), "audit", tables="*", timeout=0) as reader:
        next(reader)
    assert acked(store) == -1
    with Consumer(reach(store.name), "audit", timeout=0) as reader:
        assert [bytes(each) for batch in reader for each in batch.payloads()] == [b"mine"]


@pytest.mark.parametrize("mode", BatchMode)
def test_a_limit_counts_events(store_name: str, mode: BatchMode, reach: Reach) -> None:
    """`limit` is in events, whatever the store's batch mode; the same as `limit_events`."""
    with EventStore.create(store_name, capacity=64, batch_mode=mode) as store:
        for number in range(3):
            store.put(transaction(number))
        for name, how in (("a", {"limit": 2}), ("b", {"limit_events": 2}), ("c", {"limit": 2, "limit_events": 5})):
            with Consumer(reach(store.name), name, timeout=0, **how) as reader:
                assert [len(batch) for batch in reader] == [2, 2, 2, 2, 1]
