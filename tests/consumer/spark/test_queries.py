"""The harness' own queries: what is tried again when one is started, and what is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.consumer.spark.queries import NO_WORKER, STARTS, Query, started

LATE = RuntimeError(f"[STREAM_FAILED] Query terminated with exception: {NO_WORKER}.")


class Spark:
    """Stands in for a session: queries that fail, one after the other, as given, at the start or while they run."""

    def __init__(self, *outcomes: tuple[Exception | None, Exception | None]) -> None:
        self.outcomes = list(outcomes)
        self.starts = 0

    def __getattr__(self, name: str) -> Any:
        return self if name in ("readStream", "writeStream") else lambda *_, **__: self

    def start(self) -> Any:
        self.starts += 1
        at_once, later = self.outcomes.pop(0)
        if at_once is not None:
            raise at_once
        return SimpleNamespace(exception=lambda: later, stop=lambda: None, status="")


def query(spark: Spark) -> Query:
    return Query(spark, "none", Path("nowhere"))


def test_a_worker_that_came_up_late() -> None:
    """The one error of Spark's own 15 s starts the query again, be it raised at once or found later."""
    spark = Spark((LATE, None), (None, LATE), (LATE, None), (None, None))
    query(spark).start().await_that(lambda: spark.starts == 4)


def test_what_is_no_such_error() -> None:
    """Any other error, and this one after a batch has come, are the query's."""
    other = RuntimeError("the sink failed")
    spark = Spark((other, None), (None, other), (None, LATE))
    with pytest.raises(RuntimeError, match="the sink failed"):
        query(spark).start()
    with pytest.raises(RuntimeError, match="the sink failed"):
        query(spark).start().await_that(lambda: False)
    running = query(spark).start()
    running.runs.append(0)
    assert NO_WORKER in running.await_error()
    assert spark.starts == 3


def test_a_worker_that_never_comes_up() -> None:
    """What fails every time fails in the end."""
    spark = Spark(*[(LATE, None)] * 99)
    with pytest.raises(RuntimeError, match=NO_WORKER):
        query(spark).start()
    assert spark.starts == STARTS
    spark = Spark(*[(None, LATE)] * 99)
    assert NO_WORKER in query(spark).start().await_error()
    assert spark.starts == STARTS
    assert started(lambda: 7) == 7
