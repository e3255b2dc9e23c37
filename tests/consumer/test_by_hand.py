"""consumer/consumer.py: acks by hand, seek, and what to do when a checkpoint or a place is lost."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import AckError, CheckpointFile, EventStore, Position, PositionNotFound, StoreClosed, StoreError, SubscriptionLost
from shmstore.cli.main import main
from shmstore.consumer import Consumer
from tests.consumer.conftest import Reach
from tests.consumer.test_consumer import acked, transaction
from tests.shmstore.test_atomic_file import space_for

pytestmark = pytest.mark.usefixtures("state")


def test_acks_one_by_one(store: EventStore, reach: Reach) -> None:
    """ack(sequence) is cumulative and leaves the rest delivered: six acks of six events ack six, and the loop continues behind its batch."""
    for number in range(7):
        store.put(transaction(number))
    with Consumer(reach(store.name), "audit", timeout=0, limit_events=6) as consumer:
        for sequence, batch in enumerate(itertools.islice(consumer, 1)):
            for sequence in range(batch.first, batch.last + 1):
                consumer.ack(sequence)
                assert acked(store) == sequence
            with pytest.raises(AckError, match="has acked up to 5"):
                consumer.ack(3)
            with pytest.raises(AckError, match="got up to 5"):
                consumer.ack(6)
        assert next(consumer).first == 6
    assert acked(store) == 11


@pytest.mark.parametrize("what", ["sequence", "position", "batch"])
def test_ack_by_hand_of_a_part(store: EventStore, what: str, reach: Reach) -> None:
    """What was acked by hand never comes again; the rest of the batch stays delivered, and an exception rolls back just that."""
    store.put(transaction(0))
    store.put(transaction(1, rows=3))

    def body(consumer: Consumer) -> None:
        for batch in consumer:
            consumer.ack({"sequence": 2, "position": batch.events[2].position, "batch": batch}[what])
            raise RuntimeError("body")

    with pytest.raises(RuntimeError, match="body"), Consumer(reach(store.name), "audit", timeout=0) as consumer:
        body(consumer)
    assert acked(store) == (7 if what == "batch" else 2)
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        assert [batch.first for batch in consumer] == ([] if what == "batch" else [3])


def test_without_auto_ack(store: EventStore, reach: Reach) -> None:
    """With auto_ack=False only ack() acks: all that was handed out. Asking for more, leaving in order and the time-out do not."""
    for number in range(4):
        store.put(transaction(number))
    with Consumer(reach(store.name), "audit", auto_ack=False, limit_events=3, timeout=0) as consumer:
        assert [batch.first for batch in consumer] == [0, 3, 6, 9]
        assert acked(store) == -1
        assert [batch.first for batch in itertools.islice(consumer, 3)] == [0, 3, 6]  # a new loop is a retry
        consumer.ack()
        assert acked(store) == 8
        consumer.ack()  # nothing more
        assert next(consumer).first == 9
    assert acked(store) == 8
    with Consumer(reach(store.name), "audit", auto_ack=False, timeout=0) as consumer:
        assert [batch.first for batch in consumer] == [9]


def test_events_without_auto_ack(store: EventStore, reach: Reach) -> None:
    """events() left early hands out no more than the current event: ack() acks up to it, and without that nothing is left out either."""
    store.put(transaction(0, rows=4))
    for by_hand in (False, True):
        with Consumer(reach(store.name), "audit", auto_ack=False, timeout=0) as consumer:
            for event in consumer.events():
                if event.order == 2:
                    break
            if by_hand:
                consumer.ack()
            assert next(consumer).first == 3
        assert acked(store) == (2 if by_hand else -1)


@pytest.mark.parametrize("auto_ack", [True, False])
def test_a_generator_loses_nothing(store: EventStore, auto_ack: bool, reach: Reach) -> None:
    """A generator asks for the next batch before its caller has written the last. With auto_ack=False that loses no event."""
    for number in range(4):
        store.put(transaction(number))
    written: list[int] = []

    def resource(consumer: Consumer) -> Iterator[int]:
        for batch in consumer:
            yield from range(batch.first, batch.last + 1)

    def load(consumer: Consumer, chunk: int, *, dies: bool) -> None:
        rows = resource(consumer)
        while held := list(itertools.islice(rows, chunk)):
            if dies and len(held) == chunk:
                return  # with what it holds
            written.extend(held)

    first = Consumer(reach(store.name), "audit", auto_ack=auto_ack, limit_events=3, timeout=0)
    load(first, 4, dies=True)
    first.close()  # as a process that dies does: nothing is acked here
    with Consumer(reach(store.name), "audit", auto_ack=auto_ack, limit_events=3, timeout=0) as consumer:
        load(consumer, 4, dies=False)
        consumer.ack()
    assert written == list(range(3 if auto_ack else 0, 12))
    assert acked(store) == 11


def test_rollback_in_a_loop_of_events(store: EventStore, reach: Reach) -> None:
    """rollback() in the body of events() gives the events again that are not acked, and then continues: none is left out."""
    store.put(transaction(0, rows=4))
    orders = []
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        for event in consumer.events():
            orders.append(event.order)
            if orders == [0, 1, 2]:
                consumer.ack(0)
                consumer.rollback()
    assert orders == [0, 1, 2, 1, 2, 3, 4, 5]
    assert acked(store) == 5


def test_seek(store: EventStore, reach: Reach) -> None:
    """seek continues at the place that the writer kept, whatever it is: what comes before is acked, and a loop starts there."""
    for number in range(4):
        store.put(transaction(number))
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        consumer.seek(Position("binlog.000001", 1000))
        assert acked(store) == 2
        assert [batch.first for batch in consumer] == [3]
        with pytest.raises(PositionNotFound, match=f"continue at 12, .*shmstore unsubscribe {store.name} audit"):
            consumer.seek(5)
        assert acked(store) == 11
    store.put(transaction(4, rows=4))
    with Consumer(reach(store.name), "audit", auto_ack=False, timeout=0) as consumer:
        orders = []
        for event in consumer.events():
            orders.append(event.order)
            if orders == [0, 1]:
                consumer.seek(15)
        assert orders == [0, 1, 3, 4, 5]
        consumer.seek("latest")
    assert acked(store) == 17


def test_a_checkpoint_that_the_disk_refuses(store: EventStore, reach: Reach) -> None:
    """It raises; the ack counts, the next call continues with the next batch, and the end writes it: nothing is lost nor doubled."""
    for number in range(4):
        store.put(transaction(number))
    firsts = []
    with Consumer(reach(store.name), "audit", limit_events=3, timeout=0) as consumer:
        firsts.append(next(consumer).first)
        with space_for(1), pytest.raises(StoreError, match=r"^checkpoint .*audit\.json cannot be written"):
            next(consumer)
        assert acked(store) == 2
        firsts += [batch.first for batch in iter(lambda: next(consumer, None), None)]
    assert firsts == [0, 3, 6, 9]
    assert acked(store) == 11
    saved = CheckpointFile(None, store.name, "audit").load()
    assert saved is not None
    assert saved.sequence == 11


def test_a_loop_after_a_checkpoint_that_the_disk_refuses(store: EventStore, reach: Reach) -> None:
    """A loop begun again continues behind what was acked."""
    for number in range(4):
        store.put(transaction(number))
    firsts = []
    with Consumer(reach(store.name), "audit", limit_events=3, timeout=0) as consumer:
        with space_for(1), pytest.raises(StoreError, match="cannot be written"):
            firsts += [batch.first for batch in consumer]
        firsts += [batch.first for batch in consumer]
    assert firsts == [3, 6, 9]


def test_a_disk_that_stays_full(store: EventStore, reach: Reach) -> None:
    """Leaving raises what the disk said, and the subscription and the store are given up all the same."""
    store.put(transaction(0))
    with (
        pytest.raises(StoreError, match="cannot be written"),
        space_for(1),
        Consumer(reach(store.name), "audit", timeout=0) as consumer,
    ):
        next(consumer)
    with pytest.raises(StoreClosed):
        consumer.store.subscribe("other")
    assert [stat.alive for stat in store.subscriptions()] == [False]
    assert acked(store) == 2


@pytest.mark.parametrize("own_folder", [False, True])
def test_a_checkpoint_that_is_too_old(tmp_path: Path, store_name: str, own_folder: bool) -> None:
    """Where a store made again begins too late, the error says what the place came from and what to do, and that does it."""
    checkpoint = tmp_path / "own" if own_folder else True
    with EventStore.create(store_name, capacity=256, log=False) as store:
        store.put(transaction(0))
        with Consumer(store_name, "audit", timeout=0, checkpoint=checkpoint) as consumer:
            assert len(list(consumer)) == 1
    EventStore.unlink(store_name)
    with EventStore.create(store_name, capacity=256, log=False) as store:
        store.claim(start=Position("binlog.000001", 8000))
        store.put(transaction(8))
        with pytest.raises(PositionNotFound, match=rf"`shmstore snapshot {store_name} --tables") as refused:
            Consumer(store_name, "audit", checkpoint=checkpoint)
        command = re.search(rf"`shmstore (unsubscribe {store_name} audit)` lets it begin as a new one", str(refused.value))
        if own_folder:
            file = tmp_path / "own" / store_name / "audit.json"
            assert f"{file}: removing that file lets it begin as a new one" in str(refused.value)
            file.unlink()
        else:
            assert command is not None
            assert main(command[1].split()) == 0
        with Consumer(store_name, "audit", timeout=0, checkpoint=checkpoint) as consumer:
            assert [batch.first for batch in consumer] == [0]


def test_an_evicted_reader(store_name: str, reach: Reach) -> None:
    """A loop whose subscription was evicted ends with an error that names the command, after which it begins again."""
    with EventStore.create(store_name, capacity=4, lag="evict", evict_after=0.0, log=False) as store:
        consumer = Consumer(reach(store_name), "slow", timeout=0, limit_events=1)
        store.put(transaction(0))
        next(consumer)
        store.put(transaction(1))
        with pytest.raises(SubscriptionLost) as lost:
            next(consumer)
        consumer.close()
        command = re.search(rf"`shmstore (unsubscribe {store_name} slow)`", str(lost.value))
        assert command is not None
        assert main(command[1].split()) == 0
        with Consumer(reach(store_name), "slow", timeout=0) as consumer:
            assert [batch.last for batch in consumer] == [2, 3, 4, 5]
