"""consumer/monitoring/table_counts.py: rows and bytes by table, counted by the process that asks for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore import Column, EntryType, Event, EventStore, EventType, Position, Row, StoreView, TableSchema
from shmstore.consumer.monitoring import table_counts
from shmstore.consumer.monitoring.metrics import prometheus
from shmstore.consumer.monitoring.table_counts import Counting, TableCounts
from shmstore.encoding.codec import encode

KINDS = (EventType.INSERT, EventType.UPDATE, EventType.DELETE, EventType.READ)


def change(table: str, rows: int = 1, kind: EventType = EventType.INSERT, time_ms: int = 1000) -> Event:
    image: tuple[tuple[int] | None, tuple[int] | None] = {
        EventType.DELETE: ((1,), None),
        EventType.UPDATE: ((1,), (2,)),
    }.get(kind, (None, (1,)))
    schema = TableSchema("shop", table, (Column("id", "int"),), (0,))
    return Event(EntryType.ROWS, kind, Position("b.1", 9), time_ms, table=schema, rows=(Row(*image),) * rows)


def end() -> Event:
    return Event(EntryType.END, EventType.NONE, Position("b.1", 9), 0)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5), st.sampled_from(KINDS)), min_size=1, max_size=30),
    st.integers(0, 30),
)
def test_all_rows_are_counted_once(changes: list[tuple[str, int, EventType]], looks: int) -> None:
    """Whenever it looks, all together is what was put: rows by operation, bytes, the newest time."""
    name = f"test-{os.getpid()}-tables"
    with EventStore.create(name, log=False) as store:
        try:
            counts = TableCounts(store.epoch, 0)
            events = [change(table, rows, kind, n) for n, (table, rows, kind) in enumerate(changes)]
            with StoreView.attach(name) as view:
                for n, event in enumerate(events):
                    store.put([event, end()])
                    if n == looks:
                        counts.follow(view)
                counts.follow(view)
            for table in "abc":
                mine = [(n, event) for n, event in enumerate(events) if event.table is not None and event.table.table == table]
                for kind in KINDS:
                    assert counts.rows["shop", table, kind.name.lower()] == sum(len(e.rows) for _, e in mine if e.type is kind)
                assert counts.bytes["shop", table] == sum(len(encode(event)) for _, event in mine)
                assert counts.last_ms.get(("shop", table)) == (mine[-1][0] if mine else None)
            assert counts.uncounted == 0
        finally:
            EventStore.unlink(name)


def test_what_was_gone_is_told(store_name: str) -> None:
    """Of a store without a log, what left the ring before it was counted is a number of its own."""
    with EventStore.create(store_name, capacity=16, log=False) as store, StoreView.attach(store.name) as view:
        reader = store.subscribe("r")
        counts = TableCounts(store.epoch, 0)
        for _ in range(40):
            store.put([change("a")])
            reader.ack(reader.get(timeout=0))
        store.put([change("a")])
        counts.follow(view)
        assert counts.rows["shop", "a", "insert"] + counts.uncounted == 41
        assert counts.uncounted >= 40 - 16
        assert f'shmstore_table_uncounted_events_total{{store="{store.name}"}} {counts.uncounted}' in prometheus(
            [view.stat()], counts={store.name: counts}
        )


def test_there_is_an_end_to_the_tables(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tables than a scrape should have count together."""
    monkeypatch.setattr(table_counts, "MOST_TABLES", 3)
    with StoreView.attach(store.name) as view:
        counts = TableCounts(store.epoch, 0)
        store.put([change(f"t{n}") for n in range(10)])
        counts.follow(view)
        assert counts.rows["", "", "insert"] == 7
        assert sum(counts.rows.values()) == 10


def test_a_store_that_comes_later_and_comes_again(store_name: str) -> None:
    """Counted from the first event of a store that is created later; over its end and a new one of its name the counts rise."""
    counting = Counting(lambda: [store_name])
    counting.start()
    try:
        for already in (0, 5):
            with EventStore.create(store_name, log=False) as store:
                store.put([change("a", 5)])
                until(lambda: store_name in counting.counts)
                until(lambda: sum(counting.counts[store_name].rows.values()) == already + 5)  # noqa: B023
                EventStore.unlink(store_name)
    finally:
        counting.close()


def test_what_was_there_before_is_not_counted(store: EventStore) -> None:
    """A counter begins with the endpoint, so that its start is no burst of everything that was ever put."""
    store.put([change("a", 5)])
    counting = Counting(lambda: [store.name])
    counting.start()
    try:
        store.put([change("b", 2)])
        until(lambda: counting.counts[store.name].rows["shop", "b", "insert"] == 2)
        assert counting.counts[store.name].rows["shop", "a", "insert"] == 0
    finally:
        counting.close()


def test_of_many_events_the_newest_stand_for_all(store: EventStore) -> None:
    """Who looks at `most` events of more raises what they count in proportion, and misses no DDL among the rest."""
    counts = TableCounts(store.epoch, 0)
    ddl = Event(
        EntryType.DDL,
        EventType.ALTER,
        Position("b.1", 9),
        5,
        database="shop",
        sql="ALTER TABLE x ADD y INT",
        props={"table": "x"},
    )
    store.put([change("b", 7), ddl, *(change("a", 2) for _ in range(98))])
    with StoreView.attach(store.name) as view:
        counts.follow(view, most=10)
        assert dict(counts.rows) == {("shop", "a", "insert"): 200}
        assert counts.ddls == {("shop", "x"): (5, "alter", "ALTER TABLE x ADD y INT")}
        store.put([change("b", 3), end()])
        counts.follow(view, most=10)
        assert counts.rows["shop", "b", "insert"] == 3
        assert counts.uncounted == 0
