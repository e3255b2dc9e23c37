"""The columns of a typed query's table, and what is said where they are not known."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from shmstore import EventStore, SchemaUnknown
from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.options import Options
from shmstore.consumer.spark.source.batch_planner import Limit
from shmstore.consumer.spark.source.schema_lookup import find_table
from shmstore.consumer.spark.source.stream_reader import StreamReader
from tests.consumer.spark.events import ORDERS, Binlog, order_row


def find(store: str, table: str) -> object:
    return find_table(Options.parse({"store": store, "tables": table}))


def test_the_newest_columns_are_found_and_kept(store: EventStore, binlog: Binlog) -> None:
    """Those of the newest event; once seen they are known though the ring has moved on. A name may hold a dot."""
    wider = ORDERS._replace(columns=(*ORDERS.columns, ORDERS.columns[0]._replace(name="more")))
    odd = ORDERS._replace(table="or.ders")
    store.put(
        [*binlog.insert(order_row(1)), *binlog.insert((*order_row(2), 3), table=wider), *binlog.insert(order_row(1), table=odd)]
    )
    assert find(store.name, "shop.orders") == wider
    assert find(store.name, "shop.or.ders") == odd
    with store.subscribe("r", start="latest"):
        assert store.oldest > 0
        assert find(store.name, "shop.orders") == wider


def test_an_unknown_table_says_what_there_is(store: EventStore, binlog: Binlog) -> None:
    """A misspelled name is distinguished from a table that has not changed yet."""
    store.put(binlog.insert(order_row(1)))
    with pytest.raises(SchemaUnknown, match=r"shmstore snapshot .*holds rows of shop\.orders; did you mean shop\.orders\?$"):
        find(store.name, "shop.order")
    with pytest.raises(SchemaUnknown, match=r"holds rows of shop\.orders$"):
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
            reader = StreamReader(Decoder(Options.parse({"store": store_name, "startingOffsets": "latest"})))
            start = reader.initialOffset()
            with caplog.at_level(logging.WARNING):
                assert reader.plan(start, Limit()) == start
            reader.stop()
            assert "query with subscription 'spark' gets no events. Its ring is full" in caplog.text
            other.unsubscribe("left_behind")
        putting.join(20)


def test_queries_that_start_together(store: EventStore, binlog: Binlog, monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    """Two queries that learn a table's columns at the same time both do, and leave one file and nothing else."""
    store.put(binlog.insert(order_row(1)))
    write, found = Path.write_bytes, []

    def write_meanwhile(path: Path, data: bytes) -> int:
        monkeypatch.setattr(Path, "write_bytes", write)
        written = path.write_bytes(data)
        found.append(find(store.name, "shop.orders"))
        return written

    monkeypatch.setattr(Path, "write_bytes", write_meanwhile)
    assert find(store.name, "shop.orders") == ORDERS
    assert found == [ORDERS]
    assert [path.name for path in (state / store.name / "tables").iterdir()] == ["shop.orders.msgpack"]
