"""The ring of a store with a log: only the log holds events back in it, and what is read of it is a copy that is right or none."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmstore.memory.mapping
from shmstore import StoreCorrupt
from shmstore.memory import segment as segments
from shmstore.memory.create_options import checked
from shmstore.memory.layout import BatchMode
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import ACK_WANTED, FLOOR, LOGGED, PUT
from shmstore.ring.reader import reader_of
from shmstore.ring.writer import plain_slots, writer_of
from shmstore.store.batch import Batch
from shmstore.store.content import copy_of_ring

COMPILED = shmstore.memory.mapping.COMPILED
compiled_only = pytest.mark.skipif(not COMPILED, reason="no compiled hot path here")
_numbers = count(1)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Segment]]:
    found = []

    def make(capacity: int = 16, unit: int = 64) -> Segment:
        chosen = checked(
            capacity=capacity, memory_unit=unit, batch_mode=BatchMode.MEMSIZE, ddl_isolation=False, lag="block", evict_after=1,
            checksum=False, first_sequence=0, home=str(tmp_path),
        )  # fmt: skip
        segment = segments.create(f"logged-{os.getpid()}-{next(_numbers)}", chosen, path=None, mode=0o600, group=None)
        found.append(segment)
        return segment

    yield make
    for segment in found:
        segment.close()
        segments.unlink(segment.name, path=None, force=True)


def put(segment: Segment, writer: Any, *payloads: bytes) -> None:
    """Put, while the log has everything at once."""
    words = segment.views.words
    words[LOGGED] = words[PUT]
    if not writer.fits(len(payloads), sum(map(len, payloads))):
        writer.refresh(len(payloads), sum(map(len, payloads)))
    slots = plain_slots(list(payloads))
    done = (
        writer.put_encoded(b"".join(payloads), slots, slots["size"].astype(np.int64))
        if len(payloads) > 1
        else writer.put_one(payloads[0])
    )
    assert done
    words[LOGGED] = words[PUT]


class FromLog(Batch):
    """A batch that says so where it is to be read from the log."""

    __slots__ = ()

    def _whole(self) -> memoryview:
        raise LookupError("the log")


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_is_right_or_there_is_none(made, seed):
    """Of any run of events the copy is what was put, and what is behind the floor is left to the log; compiled and not."""
    pick = random.Random(seed)
    segment = made()
    writer, payloads = writer_of(segment.views), []
    for _ in range(300):
        now = [pick.randbytes(pick.randint(1, 90)) for _ in range(pick.randint(1, 6))]
        put(segment, writer, *now)
        payloads += now
        first = max(0, len(payloads) - pick.randint(1, 18))
        last = pick.randint(first, len(payloads) - 1)
        wanted = payloads[first : last + 1]
        found = copy_of_ring(segment, first, last)
        if segment.views.words[FLOOR] >= first:
            assert found is None
            continue
        assert found is not None
        assert bytes(found.raw) == b"".join(wanted)
        assert found.ends.tolist() == np.cumsum([len(payload) for payload in wanted]).tolist()
        if COMPILED:
            batch = FromLog(segment, first, last, 0)
            assert bytes(batch.raw) == b"".join(wanted)
            assert len(wanted) == 1 or batch.ends.tolist() == found.ends.tolist()
            assert [bytes(payload) for payload in batch.payloads()] == wanted


@compiled_only
def test_a_batch_outlives_its_events(made):
    """What was read stays as it is, whatever is put; what was not read in time comes from the log."""
    segment = made()
    writer = writer_of(segment.views)
    put(segment, writer, b"one", b"two", b"three")
    read, unread, single = (FromLog(segment, *ends, 0) for ends in ((0, 2), (0, 2), (1, 1)))
    views = list(read.payloads())
    assert bytes(read.raw) == b"onetwothree"
    assert bytes(single.raw) == b"two"
    for _ in range(100):
        put(segment, writer, b"!" * 60)
    assert [bytes(view) for view in views] == [b"one", b"two", b"three"]
    assert [bytes(view) for view in read.payloads()] == [b"one", b"two", b"three"]
    with pytest.raises(LookupError, match="the log"):
        _ = unread.raw


@compiled_only
@pytest.mark.parametrize("kind", [np.array, lambda ends: memoryview(np.array(ends)), lambda ends: np.array(ends).tobytes()])
def test_events_of_the_log_are_iterated_alike(made, kind):
    """A batch whose bytes came from elsewhere is gone through by the ends that came with them; ends that lie say so."""
    segment = made()
    put(segment, writer_of(segment.views), b"x")
    batch = FromLog(segment, 1000, 1002, 0)
    batch._raw, batch._ends = memoryview(b"abbccc"), kind([1, 3, 6])
    assert [bytes(payload) for payload in batch.payloads()] == [b"a", b"bb", b"ccc"]
    assert batch.ends.tolist() == [1, 3, 6]
    for wrong in ([1, 3, 7], [3, 1, 6], [1, 3, 2**63 - 1], [-1, 3, 6], [1, 3, -(2**63)]):
        batch = FromLog(segment, 1000, 1002, 0)
        batch._raw, batch._ends = memoryview(b"abbccc"), kind(wrong)
        with pytest.raises(StoreCorrupt, match="claims bytes"):
            list(batch.payloads())


@compiled_only
def test_the_compiled_get_leaves_what_is_behind_the_floor(made):
    """It takes what the ring has, however far the ack is behind; a reader behind the floor goes the long way."""
    segment = made()
    writer = writer_of(segment.views)
    reader: Any = reader_of(segment, 1)
    reader.tune(segment, FromLog, print, True, True, 0, 0, 0)
    for number in range(30):
        put(segment, writer, b"%d" % number)
        assert bytes(reader.try_get(None).raw) == b"%d" % number
    assert reader.ack == -1
    for _ in range(40):
        put(segment, writer, b"more")
    assert reader.try_get(None) is None
    assert reader.available() == 40
    segment.views.words[FLOOR] = reader.get
    segment.views.words[PUT] = reader.get + 1000  # forged: more than the ring can have
    assert reader.try_get(None) is None


@compiled_only
def test_an_ack_that_is_due_goes_the_long_way(made):
    """From `due` on an ack is left to Python, which writes the checkpoint; before it, and with 0, it is not."""
    segment = made()
    writer = writer_of(segment.views)
    reader: Any = reader_of(segment, 1)
    wanted: list[int] = []
    reader.tune(segment, FromLog, lambda: wanted.append(reader.ack), True, True, 0, 0, 0)
    assert reader.due == 0
    for due, done in ((0, True), (time.monotonic_ns() + 10**12, True), (time.monotonic_ns() - 10**8, False)):
        put(segment, writer, b"x")
        batch = reader.try_get(None)
        reader.due = due
        assert reader.try_ack(batch) is done
    reader.due, segment.views.words[ACK_WANTED] = 0, batch.last
    assert reader.try_ack(batch)
    assert wanted == [batch.last]


PRODUCER = """
import sys, time
from shmstore.memory import segment as segments
from shmstore.ring.cursors import LOGGED, PUT
from shmstore.ring.writer import plain_slots, writer_of


def put(payloads):
    slots = plain_slots(payloads)
    return writer.put_encoded(b"".join(payloads), slots, slots["size"].astype("i8"))


views = segments.attach(sys.argv[1], path=None).views
writer, k, end = writer_of(views), 0, time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    for _ in range(50):
        payloads = [bytes([k % 251]) * (1 + (k + i) % 90) for i in range(1 + k % 7)]
        if not put(payloads):
            views.words[LOGGED] = views.words[PUT]
            writer.refresh(len(payloads), sum(map(len, payloads)))
            assert put(payloads)
        k += 1
"""


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=compiled_only), False])
def test_a_copy_is_never_torn(made, compiled):
    """A reader copies what a producer in another process is about to write over, again and again: each copy is whole, or none."""
    segment = made(capacity=16, unit=64)
    environment = {**os.environ, "SHMSTORE_PURE": "" if COMPILED else "1"}
    producer = subprocess.Popen([sys.executable, "-c", PRODUCER, segment.name, "1.5"], env=environment)
    views, read, missed = segment.views, 0, 0
    while producer.poll() is None:
        first = views.words[FLOOR] + 1
        last = min(views.words[PUT], first + 5)
        if last < first:
            continue
        if compiled:
            batch = FromLog(segment, first, last, 0)
            try:
                found = batch.raw, batch.ends
            except LookupError:
                missed += 1
                continue
        else:
            copy = copy_of_ring(segment, first, last)
            if copy is None:
                missed += 1
                continue
            found = copy.raw, copy.ends
        start = 0
        for end in found[1].tolist():
            assert 0 < end - start <= 90
            assert len(set(found[0][start:end])) == 1
            start = end
        assert start == len(found[0])
        read += 1
    assert producer.returncode == 0
    assert read > 100
