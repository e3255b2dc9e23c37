"""A query whose subscription is paused at any line of what Spark calls to plan a micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore, EventType
from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source import stream_reader
from shmstore.consumer.spark.source.batch_planner import BatchLimit
from shmstore.consumer.spark.source.stream_reader import StreamReader
from tests.consumer.spark.events import Binlog, order_row
from tests.each_line import Line, traced

SOURCE = (str(Path(stream_reader.__file__).parent),)
EVERYTHING = BatchLimit()


def offsets(reader: StreamReader, place: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts = reader.partitions(place, end)
    return [row["source"]["offset"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("log", [True, False], ids=["log", "ring"])
@pytest.mark.parametrize("tables", ["*.*", "shop.orders"])
def test_a_paused_query_gets_nothing(log: bool, tables: str, store_name: str, binlog: Binlog, state: Path) -> None:
    """What is put once its subscription is paused is in no micro-batch, whatever is planned just then; resumed, it continues behind its last one."""
    before, after = binlog.insert(order_row(1)), binlog.insert(order_row(2))
    wanted = [event.position.offset for event in after if event.type is EventType.INSERT]
    at, lines = 0, [("", 0)]
    while at < len(lines):
        lines = list[Line]()
        options = {"store": store_name, "subscription": "q", "tables": tables, "transport": "inline"}
        with EventStore.create(store_name, capacity=64, log=log) as store:
            reader = StreamReader(Decoder(SourceOptions.parse(options)))
            store.put(before)
            store.sync()
            begin = reader.initialOffset()
            place = reader.plan(begin, EVERYTHING)
            assert len(offsets(reader, begin, place)) == 1

            def pause_and_put(store: EventStore = store) -> None:
                store.pause("q")
                store.put(after)
                store.sync()

            with traced(SOURCE, lines, at, pause_and_put):
                assert reader.plan(place, EVERYTHING) == place, lines[at]
            assert reader.plan(place, EVERYTHING) == place
            store.resume("q")
            assert offsets(reader, place, reader.plan(place, EVERYTHING)) == wanted
            reader.stop()
        EventStore.unlink(store_name, log=True)
        at += 1
    assert at > 20
