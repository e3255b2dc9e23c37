"""producer/pipeline/behind.py: what the log says of readers that the ring has left behind."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import EntryType, Event, EventStore, EventType, Position, StreamStat
from shmstore.producer.pipeline import behind
from shmstore.producer.pipeline.behind import ReadersBehind
from shmstore.producer.pipeline.sink import StoreSink
from shmstore.producer.settings import Settings
from tests.producer.running import store_name

LOG = logging.getLogger("producer")


@pytest.fixture
def store(state: Path) -> Iterator[EventStore]:
    """A store with a log whose ring holds 64 events."""
    name = store_name()
    try:
        with EventStore.create(name, capacity=64, memory_unit=1024) as made:
            yield made
    finally:
        EventStore.unlink(name, log=True, force=True)


def put(store: EventStore, count: int) -> None:
    event = Event(EntryType.DDL, EventType.QUERY, Position("binlog.000001", 4), 1000, sql="x")
    for _ in range(count):
        store.put(event)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records if "the ring" in record.getMessage()]
    caplog.clear()
    return said


def test_a_reader_that_falls_behind(store: EventStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line names each reader that the ring has left behind, who reads it and how far; then none until it is back, and one then."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(behind, "SECOND", 0.0)
    look = ReadersBehind(store, LOG).look
    slow, quick = store.subscribe("slow"), store.subscribe("quick")
    store.subscribe("away").close()
    look()
    put(store, 10)
    look()
    assert lines(caplog) == []
    put(store, 500)
    while quick.lag_events:
        quick.ack(quick.get(timeout=0))
    for _ in range(3):
        look()
    away, reads = lines(caplog)
    here = f"store '{store.name}': subscription "
    assert re.fullmatch(
        rf"{here}'(slow|away)' \((read by pid {os.getpid()}|no process reads it)\) has fallen behind the ring, by 510 events of \d+ bytes in all: "
        "it reads from the log",
        reads,
    )
    assert {away.split("'")[3], reads.split("'")[3]} == {"slow", "away"}
    while slow.lag_events:
        slow.ack(slow.get(timeout=0))
    store.unsubscribe("away")
    look()
    (back,) = lines(caplog)
    assert re.fullmatch(rf"{here}'slow' is back in the ring, after \d+ s", back)
    look()
    assert lines(caplog) == []


def test_the_heartbeat_says_it_once_a_second(
    store: EventStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer's heartbeat looks, and no more often than once a second, however often it beats."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(behind, "SECOND", 3600.0)
    sink = StoreSink(Settings(store=store.name), store, LOG)
    store.subscribe("slow").close()
    put(store, 500)
    for _ in range(2):
        sink.heartbeat("db", None, StreamStat())
    assert len(lines(caplog)) == 1
    put(store, 100)
    with store.subscribe("slow") as slow:
        while slow.lag_events:
            slow.ack(slow.get(timeout=0))
    sink.heartbeat("db", None, StreamStat())
    assert lines(caplog) == []


def test_a_store_without_a_log_has_none(caplog: pytest.LogCaptureFixture) -> None:
    """There a reader holds the producer up instead."""
    caplog.set_level(logging.INFO)
    name = store_name()
    try:
        with EventStore.create(name, capacity=8, log=False) as store:
            store.subscribe("slow").close()
            put(store, 8)
            ReadersBehind(store, LOG).look()
            assert store.behind_ring() == ()
    finally:
        EventStore.unlink(name)
    assert lines(caplog) == []
