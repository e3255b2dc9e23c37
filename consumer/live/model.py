"""How the figures that both live views show are worked out: what flows where, how fast, with which delay, and what is wrong.

Plan. A `Reading` is what can be seen at one moment, by who may only read. `Model.take` gets one reading after the other and returns the
`Host` that they make: figures of the last, and rates over those of the last `WINDOW` seconds. Nothing here looks at a clock, a
store or a file, so every figure can be worked out by hand. A rate is None until it is known, and after what it counts went back (a reader
that was moved, a store that was made again); then only what came since counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Final, NamedTuple

from shmstore import Cursor, LogStat, StoreStat, SubscriptionStat
from shmstore.consumer.live.figures import (
    Flow,
    Health,
    Host,
    Rate,
    Remembered,
    Ring,
    ShownLog,
    ShownMark,
    ShownReader,
    ShownStore,
    ShownTable,
    SnapshotTable,
    Waiting,
)
from shmstore.consumer.monitoring.health import HealthFinding, findings
from shmstore.home.snapshot_progress import Progress
from shmstore.store.remembered import RememberedStore
from shmstore.units import moment, quantity, span

WINDOW: Final = 10.0  # seconds that rates are over
JUDGED: Final = 300.0  # seconds over which a reader is judged to fall behind
JUDGED_FROM: Final = 120.0  # seconds of readings without which it is not: a burst is no trend
SAMPLE: Final = 10.0  # seconds between two readings that are kept for it
KEEPS_UP: Final = 1.0  # seconds of puts: a reader that is not further behind than this is up to date
LATE: Final = 60.0  # seconds after which a delay is worth a sentence
RESTORES: Final = "the producer, or any reader that attaches, restores it"
PURGE_MS: Final = 24 * 3_600_000  # how long before the source removes what is needed that is reported


class TableFigures(NamedTuple):
    """What was counted of one table: rows by operation, bytes, when its newest rows and its last DDL were (ms since 1970), what
    that does, and its statement."""

    rows: Mapping[str, int] = MappingProxyType({})
    bytes: int = 0
    last_ms: int = 0
    ddl: str = ""
    ddl_ms: int = 0
    sql: str = ""


class Reading(NamedTuple):
    """What was seen at one moment: `at` in seconds of a clock that only goes forward, `now_ms` in milliseconds since 1970.

    `missing` are stores that are not there, or cannot be read, with the reason; `tables` and `snapshots` are by store; `remembered` are the
    stores that are in their homes and not in memory.
    """

    at: float
    now_ms: int
    stats: Sequence[StoreStat] = ()
    missing: Mapping[str, str] = MappingProxyType({})
    tables: Mapping[str, Mapping[tuple[str, str], TableFigures]] = MappingProxyType({})
    snapshots: Mapping[str, Progress] = MappingProxyType({})
    remembered: Sequence[RememberedStore] = ()


class Model:
    """Makes of successive readings what is to be shown. Not for several threads at once."""

    def __init__(self, window: float = WINDOW) -> None:
        self._window = window
        self._readings: deque[Reading] = deque()
        self._samples: deque[Reading] = deque()  # what a trend is judged by, up to the newest reading

    def take(self, reading: Reading) -> Host:
        """Return the host as `reading` and those before it show it."""
        self._readings.append(reading)
        while len(self._readings) > 2 and reading.at - self._readings[1].at >= self._window:
            self._readings.popleft()
        # The newest reading is always there; the one before it stays only where it is a sample's distance from its own predecessor.
        if len(self._samples) > 1 and self._samples[-1].at - self._samples[-2].at < SAMPLE:
            self._samples.pop()
        self._samples.append(reading._replace(tables={}, snapshots={}, remembered=()))
        while reading.at - self._samples[0].at > JUDGED:
            self._samples.popleft()
        stores = tuple(self._store(stat, reading) for stat in reading.stats)
        remembered = tuple(map(_remembered, reading.remembered))
        health = _health_of_all(stores, reading.missing, remembered)
        return Host(reading.now_ms, health, stores, dict(reading.missing), remembered)

    def _store(self, stat: StoreStat, reading: Reading) -> ShownStore:
        then = _earlier(stat, self._readings)
        put = self._rate(then, lambda each: each.put)
        readers = sorted(
            (self._reader(each, number, stat, then, put, reading.now_ms) for number, each in enumerate(stat.subscriptions)),
            key=_trouble,
        )
        log = None if stat.log is None else _log(stat, stat.log, _earlier(stat, self._samples))
        pending = 0 if log is None else log.unwritten
        stream = stat.stream
        wait = _blocked(then)
        stored = f"waits for free space: {stat.holdup}" if stat.space_wanted is not None else ""
        snapshot = reading.snapshots.get(stat.name)
        made = ShownStore(
            name=stat.name,
            health=Health("ok", ""),
            problems=(),
            source=stat.source,
            position=f"{stat.source_position.file}:{stat.source_position.offset}" if stat.source_position else "",
            connected=stream.connected,
            heard=_age(stream.heard_ms, reading.now_ms),
            producer=stat.producer_pid,
            producer_alive=stat.producer_alive,
            paused=stat.stream.paused_ms > 0,
            blocked=wait,
            newest_ms=stat.put.time_ms,
            put=stat.put,
            arrive=Flow(
                put, stream.behind_ms / 1000 if stream.heard_ms and stat.producer_alive else None, _link(stat, reading.now_ms)
            ),
            store=Flow(put, None, stored),
            keep=None if log is None else Flow(put, _seconds(pending, put.events if put else None), log.trouble),
            ring=_ring(stat),
            log=log,
            readers=tuple(readers),
            tables=tuple(self._tables(stat.name)),
            snapshots=() if snapshot is None else tuple(_snapshot(snapshot, reading.now_ms)),
        )
        problems = tuple(_problems(stat, made, reading.now_ms))
        return made._replace(problems=problems, health=problems[0] if problems else Health("ok", _well(made)))

    def _rate(self, stats: Sequence[tuple[float, StoreStat]], of: Callable[[StoreStat], Cursor | None]) -> Rate | None:
        """How fast a cursor moved, over the readings since it last went back or was not there."""
        points: list[tuple[float, Cursor]] = []
        for at, stat in stats:
            cursor = of(stat)
            if cursor is None or (points and any(map(int.__gt__, cursor[:3], points[-1][1][:3]))):
                break
            points.append((at, cursor))
        seconds = points[0][0] - points[-1][0] if points else 0.0
        if seconds <= 0:
            return None
        new, old = points[0][1], points[-1][1]
        return Rate(*((now - before) / seconds for now, before in zip(_counts(new), _counts(old), strict=True)))

    def _reader(
        self,
        each: SubscriptionStat,
        number: int,
        stat: StoreStat,
        then: Sequence[tuple[float, StoreStat]],
        put: Rate | None,
        now_ms: int,
    ) -> ShownReader:
        def ack(earlier: StoreStat) -> Cursor | None:
            return next((other.ack for other in earlier.subscriptions if other.name == each.name), None)

        rate = self._rate(then, ack)
        return ShownReader(
            name=each.name,
            number=number,
            state=each.presence,
            owner=each.owner_pid,
            source="log" if stat.log is not None and each.ack.sequence < stat.floor else "ring",
            get=each.get.sequence,
            ack=each.ack.sequence,
            lag_events=each.lag_events,
            lag_rows=each.lag_rows,
            lag_bytes=each.lag_bytes,
            lag_seconds=each.lag_ms / 1000,
            waited=_age(each.oldest_ms, now_ms) or 0.0,
            rate=rate,
            catch_up=catch_up(each.lag_events, rate.events if rate else None, put.events if put else None),
            holds=_holds(each, stat),
        )

    def _tables(self, store: str) -> Iterator[ShownTable]:
        """The tables of a store, those with the most rows a second first."""
        readings = [(reading.at, reading.tables.get(store)) for reading in reversed(self._readings)]
        now = readings[0][1]
        found = []
        for (database, table), figures in (now or {}).items():
            at, before = readings[0][0], figures
            for then, tables in readings[1:]:
                if tables is None:
                    break
                earlier = tables.get((database, table), TableFigures())
                if any(earlier.rows.get(operation, 0) > rows for operation, rows in before.rows.items()):
                    break  # counted by another that began again
                at, before = then, earlier
            seconds = readings[0][0] - at
            rates = {
                operation: (rows - before.rows.get(operation, 0)) / seconds if seconds > 0 else 0.0
                for operation, rows in figures.rows.items()
            }
            size = max(0, figures.bytes - before.bytes) / seconds if seconds > 0 else 0.0
            found.append(
                ShownTable(
                    database,
                    table,
                    dict(figures.rows),
                    rates,
                    sum(rates.values()),
                    size,
                    figures.last_ms,
                    figures.ddl,
                    figures.ddl_ms,
                    figures.sql,
                )
            )
        yield from sorted(found, key=lambda each: (-each.rate, -max(each.last_ms, each.ddl_ms), each.database, each.table))


def _earlier(stat: StoreStat, readings: Sequence[Reading]) -> list[tuple[float, StoreStat]]:
    """This store in the readings without a gap up to now, newest first, each with its time."""
    found: list[tuple[float, StoreStat]] = []
    for reading in reversed(readings):
        same = next((each for each in reading.stats if each.name == stat.name and each.epoch == stat.epoch), None)
        if same is None:
            break
        found.append((reading.at, same))
    return found


def catch_up(lag: int, rate: float | None, put: float | None) -> float | None:
    """Return in how many seconds a reader that acks `rate` events a second has none of `lag` left, while `put` come a second.

    0 where nothing is left, or less than comes in `KEEPS_UP` seconds; infinite where it never comes to that, None where a rate is not known.
    """
    if not lag:
        return 0.0
    if rate is None or put is None:
        return None
    if lag <= put * KEEPS_UP:
        return 0.0
    return lag / (rate - put) if rate > put else math.inf


def _log(stat: StoreStat, log: LogStat, then: Sequence[tuple[float, StoreStat]]) -> ShownLog:
    """The log and what becomes of it, judged by the readings `then`, newest first, which cover minutes."""
    full_in, reaches = None, None
    slowest = stat.slowest
    growth = 0.0 if slowest is None else _trend([(at, _backlog(earlier, slowest.name)) for at, earlier in then])
    if slowest is not None and growth > 0:
        full_in = max(0, log.size - LogStat.taken(slowest.lag_events, slowest.lag_bytes)) / growth
    elif (rate := _trend([(at, LogStat.taken(earlier.put.sequence + 1, earlier.put.bytes)) for at, earlier in then])) > 0:
        back = log.size / rate
        reaches = back if back < log.keep_ms / 1000 else None
    return ShownLog(
        bytes=log.bytes,
        size=log.size,
        used=min(1.0, log.bytes / log.size) if log.size else 0.0,
        unwritten=max(0, stat.newest - log.written),
        unsynced=max(0, stat.newest - log.synced),
        oldest_ms=log.oldest_ms,
        keep=log.keep_ms / 1000,
        growth=growth,
        full_in=full_in,
        reaches=reaches,
        trouble=log.trouble,
    )


def _backlog(stat: StoreStat, reader: str) -> float | None:
    """The bytes of the log that wait for a subscription; None where there is none of that name."""
    return next((LogStat.taken(each.lag_events, each.lag_bytes) for each in stat.subscriptions if each.name == reader), None)


def _trend(points: Sequence[tuple[float, float | None]]) -> float:
    """How much a value grows a second, from (time, value), newest first, up to the first that is None: the slower of the first and the second
    half, so that one burst is no trend. 0 where it does not grow in both, or where the points cover less than `JUDGED_FROM`."""
    known = list(takewhile(lambda point: point[1] is not None, points))
    if not known or known[0][0] - known[-1][0] < JUDGED_FROM:
        return 0.0
    new, old = known[0], known[-1]
    middle = min(known, key=lambda point: abs(2 * point[0] - new[0] - old[0]))
    halves = ((new, middle), (middle, old))
    slopes = [((now or 0) - (before or 0)) / (at - then) if at > then else 0.0 for (at, now), (then, before) in halves]
    return max(0.0, min(slopes))


def _ring(stat: StoreStat) -> Ring:
    kept = stat.newest - stat.oldest + 1

    def mark(cursor: str, sequence: int, reader: str = "") -> ShownMark:
        within = stat.floor <= sequence
        log = min(1.0, max(0.0, (sequence + 1 - stat.oldest) / kept)) if stat.log is not None and kept > 0 else None
        return ShownMark(cursor, reader, sequence, _turn(sequence, stat.capacity) if within else None, log)

    marks = [mark("put", stat.newest)]
    if stat.log is not None:
        marks.append(mark("log", stat.log.written))
    for each in stat.subscriptions:
        marks += [mark("get", each.get.sequence, each.name), mark("ack", each.ack.sequence, each.name)]
    free = min(stat.free_events / stat.capacity, stat.free_bytes / stat.limit_bytes if stat.limit_bytes else 1.0)
    return Ring(
        capacity=stat.capacity,
        bytes=stat.limit_bytes,
        used=1 - free,
        first=_turn(stat.floor, stat.capacity),
        held=(stat.newest - stat.floor) / stat.capacity,
        marks=tuple(marks),
    )


def _turn(sequence: int, capacity: int) -> float:
    """Where the slot behind event `sequence` begins, as a part of the ring."""
    return ((sequence + 1) % capacity) / capacity


def _counts(cursor: Cursor) -> tuple[int, int, int]:
    """Events, rows and bytes up to a cursor."""
    return cursor.sequence, cursor.rows, cursor.bytes


def _holds(each: SubscriptionStat, stat: StoreStat) -> str:
    """What a reader holds up."""
    slowest = stat.slowest
    if slowest is None or slowest.name != each.name or not each.lag_events:
        return ""
    if stat.log is None:
        return "producer" if stat.space_wanted is not None else ""
    if stat.log.trouble and each.standing in stat.log.trouble:
        return "producer"
    return "log" if LogStat.taken(each.lag_events, each.lag_bytes) > stat.log.size / 2 else ""


def _trouble(reader: ShownReader) -> tuple[int, int]:
    """Where a reader comes in the list: those that need help first, then those that read, then those that do not."""
    waits = reader.lag_events > 0
    ranks = (
        reader.state == "lost",
        reader.holds == "producer",
        reader.state == "dead" and waits,
        reader.holds == "log" or (waits and reader.waited > LATE),
        reader.state == "reading",
        True,
    )
    return ranks.index(True), reader.number


def _blocked(then: Sequence[tuple[float, StoreStat]]) -> float:
    """The part of the time since the producer was another one, or since the first reading, that it waited for free space."""
    run = [then[0]]
    for at, stat in then[1:]:
        if stat.stream.blocked_ms > run[-1][1].stream.blocked_ms or stat.producer_pid != run[-1][1].producer_pid:
            break
        run.append((at, stat))
    seconds = run[0][0] - run[-1][0]
    waited = (run[0][1].stream.blocked_ms - run[-1][1].stream.blocked_ms) / 1000
    return min(1.0, waited / seconds) if seconds > 0 else 0.0


def _link(stat: StoreStat, now_ms: int) -> str:
    if stat.stream.paused_ms:
        return "paused"
    if not stat.stream.heard_ms or not stat.producer_alive:
        return ""
    if not stat.stream.connected:
        return "no link"
    return f"last heard {_age(stat.stream.heard_ms, now_ms) or 0:,.1f} s ago"


def _snapshot(progress: Progress, now_ms: int) -> Iterator[SnapshotTable]:
    for task in progress.tasks:
        yield SnapshotTable(
            f"{task.database}.{task.table}",
            task.progress.state,
            task.progress.rows,
            task.estimate,
            task.rate(now_ms),
            task.left(now_ms),
            task.problem,
        )


def _remembered(store: RememberedStore) -> Remembered:
    return Remembered(
        name=store.name,
        health=_idle(store),
        home=store.home,
        oldest=store.oldest,
        newest=store.newest,
        oldest_ms=store.oldest_ms,
        bytes=store.bytes,
        size=store.size,
        used=min(1.0, store.bytes / store.size) if store.size else 0.0,
        keep=store.keep_ms / 1000,
        readers=tuple(
            Waiting(name, "lost" if name in store.lost else "away", ack, store.lags[name]) for name, ack in store.acks.items()
        ),
    )


def _seconds(events: int, rate: float | None) -> float | None:
    """How long so many events take at a rate."""
    return 0.0 if not events else events / rate if rate else None


def _age(then_ms: int, now_ms: int) -> float | None:
    """Seconds since a time, and none before 0: clocks are set; None where there is no such time."""
    return max(0.0, (now_ms - then_ms) / 1000) if then_ms else None


# ---------------------------------------------------------------- one sentence


def _problems(stat: StoreStat, store: ShownStore, now_ms: int) -> Iterator[Health]:
    """Everything that is wrong with a store or soon will be, the most urgent first."""
    found = list(findings(stat, now_ms))
    yield from (Health("bad", each.says, each.fix) for each in found)
    yield from _worries(stat, store, found, now_ms)


def _worries(stat: StoreStat, store: ShownStore, found: Sequence[HealthFinding], now_ms: int) -> Iterator[Health]:
    """What is no problem yet, or not one that `found` has, the most urgent first."""
    name = stat.name
    named: set[str] = set()  # readers that a sentence is about: one is enough
    if stat.stream.paused_ms:
        says = (
            f"the producer is paused since {moment(stat.stream.paused_ms)}; the source must keep its binlog until it is resumed"
        )
        yield Health("warn", says, f"`shmstore resume {name}`")
    for reader in stat.subscriptions:
        if reader.paused and reader.state == "active":
            named.add(reader.name)
            waits = f", and {reader.lag_events:,} events wait for it" if reader.lag_events else ""
            yield Health("warn", f"{reader.name!r} is paused{waits}", f"`shmstore resume {name} --subscription {reader.name}`")
    if stat.space_wanted is not None and not any(
        each.fix == stat.holdup or (stat.log is not None and each.says == stat.log.trouble) for each in found
    ):
        yield Health("warn", "the producer waits for free space", stat.holdup)
    log, slowest = store.log, stat.slowest
    if log is not None and slowest is not None and log.full_in is not None and log.full_in < max(3600.0, log.keep / 24):
        named.add(slowest.name)
        yield _fills(stat, slowest, log.full_in)
    if stat.stream.purge_ms and stat.stream.purge_ms - now_ms < PURGE_MS:
        says = f"the source may delete the next binlog from {moment(stat.stream.purge_ms)} on"
        yield Health("warn", says, "let the producer and readers catch up, or keep binlogs on the server for longer")
    for failed in store.snapshots:
        if failed.state == "failed":
            again = f"ask again: `shmstore snapshot {name} --tables {failed.table}`"
            yield Health("warn", f"the snapshot of {failed.table} failed: {failed.problem}", again)
    for shown in store.readers:
        if shown.state == "dead" and shown.lag_events and shown.name not in named:
            named.add(shown.name)
            says = f"the reader of {shown.name!r}, pid {shown.owner}, died, and {shown.lag_events:,} events wait for it"
            yield Health("warn", says, f"start it again, or forget it: `shmstore unsubscribe {name} {shown.name}`")
    if store.arrive.delay is not None and store.arrive.delay > LATE and not stat.stream.paused_ms:
        says = f"the producer is {span(store.arrive.delay)} behind its source"
        yield Health(
            "warn", says, "it catches up after a pause; otherwise the server writes faster than it reads: docs, Performance"
        )
    for late in sorted(store.readers, key=lambda each: -each.waited):
        if late.waited <= LATE or not late.lag_events or late.state == "lost" or late.name in named:
            continue
        way = {None: "", math.inf: ", and falls further behind"}.get(late.catch_up, ", and catches up")
        says = f"{late.name!r} is {late.lag_events:,} events and {span(late.waited)} behind{way}"
        if late.state == "away":
            fix = f"no process reads it: start its reader, or forget it with `shmstore unsubscribe {name} {late.name}`"
        else:
            moves = late.state == "reading" and late.rate is not None and late.rate.events
            fix = "" if moves else "is it running, and does it ack?"
        yield Health("warn", says, fix)
    if stat.stream.skipped:
        yield Health(
            "warn", f"{stat.stream.skipped:,} events were left out: they could not be decoded", "the producer's log names them"
        )


def _fills(stat: StoreStat, slowest: SubscriptionStat, full_in: float) -> Health:
    """That the events which wait for a reader will fill the log."""
    then = "the producer stops" if stat.lag == "block" else "it is evicted"
    if slowest.alive:
        says = f"{slowest.name!r} falls behind: at the rate of the last minutes it fills the log in {span(full_in)}, and {then}"
        return Health("warn", says, "make it faster, or restart the producer with a larger `--log-size`")
    says = f"no process reads {slowest.name!r}: what waits for it fills the log in {span(full_in)}, and {then}"
    return Health("warn", says, stat.remedy(slowest))


def _well(store: ShownStore) -> str:
    if not store.readers:
        return "all is well; there is no subscription"
    behind = max(each.lag_events for each in store.readers)
    readers = f"{len(store.readers)} readers" if len(store.readers) > 1 else "its reader"
    size = quantity(max(each.lag_bytes for each in store.readers))
    return f"all is well; {readers} at most {behind:,} events ({size}) behind" if behind else f"all is well; {readers} up to date"


def _idle(store: RememberedStore) -> Health:
    if store.path:
        return Health("idle", f"its memory is the file {store.path}", f"name it to show it: `shmstore top {store.name}`")
    return Health("idle", "not in memory, only in its home", RESTORES)


def _health_of_all(stores: Sequence[ShownStore], missing: Mapping[str, str], remembered: Sequence[Remembered]) -> Health:
    """The worst of all stores, with how many more there are."""
    found = [Health("bad", says) for says in missing.values()]
    found += [
        problem._replace(says=f"store {store.name!r}: {problem.says}")
        for state in ("bad", "warn")
        for store in stores
        for problem in store.problems
        if problem.state == state
    ]
    if not found:
        if len(remembered) == 1 and not stores:
            return remembered[0].health._replace(says=f"store {remembered[0].name!r}: {remembered[0].health.says}")
        if not stores:
            if remembered:
                return Health("idle", f"{len(remembered)} stores are in their homes, and none in memory", RESTORES)
            return Health(
                "warn", "there are no stores on this host", "start a producer: `shmstore produce --store NAME --host ...`"
            )
        well = stores[0].health.says if len(stores) == 1 else f"all {len(stores)} stores are well"
        return Health(
            "ok",
            f"{well}; {len(remembered)} more in {'its home' if len(remembered) == 1 else 'their homes'}" if remembered else well,
        )
    more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
    return found[0]._replace(says=found[0].says + more)
