"""Fixtures of the documentation's tests: a store of a shop's changes, and a state folder of the test's own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import EventStore
from tests.consumer.spark.events import Binlog

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of subscriptions go into the test's own folder."""
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def store() -> Iterator[EventStore]:
    """A store of 1024 events, removed after the test."""
    name = f"docs{os.getpid()}_{next(_numbers)}"
    with EventStore.create(name, capacity=1024) as made:
        yield made
    EventStore.unlink(name)


@pytest.fixture
def binlog() -> Binlog:
    """An empty binlog."""
    return Binlog()
