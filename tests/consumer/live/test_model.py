"""consumer/live/model.py: rates, delays, who holds up whom, and one sentence, worked out from readings."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore import Cursor, LogStat, StoreStat, StreamStat, SubscriptionStat
from shmstore.consumer.live.figures import Host, ShownStore, document
from shmstore.consumer.live.history import EVERY, SPAN, History
from shmstore.consumer.live.model import (
    JUDGED_FROM,
    KEEPS_UP,
    WINDOW,
    Model,
    Reading,
    TableFigures,
    catch_up,
)
from shmstore.home.snapshot_progress import Progress, TableProgress, Task
from shmstore.store.remembered import RememberedStore

NOW = 1_700_000_000_000


def cursor(events: int) -> Cursor:
    """A cursor behind so many events, of 3 rows and 100 bytes each."""
    return Cursor(events - 1, 100 * events, 3 * events, NOW)


def reader(name: str = "audit", acked: int = 0, put: int = 0, **other: Any) -> SubscriptionStat:
    lag = put - acked
    lags = {"lag_events": lag, "lag_bytes": 100 * lag, "lag_rows": 3 * lag, "lag_ms": lag, "oldest_ms": NOW - 500 if lag else 0}
    fields = {"state": "active", "owner_pid": 7, "alive": True, "heartbeat_ms": NOW, "ack_point": None, **lags, **other}
    return SubscriptionStat(name=name, get=cursor(acked), ack=cursor(acked), **fields)


def log(put: int, size: int = 1 << 20, **other: Any) -> LogStat:
    fields = {"bytes": size // 4, "keep_ms": 86_400_000, "oldest_ms": NOW - 1000, **other}
    return LogStat(home="/s/a", oldest=0, written=put - 1, synced=put - 1, size=size, **fields)


def stat(put: int = 0, *readers: SubscriptionStat, **other: Any) -> StoreStat:
    fields: dict[str, Any] = {
        "path": None,
        "epoch": 1,
        "created_ms": NOW,
        "capacity": 1024,
        "memory_unit": 1024,
        "limit_bytes": 1 << 20,
        "batch_mode": "MEMSIZE",
        "ddl_isolation": False,
        "lag": "block",
        "checksum": False,
        "segment_bytes": 1 << 21,
        "oldest": 0,
        "newest": put - 1,
        "free_events": 1024,
        "free_bytes": 1 << 20,
        "floor": max(-1, put - 1025),
        "producer_pid": 7,
        "producer_alive": True,
        "heartbeat_ms": NOW,
        "source": "mysql://db1",
        "source_position": None,
        "log": log(put),
        "stream": StreamStat(connected=True, heard_ms=NOW, put_ms=NOW),
        **other,
    }
    return StoreStat(name="a", put=cursor(put), subscriptions=readers, **fields)


def seen(*stats: StoreStat | None, every: float = 1.0, **other: Any) -> ShownStore:
    """What is shown after these, one after the other; None: the store was not there."""
    model = Model()
    host = None
    for i, each in enumerate(stats):
        host = model.take(Reading(i * every, NOW, () if each is None else (each,), **other))
    assert host is not None
    return host.stores[0]


@given(st.integers(1, 10**9), st.floats(0, 1e6, allow_nan=False), st.floats(0, 1e6, allow_nan=False))
def test_after_that_time_it_has_caught_up(lag: int, rate: float, put: float) -> None:
    """At these rates nothing is left when the time is over, and something just before; who is no faster than the puts never gets there."""
    found = catch_up(lag, rate, put)
    assert found is not None
    if lag <= put * KEEPS_UP:
        assert found == 0
    elif rate <= put:
        assert found == math.inf
    else:
        assert lag + (put - rate) * found == pytest.approx(0, abs=1e-6 * lag)
        assert lag + (put - rate) * found * 0.9 > 0


def test_what_is_not_known() -> None:
    """Nothing left is nothing left, whatever the rates; without one, nothing is shown."""
    assert (catch_up(0, None, None), catch_up(5, None, 1.0), catch_up(5, 1.0, None)) == (0, None, None)
    assert [catch_up(lag, 200.0, 100.0) for lag in (100, 101, 150)] == [0, 1.01, 1.5]


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0.1, 5.0)), min_size=1, max_size=20))
def test_rates_are_of_the_window(steps: list[tuple[int, float]]) -> None:
    """A rate is what was put since the oldest reading that is in the window, or just before it, by the time since then."""
    model, at, put = Model(), 0.0, 0
    points = [(at, put)]
    model.take(Reading(at, NOW, (stat(put),)))
    for more, seconds in steps:
        at, put = at + seconds, put + more
        points.append((at, put))
        store = model.take(Reading(at, NOW, (stat(put),))).stores[0]
    first = points[max((i for i, (then, _) in enumerate(points) if at - then >= WINDOW), default=0)]
    rate = store.store.rate
    assert rate is not None
    assert rate.events == pytest.approx((put - first[1]) / (at - first[0]))
    assert (rate.rows, rate.bytes) == (pytest.approx(3 * rate.events), pytest.approx(100 * rate.events))


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=8))
def test_a_reader_that_is_moved_back_counts_from_there(acks: list[int]) -> None:
    """Its rate is over the readings since its ack last went back: never below 0, and unknown where that was just now."""
    shown = seen(*(stat(1000, reader(acked=ack, put=1000)) for ack in acks)).readers[0]
    back = max((i for i in range(1, len(acks)) if acks[i] < acks[i - 1]), default=0)
    if back == len(acks) - 1:
        assert shown.rate is None
    else:
        assert shown.rate is not None
        assert shown.rate.events == pytest.approx((acks[-1] - acks[back]) / (len(acks) - 1 - back))
    assert (shown.lag_events, shown.ack) == (1000 - acks[-1], acks[-1] - 1)


@pytest.mark.parametrize("between", [None, stat(900, epoch=2), stat(2000)])
def test_another_store_has_other_rates(between: StoreStat | None) -> None:
    """Over a gap, another epoch, and a store that has less than before, no rate is worked out."""
    assert seen(stat(900), between, stat(1000)).store.rate is None
    assert seen(stat(900), between, stat(1000), stat(1010)).store.rate == (10.0, 30.0, 1000.0)


def test_delays() -> None:
    """Behind the source as the producer says, behind the ring by what is not written at the rate of puts, and no time is negative."""
    late = StreamStat(connected=True, heard_ms=NOW - 2000, behind_ms=1500)
    now = stat(1000, stream=late, log=log(1000)._replace(written=899))
    store = seen(stat(900, stream=late), now)
    assert (store.arrive.delay, store.heard) == (1.5, 2.0)
    assert store.keep is not None
    assert (store.keep.delay, store.log and store.log.unwritten) == (1.0, 100)
    future = seen(stat(10, reader(put=10, oldest_ms=NOW + 60_000), stream=StreamStat(True, heard_ms=NOW + 60_000)))
    assert (future.heard, future.readers[0].waited) == (0, 0)


def test_waiting_for_space() -> None:
    """The part of the time that the producer waited, since it is this one."""
    blocked = [
        stat(stream=StreamStat(True, NOW, blocked_ms=ms), producer_pid=pid) for ms, pid in ((9000, 1), (500, 2), (1000, 2))
    ]
    assert seen(*blocked).blocked == pytest.approx(0.5)
    assert seen(blocked[2]).blocked == 0
    assert seen(blocked[0]._replace(producer_pid=2), *blocked[1:]).blocked == pytest.approx(0.5)


def test_who_holds_up_whom() -> None:
    """Without a log the slowest reader holds the producer up that waits; with one, who has filled it, or has most of it kept for itself."""
    fast, slow = reader("fast", 900, 1000), reader("slow", 10, 1000)
    ring = stat(1000, fast, slow, log=None)
    assert [each.holds for each in seen(ring).readers] == ["", ""]
    assert [each.holds for each in seen(ring._replace(space_wanted=500)).readers] == ["producer", ""]
    small = log(1000, size=200_000)
    assert [each.holds for each in seen(stat(1000, fast, slow, log=small)).readers] == ["log", ""]
    full = small._replace(trouble=f"the log is as large as it may be, and {slow.standing} of 999: let it read on")
    store = seen(stat(1000, fast, slow, log=full))
    assert [each.holds for each in store.readers] == ["producer", ""]
    assert store.health.state == "bad"
    disk = small._replace(trouble="the log cannot be written: No space left on device")
    assert [each.holds for each in seen(stat(1000, fast, slow, log=disk)).readers] == ["log", ""]
    lost = reader("lost", 0, 1000, state="lost", alive=False)
    assert [(each.state, each.holds) for each in seen(ring._replace(subscriptions=(lost, fast), space_wanted=5)).readers] == [
        ("lost", ""),
        ("reading", "producer"),
    ]


def backlogs(*each: int, every: float = 30.0, **other: Any) -> ShownStore:
    """A store with a reader that has acked nothing, after so many puts."""
    return seen(*(stat(put, reader(acked=0, put=put, **other)) for put in each), every=every)


def test_when_the_log_is_full() -> None:
    """What the slowest reader has not acked grows by so much a second; what is left of the log lasts so long. Who catches up fills nothing."""
    found = backlogs(1000, 1030, 1060, 1090, 1120).log
    assert found is not None
    assert found.growth == 100 + 64
    assert found.full_in == pytest.approx(((1 << 20) - 1120 * 164) / found.growth)
    assert found.reaches is None
    steady = seen(*(stat(put, reader(acked=put, put=put)) for put in range(1000, 1150, 30)), every=30.0).log
    assert steady is not None
    assert (steady.full_in, steady.reaches) == (None, pytest.approx((1 << 20) / 164))


@pytest.mark.parametrize(
    ("puts", "every"),
    [
        ([0, 5000, 5000, 5000, 5000, 5000], 30.0),  # a burst, then nothing
        ([0, 0, 0, 0, 0, 5000], 30.0),  # a burst just now
        ([0, 1000, 2000, 3000, 4000, 5000], 1.0),  # seconds of it
        ([5000], 1.0),
    ],
)
def test_a_burst_is_no_trend(puts: list[int], every: float) -> None:
    """A reader falls behind when its backlog grows over minutes, in the first and in the second half of them."""
    store = backlogs(*puts, every=every)
    assert store.log is not None
    assert (store.log.growth, store.log.full_in, store.log.reaches) == (0.0, None, None)
    assert "fills the log" not in store.health.says


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.5, 40.0)), min_size=2, max_size=60))
def test_the_trend_is_over_the_last_minutes(steps: list[tuple[int, float]]) -> None:
    """Growth is never more than the mean over all readings of the last minutes, and there is none before two minutes of them."""
    model, at, put, points = Model(), 0.0, 0, []
    for more, seconds in steps:
        at, put = at + seconds, put + more
        points.append((at, put))
        log = model.take(Reading(at, NOW, (stat(put, reader(acked=0, put=put)),))).stores[0].log
    assert log is not None
    if at - points[0][0] < JUDGED_FROM:
        assert log.growth == 0
    worst = max((put - then_put) / (at - then) for then, then_put in points[:-1])
    assert log.growth <= 164 * worst + 1e-6


@pytest.mark.parametrize("alive", [True, False])
def test_a_log_that_will_soon_be_full(alive: bool) -> None:
    """The health says it in time, with what happens then. A reader that runs is to be made faster; one that does not run is to be
    started, moved or forgotten, which is refused while it runs."""
    health = backlogs(*range(1000, 6000, 500), alive=alive, owner_pid=7 if alive else 0).health
    assert health.state == "warn"
    assert "fills the log in" in health.says
    assert health.says.endswith("and the producer stops")
    assert ("make it faster" in health.fix, "shmstore unsubscribe a audit" in health.fix) == (alive, not alive)


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 1024))
def test_the_ring_as_it_is_drawn(put: int, back: int, held: int) -> None:
    """Each cursor stands where its slot begins, as long as the ring has it; what is held never is more than the ring."""
    floor = max(-1, put - 1 - held)
    ack = max(0, put - back)
    ring = seen(stat(put, reader(acked=ack, put=put), floor=floor)).ring
    assert ring.held == pytest.approx((put - 1 - floor) / 1024)
    marks = {(mark.cursor, mark.reader): mark for mark in ring.marks}
    assert marks["put", ""].ring == pytest.approx(put % 1024 / 1024)
    assert (ring.first + ring.held) % 1 == pytest.approx(put % 1024 / 1024, abs=1e-9)
    mine = marks["ack", "audit"]
    assert mine.ring == (pytest.approx(ack % 1024 / 1024) if ack - 1 >= floor else None)
    assert mine.log is None if not put else mine.log == pytest.approx(ack / put)


def test_tables() -> None:
    """Rows a second by operation, the busiest table first; a count that began again makes no negative rate; a table may have a DDL alone."""
    model = Model()
    counts: list[dict[tuple[str, str], TableFigures]] = [
        {("s", "a"): TableFigures({"insert": 10}, 1000, NOW), ("s", "b"): TableFigures({"insert": 500}, 9000, NOW)},
        {
            ("s", "a"): TableFigures({"insert": 30, "delete": 4}, 3000, NOW),
            ("s", "b"): TableFigures({"insert": 3}, 60, NOW),
            ("s", "c"): TableFigures({}, 0, 0, "alter", NOW, "ALTER TABLE c"),
        },
    ]
    host: Host | None = None
    for i, tables in enumerate(counts):
        host = model.take(Reading(2.0 * i, NOW, (stat(),), tables={"a": tables}))
    assert host is not None
    a, b, c = sorted(host.stores[0].tables, key=lambda each: each.table)
    assert host.stores[0].tables[0].table == "a"
    assert (a.rates, a.rate, a.bytes_rate) == ({"insert": 10, "delete": 2}, 12, 1000)
    assert (b.rate, b.rows) == (0, {"insert": 3})
    assert (c.ddl, c.sql, c.rate) == ("alter", "ALTER TABLE c", 0)


def test_snapshots() -> None:
    """Rows of about how many, a second, and how long it takes."""
    progress = Progress(tasks=[Task("1", "s", "t", TableProgress("reading", (), 400, 2), estimate=1000, began_ms=NOW - 2000)])
    (found,) = seen(stat(), snapshots={"a": progress}).snapshots
    assert (found.table, found.rows, found.about, found.rate, found.left) == ("s.t", 400, 1000, 200, 3)


@pytest.mark.parametrize(
    ("changed", "state", "says", "fix"),
    [
        ({}, "ok", "there is no subscription", ""),
        ({"producer_alive": False}, "bad", "no producer runs", "shmstore produce --store a"),
        ({"stream": StreamStat(False, NOW)}, "bad", "no link to mysql://db1", "shmstore doctor"),
        ({"subscriptions": (reader(state="lost"),)}, "bad", "'audit' was evicted", "shmstore seek a audit earliest"),
        ({"space_wanted": 5, "log": None}, "warn", "waits for free space", "start a reader"),
        (
            {"subscriptions": (reader(put=9, alive=False),)},
            "warn",
            "pid 7, died, and 9 events wait",
            "shmstore unsubscribe a audit",
        ),
        ({"subscriptions": (reader(put=9, oldest_ms=NOW - 120_000),)}, "warn", "9 events and 2 min behind", "does it ack?"),
        (
            {"subscriptions": (reader(put=9, oldest_ms=NOW - 120_000, owner_pid=0, alive=False),)},
            "warn",
            "9 events and 2 min behind",
            "no process reads it: start its reader, or forget it with `shmstore unsubscribe a audit`",
        ),
        ({"stream": StreamStat(True, NOW, NOW, 90_000)}, "warn", "90 s behind its source", "the server writes faster"),
        (
            {"stream": StreamStat(True, NOW, NOW, purge_ms=NOW + 3_600_000)},
            "warn",
            "may delete the next binlog",
            "keep binlogs on the server",
        ),
        ({"stream": StreamStat(True, NOW, NOW, skipped=3)}, "warn", "3 events were left out", "log"),
        ({"subscriptions": (reader(), reader("b"))}, "ok", "2 readers up to date", ""),
        ({"subscriptions": (reader(put=3),)}, "ok", "its reader at most 3 events (300 B) behind", ""),
    ],
)
def test_one_sentence_with_what_to_do(changed: dict[str, Any], state: str, says: str, fix: str) -> None:
    """The worst that is to be said, and what to do about it."""
    health = seen(stat(9)._replace(**changed)).health
    assert (health.state, says in health.says, fix in health.fix) == (state, True, True), health


def test_readers_in_trouble_come_first() -> None:
    """Lost, then what holds the producer up, then dead, then late; then those that read, and last those that no process reads. Each keeps its number."""
    readers = (
        reader("away", 1000, 1000, alive=False, owner_pid=0),
        reader("reads", 1000, 1000),
        reader("late", 500, 1000, oldest_ms=NOW - 90_000),
        reader("died", 900, 1000, alive=False),
        reader("stops", 10, 1000),
        reader("lost", 0, 1000, state="lost"),
        reader("reads too", 990, 1000),
    )
    shown = seen(stat(1000, *readers, log=None, space_wanted=500)).readers
    assert [each.name for each in shown] == ["lost", "stops", "died", "late", "reads", "reads too", "away"]
    assert [each.number for each in shown] == [5, 4, 3, 2, 1, 6, 0]
    assert [each.state for each in shown] == ["lost", "reading", "dead", "reading", "reading", "reading", "away"]


def test_every_problem_is_listed_once() -> None:
    """The worst first, each with its fix; one that is the cause of another is not said twice, nor a reader named in two sentences."""
    readers = (
        reader("late", 500, 1000, oldest_ms=NOW - 90_000),
        reader("later", 400, 1000, oldest_ms=NOW - 120_000),
        reader("died", 900, 1000, alive=False, oldest_ms=NOW - 180_000),
        reader("lost", 0, 1000, state="lost", alive=False, oldest_ms=NOW - 240_000),
    )
    store = seen(stat(1000, *readers, producer_alive=False, stream=StreamStat(True, NOW, NOW, 90_000, skipped=2)))
    said = [(each.state, each.says) for each in store.problems]
    parts = [
        "no producer runs",
        "'lost' was evicted",
        "'died', pid 7, died",
        "'later' is 600",
        "'late' is 500",
        "2 events were left out",
    ]
    assert [state for state, _ in said] == ["bad", "bad", "warn", "warn", "warn", "warn"], said
    assert all(part in says for part, (_, says) in zip(parts, said, strict=True)), said
    assert store.health == store.problems[0]
    full = log(1000)._replace(trouble="the log cannot be written: No space left on device")
    stuck = seen(stat(1000, readers[0]._replace(oldest_ms=NOW), log=full, space_wanted=5))
    assert [each.says for each in stuck.problems] == [full.trouble]
    assert seen(stat(9)).problems == ()


def points_of(seconds: Sequence[float]) -> tuple[History, list[int]]:
    """A history of a store with a reader, taken at these times, with 10 more events each time; and how many were put by then."""
    model, history, puts = Model(), History(), []
    for i, at in enumerate(seconds):
        puts.append(10 * i)
        late = reader(acked=0, put=puts[-1], oldest_ms=NOW - 1000 * i) if i else reader()
        history.take(at, model.take(Reading(at, NOW + int(1000 * at), (stat(puts[-1], late),))))
    return history, puts


@given(st.lists(st.floats(0.1, 60), min_size=1, max_size=60))
def test_points_of_the_last_minutes(steps: list[float]) -> None:
    """None nearer to the one before than `EVERY`, none older than `SPAN`, numbered without a gap; who has seen some gets the others."""
    times = [sum(steps[:i]) for i in range(len(steps) + 1)]
    kept: list[float] = []
    for at in times:
        if not kept or at - kept[-1] >= EVERY:
            kept.append(at)
    history, _ = points_of(times)
    points = history.after(0)
    assert [point.at_ms for point in points] == [NOW + int(1000 * at) for at in kept if kept[-1] - at <= SPAN]
    numbers = [point.number for point in points]
    assert numbers == list(range(len(kept) - len(points) + 1, len(kept) + 1))
    middle = numbers[len(numbers) // 2]
    assert list(history.after(middle)) == [point for point in points if point.number > middle]


def test_what_a_point_has() -> None:
    """Rows a second, how far the producer is behind, the log's bytes, and how long each reader's oldest event has waited."""
    history, _ = points_of([0.0, 10.0])
    first, second = (point.stores["a"] for point in history.after(0))
    assert (first.rows, first.behind, first.log, dict(first.readers)) == (None, 0.0, 1 << 18, {"audit": 0.0})
    assert (second.rows, second.behind, second.log, dict(second.readers)) == (3.0, 0.0, 1 << 18, {"audit": 11.0})
    away = stat(producer_alive=False, log=None)
    gone = History()
    gone.take(0.0, Model().take(Reading(0.0, NOW, (away,))))
    assert gone.after(0)[0].stores["a"] == (None, None, None, {})


def at_home(name: str, **other: Any) -> RememberedStore:
    fields = {"acks": {"audit": 9, "old": 4}, "lost": ("old",), "path": None, **other}
    log = {"bytes": 1 << 20, "files": 3, "size": 1 << 22, "keep_ms": 86_400_000, "oldest_ms": NOW}
    return RememberedStore(name, f"/s/{name}", 1, NOW, oldest=2, newest=11, **log, **fields)


def test_a_store_in_its_home() -> None:
    """What its log has and what each reader has acked, who brings it back, and no alarm; one whose memory is a file is not said to be away."""
    (found,) = Model().take(Reading(0.0, NOW, remembered=[at_home("a")])).remembered
    assert (found.oldest, found.newest, found.used, found.keep) == (2, 11, 0.25, 86_400)
    assert found.readers == (("audit", "away", 9, 2), ("old", "lost", 4, 7))
    assert (found.health.state, "restores it" in found.health.fix) == ("idle", True)
    (filed,) = Model().take(Reading(0.0, NOW, remembered=[at_home("a", path="/m/a")])).remembered
    assert (filed.health.state, filed.health.says) == ("idle", "its memory is the file /m/a")


def test_the_host_has_the_worst_of_its_stores() -> None:
    """What is missing first, then what is bad, then what is not well yet, with how much more there is; else all is well."""
    ill, poor = (
        stat()._replace(name="ill", producer_alive=False),
        stat()._replace(name="poor", stream=StreamStat(True, NOW, skipped=1)),
    )

    def said(*stats: StoreStat, homes: Sequence[RememberedStore] = (), **missing: str) -> tuple[str, str]:
        health = Model().take(Reading(0.0, NOW, stats, missing, remembered=homes)).health
        return health.state, health.says

    assert said() == ("warn", "there are no stores on this host")
    assert said(homes=[at_home("a")]) == ("idle", "store 'a': not in memory, only in its home")
    assert said(homes=[at_home("a"), at_home("b")]) == ("idle", "2 stores are in their homes, and none in memory")
    assert said(stat(), homes=[at_home("b")]) == ("ok", "all is well; there is no subscription; 1 more in its home")
    assert said(stat(), stat()._replace(name="b"), homes=[at_home("c"), at_home("d")]) == (
        "ok",
        "all 2 stores are well; 2 more in their homes",
    )
    assert said(ill, homes=[at_home("b")]) == ("bad", "store 'ill': no producer runs")
    assert said(stat(), stat()._replace(name="b")) == ("ok", "all 2 stores are well")
    assert said(poor, ill) == ("bad", "store 'ill': no producer runs (1 more)")
    assert said(poor, ill, x="no store 'x'") == ("bad", "no store 'x' (2 more)")
    assert said(poor)[0] == "warn"


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=5), st.booleans())
def test_all_of_it_is_json(puts: list[int], logged: bool) -> None:
    """Whatever the figures: no number that JSON does not know."""
    stats = [stat(put, reader(acked=min(puts), put=put), log=log(put) if logged else None) for put in puts]
    text = json.dumps(document(seen(*stats)), allow_nan=False)
    assert json.loads(text)["put"]["sequence"] == puts[-1] - 1
    assert json.loads(json.dumps(document((math.inf, 1.0, None)), allow_nan=False)) == ["never", 1.0, None]
