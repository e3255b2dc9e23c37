"""A subscription into a queue: batches as messages, marked, and acked once the queue has them.

Plan. What is done is what the queue says. At the start, and after every error, the queue is opened: that ends what was being written, and
gives the mark of what is in it. Reading continues after the mark, whatever the subscription had acked. So there is one way on from a kill, a lost
broker and a commit whose answer did not come. The ack follows the mark, and only frees the store.

A power cut must not give sequences that the mark counts to other events: a batch is committed once the store's log has it on disk. A queue with
transactions may take its messages before; one without shows at once what it takes, so it waits for the log first.

A call of a queue may wait long for an answer, and nothing interrupts some clients. So a thread of its own (`_Waiting`) tells that nothing comes in.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from shmstore import Batch, EventStore, Position, PositionNotFound
from shmstore.atomic_file import replace
from shmstore.consumer.consumer import Consumer
from shmstore.consumer.formats.json_text import dump
from shmstore.consumer.monitoring.counters import Counters, figure
from shmstore.consumer.queues.messages import Made, MessageOptions, Messages, size_of
from shmstore.consumer.queues.queue import EarlyQueue, Mark, Message, MessageTooLarge, Queue, QueueUnreachable, TellingQueue
from shmstore.encoding.codec import decode, stored_head
from shmstore.event import Event, EventType
from shmstore.sources import place_text, sources_text
from shmstore.start_position import parse_start
from shmstore.store.reader_place import ReaderPlace

OVERSIZED: Final = ("stop", "skip", "truncate", "claim-check")
PIECE: Final = 100  # messages that a queue is given while the rest of their batch is made
PIECE_BYTES: Final = 256 << 10  # of their values, or this: they stay in the processor's cache until they are taken
FIRST_PAUSE: Final = 0.2  # seconds before the queue is opened again; twice as long each time
LONGEST_PAUSE: Final = 30.0
FIRST_REPORT: Final = 5.0  # seconds without an answer after which a line says so, and again after twice as many more each time
LONGEST_SILENCE: Final = 60.0

_log = logging.getLogger("shmstore.queue")


@dataclass(slots=True, kw_only=True)
class SenderCounters(Counters):
    """What a sender did since it began."""

    PREFIX = "shmstore_queue"

    messages: int = figure("messages_total", "Messages that the queue has.")
    bytes: int = figure("bytes_total", "Bytes of their values.")
    oversized: int = figure("oversized_total", "Messages that were too large.")


class Sender:
    """Sends what `consumer` reads into `queue`.

    `oversized` says what becomes of a message that the queue does not take: "stop" raises `MessageTooLarge`; "skip" leaves it out with a warning;
    "truncate" shortens its longest texts; "claim-check" puts it into a file of `folder`, and a message with its name in its place. `look` returns what to
    do where a queue that never answered does not answer.

    `run` returns after `stop`, or at the end of a consumer with a time-out; it raises `QueueRefused`, `MessageTooLarge`, `StoreError`, and
    `PositionNotFound` where the mark is of a store that this one does not continue.
    """

    def __init__(
        self,
        consumer: Consumer,
        queue: Queue,
        options: MessageOptions,
        *,
        oversized: str = "stop",
        folder: str | os.PathLike[str] = "",
        look: Callable[[], str] = lambda: "",
    ) -> None:
        if oversized not in OVERSIZED:
            raise ValueError(f"oversized {oversized!r} is unknown; give one of {', '.join(OVERSIZED)}")
        if (oversized == "claim-check") != bool(folder):
            raise ValueError("oversized claim-check needs a folder, and nothing else has one")
        self.counters = SenderCounters()
        self._consumer, self._queue, self._options = consumer, queue, options
        self._early = queue if isinstance(queue, EarlyQueue) else None
        self._messages = Messages(options, self._partitions)
        self._oversized, self._folder, self._look = oversized, Path(folder), look
        self._stopped = threading.Event()
        self._opened = False
        self._waiting = _Waiting(self.counters, queue, self._hint)
        self._gtids = self._inside = ""  # executed, and the transaction of which the queue has a part
        self._place: ReaderPlace | None = None  # of what is in the queue from another store
        self._trying = (-1, -1)  # epoch and sequence of the last event of the batch in hand
        self._first: tuple[int, int] | None = None  # epoch and sequence of the first event that was sent

    def stop(self) -> None:
        """End `run` after the batch that is being sent. May be called from any thread."""
        self._stopped.set()
        self._consumer.stop()

    def run(self) -> None:
        """Send until `stop`."""
        telling = threading.Thread(target=self._waiting.run, name="queue-waiting", daemon=True)
        telling.start()
        try:
            self._run()
        finally:
            self._waiting.end()

    def _run(self) -> None:
        pause, waiting = FIRST_PAUSE, self._waiting
        while not self._stopped.is_set():
            sending = False
            try:
                mark = self._open()
                self._opened = True
                if mark is not None and mark.epoch == self._trying[0] and mark.sequence >= self._trying[1]:
                    waiting.goes_on()  # the batch is in, and its answer was lost
                else:
                    waiting.opened()
                self._go_to(mark)
                for batch in self._consumer:
                    sending = True
                    self._send(batch)
                    waiting.goes_on()
                    sending, pause = False, FIRST_PAUSE
                return
            except QueueUnreachable as error:
                self._consumer.rollback()  # else the end of the consumer's block acks the batch that did not come in
                waiting.failed(error, sending)
                self.counters.retries += 1
                if str(error) != self.counters.trouble:
                    hint = "" if self._stopped.is_set() else self._hint()
                    _log.warning("%s%s; trying again until it answers", error, hint and f"; {hint}")
                self.counters.trouble = str(error)
                self._messages = Messages(self._options, self._partitions)  # what is read comes again, in order
                self._stopped.wait(pause * random.uniform(0.5, 1))
                pause = min(LONGEST_PAUSE, pause * 2)

    def _hint(self) -> str:
        """What to do where a queue that never answered does not answer."""
        return "" if self._opened else self._look()

    def _open(self) -> Mark | None:
        with self._waiting:
            return self._queue.open()

    def _partitions(self, topic: str) -> int:
        with self._waiting:
            return self._queue.partitions(topic)

    def _go_to(self, mark: Mark | None) -> None:
        """Continue reading behind what is in the queue."""
        consumer, self._place = self._consumer, None
        self._gtids = "" if mark is None else mark.gtids  # not those of a batch that did not come in
        if mark is None:
            consumer.rollback()
            if self._first is not None and self._first[0] == consumer.store.epoch and self._queue.exactly_once:
                consumer.seek(self._first[1])  # the queue lost all that it had, as a server that kept nothing on disk yet
            return
        if consumer.resume(mark.epoch, mark.sequence):
            self.counters.sequence = mark.sequence
            return
        store, position = consumer.store, _position_of(mark)
        if position is None:
            raise PositionNotFound(
                f"the queue has events up to {mark.sequence} of another store than {store.name!r}, and no position of them: "
                "send with another subscription name, which begins at the oldest event"
            )
        try:
            if isinstance(store, EventStore):
                self._place = ReaderPlace(position, inside=mark.transaction)
                consumer.seek(self._place.first_new(store.segment))
            else:
                consumer.seek(position)
        except PositionNotFound as error:
            raise PositionNotFound(
                f"the queue has all up to {place_text(position)} of another store, and {store.name!r} does not continue there: {error}; "
                "with another subscription name sending begins at the oldest event"
            ) from error
        _log.info("the queue has all up to %s of another store; sending continues there", place_text(position))

    def _is_in(self, event: Event) -> bool:
        """Whether an event came into the queue from another store of the same source."""
        place, store = self._place, self._consumer.store
        if place is None or not isinstance(store, EventStore):
            return False
        if event.ends_transaction and (end := place.reached(store.segment)) is not None and event.sequence > end:
            self._place = None  # all that comes is new
            return False
        if event.type is EventType.READ:
            return False
        found = place.has(event.transaction, event.position)
        return event.position.order <= place.position.order if found is None else found

    def _messages_of(self, batch: Batch) -> tuple[list[Message], int, int]:
        """The messages of a batch, without what is in the queue already, how many of the first ones the queue took meanwhile, and their bytes."""
        found: list[Message] = []
        taken = size = 0
        early, payloads, sequence = self._early, iter(batch.payloads()), batch.first
        last: bytes | memoryview | None = None
        while (made := self._next(payloads, sequence)).last is not None:
            sequence, last = made.behind, made.last
            found += made.messages
            size += made.size
            if early is not None and made.messages:
                try:
                    with self._waiting.of(len(found)):
                        early.take(made.messages)
                    taken = len(found)
                except MessageTooLarge:  # `send` meets it again, with all messages
                    self._open()
                    taken, early = 0, None
        if last is not None:
            head, _ = stored_head(last)
            self._inside = "" if head.ends_transaction else head.transaction
        return found, taken, size

    def _next(self, payloads: Iterator[bytes | memoryview], sequence: int) -> Made:
        """The messages of the next events, without what is in the queue already: so many that they are still in the processor's cache."""
        if self._place is None:
            return self._messages.of_payloads(payloads, sequence, PIECE, PIECE_BYTES)
        one = list(islice(payloads, 1))
        made = self._messages.of_payloads(iter(one), sequence)  # also of what is in: they number the transaction's documents
        if one and self._is_in(decode(one[0], sequence)):
            return made._replace(messages=[], size=0)
        return made

    def _send(self, batch: Batch) -> None:
        """Send a batch, until it is in."""
        self._trying = self._consumer.store.epoch, batch.last
        if not self._queue.exactly_once:
            self._consumer.sync(batch)  # what it takes is seen at once
        messages, taken, size = self._messages_of(batch)
        ended = None if batch.ack_point is None else batch.position_of(batch.ack_point)
        if ended is not None:
            self._gtids = sources_text(ended.sources) if ended.sources else ended.gtids or self._gtids
        self._consumer.sync(batch)
        last = batch.position
        place = f"{last.file}:{last.offset}" if last is not None and last.file else ""
        mark = Mark(self._consumer.store.epoch, batch.last, place, self._gtids, self._inside)
        self._first = self._first or (mark.epoch, batch.first)
        while True:
            try:
                with self._waiting.of(len(messages)):
                    self._queue.send(messages[taken:], mark)
                break
            except MessageTooLarge as error:
                messages, taken = self._without(messages, error), 0
                size = size_of(messages)
                self._open()
        count = self.counters
        count.messages += len(messages)
        count.bytes += size
        count.batches += 1
        count.sequence = batch.last

    # ---------------------------------------------------------------- what is too large

    def _without(self, messages: Sequence[Message], error: MessageTooLarge) -> list[Message]:
        """The messages, with another in the place of the one that is too large; none, if that is what was asked for."""
        large = error.message
        if self._oversized == "stop":
            raise error
        self.counters.oversized += 1
        what = f"row {large.row} of event {large.sequence} for topic {large.topic}, {len(large.value or b''):,} bytes"
        if self._oversized == "skip":
            _log.warning("%s is too large and is left out", what)
            return [message for message in messages if message is not large]
        if self._oversized == "truncate":
            smaller = _truncated(large)
            if smaller is None:
                raise error
            _log.warning("%s is too large: its longest texts are cut", what)
        else:
            smaller = self._checked_in(large)
            _log.warning("%s is too large: it is in %s", what, self._folder)
        return [smaller if message is large else message for message in messages]

    def _checked_in(self, message: Message) -> Message:
        """Put the value into a file; a message with its name takes its place. The same message always has the same file."""
        value = message.value or b""
        digest = hashlib.sha256(value).hexdigest()
        topic = message.topic[:160]  # a file's name has at most 255 bytes
        file = (self._folder / f"{topic}-{message.sequence}-{message.row}-{digest[:16]}").resolve()
        replace(file, lambda path: path.write_bytes(value), "claim check", "give another folder")
        check = {"claim_check": str(file), "size": len(value), "sha256": digest}
        return message._replace(value=dump(check), headers=[*message.headers, ("shmstore.claim_check", str(file).encode())])


class _Waiting:
    """How long nothing came in while the sender waits for its queue; `run`, in a thread of its own, tells it.

    A block of it is a call of the queue. From a call that failed the wait continues: of an `open` until one goes well, of a batch until it is in.
    """

    def __init__(self, counters: SenderCounters, queue: Queue, hint: Callable[[], str]) -> None:
        self._counters, self._hint = counters, hint
        self._says = queue.says if isinstance(queue, TellingQueue) else lambda: ""
        self._over, self._lock = threading.Event(), threading.Lock()
        self._since: float | None = None  # None: nothing is waited for
        self._failed = False  # whether a batch did not come in
        self._error = ""
        self._messages = 0
        self._about: float | None = None  # the wait that the following is about
        self._due = self._pause = 0.0  # when the next line comes, and how much later the one after it
        self._do = ""  # what to do

    def of(self, messages: int) -> _Waiting:
        """For a call that brings in so many messages."""
        self._messages = messages
        return self

    def __enter__(self) -> None:
        if self._since is None:
            self._since = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._failed and not isinstance(error, QueueUnreachable):
            self._since = None

    def failed(self, error: QueueUnreachable, batch: bool) -> None:
        """The queue did not answer: to a batch, or to an `open`."""
        self._error, self._failed = str(error), self._failed or batch

    def opened(self) -> None:
        """The queue is open. A batch that failed still waits."""
        if not self._failed:
            self._ends("the queue answers again")

    def goes_on(self) -> None:
        """A batch is in."""
        self._failed = False
        self._ends("the queue takes messages again")

    def _ends(self, what: str) -> None:
        with self._lock:
            self._since, self._error, self._messages = None, "", 0
            if self._counters.trouble:
                _log.info(what)
                self._counters.trouble = ""

    def run(self) -> None:
        """Tell it until `end`."""
        while not self._over.wait(min(1.0, FIRST_REPORT)):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Tell it, where it is time."""
        since = self._since
        if since is None:
            return
        if since != self._about:
            self._about, self._due, self._pause, self._do = since, since + FIRST_REPORT, FIRST_REPORT, ""
        if now < self._due:
            return
        self._do = self._do or self._hint()
        self._pause = min(LONGEST_SILENCE, self._pause * 2)
        self._due = now + self._pause
        with self._lock:
            if self._since == since and not self._over.is_set():
                self._tell(now - since)

    def _tell(self, seconds: float) -> None:
        count = self._messages
        waits = f", and {count:,} {'message waits' if count == 1 else 'messages wait'}" if count else ""
        why = self._says() or self._error or "the queue does not answer"
        text = f"nothing was delivered for {seconds:.0f} s{waits}: {why}{self._do and f'; {self._do}'}"
        _log.warning(text)
        self._counters.trouble = self._counters.trouble or text

    def end(self) -> None:
        """End `run`, soon."""
        self._over.set()


def _position_of(mark: Mark) -> Position | None:
    """The place that a mark names."""
    place = parse_start(mark.position) if mark.position else None
    executed = parse_start(f"gtid:{mark.gtids}") if mark.gtids else None
    if isinstance(place, Position):
        return place._replace(gtids=executed.gtids, sources=executed.sources) if isinstance(executed, Position) else place
    return executed if isinstance(executed, Position) else None


def _truncated(message: Message) -> Message | None:
    """The message with its longest text halved, and so on; None where there is none that is long."""
    if message.value is None:
        return None
    document = json.loads(message.value)
    longest: tuple[int, Any, Any] = (0, None, None)
    held: list[Any] = [document]
    while held:
        one = held.pop()
        for key, value in one.items() if isinstance(one, dict) else enumerate(one):
            if isinstance(value, str) and len(value) > longest[0]:
                longest = len(value), one, key
            elif isinstance(value, dict | list):
                held.append(value)
    length, owner, key = longest
    if length < 1024:
        return None
    owner[key] = owner[key][: length // 2]
    headers = [header for header in message.headers if header[0] != "shmstore.truncated"]
    return message._replace(value=dump(document), headers=[*headers, ("shmstore.truncated", b"1")])
