"""A reader that begins while its store is removed: at each line between the first look at the store and the reader that is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from shmstore import EventStore, StoreClosed, StoreNotFound
from shmstore.consumer import Consumer, consumer
from shmstore.consumer.remote import store as remote_store
from shmstore.store import store as event_store
from shmstore.store import subscription, subscription_table
from tests.consumer.conftest import Reach
from tests.consumer.test_consumer import transaction
from tests.each_line import Line, traced

pytestmark = pytest.mark.usefixtures("state")
STORE = tuple(str(module.__file__) for module in (event_store, subscription, subscription_table))


def fill(name: str, *, log: bool, count: int = 3) -> None:
    with EventStore.create(name, capacity=64, log=log) as store:
        for number in range(count):
            store.put(transaction(number))


def take_away(name: str) -> None:
    """Take the memory away, and let a process notice it, as one does about once a second."""
    with EventStore.attach(name) as store:
        os.unlink(store.segment.where)
        store.segment.look()


def at_each_line(places: tuple[str, ...], name: str, happen: Callable[[], None], *, log: bool) -> Iterator[Callable[[], Any]]:
    """Give a block that is traced, for each line that it runs, and once more without anything that happens."""
    at, lines = 0, [("", 0)]
    while at <= len(lines):
        fill(name, log=log)
        lines = list[Line]()
        yield lambda at=at, lines=lines: traced(places, lines, at, happen)
        with suppress(StoreNotFound):
            EventStore.unlink(name, log=True)
        at += 1
    assert at > 10


def events_of(reader: Consumer) -> list[int]:
    return [event.time_ms for event in reader.events() if event.rows]


def test_a_store_that_is_restored(store_name: str) -> None:
    """Its reader begins in the store as it was restored from its home."""
    for block in at_each_line((consumer.__file__, *STORE), store_name, lambda: take_away(store_name), log=True):
        with block():
            reader = Consumer(store_name, "audit", timeout=0)
        with reader:
            assert events_of(reader) == [0, 1, 2]


def test_a_store_that_is_removed(store_name: str) -> None:
    """The reader does not begin, and the error is that of a store which was never there; else the loop finds out."""
    outcomes = set[str]()
    for block in at_each_line(
        (consumer.__file__, *STORE), store_name, lambda: EventStore.unlink(store_name, log=True), log=False
    ):
        try:
            with block():
                reader = Consumer(store_name, "audit", timeout=0)
        except StoreNotFound:
            outcomes.add("not found")
            continue
        outcomes.add("begun")
        with reader, suppress(StoreClosed):
            list(reader)
    assert outcomes == {"not found", "begun"}


def test_a_store_that_is_made_again(store_name: str, monkeypatch: pytest.MonkeyPatch, reach: Reach) -> None:
    """What the reader says of its store is what it reads from, here and on another host: the old one, which is gone, or the new one."""
    place = reach(store_name)
    places = (
        consumer.__file__,
        remote_store.__file__,
        str(event_store.__file__),
    )  # where no lock is held that this thread would wait for

    def make_again() -> None:
        EventStore.unlink(store_name, log=True)
        fill(store_name, log=True, count=5)

    monkeypatch.setattr(consumer, "RETURN_SECONDS", 0.05)
    found = set[str]()
    for block in at_each_line(places, store_name, make_again, log=True):
        with block():
            reader = Consumer(place, "audit", timeout=0)
        with EventStore.attach(store_name) as now:
            epoch, count = now.epoch, (now.newest + 1) // 3
        with suppress(StoreClosed), reader:
            if reader.store.epoch != epoch:
                found.add("old")
                with pytest.raises(StoreClosed):
                    list(reader)
            else:
                found.add("new")
                assert events_of(reader) == list(range(count))
    assert "new" in found
