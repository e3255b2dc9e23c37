"""RabbitMQ, through pika.

A topic is the quorum queue of that name, with several partitions TOPIC.0, TOPIC.1 and so on; or, with an exchange, the routing key. Each message
is persistent, and confirmed: `send` returns when a majority of the queue's members have all of them on disk. RabbitMQ has no transaction over
several queues, so no mark is kept: after an error or a kill a batch comes again, at least once. The property ``message_id`` is
EPOCH-SEQUENCE-ROW-NUMBER of the message, the same each time, by which a reader drops what it has.

A message that no queue takes is returned by the server, and ends sending: nothing is lost in an exchange without a binding.
"""

from __future__ import annotations

import itertools
import logging
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pika
from pika.exceptions import AMQPError, ProbableAccessDeniedError, ProbableAuthenticationError

from shmstore.consumer.queues.connecting import ANSWER_SECONDS, checked, hosts, named, numbered
from shmstore.consumer.queues.queue import Mark, Message, MessageTooLarge, QueueRefused, QueueUnreachable

WINDOW: Final = 2000  # messages that are not confirmed yet
CLOSE_SECONDS: Final = 2.0  # for the server to answer that the connection closes
_REFUSED: Final = (403, 404, 405, 406, 530)  # AMQP's numbers of what does not change when it is tried again
_NAME: Final = re.compile(r"(?=.*\S)[^\x00-\x1f\x7f]{1,255}")
_LARGE: Final = re.compile(r"message size (\d+)")
_lines = logging.getLogger("pika")  # what matters of them comes as an error too
_lines.addHandler(logging.NullHandler())
_lines.propagate = False


class RabbitMQ:
    """A RabbitMQ server or cluster as a `Queue`: `address` is HOST:PORT,..., tried in turn.

    `settings`: ``vhost``, and ``exchange``, to which messages go with the topic as routing key. Without an exchange queues that are not there are
    made, unless `create` is false. Raises ValueError for other settings.
    """

    exactly_once = False

    def __init__(
        self,
        address: str,
        *,
        user: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
        partitions: int = 1,
        create: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        _, texts = checked(settings or {}, "RabbitMQ", (), ("vhost", "exchange"))
        self._address, self._partitions, self._exchange = address, partitions, texts.get("exchange", "")
        self._create = create and not self._exchange
        self._places = [
            pika.ConnectionParameters(
                host,
                port,
                texts.get("vhost", "/"),
                pika.PlainCredentials(user, password) if user else pika.ConnectionParameters.DEFAULT_CREDENTIALS,
                ssl_options=pika.SSLOptions(tls, host) if tls else None,
                heartbeat=0,  # between sends nothing would answer one; a link that is lost shows when nothing is confirmed
                socket_timeout=ANSWER_SECONDS,
                stack_timeout=ANSWER_SECONDS,
                blocked_connection_timeout=ANSWER_SECONDS,
                tcp_options={"TCP_KEEPIDLE": 60},
                client_properties={"connection_name": "shmstore"},
            )
            for host, port in hosts(address, "RabbitMQ")
        ]
        self._connection: Any = None  # pika has no types
        self._channel: Any = None
        self._error: Exception | None = None  # why the connection or the channel closed, or what was returned
        self._blocked = ""  # why the server takes nothing now
        self._queues: set[str] = set()  # that are there, and routing keys that can be
        self._tag = self._progress = 0  # number of the last message of the channel; confirmations that came
        self._unconfirmed: dict[int, None] = {}  # numbers of messages, in order
        self._waiting: Iterator[tuple[str, bytes, Any]] = iter(())  # what is to be published
        self._timer: Any = None

    # ---------------------------------------------------------------- begin

    def open(self) -> Mark | None:
        """Connect. There is no mark."""
        self.close()
        self._queues.clear()
        for number, place in enumerate(self._places):
            try:
                self._connect(place)
                break
            except QueueUnreachable:
                self.close()
                if number == len(self._places) - 1:
                    raise
        return None

    def _connect(self, place: pika.ConnectionParameters) -> None:
        self._error, self._blocked, self._tag = None, "", 0
        self._unconfirmed.clear()
        self._connection = pika.SelectConnection(
            place, on_open_callback=self._opened, on_open_error_callback=self._closed, on_close_callback=self._closed
        )
        self._wait("open a connection")

    def _opened(self, connection: Any) -> None:
        connection.add_on_connection_blocked_callback(self._blocks)
        connection.add_on_connection_unblocked_callback(self._blocks)
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._closed)
        channel.add_on_return_callback(self._returned)
        channel.confirm_delivery(self._confirmed, callback=self._done)

    def partitions(self, topic: str) -> int:
        """As many as asked for."""
        return self._partitions

    # ---------------------------------------------------------------- events of the connection, all in `_wait`

    def _wait(self, what: str) -> None:
        """Let the connection work until `_done`. Raises where it closes, or nothing comes for `ANSWER_SECONDS`."""
        loop = self._connection.ioloop
        seen = -1

        def look() -> None:
            nonlocal seen
            if seen == self._progress:  # nothing was confirmed since the last look
                why = self._blocked and f": {self._blocked}; free memory or disk space of the server"
                self._error = QueueUnreachable(f"RabbitMQ at {self._address} did not {what} in {ANSWER_SECONDS:.0f} s{why}")
                loop.stop()
                return
            seen = self._progress
            self._timer = loop.call_later(ANSWER_SECONDS, look)

        look()
        loop.start()
        loop.remove_timeout(self._timer)
        if self._error is not None:
            raise self._raised(self._error)

    def _blocks(self, connection: Any, frame: Any) -> None:
        self._blocked = getattr(frame.method, "reason", "")

    def _done(self, *_: object) -> None:
        self._connection.ioloop.stop()

    def _closed(self, _: Any, reason: Any) -> None:
        self._error = self._error or reason
        self._connection.ioloop.stop()

    def _returned(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if self._create:
            self._error = QueueUnreachable(f"RabbitMQ at {self._address}: queue {method.routing_key!r} was deleted")
        else:
            self._error = QueueRefused(
                f"RabbitMQ at {self._address} has no queue for {method.routing_key!r}"
                f"{f' at exchange {method.exchange!r}: bind one' if method.exchange else ': create it, or leave out --no-create-topics'}"
            )
        self._connection.ioloop.stop()

    # ---------------------------------------------------------------- send

    def send(self, messages: Sequence[Message], mark: Mark) -> None:
        """Publish all, and wait until they are confirmed."""
        if self._channel is None:
            raise QueueUnreachable(f"RabbitMQ at {self._address} is not open")
        try:
            made = [(numbered(message.topic, message, self._partitions), message) for message in messages]
            for name in sorted({key for key, _ in made} - self._queues):
                named(name, "RabbitMQ", _NAME, "characters that print, of 255 bytes")
                if self._create:
                    self._channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"}, callback=self._done)
                    self._wait(f"declare queue {name}")
                self._queues.add(name)
            if made:
                self._publish(made, mark.epoch)
        except AMQPError as error:
            self.close()
            raise self._raised(error) from error
        except (QueueRefused, QueueUnreachable) as error:
            self.close()
            if large := _LARGE.search(str(error)):
                raise self._too_large(messages, int(large[1]), error) from error
            raise

    def _publish(self, made: Sequence[tuple[str, Message]], epoch: int) -> None:
        self._waiting = _with_properties(made, epoch)
        self._fill()
        self._wait("confirm messages")

    def _fill(self) -> None:
        """Publish until as many wait for their confirmation as may; done where none is left."""
        while len(self._unconfirmed) < WINDOW:
            if (one := next(self._waiting, None)) is None:
                break
            key, body, properties = one
            self._channel.basic_publish(self._exchange, key, body, properties, mandatory=True)
            self._tag += 1
            self._unconfirmed[self._tag] = None
        if not self._unconfirmed:
            self._done()

    def _confirmed(self, frame: Any) -> None:
        """The server has a message, or all up to that one, or does not take it."""
        method, waiting = frame.method, self._unconfirmed
        if method.NAME != "Basic.Ack":
            self._error = QueueUnreachable(
                f"RabbitMQ at {self._address} did not take a message: a queue is full, or has no majority"
            )
            self._done()
            return
        self._progress += 1
        tag = method.delivery_tag
        for confirmed in list(itertools.takewhile(lambda each: each <= tag, waiting)) if method.multiple else (tag,):
            waiting.pop(confirmed, None)
        if self._error is None and len(waiting) < WINDOW // 2:
            self._fill()

    # ---------------------------------------------------------------- end, errors

    def close(self) -> None:
        """Let go of the connection."""
        connection, self._channel = self._connection, None
        if connection is None:
            return
        if connection.is_open:  # pika cannot end one that it is opening; then the socket closes with it
            with suppress(AMQPError):
                connection.close()
                connection.ioloop.call_later(CLOSE_SECONDS, self._done)
                connection.ioloop.start()
        connection.ioloop.close()
        self._connection = None

    def _too_large(self, messages: Sequence[Message], size: int, error: Exception) -> Exception:
        """The error for the message of that size, as the server names it."""
        message = next((each for each in messages if len(each.value or b"") == size), None)
        if message is None:
            return error
        return MessageTooLarge(
            f"row {message.row} of event {message.sequence} is a message of {size:,} bytes for {message.topic}, more than RabbitMQ takes: "
            "raise max_message_size of the server, or choose --oversized",
            message,
        )

    def says(self) -> str:
        """Why the server takes nothing now, as it says."""
        return (
            self._blocked
            and f"RabbitMQ at {self._address} takes nothing: {self._blocked}; free memory or disk space of the server"
        )

    def _raised(self, error: BaseException) -> QueueUnreachable | QueueRefused:
        """Our error for it."""
        if isinstance(error, QueueUnreachable | QueueRefused):
            return error
        error = _innermost(error)
        why = re.sub(r"\s+", " ", str(error)) or type(error).__name__
        refused = (
            isinstance(error, ProbableAuthenticationError | ProbableAccessDeniedError)
            or getattr(error, "reply_code", 0) in _REFUSED
        )
        if refused or "ACCESS_REFUSED" in why or "ProbableAuthenticationError" in why:
            return QueueRefused(
                f"RabbitMQ at {self._address} refuses: {why}; the user needs configure and write on the queues, or write on the exchange"
            )
        return QueueUnreachable(f"RabbitMQ at {self._address} does not answer: {why}")


def _innermost(error: BaseException) -> BaseException:
    """What pika wrapped: the error of the last address, and of its last step."""
    while True:
        wrapped = (*getattr(error, "exceptions", ()), getattr(error, "exception", None), *error.args[:1])
        inner = next((each for each in reversed(wrapped) if isinstance(each, BaseException)), None)
        if inner is None:
            return error
        error = inner


def _with_properties(made: Sequence[tuple[str, Message]], epoch: int) -> Iterator[tuple[str, bytes, pika.BasicProperties]]:
    """Yield routing key, body and properties of each message; those of one row are numbered."""
    last, number = (-1, -1), 0
    for key, message in made:
        row = message.sequence, message.row
        number = number + 1 if row == last else 0
        last = row
        headers: dict[str, Any] = {name: value.decode() for name, value in message.headers}
        if message.key is not None:
            headers["key"] = message.key.decode()
        identity = f"{epoch}-{message.sequence}-{message.row}-{number}"
        yield (
            key,
            message.value or b"",
            pika.BasicProperties("application/json", headers=headers, delivery_mode=2, message_id=identity),
        )
