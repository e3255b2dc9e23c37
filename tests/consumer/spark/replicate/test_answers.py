"""Whatever a function that Spark calls ends by, the query ends with it: it never waits for an answer that does not come."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from shmstore import EventStore
from shmstore.consumer.spark import Lag, LagListener, replicate
from tests.consumer.spark.events import Binlog, order_row

pytestmark = pytest.mark.spark


class PanicException(BaseException):
    """As PyO3 raises for a panic in Rust: no `Exception`."""


def test_a_panic_in_a_batch_ends_the_query(spark: Any, store: EventStore, binlog: Binlog, tmp_path: Path) -> None:
    """With its name and text in the query's error, within seconds; a listener that panics holds up neither a query nor the end of the session."""

    def panic(lag: Lag) -> None:
        raise PanicException(str(lag))

    listener = LagListener(panic)
    spark.streams.addListener(listener)
    given = {"store": store.name, "trigger": {"availableNow": True}, "checkpoint": str(tmp_path / "checkpoint")}
    store.put(binlog.insert(order_row(1)))
    began = time.monotonic()
    query = replicate(
        spark, target=str(tmp_path / "a|b/{database}/{table}"), format="delta", **given
    )  # a path at which delta-rs panics
    with pytest.raises(Exception, match="PanicException: Invalid object store url"):
        assert not query.awaitTermination(60), "it ended well"
    assert time.monotonic() - began < 60
    assert replicate(spark, target=str(tmp_path / "c/{database}/{table}"), format="delta", **given).awaitTermination(60)
    spark.streams.removeListener(listener)
    assert DeltaTable(tmp_path / "c/shop/orders").to_pyarrow_table().num_rows == 1
