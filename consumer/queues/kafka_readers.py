"""What readers of a Kafka topic see, and what an open transaction hides from them.

A reader with ``isolation.level=read_committed`` stops in front of the first open transaction of a partition, whose offset is the last stable one; what
other senders committed behind it is hidden too, until that one is ended. A transaction whose sender is gone is ended by the coordinator, after
its time-out, or when its ``transactional.id`` begins again.

Some transactions end in the coordinator alone. A broker that was killed while it ended one may, after its start, take the partitions for deleted, since it
does not know them yet, and count the transaction as complete without the markers that they wait for (seen with Kafka 4.4.0, where one broker has
everything). No time-out ends that one: it *hangs*. The next transaction of the same producer in that partition ends it too, and decides
whether it is committed or aborted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from shmstore.consumer.queues.connecting import ANSWER_SECONDS
from shmstore.consumer.queues.queue import QueueUnreachable

_SLICE: Final = 1.0  # seconds of one wait, so that Ctrl-C comes through

Ask = Callable[[Callable[[], Any]], Any]  # repeats a question until there is an answer
Refuse = Callable[[KafkaError], None]  # raises for what does not change when it is tried again


class Readers:
    """A reader of what is committed and a reader of everything, with the client's `settings`. Close it."""

    def __init__(self, settings: Mapping[str, Any], ask: Ask, refuse: Refuse, stopped: Callable[[], bool]) -> None:
        self._ask, self._refuse, self._stopped = ask, refuse, stopped
        # The end of a partition is known when a fetch brings nothing: the broker is to answer that one soon.
        soon = {"fetch.wait.max.ms": 10}
        shared = {"group.id": "shmstore", "enable.auto.commit": False, "enable.partition.eof": True, **soon}
        self._committed = Consumer({**settings, **shared, "isolation.level": "read_committed"})
        self._all = Consumer({**settings, **shared, "isolation.level": "read_uncommitted"})

    def ends(self, place: TopicPartition) -> tuple[int, int, int]:
        """Return a partition's first offset, that in front of which readers of committed messages stop, and the end."""
        first, end = self._ask(lambda: self._all.get_watermark_offsets(place, timeout=_SLICE * 5))
        _, stable = self._ask(lambda: self._committed.get_watermark_offsets(place, timeout=_SLICE * 5))
        return first, min(stable, end), end

    def committed(self, place: TopicPartition, start: int, end: int) -> Iterator[Any]:
        """Yield the committed messages from offset `start` up to `end`, which must be stable. Raises `QueueUnreachable`, or what `refuse` does."""
        return self._read(self._committed, place, start, end)

    def written(self, place: TopicPartition, start: int, end: int) -> Iterator[Any]:
        """Yield all messages there, those of open and aborted transactions too."""
        return self._read(self._all, place, start, end)

    def _read(self, reader: Consumer, place: TopicPartition, start: int, end: int) -> Iterator[Any]:
        if start >= end:
            return
        reader.assign([TopicPartition(place.topic, place.partition, start)])
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            message: Any = reader.poll(_SLICE)
            error = None if message is None else message.error()
            if message is not None and error is None:
                until = time.monotonic() + ANSWER_SECONDS
                if message.offset() < end:
                    yield message
                if message.offset() >= end - 1:
                    return
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                if message.offset() >= end:  # the last ones are markers, which are not shown
                    return
            elif error is not None:
                self._refuse(error)
            if time.monotonic() >= until or self._stopped():
                raise QueueUnreachable(
                    f"Kafka does not hand out partition {place.partition} of topic {place.topic} up to offset {end}"
                    f"{'' if error is None else f': {error.str()}'}"
                )

    def close(self) -> None:
        """Let go of both."""
        self._committed.close()
        self._all.close()


def hiding(admin: AdminClient, places: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return those of `places` in which a transaction is open, with its offset each. Raises KafkaException."""
    asked = {place: OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]

    def ends(level: IsolationLevel) -> dict[tuple[str, int], int]:
        answers = admin.list_offsets(asked, isolation_level=level, request_timeout=ANSWER_SECONDS)
        return {(place.topic, place.partition): answer.result(ANSWER_SECONDS + 5).offset for place, answer in answers.items()}

    end = ends(IsolationLevel.READ_UNCOMMITTED)  # first: so what ends in between hides nothing
    stable = ends(IsolationLevel.READ_COMMITTED)
    return [TopicPartition(*place, stable[place]) for place in end if stable[place] < end[place]]
