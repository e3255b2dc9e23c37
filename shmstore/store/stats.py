"""What can be seen of a store from outside, at one moment."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, NamedTuple

from shmstore.clock import as_boot_ms, as_calendar_ms, boot_ms, calendar_ms
from shmstore.errors import PositionNotFound, StoreCorrupt, StoreError
from shmstore.event import Position
from shmstore.log.files import log_of, set_firsts
from shmstore.log.format import RECORD
from shmstore.memory.layout import (
    DISARMED,
    LOCK_PRODUCER,
    LOCK_SUBSCRIPTION,
    STREAM_FIELDS,
    StoreFlag,
    SubscriptionState,
    header_word,
    subscription_word,
)
from shmstore.memory.locks import Ownership, start_time
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import (
    ACK_OF,
    ACK_WANTED,
    ACTIVE,
    ENTRIES,
    FLOOR,
    GET_OF,
    LOG_FIRST,
    LOGGED,
    PAUSED_OF,
    PUT,
    STATE_OF,
    SYNCED,
    Cursor,
    cursor_at,
    first_slot,
    oldest_kept,
    spared,
)
from shmstore.store.content import cursor_of
from shmstore.store.lookup import has_log, last_ack_point_until

LOOK_BACK: Final = 1 << 16  # events
STREAM_WORDS: Final = tuple(header_word(f"stream_{field}") for field in STREAM_FIELDS)


class SubscriptionStat(NamedTuple):
    """One subscription. Lags count from its ack to the put cursor; `lag_ms` is event time, 0 when nothing waits, as is `oldest_ms`, the
    time of the oldest event that it has not acked."""

    name: str
    state: str
    get: Cursor
    ack: Cursor
    owner_pid: int
    alive: bool
    heartbeat_ms: int
    lag_events: int
    lag_bytes: int
    lag_rows: int
    lag_ms: int
    ack_point: int | None
    oldest_ms: int = 0
    paused: bool = False  # its reader is given nothing

    @property
    def presence(self) -> str:
        """One word: reading (a process holds it), dead (that process died), away (none holds it), paused (it is given nothing, by whatever
        process it is held), or lost (it was evicted)."""
        if self.state == "lost":
            return "lost"
        return "paused" if self.paused else "reading" if self.alive else "dead" if self.owner_pid else "away"

    @property
    def standing(self) -> str:
        """Name, owner and ack, for a sentence about what holds up the producer."""
        dead = f"its reader, pid {self.owner_pid}, died" if self.owner_pid else "no process reads it"
        reader = "paused" if self.paused else f"read by pid {self.owner_pid}" if self.alive else dead
        return f"subscription {self.name!r} ({reader}) has acked {f'up to {self.ack.sequence:,}' if self.ack.sequence >= 0 else 'nothing'}"


class StreamStat(NamedTuple):
    """How a producer's stream goes, as it says about once a second. Counts are of its present run; times as in `StoreStat`.

    `behind_ms` is what passed from the newest event's time to its put, growing while it waits for free space, and 0 once the source has
    said that there is nothing more. `purge_ms` is when the source may remove what is to be read next; 0: unknown.
    """

    connected: bool = False
    heard_ms: int = 0  # when the source last said something, heartbeats included
    put_ms: int = 0  # when something was put last
    behind_ms: int = 0
    blocked_ms: int = 0  # all waiting for free space in the ring
    reconnects: int = 0
    transactions: int = 0  # transaction ends and DDLs put
    skipped: int = 0  # events that could not be decoded, with on_error = skip
    snapshot_tables: int = 0
    snapshot_open: int = 0  # of these, not done
    snapshot_rows: int = 0
    purge_ms: int = 0
    filtered_events: int = 0  # of the binlog, of which the filters let nothing pass
    filtered_rows: int = 0  # that row filters and operations left out
    paused_ms: int = 0  # since when it reads nothing, because it was paused; 0: it is not


def forgetting(store: str, subscription: str) -> str:
    """The command that forgets a subscription."""
    return f"shmstore unsubscribe {store} {subscription}"


def remedy(store: str, reader: SubscriptionStat) -> str:
    """What to do about a subscription that holds the producer up: while it is read, its place cannot be changed."""
    if reader.paused:
        return f"resume it with `shmstore resume {store} --subscription {reader.name}`"
    move = f"move it with `shmstore seek {store} {reader.name} latest`, or forget it with `{forgetting(store, reader.name)}`"
    return f"let it continue; or stop it, and {move}" if reader.alive else f"start its reader, {move}"


def after_eviction(store: str, subscription: str, *, has_log: bool) -> str:
    """What to do about a subscription that was evicted."""
    forget = f"forget it with `{forgetting(store, subscription)}`, and subscribe again or take a snapshot"
    return (
        f"let it continue with the events that are kept, `shmstore seek {store} {subscription} earliest`, or {forget}"
        if has_log
        else forget
    )


class LogStat(NamedTuple):
    """A store's log. Sequences are of events: the oldest kept, the last written, the last known to be on disk. `bytes` are those on
    disk, of at most `size`, in so many `files`; `keep_ms` is how long what was acked is kept; `oldest_ms` the event time of the oldest.

    `trouble` says why nothing can be appended and what to do; empty where all is well.
    """

    home: str
    oldest: int
    written: int
    synced: int
    bytes: int
    size: int
    keep_ms: int
    oldest_ms: int
    trouble: str = ""
    files: int = 0

    @staticmethod
    def taken(events: float, size: float) -> float:
        """Return the bytes that so many events with `size` bytes of payload take in a log."""
        return size + events * RECORD.itemsize


class StoreStat(NamedTuple):
    """One store. Times are milliseconds since 1970 UTC; `free_events` and `free_bytes` are what the next put may take.

    `space_wanted` is the ack that a living producer waits for, because what it puts does not fit; None where it does not wait.
    """

    name: str
    path: str | None
    epoch: int
    created_ms: int
    capacity: int
    memory_unit: int
    limit_bytes: int
    batch_mode: str
    ddl_isolation: bool
    lag: str
    checksum: bool
    segment_bytes: int
    put: Cursor
    oldest: int
    newest: int
    free_events: int
    free_bytes: int
    producer_pid: int
    producer_alive: bool
    heartbeat_ms: int
    source: str
    source_position: Position | None
    subscriptions: tuple[SubscriptionStat, ...]
    space_wanted: int | None = None
    put_position: Position | None = None  # of the newest transaction end or DDL, with its GTID set
    evictions: int = 0
    stream: StreamStat = StreamStat()
    log: LogStat | None = None  # where the store has one
    floor: int = -1  # the last event that the ring has no more

    @property
    def slowest(self) -> SubscriptionStat | None:
        """The subscription that has acked least; None where there is none that holds anything back."""
        active = (each for each in self.subscriptions if each.state == "active")
        return min(active, key=lambda each: each.ack.sequence, default=None)

    def after_eviction(self, subscription: str) -> str:
        """What to do about a subscription that was evicted."""
        return after_eviction(self.name, subscription, has_log=self.log is not None)

    def remedy(self, reader: SubscriptionStat) -> str:
        """What to do about a subscription that holds the producer up."""
        return remedy(self.name, reader)

    @property
    def holdup(self) -> str:
        """Who holds the producer up and what to do, as a sentence."""
        if self.log is not None:
            return self.log.trouble or "the disk is slow to write the log"
        if (slowest := self.slowest) is None:
            return "there is no subscription: start a reader"
        return f"{slowest.standing} of {self.newest:,}: {self.remedy(slowest)}"


def describe(segment: Segment, subscriptions: tuple[SubscriptionStat, ...], put_position: Position | None) -> StoreStat:
    """Describe the store at this moment."""
    views, words = segment.views, segment.words
    put = cursor_at(views, words[PUT])
    floor = cursor_at(views, min(spared(views), put.sequence))  # looked at after put, or the space could be negative
    file = segment.read_text("source_file")
    producer, alive = Ownership(segment.fd, LOCK_PRODUCER).noted(words, header_word("producer_pid"))
    wanted = words[ACK_WANTED]  # a wish outlives the producer that died with it
    stream = StreamStat._make(words[word] for word in STREAM_WORDS)
    heard, put_at, paused = map(as_calendar_ms, (stream.heard_ms, stream.put_ms, stream.paused_ms))
    stream = stream._replace(heard_ms=heard, put_ms=put_at, paused_ms=paused if alive else 0)
    waits = alive and wanted != DISARMED and spared(views) < wanted
    return StoreStat(
        name=segment.name,
        path=segment.path,
        epoch=segment.epoch,
        created_ms=segment.created_ms,
        capacity=views.capacity,
        memory_unit=segment.memory_unit,
        limit_bytes=views.limit,
        batch_mode=segment.batch_mode.name,
        ddl_isolation=bool(segment.flags & StoreFlag.DDL_ISOLATION),
        lag="evict" if segment.flags & StoreFlag.EVICT else "block",
        checksum=bool(segment.flags & StoreFlag.CHECKSUM),
        segment_bytes=segment.sizes.total,
        put=put,
        oldest=oldest_kept(views),
        newest=put.sequence,
        free_events=views.capacity - (put.sequence - floor.sequence),
        free_bytes=min(views.limit, max(0, views.limit - (put.bytes - floor.bytes))),  # a slot may be another's by now
        producer_pid=producer,
        producer_alive=alive,
        heartbeat_ms=as_calendar_ms(words[header_word("heartbeat_ms")]),
        source=segment.read_text("source"),
        source_position=Position(file, words[header_word("source_offset")]) if file else None,
        subscriptions=subscriptions,
        space_wanted=wanted if waits else None,
        put_position=put_position,
        evictions=words[header_word("evictions")],
        stream=stream._replace(connected=alive and bool(stream.connected)),
        log=_log(segment),
        floor=min(words[FLOOR], put.sequence),
    )


def _log(segment: Segment) -> LogStat | None:
    if not segment.home:
        return None
    words, word = segment.words, header_word
    used, oldest_ms, files = words[word("log_bytes")], words[word("log_oldest_ms")], 0
    with suppress(StoreError):  # who may look at the memory need not have the right to read the files
        if used:
            files = len(set_firsts(log_of(segment).folder))
        else:  # no process has appended since it is in memory
            sets = log_of(segment).sets()
            used, oldest_ms, files = sum(each.bytes for each in sets), sets[0].first_ms if sets else 0, len(sets)
    return LogStat(
        home=segment.home,
        oldest=words[LOG_FIRST],
        written=words[LOGGED],
        synced=words[SYNCED],
        bytes=used,
        size=words[word("log_size")],
        keep_ms=words[word("log_keep_ms")],
        oldest_ms=oldest_ms,
        trouble=log_trouble(segment),
        files=3 * files,
    )


def log_trouble(segment: Segment) -> str:
    """Why nothing can be appended to a store's log, and what to do, as a sentence; empty where it can."""
    words = segment.words
    code = words[header_word("log_error")]
    if code == 0:
        return ""
    if code > 0:
        from shmstore.log.keeper import fix_of  # where it is wanted: the keeper is the producer's

        return f"the log in {segment.home}/log cannot be written: {os.strerror(code)}; {fix_of(code)}"
    active = [each for each in subscriptions_of(segment) if each.state == "active"]
    if not active:
        return f"the log in {segment.home}/log is as large as it may be, {words[header_word('log_size')]:,} bytes"
    slowest = min(active, key=lambda each: each.ack.sequence)
    return (
        f"the log in {segment.home}/log is as large as it may be, {words[header_word('log_size')]:,} bytes, and {slowest.standing} of "
        f"{words[PUT]:,}: {remedy(segment.name, slowest)}"
    )


def subscriptions_of(segment: Segment, *, behind_ring: bool = False) -> tuple[SubscriptionStat, ...]:
    """Describe every subscription at this moment; with `behind_ring` only those whose next event is in the log alone."""
    words = segment.words
    entries = [entry for entry in range(1, words[ENTRIES]) if words[STATE_OF[entry]] != SubscriptionState.FREE]
    if behind_ring:
        floor = words[FLOOR]
        entries = [entry for entry in entries if words[STATE_OF[entry]] == ACTIVE and words[ACK_OF[entry]] < floor]
    return tuple(_subscription(segment, entry) for entry in entries)


def _subscription(segment: Segment, entry: int) -> SubscriptionStat:
    views, words = segment.views, segment.words
    put = cursor_at(views, words[PUT])
    ack, get = (_cursor(segment, words[each[entry]], put) for each in (ACK_OF, GET_OF))
    owner, alive = Ownership(segment.fd, LOCK_SUBSCRIPTION + entry).noted(words, subscription_word(entry, "owner_pid"))
    since = _time_at(segment, max(ack.sequence, views.first), put.sequence)  # who never acked has waited since the first event
    return SubscriptionStat(
        name=segment.read_text("name", entry),
        state="lost" if words[STATE_OF[entry]] == SubscriptionState.LOST else "active",
        get=get,
        ack=ack,
        owner_pid=owner,
        alive=alive,
        heartbeat_ms=as_calendar_ms(words[subscription_word(entry, "heartbeat_ms")]),
        lag_events=put.sequence - ack.sequence,
        lag_bytes=put.bytes - ack.bytes,
        lag_rows=put.rows - ack.rows,
        lag_ms=max(0, put.time_ms - since) if put.sequence > ack.sequence else 0,
        ack_point=_ack_point(segment, ack.sequence),
        oldest_ms=_cursor(segment, ack.sequence + 1, put).time_ms if put.sequence > ack.sequence else 0,
        paused=bool(words[PAUSED_OF[entry]]),
    )


def _cursor(segment: Segment, sequence: int, put: Cursor) -> Cursor:
    """The cursor at `sequence`; where the log is damaged there, what it counts is unknown, and the figures are those of `put`."""
    try:
        return cursor_of(segment, sequence)
    except (StoreCorrupt, PositionNotFound):
        return put._replace(sequence=sequence)


def _ack_point(segment: Segment, sequence: int) -> int | None:
    with suppress(StoreCorrupt, PositionNotFound):
        return last_ack_point_until(segment, sequence)
    return None


def _time_at(segment: Segment, sequence: int, put: int) -> int:
    """How far event time had come at `sequence`: a clock that jumped back, and forth again, made no reader late.

    What came before it counts as far as the slots reach, `LOOK_BACK` at most, but nothing that is still to come.
    """
    views = segment.views
    if has_log(segment) and sequence <= segment.words[FLOOR]:
        return _cursor(segment, sequence, cursor_at(views, put)).time_ms
    first = max(views.first, first_slot(views), sequence - LOOK_BACK)
    i = first & (views.slot_count - 1)
    times = views.slots["time"][i : i + max(0, sequence - first + 1)]
    return int(max(cursor_at(views, sequence).time_ms, times[times <= calendar_ms()].max(initial=0)))


def note_producer(segment: Segment) -> None:
    """Write down that this process is the producer, for people to read: the role itself is a kernel lock."""
    pid = os.getpid()
    segment.words[header_word("producer_pid")] = pid
    segment.words[header_word("producer_start")] = start_time(pid)


def note_heartbeat(segment: Segment, source: str, position: Position | None, stream: StreamStat | None) -> None:
    """Write down that the producer lives, what it reads from, how far it has read, and how its stream goes."""
    if stream is not None:
        heard, put, paused = map(as_boot_ms, (stream.heard_ms, stream.put_ms, stream.paused_ms))
        stream = stream._replace(heard_ms=heard, put_ms=put, paused_ms=paused)
        for word, value in zip(STREAM_WORDS, stream, strict=True):
            segment.words[word] = int(value)
    if source:
        segment.write_text("source", source)
    if position is not None:
        segment.write_text("source_file", position.file)
        segment.words[header_word("source_offset")] = position.offset
    segment.words[header_word("heartbeat_ms")] = boot_ms()
