"""The figures that both live views show: of a host, its stores, and what is on the way through each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from shmstore import Cursor


class Rate(NamedTuple):
    """A second's worth."""

    events: float
    rows: float
    bytes: float


class Flow(NamedTuple):
    """An arrow: what passes it, how far (seconds) what comes out of it is behind what goes in, None where unknown, and a word on it."""

    rate: Rate | None
    delay: float | None
    note: str


class ShownMark(NamedTuple):
    """A cursor (put, log, get or ack) and where it stands: as a part of the ring (0 to 1, from slot 0 on), and of what the log keeps."""

    cursor: str
    reader: str
    sequence: int
    ring: float | None  # None: the ring has moved on from there
    log: float | None  # None: there is no log, or it keeps nothing


class Ring(NamedTuple):
    """The ring: how much of it may not be given up yet (0 to 1), by events or bytes, whichever is more; what it holds: from the place `first` on
    the part `held`; and where each cursor stands in it."""

    capacity: int
    bytes: int
    used: float
    first: float
    held: float
    marks: tuple[ShownMark, ...]


class ShownLog(NamedTuple):
    """The log: bytes of at most `size`, events that are in no file yet, and that are not known to be on disk.

    `growth` is how many bytes a second the slowest reader falls behind, over the last `JUDGED` seconds and in each half of them: a burst does
    not count. `full_in` is in how many seconds what it has not acked then fills the log. `reaches` is how many seconds back the log goes once
    it is full, where that is less than it is to keep. None: not at these rates, or not known yet.
    """

    bytes: int
    size: int
    used: float
    unwritten: int
    unsynced: int
    oldest_ms: int
    keep: float
    growth: float
    full_in: float | None
    reaches: float | None
    trouble: str


class ShownReader(NamedTuple):
    """A subscription. `number` is its place in the store, which others do not change; a store shows those in trouble first. Lags are from its
    ack to put: `lag_seconds` in event time, `waited` how long its oldest event has waited by now.

    `rate` is what it acks. `catch_up` is in how many seconds it has nothing left at the present rates: infinite where it falls behind,
    None where that is not known. `holds` says what it holds up: the producer, the log (most of which is kept for it alone), or nothing.
    """

    name: str
    number: int
    state: str  # reading, away, dead, paused, lost
    owner: int
    source: str  # ring or log: where its next event comes from
    get: int
    ack: int
    lag_events: int
    lag_rows: int
    lag_bytes: int
    lag_seconds: float
    waited: float
    rate: Rate | None
    catch_up: float | None
    holds: str


class ShownTable(NamedTuple):
    """A table: rows counted, by operation, and a second; bytes a second; when its newest rows and its last DDL were, what that
    does, and its statement."""

    database: str
    table: str
    rows: Mapping[str, int]
    rates: Mapping[str, float]
    rate: float
    bytes_rate: float
    last_ms: int
    ddl: str
    ddl_ms: int
    sql: str


class SnapshotTable(NamedTuple):
    """A table of a snapshot: rows so far of about how many (0: not known), a second, and in how many seconds it is done (None: not known)."""

    table: str
    state: str
    rows: int
    about: int
    rate: float
    left: float | None
    problem: str


class Health(NamedTuple):
    """One sentence: `state` is ok, idle (nothing is there that could go wrong), warn or bad."""

    state: str
    says: str
    fix: str = ""


class ShownStore(NamedTuple):
    """One store: its health, then what is on the way from its source to its readers."""

    name: str
    health: Health  # the worst of `problems`, or that all is well
    problems: tuple[Health, ...]  # all of them, the worst first
    source: str
    position: str
    connected: bool
    heard: float | None  # seconds since the source last said something
    producer: int  # process id; 0: none
    producer_alive: bool
    paused: bool  # the producer reads nothing, as it was asked to
    blocked: float  # part of the time (0 to 1) that the producer waited for free space
    newest_ms: int
    put: Cursor
    arrive: Flow  # source -> producer
    store: Flow  # producer -> ring
    keep: Flow | None  # ring -> log
    ring: Ring
    log: ShownLog | None
    readers: tuple[ShownReader, ...]
    tables: tuple[ShownTable, ...]
    snapshots: tuple[SnapshotTable, ...]


class Waiting(NamedTuple):
    """A reader of a store that is not in memory: what it has durably acked, and how many events it has not. `state` is away or lost."""

    name: str
    state: str
    ack: int
    lag_events: int


class Remembered(NamedTuple):
    """A store that is in its home and not in memory, as after a reboot: its events in the log, `oldest` to `newest` (none where `newest` is
    before), and its readers. Nothing of it is done, and nothing is wrong with it."""

    name: str
    health: Health
    home: str
    oldest: int
    newest: int
    oldest_ms: int
    bytes: int
    size: int
    used: float
    keep: float
    readers: tuple[Waiting, ...]


class Host(NamedTuple):
    """All stores that can be seen, those that are in their homes alone, and one sentence on all."""

    now_ms: int
    health: Health
    stores: tuple[ShownStore, ...]
    missing: Mapping[str, str]
    remembered: tuple[Remembered, ...]


def document(value: Any) -> Any:
    """Return what of the model JSON can hold: tuples with names as objects, and infinity as the word never."""
    if isinstance(value, tuple | list):
        if hasattr(value, "_asdict"):
            return {name: document(each) for name, each in value._asdict().items()}
        return [document(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): document(each) for name, each in value.items()}
    if isinstance(value, float):
        return "never" if value == math.inf else round(value, 4)
    return value
