"""producer/pipeline/sink.py: what each sink promises; puts that wait for free space, and what the log says of it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from shmstore import BatchMode, EntryType, Event, EventStore, EventType, Position
from shmstore.encoding.codec import encode_batch
from shmstore.producer.pipeline import sink
from shmstore.producer.pipeline.group import Group
from shmstore.producer.pipeline.problems import Problems
from shmstore.producer.pipeline.sink import BlockingPut, Sink, StoreSink, with_store
from shmstore.producer.settings import Settings
from shmstore.producer.start.resume import Resume, StreamStart
from shmstore.producer.transactions.buffer import Flush
from tests.producer.running import remove, store_name


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[EventStore]:
    """A store of eight events, whose waiting counts in hundredths of a second."""
    monkeypatch.setattr(sink, "TRY", 0.01)
    monkeypatch.setattr(sink, "PATIENCE", 0.05)
    name = store_name()
    try:
        with EventStore.create(name, capacity=8, memory_unit=256, batch_mode=BatchMode.MEMSIZE, log=False) as made:
            yield made
    finally:
        remove(name)


@pytest.fixture(params=["store", "member"])
def of_one_source(request: pytest.FixtureRequest, store: EventStore) -> Sink:
    """A sink of each kind, of a source that is new."""
    if request.param == "store":
        return StoreSink(Settings(store=store.name), store, logging.getLogger("producer"))
    return Group([Settings(store=store.name, name="a")], store, lambda: False).members[0]


def test_a_disk_smaller_than_the_log_may_be(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where the log may become larger than the disk has free, its producer says so when it starts, with both figures; else nothing."""
    name, log = store_name(), logging.getLogger("producer")
    try:
        for free, said in ((2**40, 0), (3 * 2**30, 1)):
            monkeypatch.setattr(os, "statvfs", lambda _, free=free: SimpleNamespace(f_bavail=free >> 12, f_frsize=4096))
            with_store(Settings(store=name, log_size="10g", capacity=8), log, lambda store: store.put(b"x"))
            assert len(caplog.records) == said
        assert re.search(
            r"may grow by another 10\.0 GiB, and the disk of .* has 3\.0 GiB free: give a smaller --log-size", caplog.text
        )
    finally:
        monkeypatch.undo()
        remove(name)


def test_what_each_sink_promises(of_one_source: Sink, store: EventStore) -> None:
    """The store is claimed at once. A source continues where it was first begun, however often that is repeated, until something was put;
    then behind that, whatever becomes of the memory that it was put from."""
    one = of_one_source
    assert store.stat().producer_pid
    assert one.resume() is None
    assert not one.checkpoints
    one.claim(gtids=True, domain="")
    for offset in (100, 200):
        one.begin(StreamStart(Position("binlog.000001", offset), None))
        assert one.resume() == Resume(Position("binlog.000001", 100), None)
    there = Position("binlog.000001", 300, "0-1-5")
    blob, slots = encode_batch([Event(EntryType.DDL, EventType.QUERY, there, 1000, sql="x", transaction="0-1-5")])
    lent = bytearray(blob)
    assert one.put(Flush(memoryview(lent), slots, 0, 1, True), lambda: False, lambda: None)
    lent[:] = bytes(len(lent))
    one.heard(drained=True)
    in_store = isinstance(one, StoreSink)  # a member only brought it: the group puts it, and until then it comes again
    assert one.resume() == Resume(there if in_store else Position("binlog.000001", 100), None)


class Waiter:
    """Puts while no reader acks, for as many looks as are given, and acks then."""

    def __init__(self, store: EventStore) -> None:
        self.reader = store.subscribe("slow")
        log = logging.getLogger("producer")
        self.puts = BlockingPut(store, log, Problems(Settings(store=store.name), store, "", log))
        self._left = 0

    def put(self, size: int, events: int, looks: int = 0) -> bool:
        event = Event(EntryType.DDL, EventType.QUERY, Position("binlog.000001", 4), 1000, sql="x" * size)
        self._left = looks
        return self.puts.put(*encode_batch([event] * events), lambda: False, self._look)

    def _look(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.reader.ack(self.reader.get(timeout=0))


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.mark.parametrize("closed", [False, True])
def test_a_wait_is_told(store: EventStore, caplog: pytest.LogCaptureFixture, closed: bool) -> None:
    """A put that waits says once which store, for how much free space, which subscription is slowest and who reads it; then, that it continues."""
    caplog.set_level(logging.INFO)
    waiter = Waiter(store)
    quick = store.subscribe("quick")
    waiter.put(9, 8)
    quick.ack(quick.get(timeout=0))
    if closed:
        waiter.reader.close()
        looks = [0]

        def stop() -> bool:
            looks[0] += 1
            return looks[0] > 20

        event = Event(EntryType.DDL, EventType.QUERY, Position("binlog.000001", 4), 1000, sql="x")
        assert not waiter.puts.put(*encode_batch([event] * 2), stop, lambda: None)
    else:
        assert waiter.put(9, 2, looks=20)
    (warning,) = said(caplog, logging.WARNING)
    assert re.search(rf"store '{store.name}' has had no free space for 2 events of \d+ bytes for", warning)
    reader = "no process reads it" if closed else r"read by pid \d+"
    assert re.search(
        rf"subscription 'slow' \({reader}\) has acked nothing of 7: .*`shmstore unsubscribe {store.name} slow`$", warning
    )
    went_on = said(caplog, logging.INFO)
    assert len(went_on) == (0 if closed else 1)
    assert all(f"store '{store.name}' has free space again" in line for line in went_on)


def test_a_short_wait_is_not_told(store: EventStore, caplog: pytest.LogCaptureFixture) -> None:
    """Free space that comes within the patience, as it does all the time, is not worth a line."""
    caplog.set_level(logging.INFO)
    waiter = Waiter(store)
    for _ in range(4):
        assert waiter.put(9, 8, looks=1)
    assert said(caplog, logging.WARNING) == said(caplog, logging.INFO) == []


def test_a_long_wait_is_told_again(store: EventStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that lasts is reported again and again, but no more often than once in a while, over several puts too."""
    waiter = Waiter(store)
    waiter.put(9, 8)
    waiter.put(9, 8, looks=20)
    waiter.put(9, 8, looks=20)
    assert len(said(caplog, logging.WARNING)) == 1
    monkeypatch.setattr(sink, "AGAIN", 0.05)
    waiter.put(9, 8, looks=40)
    assert len(said(caplog, logging.WARNING)) >= 3


def test_an_event_larger_than_the_ring(store: EventStore, caplog: pytest.LogCaptureFixture) -> None:
    """An event that needs a segment of its own waits for all readers, though half of the ring is free: the line says why."""
    waiter = Waiter(store)
    waiter.put(9, 1)
    assert waiter.put(5000, 1, looks=20)
    (warning,) = said(caplog, logging.WARNING)
    assert "more than the whole ring's 2,048: all before must be acked" in warning
