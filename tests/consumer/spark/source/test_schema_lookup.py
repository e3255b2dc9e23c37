"""The columns of a typed query's table, and the error where they are not known."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from shmstore import EventStore, SchemaUnknown, TableSchema
from shmstore.consumer import table_schemas
from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source.batch_planner import BatchLimit
from shmstore.consumer.spark.source.schema_lookup import find_table
from shmstore.consumer.spark.source.stream_reader import StreamReader
from shmstore.home.definitions import Definition, DefinitionsFile
from shmstore.home.home import Home
from tests.consumer.spark.events import ORDERS, Binlog, order_row


def find(store: str, table: str) -> object:
    return find_table(SourceOptions.parse({"store": store, "tables": table})).schema


def test_the_columns_of_the_next_row_are_found(store: EventStore, binlog: Binlog) -> None:
    """Those of the oldest row that the query has not read, not of the newest one. A name may hold a dot."""
    wider = ORDERS._replace(columns=(*ORDERS.columns, ORDERS.columns[0]._replace(name="more")))
    odd = ORDERS._replace(table="or.ders")
    store.put([*binlog.insert(order_row(1)), *binlog.insert(order_row(1), table=odd)])
    behind = store.newest
    store.put(binlog.insert((*order_row(2), 3), table=wider))
    assert find(store.name, "shop.orders") == ORDERS
    assert find(store.name, "shop.or.ders") == odd
    for start, table in (("earliest", ORDERS), ("1", ORDERS), ("2", wider), (str(behind), wider), ("latest", wider)):
        options = {"store": store.name, "tables": "shop.orders", "startingOffsets": start, "subscription": "other"}
        assert find_table(SourceOptions.parse(options)).schema == table
    with store.subscribe("spark-shop.orders") as subscription:
        assert find(store.name, "shop.orders") == ORDERS
        subscription.get(timeout=0)
        for end in (2, behind):
            subscription.ack(end)
            assert find(store.name, "shop.orders") == wider


def test_an_unknown_table_says_what_there_is(store: EventStore, binlog: Binlog) -> None:
    """A misspelled name is distinguished from a table that has not changed yet."""
    store.put(binlog.insert(order_row(1)))
    with pytest.raises(SchemaUnknown, match=r"tableTimeout=SECONDS.*It knows shop\.orders; did you mean shop\.orders\?$"):
        find(store.name, "shop.order")
    with pytest.raises(SchemaUnknown, match=r"It knows shop\.orders$"):
        find(store.name, "crm.people")


def test_who_holds_the_producer_up_is_said(
    store_name: str, binlog: Binlog, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A ring full of what another query's subscription has not acked: a new query says whose, and so does one that gets no events."""
    with EventStore.create(store_name, capacity=8, log=False) as store:
        store.claim()
        store.subscribe("left_behind").close()
        store.put([*binlog.insert(order_row(1)), *binlog.insert(order_row(2))])
        putting = threading.Thread(target=lambda: store.put(binlog.insert(order_row(3)), timeout=20), daemon=True)
        putting.start()
        with EventStore.attach(store_name) as other:
            while other.stat().space_wanted is None:
                assert putting.is_alive()
            says = r"ring is full, and the producer waits: subscription 'left_behind' .*`shmstore unsubscribe \S+ left_behind`"
            with pytest.raises(SchemaUnknown, match=says):
                find(store_name, "crm.people")
            reader = StreamReader(Decoder(SourceOptions.parse({"store": store_name, "startingOffsets": "latest"})))
            start = reader.initialOffset()
            with caplog.at_level(logging.WARNING):
                assert reader.plan(start, BatchLimit()) == start
            reader.stop()
            assert "query with subscription 'spark' gets no events. Its ring is full" in caplog.text
            other.unsubscribe("left_behind")
        putting.join(20)


def more(table: TableSchema, name: str) -> TableSchema:
    return table._replace(columns=(*table.columns, table.columns[0]._replace(name=name)))


def write_down(store: EventStore, state: Path, *versions: tuple[int, TableSchema]) -> None:
    lines = [Definition("binlog.000001", offset, each.database, each.table, each) for offset, each in versions]
    DefinitionsFile(Home.of(store.name, state)).replace(lines)


def test_a_table_without_a_row(store: EventStore, binlog: Binlog, state: Path) -> None:
    """Its definition is the one that the producer wrote down; reading it writes nothing."""
    write_down(store, state, (4, ORDERS))
    before = sorted(path.name for path in (state / store.name).rglob("*"))
    assert find(store.name, "shop.orders") == ORDERS
    store.put(binlog.insert(order_row(1), table=ORDERS._replace(table="others")))
    assert find(store.name, "shop.orders") == ORDERS
    assert sorted(path.name for path in (state / store.name).rglob("*")) == before
    with pytest.raises(SchemaUnknown, match=r"It knows shop\.orders, shop\.others; did you mean shop\.orders\?$"):
        find(store.name, "shop.order")


def test_right_after_a_ddl(store: EventStore, binlog: Binlog, state: Path) -> None:
    """A query that has rows from before it still to read gets their columns; one that has not gets those of the rows to come; and so does
    neither while the DDL is on its way to the store."""
    wider = more(ORDERS, "added")
    store.put(binlog.insert(order_row(1)))
    end = store.last_ack_point()
    assert end is not None
    options = {"store": store.name, "tables": "shop.orders"}
    latest = SourceOptions.parse(options | {"startingOffsets": "latest", "subscription": "other"})
    write_down(store, state, (4, ORDERS), (end.offset + 1, wider))
    assert find_table(latest).schema == ORDERS
    write_down(store, state, (4, ORDERS), (end.offset, wider))
    assert find_table(latest).schema == wider
    with store.subscribe("spark-shop.orders") as subscription:
        assert find_table(SourceOptions.parse(options)).schema == ORDERS
        subscription.get(timeout=0)
        subscription.ack(store.newest)
        assert find_table(SourceOptions.parse(options)).schema == wider
    store.put(binlog.insert((*order_row(2), 3), table=wider))
    assert find_table(SourceOptions.parse(options)).schema == find_table(latest).schema == wider


def test_no_row_is_looked_for_where_none_can_say_more(
    store: EventStore, binlog: Binlog, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table without an ALTER since the first event that is read: the store, however large, is not searched."""
    store.put(binlog.insert(order_row(1), table=ORDERS._replace(table="others")))
    write_down(store, state, (4, ORDERS))
    monkeypatch.setattr(table_schemas, "schemas", lambda *_: pytest.fail("searched"))
    assert find(store.name, "shop.orders") == ORDERS


def test_a_table_that_is_waited_for(store: EventStore, state: Path) -> None:
    """`tableTimeout`: until the producer has seen it; an error that names it when that does not happen."""
    options = {"store": store.name, "tables": "shop.orders"}
    found: list[TableSchema] = []
    waiting = threading.Thread(
        target=lambda: found.append(find_table(SourceOptions.parse(options | {"tableTimeout": "60"})).schema)
    )
    waiting.start()
    write_down(store, state, (4, ORDERS))
    waiting.join(60)
    assert found == [ORDERS]
    with pytest.raises(SchemaUnknown, match=r"knows no table shop\.none"):
        find_table(SourceOptions.parse(options | {"tables": "shop.none", "tableTimeout": "0.1"}))
