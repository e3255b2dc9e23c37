"""consumer/consumer.py: what is acked, what comes again, and how a wait ends."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shmstore import CheckpointFile, EventStore, PositionNotFound, StoreClosed, StoreNotFound, SubscriptionInUse
from shmstore.consumer import Consumer
from shmstore.consumer.consumer import IDLE_SECONDS
from shmstore.event import Column, EntryType, Event, EventType, Position, Row, TableSchema
from tests.consumer.conftest import Reach

pytestmark = pytest.mark.usefixtures("state")
ROOT = Path(__file__).resolve().parents[2]
TABLE = TableSchema("shop", "orders", (Column("id", "bigint", nullable=False), Column("note", "varchar")), (0,))


def transaction(number: int, rows: int = 1) -> list[Event]:
    """BEGIN, `rows` row events, END; transaction `number` ends at offset ``1000 * (number + 1)``."""
    name = f"0-1-{number}"

    def at(step: int) -> Position:
        return Position("binlog.000001", 1000 * number + step)

    made = [Event(EntryType.BEGIN, EventType.NONE, at(1), number, transaction=name)]
    for row in range(rows):
        values = (Row(None, (number * 100 + row, f"note {number}")),)
        made.append(
            Event(
                EntryType.ROWS, EventType.INSERT, at(2 + row), number, transaction=name, order=1 + row, table=TABLE, rows=values
            )
        )
    end = Position("binlog.000001", 1000 * (number + 1), f"0-1-{number}")
    return [*made, Event(EntryType.END, EventType.NONE, end, number, transaction=name, order=1 + rows)]


def acked(store: EventStore, subscription: str = "audit") -> int:
    return next(stat.ack.sequence for stat in store.subscriptions() if stat.name == subscription)


def test_ack_by_going_on(store: EventStore, reach: Reach) -> None:
    """A batch is acked when the loop asks for the next one, and not before."""
    for number in range(3):
        store.put(transaction(number))
    seen = []
    with Consumer(reach(store.name), "audit", limit_events=3, timeout=0) as consumer:
        for batch in consumer:
            seen.append((batch.first, batch.last, acked(store)))
    assert seen == [(0, 2, -1), (3, 5, 2), (6, 8, 5)]
    assert acked(store) == 8


def test_exception_gives_the_batch_back(store: EventStore, reach: Reach) -> None:
    """When the body raises, its batch comes again to the next owner; the ones before it do not."""
    for number in range(3):
        store.put(transaction(number))

    def body(consumer: Consumer) -> None:
        for batch in consumer:
            if batch.first == 3:
                raise RuntimeError("body")

    with pytest.raises(RuntimeError, match="body"), Consumer(reach(store.name), "audit", limit_events=3, timeout=0) as consumer:
        body(consumer)
    assert acked(store) == 2
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        assert [batch.first for batch in consumer] == [3]


def test_leaving_in_order_acks(store: EventStore, reach: Reach) -> None:
    """A `break` followed by an orderly end of the with block acks the current batch."""
    store.put(transaction(0))
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        for _batch in consumer:
            break
    assert acked(store) == 2


def test_new_loop_is_a_retry(store: EventStore, reach: Reach) -> None:
    """A loop begun again inside the with block, as a retry does, starts with the batch whose body raised."""
    store.put(transaction(0))
    firsts = []
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        for attempt in range(3):
            try:
                for batch in consumer:
                    firsts.append(batch.first)
                    if attempt < 2:
                        raise OSError("the sink is away")
            except OSError:
                continue
    assert firsts == [0, 0, 0]
    assert acked(store) == 2


def test_close_acks_nothing(store: EventStore, reach: Reach) -> None:
    """Without a with block, close() leaves the current batch to the next owner; a closed consumer says that it is."""
    store.put(transaction(0))
    consumer = Consumer(reach(store.name), "audit", timeout=0)
    assert next(consumer).last == 2
    consumer.close()
    consumer.close()
    assert acked(store) == -1
    with pytest.raises(StoreClosed):
        next(iter(consumer))


def test_events_ack_what_was_passed(store: EventStore, reach: Reach) -> None:
    """events() yields single events; leaving in order in mid-batch acks those up to the current one, and no more."""
    store.put(transaction(0, rows=4))
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        for event in consumer.events():
            if event.order == 2:
                break
    assert acked(store) == 2
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        assert [event.order for event in consumer.events()] == [3, 4, 5]
    assert acked(store) == 5


def test_events_give_back_on_exception(store: EventStore, reach: Reach) -> None:
    """An exception while events() is in mid-batch gives the whole batch back."""
    store.put(transaction(0, rows=4))

    def body(consumer: Consumer) -> None:
        for event in consumer.events():
            if event.order == 2:
                raise RuntimeError("body")

    with pytest.raises(RuntimeError, match="body"), Consumer(reach(store.name), "audit", timeout=0) as consumer:
        body(consumer)
    assert acked(store) == -1


def test_events_after_a_break_leave_nothing_out(store: EventStore, reach: Reach) -> None:
    """Continuing with next() after events() was left early starts at the first event that was not passed."""
    store.put(transaction(0, rows=4))
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        for event in consumer.events():
            if event.order == 2:
                break
        assert next(consumer).first == 3


def test_timeout_ends_the_loop(store: EventStore, reach: Reach) -> None:
    """With a time-out the loop ends when nothing more came, having acked everything; it can be begun again."""
    store.put(transaction(0))
    with Consumer(reach(store.name), "audit", timeout=0.05) as consumer:
        assert [batch.last for batch in consumer] == [2]
        assert acked(store) == 2
        store.put(transaction(1))
        assert [batch.last for batch in consumer] == [5]


def test_default_batch_leaves_space(store: EventStore, reach: Reach) -> None:
    """Without limits one batch takes a part of the ring, so that the producer continues while the body works."""
    for number in range(store.capacity // 4):
        store.put(transaction(number))
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        sizes = [len(batch) for batch in consumer]
    assert sum(sizes) == 3 * (store.capacity // 4)
    assert max(sizes) <= store.capacity // 8


def test_stop_from_a_thread_ends_a_wait(store: EventStore, reach: Reach) -> None:
    """stop() from another thread ends a loop that waits forever, without an event coming."""
    store.put(transaction(0))
    with Consumer(reach(store.name), "audit") as consumer:
        waiting = threading.Event()

        def stop() -> None:
            waiting.wait(10)
            time.sleep(IDLE_SECONDS + 0.3)  # by then the loop is in its long wait, which nothing else ends
            consumer.stop()

        thread = threading.Thread(target=stop)
        thread.start()
        for _batch in consumer:
            waiting.set()
        thread.join()
    assert acked(store) == 2


def test_stop_in_the_body_acks_its_batch(store: EventStore, reach: Reach) -> None:
    """stop() while the body runs lets it finish; its batch is acked and no other is got."""
    for number in range(3):
        store.put(transaction(number))
    firsts = []
    with Consumer(reach(store.name), "audit", limit_events=3) as consumer:
        for batch in consumer:
            firsts.append(batch.first)
            consumer.stop()
    assert firsts == [0]
    assert acked(store) == 2


WAITER = """
import signal, sys
from shmstore import Consumer
consumer = Consumer(sys.argv[1], "audit")
if sys.argv[2] == "stop":
    signal.signal(signal.SIGTERM, lambda number, frame: consumer.stop())
with consumer:
    print("ready", flush=True)
    for batch in consumer:
        print("got", batch.last, flush=True)
print("ended", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "how", "code"),
    [(signal.SIGTERM, "stop", 0), (signal.SIGTERM, "default", -signal.SIGTERM), (signal.SIGINT, "default", -signal.SIGINT)],
)
def test_signals_end_a_wait(store: EventStore, number: signal.Signals, how: str, code: int, reach: Reach) -> None:
    """SIGINT and SIGTERM end a wait; the subscription is free at once for the next owner, at its last ack."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITER, store.name, how], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        store.put(transaction(0))
        assert process.stdout.readline() == "got 2\n"
        while acked(store) < 2:  # then it asked for the next batch, and waits
            time.sleep(0.01)
        process.send_signal(number)
        rest, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == code
    assert rest == ("ended\n" if how == "stop" else "")
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        assert list(consumer) == []


INTERRUPTED = """
import random, signal, sys
from shmstore import Consumer
from shmstore import EventStore

class Tick(Exception):
    pass

armed = False
stuck = 0  # ticks since the last progress: the next one gives more time, or a slow machine would never get through

def tick(number, frame):
    global armed
    if armed:  # once a time: not also where the first one is dealt with, which no program can be proof against
        armed = False
        raise Tick

def arm():
    global armed
    armed = True
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.0002) * (1 + stuck))

signal.signal(signal.SIGALRM, tick)
seed, name, events = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
random.seed(seed)
seen, ticks, again = -1, 0, 0
store = EventStore.attach(name)
while seen < events - 1:
    try:
        with Consumer(store, "audit", limit_events=random.choice([1, 5, 20]), timeout=0, checkpoint=False) as consumer:
            while seen < events - 1:
                try:
                    arm()
                    for batch in consumer:
                        assert batch.first <= seen + 1, f"{batch} after {seen}"
                        assert [int(bytes(payload)) for payload in batch.payloads()] == list(range(batch.first, batch.last + 1))
                        again += batch.first <= seen
                        seen, stuck = max(seen, batch.last), 0
                        arm()
                    armed = False
                except Tick:
                    ticks, stuck = ticks + 1, stuck + 1
                    if random.random() < 0.2:
                        raise
    except Tick:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
print(f"{ticks} interrupts, {again} batches again")
assert ticks > 3
"""


def test_interrupts_lose_nothing(store: EventStore, seed: int) -> None:
    """Exceptions raised by a signal at random instants, in the body, in a get or in an ack, lead to repetition at most, never to a gap."""
    events = 4000
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(seed), store.name, str(events)], cwd=ROOT)
    try:
        for number in range(events):
            store.put(b"%d" % number, timeout=30)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_checkpoint_outlives_the_store(store_name: str, state: Path, reach: Reach) -> None:
    """A subscription resumes after its last acked transaction even when the segment was removed and filled again."""
    for again in range(2):
        with EventStore.create(store_name, capacity=256, log=False) as store:
            for number in range(4):
                store.put(transaction(number))
            with Consumer(reach(store_name), "audit", limit_events=3, timeout=0) as consumer:
                batches = [batch.events[1].transaction for batch in (consumer if again else itertools.islice(consumer, 2))]
        EventStore.unlink(store_name)
        assert batches == (["0-1-2", "0-1-3"] if again else ["0-1-0", "0-1-1"])
    assert [path.name for path in state.rglob("*.json")] == ["audit.json"]


def test_checkpoint_of_an_idle_reader(store: EventStore, state: Path, reach: Reach) -> None:
    """A reader that waits for more has written its last ack, so that not even a kill -9 of the host brings much again."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITER, reach(store.name), "default"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        file = CheckpointFile(None, store.name, "audit")
        deadline = time.monotonic() + 20
        for number in range(2):  # the second comes within the interval at which acks are written
            store.put(transaction(number))
            while (saved := file.load()) is None or saved.position.offset < 1000 * (number + 1):
                assert time.monotonic() < deadline
                time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert saved.sequence == 5


def test_checkpoint_is_optional(store: EventStore, state: Path, tmp_path: Path) -> None:
    """checkpoint=False writes no file; a path puts it there."""
    store.subscribe("keep")  # or what the first reader acked would be overwritten
    store.put(transaction(0))
    with Consumer(store.name, "none", timeout=0, checkpoint=False) as consumer:
        assert len(list(consumer)) == 1
    assert not list(state.rglob("*.json"))
    with Consumer(store.name, "mine", timeout=0, checkpoint=tmp_path / "mine") as consumer:
        assert len(list(consumer)) == 1
    assert [path.name for path in (tmp_path / "mine").rglob("*.json")] == ["mine.json"]


def test_start(store: EventStore, reach: Reach) -> None:
    """A new subscription begins where `start` says; a known one at its ack, whatever `start` says."""
    store.subscribe("keep")
    for number in range(3):
        store.put(transaction(number))
    starts: list[tuple[str | int | Position, list[int]]] = [
        ("earliest", [0]),
        ("latest", []),
        (4, [4]),
        (Position("binlog.000001", 2000), [6]),
        ("binlog.000001:2000", [6]),
        ("0-1-0", [3]),
        ("1970-01-02", []),
    ]
    for i, (start, firsts) in enumerate(starts):
        with Consumer(reach(store.name), f"s{i}", start=start, timeout=0, checkpoint=False) as consumer:
            assert [batch.first for batch in consumer] == firsts
        with Consumer(reach(store.name), f"s{i}", start="earliest", timeout=0, checkpoint=False) as consumer:
            assert [batch.first for batch in consumer] == []


def test_a_store_that_is_attached_already(store: EventStore) -> None:
    """Given an EventStore, the consumer reads from it and leaves it open."""
    store.put(transaction(0))
    with Consumer(store, "audit", timeout=0) as consumer:
        assert len(list(consumer)) == 1
    store.put(transaction(1))


def test_errors(store: EventStore, reach: Reach) -> None:
    """What cannot be is refused by name, and leaves the subscription and the store as they were."""
    with pytest.raises(StoreNotFound, match="nosuchstore"):
        Consumer("nosuchstore", "audit")
    with pytest.raises(ValueError, match="limit_events is 0"):
        Consumer(reach(store.name), "audit", limit_events=0)
    with pytest.raises(ValueError, match="timeout is -1"):
        Consumer(reach(store.name), "audit", timeout=-1)
    with pytest.raises(ValueError, match="not allowed"):
        Consumer(reach(store.name), "a/b")
    with pytest.raises(PositionNotFound):
        Consumer(reach(store.name), "audit", start=Position("binlog.000009", 4), checkpoint=False)
    with Consumer(reach(store.name), "audit"), pytest.raises(SubscriptionInUse, match="audit"):
        Consumer(reach(store.name), "audit")
    with Consumer(reach(store.name), "audit", timeout=0) as consumer:
        assert list(consumer) == []
