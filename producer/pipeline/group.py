"""Several sources into one store: Canal's group sink.

Each source is read and decoded in a thread of its own; what it would put it gives to its `Member`, and the one thread that puts
takes from the members in the order of `merge`. There each position is made that of all sources (`start.positions`), so that
after a crash the ring's last event, or else the checkpoints, say where each of them goes on; a transaction that stands half
in the store is finished first, whatever the others bring meanwhile.

Before the first event, and when a source is new, an empty transaction is put whose position says where each source begins.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shmstore import SLOT, Checkpoint, EntryType, Event, EventStore, EventType, Position, StoreError, StreamStat
from shmstore.clock import calendar_ms
from shmstore.encoding.codec import Header, decode_stored, encode_batch, encode_stored
from shmstore.home.acks import checkpoints_in
from shmstore.producer.errors import SettingsError
from shmstore.producer.pipeline.attempts import Attempts
from shmstore.producer.pipeline.behind import ReadersBehind
from shmstore.producer.pipeline.merge import Lane, Piece, SourceMerge
from shmstore.producer.pipeline.replicator import Replicator
from shmstore.producer.pipeline.sink import BlockingPut
from shmstore.producer.pipeline.statistics import Statistics, Summary, combined
from shmstore.producer.settings import Settings
from shmstore.producer.start.last_transaction import LastTransaction, last_transaction_of
from shmstore.producer.start.positions import Positions, join_positions, lowest_positions, position_text, split_positions
from shmstore.producer.start.resume import Resume, StreamStart, resume_point
from shmstore.producer.stop import Stop
from shmstore.producer.transactions.buffer import Flush, resized
from shmstore.producer.transactions.state import HalfTransaction

SECOND = 1.0


class Member:
    """One source's end of the group: where it goes on, and what it brings."""

    def __init__(self, group: Group, settings: Settings, resume: Resume | None) -> None:
        self.source, self.lane = settings.name, Lane(settings.name)
        self.failing = False  # its source cannot be read now
        self._group, self._resume = group, resume
        self._most_bytes, self._most_events = settings.transaction_bytes, settings.transaction_events

    @property
    def resume(self) -> Resume | None:
        """Where the source goes on: behind what it brought, put or not yet; None for a source that is new."""
        return self._resume

    @property
    def last(self) -> LastTransaction | None:
        """The last transaction of the source that the store has: what it brought and is not put yet comes behind it."""
        return self._group.last(self.source, self._resume.position) if self._resume is not None else None

    @property
    def checkpoints(self) -> Mapping[str, Checkpoint]:
        """None: the group has read what they say of this source, and a source that is not in them is new."""
        return {}

    def claim(self, *, gtids: bool, domain: str) -> None:
        """The group has the store. Raises `SettingsError` where the source's transactions could not be distinguished from another's."""
        self._group.require_apart(self.source, gtids, domain)

    def begin(self, start: StreamStart) -> None:
        """The source is read from `start` on."""
        with self._group.changed:
            self.failing = False
            if self._resume is None:
                self._resume = Resume(start.position, None)
                self._group.join(self.source, start.position)
            self.lane.heard = time.monotonic()
            self._group.changed.notify_all()

    def heard(self, *, drained: bool) -> None:
        """The source sent something; `drained`: that nothing more is there."""
        now = time.monotonic()
        self.lane.heard = now
        if drained:
            with self._group.changed:
                self.lane.drained = now
                self._group.changed.notify_all()

    def heartbeat(self, source: str, position: Position | None, stream: StreamStat) -> None:
        """The group tells the store, of all sources."""

    def put(self, flush: Flush, stop: Stop, meanwhile: Callable[[], object]) -> bool:
        """Hand over what one put takes, once there is free space; False when asked to stop before."""
        flush = flush._replace(blob=memoryview(bytes(flush.blob)))  # it is kept here
        last = len(flush.blob) - int(flush.slots["size"][-1])
        header = decode_stored(memoryview(flush.blob)[last:])[0]
        position, props = header.position, header.props
        resume = Resume(_begun(props["resume"]), HalfTransaction.of(header)) if "resume" in props else Resume(position, None)
        lane, changed = self.lane, self._group.changed
        with changed:
            while lane.bytes >= self._most_bytes or lane.events >= self._most_events:
                if stop():
                    return False
                lane.heard = time.monotonic()  # the silence is ours
                changed.wait(0.5)
            lane.heard = time.monotonic()
            lane.add(flush, lane.heard, int(time.time()))
            self._resume = resume
            changed.notify_all()
        return True

    def fail(self) -> None:
        """The source cannot be read now: the others do not wait for it."""
        with self._group.changed:
            self.failing = True
            self._group.changed.notify_all()

    def end(self) -> None:
        """Nothing more comes: the source has an end, or failed for good."""
        with self._group.changed:
            self.lane.ended = True
            self._group.changed.notify_all()


class Group:
    """The sources of `settings`, all of one store, as its one producer."""

    def __init__(self, settings: Sequence[Settings], store: EventStore, stop: Stop, *, log: logging.Logger | None = None) -> None:
        self._settings, self._store = settings, store
        self._log = log or logging.getLogger("producer")
        self._attempts = Attempts(len(settings), stop, self._log)
        self._blocking = BlockingPut(store, self._log)
        self._behind = ReadersBehind(store, self._log)
        self.changed = threading.Condition()
        self._beat = 0.0
        self._statistics = Statistics()
        self._replicators: dict[str, Replicator] = {}
        self._domains: dict[str, str] = {}  # MariaDB's gtid_domain_id -> source
        self._brought: dict[str, str] = {}  # server UUID or domain -> the source that brings its transactions
        self._most_bytes = max(1, min(settings[0].transaction_bytes, store.limit_bytes // 2))
        self._most_events = max(1, min(settings[0].transaction_events, store.capacity // 2))
        store.claim()
        self._positions, tail = self._read_store()
        self._texts = {name: position_text(name, position) for name, position in self._positions.items()}
        self._announced = bool(store.last_ack_point() or tail)  # whether the store says where the sources began
        self._joined = False  # a source is new: say so in the store
        names = [one.name for one in settings]
        if tail is not None and tail.source not in names:
            raise SettingsError(
                f"store {store.name!r} ends inside transaction {tail.transaction} of source {tail.source!r}, which only that source "
                f"can finish: add it to {', '.join(names)}, or start again with a new store"
            )
        self.members = [
            Member(
                self,
                one,
                Resume(self._positions[one.name], tail if tail is not None and tail.source == one.name else None)
                if one.name in self._positions
                else None,
            )
            for one in settings
        ]
        owner = next((member.lane for member in self.members if tail is not None and member.source == tail.source), None)
        self._merge = SourceMerge([member.lane for member in self.members], settings[0].merge_wait, owner)

    def _read_store(self) -> tuple[Positions, HalfTransaction | None]:
        resume = resume_point(self._store)
        if resume is not None:
            return split_positions(resume.position), resume.tail
        found = checkpoints_in(self._store.home)
        if found:
            self._log.info("start at the lowest checkpoint of %s", ", ".join(sorted(found)))
        return lowest_positions({name: checkpoint.position for name, checkpoint in found.items()}), None

    @property
    def was_read(self) -> bool:
        """Whether any source was ever read."""
        return any(replicator.linked for replicator in self._replicators.values())

    def join(self, name: str, position: Position) -> None:
        """A new source begins at `position`. The caller holds `changed`."""
        self._positions[name] = position
        self._texts[name] = position_text(name, position)
        self._joined = True

    def last(self, name: str, position: Position) -> LastTransaction | None:
        """Return the last transaction of source `name` that the store has, up to `position` of its binlog."""
        return last_transaction_of(self._store, name, position)

    def require_apart(self, name: str, gtids: bool, domain: str) -> None:
        """Raise `SettingsError` unless the GTIDs of source `name` cannot be another's."""
        if not gtids:
            raise SettingsError(
                f"source {name!r} has no GTIDs; in a store of several sources they tell the transactions apart: set gtid_mode = ON there, or "
                "give it a store of its own"
            )
        other = self._domains.setdefault(domain, name) if domain else name
        if other != name:
            raise SettingsError(
                f"sources {other!r} and {name!r} both have gtid_domain_id = {domain}, so their GTIDs cannot be distinguished: give "
                f"each of these MariaDB servers one of its own (SET GLOBAL gtid_domain_id = N, and in [mysqld]), or each a store"
            )

    # ------------------------------------------------------------ threads

    def run(self) -> list[Summary]:
        """Replicate all until asked to stop, or until the last source ends. A source that fails is tried again, as `Attempts` says.

        Raises what ended the group, or else the error of the first source that failed and does not run in the end.
        """
        results: dict[str, Summary] = {}
        if self._positions and not self._announced:  # without those that are new: a reader's checkpoint does not know them either
            self._put(*encode_batch(self._start_event()))

        def work(member: Member, settings: Settings) -> None:
            quick = min(settings.heartbeat, max(0.05, settings.merge_wait / 4))
            one = dataclasses.replace(settings, heartbeat=quick)
            log = self._log.getChild(member.source)

            def attempt() -> None:
                replicator = Replicator(one, self._store, self._attempts.is_over, sink=member, log=log)
                self._replicators[member.source] = replicator
                try:
                    results[member.source] = replicator.run()
                except (SettingsError, StoreError) as error:  # of all sources, or of their store
                    self._attempts.end(error)
                    raise
                finally:
                    member.fail()

            self._attempts.run(f"source {member.source!r}", settings, attempt, lambda: self._replicators[member.source].linked)
            member.end()

        threads = [
            threading.Thread(target=work, args=pair, name=f"producer-{self._store.name}-{pair[0].source}")
            for pair in zip(self.members, self._settings, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            self._put_all()
        except BaseException as error:
            self._attempts.end(error)
        with self.changed:
            self.changed.notify_all()
        for thread in threads:
            thread.join()
        self._attempts.raise_first()
        return [results[member.source] for member in self.members]

    def _put_all(self) -> None:
        while not self._attempts.is_over():
            with self.changed:
                pieces = self._take()
                whole = not pieces and self._merge.owner is None and self._all_known
                start = self._start_event() if self._joined and whole else None
                self._joined = self._joined and start is None
                if not pieces and start is None:
                    if all(member.lane.ended and not member.lane.pieces for member in self.members):
                        return
                    self.changed.wait(min(0.5, self._merge.until(time.monotonic())))
            if start:
                self._put(*encode_batch(start))
            if pieces:
                self._put(*self._with_all_positions(pieces))
            self._heartbeat()

    @property
    def _all_known(self) -> bool:
        """Whether each source has begun, of those that can be read."""
        return all(member.resume is not None or member.failing for member in self.members)

    # ------------------------------------------------------------ the order

    def _take(self) -> list[tuple[Member, Piece]]:
        """Take what goes into the next put. The caller holds `changed`."""
        pieces: list[tuple[Member, Piece]] = []
        if (self._joined and self._merge.owner is None) or not self._all_known:
            return pieces  # first of all, where each source begins
        now, size, events = time.monotonic(), 0, 0
        by_lane = {id(member.lane): member for member in self.members}
        added = 100 + sum(map(len, self._texts.values()))  # bytes that `_with_positions` adds, about
        while (lane := self._merge.next(now)) is not None:
            head = lane.pieces[0]
            if pieces and (size + head.size + added > self._most_bytes or events + head.events > self._most_events):
                break
            self._merge.took(lane, lane.take())
            pieces.append((by_lane[id(lane)], head))
            size, events = size + head.size + added, events + head.events
        if pieces:
            self.changed.notify_all()  # there is free space
        return pieces

    # ------------------------------------------------------------ the store

    def _start_event(self) -> list[Event]:
        """An empty transaction that says where each source is now."""
        now = calendar_ms()
        begin = Event(EntryType.BEGIN, EventType.NONE, Position("", 0), now, transaction="group")
        end = begin._replace(entry=EntryType.END, position=Position("", 0, join_positions(self._positions)), order=1)
        return [begin, end._replace(props={"sources": ",".join(sorted(self._positions))})]

    def _with_all_positions(self, pieces: list[tuple[Member, Piece]]) -> tuple[bytes, np.ndarray[Any, np.dtype[np.void]]]:
        """Return the payloads and slots of `pieces`, with the position of every source in the last event of each."""
        payloads: list[bytes | memoryview] = []
        slots: list[bytes] = []
        for member, piece in pieces:
            before = piece.size - piece.last
            payload = self._with_positions(member.source, piece.payloads[before:], ends=piece.ends)
            payloads += [piece.payloads[:before], payload]
            slots += [piece.slots[: -SLOT.itemsize], resized(piece.slots[-SLOT.itemsize :], len(payload))]
        return b"".join(payloads), np.frombuffer(b"".join(slots), SLOT)

    def _with_positions(self, name: str, payload: memoryview, *, ends: bool) -> bytes:
        header, schema, body = decode_stored(payload)
        texts, props = self._texts, {**header.props, "source": name}
        if ends:
            position = header.position
            self._require_own(name, header)
            self._positions[name], texts[name] = position, position_text(name, position)
            header = header._replace(gtids=";".join(texts[one] for one in sorted(texts)))
        else:
            begun = _begun(props["resume"])
            there = {**texts, name: position_text(name, begun)}
            props["resume"] = f"{begun.file}:{begun.offset} {';'.join(there[one] for one in sorted(there))}"
        return encode_stored(header._replace(props=props), schema, body)

    def _require_own(self, name: str, header: Header) -> None:
        """Two sources that bring the same server's transactions replicate each other: its rows would come twice."""
        transaction = header.transaction
        if not header.gtids:
            self.require_apart(name, False, "")
        origin = transaction.partition(":")[0] if ":" in transaction else transaction.partition("-")[0]
        other = self._brought.setdefault(origin, name)
        if other != name:
            raise SettingsError(
                f"sources {other!r} and {name!r} both bring transactions of {'server' if ':' in transaction else 'GTID domain'} {origin} (the second "
                f"{transaction}): they replicate each other, or are one; leave one out, or give each a store of its own"
            )

    def _put(self, blob: bytes, slots: np.ndarray[Any, np.dtype[np.void]]) -> None:
        if self._attempts.is_over():
            return
        newest = int(slots["time"][-1])
        self._statistics.begin(newest)
        done = self._blocking.put(blob, slots, self._attempts.is_over, self._heartbeat)
        self._statistics.waited()
        if done:
            self._statistics.put(transactions=0, events=len(slots), rows=0, size=len(blob), newest_ms=newest)

    def _heartbeat(self) -> None:
        now = time.monotonic()
        if self._all_known and now - self._beat >= SECOND:
            self._beat = now
            away = {member.source for member in self.members if now - member.lane.heard > SECOND + self._settings[0].merge_wait}
            names = [
                f"{member.source} (no link)" if member.source in away and not member.lane.ended else member.source
                for member in self.members
            ]
            if all(not member.lane.pieces for member in self.members):
                self._statistics.calm()  # then the sources know how far behind they are
            stream = combined((one.stream for one in self._replicators.values()), self._statistics.stat())
            self._store.heartbeat(", ".join(names), stream=stream)
            self._behind.look()


def _begun(resume: str) -> Position:
    """Where the transaction began, of which the event with this prop ``resume`` is a part."""
    position, _, gtids = resume.partition(" ")
    file, _, offset = position.rpartition(":")
    return Position(file, int(offset), gtids)
