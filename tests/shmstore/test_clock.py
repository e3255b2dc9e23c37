"""The calendar is set, back and forth: nothing that is alive seems hours old, and what hangs is noticed all the same."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from shmstore import EventStore, StreamStat
from shmstore.cli.text_report import page
from shmstore.clock import as_boot_ms, as_calendar_ms, calendar_ms
from shmstore.consumer.live.model import Model, Reading
from shmstore.consumer.monitoring.health import problems
from shmstore.consumer.monitoring.metrics import prometheus
from shmstore.memory.layout import header_word

SHIFTS = pytest.mark.parametrize("hours", [1, -1, 24 * 3650, -24 * 3650])


@pytest.fixture
def living(make: Callable[..., EventStore], either_way: None) -> EventStore:
    """A store whose producer has just said that it lives, and whose reader has just waited."""
    store = make()
    store.claim()
    now = calendar_ms()
    store.heartbeat("db", None, StreamStat(connected=True, heard_ms=now, put_ms=now))
    store.subscribe("a").get(timeout=0.01)
    return store


def set_calendar(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    ns, seconds = time.time_ns, time.time
    monkeypatch.setattr(time, "time_ns", lambda: ns() + int(hours * 3600) * 10**9)
    monkeypatch.setattr(time, "time", lambda: seconds() + hours * 3600)


@SHIFTS
def test_what_is_alive_stays_so(living: EventStore, monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    """`stat`, `/healthz`, the metrics and the live views show ages of seconds, none of hours, and none below zero."""
    set_calendar(monkeypatch, hours)
    stat = living.stat()
    assert problems([stat]) == []
    ages = [float(age.replace(",", "")) for age in re.findall(r"(-?[\d,.]+) s ago", page(stat))]
    assert len(ages) == 2
    assert all(0 <= age < 60 for age in ages)
    shown = dict(re.findall(r"^shmstore_(\w+_timestamp_seconds)\{.*\} (\S+)$", prometheus([stat]), re.MULTILINE))
    for name in ("producer_heartbeat_timestamp_seconds", "source_heard_timestamp_seconds", "last_put_timestamp_seconds"):
        assert abs(time.time() - float(shown[name])) < 60, name
    assert abs(time.time() * 1000 - stat.subscriptions[0].heartbeat_ms) < 60_000
    (store,) = Model().take(Reading(0.0, calendar_ms(), (stat,))).stores
    assert 0 <= store.heard < 60
    assert store.arrive.note in ("", f"last heard {store.heard:,.1f} s ago")


def test_what_hangs_is_noticed(living: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that gives no sign of life for two minutes is a problem, also where the calendar was set back by an hour meanwhile."""
    beat, now = living.segment.words[header_word("heartbeat_ms")], time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now - 3600 * 10**9)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: (beat + 120_000) * 10**6)
    (problem,) = problems([living.stat()])
    assert "has given no sign of life for 120 s" in problem


def test_never_stays_never() -> None:
    """0 means never, by both clocks."""
    assert as_boot_ms(0) == as_calendar_ms(0) == 0
    now = calendar_ms()
    assert abs(as_calendar_ms(as_boot_ms(now - 5000)) - now + 5000) < 1000
