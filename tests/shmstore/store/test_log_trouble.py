"""A store with a log whose disk refuses, loses or forgets."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import shmstore.memory.mapping
from shmstore import (
    CheckpointFile,
    EventStore,
    StoreCorrupt,
    StoreFull,
    StoreView,
)
from shmstore.home.home import Home
from shmstore.ring.cursors import ACK_OF, ENTRIES, GET_OF, PUT, STATE_OF
from tests.shmstore.store.logged import payload, reboot, taken


@pytest.fixture(name="name")
def _name(both_ways: str) -> str:
    return both_ways


def test_no_durable_ack_is_ahead_of_the_disk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is synced no ack becomes durable; what was acked is given again after a crash of the host, not lost."""
    with EventStore.create(name, capacity=64) as store:
        monkeypatch.setattr(shmstore.log.keeper.Keeper, "_sync", lambda self, logged: None)
        reader = store.subscribe("a", checkpoint_interval=0)
        store.put([payload(k) for k in range(10)])
        reader.ack(reader.get())
        saved = CheckpointFile(Path(store.segment.home).parent, name, "a").load()
        assert saved is not None
        assert saved.sequence == -1
        monkeypatch.undo()
        assert store.sync() == 9
        reader.close()
        saved = CheckpointFile(Path(store.segment.home).parent, name, "a").load()
        assert saved is not None
        assert saved.sequence == 9


def test_a_disk_that_refuses_stops_the_producer_and_lets_it_go_on(name: str) -> None:
    """What the disk says is in the message, with the folder; when it takes bytes again the producer continues, and nothing is missing."""
    script = f"""
import resource, signal, sys, time
from shmstore import EventStore, StoreFull
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with EventStore.create({name!r}, capacity=64, log_size=16 << 20) as store:
    store.put(b"x" * 100)
    store.sync()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        while True:
            store.put([b"y" * 100] * 10, timeout=3)
    except StoreFull as error:
        print(error)
        assert "cannot be written" in str(error) and "/log" in str(error), error
    print(store.stat().log.trouble)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.put(b"z" * 100, timeout=20)
    store.sync(timeout=20)
    newest = store.newest
    print(newest)
with EventStore.attach({name!r}) as store:
    assert store.newest == newest and store.stat().log.written == newest
    assert store.stat().log.trouble == ""
"""
    if not shmstore.memory.mapping.COMPILED:
        script = "import os; os.environ['SHMSTORE_PURE'] = '1'\n" + script
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "File too large" in done.stdout


def test_a_log_that_lost_what_was_on_disk_says_so(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Damage in the newest files, of which nothing says that they were on disk, ends the log there; the store continues, and says what no
    crash could have taken."""
    with EventStore.create(name) as store, store.subscribe("a") as reader:
        home = Path(store.segment.home)
        for k in range(3):
            store.put(b"%d" % k)
            store.sync()  # a group of its own
        reader.ack(reader.get())
    reboot(name)
    with open(next((home / "log").glob("0*.events")), "r+b") as file:
        file.seek(1)
        file.write(b"?")
    (home / "log" / "synced").unlink()
    with EventStore.attach(name) as store:
        assert store.newest == 0
        assert store.subscriptions()[0].ack.sequence == 0
    assert "ends at event 0, and subscription 'a' had acked up to 2" in caplog.text


@pytest.mark.parametrize("put", [0, 5, 15])
def test_a_ring_in_a_file_is_not_believed_after_a_crash_of_the_host(name: str, tmp_path: Path, put: int) -> None:
    """Its pages reach the disk in any order; what it says is made again from the log, and no reader has acked what is missing."""
    file = tmp_path / "ring"
    with EventStore.create(name, capacity=16, path=file) as store, store.subscribe("a") as reader:
        store.put([payload(k) for k in range(8)])
        store.put([payload(k) for k in range(8, 12)])
        reader.ack(reader.get(limit_events=4))
        epoch = store.epoch
    with EventStore.attach(name) as store:  # as the file may be found: cursors of one moment, payloads of another
        words, views = store.segment.words, store.segment.views
        words[PUT] = put
        entry = next(e for e in range(1, words[ENTRIES]) if words[STATE_OF[e]])
        words[ACK_OF[entry]] = words[GET_OF[entry]] = put
        views.arena[: views.arena_size] = bytes(views.arena_size)
    with EventStore.attach(name) as store:
        assert store.newest == put  # of this boot: it stays as it is
    os.utime(file, (1, 1))
    with EventStore.attach(name) as store, store.subscribe("a") as reader:
        assert (store.epoch, store.newest, store.segment.path) == (epoch, 11, str(file))
        assert [bytes(store.peek(k, limit_events=1).raw) for k in range(12)] == [payload(k) for k in range(12)]
        assert reader.get().first == 4
        assert store.put(payload(12)) == 12
    assert StoreView.attach(name).newest == 12
    EventStore.unlink(name, path=file, log=True)


def fill(store: EventStore) -> None:
    for _ in range(40):
        store.put(b"more", timeout=1)


def test_a_sync_that_fails_is_not_taken_for_one_that_did_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error of the device nothing counts as on disk any more, whatever a later sync says, and the producer stops and says so."""
    with EventStore.create(name, capacity=16) as store:
        store.put(b"one")
        assert store.sync() == 0

        failed = threading.Event()

        def broken(fd: int) -> None:
            failed.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fdatasync", broken)
        store.put(b"two")
        assert store.sync(timeout=0.5) == 0
        assert failed.wait(20)
        monkeypatch.undo()
        assert store.sync(timeout=0.5) == 0
        with pytest.raises(StoreFull, match=r"Input/output error; see what the kernel says"):
            fill(store)
        monkeypatch.setattr(shmstore.store.store, "FLUSHING", 0.1)
    with EventStore.attach(name) as store:
        store.claim()
        assert store.sync() == store.newest


def test_bit_rot_in_the_newest_file_is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """After a reboot readers get what comes before and behind it, an error with the events that are lost between, and the store continues."""
    with EventStore.create(name, capacity=16) as store:
        store.subscribe("r").close()
        for k in range(6):  # a block each
            store.put(payload(k))
            store.sync()
        home = store.segment.home
    reboot(name)
    events = Home(home).log / f"{0:020d}.events"
    content = events.read_bytes()
    at = content.index(payload(3))
    events.write_bytes(content[:at] + b"?" + content[at + 1 :])
    with EventStore.attach(name) as store:
        assert store.newest == 5
        assert "events 3 to 3 were on disk and cannot be read; what follows them is kept" in caplog.text
        assert store.put(payload(6)) == 6
        with store.subscribe("r") as reader:
            assert taken(reader, 3) == [payload(k) for k in range(3)]
            with pytest.raises(StoreCorrupt, match=r"events 3 to 3 of the log are lost.*`shmstore seek` to 4"):
                reader.get(timeout=0)
            reader.seek(4)
            assert taken(reader, 3) == [payload(k) for k in range(4, 7)]
        assert store.stat().log is not None
        assert store.check() == []
    caplog.clear()
    reboot(name)
    content = events.read_bytes()
    at = content.index(payload(6))
    events.write_bytes(content[:at] + b"?" + content[at + 1 :])
    with EventStore.attach(name) as store:
        assert store.newest == 5
        assert "events 6 to 6, with which it ended, were on disk and cannot be read" in caplog.text
        assert store.put(b"again") == 6
        with store.subscribe("r") as reader:
            assert taken(reader, 0) == []


def test_a_log_without_a_mark(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A log as version 0.1.0 wrote it at first has none: it is read and gone on with; damage in the newest file ends it, as it did."""
    with EventStore.create(name, capacity=16) as store:
        for k in range(4):
            store.put(payload(k))
            store.sync()
        home = store.segment.home
    for lost in (False, True):
        reboot(name)
        (Home(home).log / "synced").unlink()
        if lost:
            events = Home(home).log / f"{0:020d}.events"
            content = events.read_bytes()
            at = content.index(payload(2))
            events.write_bytes(content[:at] + b"?" + content[at + 1 :])
        with EventStore.attach(name) as store:
            assert store.newest == (1 if lost else 3)
            assert store.put(b"next") == store.newest
            assert store.sync() == store.newest
        assert (Home(home).log / "synced").exists()
        if not lost:
            reboot(name)
            EventStore.attach(name).close()
