"""Several sources into one store: Canal's group sink.

Each source is read and decoded in a thread of its own; what it would put it gives to its `Member`, and the one thread that puts
takes from the members in the order of `merge`. There each position is made that of all sources (`Position.sources`), so that
after a crash the store's last event, or else the checkpoints, say where each of them continues; a transaction that is half in the store is
finished first, whatever the others bring meanwhile. What was put is the truth here as with one source: what a member brought and the
store does not have when its link is lost is read again.

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
from shmstore.encoding.codec import Header, decode, encode_batch, encode_stored, split_stored
from shmstore.home.acks import checkpoints_in
from shmstore.producer.errors import SettingsError
from shmstore.producer.pipeline.attempts import Attempts
from shmstore.producer.pipeline.behind import ReadersBehind
from shmstore.producer.pipeline.merge import Lane, Piece, SourceMerge
from shmstore.producer.pipeline.problems import Problems
from shmstore.producer.pipeline.reloads import Reloads
from shmstore.producer.pipeline.replicator import Replicator
from shmstore.producer.pipeline.sink import BlockingPut, Record
from shmstore.producer.pipeline.statistics import Statistics, Summary, combined
from shmstore.producer.settings import Settings
from shmstore.producer.start.in_force import FiltersFile
from shmstore.producer.start.last_transaction import LastTransaction, last_transaction
from shmstore.producer.start.resume import Positions, Resume, StreamStart, by_source, lowest_by_source, resume_point
from shmstore.producer.stop import Stop
from shmstore.producer.transactions.buffer import Flush, resized
from shmstore.producer.transactions.replay import Replay
from shmstore.producer.transactions.state import HalfTransaction
from shmstore.sources import pack_sources

SECOND = 1.0
ON_DISK = 0.5  # seconds that a look at whether the store is on disk may take


class Member:
    """One source's end of the group: what it brings."""

    def __init__(self, group: Group, settings: Settings) -> None:
        self.source, self.lane = settings.name, Lane(settings.name)
        self.problems = Problems(settings, group.store, settings.name, group.log)
        self.failing = False  # its source cannot be read now
        self._group = group
        self._most_bytes, self._most_events = settings.transaction_bytes, settings.transaction_events

    def resume(self) -> Resume | None:
        """Where the source continues: behind what the store has of it; None for a source that is new. What it brought besides comes again."""
        return self._group.resume(self)

    @property
    def last(self) -> LastTransaction | None:
        """The last transaction of the source that the store has."""
        at = self._group.positions.get(self.source)
        return None if at is None else last_transaction(self._group.store, self.source, at)

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

    def put(self, flush: Flush, stop: Stop, meanwhile: Callable[[], object], record: Record | None = None) -> bool:
        """Hand over what one put takes, once there is free space; False when asked to stop before. With `record` wait until it is put."""
        flush = flush._replace(blob=memoryview(bytes(flush.blob)))  # it is kept here
        lane, changed = self.lane, self._group.changed
        with changed:
            while lane.bytes >= self._most_bytes or lane.events >= self._most_events:
                if stop():
                    return False
                lane.heard = time.monotonic()  # the silence is ours
                changed.wait(0.5)
            lane.heard = time.monotonic()
            lane.add(flush, lane.heard, int(time.time()), record)
            changed.notify_all()
            while record is not None and (lane.pieces or self._group.putting):
                if stop():
                    return False
                changed.wait(0.5)
        return record is None or not stop()  # where all end it may be put or not: the next producer sees that in the store

    def fail(self) -> None:
        """The source cannot be read now: the others do not wait for it."""
        with self._group.changed:
            self.failing = True
            self._group.changed.notify_all()

    def end(self) -> None:
        """Nothing more comes: the source has an end, or failed permanently."""
        with self._group.changed:
            self.lane.ended = True
            self._group.changed.notify_all()


class Group:
    """The sources of `settings`, all of one store, as its one producer."""

    def __init__(
        self,
        settings: Sequence[Settings],
        store: EventStore,
        stop: Stop,
        *,
        log: logging.Logger | None = None,
        reloads: Reloads | None = None,
    ) -> None:
        self._settings, self.store = settings, store
        self._reloads = reloads or Reloads(settings)
        self.log = log or logging.getLogger("producer")
        self._attempts = Attempts(len(settings), stop, self.log)
        self._problems = Problems(settings[0], store, "", self.log)
        self._blocking = BlockingPut(store, self.log, self._problems)
        self._behind = ReadersBehind(store, self.log)
        self.changed = threading.Condition()
        self._beat = 0.0
        self._statistics = Statistics()
        self._replicators: dict[str, Replicator] = {}
        self._domains: dict[str, str] = {}  # MariaDB's gtid_domain_id -> source
        self._brought: dict[str, str] = {}  # server UUID or domain -> the source that brings its transactions
        self._most_bytes = max(1, min(settings[0].transaction_bytes, store.limit_bytes // 2))
        self._most_events = max(1, min(settings[0].transaction_events, store.capacity // 2))
        store.claim()
        self.positions, self._tail = self._read_store()
        tail, self.putting = self._tail, False  # what was taken from the members is being put
        self._forget_changes()
        self._announced = bool(store.last_ack_point() or tail)  # whether the store says where the sources began
        self._joined = False  # a source is new: say so in the store
        names = [one.name for one in settings]
        if tail is not None and tail.source not in names:
            raise SettingsError(
                f"store {store.name!r} ends inside transaction {tail.transaction} of source {tail.source!r}, which only that source "
                f"can finish: add it to {', '.join(names)}, or start again with a new store"
            )
        self.members = [Member(self, one) for one in settings]
        owner = next((member.lane for member in self.members if tail is not None and member.source == tail.source), None)
        self._merge = SourceMerge([member.lane for member in self.members], settings[0].merge_wait, owner)

    def _read_store(self) -> tuple[Positions, HalfTransaction | None]:
        resume = resume_point(self.store)
        if resume is not None:
            return by_source(resume.position), resume.tail
        found = checkpoints_in(self.store.home)
        if found:
            self.log.info("start at the lowest checkpoint of %s", ", ".join(sorted(found)))
        return lowest_by_source({name: checkpoint.position for name, checkpoint in found.items()}), None

    def _forget_changes(self) -> None:
        """Forget changes of filters that were written down and not put, before another event gets its sequence. Raises `StoreError`."""
        for one in self._settings:
            file = FiltersFile(self.store.home, one.name, self.store.may_produce)
            if (kept := file.load(self.store.epoch, self.store.newest, again=False)) is not None:
                file.save(self.store.epoch, kept)

    @property
    def was_read(self) -> bool:
        """Whether any source was ever read."""
        return any(replicator.linked for replicator in self._replicators.values())

    def resume(self, member: Member) -> Resume | None:
        """Return where a source continues; None where it is new. What it brought is forgotten, but for what is being put now."""
        with self.changed:
            member.lane.pieces.clear()
            member.lane.bytes = member.lane.events = 0
            while self.putting and not self._attempts.is_over():
                self.changed.wait(0.5)
            position, tail = self.positions.get(member.source), self._tail
        if position is None or tail is None or tail.source != member.source:
            return None if position is None else Resume(position, None)
        return Resume(position, tail._replace(replay=Replay(self.store.open_transaction(), tail.transaction)))

    def join(self, name: str, position: Position) -> None:
        """A source begins at `position`, if it is new. The caller holds `changed`."""
        if name not in self.positions:
            self.positions[name] = position
            self._joined = True

    def require_apart(self, name: str, gtids: bool, domain: str) -> None:
        """Raise `SettingsError` unless the GTIDs of source `name` cannot be another's."""
        if not gtids:
            raise SettingsError(
                f"source {name!r} has no GTIDs; in a store of several sources they distinguish the transactions: set gtid_mode = ON there, or "
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
        if self.positions and not self._announced:  # without those that are new: a reader's checkpoint does not know them either
            self._put(*encode_batch(self._start_event()))

        def work(member: Member, settings: Settings) -> None:
            quick = min(settings.heartbeat, max(0.05, settings.merge_wait / 4))
            one = dataclasses.replace(settings, heartbeat=quick)
            log = self.log.getChild(member.source)

            def attempt() -> None:
                replicator = Replicator(one, self.store, self._attempts.is_over, sink=member, log=log, reloads=self._reloads)
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
            threading.Thread(target=work, args=pair, name=f"producer-{self.store.name}-{pair[0].source}")
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
        self._problems.close()
        self._attempts.raise_first()
        return [results[member.source] for member in self.members]

    def _put_all(self) -> None:
        while not self._attempts.is_over():
            with self.changed:
                pieces = self._take()
                self.putting = bool(pieces)
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
                self._put(*(self._with_all_positions(pieces) if pieces[0][1].record is None else self._change(*pieces[0])))
                with self.changed:
                    self.putting = False
                    self.changed.notify_all()
            self._heartbeat()

    @property
    def _all_known(self) -> bool:
        """Whether each source has begun, of those that can be read."""
        return all(member.source in self.positions or member.failing for member in self.members)

    # ------------------------------------------------------------ the order

    def _take(self) -> list[tuple[Member, Piece]]:
        """Take what goes into the next put. The caller holds `changed`."""
        pieces: list[tuple[Member, Piece]] = []
        if (self._joined and self._merge.owner is None) or not self._all_known:
            return pieces  # first of all, where each source begins
        now, size, events = time.monotonic(), 0, 0
        by_lane = {id(member.lane): member for member in self.members}
        added = 100 + sum(len(name) + len(at.file) + len(at.gtids) + 20 for name, at in self.positions.items())  # to each, about
        while (lane := self._merge.next(now)) is not None:
            head = lane.pieces[0]
            is_change = head.record is not None  # it is put alone, and once all before is on disk: else it is tried again
            if pieces and (is_change or size + head.size + added > self._most_bytes or events + head.events > self._most_events):
                break
            if is_change and self.store.has_log and self.store.sync(self.store.newest, ON_DISK) < self.store.newest:
                break
            self._merge.took(lane, lane.take())
            pieces.append((by_lane[id(lane)], head))
            size, events = size + head.size + added, events + head.events
            if is_change:
                break
        if pieces:
            self.changed.notify_all()  # there is free space
        return pieces

    # ------------------------------------------------------------ the store

    def _start_event(self) -> list[Event]:
        """An empty transaction that says where each source is now."""
        now = calendar_ms()
        begin = Event(EntryType.BEGIN, EventType.NONE, Position("", 0), now, transaction="group")
        end = begin._replace(
            entry=EntryType.END, position=Position("", 0, sources=tuple(sorted(self.positions.items()))), order=1
        )
        return [begin, end._replace(props={"sources": ",".join(sorted(self.positions))})]

    def _change(self, member: Member, piece: Piece) -> tuple[bytes, np.ndarray[Any, np.dtype[np.void]]]:
        """Return the event that changes the filters of one source, with where all sources are then; it is written down as the next one.

        Like the empty transaction of a start it names no transaction of the source's, for readers that compare GTIDs.
        """
        assert piece.record is not None
        change = decode(piece.payloads)
        self.positions[member.source], self._tail = change.position, None
        piece.record(self.store.newest + 1)
        place = Position("", 0, sources=tuple(sorted(self.positions.items())))
        props = {**change.props, "filters_of": member.source}
        return encode_batch([change._replace(position=place, transaction="group", order=0, props=props)])

    def _with_all_positions(self, pieces: list[tuple[Member, Piece]]) -> tuple[bytes, np.ndarray[Any, np.dtype[np.void]]]:
        """Return the payloads and slots of `pieces`, with the position of every source in the last event of each."""
        payloads: list[bytes | memoryview] = []
        slots: list[bytes] = []
        for member, piece in pieces:
            before = piece.size - piece.last
            payload = self._with_positions(member.source, piece.payloads[before:])
            payloads += [piece.payloads[:before], payload]
            slots += [piece.slots[: -SLOT.itemsize], resized(piece.slots[-SLOT.itemsize :], len(payload))]
        return b"".join(payloads), np.frombuffer(b"".join(slots), SLOT)

    def _with_positions(self, name: str, payload: memoryview) -> bytes:
        """Return the last event of a piece of source `name` with where each source continues; the store then says what this object knows."""
        header, schema, body = split_stored(payload)
        cut = header.cut
        if cut is None:
            self._require_own(name, header)
        self.positions[name] = header.position if cut is None else cut.sources[0][1]
        order, row = (header.order, header.row) if cut is None else (cut.order, cut.row)
        resume = [pack_sources(tuple(sorted(self.positions.items()))), order, row]
        header = header._replace(props={**header.props, "source": name}, resume=resume)
        self._tail = None if cut is None else HalfTransaction.of(header)
        return encode_stored(header, schema, body)

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
            self.store.heartbeat(", ".join(names), stream=stream)
            self._behind.look()
            version = self._reloads.version
            self._reloads.look(self.store, self._attempts.is_over)
            for member, one in zip(self.members, self._settings, strict=True):
                if member.lane.ended:
                    self._reloads.in_force(self.store, one, version, "it is not read any more")
