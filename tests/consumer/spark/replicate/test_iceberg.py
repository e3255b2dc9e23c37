"""Copies in Iceberg: on the Spark that has a runtime of it, in an environment of its own; what the others say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore
from shmstore.consumer.spark import replicate
from tests.consumer.spark.events import Binlog, order_row
from tests.consumer.spark.test_versions import OLDEST, run

pytestmark = pytest.mark.spark
CASES = "tests/consumer/spark/replicate/iceberg_cases.py"


@pytest.mark.timeout(1800)
def test_iceberg_on_the_spark_that_has_its_runtime(tmp_path: Path) -> None:
    """All that a copy has to do, in real catalogs (a folder, REST, JDBC), with Iceberg's own runtime."""
    assert " passed" in run(OLDEST, tmp_path, "-m", "not long", tests=CASES)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_iceberg_for_long(tmp_path: Path) -> None:
    """What takes too long for every run."""
    assert " passed" in run(OLDEST, tmp_path, "-m", "long", tests=CASES)


def test_a_spark_without_a_runtime_says_which_one_has(spark: Any, store: EventStore, binlog: Binlog, tmp_path: Path) -> None:
    """Before a query begins, and without a subscription left behind."""
    store.put(binlog.insert(order_row(1)))
    with pytest.raises(ValueError, match=r"there is none for Spark 4\.3: use Spark 4\.0 or 4\.1"):
        replicate(spark, store=store.name, target="lake.{database}.{table}", format="iceberg", checkpoint=str(tmp_path))
    assert store.stat().subscriptions == ()
