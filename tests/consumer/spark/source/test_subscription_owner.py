"""A query owns its subscription."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from shmstore import EventStore, PositionNotFound, StoreFull, SubscriptionInUse
from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source import subscription_owner
from shmstore.consumer.spark.source.batch_planner import BatchLimit
from shmstore.consumer.spark.source.source import ShmStoreSource
from shmstore.consumer.spark.source.stream_reader import StreamReader
from tests.consumer.spark.events import Binlog, order_row


@pytest.fixture
def readers(store: EventStore, store_name: str, binlog: Binlog) -> tuple[Any, Any]:
    """Two readers of one subscription, of which the first owns it."""
    store.put(binlog.insert(order_row(1)))
    source = ShmStoreSource({"store": store_name, "tables": "shop.orders", "subscription": "one"})
    first, second = source.streamReader(source.schema()), source.streamReader(source.schema())
    first.initialOffset()
    return first, second


@pytest.mark.parametrize("log", [True, False], ids=["log", "memory"])
def test_a_table_that_one_query_reads_twice(
    log: bool, state: Any, store_name: str, binlog: Binlog, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two readers without a name have a subscription each. Started again, in any order, each finds one that keeps what it has not read: none goes
    unread, and no third one is left behind.
    """
    monkeypatch.setattr(subscription_owner, "_HANDOVER", 0.01)
    choose = random.Random(seed)
    with EventStore.create(store_name, log=log, capacity=32) as store:
        source = ShmStoreSource({"store": store_name, "tables": "shop.orders"})
        store.put(binlog.insert(order_row(0)))
        places: list[Any] = [None, None]
        rows: list[list[int]] = [[], []]
        for start in range(20):
            readers: list[Any] = [source.streamReader(source.schema()) for _ in range(2)]
            for number in choose.sample(range(2), 2):
                if places[number] is None:
                    places[number] = readers[number].initialOffset()
                else:
                    readers[number].plan(places[number], BatchLimit(1))
            for _ in range(choose.randrange(1, 4)):
                with suppress(StoreFull):  # one that is behind keeps its events
                    store.put(binlog.insert(order_row(start)), timeout=0)
                for number in choose.sample(range(2), choose.randrange(3)):  # one may be ahead of the other
                    end = readers[number].plan(places[number], BatchLimit(choose.choice([1, 9])))
                    for part in readers[number].partitions(places[number], end):
                        rows[number] += [row["seq"] for batch in readers[number].read(part) for row in batch.to_pylist()]
                    places[number] = end
            for reader in readers:
                reader.stop()
        for number in range(2):
            reader = source.streamReader(source.schema())
            for _ in range(100):  # a micro-batch that would have no rows is not run
                end = reader.plan(places[number], BatchLimit())
                for part in reader.partitions(places[number], end):
                    rows[number] += [row["seq"] for batch in reader.read(part) for row in batch.to_pylist()]
                places[number] = end
            reader.stop()
        assert rows[0] == rows[1] == sorted(set(rows[0]))
        assert sorted(each.name for each in store.subscriptions()) == ["spark-shop.orders", "spark-shop.orders.2"]


def test_a_reader_waits_for_the_one_before(readers: tuple[Any, Any]) -> None:
    """Spark starts a query's new process before the old one has ended: it gets the subscription when that has."""
    first, second = readers
    ended: list[float] = []

    def end() -> None:
        ended.append(time.monotonic())
        first.stop()

    timer = threading.Timer(0.3, end)
    timer.start()
    second.initialOffset()
    assert ended
    timer.join()
    second.stop()


def test_a_query_whose_subscription_another_one_used(store: EventStore, binlog: Binlog) -> None:
    """One that comes back with its checkpoint gets an error that says why its events are missing: not by the server, but read by the other."""
    source = ShmStoreSource({"store": store.name, "tables": "shop.orders"})
    for number in (1, 2):
        store.put(binlog.insert(order_row(number)))
    first, second = (source.streamReader(source.schema()) for _ in range(2))
    start = first.initialOffset()
    place = first.plan(start, BatchLimit(1))
    first.stop()
    second.commit(second.plan(second.initialOffset(), BatchLimit()))
    second.stop()
    with pytest.raises(
        PositionNotFound, match=r"continued with subscription 'spark-shop.orders', up to event 5: each query needs one of its own"
    ):
        first.plan(place, BatchLimit())
    first.stop()


def test_two_queries_on_one_subscription(readers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second gets an error that names the owner and what to do, in one line; the first continues."""
    first, second = readers
    monkeypatch.setattr(subscription_owner, "_HANDOVER", 0.2)
    with pytest.raises(SubscriptionInUse, match="a subscription of its own: option subscription") as caught:
        second.initialOffset()
    assert "\n" not in str(caught.value)
    second.stop()
    assert first.initialOffset()
    first.stop()


@pytest.mark.parametrize("planned", [False, True], ids=["idle", "planned"])
def test_a_reader_that_is_evicted_while_it_runs(planned: bool, store_name: str, binlog: Binlog) -> None:
    """With failOnDataLoss=false it continues at the oldest event, whether the lost ones were planned or not; else the error says what to do."""

    def read(reader: StreamReader, start: Any, end: Any) -> list[str]:
        parts: list[Any] = reader.partitions(start, end)
        return [key for part in parts for rows in reader.read(part) for key in rows.column("pk").to_pylist()]

    with EventStore.create(store_name, capacity=16, lag="evict", evict_after=0.05, log=False) as store:
        readers = [
            StreamReader(
                Decoder(
                    SourceOptions.parse({"store": store_name, "transport": "shm", "subscription": name, "failOnDataLoss": fails})
                )
            )
            for name, fails in (("goes", "false"), ("fails", "true"))
        ]
        store.put(binlog.insert(order_row(0)))
        goes, fails = ((reader, reader.plan(reader.initialOffset(), BatchLimit())) for reader in readers)
        store.put(binlog.insert(order_row(1)))
        ends = [reader.plan(start, BatchLimit()) if planned else start for reader, start in (goes, fails)]
        parts: list[list[Any]] = [reader.partitions(start, end) for (reader, start), end in zip((goes, fails), ends, strict=True)]
        for n in range(2, 14):
            store.put(binlog.insert(order_row(n)), timeout=5)
        if planned:
            assert [list(part.chunks()) for part in parts[0]] == [[]], "what is lost is left out"
            with pytest.raises(PositionNotFound, match=r"was evicted: .* failOnDataLoss=false .* lag=block"):
                [list(part.chunks()) for part in parts[1]]
        end = goes[0].plan(ends[0], BatchLimit())
        came = read(goes[0], ends[0], end)
        assert came
        store.put(binlog.insert(order_row(14)), timeout=5)
        last = goes[0].plan(end, BatchLimit())
        came += read(goes[0], end, last)
        while (end := goes[0].plan(last, BatchLimit())) != last:
            came += read(goes[0], last, end)
            last = end
        assert came == [f'{{"id":{n}}}' for n in range(15)][-len(came) :], "behind the gap nothing is missing"
        with pytest.raises(PositionNotFound, match="failOnDataLoss=false"):
            fails[0].plan(ends[1], BatchLimit())
        for reader in readers:
            reader.stop()
