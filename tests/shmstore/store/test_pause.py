"""A subscription that is paused: its reader waits, whatever comes, until it is resumed; also after every restart."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from shmstore import EventStore, Subscription, SubscriptionNotFound
from shmstore.home import pauses


@pytest.mark.parametrize("log", [True, False])
def test_a_paused_reader_is_given_nothing(store_name: str, log: bool) -> None:
    """Neither what waits nor what comes; an ack and a rollback count all the same. Resumed, it continues where it was."""
    with EventStore.create(store_name, log=log, log_size=16 << 20, capacity=64) as store, store.subscribe("r") as reader:
        store.put(b"a")
        store.put(b"b")
        first = reader.get(1, timeout=1)
        store.pause("r", "test")
        assert len(reader.get(timeout=0)) == len(reader.get(1, timeout=0.01)) == len(reader.get(timeout=0.01, min_events=1)) == 0
        assert len(reader.get(limit_bytes=10, timeout=0)) == 0
        store.put(b"c")
        assert len(reader.get(timeout=0, min_events=2)) == 0
        reader.ack(first)
        assert (reader.paused, store.stat().subscriptions[0].presence) == (True, "paused")
        assert reader.ack_cursor.sequence == 0
        store.resume("r")
        rest = [*reader.get(timeout=1).payloads(), *reader.get(timeout=0).payloads()]
        assert [bytes(each) for each in rest] == [b"b", b"c"]
        reader.rollback()
        store.pause("r")
        assert not reader.get(timeout=0)
        store.resume("r")
        assert len(reader.get(timeout=1)) == 2


@pytest.mark.parametrize("spin", [0.0, 0.001])
def test_a_reader_that_waits_is_paused_and_resumed(store_name: str, spin: float) -> None:
    """A get that waits while events come is not given them before the resume, which ends its wait at once."""
    given: list[bytes] = []

    def read(reader: Subscription) -> None:
        given.extend(bytes(each) for each in reader.get(timeout=60).payloads())

    with (
        EventStore.create(store_name, log_size=16 << 20) as store,
        EventStore.attach(store_name) as other,
        other.subscribe("r") as reader,
    ):
        reader.spin = spin
        thread = threading.Thread(target=read, args=(reader,))
        thread.start()
        store.pause("r")
        for _ in range(50):
            store.put(b"x")
        thread.join(0.3)
        assert thread.is_alive()
        assert not given
        store.resume("r")
        thread.join(30)
        assert len(given) == 50


def test_an_interrupt_ends_the_wait_of_a_paused_reader(store_name: str) -> None:
    """As it does any other's."""
    with EventStore.create(store_name, log_size=16 << 20) as store, store.subscribe("r") as reader:
        store.pause("r")
        store.put(b"a")
        reader.interrupt()
        assert not reader.get(timeout=60)


@pytest.mark.parametrize("log", [True, False])
def test_a_pause_outlives_readers_and_the_memory(store_name: str, log: bool, state: Path) -> None:
    """The next owner is paused, in the same store and in one that is restored, or made again; a new reader of that name is not, once it was
    forgotten."""
    with EventStore.create(store_name, log=log, log_size=16 << 20) as store:
        store.subscribe("r").close()
        store.pause("r", "me")
        assert pauses.kept(store.home, "r") is not None
        store.put(b"a")
        with store.subscribe("r") as reader:
            assert not reader.get(timeout=0)
    os.unlink(f"/dev/shm/shmstore.{store_name}")
    with EventStore.attach(store_name) if log else EventStore.create(store_name, log=False) as store:
        if log:
            assert store.stat().subscriptions[0].paused
        with store.subscribe("r") as reader:
            store.put(b"b")
            assert not reader.get(timeout=0)
        store.unsubscribe("r")
        assert pauses.kept(store.home, "r") is None
        with store.subscribe("r", start="latest") as reader:
            store.put(b"c")
            assert len(reader.get(timeout=1)) == 1


def test_what_is_not_there_is_not_paused(store_name: str) -> None:
    """The error names those that are."""
    with EventStore.create(store_name, log_size=16 << 20) as store:
        store.subscribe("r").close()
        for act in (store.pause, store.resume):
            with pytest.raises(SubscriptionNotFound, match="it has r"):
                act("q")
        assert pauses.kept(store.home, "q") is None


def test_a_pause_that_cannot_be_read_pauses(store_name: str) -> None:
    """It is there because a pause was asked for."""
    with EventStore.create(store_name, log_size=16 << 20) as store:
        pauses.path_of(store.home, "r").write_text("{")
        pauses.path_of(store.home).write_text("[]")
        assert pauses.kept(store.home) == pauses.Pause(0, "")
        with store.subscribe("r") as reader:
            assert reader.paused
            store.resume("r")
            assert not reader.paused
        assert pauses.forget(store.home)
        assert not pauses.forget(store.home)


def test_a_busy_store_pauses_at_once(store_name: str) -> None:
    """A reader that takes one event at a time out of many that it has seen gets none more."""
    with EventStore.create(store_name, log_size=16 << 20) as store, store.subscribe("r") as reader:
        for _ in range(20):
            store.put(b"x")
        assert len(reader.get(1)) == 1
        store.pause("r")
        assert not reader.get(1, timeout=0)
