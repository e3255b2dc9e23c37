"""shmstore/home: whose write into a home counts. Each is by the present owner, of the present store, and never behind what the home has."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from shmstore import Checkpoint, CheckpointFile, EventStore, StoreClosed, StoreError, SubscriptionLost
from shmstore.home import home as homes
from shmstore.home.acks import NOWHERE
from shmstore.home.definitions import DefinitionsFile
from shmstore.home.home import Home
from shmstore.home.snapshot_progress import Progress
from shmstore.home.snapshots import ProgressFile
from tests.shmstore.samples import begin, end

pytestmark = pytest.mark.usefixtures("either_way")


@pytest.fixture(name="name")
def _name(store_name: str, state: Path) -> str:
    """A store whose home is in a state folder of the test's own."""
    return store_name


def acked(name: str, subscription: str = "r") -> int:
    saved = CheckpointFile(None, name, subscription).load()
    assert saved is not None
    return saved.sequence


def take_memory_away(name: str) -> None:
    """As logind does at the end of a session, or a reboot."""
    os.unlink(f"/dev/shm/shmstore.{name}")


def filled(name: str, events: int = 10) -> EventStore:
    store = EventStore.create(name, capacity=64, log_size=16 << 20)
    store.put([b"%d" % i for i in range(events)])
    store.sync()
    return store


def test_the_reader_of_a_store_that_was_made_again(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """It writes nothing into the new store's home, and hears why; the new store's subscription is there after a reboot."""
    store, reading = filled(name), EventStore.attach(name)
    old = reading.subscribe("r")
    batch = old.get(limit_events=2)
    store.close()
    EventStore.unlink(name, log=True)
    store, other = filled(name), EventStore.attach(name)
    with other.subscribe("r") as new:
        new.ack(new.get(limit_events=3))
    before = CheckpointFile(None, name, "r").path.read_bytes()
    with pytest.raises(StoreClosed, match=r"is no longer in .*log|no longer belongs to this reader"):
        old.ack(batch)
    with caplog.at_level(logging.WARNING, "shmstore"):
        old.close()
    assert "no longer belongs to this reader" in caplog.text
    assert CheckpointFile(None, name, "r").path.read_bytes() == before
    for each in (other, store):
        each.close()
    take_memory_away(name)
    with EventStore.attach(name) as store:
        assert [(each.name, each.ack.sequence) for each in store.subscriptions()] == [("r", 2)]
    EventStore.unlink(name, log=True)
    reading.close()
    assert not Home.of(name).path.exists()


def test_the_reader_of_a_store_that_was_removed(name: str) -> None:
    """It makes no home of it again."""
    with filled(name) as store:
        reading = EventStore.attach(name)
        old = reading.subscribe("r")
        batch = old.get(limit_events=2)
        store.close()
    EventStore.unlink(name, log=True)
    with pytest.raises(StoreClosed):
        old.ack(batch)
    reading.close()
    assert not Home.of(name).path.exists()


def test_an_owner_before_the_present_one(name: str) -> None:
    """One whose memory was taken away may write its ack until the store is there again; after that the new owner's counts, forward and back."""
    store, reading = filled(name), EventStore.attach(name)
    old = reading.subscribe("r", checkpoint_interval=3600)
    old._saved_at = time.monotonic()
    batch = old.get(limit_events=4)
    old.ack(1)
    old.save_checkpoint()
    store.close()
    take_memory_away(name)
    old.ack(2)
    old.save_checkpoint()
    assert acked(name) == 2  # no other reader can own it yet
    other = EventStore.attach(name)
    with other.subscribe("r") as new:
        assert new.ack_cursor.sequence == 2
        new.ack(new.get(limit_events=5))
        new.save_checkpoint()
        assert acked(name) == 7
        old.ack(batch)  # not due
        with pytest.raises(StoreClosed, match="no longer belongs to this reader"):
            old.save_checkpoint()
        new.seek(1)
        assert acked(name) == 0
        old.close()
        assert acked(name) == 0
    reading.close()
    other.close()
    take_memory_away(name)
    with EventStore.attach(name) as store:
        assert [(each.name, each.ack.sequence) for each in store.subscriptions()] == [("r", 0)]
    EventStore.unlink(name, log=True)


def test_two_segments_of_one_home(name: str) -> None:
    """Where another container has the store in memory, too, the later ack stays."""
    with filled(name) as store, store.subscribe("r") as reader:
        reader.ack(reader.get(limit_events=3))
        reader.save_checkpoint()
        file = CheckpointFile(None, name, "r")
        ahead = Checkpoint(NOWHERE, store.epoch, 6)
        file.save(ahead)
        reader.ack(reader.get(limit_events=2))
        reader.save_checkpoint()
        assert file.load() == ahead
        reader.ack(reader.get(limit_events=4))
        reader.save_checkpoint()
        assert file.load() == ahead._replace(sequence=8)
    EventStore.unlink(name, log=True)


def test_an_evicted_reader_does_not_undo_that(name: str) -> None:
    """What says that it was evicted stays on disk, whatever it acks after, so a reboot does not let it continue as if nothing were missing."""
    with filled(name) as store:
        reader = store.subscribe("r")
        reader.ack(reader.get(limit_events=3))
        reader.save_checkpoint()
        batch = reader.get(limit_events=2)
        assert store._table.let_go(6, evict=True) == ["r"]
        with suppress(SubscriptionLost):
            reader.ack(batch)
        with pytest.raises(SubscriptionLost):
            reader.save_checkpoint()
        reader.close()
        saved = CheckpointFile(None, name, "r").load()
        assert saved is not None
        assert saved.lost
    EventStore.unlink(name, log=True)


def test_an_eviction_that_comes_late_to_the_disk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the reader was moved to what is kept between its eviction and that being written down, it is not marked after all."""
    with filled(name) as store:
        store.subscribe("r").close()
        write = CheckpointFile.save

        def late(self, checkpoint, **options):
            if checkpoint.lost:
                monkeypatch.setattr(CheckpointFile, "save", write)
                store.seek("r", 8)
            return write(self, checkpoint, **options)

        monkeypatch.setattr(CheckpointFile, "save", late)
        assert store._table.let_go(6, evict=True) == ["r"]
        saved = CheckpointFile(None, name, "r").load()
        assert saved == Checkpoint(NOWHERE, store.epoch, 7)
    EventStore.unlink(name, log=True)


def test_a_name_that_is_forgotten_and_taken_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription that is made while the one of its name is being forgotten is durable: its file is not the one that goes."""
    with filled(name) as store:
        store.subscribe("r").close()
        made = threading.Event()
        remove = Home.remove

        def slow(self, *args, **options):
            remove(self, *args, **options)
            thread.start()
            made.wait(0.3)

        def subscribe() -> None:
            with EventStore.attach(name) as other:
                other.subscribe("r", start="latest").close()
            made.set()

        thread = threading.Thread(target=subscribe)
        monkeypatch.setattr(
            Home, "remove", lambda *args, **options: (monkeypatch.setattr(Home, "remove", remove), slow(*args, **options))
        )
        store.unsubscribe("r")
        thread.join()
        assert acked(name) == 9
    EventStore.unlink(name, log=True)


def test_a_reader_without_a_log(name: str, state: Path) -> None:
    """The reader of a store without a log, which was made again, leaves what the new store's reader has written."""
    file = CheckpointFile(None, name, "r")
    store = EventStore.create(name, log=False)
    old = store.subscribe("r", checkpoint=file, checkpoint_interval=3600)
    old._saved_at = time.monotonic()
    store.put([begin(0), end(1)])
    old.ack(old.get())
    EventStore.unlink(name)
    with EventStore.create(name, log=False) as second, second.subscribe("r", checkpoint=file, checkpoint_interval=0) as new:
        second.put([begin(8), end(9)])
        new.ack(new.get())
        before = file.load()
        old.close()
        assert file.load() == before
        assert before is not None
        assert before.epoch == second.epoch
    EventStore.unlink(name)
    store.close()


def test_a_producer_before_the_present_one(name: str) -> None:
    """It replaces neither the definitions of tables nor the progress of snapshots of the store that was made again."""
    store = filled(name)
    definitions, progress = DefinitionsFile(store.home, "", store.may_produce), ProgressFile(store.home, store.may_produce)
    definitions.replace([])
    progress.save(Progress(1))
    EventStore.unlink(name, log=True)
    with filled(name) as second:
        ProgressFile(second.home, second.may_produce).save(Progress(2))
        for write in (lambda: definitions.replace([]), lambda: definitions.append([]), lambda: progress.save(Progress(3))):
            with pytest.raises(StoreClosed):
                write()
        found = progress.load()
        assert found is not None
        assert found.epoch == 2
        assert not definitions.path.exists()
    EventStore.unlink(name, log=True)
    store.close()


def test_a_writer_that_is_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who would write the same file hears after some seconds that another is at it, and other files are written meanwhile."""
    monkeypatch.setattr(homes, "PATIENCE", 0.2)
    with filled(name) as store:
        file, other = CheckpointFile.of(store.home, "r"), CheckpointFile.of(store.home, "s")
        with store.home.writing(file.path, "checkpoint"):
            with pytest.raises(StoreError, match=r"written by another process.*fuser"):
                file.save(Checkpoint(NOWHERE, store.epoch, 1))
            with pytest.raises(StoreError, match="written by another process"), store.home.locked():
                pass  # as removal does
            other.save(Checkpoint(NOWHERE, store.epoch, 1))
        file.save(Checkpoint(NOWHERE, store.epoch, 1))
    EventStore.unlink(name, log=True)


def test_an_ack_asks_the_disk_once(name: str) -> None:
    """The log is synced before the ack is written, and once."""
    with filled(name) as store, store.subscribe("r") as reader:
        asked = list[int]()
        sync = store.sync

        def counted(sequence: int | None = None, timeout: float = 10.0) -> int:
            asked.append(-1 if sequence is None else sequence)
            return sync(sequence, timeout)

        store.sync = counted  # type: ignore[method-assign]
        reader.ack(reader.get(limit_events=3))
        reader.save_checkpoint()
        assert (asked, acked(name)) == ([2], 2)
        reader.save_checkpoint()
        assert asked == [2]
    EventStore.unlink(name, log=True)


def test_what_is_in_the_file(name: str) -> None:
    """An ack has a format: another one concerns its subscription alone, which says so."""
    with filled(name) as store:
        store.subscribe("r").close()
        path = CheckpointFile(None, name, "r").path
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3}))
        with pytest.raises(StoreError, match="format 3, this shmstore reads 2"):
            store.subscribe("r")
        store.subscribe("other").close()
    EventStore.unlink(name, log=True)


class Stopped:
    """A thread that does `work` and stops at the k-th line of the home's modules, until it may continue; `lines` is how many it came by."""

    def __init__(self, work: Callable[[], object], k: int) -> None:
        self.lines, self.error = 0, None
        self.there, self.go = threading.Event(), threading.Event()
        self._work, self._k = work, k
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        sys.settrace(lambda frame, event, arg: self._line if frame.f_code.co_filename.endswith(MODULES) else None)
        try:
            self._work()
        except StoreError as error:
            self.error = error
        finally:
            sys.settrace(None)
            self.there.set()

    def _line(self, frame, event, arg):
        if event == "line":
            self.lines += 1
            if self.lines == self._k:
                self.there.set()
                self.go.wait(30)
        return self._line

    def end(self) -> None:
        self.go.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


MODULES = ("home/acks.py", "home/home.py", "shmstore/atomic_file.py", "store/subscription.py")


def test_the_next_owner_comes_at_any_line(name: str) -> None:
    """Wherever an owner whose memory was taken away is in its last write, when the store is restored and read on by another: what that
    one writes stays, forward and back, and the first either wrote before it, or hears that it may not."""
    k, seen = 1, set()
    while True:
        store, reading = filled(name), EventStore.attach(name)
        old = reading.subscribe("r", checkpoint_interval=3600)
        old._saved_at = time.monotonic()
        old.ack(old.get(limit_events=2))
        old.save_checkpoint()
        old.ack(old.get(limit_events=2))
        store.close()
        take_memory_away(name)
        first = Stopped(old.save_checkpoint, k)
        assert first.there.wait(30)
        began = list[int]()

        def read_on(began: list[int] = began) -> None:
            with EventStore.attach(name) as other, other.subscribe("r") as new:
                began.append(new.ack_cursor.sequence)
                new.ack(new.get(limit_events=4))
                new.save_checkpoint()
                new.seek(1)

        second = threading.Thread(target=read_on)
        second.start()
        second.join(0.1)  # or it waits for the first
        first.end()
        second.join(30)
        assert acked(name) == 0
        assert began == [1 if first.error else 3]
        seen.add(first.error is None)
        lines = first.lines
        reading.close()
        with suppress(FileNotFoundError):
            take_memory_away(name)
        with EventStore.attach(name) as again:
            assert [(each.name, each.ack.sequence) for each in again.subscriptions()] == [("r", 0)]
        EventStore.unlink(name, log=True)
        if lines < k:
            break
        k += 3
    assert seen == {True, False}
    assert k > 30
