"""close() frees what a store has in this process at once: memory, mapped files, descriptors; and idle readers let the disk have theirs."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmstore import EventStore, StoreClosed, StoreView
from shmstore.consumer import Consumer
from shmstore.consumer.monitoring.metrics import look, prometheus
from shmstore.consumer.monitoring.table_counts import Counting
from tests.shmstore.store.logged import taken, wait_for

BIG = os.urandom(4000)
pytestmark = pytest.mark.usefixtures("either_way")


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """What is freed is freed without the collector of cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Held:
    """What this process has of a store: mappings of its segment, mappings of its log's files, descriptors of any of them."""

    def __init__(self, name: str, state: Path) -> None:
        self._segment = os.stat(f"/dev/shm/shmstore.{name}").st_ino
        self._home = f"{state}/{name}/"

    @property
    def now(self) -> tuple[int, int, int]:
        maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
        segment = sum(int(line[4]) == self._segment and "/dev/shm/" in line[5] for line in maps if len(line) > 5)
        files = sum(line[5].startswith(self._home) for line in maps if len(line) > 5)
        return segment, files, len(list(self._descriptors()))

    @property
    def removed(self) -> int:
        """Bytes of removed files of the log that are still mapped."""
        lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if self._home in line and "(deleted)" in line]
        spans = [[int(part, 16) for part in line.split()[0].split("-")] for line in lines]
        return sum(end - start for start, end in spans)

    def _descriptors(self) -> Iterator[int]:
        for fd in os.listdir("/proc/self/fd"):
            try:
                target, inode = os.readlink(f"/proc/self/fd/{fd}"), os.stat(f"/proc/self/fd/{fd}").st_ino
            except OSError:
                continue
            if target.startswith(self._home) or (inode == self._segment and "/dev/shm" in target):
                yield int(fd)


def filled(name: str, state: Path, *, log: bool = True) -> EventStore:
    """A store whose log has several files."""
    store = EventStore.create(name, capacity=64, memory_unit=4096, log=log, log_size=16 << 20, log_keep=3600, state=state)
    reader = None if log else store.subscribe("first")
    for _ in range(20):
        store.put([BIG] * 60)
        if reader is not None:
            reader.ack(reader.get())
    if log:  # until the keeper rests, it opens and closes files of the log
        store.sync(store.newest, 10)
        wait_for(lambda: all((state / name / "log" / f"next.{kind}").exists() for kind in ("events", "slots", "blocks")))
    return store


@pytest.mark.parametrize("log", [True, False])
def test_close_frees_all(store_name: str, tmp_path: Path, log: bool) -> None:
    """Producer, reader, view: after close() nothing of the store is mapped or open, and each use says that it is closed."""
    producer = filled(store_name, tmp_path, log=log)
    held = Held(store_name, tmp_path)
    assert held.now > (0, 0, 0)
    producer.close()
    assert held.now == (0, 0, 0)
    store = EventStore.attach(store_name, state=tmp_path)
    reader = store.subscribe("a")
    if log:
        reader.seek("earliest")
        taken(reader, 500)
        assert held.now[1] > 0
    store.put(b"x")
    reader.ack(reader.get(timeout=0, limit_events=1))
    view = StoreView.attach(store_name, state=tmp_path)
    view.stat(), view.find("earliest"), view.find("2023-01-01"), view.peek(view.oldest), view.check()
    view.close()
    store.close()
    assert held.now == (0, 0, 0)
    assert (store.name, view.name, reader.name, store.capacity) == (store_name, store_name, "a", 64)
    for use in (
        lambda: store.put(b"x"),
        lambda: store.newest,
        store.stat,
        view.stat,
        lambda: view.newest,
        lambda: store.subscribe("b"),
    ):
        with pytest.raises(StoreClosed, match=f"store '{store_name}' is closed: attach again"):
            use()
    for use in (reader.get, lambda: reader.ack(3), lambda: reader.lag_events, lambda: reader.seek("latest"), reader.rollback):
        with pytest.raises(StoreClosed, match="the subscription is closed"):
            use()
    reader.interrupt()
    for closed in (reader, store, view, producer):
        closed.close()


@pytest.mark.parametrize("looked", [True, False])
def test_a_batch_that_is_held(store_name: str, tmp_path: Path, looked: bool) -> None:
    """A batch stays valid after close(), also where its bytes were not looked at; what it needs is freed with it."""
    with filled(store_name, tmp_path) as producer:
        held = Held(store_name, tmp_path)
        before = held.now
        store = EventStore.attach(store_name, state=tmp_path)
        reader = store.subscribe("a")
        reader.seek("earliest")
        logged = reader.get(limit_events=100)
        reader.seek(producer.newest - 9)
        recent = reader.get()
        if looked:
            assert len(logged.raw), len(recent.raw)
        reader.close()
        store.close()
        assert list(map(bytes, logged.payloads())) == [BIG] * 100
        assert list(map(bytes, recent.payloads())) == [BIG] * 10
        assert held.now != before
        del logged, recent
        assert held.now == before


def test_readers_that_close(store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer, tail, /metrics and the counts of tables hold nothing after they end; of a removed store, nothing after a look."""
    monkeypatch.setenv("SHMSTORE_STATE", str(tmp_path))
    producer = filled(store_name, tmp_path)
    held = Held(store_name, tmp_path)
    before = held.now
    with Consumer(store_name, "audit", timeout=0, limit_events=100) as consumer:
        assert sum(map(len, consumer)) == 1200
    del consumer
    assert held.now == before
    prometheus(*look([store_name]))
    assert held.now == before
    counting = Counting(lambda: [store_name])
    counting.start()
    assert held.now != before
    producer.close()
    EventStore.unlink(store_name, log=True, state=tmp_path)
    wait_for(lambda: held.now == (0, 0, 0))
    counting.close()


def test_a_fork_after_a_close(store_name: str, tmp_path: Path) -> None:
    """A closed store, and one that is closed in the child, keep no other from giving its roles up in a forked child."""
    with filled(store_name, tmp_path) as store:
        others = [EventStore.attach(store_name, state=tmp_path) for _ in range(8)]
        readers = [each.subscribe(f"r{i}") for i, each in enumerate(others)]
        for each in others[::2]:
            each.close()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for call in (lambda: store.put(b"x"), *(reader.get for reader in readers)):
                    with pytest.raises(StoreClosed):
                        call()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        for each in others:
            each.close()


def test_many_closes(store_name: str, tmp_path: Path) -> None:
    """A process that attaches and closes again and again has the same descriptors in the end."""
    with filled(store_name, tmp_path):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            with EventStore.attach(store_name, state=tmp_path) as store, store.subscribe("a") as reader:
                reader.seek("earliest")
                taken(reader, 300, limit_events=100)
        wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.parametrize("idle", ["waits", "busy", "view"])
def test_removed_files_are_let_go(store_name: str, tmp_path: Path, idle: str) -> None:
    """What retention removes is not mapped for long: by a reader that waits, one that is busy with what it read, one that only looked."""
    with filled(store_name, tmp_path) as producer, EventStore.attach(store_name, state=tmp_path) as store:
        held = Held(store_name, tmp_path)
        reader = store.subscribe("a")
        producer.resize(log_keep=0)  # now: it removes what no reader has read yet
        view = StoreView.attach(store_name, state=tmp_path)
        if idle == "view":
            view.peek(0, limit_events=10)
            view.peek(500, limit_events=10)
            reader.seek("latest")
        else:
            taken(reader, 1200, limit_events=100)
        if idle == "waits":
            producer.put(BIG)
            taken(reader, 1)
        assert held.now[1] > 0
        until = time.monotonic() + 20
        while producer.oldest == 0 or held.removed:
            assert time.monotonic() < until, f"oldest {producer.oldest}, {held.removed} bytes of removed files are mapped"
            if idle == "waits":
                reader.get(timeout=0.1)
            else:
                time.sleep(0.1)
        assert producer.oldest > 0
        view.close()
