"""Fixtures of the store's tests: a fresh name that must leave nothing behind, threads, waits without a safety net."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import shmstore.memory.mapping
from shmstore import EventStore, StoreNotFound
from tests.shmstore.samples import leftovers

COMPILED = shmstore.memory.mapping.COMPILED
_numbers = itertools.count(1)


@pytest.fixture
def name() -> Iterator[str]:
    """A store name that no other test uses. What the test leaves under it is removed; a removed store must leave nothing."""
    chosen = f"proof-{os.getpid()}-{next(_numbers)}"
    yield chosen
    with suppress(StoreNotFound):
        EventStore.unlink(chosen)
    assert leftovers(chosen) == []


@pytest.fixture
def make(name: str) -> Iterator[Callable[..., EventStore]]:
    """Create the store of this test; it is closed afterwards."""
    stores = []

    def create(**options: Any) -> EventStore:
        store = EventStore.create(name, **{"capacity": 8, "memory_unit": 64, **options}, log=False)
        stores.append(store)
        return store

    yield create
    for store in stores:
        store.close()


@pytest.fixture
def attach(name: str) -> Iterator[Callable[[], EventStore]]:
    """Attach to the store of this test once more; it is closed afterwards."""
    stores = []

    def again() -> EventStore:
        stores.append(EventStore.attach(name))
        return stores[-1]

    yield again
    for store in stores:
        store.close()


@pytest.fixture
def pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference in Python, without the compiled hot path."""
    monkeypatch.setattr("shmstore.memory.mapping.COMPILED", False)


@pytest.fixture(params=["compiled", "pure"])
def either_way(request: pytest.FixtureRequest) -> None:
    """The test runs once with the compiled hot path, where there is one, and once with the reference in Python."""
    if request.param == "pure":
        request.getfixturevalue("pure")
    elif not COMPILED:
        pytest.skip("no compiled hot path here")


@pytest.fixture
def start() -> Iterator[Callable[..., Future[Any]]]:
    """Run a call in a thread of its own."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        yield pool.submit


@pytest.fixture
def interrupted() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Run a call that waits, once for Ctrl-C and once for SIGTERM: each must end it, by what the signal's handler raises."""

    def handler(signum: int, frame: object) -> None:
        raise SystemExit(143) if signum == signal.SIGTERM else KeyboardInterrupt

    def called(call: Callable[[], object], timer: threading.Timer) -> None:
        timer.start()
        call()

    def interrupt(call: Callable[[], object]) -> None:
        for number, error in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
            timer = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, number))
            with pytest.raises(error):
                called(call, timer)
            timer.join()

    old = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    yield interrupt
    for number, before in old.items():
        signal.signal(number, before)


@pytest.fixture
def no_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits look again only when they are woken: a lost wake-up is a test that fails, not one that is slow."""
    monkeypatch.setattr("shmstore.store.subscription.WAIT_SLICE", 120.0)
    monkeypatch.setattr("shmstore.store.backpressure.WAIT_SLICE", 120.0)
