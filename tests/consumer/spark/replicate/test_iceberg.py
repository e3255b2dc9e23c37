"""Copies in Iceberg: on the Spark that has a runtime of it, in an environment of its own; what the others say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shmstore import EventStore
from shmstore.consumer.spark import replicate
from shmstore.consumer.spark.spark_version import version
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


def test_executors_merge_only_where_they_can(spark: Any, store: EventStore, binlog: Binlog, tmp_path: Path) -> None:
    """One line that says what is missing, or what to choose, before a query begins, and without a subscription left behind."""
    store.put(binlog.insert(order_row(1)))

    def refused(target: str, **given: Any) -> str:
        with pytest.raises(ValueError, match="merge=") as caught:
            replicate(spark, store=store.name, target=target, checkpoint=str(tmp_path / "c"), merge="executors", **given)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    folder = f"{tmp_path}/{{database}}/{{table}}"
    needs = refused(folder)
    assert "delta-spark" in needs
    if version() in ((4, 0), (4, 1), (4, 2)):
        assert "--packages io.delta:delta-spark_4." in needs
    else:
        assert "use Spark 4.0, 4.1 or 4.2" in needs
    assert "format='delta' or 'iceberg'" in refused(folder, format="parquet")
    assert "format='delta' or 'iceberg'" in refused("sqlite:copies.db#{table}")
    assert "a folder that driver and executors see" in refused("s3://lake/{database}/{table}")
    with pytest.raises(ValueError, match="merge='executor' is unknown; choose from driver, executors"):
        replicate(spark, store=store.name, target=folder, merge="executor")
    assert store.stat().subscriptions == ()
