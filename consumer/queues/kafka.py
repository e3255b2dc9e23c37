"""Kafka, through confluent-kafka (librdkafka).

Each `send` is a Kafka transaction: the messages, and the mark as a record of a compacted topic, whose key is STORE/SUBSCRIPTION. `open` calls
``init_transactions``, which fences a former instance and ends its open transaction; then it reads the mark as readers with
``isolation.level=read_committed`` do.

Other senders write into the same topic. An open transaction of one of them hides what was committed behind it; where that is a mark of this reader,
`open` waits until it is decided: at most the other one's time-out. What hangs (`kafka_readers`) is ended.

With ``exactly_once=False`` messages go out without transactions (but idempotent: a retry of librdkafka's own makes no duplicate), and no mark is kept.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from shmstore.consumer.queues.connecting import ANSWER_SECONDS, named
from shmstore.consumer.queues.kafka_readers import Readers, hiding
from shmstore.consumer.queues.queue import Mark, Message, MessageTooLarge, QueueRefused, QueueUnreachable

PROGRESS: Final = "shmstore-progress"
TRANSACTION_SECONDS: Final = 60  # after which the broker ends the transaction of an instance that is gone
_SLICE: Final = 1.0  # seconds of one wait, so that Ctrl-C comes through
_LAST_RECORDS: Final = 4096  # of the progress topic are looked at first

_log = logging.getLogger("shmstore.queue")

_REFUSED: Final = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._SSL,
    )
)
# What passes: the broker is away, or a topic was made just now and its partitions have no leader yet.
_PASSING: Final = frozenset(
    (
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )
)
_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[\w.-]{1,249}", re.ASCII)
_FENCED: Final = frozenset((KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH))
_TOO_LARGE: Final = frozenset((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE))
_OURS: Final = (
    "transactional.id",
    "enable.idempotence",
    "isolation.level",
    "group.id",
    "enable.auto.commit",
    "delivery.report.only.error",
)


class Kafka:
    """A Kafka cluster as a `Queue`: `brokers` are HOST:PORT,...

    `reader` names what is sent, STORE/SUBSCRIPTION: it is the key of the mark and, with ``shmstore-`` before it, the transactional id. Topics that
    are not there are made with `partitions` and `replication` (-1: as the cluster's default is), unless `create` is false: then they are left to the broker.
    `settings` are librdkafka's own, over all that is set here. Raises ValueError for one that librdkafka does not know or that is decided here.
    """

    def __init__(
        self,
        brokers: str,
        reader: str,
        *,
        exactly_once: bool = True,
        progress_topic: str = PROGRESS,
        partitions: int = -1,
        replication: int = -1,
        create: bool = True,
        compression: str = "lz4",
        settings: Mapping[str, str | int | float | bool] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._brokers, self._reader, self.exactly_once, self._progress = brokers, reader, exactly_once, progress_topic
        self._key = reader.encode()  # of the marks
        self._new = partitions, replication
        self._create, self._stopped = create, stopped
        given = dict(settings or {})
        if taken := next((name for name in _OURS if name in given), None):
            raise ValueError(f"{taken} is decided by the delivery that is asked for: leave it out")
        # Errors come by callback: a client that cannot log in only says so there, and tries forever.
        common: dict[str, Any] = {
            "bootstrap.servers": brokers,
            "client.id": "shmstore",
            "reconnect.backoff.max.ms": 1000,  # a broker that is there again is found soon
            "error_cb": self._noted,
            "logger": _silent(),
        }
        self._common = common | given
        # murmur2_random: a key goes where Java's producers send it.
        self._settings = common | {
            "partitioner": "murmur2_random",
            "compression.type": compression,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": self._undelivered,
            "metadata.max.age.ms": 60_000,
            **given,
        }
        if exactly_once:
            self._settings |= {"transactional.id": f"shmstore-{reader}", "transaction.timeout.ms": TRANSACTION_SECONDS * 1000}
        self._producer: Producer | None = None
        self._admin: AdminClient | None = None
        self._counts: dict[str, int] = {}  # partitions of topics
        self._error: KafkaError | None = None  # what the client last said of itself
        self._failed: list[tuple[Any, Message]] = []  # what was not delivered, without row and sequence
        self._sent: list[Message] = []  # the batch in hand
        self._begun = False  # whether a part of it was taken
        self._sequence = -1  # of the mark
        self._hung = False  # whether the last mark was in a transaction that hung
        self._clean: set[str] = set()  # topics in which nothing hangs
        self._suspects: set[str] = set()  # topics in which something hung while a transaction was open
        try:
            Producer(self._settings)
        except (KafkaException, ValueError, TypeError) as error:
            raise ValueError(f"Kafka's settings: {_text(error)}") from error

    # ---------------------------------------------------------------- begin

    def open(self) -> Mark | None:
        """Begin, or begin again: fence a former instance, and return the mark; None where there is none, and always without transactions."""
        self.close()
        self._error, self._failed = None, []
        self._counts.clear()
        self._clean.clear()
        self._hung = False
        producer = self._producer = Producer(self._settings)
        self._admin = AdminClient(self._common)
        if not self.exactly_once:
            self._asked(lambda: producer.list_topics(timeout=_SLICE), "does not answer")
            return None
        self._asked(lambda: producer.init_transactions(_SLICE), "does not begin transactions")
        self.partitions(self._progress, compacted=True)
        mark = self._read_mark()
        self._sequence = -1 if mark is None else mark.sequence
        return mark

    def _asked(self, ask: Callable[[], Any], trouble: str) -> Any:
        """Ask until there is an answer, in waits that a signal can come between."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return ask()
            except KafkaException as error:
                why = error.args[0]
                self._hear()
                said = self._error
                if said is not None and said.code() in _REFUSED:
                    raise self._raised(said, trouble) from error
                waits = why.retriable() or why.code() in _PASSING
                if not waits or time.monotonic() >= until or self._stopped():
                    raise self._raised(said if waits and said is not None else why, trouble) from error
                time.sleep(0.05)

    def _hear(self) -> None:
        """Let the client say what it met meanwhile."""
        try:
            if self._producer is not None:
                self._producer.poll(0)
        except KafkaException as met:
            self._noted(met.args[0])

    def _read_mark(self) -> Mark | None:
        """The last committed mark of this reader."""
        place = TopicPartition(self._progress, 0)
        readers = self._readers()
        try:
            first, end = self._decided(readers, place)
            start = end
            while start > first:  # the mark is among the last messages, but for a reader that did not send for long
                upto, start = start, first if start < end else max(first, end - _LAST_RECORDS)
                own = [message.value() for message in readers.committed(place, start, upto) if message.key() == self._key]
                if own:
                    return self._understood(own[-1])
            return None
        finally:
            readers.close()

    def _readers(self) -> Readers:
        trouble = "does not let the mark be read"

        def refuse(error: KafkaError) -> None:
            if error.code() in _REFUSED:
                raise self._raised(error, trouble)

        return Readers(self._common, lambda question: self._asked(question, trouble), refuse, self._stopped)

    def _decided(self, readers: Readers, place: TopicPartition) -> tuple[int, int]:
        """Return the first offset of the progress topic, and one up to which all marks of this reader are decided and readable.

        No transaction of this reader is open in the coordinator, since ``init_transactions`` returned. One that is open in the topic hangs. Another
        sender's is waited for, where it hides marks of this reader.
        """
        until, said, seen = time.monotonic() + TRANSACTION_SECONDS + ANSWER_SECONDS, -1, -1
        while True:
            first, stable, end = readers.ends(place)
            hidden = [message.key() for message in readers.written(place, stable, end)]
            if self._key not in hidden:
                return first, stable
            owner = (hidden[0] or b"").decode(errors="replace")
            if hidden[0] == self._key and seen == stable:  # twice the same: it is not just being ended
                if not self._hung:
                    self._hung = True
                    self._abort([place])
                    continue
            elif hidden[0] != self._key and said != stable:
                said = stable
                _log.warning(
                    "waiting for the open transaction of %r, offset %d of topic %s: Kafka ends it after its time-out",
                    owner,
                    stable,
                    self._progress,
                )
            pause, seen = (_SLICE if seen == stable else 0.2), stable
            if time.monotonic() >= until or self._stopped():
                raise QueueUnreachable(
                    f"Kafka's topic {self._progress} cannot be read: the transaction of {owner!r} at offset {stable} is open, and hides the mark of "
                    f"{self._reader!r}. Start that sender again, which ends it, or end it with kafka-transactions.sh abort --topic {self._progress} "
                    f"--partition 0 --start-offset {stable}"
                )
            time.sleep(pause)

    # ---------------------------------------------------------------- transactions that hang

    def _end_hanging(self, topics: set[str]) -> None:
        """End what hangs in `topics`, before the first messages of this instance go there and would commit it with them.

        Where the last mark hung, all that hangs is of its batch, which is sent again. Else what is behind the mark was never to be committed; what
        the mark counts was, and the next transaction commits it.
        """
        if hanging := self._hanging(topics):
            self._abort(hanging)
        self._clean |= topics

    def _hanging(self, topics: set[str]) -> list[TopicPartition]:
        """Where in those of `topics` that were not looked at yet something hangs that is to be ended."""
        if not (new := topics - self._clean):
            return []
        admin = self._admin
        assert admin is not None
        places = [TopicPartition(topic, number) for topic in new for number in range(self.partitions(topic))]
        open_ = self._asked(lambda: hiding(admin, places), "does not say which transactions are open")
        return [place for place in open_ if self._hung or self._is_behind(place)]

    def _is_behind(self, place: TopicPartition) -> bool:
        """Whether the message at a place is of an event behind the mark, as far as its headers say that."""
        readers = self._readers()
        try:
            first = next(readers.written(place, place.offset, place.offset + 1), None)
        except QueueRefused:  # a sender may have no right to read; what is not known stays
            return False
        finally:
            readers.close()
        sequence = dict(first.headers() or ()).get("shmstore.sequence", b"") if first is not None else b""
        return sequence.isdigit() and int(sequence) > self._sequence

    def _abort(self, places: Sequence[TopicPartition]) -> None:
        """End the transactions of this reader that hang in `places`: a transaction that is aborted aborts them too. Those of other senders stay."""
        producer = self._producer
        assert producer is not None
        named = ", ".join(f"{place.topic}/{place.partition}" for place in places[:5])
        _log.warning(
            "Kafka ended a transaction of %r, and left it open in %d partitions (%s, ...): it is aborted there",
            self._reader,
            len(places),
            named,
        )
        producer.begin_transaction()
        for place in places:  # a key and no value: what a compacted topic takes too
            self._produce(producer, Message(place.topic, self._key, None, place.partition))
        self._flush(producer)
        self._asked(lambda: producer.abort_transaction(_SLICE), "does not end a transaction")

    def _understood(self, value: bytes) -> Mark:
        try:
            return Mark.of_json(value)
        except ValueError as error:
            raise QueueRefused(
                f"Kafka's topic {self._progress} has for {self._reader!r} what is no mark: {error}; "
                "let only shmstore write it, and give another --progress-topic or subscription"
            ) from error

    # ---------------------------------------------------------------- topics

    def partitions(self, topic: str, compacted: bool = False) -> int:
        """How many partitions a topic has."""
        if (known := self._counts.get(topic)) is None:
            known = self._counts[topic] = self._asked_partitions(topic, compacted)
        return known

    def _asked_partitions(self, topic: str, compacted: bool) -> int:
        producer, admin = self._producer, self._admin
        if producer is None or admin is None:
            raise QueueUnreachable("Kafka is not open")
        named(topic, "Kafka", _NAME, "249 letters, digits, ., _ and -")
        until = time.monotonic() + ANSWER_SECONDS
        made = False
        while True:
            # A producer's own question lets a broker make the topic, where it may; ours is asked of all topics, which makes none.
            about = self._asked(lambda: admin.list_topics(timeout=_SLICE * 5), "does not say which topics it has")
            found = about.topics.get(topic)
            if found is None and (not self._create or made):
                asked = self._asked(lambda: producer.list_topics(topic, timeout=_SLICE * 5), f"has no topic {topic}")
                found = asked.topics.get(topic)
            if found is not None and found.error is None and found.partitions:
                return len(found.partitions)
            if found is not None and found.error is not None and found.error.code() in _REFUSED:
                raise self._raised(found.error, f"does not let topic {topic} be written")
            if self._create and not made:
                self._make(admin, topic, compacted)
                made = True
            elif time.monotonic() >= until or self._stopped():
                raise QueueRefused(f"Kafka has no topic {topic}, and makes none: create it, or leave out --no-create-topics")
            time.sleep(0.1)

    def _make(self, admin: AdminClient, topic: str, compacted: bool) -> None:
        partitions, replication = (1, self._new[1]) if compacted else self._new
        config = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)} if compacted else {}
        wish = NewTopic(topic, partitions, replication, config=config)
        future = admin.create_topics([wish], request_timeout=ANSWER_SECONDS)[topic]
        try:
            future.result(ANSWER_SECONDS + 5)
            _log.info("created topic %s", topic)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._raised(error.args[0], f"did not create topic {topic}") from error

    # ---------------------------------------------------------------- send

    def take(self, messages: Sequence[Message]) -> None:
        """Hand over the first messages of a batch: the client sends them while the rest is made. They come in with the next `send`."""
        self._bring_in(messages, None)
        self._hear()  # else the client keeps what was delivered, and its memory, until the commit

    def send(self, messages: Sequence[Message], mark: Mark) -> None:
        """Bring in the messages and the mark, as one transaction, with those that were taken."""
        self._bring_in(messages, mark)

    def _bring_in(self, messages: Sequence[Message], mark: Mark | None) -> None:
        producer = self._producer
        if producer is None:
            raise QueueUnreachable("Kafka is not open")
        topics = {message.topic for message in messages}
        for topic in topics:
            self.partitions(topic)
        try:
            self._begin(producer, topics)
            self._sent += messages
            self._produce_all(producer, messages)
            if mark is None:
                return
            if self.exactly_once:
                self._produce(producer, Message(self._progress, self._key, mark.to_json(), 0))
            self._begun = False  # from here on the broker may have it, whatever we hear
            if self.exactly_once:
                self._commit(producer)
                self._sequence = mark.sequence
            else:
                self._flush(producer)
            self._error = None
        except KafkaException as error:
            self._hear()
            self._raise_failed(error)
            raise self._raised(error.args[0], "did not take a batch") from error
        except BaseException:
            self.close()
            raise

    def _begin(self, producer: Producer, topics: set[str]) -> None:
        """Begin a batch, or continue the one in hand, with messages for `topics`."""
        if self._begun:
            # What hangs is ended by a transaction of its own, before the batch's: so that one begins again.
            if hanging := self._hanging(topics):
                self._suspects |= {place.topic for place in hanging}
                raise QueueUnreachable(
                    f"Kafka's topic {hanging[0].topic} has a transaction of {self._reader!r} that was not ended"
                )
            self._clean |= topics
            return
        self._failed.clear()
        self._sent = []
        if self.exactly_once:
            self._end_hanging(topics | self._suspects)
            self._suspects.clear()
            producer.begin_transaction()
        self._begun = True

    def _produce_all(self, producer: Producer, messages: Sequence[Message]) -> None:
        produce = producer.produce
        for message in messages:
            topic, key, value, partition, _, _, headers = message
            try:
                if headers:
                    produce(topic, value, key, -1 if partition is None else partition, headers=headers)  # type: ignore[arg-type]
                else:
                    produce(topic, value, key, -1 if partition is None else partition)
            except (BufferError, KafkaException):
                self._produce(producer, message)

    def _produce(self, producer: Producer, message: Message) -> None:
        """Hand over a message, also while the client has no room."""
        partition = -1 if message.partition is None else message.partition
        until = time.monotonic() + TRANSACTION_SECONDS
        while True:
            try:
                producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    partition,
                    headers=message.headers or None,  # type: ignore[arg-type]
                )
                return
            except BufferError:  # the client holds as much as it may: let some of it go out
                producer.poll(0.1)
                if self._failed or self._stopped() or time.monotonic() >= until:
                    self._raise_failed(None)
                    raise QueueUnreachable("Kafka takes no messages") from None
            except KafkaException as error:
                if error.args[0].code() in _TOO_LARGE:
                    self._end_open()
                    raise self._too_large(message, "message.max.bytes of this client") from error
                raise

    def _commit(self, producer: Producer) -> None:
        """Commit; asked again after each wait, as librdkafka wants it."""
        until = time.monotonic() + TRANSACTION_SECONDS
        while True:
            try:
                producer.commit_transaction(_SLICE)
                return
            except KafkaException as error:
                why = error.args[0]
                if self._failed or not why.retriable() or time.monotonic() >= until:
                    raise
                self._hear()

    def _flush(self, producer: Producer) -> None:
        until = time.monotonic() + TRANSACTION_SECONDS
        while producer.flush(_SLICE):
            if self._failed or time.monotonic() >= until:
                break
        self._raise_failed(None)
        if len(producer):
            raise QueueUnreachable(f"Kafka did not take {len(producer)} messages in {TRANSACTION_SECONDS} s")

    def _undelivered(self, error: KafkaError, message: Any) -> None:
        found = Message(message.topic(), message.key(), message.value(), headers=message.headers() or ())
        self._failed.append((error, found))

    def _raise_failed(self, cause: Exception | None) -> None:
        """Raise for what was not delivered, the most telling first."""
        too_large = [message for error, message in self._failed if error.code() in _TOO_LARGE]
        if too_large:
            self._end_open()
            largest = max(too_large, key=_size)
            whole = int(self._settings["batch.size"])
            if len(too_large) > 1 and whole > _size(largest):
                # A topic's limit is on what one request has for a partition: each of these may be small enough.
                self._settings["batch.size"] = max(_size(largest), whole // 16)
                raise QueueUnreachable("Kafka takes only smaller batches of messages") from cause
            sent = next((each for each in self._sent if each[:3] == largest[:3]), largest)
            raise self._too_large(sent, "the broker refuses it") from cause
        for error, message in self._failed:
            if error.code() in _REFUSED:
                raise self._raised(error, f"does not take messages for topic {message.topic}") from cause
        for error, _ in self._failed:
            if error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
                raise self._raised(error, "did not take a message") from cause

    def _end_open(self) -> None:
        """End the open transaction now, as far as the broker answers: `open` would have to wait until its coordinator has ended it."""
        if self._producer is not None:
            with suppress(KafkaException):
                self._producer.abort_transaction(_SLICE)

    def _too_large(self, message: Message, why: str) -> MessageTooLarge:
        return MessageTooLarge(
            f"row {message.row} of event {message.sequence} is a message of {_size(message):,} bytes for topic {message.topic}, more than Kafka takes "
            f"({why}): raise the topic's max.message.bytes and --set message.max.bytes=..., or choose --oversized",
            message,
        )

    def close(self) -> None:
        """Let go of the client. What was not committed is not there for readers of committed messages."""
        if self._begun:
            self._end_open()  # else those readers would wait for its time-out
        producer, self._producer, self._admin = self._producer, None, None
        self._begun = False
        if producer is not None:
            producer.purge(in_flight=True)

    # ---------------------------------------------------------------- errors

    def _noted(self, error: KafkaError) -> None:
        """What the client says of itself, in its own time."""
        known = self._error
        if known is None or (known.code() not in _REFUSED and error.code() != KafkaError._ALL_BROKERS_DOWN):  # which says less
            self._error = error

    def says(self) -> str:
        """What the client met since the last batch."""
        error = self._error
        return "" if error is None else f"Kafka's client says: {_line(error)}"

    def _raised(self, error: KafkaError, trouble: str) -> QueueUnreachable | QueueRefused:
        """Our error for it."""
        code = error.code()
        why = _line(error)
        if code in _FENCED:
            return QueueRefused(
                f"another instance sends {self._reader!r} now, and Kafka fenced this one: let one of them run, or give each a subscription of its own"
            )
        if code == KafkaError._SSL:
            return QueueRefused(
                f"Kafka at {self._brokers} {trouble}: {why}; check the --tls options, and that the port speaks TLS"
            )
        if code in _REFUSED:
            return QueueRefused(
                f"Kafka at {self._brokers} {trouble}: {why}; the user needs WRITE and CREATE on topics and on the transactional id, READ on {self._progress}"
            )
        return QueueUnreachable(f"Kafka at {self._brokers} {trouble}: {why}")


def _size(message: Message) -> int:
    """About what a message takes, with what Kafka puts around it."""
    headers = sum([len(name) + len(value) + 4 for name, value in message.headers])
    return len(message.value or b"") + len(message.key or b"") + headers + 100


def _line(error: KafkaError) -> str:
    return re.sub(r"\s+", " ", error.str() or error.name())


def _text(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return str(first.str() if isinstance(first, KafkaError) else first)


def _silent() -> logging.Logger:
    """Takes librdkafka's own lines: what matters of them comes as an error too."""
    logger = logging.Logger("librdkafka")
    logger.addHandler(logging.NullHandler())
    return logger
