"""Fixtures of the documentation's tests: the changes of a shop, and a state folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumer.spark.events import Binlog
from tests.docs.shop import ORDERS


@pytest.fixture(autouse=True)
def own_state(state: Path) -> None:
    """Checkpoints of subscriptions go into the test's own folder."""


@pytest.fixture
def binlog() -> Binlog:
    """An empty binlog of the shop's orders."""
    return Binlog(ORDERS)
