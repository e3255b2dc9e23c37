"""Events and one Spark session, shared by the Spark tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.spark.events import Binlog

# A JVM of a test lives for a minute or so: two thirds of its CPU are the checking and repeated compiling of Spark's classes.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
if _QUICK not in os.environ.get("SPARK_SUBMIT_OPTS", ""):
    os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {_QUICK}".strip()


@pytest.fixture
def binlog() -> Binlog:
    """An empty binlog."""
    return Binlog()


@pytest.fixture(autouse=True)
def own_state(state: Path) -> None:
    """Checkpoints of subscriptions go into the test's own folder."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One local Spark with two threads for all tests: starting one takes seconds. It finds the format automatically."""
    from pyspark.sql import SparkSession

    from shmstore.consumer.spark import session_settings

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SHMSTORE_STATE"] = str(tmp_path_factory.mktemp("state"))  # Spark's processes keep the environment of its start
    # as in site-packages of an installation: Spark looks along the path for packages named pyspark_*
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH")])
    )
    session = (
        SparkSession.builder.master("local[2]")
        .appName("shmstore tests")
        .config("spark.driver.memory", "1g")
        .config(map=session_settings() | {"spark.ui.enabled": "false"})
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
