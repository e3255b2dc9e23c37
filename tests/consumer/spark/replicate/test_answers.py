"""Whatever a function that Spark calls ends by, the query ends with it: it never waits for an answer that does not come."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from shmstore import EventStore
from shmstore.consumer.copies.change_reduction import CannotCopy
from shmstore.consumer.spark import Lag, LagListener, Replication, replicate
from shmstore.consumer.spark.callbacks import CallFailed, answering
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.query_errors import cause
from shmstore.consumer.spark.replicate.query_id import QueryId
from tests.consumer.spark.events import Binlog, order_row


class PanicException(BaseException):
    """As PyO3 raises for a panic in Rust: no `Exception`."""


@pytest.mark.spark
@pytest.mark.every_spark
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
    with pytest.raises(Exception, match="PanicException: Invalid object store url") as caught:
        assert not query.awaitTermination(60), "it ended well"
    assert "PanicException: Invalid object store url" in str(caught.value).splitlines()[0]
    assert time.monotonic() - began < 60
    assert replicate(spark, target=str(tmp_path / "c/{database}/{table}"), format="delta", **given).awaitTermination(60)
    spark.streams.removeListener(listener)
    assert DeltaTable(tmp_path / "c/shop/orders").to_pyarrow_table().num_rows == 1


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), type("PanicException", (BaseException,), {})("a panic")])
def test_nothing_that_a_call_of_sparks_raises_is_without_an_answer(
    raised: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """py4j answers after an `Exception` alone: what is none becomes one, with its name and text."""

    def fail(self: Any, session: Any) -> str:
        raise raised

    monkeypatch.setattr(QueryId, "of", fail)
    copy = Replication(SourceOptions.parse({"store": "none"}), "unused/{database}/{table}", "parquet")

    class Frame:
        sparkSession = None

    with pytest.raises(CallFailed, match=type(raised).__name__) as caught:
        copy(Frame(), 0)  # type: ignore[arg-type]
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize("chain", range(4))
def test_the_cause_of_an_error_is_its_first_line(chain: int) -> None:
    """Whatever else was raised before it, once, and the last line says what it said; as the text that py4j sends."""

    def fail() -> None:
        if chain == 0:
            raise CannotCopy("shop.orders has no key: name one")
        try:
            raise KeyError("before")
        except KeyError as before:
            if chain == 1:
                raise CannotCopy("shop.orders has no key: name one") from before
            if chain == 2:
                raise CannotCopy("shop.orders has no key: name one") from None
            raise CannotCopy("shop.orders has no key: name one")  # noqa: B904 - as where an error comes while another is handled

    try:
        with answering(), answering():
            fail()
    except CannotCopy:
        lines = traceback.format_exc().splitlines()
    assert lines[0].endswith("BatchFailed: CannotCopy: shop.orders has no key: name one")
    assert lines[-1].endswith("CannotCopy: shop.orders has no key: name one")
    assert sum("BatchFailed" in line for line in lines) == 1
    assert cause(RuntimeError("\n".join(lines))) == "shop.orders has no key: name one"


def test_an_option_of_another_format_is_refused() -> None:
    """What only Delta has is not taken silently for Parquet."""
    options = SourceOptions.parse({"store": "none"})
    with pytest.raises(ValueError, match="optimize=5"):
        Replication(options, "unused/{database}/{table}", "parquet", optimize=5)
    with pytest.raises(ValueError, match="storage options are for object stores"):
        Replication(options, "unused/{database}/{table}", "parquet", storage={"A": "b"})
