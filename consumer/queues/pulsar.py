"""Apache Pulsar, through pulsar-client.

Plan. The broker keeps, for each producer name and partition, the highest sequence id that it took, and drops a message with that id or a lower one
(deduplication, which must be on). A message's id is made of its event's number and its place in the event, and the name of the producer has the
store's epoch: so the same message has the same id after a kill. A new producer learns the highest id of its partition, and sends what is above it.
What the client sends again after a lost link is dropped in the same way. So each message is there once, and in order.

The mark is the last message of a topic of its own, PROGRESS.STORE.SUBSCRIPTION. Its producer is exclusive, and `open` fences the one of a former
instance. Each `send` begins with the last mark again, under its old id: a broker that deduplicates drops it, and says so; a fenced one is refused. A
durable subscription keeps the broker from deleting the last mark.

A batch of a `send` is not atomic: this client has no transactions. Nor does it batch here: of a client's batch the broker remembers the lowest id
alone, and takes the others again. At least once nothing is numbered, and the client batches by key, as Key_Shared readers need it.
"""

from __future__ import annotations

import base64
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pulsar
from pulsar.exceptions import PulsarException

from shmstore.consumer.queues.canal_routing import java_hash
from shmstore.consumer.queues.connecting import ANSWER_SECONDS, checked, hosts, named
from shmstore.consumer.queues.queue import Mark, Message, MessageTooLarge, QueueRefused, QueueUnreachable

PROGRESS: Final = "shmstore-progress"
LARGEST: Final = 5 << 20  # bytes of a message, the broker's default
WINDOW: Final = 5000  # messages that the broker did not answer yet
ANSWER_MS: Final = 10_000  # for one call of the client, which nothing interrupts
LOST_SECONDS: Final = 5.0  # without a connection, which the client makes again at once where it can
PLACES: Final = 24  # bits of an id for the place in an event
_REFUSED: Final = ("Authentication", "Authorization", "NotAllowed", "TopicNotFound", "TopicTerminated", "InvalidTopicName")
_NAME: Final = re.compile(r"(non-)?persistent://[\w=:.-]+/[\w=:.-]+/[^/\x00-\x1f\x7f]+", re.ASCII)
_FENCING: Final = pulsar.ProducerAccessMode.ExclusiveWithFencing  # ends a former one, which may still be connected
_COMPRESSION: Final = {"": "NONE", "none": "NONE", "gzip": "ZLib", "snappy": "SNAPPY", "lz4": "LZ4", "zstd": "ZSTD"}


class Pulsar:
    """A Pulsar cluster as a `Queue`: `address` is HOST:PORT,... of its brokers or proxies.

    `reader` names what is sent, STORE/SUBSCRIPTION. With user ``token`` the password is a token. `settings`: ``namespace`` of topics without one,
    ``admin``, the URL by which topics with `partitions` are created, and ``max_message_size``. Raises ValueError for others.
    """

    def __init__(
        self,
        address: str,
        reader: str,
        *,
        exactly_once: bool = True,
        user: str = "",
        password: str = "",
        tls: bool = False,
        tls_ca: str = "",
        tls_cert: str = "",
        tls_key: str = "",
        progress: str = PROGRESS,
        partitions: int = -1,
        compression: str = "",
        settings: Mapping[str, str] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        numbers, texts = checked(settings or {}, "Pulsar", ("max_message_size",), ("namespace", "admin"))
        self.exactly_once = exactly_once
        self._address, self._reader, self._stopped = address, reader, stopped
        self._largest = numbers["max_message_size"] or LARGEST
        self._namespace, self._admin = texts.get("namespace", "public/default"), texts.get("admin", "").rstrip("/")
        self._new, self._login = partitions, ""  # what the administration is shown
        if user == "token":
            if not re.fullmatch(r"[!-~]+", password):
                raise ValueError(
                    "the token of Pulsar has blanks, line ends or letters that no token has: check the password's file"
                )
            self._login = f"Bearer {password}"
        elif ":" in user:
            raise ValueError(f"--user {user!r} has a colon, with which a name ends at Pulsar: give another user")
        elif user:
            self._login = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
        if self._new > 0 and not self._admin:
            raise ValueError("--new-partitions needs --set admin=http://HOST:8080, where Pulsar creates topics")
        if self._admin and not self._admin.startswith(("http://", "https://")):
            raise ValueError(f"--set admin={self._admin}: write http://HOST:8080")
        self._progress = self._full(".".join([progress, *(re.sub(r"[^\w.-]", "_", part) for part in reader.split("/"))]))
        self._how: dict[str, Any] = {
            "service_url": f"pulsar{'+ssl' * tls}://"
            + ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts(address, "Pulsar")),
            "operation_timeout_seconds": ANSWER_MS // 1000,
            "connection_timeout_ms": ANSWER_MS,
            "stats_interval_in_seconds": 0,
            "tls_trust_certs_file_path": tls_ca or None,
            "tls_validate_hostname": True,
            "tls_certificate_file_path": tls_cert or None,
            "tls_private_key_file_path": tls_key or tls_cert or None,
        }
        if user:
            basic = pulsar.AuthenticationBasic(user, password) if user != "token" else None
            self._how["authentication"] = basic or pulsar.AuthenticationToken(password)
        elif tls_cert:
            self._how["authentication"] = pulsar.AuthenticationTLS(tls_cert, tls_key or tls_cert)
        self._producing: dict[str, Any] = {
            "send_timeout_millis": 0,  # with one, a message could follow one that was given up, and hide it from deduplication
            "max_pending_messages": 0,  # `WINDOW` is the limit
            "max_pending_messages_across_partitions": 0,
            "compression_type": getattr(pulsar.CompressionType, _COMPRESSION[compression]),
        }
        self._client: Any = None  # pulsar-client has types for a part of what it returns
        self._marks: Any = None  # the producer of marks
        self._kept: Any = None  # the subscription that keeps the last one
        self._mark, self._number, self._at = b"", -1, None  # the last one, its id, and where it is
        self._epoch = -1  # of `_producers`
        self._producers: dict[str, tuple[Any, int]] = {}  # by partition, with the highest id that the broker has
        self._topics: dict[str, list[str]] = {}  # names of the partitions
        self._flight = _Flight()

    # ---------------------------------------------------------------- begin

    def open(self) -> Mark | None:
        """Connect, fence a former instance, and return the mark."""
        self.close()
        self._topics.clear()
        self._flight = _Flight()  # what the former one still hears is of no meaning
        log = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)  # the client's own way is the standard output
        try:
            self._client = pulsar.Client(logger=log, **self._how)
            if self.exactly_once:
                self._take_over()
        except PulsarException as error:
            self._let_go()
            raise self._raised(error) from error
        return Mark.of_json(self._mark) if self._mark else None

    def _take_over(self) -> None:
        topic = self._client.get_topic_partitions(self._progress)[0]
        self._marks = self._client.create_producer(
            topic,
            producer_name=f"shmstore-{self._reader}",
            access_mode=_FENCING,
            **self._producing | {"send_timeout_millis": ANSWER_MS},  # one at a time: nothing follows it
        )
        self._kept = self._client.subscribe(
            topic,
            "shmstore",
            consumer_type=pulsar.ConsumerType.Failover,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=1,
        )
        self._mark, self._at = self._last(topic)
        self._number = self._marks.last_sequence_id()
        if self._number < 0:  # none, or the broker forgot this producer
            self._number = 0  # ids begin at 1: the client takes 0 for none
            self._write(self._mark)

    def _last(self, topic: str) -> tuple[bytes, Any]:
        """The last mark, and where it is. It was written by this producer, or a former one: no other may."""
        found = None
        reader = self._client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=True)
        while reader.has_message_available():
            found = reader.read_next(ANSWER_MS)
        reader.close()
        if found is None:
            return b"", None
        if (other := found.properties().get("shmstore.reader", self._reader)) != self._reader:
            raise QueueRefused(f"Pulsar's topic {topic} is that of {other!r}: give another --progress-topic")
        return found.data(), found.message_id()

    def _write(self, mark: bytes) -> None:
        """Write a mark, and let the broker delete the one before."""
        while True:
            self._number += 1
            at = self._marks.send(mark, properties={"shmstore.reader": self._reader}, sequence_id=self._number)
            if at.ledger_id() >= 0:
                break  # else one of a former instance came in meanwhile, under this id
        self._mark = mark
        if self._at is not None:
            with suppress(PulsarException):  # the next one does it
                self._kept.acknowledge_cumulative(self._at)
        self._at = at

    def _check(self) -> None:
        """Raise `QueueRefused` where another instance was opened, or the broker does not drop what it has."""
        at = self._marks.send(self._mark, properties={"shmstore.reader": self._reader}, sequence_id=self._number)
        if at.ledger_id() >= 0:
            raise QueueRefused(
                f"Pulsar at {self._address} does not deduplicate, so a message may come twice: turn it on (brokerDeduplicationEnabled, or "
                "pulsar-admin namespaces set-deduplication --enable), or choose --delivery at-least-once"
            )

    # ---------------------------------------------------------------- topics

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has."""
        return len(self._partitions(topic))

    def _partitions(self, topic: str) -> list[str]:
        if (known := self._topics.get(topic)) is None:
            if self._client is None:
                raise self._not_open()
            full = self._full(topic)
            if self._new > 0:
                self._create(full)
            try:
                known = self._topics[topic] = self._client.get_topic_partitions(full)
            except PulsarException as error:
                raise self._raised(error) from error
        return known

    def _create(self, topic: str) -> None:
        """Create a topic with partitions, unless it is there."""
        path = "/".join(map(urllib.parse.quote, topic.replace("://", "/").split("/")))
        headers = {"Content-Type": "application/json"} | ({"Authorization": self._login} if self._login else {})
        asked = urllib.request.Request(
            f"{self._admin}/admin/v2/{path}/partitions", str(self._new).encode(), headers, method="PUT"
        )
        try:
            urllib.request.urlopen(asked, timeout=ANSWER_SECONDS).close()
        except urllib.error.HTTPError as error:
            with error:
                if error.code >= 500:
                    raise QueueUnreachable(f"Pulsar at {self._admin} did not create {topic}: {error}") from error
                if error.code != 409:
                    raise QueueRefused(f"Pulsar at {self._admin} does not create {topic}: {error}") from error
        except OSError as error:
            raise QueueUnreachable(f"Pulsar at {self._admin} does not answer: {error}") from error

    def _full(self, topic: str) -> str:
        full = topic if "://" in topic else f"persistent://{self._namespace}/{topic}"
        return named(full, "Pulsar", _NAME, "a name without / and line ends, or persistent://TENANT/NAMESPACE/NAME")

    def _producer(self, name: str) -> tuple[Any, int]:
        """The producer of a partition, and the highest id that the broker has of it."""
        how: dict[str, Any] = {"batching_enabled": True, "batching_type": pulsar.BatchingType.KeyBased}
        if self.exactly_once:
            how = {"producer_name": f"shmstore-{self._reader}-{self._epoch}", "access_mode": _FENCING}
        made = self._client.create_producer(name, **how, **self._producing)
        found = self._producers[name] = made, made.last_sequence_id()
        return found

    # ---------------------------------------------------------------- send

    def send(self, messages: Sequence[Message], mark: Mark) -> None:
        """Send what the broker does not have, and the mark."""
        if self._client is None:
            raise self._not_open()
        try:
            for message in messages:
                if (size := _size(message)) > self._largest:
                    raise self._too_large(message, size)
            if self.exactly_once:
                self._check()
            self._send(messages, mark)
            self._wait(0)
            if self.exactly_once:
                self._write(mark.to_json())
        except PulsarException as error:
            self._let_go()
            raise self._raised(error) from error
        except BaseException:
            self._let_go()
            raise

    def _send(self, messages: Sequence[Message], mark: Mark) -> None:
        if self._epoch != mark.epoch:
            for producer, _ in self._producers.values():
                producer.close()
            self._producers.clear()
            self._epoch = mark.epoch
        flight, last, place = self._flight, -1, 0
        for message in messages:
            sequence = message.sequence if message.sequence >= 0 else mark.sequence
            place = place + 1 if sequence == last else 0
            last, identity = sequence, (sequence + 1) << PLACES | place
            name = self._place_of(message)
            producer, there = self._producers.get(name) or self._producer(name)
            numbered: dict[str, Any] = {}
            if self.exactly_once:
                if identity <= there:
                    continue
                numbered = {"sequence_id": identity}
            producer.send_async(
                message.value,
                flight.came,
                properties={header: text.decode() for header, text in message.headers},
                partition_key=None if message.key is None else message.key.decode(),
                **numbered,
            )
            flight.sent += 1
            if flight.error:  # the client took no message after this one: none may follow
                if "MessageTooBig" in flight.error:
                    raise self._too_large(message, _size(message))
                raise self._raised(flight.error)
            if flight.sent - flight.answered >= WINDOW:
                self._wait(WINDOW // 2)

    def _place_of(self, message: Message) -> str:
        """The partition: by its number, or by the key as Pulsar's own clients do."""
        names = self._partitions(message.topic)
        if message.partition is not None:
            return names[message.partition % len(names)]  # as Canal does where a topic has fewer
        return names[(java_hash((message.key or b"").decode()) & 0x7FFFFFFF) % len(names)]

    def _wait(self, most: int) -> None:
        """Wait until at most so many messages are not answered."""
        flight, seen, until, lost = self._flight, -1, 0.0, time.monotonic()
        while flight.sent - flight.answered > most and not flight.error:
            if seen != flight.answered:
                seen, until = flight.answered, time.monotonic() + ANSWER_SECONDS
            if flight.something.wait(0.05) or all(producer.is_connected() for producer, _ in self._producers.values()):
                lost = time.monotonic()
            flight.something.clear()
            if time.monotonic() - lost > LOST_SECONDS:
                raise self._raised("a partition has no connection: its broker is away, or its topic was deleted")
            if time.monotonic() > until - (ANSWER_SECONDS - 2) * self._stopped():
                raise self._raised("TimeOut")
        if flight.error:
            raise self._raised(flight.error)

    # ---------------------------------------------------------------- end, errors

    def close(self) -> None:
        """Let go of the connection."""
        if self._client is not None:
            with suppress(PulsarException):
                self._client.close()
        self._forget()

    def _let_go(self) -> None:
        """Give up what is in flight: it comes again after the next `open`."""
        if self._client is not None:
            self._client.shutdown()
        self._forget()

    def _forget(self) -> None:
        self._client = self._marks = self._kept = None
        self._mark, self._number, self._at, self._epoch = b"", -1, None, -1
        self._producers.clear()

    def _not_open(self) -> QueueUnreachable:
        return QueueUnreachable(f"Pulsar at {self._address} is not open")

    def _too_large(self, message: Message, size: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"row {message.row} of event {message.sequence} is a message of {size:,} bytes for {message.topic}, and Pulsar takes "
            f"{min(size - 1, self._largest):,}: raise maxMessageSize of the broker and --set max_message_size, or choose --oversized",
            message,
        )

    def _raised(self, error: PulsarException | str) -> QueueUnreachable | QueueRefused:
        """Our error for it."""
        why = str(error).removeprefix("Pulsar error: ").removeprefix("Result")
        if "ProducerFenced" in why:
            return QueueRefused(
                f"another instance sends {self._reader!r} now, or another sender took one of its topics: "
                "let one instance run, and give each sender topics of its own"
            )
        if any(word in why for word in _REFUSED):
            return QueueRefused(
                f"Pulsar at {self._address} refuses: {why}; the user needs produce on the topics, and produce and consume on {self._progress}"
            )
        if why in ("BrokerMetadataError", "BrokerPersistenceError"):
            why = f"{why}: it cannot write now, as where the disks of its bookies are full; the broker's log says why"
        if why == "TimeOut":  # the client takes a refused login for a lost connection, and tries again
            why = "no answer in time, or it does not take the login: the broker's log says which"
        return QueueUnreachable(f"Pulsar at {self._address} does not answer: {why}")


class _Flight:
    """What is sent and answered; the client's threads count here."""

    def __init__(self) -> None:
        self.sent = self.answered = 0
        self.error = ""
        self.something = threading.Event()

    def came(self, result: Any, at: Any) -> None:
        """The answer to a message."""
        if result != pulsar.Result.Ok:
            self.error = self.error or result.name
        self.answered += 1
        self.something.set()


def _size(message: Message) -> int:
    """Bytes of a message, as the broker counts them."""
    headers = sum([len(name) + len(text) + 8 for name, text in message.headers])
    return len(message.value or b"") + len(message.key or b"") + headers + 64
