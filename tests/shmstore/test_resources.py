"""Where the host has no more to give: full shared memory, no descriptors, no /proc. Each is one error with a number and a fix, before anything is stored."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import shmstore.encoding.codec
import shmstore.memory.mapping
from shmstore import BatchTooLarge, CheckpointFile, EventStore, StoreClosed, StoreError, checkpoints
from shmstore.home import kinds
from shmstore.home.home import Home
from shmstore.memory.layout import DISARMED, SUBSCRIPTIONS, header_word, subscription_word
from shmstore.ring.cursors import ARMED, ENTRIES, PUT, WANTED_OF
from tests.shmstore.samples import contents, leftovers

SOON = 30
LARGE = b"L" * 1000  # larger than the arena


@contextmanager
def no_descriptors() -> Iterator[None]:
    """No further file can be opened; those that are open stay so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---------------------------------------------------------------- waking needs nothing, and fails nothing


def test_a_put_wakes_without_a_descriptor(make, attach, start, either_way, no_slices):
    """A put whose reader sleeps is stored once and wakes it, though no file can be opened any more."""
    store = make()
    store.claim()
    reader = attach().subscribe("a")
    waiting = start(reader.get, timeout=SOON)
    while store.segment.words[WANTED_OF[reader.entry]] == DISARMED:
        time.sleep(0.001)
    with no_descriptors():
        assert store.put(b"once") == 0
        assert contents(waiting.result(SOON)) == [b"once"]
    assert store.newest == 0


def test_an_ack_wakes_without_a_descriptor(make, attach, start, either_way, no_slices):
    """An ack that a producer waits for moves the cursor and wakes it, though no file can be opened any more."""
    store = make(capacity=1)
    store.put(b"1")
    reader = attach().subscribe("a")
    batch = reader.get(timeout=0)
    waiting = start(store.put, b"2", timeout=SOON)
    while store.segment.words[header_word("ack_wanted")] == DISARMED:
        time.sleep(0.001)
    with no_descriptors():
        reader.ack(batch)
        assert waiting.result(SOON) == 1


def test_a_put_whose_table_is_damaged_is_stored(make, either_way):
    """A table that claims more entries than there are keeps a put from waking, not from having been stored."""
    store = make()
    store.put(b"0")
    store.segment.words[ENTRIES], store.segment.words[ARMED] = 10**6, 1
    assert store.put(b"1") == 1
    store.segment.words[ENTRIES] = 1


def test_a_removed_store_stores_nothing(make, name, either_way):
    """A put into a store that was removed is refused before a reader could see the event, so that it is not put twice into two stores."""
    store = make()
    store.put(b"0")
    EventStore.unlink(name)
    for put in (lambda: store.put(b"1"), lambda: store.put([b"1", b"2"]), lambda: store.put(LARGE)):
        with pytest.raises(StoreClosed, match="removed"):
            put()
    assert store.segment.words[PUT] == 0


# ---------------------------------------------------------------- descriptors


def test_without_descriptors_every_verb_says_so(make, name, either_way):
    """Whatever has to open a file says how many this process may have, and what to do; nothing was stored."""
    store, verbs = make(), dict[str, Callable[[], Any]]()
    verbs["claim"] = lambda: store.put(b"x")
    verbs["create"] = lambda: EventStore.create(f"{name}-other", capacity=8, log=False)
    verbs["attach"] = lambda: EventStore.attach(name)
    verbs["subscribe"] = lambda: store.subscribe("a")
    verbs["unsubscribe"] = lambda: store.unsubscribe("a")
    verbs["unlink"] = lambda: EventStore.unlink(name)
    verbs["names"] = EventStore.names
    for verb, do in verbs.items():
        with no_descriptors(), pytest.raises(StoreError, match=r"errno 24.*0 file descriptors.*ulimit -n"):
            do()
        assert store.newest == -1, verb
    reader = store.subscribe("a")
    store.put(b"x")
    with no_descriptors():
        assert store.stat().newest == 0  # looking opens nothing
    reader.ack(reader.get(timeout=0))
    with no_descriptors(), pytest.raises(StoreError, match=r"errno 24.*ulimit -n"):
        store.put(LARGE, timeout=0)
    assert store.put(LARGE, timeout=0) == 1
    batch = reader.get(timeout=0)
    with no_descriptors(), pytest.raises(StoreError, match=r"errno 24.*ulimit -n"):
        _ = batch.raw
    assert contents(batch) == [LARGE]
    reader.ack(batch)
    assert store.check() == []


# ---------------------------------------------------------------- a host of its own: full memory, no /proc

ALONE = os.getuid() == 0 and shutil.which("unshare") is not None
alone = pytest.mark.skipif(not ALONE, reason="needs root and unshare(1), for mounts of its own")

REFUSED = """
import os, sys
from shmstore import *
def refused(do, *words):
    try:
        do()
    except StoreError as error:
        assert all(word in str(error) for word in words) and chr(10) not in str(error), str(error)
    else:
        raise SystemExit("not refused")
"""


def run_alone(mounts: str, code: str) -> None:
    """Run Python where only it sees the `mounts`."""
    environment = {**os.environ, "SHMSTORE_PURE": "" if shmstore.memory.mapping.COMPILED else "1"}
    command = ["unshare", "-m", "sh", "-ec", f'{mounts}; exec "$0" -c "$1"', sys.executable, REFUSED + code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr


@alone
def test_full_shared_memory(either_way):
    """With no byte left in /dev/shm all continues, but what needs a segment of its own: that says so, and nothing was stored."""
    code = """
store = EventStore.create("s", capacity=8, memory_unit=64, log=False)
with open("/dev/shm/rest", "wb", buffering=0) as rest:
    try:
        while True:
            rest.write(bytes(4096))
    except OSError as error:
        assert error.errno == 28
other = EventStore.attach("s")
reader = other.subscribe("r")
assert not reader.get(timeout=0.001)
assert store.put(b"x") == 0
reader.ack(reader.get(timeout=0))
for _ in range(2):
    refused(lambda: store.put(b"L" * 1000, timeout=0), "errno 28", "1,000 bytes", "/dev/shm", "make space", "nothing was stored")
assert store.newest == 0
assert store.check() == [], store.check()
refused(lambda: EventStore.create("t", capacity=8, log=False), "bytes in /dev/shm; its file system has 0 free", "smaller", "--shm-size", "`path`")
assert sorted(os.listdir("/dev/shm")) == ["rest", "shmstore.s"]
os.unlink("/dev/shm/rest")
assert store.put(b"L" * 1000, timeout=0) == 1
"""
    run_alone("mount -t tmpfs -o size=1m tmpfs /dev/shm", code)


@alone
def test_shared_memory_without_a_free_inode(either_way):
    """Where /dev/shm may hold no more files, a store or an oversized event is refused with the number, and the rest continues."""
    code = """
store = EventStore.create("s", capacity=8, memory_unit=64, log=False)
names = []
try:
    while True:
        os.close(os.open(f"/dev/shm/{len(names)}", os.O_CREAT | os.O_WRONLY))
        names.append(f"/dev/shm/{len(names)}")
except OSError as error:
    assert error.errno == 28
with EventStore.attach("s").subscribe("r") as reader:
    assert not reader.get(timeout=0.001)
    assert store.put(b"x") == 0
    reader.ack(reader.get(timeout=0))
    refused(lambda: store.put(b"L" * 1000, timeout=0), "errno 28", "/dev/shm", "make space", "nothing was stored")
refused(lambda: EventStore.create("t", capacity=8, log=False), "errno 28", "/dev/shm", "make space")
"""
    run_alone("mount -t tmpfs -o size=1m,nr_inodes=20 tmpfs /dev/shm", code)


@alone
def test_a_host_without_proc(either_way):
    """Without /proc, which the kernel's locks need, a store says so."""
    code = """
refused(lambda: EventStore.create("s", capacity=8, log=False), "/proc", "mount -t proc")
"""
    run_alone("mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /proc", code)
    code = """
store = EventStore.create("s", capacity=8, log=False)
assert os.system("mount -t tmpfs tmpfs /proc") == 0
other = EventStore.attach("s")
for verb in (lambda: other.put(b"x"), lambda: other.subscribe("a")):
    refused(verb, "/proc", "errno 2", "mount -t proc")
assert other.stat().newest == -1
"""
    run_alone("mount -t tmpfs tmpfs /dev/shm", code)


# ---------------------------------------------------------------- the state folder, and what is too large


def test_a_state_folder_that_cannot_be_read(tmp_path, monkeypatch):
    """A checkpoint that cannot be opened is an error that names it; no reader starts from the beginning because of it."""
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path / "state"))
    (tmp_path / "state").write_text("a file where a folder should be")
    file = CheckpointFile(None, "s", "r")
    for do in (file.load, file.remove, lambda: checkpoints("s"), lambda: kinds.remove(Home.of("s"))):
        with pytest.raises(StoreError, match=r"errno 20.*SHMSTORE_STATE"):
            do()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_a_state_folder_of_another_user(tmp_path, monkeypatch):
    """A state folder that belongs to another user is an error that names it, not an empty one."""
    folder = tmp_path / "state"
    monkeypatch.setenv("SHMSTORE_STATE", str(folder))
    (folder / "s").mkdir(parents=True)
    (folder / "s" / "r.json").write_text("{}")
    file = CheckpointFile(None, "s", "r")
    for each in (folder / "s", folder):
        each.chmod(0o700)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setgroups([])
                os.setgid(54321)
                os.setuid(54322)
                for do in (file.load, file.remove, lambda: checkpoints("s"), lambda: kinds.remove(Home.of("s"))):
                    with pytest.raises(StoreError, match=r"errno 13.*SHMSTORE_STATE"):
                        do()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        each.chmod(0o755)


@pytest.mark.parametrize("limit", [64, 2**30], ids=["a small store", "a store that would hold it"])
def test_an_event_of_four_gigabytes(make, monkeypatch, limit, either_way):
    """An event whose size a slot cannot say is too large for every store, alone, in a list or as a view; nothing is copied first."""
    monkeypatch.setattr(
        "shmstore.memory.segment.take_memory", lambda fd, size, **_: os.ftruncate(fd, size)
    )  # no page of it is touched
    store, huge = make(memory_unit=limit), bytes(2**32)  # unwritten pages take no memory
    for events in (huge, [huge], [b"x", huge], memoryview(huge)):
        with pytest.raises(BatchTooLarge, match=r"4,294,967,296 bytes.*4,294,967,295"):
            store.put(events, timeout=0)
    slots = shmstore.ring.writer.plain_slots([b"x"])
    with pytest.raises(BatchTooLarge, match="4,294,967,295"):
        store.put_encoded(huge, slots, timeout=0)
    assert store.newest == -1


def test_an_event_that_encodes_to_too_much(monkeypatch):
    """An event is measured when it is encoded."""
    from tests.shmstore.samples import begin

    monkeypatch.setattr("shmstore.encoding.codec.MAX_PAYLOAD", 10)
    with pytest.raises(BatchTooLarge, match=r"49 bytes.*it may have 10"):
        shmstore.encoding.codec.encode_batch([begin(0)])


# ---------------------------------------------------------------- the C library, and paths


def test_no_c_library_is_too_old(name):
    """A store waits and wakes by calls of the kernel: it takes no semaphores of the C library, younger ones (2.30) or older."""
    program = f"""
import ctypes, threading
class Old(ctypes.CDLL):
    def __getattr__(self, function):
        if function.startswith("sem_"):
            raise AttributeError(function)
        return super().__getattr__(function)
ctypes.CDLL = Old
from shmstore import EventStore
from shmstore.store import subscription
subscription.WAIT_SLICE = 120.0
with EventStore.create({name!r}, capacity=8, log=False) as store, store.subscribe("a") as reader:
    putting = threading.Timer(0.1, EventStore.attach({name!r}).put, [b"x"])
    putting.start()
    assert len(reader.get(timeout=60)) == 1
    putting.join()
"""
    for pure in ("", "1"):
        environment = {**os.environ, "SHMSTORE_PURE": pure}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (0, "")
        EventStore.unlink(name)


def test_a_file_is_one_store_at_whatever_path(name, tmp_path, start, no_slices, either_way):
    """A store in a file wakes its readers, too, where it is mounted at another path."""
    (tmp_path / "there").mkdir()
    here, there = tmp_path / "file", tmp_path / "there" / "file"
    with EventStore.create(name, path=here, capacity=8, memory_unit=64, log=False) as store:
        os.link(here, there)
        with EventStore.attach(name, path=there) as other, other.subscribe("a") as reader:
            store.claim()
            waiting = start(reader.get, timeout=SOON)
            while store.segment.words[WANTED_OF[reader.entry]] == DISARMED:
                time.sleep(0.001)
            store.put(b"x")
            assert contents(waiting.result(SOON)) == [b"x"]
            os.unlink(there)
    EventStore.unlink(name, path=here)
    assert leftovers(name) == []


@alone
def test_a_file_wakes_readers_of_another_container(name, tmp_path, either_way):
    """A store in a file that two containers share, each with a /dev/shm of its own, wakes a reader across both: what processes sleep on
    is in the file, and has no name anywhere else."""
    path = tmp_path / "ring"
    code = f"""
from shmstore.store import subscription
subscription.WAIT_SLICE = 120.0
with EventStore.attach({name!r}, path={str(path)!r}) as store, store.subscribe("a") as reader:
    assert [bytes(each) for each in reader.get(timeout={SOON}).payloads()] == [b"x"]
"""
    with EventStore.create(name, path=path, capacity=8, memory_unit=64, log=False) as store, ThreadPoolExecutor(1) as pool:
        done = pool.submit(run_alone, "mount -t tmpfs tmpfs /dev/shm", code)
        while store.segment.words[WANTED_OF[1]] == DISARMED and not done.done():
            time.sleep(0.001)
        store.put(b"x")
        done.result(2 * SOON)
    EventStore.unlink(name, path=path)


@pytest.mark.parametrize("garbage", [b"\xff", b"\x7f", b"\x80"])
def test_damage_in_what_processes_sleep_on(make, garbage, either_way):
    """Whatever a member of the group writes there, a wait ends early at worst: no process ends, and no event is lost."""
    store = make(capacity=8, memory_unit=64)
    with store.subscribe("a") as reader:
        for k in range(4):
            for word in (
                *map(header_word, ("freed", "lock", "keeper")),
                *(subscription_word(i, "woken") for i in range(SUBSCRIPTIONS)),
            ):
                store.segment.views.fixed[word * 8 : word * 8 + 8] = garbage * 8
            assert not reader.get(timeout=0.001)
            assert store.put(b"%d" % k, timeout=SOON) == k
            batch = reader.get(timeout=SOON)
            assert contents(batch) == [b"%d" % k]
            reader.ack(batch)
            store.subscribe("b").close()  # takes and releases the table's lock
