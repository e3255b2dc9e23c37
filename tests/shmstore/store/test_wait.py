"""A reader that waits, again and again: how its wait ends, in compiled code and in the reference."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import shmstore.memory.mapping
from shmstore import EventStore, StoreClosed, StoreCorrupt, Subscription, SubscriptionLost
from shmstore.clock import boot_ms
from shmstore.memory.layout import DISARMED, subscription_word
from shmstore.ring.cursors import PUT, WANTED_OF
from tests.shmstore.samples import contents

SOON = 30
pytestmark = pytest.mark.usefixtures("either_way")


@pytest.fixture
def waiter(make, attach, start):
    """Make a store and a reader of it that has waited before: the first wait opens what the later ones sleep on."""

    def ready(**options: Any) -> tuple[EventStore, Subscription]:
        store = make(**options)
        reader = attach().subscribe("a")
        assert not reader.get(timeout=0.001)
        return store, reader

    return ready


@contextmanager
def handled(handler: Callable[[int, Any], None], number: int = signal.SIGALRM, after: float = 0.1) -> Iterator[None]:
    """Have the main thread, which waits inside, get a signal."""
    before = signal.signal(number, handler)
    timer = threading.Timer(after, signal.pthread_kill, (threading.main_thread().ident, number))
    try:
        timer.start()
        yield
    finally:
        timer.join()
        signal.signal(number, before)


def armed(reader: Subscription) -> bool:
    return reader.store.segment.words[WANTED_OF[reader.entry]] != DISARMED


def until_armed(reader: Subscription) -> None:
    while not armed(reader):
        time.sleep(0.001)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_what_a_handler_raises_ends_the_wait(waiter, no_slices, number, error):
    """Ctrl-C and SIGTERM end a wait at once: nothing was taken, no waiter is shown, and the next get works."""
    store, reader = waiter()

    def raising(number_: int, frame: object) -> None:
        raise error

    with pytest.raises(error), handled(raising, number):
        reader.get(timeout=SOON)
    assert not armed(reader)
    store.put(b"x")
    assert contents(reader.get()) == [b"x"]


def test_a_handler_that_returns_lets_the_wait_go_on(waiter, start, no_slices):
    """A signal without a meaning for the wait does not end the wait; its handler has run before the event comes."""
    store, reader = waiter()
    seen, ran = [], threading.Event()

    def note(number: int, frame: object) -> None:
        seen.append(number)
        ran.set()

    def put() -> None:
        ran.wait(SOON)
        store.put(b"x")

    with handled(note):
        putting = start(put)
        assert contents(reader.get(timeout=2 * SOON)) == [b"x"]
    putting.result(SOON)
    assert seen == [signal.SIGALRM]


def test_interrupt_ends_the_wait_once(waiter, start, no_slices):
    """`interrupt` from a handler and from another thread ends the wait that runs, or the next one, and only that."""
    store, reader = waiter()
    with handled(lambda *_: reader.interrupt()):
        assert not reader.get()
    waiting = start(reader.get)
    until_armed(reader)
    reader.interrupt()
    assert not waiting.result(SOON)
    reader.interrupt()
    assert not reader.get()
    waiting = start(reader.get)
    until_armed(reader)
    store.put(b"x")
    assert contents(waiting.result(SOON)) == [b"x"]


def test_a_handler_may_close_the_subscription(waiter, no_slices):
    """A wait whose subscription was closed by a handler says so, and takes nothing that is no longer its own."""
    store, reader = waiter()

    def close(*_: object) -> None:
        reader.close()
        store.put(b"x")

    with handled(close), pytest.raises(StoreClosed):
        reader.get(timeout=SOON)
    assert contents(store.subscribe("a").get(timeout=0)) == [b"x"]


def test_a_removed_store_ends_the_wait(waiter, start, name):
    """A reader that waits when its store is removed hears it when it next looks, and one that waits later at once."""
    _, reader = waiter()
    waiting = start(reader.get)
    until_armed(reader)
    EventStore.unlink(name)
    for _ in range(2):
        with pytest.raises(StoreClosed):
            waiting.result(SOON)
        waiting = start(reader.get)


def test_an_evicted_reader_ends_its_wait(waiter, start, no_slices):
    """A reader that holds everything and waits for the next event hears at once that it was evicted."""
    store, reader = waiter(capacity=4, lag="evict", evict_after=0.0)
    store.put([b"1", b"2", b"3", b"4"])
    reader.get(timeout=0)
    waiting = start(reader.get)
    until_armed(reader)
    store.put(b"5", timeout=SOON)
    with pytest.raises(SubscriptionLost):
        waiting.result(SOON)


def test_a_wait_ends_at_its_deadline(waiter):
    """A wait that nothing comes for ends with an empty batch, and no waiter is shown."""
    _, reader = waiter()
    for _ in range(3):
        assert not reader.get(timeout=0.02)
        assert not armed(reader)


def test_a_long_wait_shows_that_its_reader_lives(waiter, start, monkeypatch):
    """A reader gives its heartbeat each time that it goes to sleep, and is woken in a later sleep as in the first."""
    monkeypatch.setattr("shmstore.store.subscription.WAIT_SLICE", 0.005)
    store, reader = waiter()
    heartbeat = subscription_word(reader.entry, "heartbeat_ms")
    store.segment.words[heartbeat] = 0
    waiting = start(reader.get)
    for _ in range(3):
        while not store.segment.words[heartbeat]:
            time.sleep(0.001)
        assert abs(store.segment.words[heartbeat] - boot_ms()) < SOON * 1000
        store.segment.words[heartbeat] = 0
    store.put(b"x")
    assert contents(waiting.result(SOON)) == [b"x"]


def test_a_forged_cursor_ends_the_wait(waiter, start, no_slices):
    """A put cursor that cannot be is an error to the reader that waits, not a batch and not a wait without end."""
    store, reader = waiter()
    for forged in (2**62, 100):
        waiting = start(reader.get)
        until_armed(reader)
        store.segment.words[PUT] = forged
        reader._condition.notify()
        with pytest.raises(StoreCorrupt):
            waiting.result(SOON)
        store.segment.words[PUT] = -1


@pytest.mark.parametrize("limit", [None, 1, 3])
@pytest.mark.parametrize("mixed", [False, True])
def test_every_event_wakes_its_reader(make, attach, start, monkeypatch, no_slices, limit, mixed):
    """Producer and reader wait for each other a thousand times, and the one in compiled code and the other not as well."""
    if mixed and not shmstore.memory.mapping.COMPILED:
        pytest.skip("the other way round is the same pair")
    make(capacity=2)
    sides = [attach()]
    if mixed:
        monkeypatch.setattr(shmstore.memory.mapping, "COMPILED", False)
    sides.append(attach())
    store, other = sides if limit is None else reversed(sides)
    reader = other.subscribe("a")

    def put() -> None:
        for i in range(1000):
            store.put(b"%d" % i)

    putting, seen = start(put), []
    while len(seen) < 1000:
        batch = reader.get(limit_events=limit)
        seen += contents(batch)
        reader.ack(batch)
    putting.result(SOON)
    assert seen == [b"%d" % i for i in range(1000)]


def test_limits_that_cannot_be_met_are_refused_after_a_wait_too(waiter):
    """A limit below one is an error, whatever was waited for before."""
    _, reader = waiter()
    for limit in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            reader.get(limit_events=limit)


def test_compiled_code_does_the_usual_wait(waiter, start, monkeypatch, no_slices):
    """Where there is compiled code, a wait after the first, for anything at all, is its own."""
    if not shmstore.memory.mapping.COMPILED:
        pytest.skip("no compiled hot path here")
    store, reader = waiter()
    monkeypatch.setattr(Subscription, "_await", None)
    waiting = start(reader.get)
    until_armed(reader)
    store.put(b"x")
    assert contents(waiting.result(SOON)) == [b"x"]
