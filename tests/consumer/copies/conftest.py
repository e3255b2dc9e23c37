"""Fixtures of the tests of copies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from shmstore import Event
from tests.consumer.spark.events import Binlog, order_row


@pytest.fixture
def binlog() -> Binlog:
    """An empty binlog."""
    return Binlog()


@pytest.fixture(autouse=True)
def own_state(state: Path) -> None:
    """Checkpoints of subscriptions go into the test's own folder."""


@pytest.fixture
def versions(binlog: Binlog) -> list[list[list[Event]]]:
    """Batches of transactions: a row that changes twice, one that goes and comes again, one whose key changes."""
    return [
        [binlog.insert(order_row(1), order_row(2), order_row(3))],
        [
            binlog.update((order_row(1), order_row(1, status="paid"))),
            binlog.update((order_row(1, status="paid"), order_row(1, status="sent"))),
        ],
        [binlog.delete(order_row(2)), binlog.insert(order_row(2, status="again")), binlog.update((order_row(3), order_row(4)))],
    ]


@pytest.fixture(autouse=True)
def nothing_aside() -> None:
    """Tests without a store share a home, which would say of a table that it is aside since the test before."""
    if "SHMSTORE_STATE" in os.environ:
        shutil.rmtree(Path(os.environ["SHMSTORE_STATE"], "none"), ignore_errors=True)
