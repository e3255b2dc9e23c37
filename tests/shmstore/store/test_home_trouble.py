"""A home that cannot be used: a full or read-only disk, another format, another user, two producers, and one that is removed in use."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import traceback
from pathlib import Path

import pytest

import shmstore.memory.mapping
from shmstore import EventStore, LayoutMismatch, ProducerInUse, StoreError, StoreFull
from shmstore.home.append_lock import AppendLock
from shmstore.home.home import Home
from shmstore.store import restore
from tests.shmstore.test_resources import alone, run_alone

COMPILED = shmstore.memory.mapping.COMPILED


@pytest.fixture(autouse=True, params=["compiled", "python"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(shmstore.memory.mapping, "COMPILED", False)
    elif not COMPILED:
        pytest.skip("no compiled hot path here")


@pytest.fixture(name="name")
def _name(store_name: str, state: Path) -> str:
    """A store whose home is in a state folder of the test's own."""
    return store_name


def reboot(name: str) -> None:
    os.unlink(f"/dev/shm/shmstore.{name}")


@alone
def test_a_full_disk_stops_the_producer_until_there_is_space(tmp_path: Path) -> None:
    """The message names the folder; with space again it continues automatically, and nothing is missing or there twice, after a reboot either."""
    code = f"""
import time
os.environ["SHMSTORE_STATE"] = state = {str(tmp_path)!r}
with open(state + "/rest", "wb") as rest:
    rest.write(bytes(2 << 20))
store = EventStore.create("s", capacity=64, memory_unit=4096, log_size=16 << 20)
put = []
try:
    while True:
        event = os.urandom(5000)
        store.put(event, timeout=2)
        put.append(event)
except StoreFull as error:
    assert "cannot be written: No space left on device" in str(error) and state + "/s/log" in str(error) and "make space there" in str(error), error
assert "No space left" in store.stat().log.trouble
assert 200 < len(put) < 700
os.unlink(state + "/rest")
store.put(event, timeout=20)
put.append(event)
assert store.sync(timeout=20) == len(put) - 1
until = time.monotonic() + 5
while store.stat().log.trouble:
    assert time.monotonic() < until
    time.sleep(0.05)
store.close()
os.unlink("/dev/shm/shmstore.s")
with EventStore.attach("s") as store, store.subscribe("r") as reader:
    assert store.newest == len(put) - 1
    got = []
    while batch := reader.get(timeout=0):
        got += map(bytes, batch.payloads())
    assert got == put
"""
    run_alone(f"mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs -o size=4m tmpfs {tmp_path}", code)


@alone
def test_a_read_only_disk(tmp_path: Path) -> None:
    """No process produces, and no store is made; the message says where. A process that has the memory continues to read."""
    code = f"""
os.environ["SHMSTORE_STATE"] = state = {str(tmp_path)!r}
with EventStore.create("s", capacity=64, log_size=16 << 20) as store:
    store.put([b"x"] * 3)
    store.subscribe("r").close()
assert os.system("mount -o remount,ro " + state) == 0
refused(lambda: EventStore.create("t", capacity=8), state + "/t", "Read-only file system", "SHMSTORE_STATE")
store = EventStore.attach("s")
refused(lambda: store.put(b"y", timeout=1), state + "/s/log", "Read-only file system")
assert store.newest == 2
with store.subscribe("r") as reader:
    assert len(reader.get(timeout=0)) == 3
assert store.peek(1, limit_events=1).raw == b"x"
store.close()
os.unlink("/dev/shm/shmstore.s")
refused(lambda: EventStore.attach("s"), state + "/s/log", "Read-only file system")
assert os.system("mount -o remount,rw " + state) == 0
with EventStore.attach("s") as store:
    assert store.put(b"y") == 3
"""
    run_alone(f"mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs -o size=4m tmpfs {tmp_path}", code)


def test_a_home_of_a_newer_format(name: str) -> None:
    """It is refused, and nothing in it changes."""
    EventStore.create(name, capacity=8).close()
    reboot(name)
    identity = Home.of(name).log / "store.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "format": 99}))
    before = sorted((each.name, each.stat().st_mtime_ns) for each in Home.of(name).log.iterdir())
    with pytest.raises(LayoutMismatch, match=r"format 99.*newer"):
        EventStore.attach(name)
    assert sorted((each.name, each.stat().st_mtime_ns) for each in Home.of(name).log.iterdir()) == before
    EventStore.unlink(name, log=True)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_a_home_of_another_user(name: str, tmp_path: Path) -> None:
    """A user without the right to read it gets an error with its path; it does not count as missing, and nothing is made next to it."""
    EventStore.create(name, capacity=8).close()
    reboot(name)
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == os.getuid() and each.is_relative_to("/tmp") and each != Path("/tmp"):
            each.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            for do in (lambda: EventStore.attach(name), lambda: EventStore.create(name, capacity=8)):
                try:
                    do()
                except StoreError as error:
                    assert str(Home.of(name).path) in str(error), error  # noqa: PT017 - another process
                else:
                    raise AssertionError("not refused")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    EventStore.attach(name).close()
    EventStore.unlink(name, log=True)


def test_two_producers_on_one_home(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One appends: the other hears who holds the log, though it has a segment of its own, or none."""
    monkeypatch.setattr(restore, "PATIENCE", 0.2)
    with EventStore.create(name, capacity=8) as store:
        store.put(b"one")
        with EventStore.attach(name) as second, pytest.raises(ProducerInUse, match="has a producer"):
            second.put(b"two")
    monkeypatch.setattr("shmstore.log.keeper.PATIENCE", 0.2)
    with AppendLock.take(Home.of(name), 0.0):
        with EventStore.attach(name) as store:
            with pytest.raises(ProducerInUse, match="another process appends"):
                store.put(b"two")
            assert store.newest == 0
        reboot(name)
        with pytest.raises(ProducerInUse, match=r"another process appends.*fuser"):
            EventStore.attach(name)
    with EventStore.attach(name) as store:
        assert store.put(b"two") == 1
    EventStore.unlink(name, log=True)


def test_a_disk_that_does_not_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that is closed while a sync hangs keeps the log's lock, so that no other process changes the files, until that has returned."""
    monkeypatch.setattr("shmstore.log.keeper.PATIENCE", 0.1)
    hangs, goes_on = threading.Event(), threading.Event()
    fdatasync = os.fdatasync

    def hanging(fd: int) -> None:
        hangs.set()
        assert goes_on.wait(20)
        fdatasync(fd)

    with EventStore.create(name, capacity=8) as store:
        monkeypatch.setattr(os, "fdatasync", hanging)
        store.put(b"one")
        assert hangs.wait(20)
        store._keeper.close(0.0)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(ProducerInUse):
        AppendLock.take(Home.of(name), 0.0)
    goes_on.set()
    AppendLock.take(Home.of(name), 20.0).release()
    with EventStore.attach(name) as store:
        assert store.put(b"two") == 1
        assert store.sync() == 1
    EventStore.unlink(name, log=True)


def put_on(store: EventStore) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        store.put(b"lost", timeout=2)


def test_a_home_removed_under_a_living_producer(name: str) -> None:
    """Nothing is reported to be on disk that is not, the producer stops and says why; begun again, all is well."""
    with EventStore.create(name, capacity=8) as store:
        store.put([b"one", b"two"])
        assert store.sync() == 1
        shutil.rmtree(Home.of(name).path)
        with pytest.raises(StoreFull, match=r"a process removed its files.*shmstore rm --log"):
            put_on(store)
        log = store.stat().log
        assert log is not None
        assert log.synced == 1
        assert "removed its files" in log.trouble
        store._keeper.close(0.0)  # not the ten seconds that a disk is given
    EventStore.unlink(name, log=True)
    with EventStore.create(name, capacity=8) as store:
        assert store.put(b"one") == 0
        assert store.sync() == 0
    EventStore.unlink(name, log=True)


def test_a_home_that_was_removed_by_hand(name: str) -> None:
    """A producer that comes to a store in memory whose home is gone is refused with what to do, and that helps."""
    with EventStore.create(name) as store:
        home = store.home.path
        store.put([b"x"])
        store.sync()
    shutil.rmtree(home)
    with EventStore.attach(name) as store, pytest.raises(StoreError, match=rf"was removed: .* `shmstore rm {name} --log`"):
        store.put([b"y"])
    EventStore.unlink(name, log=True)
    with EventStore.create(name) as store:
        store.put([b"z"])
        assert store.newest == 0
