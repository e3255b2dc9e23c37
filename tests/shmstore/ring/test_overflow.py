"""Events larger than the arena: kept in segments of their own, read and freed like others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from shmstore import BatchTooLarge, EventStore, StoreClosed, StoreCorrupt, StoreError, StoreFull
from shmstore.ring import overflow as overflow_module
from shmstore.ring.overflow import overflows
from tests.shmstore.samples import contents, leftovers, rows

BIG = bytes(range(256)) * 8


def test_no_event_is_refused_for_its_size(make):
    """An event larger than the arena is stored, read and acked like others, and comes in a batch of its own."""
    store = make(capacity=4, memory_unit=16)
    reader = store.subscribe("a")
    for round_ in range(3):
        store.put(b"small")
        with pytest.raises(StoreFull):
            store.put(BIG, timeout=0)
        reader.ack(reader.get(timeout=0))
        assert store.put(BIG, timeout=0) == 3 * round_ + 1
        with pytest.raises(StoreFull):
            store.put(b"x", timeout=0)
        batch = reader.get(timeout=0)
        assert batch.oversized
        assert contents(batch) == [BIG]
        assert batch.ends.tolist() == [len(BIG)]
        assert batch.slots["size"].tolist() == [len(BIG)]
        assert contents(batch.copy()) == contents(store.peek(batch.first)) == [BIG]
        assert store.check() == []
        reader.ack(batch)
        assert overflows(store.segment) == []
        store.put(b"after", timeout=0)
        reader.ack(reader.get(timeout=0))


def test_large_events_decode(make):
    """A rows event larger than the arena comes back whole."""
    store = make(capacity=4, memory_unit=16)
    reader = store.subscribe("a")
    event = rows(1, count=200)
    store.put(event)
    batch = reader.get(timeout=0)
    assert batch.events == [event]
    assert batch.position == event.position
    assert batch.rows == 200


def test_a_list_may_not_hide_one(make):
    """A list that could only fit without its large event raises BatchTooLarge; the large event goes alone."""
    store = make(capacity=4, memory_unit=16)
    with pytest.raises(BatchTooLarge):
        store.put([b"x", BIG])
    assert (store.newest, overflows(store.segment)) == (-1, [])


def test_freed_by_the_last_ack(make):
    """An overflow segment lives until every subscription has acked it, and no longer."""
    store = make(capacity=4, memory_unit=16)
    one, two = store.subscribe("one"), store.subscribe("two")
    store.put(BIG)
    one.ack(one.get(timeout=0))
    batch = two.get(timeout=0)
    assert contents(batch) == [BIG]
    assert len(overflows(store.segment)) == 1
    raw = batch.raw
    two.ack(batch)
    assert overflows(store.segment) == []
    assert bytes(raw) == BIG  # mapped memory stays while an object refers to it


def test_freed_when_nobody_wanted_it(make):
    """What was kept for the first subscriber is freed when that one wants only what comes later."""
    store = make(capacity=4, memory_unit=16)
    store.put(BIG)
    store.subscribe("a", start="latest")
    assert overflows(store.segment) == []


@pytest.mark.parametrize("how", ["clear", "unsubscribe"])
def test_freed_with_what_holds_it(make, how):
    """clear and unsubscribe free the overflow segments that no reader wants any more."""
    store = make(capacity=4, memory_unit=16)
    store.subscribe("one").close()
    two = store.subscribe("two")
    store.put(BIG)
    two.ack(two.get(timeout=0))
    two.close()
    store.clear() if how == "clear" else store.unsubscribe("one")
    assert overflows(store.segment) == []


def test_freed_after_an_eviction(make):
    """What evicted readers had not acked does not pile up: one overflow segment is left at most."""
    store = make(capacity=4, memory_unit=16, lag="evict", evict_after=0.0)
    store.subscribe("slow").close()
    for _ in range(5):
        store.put(BIG, timeout=5)
        assert len(overflows(store.segment)) == 1


def test_freed_by_the_eviction_itself(make):
    """What only evicted readers wanted is freed when they are evicted, not when the next large event comes."""
    store = make(capacity=4, memory_unit=16, lag="evict", evict_after=0.0)
    store.subscribe("slow").close()
    store.put(BIG)
    store.put(b"small", timeout=60)
    assert [each.state for each in store.subscriptions()] == ["lost"]
    assert overflows(store.segment) == []


ORPHAN = """
import ctypes, os, signal, sys
import shmstore.ring.overflow
from shmstore import *
name, user, group, sequence, size = sys.argv[1], *map(int, sys.argv[2:])
os.setgroups([]); os.setgid(group); os.setuid(user)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is its own again
store = EventStore.attach(name)
store.claim()
if sequence >= 0:  # killed before it published that event
    shmstore.ring.overflow.write(store.segment, sequence, b"o" * size)
    os.kill(os.getpid(), signal.SIGKILL)
reader = store.subscribe("member")
store.put(b"n" * size)
batch = reader.get(timeout=0)
assert [bytes(p) for p in batch.payloads()] == [b"n" * size]
reader.ack(batch)
assert store.put(b"small") == store.newest
"""


def as_user(name: str, user: int, group: int, sequence: int, size: int) -> int:
    words = [sys.executable, "-c", ORPHAN, name, *map(str, (user, group, sequence, size))]
    return subprocess.run(words, timeout=60, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, check=False).returncode


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("size", [1000, 3000])
def test_an_orphan_of_another_member_blocks_nobody(name, size):
    """What one member of a store's group wrote and did not publish, another writes again, larger or smaller: it may not remove it."""
    one, two, gid = 54322, 54323, 54321
    with EventStore.create(name, capacity=4, memory_unit=16, mode=0o660, group=gid, log=False) as store:
        os.chown(store.segment.fd, 54324, gid)  # of neither
        assert as_user(name, one, gid, 0, 2000) == -signal.SIGKILL
        ((path, _),) = overflows(store.segment)
        assert as_user(name, two, gid, -1, size) == 0
        status = os.stat(path)
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (one, gid, 0o660)
    EventStore.unlink(name)
    assert leftovers(name) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_a_removal_names_what_others_left(name):
    """An owner who removes the store removes all that is his; what a member of the group left is named, with the uid that may remove it."""
    owner, member, gid = 54322, 54323, 54321
    with EventStore.create(name, capacity=4, memory_unit=16, mode=0o660, group=gid, log=False) as store:
        os.chown(store.segment.fd, owner, gid)
        path = f"{store.segment.overflow_prefix}.0"
        assert as_user(name, member, gid, 0, 1000) == -signal.SIGKILL
        code = f"""
import ctypes, os
from shmstore import *
import shmstore.ring.overflow
os.setgroups([]); os.setgid({gid}); os.setuid({owner})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
try:
    EventStore.unlink({name!r})
except StoreError as error:
    print(error)
"""
        done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"remove {path} (uid {member}) as that user" in done.stdout
        assert store.segment.removed
    assert leftovers(name) == [os.path.basename(path)]
    os.unlink(path)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_what_root_puts_belongs_to_the_owner(name, mode):
    """The owner of a store reads the large events that root puts into it, and its ack removes them."""
    owner, gid = 54322, 54321
    with EventStore.create(name, capacity=4, memory_unit=16, mode=mode, group=gid, log=False) as store:
        os.chown(store.segment.fd, owner, gid)
        os.fchmod(store.segment.fd, mode)
        with EventStore.attach(name) as roots:
            roots.put(BIG)
        code = f"""
import ctypes, os
import shmstore.ring.overflow
from shmstore import *
os.setgroups([]); os.setgid({owner}); os.setuid({owner})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
reader = EventStore.attach({name!r}).subscribe("a")
batch = reader.get(timeout=0)
assert [len(p) for p in batch.payloads()] == [{len(BIG)}]
reader.ack(batch)
"""
        assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
        assert overflows(store.segment) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("kind", ["stranger", "open", "link", "directory"])
def test_nothing_is_written_into_what_strangers_made(name, tmp_path, kind):
    """A file of a stranger where a large event should go is refused by name and uid, and is left as it was; nothing is stored."""
    member, stranger, gid = 54322, 54323, 54321
    with EventStore.create(name, capacity=4, memory_unit=16, mode=0o660, group=gid, log=False) as store:
        path = f"{store.segment.overflow_prefix}.0"
        if kind == "directory":
            os.mkdir(path)
        else:
            with open(path, "wb") as file:
                os.fchmod(file.fileno(), 0o666 if kind == "open" else 0o660)
            if kind == "link":
                os.chown(path, stranger, gid)
                os.link(path, f"/dev/shm/linked.{name}")
        os.chown(path, stranger, gid if kind == "link" else stranger)
        try:
            assert as_user(name, member, gid, 0, 1000) == 1
            assert os.stat(path).st_size in (0, 40)
            assert store.newest == -1
        finally:
            os.rmdir(path) if kind == "directory" else os.unlink(path)
            if kind == "link":
                os.unlink(f"/dev/shm/linked.{name}")


def test_removed_with_the_store(make, name):
    """unlink removes overflow segments; nothing is left."""
    store = make(capacity=4, memory_unit=16)
    store.put(BIG)
    assert len(leftovers(name)) >= 2
    store.close()
    EventStore.unlink(name)
    assert leftovers(name) == []


def test_none_is_left_in_a_store_that_was_removed(make, name):
    """A put that comes after the removal leaves no overflow segment behind."""
    store = make(capacity=4, memory_unit=16)
    store.claim()
    EventStore.unlink(name)
    with pytest.raises(StoreClosed):
        store.put(BIG)
    assert leftovers(name) == []


def test_a_file_store_keeps_them_beside_its_file(name, tmp_path):
    """The overflow segments of a file-backed store survive with it: they lie in its directory, and go with it."""
    path = tmp_path / "store"
    with EventStore.create(name, path=path, capacity=4, memory_unit=16, log=False) as store:
        store.put(BIG)
    assert leftovers(name) == []
    assert len(os.listdir(tmp_path)) == 2
    with EventStore.attach(name, path=path) as store:
        assert contents(store.peek(0)) == [BIG]
    EventStore.unlink(name, path=path)
    assert os.listdir(tmp_path) == []


def test_a_producer_killed_before_it_published(make, attach, name):
    """What a killed producer wrote and did not publish is removed by the next, and named by check until then."""
    store = make(capacity=4, memory_unit=16)
    store.put(b"first")
    store.close()
    pid = os.fork()
    if pid == 0:
        store = EventStore.attach(name)
        store.claim()
        overflow_module.write(store.segment, 1, BIG)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    store = attach()
    assert any("next producer removes it" in found for found in store.check())


def test_orphans_go_when_the_next_producer_comes(make, attach):
    """claim removes overflow segments that no event in flight names."""
    store = make(capacity=4, memory_unit=16)
    overflow_module.write(store.segment, 0, BIG)
    overflow_module.write(store.segment, 7, BIG)
    store.put(BIG)
    assert [sequence for _, sequence in overflows(store.segment)] == [0]
    assert contents(store.peek(0)) == [BIG]


@pytest.mark.parametrize("damage", ["gone", "short", "empty", "link"])
def test_a_missing_segment_is_an_error(make, damage):
    """An overflow segment that is gone, or has another size, raises StoreCorrupt; get can be tried again."""
    store = make(capacity=4, memory_unit=16)
    reader = store.subscribe("a")
    store.put(BIG)
    ((path, _),) = overflows(store.segment)
    with open(path, "rb") as file:
        whole = file.read()
    if damage == "short":
        os.truncate(path, len(BIG) - 1)
    elif damage == "empty":
        os.truncate(path, 0)
    else:
        os.unlink(path)
    if damage == "link":
        os.symlink("/dev/null", path)
    with pytest.raises(StoreCorrupt):
        _ = reader.get(timeout=0).raw
    with pytest.raises(StoreCorrupt):
        store.peek(0)
    if damage == "link":
        os.unlink(path)
    with open(path, "wb") as file:
        file.write(whole)
    reader.rollback()
    assert contents(reader.get(timeout=0)) == [BIG]


def test_no_memory_for_it(make, monkeypatch):
    """Where there is no memory for a large event, put says so and stores nothing; the next put works."""
    store = make(capacity=4, memory_unit=16)

    def full(fd: int, at: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreError, match="make space"):
        store.put(BIG)
    monkeypatch.undo()
    assert (store.newest, overflows(store.segment)) == (-1, [])
    assert store.put(BIG) == 0
