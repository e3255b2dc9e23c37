"""A query owns its subscription."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from shmstore import EventStore, PositionNotFound, SubscriptionInUse
from shmstore.consumer.spark.source import subscription_owner
from shmstore.consumer.spark.source.source import ShmStoreSource
from tests.consumer.spark.events import Binlog, order_row


@pytest.fixture
def readers(store: EventStore, store_name: str, binlog: Binlog) -> tuple[Any, Any]:
    """Two readers of one subscription, of which the first owns it."""
    store.put(binlog.insert(order_row(1)))
    source = ShmStoreSource({"store": store_name, "tables": "shop.orders"})
    first, second = source.streamReader(source.schema()), source.streamReader(source.schema())
    first.initialOffset()
    return first, second


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
    place = first.latestOffset(start, ReadMaxRows(1))
    first.stop()
    second.commit(second.latestOffset(second.initialOffset(), ReadAllAvailable()))
    second.stop()
    with pytest.raises(
        PositionNotFound, match=r"read on with subscription 'spark', up to event 5: each query needs one of its own"
    ):
        first.latestOffset(place, ReadAllAvailable())
    first.stop()


def test_two_queries_on_one_subscription(readers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second gets an error that names the owner and what to do, in one line; the first goes on."""
    first, second = readers
    monkeypatch.setattr(subscription_owner, "_HANDOVER", 0.2)
    with pytest.raises(SubscriptionInUse, match="a subscription of its own: option subscription") as caught:
        second.initialOffset()
    assert "\n" not in str(caught.value)
    second.stop()
    assert first.initialOffset()
    first.stop()
