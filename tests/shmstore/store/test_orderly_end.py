"""What put() returned, and acks of it, outlive an orderly end, whatever the log was doing; and what a close cannot keep it says."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import re
import signal
import sys
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from types import SimpleNamespace

import pytest

from shmstore import EventStore, StoreError, StoreFull
from shmstore.errors import refused
from shmstore.log import keeper as keepers
from tests.shmstore.store.logged import read_all, reboot, refused_at_the_bound, wait_for

BIG = os.urandom(4000)


def fill(store: EventStore) -> None:
    """Put until there is no free space: because of the log's bound."""
    refused_at_the_bound(lambda: put_all(store, 80_000))


def put_all(store: EventStore, count: int) -> None:
    for _ in range(0, count, 16):
        store.put([BIG] * 16, timeout=1)


def full(name: str, state: Path) -> tuple[EventStore, EventStore]:
    """A store whose log is at its bound, held by reader "slow"; "fast" has acked all that was put."""
    store = EventStore.create(name, state=state, capacity=256, memory_unit=4096, log_size=16 << 20, log_keep=0)
    readers = EventStore.attach(name, state=state)
    readers.subscribe("slow").close()
    fill(store)
    fast = readers.subscribe("fast")
    read_all(fast)
    assert store.stat().log.written < store.newest  # type: ignore[union-attr]
    return store, readers


@pytest.mark.parametrize("first", ["readers", "producer"])
def test_a_log_at_its_bound(store_name: str, tmp_path: Path, first: str) -> None:
    """The log takes what is in the ring alone when its producer ends, and the acks of it, in whatever order both close."""
    store, readers = full(store_name, tmp_path)
    newest = store.newest
    for each in (readers, store) if first == "readers" else (store, readers):
        each.close()
    reboot(store_name)
    with EventStore.attach(store_name, state=tmp_path) as again:
        assert again.newest == newest
        assert {each.name: each.ack.sequence for each in again.subscriptions()} == {"fast": newest, "slow": -1}
        assert bytes(again.peek(newest).raw) == BIG
        fill(again)  # the bound holds as before


def test_a_log_at_its_bound_whose_memory_is_taken_away(store_name: str, tmp_path: Path) -> None:
    """So it is where the memory is removed under the producer, which notices it."""
    store, readers = full(store_name, tmp_path)
    newest = store.newest
    reboot(store_name)
    wait_for(lambda: store._keeper is None or not store._keeper._threads[1].is_alive())
    with EventStore.attach(store_name, state=tmp_path) as again:
        assert again.newest == newest
    readers.close()
    store.close()


def _produce(name: str, state: Path, put: Flag, end: Flag) -> None:
    with EventStore.attach(name, state=state) as store:
        store.claim()
        store.put([b"%d" % i for i in range(100)])
        put.set()
        end.wait(60)


def test_a_reader_that_closes_before_the_disk_has_its_ack(
    store_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, and the producer makes the ack durable with the disk: also where the producer is killed later."""
    EventStore.create(store_name, state=tmp_path).close()
    spawn = multiprocessing.get_context("spawn")
    put, end = spawn.Event(), spawn.Event()
    producer = spawn.Process(target=_produce, args=(store_name, tmp_path, put, end))
    producer.start()
    with EventStore.attach(store_name, state=tmp_path) as store:
        reader = store.subscribe("a")
        assert put.wait(60)
        batch = reader.get()
        os.kill(producer.pid or 0, signal.SIGSTOP)
        os.waitid(os.P_PID, producer.pid or 0, os.WSTOPPED)  # all its threads stand still
        durable = tmp_path / store_name / "a.json"
        before = durable.read_text()
        synced = store.stat().log.synced  # type: ignore[union-attr]
        reader.ack(batch)
        with caplog.at_level(logging.WARNING, "shmstore"):
            reader.close()
        if synced < batch.last:
            assert f"has acked up to {batch.last}, and the log is on disk up to" in caplog.text
            assert durable.read_text() == before
        os.kill(producer.pid or 0, signal.SIGCONT)
        wait_for(lambda: f'"sequence": {batch.last}' in durable.read_text())
    producer.kill()
    producer.join()
    reboot(store_name)
    with EventStore.attach(store_name, state=tmp_path) as again:
        assert [each.ack.sequence for each in again.subscriptions()] == [99]


def test_a_disk_that_refuses_is_told_at_the_end(
    store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be kept is named, with the reason."""
    store = EventStore.create(store_name, state=tmp_path)
    store.put(b"1")
    store.sync()
    monkeypatch.setattr("shmstore.store.store.FLUSHING", 0.5)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(keepers.os, "fdatasync", refuse)
    store.put(b"2")
    store.close()
    assert "has events up to 0 on disk, and 1 were put" in caplog.text
    assert "in shared memory alone (No space left on device)" in caplog.text


def test_a_wish_that_was_met(store_name: str) -> None:
    """A put that gave up wishes for free space; one after it that is stored takes the wish back: no reader holds up the producer then."""
    with EventStore.create(store_name, log=False, capacity=8, memory_unit=64) as store:
        reader = store.subscribe("a")
        store.put([b"1", b"2"])
        with pytest.raises(StoreFull):
            store.put([b"x"] * 7, timeout=0)
        store.put(b"3")
        store.put(b"4")
        reader.close()
        store.unsubscribe("a")
        assert (store.oldest, store.newest) == (0, 3)
        assert [bytes(each) for each in store.subscribe("b").get().payloads()] == [b"1", b"2", b"3", b"4"]


def test_a_store_without_events_is_not_cut(store_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A producer that put nothing, or nothing into its last file, and ended in order leaves nothing that would be cut."""
    with caplog.at_level(logging.INFO, "shmstore"):
        with EventStore.create(store_name, state=tmp_path) as store:
            store.claim()
        EventStore.unlink(store_name)
        with EventStore.attach(store_name, state=tmp_path) as store:
            store.claim()
            assert store.put(b"1") == 0
    assert "cut" not in caplog.text


def test_memory_that_cannot_be_mapped() -> None:
    """The advice is about the limits of mappings, not about rights."""
    error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    assert "ulimit -v" in str(refused("the log in /x cannot be read", error, "let this user read there"))
    assert "let this user" not in str(refused("the log in /x cannot be read", error, "let this user read there"))


@pytest.mark.parametrize(
    ("module", "asks", "fix"),
    [
        ("gevent.monkey", "is_module_patched", "monkey.patch_all(thread=False)"),
        ("eventlet.patcher", "is_monkey_patched", "monkey_patch(thread=False)"),
    ],
)
def test_greenlets_in_the_place_of_threads(
    store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, asks: str, fix: str
) -> None:
    """The log's threads would wait forever, and the process with them: a producer refuses, and says what helps; a reader need not."""
    with EventStore.create(store_name, state=tmp_path) as store:
        store.put(b"1")
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{asks: lambda name: name in ("thread", "threading")}))
    with EventStore.attach(store_name, state=tmp_path) as store:
        with pytest.raises(StoreError, match=re.escape(f"or call `{fix}`")):
            store.put(b"2")
        assert bytes(store.subscribe("a").get(timeout=0).raw) == b"1"
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{asks: lambda name: False}))
        assert store.put(b"2") == 1
