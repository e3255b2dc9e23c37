"""Consumer.sync and Consumer.resume: a writer that commits sequences with its rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import Consumer, EventStore, PositionNotFound, SyncTimeout
from tests.consumer.conftest import Reach
from tests.consumer.test_consumer import acked, transaction

pytestmark = pytest.mark.usefixtures("state")


@pytest.fixture
def log_store(store_name: str, state: Path) -> Iterator[EventStore]:
    with EventStore.create(store_name, capacity=64) as made:
        yield made


def test_sync_waits_for_the_disk(log_store: EventStore, reach: Reach) -> None:
    """What sync() was called for is on disk when it returns: a batch, a sequence, or all that was given."""
    with Consumer(reach(log_store.name), "audit", timeout=0) as reader:
        for number in range(5):
            log_store.put(transaction(number))
            batch = next(reader)
            reader.sync(*([] if number == 0 else [batch] if number % 2 else [batch.last]))
            assert log_store.sync(batch.last, 0) >= batch.last


def test_sync_at_its_deadline(log_store: EventStore, reach: Reach) -> None:
    """Where the log cannot have it, sync() raises at its deadline, and what was read is neither lost nor acked."""
    log_store.put(transaction(0))
    with Consumer(reach(log_store.name), "audit", timeout=0, auto_ack=False) as reader:
        batch = next(reader)
        began = time.monotonic()
        with pytest.raises(SyncTimeout, match=r"up to 2 on disk after 0\.3 s, not up to 500"):
            reader.sync(500, timeout=0.3)
        assert 0.3 <= time.monotonic() - began < 10
        assert isinstance(SyncTimeout(), TimeoutError)
        reader.ack(batch)


def test_a_store_without_a_log_has_nothing_to_wait_for(store: EventStore, reach: Reach) -> None:
    """Without a log sync() returns at once."""
    store.put(transaction(0))
    with Consumer(reach(store.name), "audit", timeout=0) as reader:
        reader.sync(next(reader))
        assert reader.store.sync(2, 0) == -1


@pytest.mark.parametrize("acks", [-1, 2, 5, 8])
@pytest.mark.parametrize("commits", [-1, 2, 5, 8])
def test_resume(log_store: EventStore, acks: int, commits: int, reach: Reach) -> None:
    """Reading continues right behind the last commit, whatever was acked; with none it continues at the ack."""
    for number in range(4):
        log_store.put(transaction(number))
    with Consumer(reach(log_store.name), "audit", timeout=0, auto_ack=False, limit_events=12) as reader:
        next(reader)
        if acks >= 0:
            reader.ack(acks)
    with Consumer(reach(log_store.name), "audit", timeout=0) as reader:
        assert reader.resume(reader.store.epoch, commits)
        done = commits if commits >= 0 else acks
        assert acked(log_store) == done
        assert [event.sequence for event in reader.events()] == list(range(done + 1, 12))


def test_a_commit_of_another_store(log_store: EventStore, reach: Reach) -> None:
    """Sequences of another epoch do not compare: reading continues at the ack."""
    log_store.put(transaction(0))
    with Consumer(reach(log_store.name), "audit", timeout=0) as reader:
        assert not reader.resume(log_store.epoch + 1, 2)
        assert [len(batch) for batch in reader] == [3]


def test_a_commit_that_the_store_does_not_have(log_store: EventStore, reach: Reach) -> None:
    """A sequence that was not put yet is refused, and nothing moves."""
    log_store.put(transaction(0))
    with Consumer(reach(log_store.name), "audit", timeout=0) as reader:
        with pytest.raises(PositionNotFound):
            reader.resume(log_store.epoch, 7)
        assert [len(batch) for batch in reader] == [3]


@pytest.mark.parametrize("tables", [None, "shop.orders"])
def test_a_commit_behind_which_the_log_keeps_no_more(
    store_name: str, tables: str | None, reach: Reach, caplog: pytest.LogCaptureFixture
) -> None:
    """Where events behind the last commit were acked and are gone, resume() refuses; with tables they may have been others', so it warns."""
    with EventStore.create(store_name, capacity=64, log_size=16 << 20, log_keep=0) as store:
        with Consumer(reach(store.name), "audit", timeout=0) as reader:
            for number in range(400):
                begin, row, end = transaction(number)
                store.put([begin, row._replace(rows=(row.rows[0]._replace(after=(number, "x" * 8000)),)), end])
                list(reader)
        store.sync()
        store.trim("latest")
        assert store.oldest > 5
        with Consumer(reach(store.name), "audit", tables=tables, timeout=0) as reader:
            if tables is None:
                with pytest.raises(PositionNotFound):
                    reader.resume(store.epoch, 2)
                assert list(reader) == []
                return
            assert reader.resume(store.epoch, 2)
            assert next(reader).first == store.oldest
    assert "2 was the last one committed, and the events in between are not kept" in caplog.text
