"""Segments: made, found, refused and removed by name, in memory and in files."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from shmstore import EventStore, LayoutMismatch, StoreClosed, StoreError, StoreExists, StoreNotFound
from shmstore.memory import layout
from shmstore.memory.layout import HEADER, VERSION, header_word
from shmstore.memory.segment import check_name
from tests.shmstore.commands import alone
from tests.shmstore.samples import contents, leftovers


@pytest.mark.parametrize(
    "wrong",
    ["", ".", "..", "a/b", "../x", "/x", "a b", "a\n", "a\0b", "-x", ".x", "é", "x" * 101, "a@b", "a:b", "*", None, 5, b"x"],
)
def test_hostile_names_are_refused(wrong):
    """A name that could leave the directory, hide, or be taken for an option never reaches the file system."""
    for call in (EventStore.create, EventStore.attach, EventStore.unlink):
        with pytest.raises(ValueError, match="name"):
            call(wrong)


@pytest.mark.parametrize("good", ["a", "A-1", "_x", "orders.eu", "x" * 100, "1"])
def test_good_names(good):
    """Letters, digits, '_', '-' and '.' make a name."""
    assert check_name(good) == good


def test_one_name_one_store(make, name):
    """create refuses a name that is taken; attach refuses one that is not; unlink says which."""
    make()
    with pytest.raises(StoreExists, match=name):
        EventStore.create(name, log=False)
    assert name in EventStore.names()
    EventStore.unlink(name)
    assert name not in EventStore.names()
    for call in (EventStore.attach, EventStore.unlink):
        with pytest.raises(StoreNotFound):
            call(name)
        with pytest.raises(FileNotFoundError):
            call(name)


def test_of_many_creators_one_wins(name):
    """Of eight that create one name at once, one succeeds, seven get StoreExists, and nothing is left half made."""
    won, lost = [], []
    gate = threading.Barrier(8)

    def create() -> None:
        gate.wait()
        try:
            won.append(EventStore.create(name, capacity=8, memory_unit=64, log=False))
        except StoreExists:
            lost.append(1)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(won), len(lost)) == (1, 7)
    won[0].close()


def test_whoever_attaches_finds_a_whole_store(name):
    """Attaching while the store is made either finds none, or a whole one; never half a segment."""
    found, stop = [], threading.Event()

    def attach() -> None:
        while not stop.is_set():
            try:
                with EventStore.attach(name) as store:
                    found.append((store.capacity, store.newest))
            except StoreNotFound:
                pass

    thread = threading.Thread(target=attach)
    thread.start()
    for _ in range(60):
        EventStore.create(name, capacity=8, memory_unit=64, log=False).close()
        EventStore.unlink(name)
    stop.set()
    thread.join(60)
    assert set(found) <= {(8, -1)}


def test_of_many_that_unlink_one_finds_it(make, name):
    """Two that remove a store at once get along: each succeeds or hears that it is gone."""
    make()
    gate, results = threading.Barrier(4), []

    def unlink() -> None:
        gate.wait()
        try:
            EventStore.unlink(name)
            results.append("removed")
        except StoreNotFound:
            results.append("gone")

    threads = [threading.Thread(target=unlink) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 4
    assert "removed" in results
    assert leftovers(name) == []


def test_those_attached_are_told_of_the_removal(make, attach, name):
    """After unlink the old store serves no new process, its waiters get StoreClosed, and nothing is left or made again."""
    store, other = make(), attach()
    reader = other.subscribe("a")
    EventStore.unlink(name)
    with pytest.raises(StoreClosed):
        reader.get(timeout=30)
    for call in (lambda: other.subscribe("b"), lambda: other.unsubscribe("a"), store.clear, store.claim, lambda: store.peek(0)):
        with pytest.raises(StoreClosed):
            call()
    store.close()
    other.close()
    assert leftovers(name) == []


def test_a_successor_has_another_epoch(make, name):
    """Two lives of one name differ in their epoch; the older one's readers do not see the younger's events."""
    old = make()
    reader = old.subscribe("a")
    EventStore.unlink(name)
    with EventStore.create(name, capacity=8, memory_unit=64, log=False) as new:
        assert new.epoch != old.epoch
        new.put(b"new")
        with pytest.raises(StoreClosed):
            reader.get(timeout=0)


def test_modes(make, name):
    """A store is its owner's alone by default."""
    store = make()
    store.subscribe("a").get(timeout=0.01)
    for entry in leftovers(name):
        assert os.stat(f"/dev/shm/{entry}").st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_a_group_shares_a_store(name):
    """With mode 0660 and a group, a member of it puts, reads, acks oversized events and waits; a stranger is refused."""
    gid, member, stranger = 54321, 54322, 54323
    with EventStore.create(name, capacity=4, memory_unit=64, mode=0o660, group=gid, log=False) as store:
        store.claim()
        store.subscriptions()
        code = f"""
import ctypes, os
import shmstore.store.integrity, shmstore.store.cursor_repair
from shmstore import *
os.setgroups([]); os.setgid({gid}); os.setuid({member})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is its own again
store = EventStore.attach({name!r})
reader = store.subscribe("a")
print("ready", flush=True)
for size in (5, 1000, 7):
    batch = reader.get(timeout=60, min_events=1)
    assert [len(p) for p in batch.payloads()] == [size], batch
    reader.ack(batch)
    del batch
assert all("next producer removes it" in found for found in store.check()), store.check()  # the directory is sticky
"""
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout.readline() == "ready\n"
        for size in (5, 1000, 7):
            store.put(b"x" * size, timeout=60)
        assert process.wait(60) == 0
        for entry in leftovers(name):
            status = os.stat(f"/dev/shm/{entry}")
            assert (status.st_mode & 0o777, status.st_gid) == (0o660, gid), entry
        refused = f"""
import ctypes, os
import shmstore.store.integrity, shmstore.store.cursor_repair
from shmstore import *
os.setgroups([]); os.setgid({stranger}); os.setuid({stranger})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is its own again
for call in (EventStore.attach, EventStore.unlink):
    try:
        call({name!r})
    except StoreNotFound:
        raise SystemExit("not found")
    except StoreError as error:
        assert "uid" in str(error), error
    else:
        raise SystemExit("let in")
"""
        assert subprocess.run([sys.executable, "-c", refused], env=environment, timeout=60).returncode == 0
        assert not store.segment.removed
        store.put(b"still there")


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity": 0},
        {"capacity": 3},
        {"capacity": -8},
        {"capacity": 2**27},
        {"memory_unit": 0},
        {"memory_unit": 2**43},
        {"lag": "drop"},
        {"mode": 0o666},
        {"mode": 0o400},
        {"evict_after": -1},
        {"evict_after": float("nan")},
        {"first_sequence": -1},
        {"first_sequence": 2**63},
        {"batch_mode": 9},
        {"group": "no-such-group-on-earth"},
    ],
)
def test_options_that_cannot_be(name, wrong):
    """Options that cannot be raise ValueError, and leave no segment behind."""
    with pytest.raises(ValueError):  # noqa: PT011  the message depends on the option
        EventStore.create(name, **wrong, log=False)
    assert leftovers(name) == []


def test_memory_is_taken_at_creation(name, monkeypatch):
    """A store that does not fit is refused when it is made, not by a SIGBUS when it is written, and before it takes any memory."""
    free = os.statvfs("/dev/shm")
    taken = []
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, start, size: taken.append(size))
    with pytest.raises(StoreError, match="bytes"):
        EventStore.create(name, capacity=2**20, memory_unit=free.f_bavail * free.f_frsize // 2**20 + 1024, log=False)
    with open("/proc/meminfo") as file:
        memory = {line.split()[0]: int(line.split()[1]) for line in file}
    with pytest.raises(StoreError, match="bytes"):  # the file system may have more to give than the host has
        EventStore.create(
            name, capacity=2**20, memory_unit=(memory["MemTotal:"] + memory["SwapTotal:"]) // 2**10 + 1024, log=False
        )
    assert taken == []
    assert leftovers(name) == []


def test_a_directory_that_cannot_hold_a_store(name, tmp_path):
    """A path in a directory that is missing gives one error that names it."""
    with pytest.raises(StoreError, match="missing"):
        EventStore.create(name, path=tmp_path / "missing" / "x", capacity=8, log=False)


def damaged(name: str, at: int, new: bytes) -> None:
    with open(f"/dev/shm/shmstore.{name}", "r+b") as file:
        file.seek(at)
        file.write(new)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", b"SHMSTORF"),
        ("version", VERSION + 1),
        ("version", 0),
        ("capacity", 16),
        ("capacity", 0),
        ("capacity", 7),
        ("capacity", -8),
        ("capacity", 2**62),
        ("memory_unit", 0),
        ("limit", 0),
        ("limit", -1),
        ("limit", 2**62),
        ("arena", 1),
        ("batch_mode", 3),
        ("flags", -1),
        ("flags", 8),
        ("evict_after", -1),
        ("first", -1),
        ("entries", 0),
        ("entries", 65),
        ("entries", 2**62),
        ("put", 9),
        ("put", -2),
        ("put", 2**63 - 1),
        ("floor", 5),
        ("floor", -(2**62)),
    ],
)
def test_forged_headers_are_refused(make, name, field, value):
    """A header that contradicts itself or the segment's size is refused with LayoutMismatch; nothing is indexed with it."""
    make()
    dtype, offset = HEADER.fields[field][:2]
    new = value if isinstance(value, bytes) else np.array([value]).astype(dtype).tobytes()
    damaged(name, offset, new)
    with pytest.raises(LayoutMismatch):
        EventStore.attach(name)


@pytest.mark.parametrize(
    "size", [0, 1, 100, layout.HEADER.itemsize - 1, layout.HEADER.itemsize, layout.FIXED_SIZE, -4096, -1, 4096]
)
def test_segments_of_the_wrong_size_are_refused(name, size):
    """A segment cut off, or longer than its header says, is refused; the message says what was found."""
    EventStore.create(name, capacity=8, memory_unit=64, log=False).close()
    path = f"/dev/shm/shmstore.{name}"
    whole = os.stat(path).st_size
    os.truncate(path, whole + size if size < 0 or size in (1, 4096) else size)
    with pytest.raises(LayoutMismatch):
        EventStore.attach(name)
    EventStore.unlink(name)  # and can be removed all the same


def test_what_is_no_file_is_refused(name, tmp_path):
    """A directory, a fifo, a link and an empty file are not stores."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").write_bytes(b"")
    EventStore.create(name, path=tmp_path / "store", capacity=8, memory_unit=64, log=False).close()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    for wrong in (tmp_path, tmp_path / "fifo", tmp_path / "empty", tmp_path / "link", "/dev/null", "/dev/zero"):
        with pytest.raises(StoreError):
            EventStore.attach(name, path=wrong)
    EventStore.unlink(name, path=tmp_path / "store")


def test_unlink_does_not_eat_files(name, tmp_path):
    """unlink of a path that is no store leaves the file alone."""
    precious = tmp_path / "precious"
    precious.write_text("dear data")
    with pytest.raises(LayoutMismatch):
        EventStore.unlink(name, path=precious)
    assert precious.read_text() == "dear data"


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("damage", ["version", "capacity"])
@pytest.mark.parametrize("role", ["producer", "reader"])
def test_unlink_refuses_what_cannot_be_told(name, tmp_path, role, damage, in_file):
    """A segment that this version cannot write to is not removed while a process uses it, which would not notice; with force it is."""
    path = tmp_path / "ring" if in_file else None
    where = str(path or f"/dev/shm/shmstore.{name}")
    with EventStore.create(name, path=path, capacity=8, memory_unit=64, log=False) as store:
        store.claim() if role == "producer" else store.subscribe("audit")
        store.segment.words[header_word(damage)] += 40
        with pytest.raises(LayoutMismatch, match=f"`fuser {where}` shows which.*--force"):
            EventStore.unlink(name, path=path)
        assert os.path.exists(where)
    EventStore.unlink(name, path=path)  # no process uses it now
    with EventStore.create(name, path=path, capacity=8, memory_unit=64, log=False) as store:
        store.claim()
        store.segment.words[header_word(damage)] += 40
        EventStore.unlink(name, path=path, force=True)
    assert not os.path.exists(where)


def test_a_store_is_a_posix_shared_memory_object(make, name):
    """What any program opens with shm_open(3): under the store's name, of the segment's size, as whole as here; gone when it is removed."""
    store = make()
    libc = ctypes.CDLL(None, use_errno=True)
    theirs = f"/shmstore.{name}".encode()
    memory = libc.shm_open(theirs, os.O_RDONLY, 0)
    assert memory >= 0, os.strerror(ctypes.get_errno())
    try:
        assert os.fstat(memory).st_size == store.segment.sizes.total
        with mmap.mmap(memory, store.segment.sizes.total, prot=mmap.PROT_READ) as mapped:
            assert mapped[: len(layout.MAGIC)] == layout.MAGIC
            store.put(b"some bytes that are easily found")
            assert mapped.find(b"some bytes that are easily found") > 0
    finally:
        os.close(memory)
    EventStore.unlink(name)
    assert libc.shm_open(theirs, os.O_RDONLY, 0) == -1
    assert ctypes.get_errno() == errno.ENOENT


def test_a_file_store_and_a_memory_store_of_one_name(make, name, tmp_path):
    """Stores of one name in memory and in files do not touch each other, their removal included."""
    make().put(b"memory")
    with EventStore.create(name, path=tmp_path / "s", capacity=8, memory_unit=64, log=False) as file:
        file.put(b"file")
        assert contents(file.peek(0)) == [b"file"]
        file.subscribe("a").get(timeout=0)
        EventStore.unlink(name)
        file.put(b"more")
    EventStore.unlink(name, path=tmp_path / "s")
    assert leftovers(name) == []
    assert os.listdir(tmp_path) == []


def test_views_outlive_close(make, attach):
    """A batch that outlives its store reads memory, not a fault; the mapping goes with the last view."""
    store = make(capacity=1024, memory_unit=1024)
    other = attach()
    reader = other.subscribe("a")
    store.put(b"x" * 100_000)
    raw = reader.get(timeout=0).raw
    other.close()
    gc.collect()
    assert bytes(raw[-3:]) == b"xxx"


def test_a_closed_store_gives_its_memory_back(name):
    """Closing a store and dropping it unmaps its segment and closes its descriptors."""
    alone(CLOSES, name)


CLOSES = """
import gc, os, sys
from shmstore import EventStore

name = sys.argv[1]


def maps():
    with open("/proc/self/maps") as file:
        return file.read()


def opened_and_closed():
    with EventStore.create(name, capacity=8, memory_unit=64, log=False), EventStore.attach(name) as store:
        store.claim()
        store.put(b"x")
        reader = store.subscribe("a")
        reader.ack(reader.get(timeout=0))
        reader.get(timeout=0)
        assert f"shmstore.{name}" in maps()
    EventStore.unlink(name)
    gc.collect()


for _ in range(3):
    opened_and_closed()
descriptors = os.listdir("/proc/self/fd")
for _ in range(20):
    opened_and_closed()
assert os.listdir("/proc/self/fd") == descriptors
assert f"shmstore.{name}" not in maps()
"""


def test_rings_are_mapped_twice(make):
    """What is written across the end of a ring is seen at its start: no wrap handling is needed."""
    views = make().segment.views
    views.arena[views.arena_size - 2 : views.arena_size + 2] = b"abcd"
    assert bytes(views.arena[:2]) == b"cd"
    views.ends[views.slot_count - 1] = 5
    assert views.ends[2 * views.slot_count - 1] == 5
    views.slots["size"][views.slot_count] = 7
    assert views.slots["size"][0] == 7


def test_text_fields_are_cut_not_overrun(make):
    """A text longer than its field is cut off and damages no neighbor; half a character is shown as such."""
    store = make()
    store.claim()
    store.heartbeat("ü" * 200)
    assert store.source.startswith("ü" * 127)
    assert len(store.source) <= 129
    assert store.segment.words[header_word("start_offset")] == 0
