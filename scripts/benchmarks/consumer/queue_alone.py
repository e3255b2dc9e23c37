"""What sends from a store that is full before: our sender, and a bare loop. Each runs in a process of its own, and gives its rates."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from confluent_kafka import Producer

from scripts.benchmarks import measure
from shmstore import Batch, Consumer, EventStore
from shmstore.consumer.queues.kafka import PROGRESS, Kafka
from shmstore.consumer.queues.messages import MessageOptions, Messages
from shmstore.consumer.queues.queue import Mark, Message
from shmstore.consumer.queues.sender import Sender

PASSES = 2  # that are measured in a process, behind one that is not
BETWEEN_POLLS = 100  # messages that a bare loop produces between two looks at the client's events


class Task(NamedTuple):
    """What is sent: all of store `name` in folder `state`, as subscription `reader`, in a format. `broker` has its address and its process."""

    name: str
    state: str
    reader: str
    form: str
    rows: int
    broker: tuple[str, int]


class Rates(NamedTuple):
    """Rows a second, and seconds of CPU a row: of the sender's process, of the broker's."""

    rows: float
    cpu: float
    broker_cpu: float


class _Clock:
    """From `start` on, until `rates`."""

    def __init__(self, task: Task) -> None:
        self._task, self._began = task, (0.0, 0.0, 0.0)

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), measure.cpu([self._task.broker[1]])

    def start(self) -> None:
        self._began = self._now()

    def rates(self) -> Rates:
        wall, own, broker = (now - then for now, then in zip(self._now(), self._began, strict=True))
        rows = self._task.rows
        return Rates(rows / wall, own / rows, broker / rows)


class _Timed(Kafka):
    """Starts a clock once it is open and knows the topics."""

    def __init__(self, task: Task, clock: _Clock, topics: Sequence[str]) -> None:
        super().__init__(task.broker[0], f"{task.name}/{task.reader}")
        self._clock, self._topics = clock, topics

    def open(self) -> Mark | None:
        mark = super().open()
        for topic in self._topics:
            self.partitions(topic)
        self._clock.start()
        return mark


def sender(task: Task, topics: Sequence[str]) -> list[Rates]:
    """Our sender, exactly once, from its first look into the store to its last commit."""
    found = []
    for one in _passes(task):
        clock = _Clock(one)
        queue = _Timed(one, clock, topics)
        with _reader(one) as consumer:
            Sender(consumer, queue, _options(one)).run()
            found.append(clock.rates())
        queue.close()
        _forget(one)
    return found[1:]


def bare(task: Task, topics: Sequence[str]) -> list[Rates]:
    """The same messages in the same transactions with the same settings of the client, made before: confluent-kafka's calls and nothing else.

    It does not look at what became of each message, has no way on after an error, and reads, makes and acks nothing.
    """
    maker = Messages(_options(task), lambda topic: 1)
    made = [maker.of_payloads(batch.payloads(), batch.first).messages for batch in _batches(task)]
    for number, some in enumerate(made):
        some.append(Message(PROGRESS, task.reader.encode(), Mark(1, number).to_json(), 0))
    found = []
    for one in _passes(task):
        queue = Kafka(one.broker[0], f"{one.name}/{one.reader}")
        queue.open()  # makes the topic of marks
        queue.close()
        own = ("on_delivery", "error_cb", "logger")
        producer = Producer({name: value for name, value in queue._settings.items() if name not in own})
        producer.init_transactions(60)
        for topic in topics:
            producer.list_topics(topic, timeout=60)
        clock = _Clock(one)
        clock.start()
        for some in made:
            _send(producer, some)
        found.append(clock.rates())
    return found[1:]


def _send(producer: Producer, messages: Sequence[Message]) -> None:
    producer.begin_transaction()
    for first in range(0, len(messages), BETWEEN_POLLS):
        for topic, key, value, partition, _, _, headers in messages[first : first + BETWEEN_POLLS]:
            at = -1 if partition is None else partition
            while True:
                try:
                    if headers:
                        producer.produce(topic, value, key, at, headers=headers)  # type: ignore[arg-type]
                    else:
                        producer.produce(topic, value, key, at)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)  # else the client keeps what was delivered
    producer.commit_transaction(60)


def topics(task: Task) -> list[str]:
    """The topics of the messages, which the broker has now."""
    maker = Messages(_options(task), lambda topic: 1)
    found = {message.topic for batch in _batches(task) for message in maker.of_payloads(batch.payloads(), batch.first).messages}
    queue = Kafka(task.broker[0], f"{task.name}/{task.reader}")
    queue.open()
    for topic in found:
        queue.partitions(topic)
    queue.close()
    return sorted(found)


def _passes(task: Task) -> list[Task]:
    """The same for a reader of its own each."""
    return [task._replace(reader=f"{task.reader}-{number}") for number in range(PASSES + 1)]


def _options(task: Task) -> MessageOptions:
    """How the messages are made; Canal's have no headers, as its own producer's."""
    return MessageOptions(task.name, task.form, headers=task.form != "canal")


def _reader(task: Task) -> Consumer:
    """A consumer with the command's limits, up to the end of the store."""
    return Consumer(task.name, task.reader, limit_events=5000, limit_bytes=64 << 20, timeout=0, state=task.state)


def _batches(task: Task) -> Iterator[Batch]:
    """All that the store has."""
    with _reader(task) as consumer:
        yield from consumer
    _forget(task)


def _forget(task: Task) -> None:
    """A store has room for 63 subscriptions."""
    with EventStore.attach(task.name, state=task.state) as store:
        store.unsubscribe(task.reader)
