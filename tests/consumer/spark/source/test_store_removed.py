"""A reader whose store is removed at any line of what Spark calls: each answer is about one life of the store, and every row comes once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shmstore import Event, EventStore, EventType, Position
from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source import stream_reader
from shmstore.consumer.spark.source.batch_planner import BatchLimit
from shmstore.consumer.spark.source.stream_reader import StreamReader
from tests.consumer.spark.events import Binlog, order_row
from tests.each_line import traced

SOURCE = (str(Path(stream_reader.__file__).parent),)


class Life:
    """A store with some transactions, which can be removed and come back: restored from its log, or re-created by its producer."""

    def __init__(self, name: str, transactions: list[list[Event]], log: bool) -> None:
        self.name, self.transactions, self.log = name, transactions, log
        self.begin()

    def begin(self) -> None:
        with EventStore.create(self.name, capacity=64, log=self.log) as store:
            store.claim(start=Position("binlog.000001", 4))
            for events in self.transactions:
                store.put(events)

    def end(self) -> None:
        """Take the memory away, and let a process notice it, as one does about once a second."""
        with EventStore.attach(self.name) as store:
            os.unlink(store.segment.where)
            store.segment.look()
        if not self.log:
            self.begin()


def read_all(reader: StreamReader) -> list[int]:
    """The offsets of all rows in the binlog, by the calls that Spark makes."""
    place, found = reader.initialOffset(), []
    while (end := reader.plan(place, BatchLimit(3))) != place:
        found += rows(reader, place, end)
        reader.commit(end)
        place = end
    return found


def rows(reader: StreamReader, place: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts = reader.partitions(place, end)
    return [row["source"]["offset"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("log", [True, False], ids=["restored", "re-created"])
@pytest.mark.parametrize("tables", ["*.*", "shop.orders"])
def test_a_store_that_is_removed_at_each_line(log: bool, tables: str, store_name: str, binlog: Binlog) -> None:
    transactions = [binlog.insert(order_row(number)) for number in range(9)]
    expected = [event.position.offset for events in transactions for event in events if event.type is EventType.INSERT]
    at, lines = -1, [("", 0)]
    while at < len(lines):
        life, lines = Life(store_name, transactions, log), []
        reader = StreamReader(
            Decoder(SourceOptions.parse({"store": store_name, "subscription": "q", "tables": tables, "transport": "inline"}))
        )
        try:
            with traced(SOURCE, lines, at, life.end):
                assert read_all(reader) == expected, lines[at]
        finally:
            reader.stop()
            EventStore.unlink(store_name, log=True)
        at += 1
    assert at > 100
