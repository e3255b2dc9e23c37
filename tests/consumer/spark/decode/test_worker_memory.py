"""What the executors' workers import, their cycle collector and freed memory."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from shmstore.consumer.spark.decode.decoder import Decoder
from shmstore.consumer.spark.decode.worker_memory import settle
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.source.partition import record_batches


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """As a worker that has read nothing yet; what this test and those before it froze is let go."""
    settle.cache_clear()
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_a_worker_starts_without_pandas() -> None:
    """Spark starts several for each query, and pandas, which pyarrow.dataset takes along, is a third of the CPU of their start."""
    program = "import sys, pyspark_shmstore; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert "shmstore.consumer.spark.source.source" in loaded
    assert not {"pandas", "pyarrow.dataset", "deltalake", "duckdb"} & {*loaded}


def test_the_first_read_of_a_worker_settles_it() -> None:
    """The modules are out of the collector's sight after the first task, and what later tasks leave is in it."""
    decoder = Decoder(SourceOptions.parse({"store": "s"}))
    before = gc.get_freeze_count()
    assert list(record_batches(iter([]), decoder)) == []
    frozen = gc.get_freeze_count()
    assert frozen > before + 10_000
    left = cycle()
    assert list(record_batches(iter([]), decoder)) == []
    assert gc.get_freeze_count() <= frozen
    gc.collect()
    assert left() is None


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's malloc is left as it is")
def test_a_settled_worker_keeps_its_memory_for_the_next_piece() -> None:
    """Page faults of 24 MiB that are taken and let go again and again: thousands before, next to none after."""
    found = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True, check=True, timeout=60).stdout
    before, after = map(int, found.split())
    assert before > 3_000
    assert after < 300


PIECES = """
import resource
from shmstore.consumer.spark.decode.worker_memory import settle

def faults():
    counts = []
    for _ in range(4):
        began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        piece = [bytearray(1 << 20) for _ in range(24)]
        del piece
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began)
    return counts[-1]

print(faults())
settle()
print(faults())
"""


def cycle() -> weakref.ref[Any]:
    """Something that nothing but the cycle collector ends."""

    class Cycle:
        itself: Any

    one = Cycle()
    one.itself = one
    return weakref.ref(one)
