"""NATS JetStream, through nats-py.

All that a reader sends is in one stream, in order. Each message names its predecessor (``Nats-Expected-Last-Msg-Id``), which must be the last one
of the stream: so the server takes none whose predecessor it did not take, and none of an instance after another one wrote. (An expected
sequence alone would not do: after one message of another instance the next but one fits again.) A batch ends with a mark: a message on a
subject of its own, PROGRESS.STORE.SUBSCRIPTION.

A stream with replicas takes each message by the sequence before it, and the next one is sent when it has the last. There the id of the last
message would not do: each replica compares it for itself when it writes the message, and knows none after it was started again or got messages from
another replica. It would leave out what the others keep, and everything after that, and would serve what it has as soon as it leads the stream. All
replicas have the same sequences; and where at most one message is under way, another instance's cannot come between two of them.

A batch is not atomic: after a kill the stream may end with a part of one. `open` finds it, since it is what follows the last mark, and writes a
mark that names those sequences (and thereby fences a former instance, whose last message is no longer the stream's). What is sent next begins with the
same events; `send` compares each with its message in the stream, and sends the rest. So each message is there once, and in order.

A topic is the subject of that name; with several partitions TOPIC.0, TOPIC.1 and so on. The value is the message's data, empty for a tombstone;
the key is the header ``key``, and ``shmstore.id`` says EPOCH-SEQUENCE-ROW of the event.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
import time
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from email.header import decode_header
from typing import Any, Final, TypeVar

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import RetentionPolicy, StorageType, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from shmstore.consumer.queues.connecting import ANSWER_SECONDS, checked, fenced, hosts, named, numbered
from shmstore.consumer.queues.queue import Mark, Message, MessageTooLarge, QueueRefused, QueueUnreachable
from shmstore.stored_json import parse_json

PROGRESS: Final = "shmstore-progress"
CLOSE_SECONDS: Final = 1.0  # for a link to close: what was sent is answered, or lost
WINDOW: Final = 500  # messages of which the last is waited for: the server holds what it did not store yet in memory
_ID, _AFTER, _AFTER_SEQUENCE = "Nats-Msg-Id", "Nats-Expected-Last-Msg-Id", "Nats-Expected-Last-Sequence"
_WRONG_END: Final = (10070, 10071)  # the server's numbers of the error that the stream ends with another message
_NO_RIGHTS: Final = ("authorization", "permissions violation", "authentication", "not enabled for account", "account")
_NO_ROOM: Final = re.compile("insufficient|resource limits exceeded|maximum (messages|bytes) exceeded|no space left")
_AGAIN_SECONDS: Final = 2.0  # after which a question is asked again
_NAME: Final = re.compile(r"[^\s*>\x00-\x1f\x7f]{1,255}")
_T = TypeVar("_T")


class NatsStream:
    """A stream of a NATS server, or a cluster, as a `Queue`: `address` is HOST:PORT,...

    `reader` names what is sent, STORE/SUBSCRIPTION: the stream is STORE-SUBSCRIPTION unless ``stream`` of `settings` says another. It is made
    where it is not there, with `replicas`, and ``max_msgs`` and ``max_bytes`` of `settings` (0: unlimited), unless `create` is false. Raises ValueError for
    other settings.
    """

    exactly_once = True

    def __init__(
        self,
        address: str,
        reader: str,
        *,
        user: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
        progress: str = PROGRESS,
        partitions: int = 1,
        replicas: int = 1,
        create: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        numbers, texts = checked(settings or {}, "NATS", ("max_msgs", "max_bytes"), ("stream",))
        self._address, self._reader, self._partitions, self._create = address, reader, partitions, create
        self._stream = texts.get("stream") or re.sub(r"[^A-Za-z0-9_-]", "_", reader.replace("/", "-"))
        self._progress = ".".join([_subject(progress), *(re.sub(r"[\s.*>]", "_", part) for part in reader.split("/"))])
        self._config = StreamConfig(
            name=self._stream,
            description=f"shmstore {reader}",
            subjects=[self._progress],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            num_replicas=replicas,
            max_msgs=numbers["max_msgs"] or -1,
            max_bytes=numbers["max_bytes"] or -1,
            duplicate_window=0.1,  # the least: no id comes twice, and the server keeps those of that time in memory
        )
        self._how: dict[str, Any] = {
            "servers": [
                f"{'tls' if tls else 'nats'}://{f'[{host}]' if ':' in host else host}:{port}"
                for host, port in hosts(address, "NATS")
            ],
            "tls": tls,
            "user": user or None,
            "password": password or None,
            "name": "shmstore",
            "allow_reconnect": False,  # what a lost answer means is for the sender to find out, by the mark
            "max_reconnect_attempts": 1,  # each server is tried twice
            "reconnect_time_wait": 0,
            "connect_timeout": ANSWER_SECONDS,
            "error_cb": self._noted,
        }
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._asking: asyncio.Task[Any] | None = None  # what waits for an answer
        self._said = ""  # what the server last refused, which comes apart from any answer
        self._instance = ""  # that the last mark names while it is ours
        self._sent = 0  # messages of this instance, of which each has its number in its id
        self._last = 0  # sequence that the stream ends with
        self._window = WINDOW  # messages under way; one where the stream has replicas
        self._mark = b""  # of the last whole batch
        self._part: list[tuple[int, int]] = []  # first and last sequence of what is in the stream of the batches after it
        self._subjects: set[str] = set()  # of the stream
        self._largest = 0

    # ---------------------------------------------------------------- begin

    def open(self) -> Mark | None:
        """Connect, take over from a former instance, and return the mark."""
        self.close()
        self._loop = asyncio.new_event_loop()  # runs between sends too: it answers the server's pings
        threading.Thread(target=_run, args=(self._loop,), name="nats", daemon=True).start()
        self._said = ""
        self._ask(self._begin())
        return Mark.of_json(self._mark) if self._mark else None

    async def _begin(self) -> None:
        self._client = _Client()
        try:
            await self._client.connect(**self._how)
        except _NoTls as error:
            raise QueueRefused(
                f"NATS at {self._address} speaks no TLS, which is asked for: turn it on in the server, or leave out the --tls options"
            ) from error
        self._said = ""  # what one of several servers said
        self._jetstream = _JetStream(self._client, timeout=ANSWER_SECONDS)
        config = (await self._stream_there()).config
        self._check(config)
        await self._bind(config, {self._progress})
        self._subjects = set(config.subjects or ())
        self._window = WINDOW if (config.num_replicas or 1) == 1 else 1
        self._largest = self._client.max_payload
        if config.max_msg_size and config.max_msg_size > 0:
            self._largest = min(self._largest, config.max_msg_size)
        while True:
            try:
                await self._take_over()
                return
            except APIError as error:  # what a killed instance had sent may only come in now
                if error.err_code not in _WRONG_END:
                    raise

    def _check(self, config: StreamConfig) -> None:
        """Raise `QueueRefused` for a stream that would not keep the mark, or is another reader's."""
        if config.retention != RetentionPolicy.LIMITS or config.max_age:
            raise QueueRefused(
                f"stream {self._stream} drops messages by age or when they are read, and so would the mark of what is in it: "
                "limit it by max_msgs or max_bytes, or give another with --set stream=NAME"
            )
        if (config.description or "").startswith("shmstore ") and config.description != self._config.description:
            raise QueueRefused(
                f"stream {self._stream} is that of {(config.description or '')[9:]!r}: give another with --set stream=NAME"
            )

    async def _stream_there(self) -> Any:
        try:
            return await self._jetstream.stream_info(self._stream)
        except NotFoundError:
            if not self._create:
                raise QueueRefused(f"NATS has no stream {self._stream}: create it, or leave out --no-create-topics") from None
            return await self._jetstream.add_stream(self._config)

    async def _bind(self, config: StreamConfig, subjects: set[str]) -> None:
        """Let the stream keep what is sent to `subjects`."""
        there = list(config.subjects or ())
        missing = [subject for subject in sorted(subjects) if not any(_matches(pattern, subject) for pattern in there)]
        if missing and not self._create:
            raise QueueRefused(
                f"stream {self._stream} does not keep {missing[0]}: add the subject to it, or leave out --no-create-topics"
            )
        if missing:
            await self._jetstream.update_stream(config, subjects=[*there, *missing])

    async def _take_over(self) -> None:
        """Read the last mark, and write it again with what follows it. Raises `QueueRefused` where there is none and should be."""
        state = (await self._jetstream.stream_info(self._stream)).state
        self._mark, self._part, after, self._last = b"", [], 0, state.last_seq
        try:
            found = await self._jetstream.get_last_msg(self._stream, self._progress)
            after, self._mark = found.seq or 0, found.data or b""
            self._part = [(int(first), int(last)) for first, last in parse_json(_header(found, "shmstore.part", "[]").encode())]
        except NotFoundError:
            if state.first_seq > 1:
                raise QueueRefused(
                    f"stream {self._stream} lost its mark, so what is in it is unknown: give another with --set stream=NAME"
                ) from None
        except (ValueError, TypeError) as error:
            raise QueueRefused(f"message {after} of stream {self._stream} is no mark of shmstore: {error}") from error
        if self._last > after:
            self._part.append((after + 1, self._last))
        self._instance, self._sent = uuid.uuid4().hex, 0
        await self._publish_mark()

    def partitions(self, topic: str) -> int:
        """As many as asked for."""
        return self._partitions

    # ---------------------------------------------------------------- send

    def send(self, messages: Sequence[Message], mark: Mark) -> None:
        """Add what is not in the stream yet, and the mark."""
        if self._client is None:
            raise QueueUnreachable(f"NATS at {self._address} is not open")
        made = [
            (numbered(_subject(message.topic), message, self._partitions), message, _headers(message, mark.epoch))
            for message in messages
        ]
        for _, message, headers in made:
            size = len(message.value or b"") + sum([len(name) + len(text.encode()) + 4 for name, text in headers.items()]) + 100
            if size > self._largest:
                self.close()
                raise MessageTooLarge(
                    f"row {message.row} of event {message.sequence} is a message of {size:,} bytes for {message.topic}, and NATS takes "
                    f"{self._largest:,}: raise max_payload of the server and max_msg_size of the stream, or choose --oversized",
                    message,
                )
        try:
            self._ask(self._send(made, mark))
        except (QueueUnreachable, QueueRefused):
            self.close()
            raise

    async def _send(self, made: Sequence[tuple[str, Message, dict[str, str]]], mark: Mark) -> None:
        unknown = {subject for subject, _, _ in made} - self._subjects
        if unknown:
            await self._bind((await self._jetstream.stream_info(self._stream)).config, unknown)
            self._subjects |= unknown
        there = await self._compared(made, mark)
        self._mark = mark.to_json()
        try:
            for number, (subject, message, headers) in enumerate(made[there:], 1):
                await self._publish(subject, message.value or b"", headers, waits=number % self._window == 0)
            await self._publish_mark()
        except APIError as error:
            if error.err_code in _WRONG_END:
                await self._explain(error)
            raise

    async def _compared(self, made: Sequence[tuple[str, Message, dict[str, str]]], mark: Mark) -> int:
        """How many of the messages are in the stream already. Raises `QueueRefused` where others are."""
        number = 0
        while self._part and number < len(made):
            first, last = self._part[0]
            subject, message, headers = made[number]
            try:
                found = await self._jetstream.get_msg(self._stream, first)
            except NotFoundError:
                found = None  # the stream dropped it, by its limits
            if found is not None and not _same(found, subject, message, headers, mark.epoch):
                raise QueueRefused(
                    f"message {first} of stream {self._stream}, on {found.subject}, is not what this reader sends there, event {message.sequence} "
                    f"on {subject}: another wrote into the stream, or the options changed while a batch was sent. Give another with --set stream=NAME"
                )
            number += 1
            self._part[0] = (first + 1, last)
            if first == last:
                del self._part[0]
        return number

    async def _publish_mark(self) -> None:
        headers = {"shmstore.instance": self._instance}
        if self._part:
            headers["shmstore.part"] = json.dumps(self._part)
        await self._publish(self._progress, self._mark, headers, waits=True)

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str], waits: bool) -> None:
        """Send a message that follows the last one. The answer to one that `waits` tells of all before it: none is taken unless its predecessor was."""
        place = {_AFTER_SEQUENCE: str(self._last)}
        if self._window > 1:
            if self._sent:
                place = {_AFTER: f"{self._instance}-{self._sent}"}
            place[_ID] = f"{self._instance}-{self._sent + 1}"
        self._last += 1
        self._sent += 1
        headers = {**headers, **place}
        if not waits:
            await self._client.publish(subject, data, headers=headers)
            return
        done = await self._jetstream.publish(subject, data, timeout=ANSWER_SECONDS, headers=headers)
        if done.stream != self._stream or done.seq != self._last:
            raise QueueRefused(f"{subject} belongs to stream {done.stream}, message {done.seq}: give another --topic")

    async def _explain(self, error: APIError) -> None:
        """Raise for why the stream ends elsewhere than it should."""
        found = await self._jetstream.get_last_msg(self._stream, self._progress)
        if (found.headers or {}).get("shmstore.instance") != self._instance:
            raise fenced(self._reader) from error
        raise QueueUnreachable(
            f"NATS at {self._address} did not take a part of a batch{self._said and ': ' + self._said}"
        ) from error

    # ---------------------------------------------------------------- end, errors

    def close(self) -> None:
        """Let go of the connection."""
        loop, client = self._loop, self._client
        self._loop = self._client = None
        if loop is None:
            return
        if client is not None:
            with suppress(TimeoutError, NatsError, OSError):  # it is gone
                asyncio.run_coroutine_threadsafe(client.close(), loop).result(CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)

    def _ask(self, what: Coroutine[Any, Any, _T]) -> _T:
        """Wait for it in the loop's thread."""
        assert self._loop is not None

        async def answered() -> _T:
            self._asking = asyncio.current_task()  # in the loop's thread, so before the server can have refused anything of it
            return await what

        try:
            return asyncio.run_coroutine_threadsafe(answered(), self._loop).result()
        except (QueueRefused, QueueUnreachable):  # these are OSErrors
            raise
        except (TimeoutError, CancelledError, NatsError, OSError) as error:
            raise self._raised(self._said or str(error) or type(error).__name__) from error

    async def _noted(self, error: Exception) -> None:
        """The client met an error, apart from any answer."""
        self._said = re.sub(r"\s+", " ", str(error)).removeprefix("nats: ")
        if self._asking is not None and "permissions violation" in self._said.lower():
            self._asking.cancel()  # no answer will come

    def says(self) -> str:
        """What the server last refused."""
        return self._said and f"NATS at {self._address} says: {self._said}"

    def _raised(self, why: str) -> QueueUnreachable | QueueRefused:
        """Our error for it."""
        why = why.removeprefix("nats: ")
        if _NO_ROOM.search(why):
            return QueueUnreachable(
                f"NATS at {self._address} has no room: {why}; give it more (max_file_store of the server's jetstream, and room on its disk), or limit the "
                "stream by max_msgs or max_bytes"
            )
        if "overlap" in why:
            return QueueRefused(
                f"NATS at {self._address} refuses: {why}; give another --topic, or --progress-topic, for this subscription"
            )
        if any(word in why.lower() for word in _NO_RIGHTS):
            return QueueRefused(
                f"NATS at {self._address} refuses: {why}; the user needs publish on $JS.API.STREAM.* and $JS.API.DIRECT of {self._stream}, on its "
                "topics and on the progress topic, and subscribe on _INBOX.>"
            )
        return QueueUnreachable(f"NATS at {self._address} does not answer: {why}")


class _NoTls(Exception):
    """The server speaks no TLS."""


class _Client(Client):
    """A client that asks for TLS, where it is to: nats-py leaves that to the server, and a server that says no would get the password in clear."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if "tls" in self.options and initial_connection:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise _NoTls
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)


class _JetStream(JetStreamContext):
    """Asks again until there is an answer: in a cluster servers drop questions about a stream while it has no leader. No question changes anything
    the second time."""

    async def _api_request(self, req_subject: str, req: bytes = b"", timeout: float = ANSWER_SECONDS) -> dict[str, Any]:
        until = time.monotonic() + timeout
        while True:
            try:
                return await super()._api_request(req_subject, req, timeout=_AGAIN_SECONDS)
            except TimeoutError:
                if time.monotonic() >= until:
                    raise
            except ServiceUnavailableError as error:
                if error.err_code is None or time.monotonic() >= until:  # it has no JetStream
                    raise
                await asyncio.sleep(0.2)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run until `close`; what did not end by then is canceled: a link whose TLS failed never tells nats-py that it closed."""
    loop.run_forever()
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    loop.close()


def _subject(topic: str) -> str:
    """A topic as a subject, which has no empty words. Raises `QueueRefused` for one that cannot be."""
    return named(".".join(word or "_" for word in topic.split(".")), "NATS", _NAME, "255 characters, but no spaces, * and >")


def _matches(pattern: str, subject: str) -> bool:
    """Whether a stream's subject, perhaps with ``*`` and ``>``, covers one."""
    words, wanted = pattern.split("."), subject.split(".")
    for number, word in enumerate(words):
        if word == ">":
            return len(wanted) > number
        if number >= len(wanted) or word not in ("*", wanted[number]):
            return False
    return len(words) == len(wanted)


def _headers(message: Message, epoch: int) -> dict[str, str]:
    found = {name: value.decode() for name, value in message.headers}
    found["shmstore.id"] = f"{epoch}-{message.sequence}-{message.row}"
    if message.key is not None:
        found["key"] = message.key.decode()
    return found


def _header(found: Any, name: str, missing: str = "") -> str:
    """A header of a message that was read back: nats-py's parser there is that of mails, which takes UTF-8 for an unknown character set."""
    value = (found.headers or {}).get(name, missing)
    if isinstance(value, str):
        return value
    return b"".join([part.encode() if isinstance(part, str) else part for part, _ in decode_header(value)]).decode(
        "utf-8", "replace"
    )


def _same(found: Any, subject: str, message: Message, headers: Mapping[str, str], epoch: int) -> bool:
    """Whether a message of the stream is that one: by its number in the store, or of another store by key and row."""
    if found.subject != subject or _header(found, "key") != headers.get("key", ""):
        return False
    was, ours = _header(found, "shmstore.id"), headers["shmstore.id"]
    if was.partition("-")[0] == str(epoch):
        return bool(was == ours)
    return bool(was.rpartition("-")[2] == str(message.row))
