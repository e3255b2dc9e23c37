"""The benches of Spark run, in the session of these tests; `tests/test_benches.py` has the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from scripts.benchmarks import measure
from scripts.benchmarks.spark import merges, replicate, tables
from scripts.benchmarks.spark import spark as micro_batches
from tests.consumer.spark.queries import started


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bench", [pytest.param(micro_batches, marks=pytest.mark.long), tables], ids=["spark", "tables"])
def test_a_bench_of_spark_measures(bench: Any, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the smallest run each subject of the project has a rate."""

    @contextmanager
    def session(*, fast: bool) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(bench, "_session", session)
    found = started(lambda: bench.measure_all(1, measure.SMALLEST))
    assert {m.subject for m in found} >= (
        {"shmstore", "shmstore raw"} if bench is micro_batches else {"shmstore", "shmstore through the ring"}
    )
    assert all(m.median > 0 for m in found if m.metric == "throughput")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_bench_of_replicate_measures(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of both ways, whose copies the bench itself compares, and lags of both formats."""

    @contextmanager
    def session(*, fast: bool) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(replicate, "_session", session)
    found = started(lambda: replicate.measure_all(1, measure.SMALLEST))
    assert {m.subject for m in found} == {"shmstore", "by hand", "shmstore into Delta", "shmstore into Iceberg"}
    assert all(m.median > 0 for m in found)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_bench_of_merges_measures() -> None:
    """Both ways have a rate, and the same rows, which the bench itself compares."""
    found = merges.measure_all(1, measure.SMALLEST)
    assert {m.subject: m.median > 0 for m in found} == {"shmstore": True, "shmstore executors": True}
