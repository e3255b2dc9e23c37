"""Python's cycle collector in the executors' workers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.decode.gc_pause import settle
from shmstore.consumer.spark.options import Options
from shmstore.consumer.spark.source.partition import record_batches


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """As a worker that has read nothing yet; what this test and those before it froze is let go."""
    settle.cache_clear()
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_the_first_read_of_a_worker_settles_it() -> None:
    """The modules are out of the collector's sight after the first task, and what later tasks leave is in it."""
    decoder = Decoder(Options.parse({"store": "s"}))
    before = gc.get_freeze_count()
    assert list(record_batches(iter([]), decoder)) == []
    frozen = gc.get_freeze_count()
    assert frozen > before + 10_000
    left = cycle()
    assert list(record_batches(iter([]), decoder)) == []
    assert gc.get_freeze_count() <= frozen
    gc.collect()
    assert left() is None


def cycle() -> weakref.ref[Any]:
    """Something that nothing but the cycle collector ends."""

    class Cycle:
        itself: Any

    one = Cycle()
    one.itself = one
    return weakref.ref(one)
