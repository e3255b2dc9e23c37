"""A store with a log over reboots, removals and upgrades: which process restores it, and what it has then."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmstore.ring.overflow
import shmstore.store.store
from shmstore import (
    Checkpoint,
    CheckpointFile,
    EventStore,
    LayoutMismatch,
    StoreClosed,
    StoreExists,
    StoreNotFound,
    StoreView,
)
from shmstore.home.home import Home
from shmstore.log import log_set
from shmstore.log.format import BLOCK
from shmstore.memory.layout import header_word
from shmstore.memory.segment import Segment
from shmstore.ring.cursors import FLOOR, LOGGED
from tests.shmstore.samples import ddl, position
from tests.shmstore.store.logged import payload, read_all, reboot, taken


@pytest.fixture(name="name")
def _name(both_ways: str) -> str:
    return both_ways


def test_who_attaches_while_another_puts_the_store_together_and_goes_on_appending(name: str) -> None:
    """After a reboot all start at once: one that comes second finds the store, though the first, the producer, keeps the log's lock."""
    memory = f"/dev/shm/shmstore.{name}"
    with EventStore.create(name, capacity=16) as store:
        store.put(payload(0))
        os.rename(memory, f"{memory}.aside")
        late: list[int] = []
        thread = threading.Thread(target=lambda: late.append(EventStore.attach(name).newest))
        thread.start()
        time.sleep(0.3)  # it waits for the lock
        os.rename(f"{memory}.aside", memory)
        thread.join(3)
        assert late == [0]


def test_everything_is_there_after_a_reboot(name: str) -> None:
    """Events, sequences, the epoch and each subscription at its ack: also one that never acked, and one that no process reads now."""
    with EventStore.create(name, capacity=64) as store:
        epoch = store.epoch
        never, some = store.subscribe("never"), store.subscribe("some")
        for k in range(300):
            store.put(payload(k), timeout=20)
        taken(some, 120, limit_events=10)
        some.close()
        never.close()
    reboot(name)
    with EventStore.attach(name) as store:
        assert (store.epoch, store.oldest, store.newest) == (epoch, 0, 299)
        assert {each.name: each.ack.sequence for each in store.subscriptions()} == {"never": -1, "some": 119}
        assert store.put([payload(300)]) == 300
        with store.subscribe("never") as never, store.subscribe("some") as some:
            assert taken(never, 301) == [payload(k) for k in range(301)]
            assert taken(some, 181) == [payload(k) for k in range(120, 301)]
        assert store.put_cursor.bytes == sum(len(payload(k)) for k in range(301))
        assert store.check() == []


def test_putting_it_together_reads_the_payloads_that_the_ring_gets_and_no_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log holds 6 MB of large events, the ring half of its 64 KB: as much and a block is read, however large the events are."""
    block = 64 << 10
    with EventStore.create(name, capacity=64, memory_unit=1024) as store:
        for k in range(200):
            store.put(bytes([k]) * 30_000, timeout=20)
        store.put([bytes([k]) * 100 for k in range(10)])
    reboot(name)
    looked_at: list[int] = []
    check = log_set.verify_blocks

    def counting(events: Any, records: Any, blocks: Any, low: int, high: int, first: int) -> int:
        found = np.frombuffer(blocks, BLOCK)[low : high + 1]
        looked_at.append(int(found["size"].sum()))
        return check(events, records, blocks, low, high, first)

    monkeypatch.setattr(log_set, "verify_blocks", counting)
    with EventStore.attach(name) as store:
        assert 1000 < sum(looked_at) <= 2 * block
        assert store.check() == []
        with store.subscribe("all", start="earliest") as reader:
            assert taken(reader, 210) == [bytes([k]) * 30_000 for k in range(200)] + [bytes([k]) * 100 for k in range(10)]


def test_a_subscription_is_durable_from_the_start(name: str) -> None:
    """It is there after a reboot though nothing was ever acked, and gone permanently once it was unsubscribed."""
    with EventStore.create(name, capacity=16) as store:
        store.put([payload(k) for k in range(5)])
        store.subscribe("a").close()
        store.subscribe("b", start=3).close()
        store.subscribe("c").close()
        store.unsubscribe("c")
    reboot(name)
    with EventStore.attach(name) as store:
        assert {each.name: each.ack.sequence for each in store.subscriptions()} == {"a": -1, "b": 2}


def test_what_was_cleared_does_not_come_back_with_a_reboot(name: str) -> None:
    """`clear` is as durable as an ack, for subscriptions that no process reads, too."""
    with EventStore.create(name, capacity=16) as store:
        store.put([payload(k) for k in range(5)])
        store.subscribe("a").close()
        store.clear()
    reboot(name)
    with EventStore.attach(name) as store:
        assert {each.name: each.ack.sequence for each in store.subscriptions()} == {"a": 4}


def test_a_store_is_remembered_until_its_log_is_removed(name: str) -> None:
    """`unlink` takes the memory; who attaches gets the store again. With the log it is gone, and the name is free."""
    EventStore.create(name, capacity=16).close()
    EventStore.unlink(name)
    with pytest.raises(StoreExists, match="remembered"):
        EventStore.create(name, capacity=16)
    StoreView.attach(name).close()
    EventStore.unlink(name, log=True)
    with pytest.raises(StoreNotFound):
        EventStore.attach(name)
    EventStore.create(name, capacity=32).close()


def test_a_store_without_a_log_forgets(name: str) -> None:
    """``log=False`` is the ring alone: no home, and a lost segment is a lost store."""
    with EventStore.create(name, capacity=16, log=False) as store:
        assert store.stat().log is None
        store.subscribe("a").close()
    reboot(name)
    with pytest.raises(StoreNotFound):
        EventStore.attach(name)


def test_a_segment_that_is_taken_away_is_noticed(name: str) -> None:
    """A process that waits, and a producer's heartbeat, hear that the memory is gone; the store comes back with everything that a put returned."""
    store = EventStore.create(name, capacity=16)
    reader = store.subscribe("a")
    store.put([payload(k) for k in range(3)])
    reader.ack(reader.get())
    heard = threading.Event()

    def wait() -> None:
        with EventStore.attach(name) as other, other.subscribe("b", start="latest") as waiting:
            attached.set()
            with pytest.raises(StoreClosed, match="removed"):
                read_all(waiting, timeout=20)
            heard.set()

    attached = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    attached.wait(10)
    reboot(name)
    stored = 3
    with suppress(StoreClosed):  # a process has noticed by now
        stored = store.put(b"late") + 1  # to memory that no other process has any more; the log gets it all the same
    with pytest.raises(StoreClosed, match="removed"):
        store.heartbeat()
    with pytest.raises(StoreClosed, match="removed"):
        store.put(b"later")
    with pytest.raises(StoreClosed, match="removed"):
        read_all(reader, timeout=20)
    thread.join(20)
    assert heard.is_set()
    reader.close()
    store.close()
    with EventStore.attach(name) as store:
        assert store.newest == stored - 1
        assert store.peek(stored - 1).raw == (b"late" if stored == 4 else payload(2))
        assert {each.name for each in store.subscriptions()} == {"a", "b"}


def test_a_put_under_way_when_the_segment_is_taken_away_is_in_the_log(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had seen that the store was there: what writes the log does not end before it knows of the events."""
    with EventStore.create(name, capacity=16, checksum=True) as store:
        store.put(b"before")
        admit = shmstore.store.store.admit

        def slowly(*arguments: Any) -> Any:
            reboot(name)
            time.sleep(2.5)  # for longer than it takes to be noticed
            return admit(*arguments)

        monkeypatch.setattr(shmstore.store.store, "admit", slowly)
        assert store.put([b"under way"]) == 1
        monkeypatch.undo()
        with pytest.raises(StoreClosed, match="removed"):
            store.put(b"later")
    with EventStore.attach(name) as store:
        assert store.newest == 1
        assert store.peek(1).raw == b"under way"


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_oversized_put_under_way_when_the_segment_is_taken_away(name: str, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """It raises with nothing stored, or its event is in the log: noticed before or after the last look of the process that writes the payload."""
    wrote, look, looking = shmstore.ring.overflow.write, Segment.look, threading.RLock()

    def look_alone(segment: Segment) -> bool:
        with looking:
            return look(segment)

    monkeypatch.setattr(Segment, "look", look_alone)  # the log's thread looks about once a second: not within what follows
    with EventStore.create(name, capacity=4, memory_unit=4) as store:
        store.put(b"before")

        def noticing(segment: Any, *arguments: Any) -> None:
            with looking:
                reboot(name)
                if when == "after":
                    wrote(segment, *arguments)
            assert not segment.look()
            if when == "before":
                wrote(segment, *arguments)

        monkeypatch.setattr(shmstore.ring.overflow, "write", noticing)
        if when == "before":
            with pytest.raises(StoreClosed, match="was removed"):
                store.put(b"larger than all of the ring")
        else:
            assert store.put(b"larger than all of the ring") == 1
        monkeypatch.undo()
    with EventStore.attach(name) as store:
        assert store.newest == (when == "after")
        assert store.peek(store.newest).raw == (b"larger than all of the ring" if when == "after" else b"before")
    assert not [each for each in os.listdir("/dev/shm") if each.startswith(f"shmstore.{name}@")]


def test_an_oversized_event_whose_file_is_taken_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who cleans up /dev/shm removes the memory and the event's payload before the log has it: the log gets it from the producer."""
    read, removed = shmstore.ring.overflow.read, threading.Event()

    def late(*arguments: Any) -> bytes:
        assert removed.wait(20)
        return read(*arguments)

    monkeypatch.setattr(shmstore.ring.overflow, "read", late)
    with EventStore.create(name, capacity=4, memory_unit=4) as store:
        assert store.put([b"larger than all of the ring"]) == 0
        for each in os.listdir("/dev/shm"):
            if each.startswith(f"shmstore.{name}"):
                os.unlink(f"/dev/shm/{each}")
        removed.set()
    with EventStore.attach(name) as store:
        assert store.newest == 0
        assert store.peek(0).raw == b"larger than all of the ring"
        assert store.put(b"next") == 1
        assert store.segment.unlogged is None


def test_the_bytes_before_an_oversized_event(name: str) -> None:
    """A reader that stands before the very first event, which is larger than the ring, is as many bytes behind after a reboot as before."""
    with EventStore.create(name, capacity=8, memory_unit=4) as store:
        store.subscribe("r").close()
        store.put(bytes(100))
        store.put(b"four")
        behind = [each.lag_bytes for each in store.subscriptions()]
        assert behind == [8 * 4 + 4]
    reboot(name)
    with EventStore.attach(name) as store:
        assert [each.lag_bytes for each in store.subscriptions()] == behind


PRODUCER = """
import os, sys
from shmstore import EventStore
with EventStore.attach(sys.argv[1]) as store:
    k = store.newest + 1
    while True:
        store.put([b"event %d." % (k + i) * (1 + (k + i) % 7) for i in range(3)])
        k += 3
        if k % 300 < 3:
            print(k, flush=True)
"""


def test_a_killed_producers_successor_goes_on_behind_the_log(name: str) -> None:
    """kill -9 while it puts, again and again, with and without the memory: nothing is missing, nothing is there twice."""
    EventStore.create(name, capacity=64).close()
    for turn in range(6):
        with subprocess.Popen([sys.executable, "-c", PRODUCER, name], stdout=subprocess.PIPE, env=dict(os.environ)) as process:
            assert process.stdout is not None
            for _ in range(3):
                process.stdout.readline()
            process.kill()
        if turn % 2:
            reboot(name)
    with EventStore.attach(name) as store, store.subscribe("a") as reader:
        count = store.newest + 1
        assert taken(reader, count) == [payload(k) for k in range(count)]
        assert store.put(payload(count)) == count
        assert store.segment.words[FLOOR] <= store.segment.words[LOGGED]


def test_options_of_a_log_are_checked(name: str) -> None:
    """A log that is too small to be one is refused, and nothing is left behind."""
    with pytest.raises(ValueError, match="16 MiB"):
        EventStore.create(name, log_size=1000)
    with pytest.raises(ValueError, match="log_keep"):
        EventStore.create(name, log_keep=-1)
    with EventStore.create(name, capacity=16) as store:
        assert store.segment.words[header_word("log_size")] == 10 << 30


def test_a_store_in_a_file_is_found_through_its_home(name: str, tmp_path: Path) -> None:
    """The home knows where the memory is: by its name alone the store is found, and restored at the same place."""
    file = tmp_path / "ring"
    with EventStore.create(name, capacity=16, path=file) as store:
        store.put(b"one")
        epoch = store.epoch
    for _ in range(2):
        with EventStore.attach(name) as store:
            assert (store.segment.path, store.epoch, store.newest) == (str(file), epoch, 0)
            assert store.peek(0).raw == b"one"
        file.unlink(missing_ok=True)
    EventStore.attach(name).close()
    EventStore.unlink(name, path=file, log=True)


def test_who_attaches_while_a_store_is_made_waits_for_it(name: str) -> None:
    """A home that is there before its memory is no store to restore: creator and attacher get the same one, every time."""
    for _ in range(20):
        found: list[int] = []

        def attach(found: list[int] = found) -> None:
            while True:
                try:
                    with EventStore.attach(name) as store:
                        found.append(store.epoch)
                        return
                except StoreNotFound:
                    pass

        threads = [threading.Thread(target=attach) for _ in range(3)]
        for thread in threads:
            thread.start()
        with EventStore.create(name, capacity=16) as store:
            for thread in threads:
                thread.join(20)
            assert found == [store.epoch] * 3
        EventStore.unlink(name, log=True)


def test_of_two_who_make_a_store_one_does(name: str) -> None:
    """The other is refused, and takes nothing of the first one's home away."""
    for _ in range(10):
        made: list[EventStore] = []
        refused: list[StoreExists] = []

        def make(made: list[EventStore] = made, refused: list[StoreExists] = refused) -> None:
            try:
                made.append(EventStore.create(name, capacity=16))
            except StoreExists as error:
                refused.append(error)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert (len(made), len(refused)) == (1, 3)
        with made[0] as store:
            store.put(b"x")
            epoch = store.epoch
        reboot(name)
        with EventStore.attach(name) as store:
            assert (store.epoch, store.newest) == (epoch, 0)
        EventStore.unlink(name, log=True)


def test_an_upgrade_goes_on_where_readers_of_the_old_version_were(name: str) -> None:
    """The checkpoint of a reader of a store without a home says where it continues in the new one, which has a log: what it had acked is
    passed over, and from then on its durable ack is a sequence."""
    state = Home.of(name).path
    CheckpointFile(state.parent, name, "a").save(Checkpoint(position(4), 12345, 77))
    with EventStore.create(name, capacity=16) as store:
        for k in range(40):  # the producer began before that, for another reader
            store.put([ddl(k)], timeout=20)
        with store.subscribe("a") as reader:
            got = []
            while batch := reader.get(timeout=0):
                got += batch.events
                reader.ack(batch)
            assert got == [ddl(k) for k in range(5, 40)]
    reboot(name)
    with EventStore.attach(name) as store:
        assert {each.name: each.ack.sequence for each in store.subscriptions()} == {"a": 39}


def test_a_home_that_an_earlier_version_wrote_is_refused_and_can_be_removed(name: str, state: Path) -> None:
    """Its events have another format: the message says what to do, nothing of the home is changed until then, and that works.

    The archive is a home of 300 events as the first version with a log left it.
    """
    with tarfile.open(Path(__file__).parent / "homes" / "format-1-without-mark.tar.xz") as archive:
        archive.extractall(state, filter="data")
    home = (state / "before").rename(state / name)
    identity = home / "log" / "store.json"
    identity.write_text(identity.read_text().replace('"before"', f'"{name}"'))
    before = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    with pytest.raises(LayoutMismatch, match=rf"format 1, this shmstore reads format 2.*shmstore rm {name} --log"):
        EventStore.attach(name)
    with pytest.raises(StoreExists):
        EventStore.create(name)
    kept = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    assert {file: kept.get(file) for file in before} == before
    EventStore.unlink(name, log=True)
    assert not home.exists()
    EventStore.create(name, capacity=16).close()


def test_a_store_of_the_last_version_is_refused_and_can_be_removed(name: str) -> None:
    """A segment of layout 3, which the version before wrote, is not read; the message says what to do, and that works."""
    path = f"/dev/shm/shmstore.{name}"
    with open(path, "wb") as file:
        file.write(b"SHMSTORE" + (3).to_bytes(8, "little") + bytes(1 << 16))
    with pytest.raises(LayoutMismatch, match=r"layout version 3.*remove it"):
        EventStore.attach(name)
    EventStore.unlink(name)
    EventStore.create(name, capacity=16).close()


def test_a_store_that_is_removed_stays_removed(name: str) -> None:
    """Those who attach again and again meanwhile put nothing together again: neither memory nor home is left."""
    over = threading.Event()
    errors: list[BaseException] = []

    def attach() -> None:
        while not over.is_set():
            try:
                EventStore.attach(name).close()
            except (StoreNotFound, StoreClosed):
                pass
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=attach) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with EventStore.create(name, capacity=16) as store:
            store.put(b"x")
        EventStore.unlink(name, log=True)
        assert name not in EventStore.names()
        assert not Home.of(name).path.exists()
    over.set()
    for thread in threads:
        thread.join(20)
    assert errors == []
