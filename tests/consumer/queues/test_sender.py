"""consumer/queues/sender.py: each change once, whatever fails; and what becomes of messages that are too large."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmstore import Batch, Consumer, EventStore, PositionNotFound
from shmstore.consumer.queues import sender as module
from shmstore.consumer.queues.messages import MessageOptions
from shmstore.consumer.queues.queue import Mark, Message, MessageTooLarge, QueueRefused, QueueUnreachable
from shmstore.consumer.queues.sender import Sender
from shmstore.event import Column, EntryType, Event, EventType, Position, Row, TableSchema
from tests.consumer.queues.memory import Broker, MemoryQueue

TABLE = TableSchema("shop", "orders", (Column("id", "bigint", nullable=False), Column("note", "varchar")), (0,))
FAULTS = st.sampled_from(["", "", "open", "before", "half", "answer"])


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue is tried again at once, and takes messages early."""
    monkeypatch.setattr(module, "PIECE", 2)
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.0)


def transaction(number: int, rows: list[Row], kind: EventType = EventType.INSERT) -> list[Event]:
    """BEGIN, an event of `rows`, END."""
    name, file = f"0-1-{number}", "binlog.000001"
    return [
        Event(EntryType.BEGIN, EventType.NONE, Position(file, 1000 * number + 1), number, transaction=name),
        Event(
            EntryType.ROWS,
            kind,
            Position(file, 1000 * number + 2),
            number,
            transaction=name,
            order=1,
            table=TABLE,
            rows=tuple(rows),
        ),
        Event(EntryType.END, EventType.NONE, Position(file, 1000 * (number + 1), name), number, transaction=name, order=2),
    ]


def inserts(*ids: int, note: str = "") -> list[Row]:
    return [Row(None, (number, note or f"note {number}")) for number in ids]


def sent(
    store: EventStore, broker: Broker, *, limit: int = 4, oversized: str = "stop", folder: str = "", **options: Any
) -> Sender:
    """Send all that is in the store now."""
    with Consumer(store.name, "queue", timeout=0, limit_events=limit) as reader:
        sender = Sender(reader, MemoryQueue(broker), MessageOptions(store.name, **options), oversized=oversized, folder=folder)
        sender.run()
    return sender


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 4), st.lists(FAULTS, max_size=4), st.booleans()), min_size=1, max_size=6), st.integers(1, 9)
)
def test_each_change_comes_once(
    make_log_store: Callable[[], EventStore], steps: list[tuple[int, list[str], bool]], limit: int
) -> None:
    """Transactions come, sends fail before, within and after a commit, senders are killed: what is committed is each row once, in order."""
    store, broker, number = make_log_store(), Broker(), 0
    expected = []
    for count, faults, killed in steps:
        for _ in range(count):
            ids = [number * 10 + i for i in range(1 + number % 3)]
            store.put(transaction(number, inserts(*ids)))
            expected += ids
            number += 1
        broker.faults = list(faults)
        if killed:
            _killed(store, broker, limit)
        broker.faults = [fault for fault in broker.faults if fault]
        sent(store, broker, limit=limit, order="transaction")
    found = [json.loads(message.value or b"")["pk"]["id"] for message in broker.of(f"{store.name}.shop.orders")]
    assert found == expected
    assert broker.mark is not None
    assert broker.mark.sequence == store.newest


def _killed(store: EventStore, broker: Broker, limit: int) -> None:
    """Send one batch, and go without an ack, as a process that is killed."""
    reader = Consumer(store.name, "queue", timeout=0, limit_events=limit)
    try:
        with suppress(_Killed):
            Sender(reader, _Ending(broker), MessageOptions(store.name, order="transaction")).run()
    finally:
        reader.close()


class _Killed(BaseException):
    pass


class _Ending(MemoryQueue):
    def send(self, messages: Sequence[Message], mark: Mark) -> None:
        super().send(messages, mark)
        raise _Killed


@pytest.fixture
def make_log_store(state: Path) -> Iterator[Callable[[], EventStore]]:
    """A new store with a log at each call; removed at the end, or when the next one is made."""
    made: list[EventStore] = []

    def remove() -> None:
        for store in made:
            store.close()
            EventStore.unlink(store.name, log=True)
        made.clear()

    def make() -> EventStore:
        remove()
        made.append(EventStore.create(f"test-queue-{os.getpid()}", capacity=256))
        return made[-1]

    yield make
    remove()


@pytest.mark.parametrize(
    ("transactional", "faults"), [(True, []), (True, ["", "", "before"]), (True, [""] * 4 + ["answer"]), (False, [])]
)
def test_messages_are_taken_early(log_store: EventStore, transactional: bool, faults: list[str]) -> None:
    """A queue has the first ones while the rest of their batch is made, and each once where nothing fails or it has transactions."""
    for number in range(7):
        log_store.put(transaction(number, inserts(number)))
    broker = Broker(transactional=transactional, faults=faults)
    sent(log_store, broker, limit=100, order="transaction")
    found = [json.loads(message.value or b"")["pk"]["id"] for message in broker.of(f"{log_store.name}.shop.orders")]
    assert found == list(range(7))
    assert broker.early
    assert not broker.faults


@pytest.mark.parametrize("transactional", [True, False])
def test_it_is_stopped_while_the_queue_is_away(log_store: EventStore, transactional: bool) -> None:
    """The batch that did not come in is not acked: the next start sends it."""
    log_store.put(transaction(0, inserts(1)))
    broker = Broker(transactional=transactional)
    with Consumer(log_store.name, "queue", timeout=0) as reader:

        class Away(MemoryQueue):
            def send(self, messages: Sequence[Message], mark: Mark) -> None:
                sender.stop()
                raise QueueUnreachable("memory is away")

        sender = Sender(reader, Away(broker), MessageOptions(log_store.name))
        sender.run()
    assert log_store.subscriptions()[0].ack.sequence < log_store.newest
    broker.kept.clear()  # what was taken early
    sent(log_store, broker)
    assert [json.loads(message.key or b"") for message in broker.of(f"{log_store.name}.shop.orders")] == [{"id": 1}]


@pytest.mark.parametrize("transactional", [True, False])
def test_the_log_has_it_first(log_store: EventStore, transactional: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's log has a batch on disk before a reader of the queue can see any of it."""
    done, sync = [], Consumer.sync

    def noted(consumer: Consumer, batch: Batch) -> None:
        sync(consumer, batch)
        done.append("sync")

    class Noting(MemoryQueue):
        def take(self, messages: Sequence[Message]) -> None:
            done.append("take")
            super().take(messages)

        def send(self, messages: Sequence[Message], mark: Mark) -> None:
            done.append("send")
            super().send(messages, mark)

    monkeypatch.setattr(Consumer, "sync", noted)
    for number in range(2):
        log_store.put(transaction(number, inserts(number)))
    with Consumer(log_store.name, "queue", timeout=0) as reader:
        options = MessageOptions(log_store.name, order="transaction")
        Sender(reader, Noting(Broker(transactional=transactional)), options).run()
    assert done == (["take", "sync", "send"] if transactional else ["sync", "take", "sync", "send"])


@pytest.mark.parametrize("place", range(5))
def test_one_that_is_too_large_and_taken_early(log_store: EventStore, place: int) -> None:
    """Wherever it is in its batch: all others come once, in order."""
    for number in range(5):
        log_store.put(transaction(number, inserts(number, note="x" * 2000 if number == place else "")))
    broker = Broker(most_bytes=1000)
    sender = sent(log_store, broker, limit=100, oversized="skip", order="transaction")
    found = [json.loads(message.value or b"")["pk"]["id"] for message in broker.of(f"{log_store.name}.shop.orders")]
    assert found == [number for number in range(5) if number != place]
    assert sender.counters.oversized == 1


@pytest.mark.parametrize("most_bytes", [1000, 1 << 20])
@pytest.mark.parametrize("transactional", [True, False])
def test_bytes_are_counted(log_store: EventStore, transactional: bool, most_bytes: int) -> None:
    """The counter is the bytes of the values that the queue has, tombstones and what is left out for its size being none."""
    for number in range(5):
        log_store.put(transaction(number, inserts(number, note="x" * 2000 if number == 2 else "")))
    log_store.put(transaction(5, [Row((0, "note"), None)], EventType.DELETE))
    broker = Broker(most_bytes=most_bytes, transactional=transactional)
    limit = 100 if transactional else 3  # without transactions what was taken early, before one that is too large, comes twice
    sender = sent(log_store, broker, limit=limit, oversized="skip", order="transaction")
    found = broker.of(f"{log_store.name}.shop.orders")
    assert any(message.value is None for message in found)
    assert sender.counters.messages == len(found) == (6 if most_bytes == 1000 else 7)
    assert sender.counters.bytes == sum(len(message.value or b"") for message in found)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_queue_that_loses_all_it_had(log_store: EventStore, after: int) -> None:
    """As a server that is killed before anything is on its disk, marks included: what this sender sent, and had acked, comes again."""
    broker = Broker()
    for number in range(5):
        log_store.put(transaction(number, inserts(number)))
    broker.faults = ["", *[""] * after, "gone"]  # of `open`, and of each send
    sent(log_store, broker, limit=2, order="transaction")
    found = [json.loads(message.value or b"")["pk"]["id"] for message in broker.of(f"{log_store.name}.shop.orders")]
    assert found == list(range(5))
    assert not broker.faults


def test_what_comes_twice_without_transactions(log_store: EventStore) -> None:
    """At least once: a batch whose answer was lost comes again; nothing is lost, and each key stays in order."""
    broker = Broker(transactional=False, faults=["", "half", "", "answer"])
    for number in range(6):
        log_store.put(transaction(number, inserts(number, number + 100)))
    sent(log_store, broker)
    by_key: dict[bytes, list[int]] = {}
    for message in broker.of(f"{log_store.name}.shop.orders"):
        by_key.setdefault(message.key or b"", []).append(message.sequence)
    assert len(by_key) == 12
    assert all(each == sorted(each) for each in by_key.values())


def test_another_instance(log_store: EventStore) -> None:
    """Who was opened last sends; the one before ends with a line, and has put nothing."""
    broker = Broker()
    log_store.put(transaction(0, inserts(1)))
    with Consumer(log_store.name, "queue", timeout=0) as reader:
        first = MemoryQueue(broker)
        first.open()
        MemoryQueue(broker).open()
        with pytest.raises(QueueRefused):
            first.send([], Mark(1, 1))
        Sender(reader, MemoryQueue(broker), MessageOptions(log_store.name)).run()
    assert len(broker.of(f"{log_store.name}.shop.orders")) == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(1, 9), st.integers(0, 6), st.data())
def test_a_store_that_was_created_again(
    make_log_store: Callable[[], EventStore], sizes: list[int], limit: int, batches: int, data: st.DataObject
) -> None:
    """Sending ends anywhere, within a transaction too, and the store is another one, from an earlier place on: each row is there once."""
    store, broker, expected, made = make_log_store(), Broker(), [], []
    for number, size in enumerate(sizes):
        ids = [number * 10 + i for i in range(size)]
        expected += ids
        made.append(_in_parts(number, ids))
        store.put(made[-1])
    epoch = store.epoch
    with Consumer(store.name, "queue", timeout=0, limit_events=limit) as reader:
        sender = Sender(reader, _Counting(broker, batches), MessageOptions("s", order="transaction"))
        with suppress(_Killed):
            sender.run()
    mark = broker.mark
    assert mark is None or mark.epoch == epoch
    store = make_log_store()
    done = mark.sequence if mark else -1
    ends = [sum(map(len, made[:n])) - 1 for n in range(len(made) + 1)]
    whole = max(n for n, end in enumerate(ends) if end <= done)  # transactions that are in the queue
    for transaction_ in made[data.draw(st.integers(0, min(whole, len(made) - 1)), label="the new store begins with") :]:
        store.put(transaction_)
    with Consumer(store.name, "queue", timeout=0, limit_events=limit) as reader:
        Sender(reader, MemoryQueue(broker), MessageOptions("s", order="transaction")).run()
    assert [json.loads(message.value or b"")["pk"]["id"] for message in broker.of("s.shop.orders")] == expected


def _in_parts(number: int, ids: list[int]) -> list[Event]:
    """A transaction with an event for each row."""
    begin, rows, end = transaction(number, inserts(*ids))
    at = [
        rows._replace(position=Position(rows.position.file, rows.position.offset + i), order=1 + i, rows=rows.rows[i : i + 1])
        for i in range(len(ids))
    ]
    return [begin, *at, end]


class _Counting(MemoryQueue):
    """Ends the sender after some batches."""

    def __init__(self, broker: Broker, batches: int) -> None:
        super().__init__(broker)
        self._left = batches

    def send(self, messages: Sequence[Message], mark: Mark) -> None:
        if not self._left:
            raise _Killed
        super().send(messages, mark)
        self._left -= 1


def test_a_mark_without_a_place(log_store: EventStore) -> None:
    """Where the store is another one, and the mark has no position, sending ends with what to do."""
    log_store.put(transaction(0, inserts(1)))
    with pytest.raises(PositionNotFound, match="another subscription"):
        sent(log_store, Broker(mark=Mark(log_store.epoch + 1, 500)))


def test_one_that_is_down_holds_up_no_other(log_store: EventStore) -> None:
    """Of two senders one has no queue: the other sends all that comes, however much; then the first one's queue answers, and it has all, too."""

    class Down(MemoryQueue):
        def open(self) -> Mark | None:
            if not up.is_set():
                tried.set()
                raise QueueUnreachable("nothing listens")
            return super().open()

    up, tried, brokers = threading.Event(), threading.Event(), [Broker(), Broker()]
    queues = [Down(brokers[0]), MemoryQueue(brokers[1])]
    with ExitStack() as open_:
        readers = [open_.enter_context(Consumer(log_store.name, f"to{i}", limit_events=50)) for i in range(2)]
        senders = [
            Sender(reader, queue, MessageOptions(log_store.name, order="transaction"))
            for reader, queue in zip(readers, queues, strict=True)
        ]
        threads = [threading.Thread(target=sender.run) for sender in senders]
        for thread in threads:
            thread.start()
        try:
            assert tried.wait(60)
            for number in range(400):  # more than the ring holds
                log_store.put(transaction(number, inserts(number)), timeout=60)
            _until(lambda: senders[1].counters.sequence == log_store.newest)
            assert senders[0].counters.trouble == "nothing listens"
            assert not senders[1].counters.trouble
            up.set()
            _until(lambda: senders[0].counters.sequence == log_store.newest)
        finally:
            for sender in senders:
                sender.stop()
            for thread in threads:
                thread.join(60)
    for broker in brokers:
        found = broker.of(f"{log_store.name}.shop.orders")
        assert [json.loads(message.value or b"")["pk"]["id"] for message in found] == list(range(400))


@pytest.mark.parametrize("fails", ["open", "send"])
def test_it_tells_that_nothing_is_delivered(
    log_store: EventStore, fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that gets no answer, and then one error after the other: again and again a line says for how long, how many messages wait and what the
    client says, and the metrics show it; then that it continues."""
    monkeypatch.setattr(module, "FIRST_REPORT", 0.02)
    monkeypatch.setattr(module, "LONGEST_SILENCE", 0.05)
    caplog.set_level(logging.INFO, "shmstore.queue")

    class Slow(MemoryQueue):
        def wait(self, call: str) -> None:
            if call == fails and not up.is_set():
                assert answer.wait(60)
                raise QueueUnreachable("the disk is full")

        def open(self) -> Mark | None:
            self.wait("open")
            return super().open()

        def send(self, messages: Sequence[Message], mark: Mark) -> None:
            self.wait("send")
            super().send(messages, mark)

        def says(self) -> str:
            return "" if answer.is_set() else "its client met no broker"

    def reports(why: str) -> list[str]:
        return [each.getMessage() for each in caplog.records if each.getMessage().endswith(f": {why}")]

    up, answer, broker = threading.Event(), threading.Event(), Broker()
    log_store.put(transaction(0, inserts(1, 2, 3)))
    with Consumer(log_store.name, "queue") as reader:
        sender = Sender(reader, Slow(broker), MessageOptions(log_store.name), look=lambda: "check --brokers")
        thread = threading.Thread(target=sender.run)
        thread.start()
        try:
            end = "" if fails == "send" else "; check --brokers"
            _until(lambda: len(reports(f"its client met no broker{end}")) > 2)
            assert sender.counters.trouble.startswith("nothing was delivered for ")
            answer.set()
            _until(lambda: len(reports(f"the disk is full{end}")) > 2)
            assert sender.counters.trouble in ("", "the disk is full")
            up.set()
            _until(lambda: sender.counters.sequence == log_store.newest)
            _until(lambda: not sender.counters.trouble)
        finally:
            up.set()
            answer.set()
            sender.stop()
            thread.join(60)
    waits = ", and 3 messages wait" if fails == "send" else ""
    lines = reports(f"its client met no broker{end}") + reports(f"the disk is full{end}")
    assert [line for line in lines if not re.match(rf"nothing was delivered for \d+ s{waits}: ", line)] == []
    again = "the queue takes messages again" if fails == "send" else "the queue answers again"
    assert caplog.records[-1].getMessage() == again
    assert [each for each in caplog.records if again in each.getMessage()] == [caplog.records[-1]]


def test_when_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """After five seconds, then less and less often; not while the sender has no call under way, whose time is not counted either."""
    waiting = module._Waiting(module.SenderCounters(), MemoryQueue(Broker()), lambda: "")

    def seconds() -> list[int]:
        """After how many, of ten minutes from now on, a line comes."""
        caplog.clear()
        begin, reports = waiting._since or time.monotonic(), []
        for each in range(601):
            waiting.look(begin + each)
            if caplog.records:
                reports.append(each)
                assert f"was delivered for {each} s: the queue does not answer" in caplog.text
                caplog.clear()
        return reports

    with waiting.of(0):
        assert seconds() == [5, 15, 35, 75, 135, 195, 255, 315, 375, 435, 495, 555]
    assert seconds() == []
    with suppress(QueueUnreachable), waiting.of(0):
        raise QueueUnreachable("the disk is full")
    assert seconds()[0] == 5  # since this call
    waiting.failed(QueueUnreachable("the queue does not answer"), True)
    with waiting:  # the queue is opened; the batch is not in
        pass
    waiting.opened()
    waiting.look(time.monotonic() + 1000)
    assert len(caplog.records) == 1
    waiting.goes_on()
    assert seconds() == []


def test_a_lost_answer_is_no_trouble(log_store: EventStore) -> None:
    """Where the mark says that a batch is in, nothing waits, also while no other one comes."""
    broker = Broker(faults=["", "", "answer"])
    log_store.put(transaction(0, inserts(1)))
    with Consumer(log_store.name, "queue") as reader:
        sender = Sender(reader, MemoryQueue(broker), MessageOptions(log_store.name))
        thread = threading.Thread(target=sender.run)
        thread.start()
        try:
            _until(lambda: sender.counters.sequence == log_store.newest)
            assert sender.counters.retries == 1
            _until(lambda: not sender.counters.trouble)
        finally:
            sender.stop()
            thread.join(60)
    assert len(broker.of(f"{log_store.name}.shop.orders")) == 1


def _until(there: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not there():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_stop_between_batches(log_store: EventStore) -> None:
    """`stop` ends it after the batch in hand; the next one continues, and nothing is sent twice."""
    broker = Broker()
    for number in range(20):
        log_store.put(transaction(number, inserts(number)))
    with Consumer(log_store.name, "queue", limit_events=3) as reader:
        sender = Sender(reader, MemoryQueue(broker), MessageOptions(log_store.name))
        threading.Timer(0.05, sender.stop).start()
        sender.run()
    sent(log_store, broker)
    assert len(broker.of(f"{log_store.name}.shop.orders")) == 20


LARGE = "x" * 5000


@pytest.mark.parametrize("oversized", ["stop", "skip", "truncate", "claim-check"])
def test_what_is_too_large(log_store: EventStore, tmp_path: Path, oversized: str) -> None:
    """Stop names row, event and topic, and loses nothing; the others put a warning in its place, or less of it, or its file's name."""
    broker = Broker(most_bytes=2000)
    log_store.put(transaction(0, [*inserts(1), *inserts(2, note=LARGE), *inserts(3)]))
    topic, folder = f"{log_store.name}.shop.orders", str(tmp_path / "checks") if oversized == "claim-check" else ""
    if oversized == "stop":
        with pytest.raises(MessageTooLarge):
            sent(log_store, broker, oversized=oversized, order="table")
        broker.most_bytes = 1 << 20
        sent(log_store, broker, order="table")
        assert len(broker.of(topic)) == 3
        return
    longest = "t" * 249  # no name of a file may be as long as that and what follows it
    topic = longest if folder else topic
    sender = sent(log_store, broker, oversized=oversized, folder=folder, order="table", topic=longest if folder else None)
    found = [json.loads(each.value or b"") for each in broker.of(topic)]
    assert sender.counters.oversized >= 1
    assert len(found) == (2 if oversized == "skip" else 3)
    if oversized == "truncate":
        assert LARGE.startswith(found[1]["after"]["note"])
        assert ("shmstore.truncated", b"1") in broker.of(topic)[1].headers
    if oversized == "claim-check":
        file = Path(found[1]["claim_check"])
        assert json.loads(file.read_bytes())["after"]["note"] == LARGE
        assert found[1]["size"] == file.stat().st_size


@given(st.binary(max_size=80))
def test_what_is_no_mark(text: bytes) -> None:
    """Anything but a mark is a ValueError, never another error."""
    try:
        mark = Mark.of_json(text)
    except ValueError:
        return
    assert Mark.of_json(mark.to_json()) == mark


@given(st.integers(), st.integers(-1), st.text(), st.text())
def test_marks(epoch: int, sequence: int, position: str, gtids: str) -> None:
    """A mark is read as it was written."""
    mark = Mark(epoch, sequence, position, gtids)
    assert Mark.of_json(mark.to_json()) == mark
