"""A store with a log: what it remembers, over reboots and beyond the ring, through the same verbs."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import shmstore.memory.mapping
from shmstore import (
    Checkpoint,
    CheckpointFile,
    EventStore,
    LayoutMismatch,
    PositionNotFound,
    StoreClosed,
    StoreExists,
    StoreFull,
    StoreNotFound,
    StoreView,
    Subscription,
    SubscriptionLost,
)
from shmstore.log import home as homes
from shmstore.log.files import LogFiles
from shmstore.memory.layout import header_word
from shmstore.ring.cursors import ACK_OF, ENTRIES, FLOOR, GET_OF, LOGGED, PUT, STATE_OF
from shmstore.ring.overflow import overflows
from shmstore.store.checkpoint import home_of
from tests.shmstore.samples import FILE, ddl, position

COMPILED = shmstore.memory.mapping.COMPILED
_numbers = itertools.count()


@pytest.fixture(params=["compiled", "python"])
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name for a store; the test runs with and without the compiled hot path."""
    if request.param == "python":
        monkeypatch.setattr(shmstore.memory.mapping, "COMPILED", False)
    elif not COMPILED:
        pytest.skip("no compiled hot path here")
    name = f"kept-{os.getpid()}-{next(_numbers)}"
    yield name
    with contextlib.suppress(StoreNotFound):
        EventStore.unlink(name, log=True)


def reboot(name: str) -> None:
    """The memory goes, as at a reboot; the disk stays."""
    os.unlink(f"/dev/shm/shmstore.{name}")


def payload(k: int) -> bytes:
    return b"event %d." % k * (1 + k % 7)


def taken(reader: Subscription, count: int, **limits: int) -> list[bytes]:
    """The next `count` payloads, got and acked."""
    found: list[bytes] = []
    while len(found) < count:
        batch = reader.get(timeout=5, **limits)
        assert batch, f"only {len(found)} of {count} came"
        found += map(bytes, batch.payloads())
        assert bytes(batch.raw) == b"".join(found[-len(batch) :])
        assert batch.ends[-1] == len(batch.raw)
        assert batch.rows == len(batch) == len(batch.slots)
        reader.ack(batch)
    return found


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


def test_a_reader_that_is_slow_reads_on_in_the_log_and_holds_nobody_up(name: str) -> None:
    """A ring of 16 events takes 5,000 while a subscription has read none of them; it then gets them all, in order, limits kept."""
    with EventStore.create(name, capacity=16) as store, store.subscribe("slow") as slow, store.subscribe("fast") as fast:
        got: list[bytes] = []
        for k in range(0, 5000, 5):
            store.put([payload(k + i) for i in range(5)], timeout=20)
            if k % 50 == 0:
                got += taken(fast, k + 5 - len(got))
        assert store.oldest == 0
        assert slow.lag_events == 5000
        batch = slow.get(limit_events=7)
        assert (batch.first, batch.last) == (0, 6)
        slow.rollback()
        batch = slow.get(limit_bytes=len(payload(0)) + len(payload(1)))
        assert (batch.first, batch.last) == (0, 1)
        slow.ack(1)
        assert taken(slow, 4998, limit_events=501) == [payload(k) for k in range(2, 5000)]
        assert got == [payload(k) for k in range(len(got))]
        assert store.check() == []


def test_a_batch_stays_what_it_was(name: str) -> None:
    """A batch that was got stays valid when the ring has gone round many times, looked at before or not, acked or not."""
    with EventStore.create(name, capacity=16) as store, store.subscribe("a") as reader:
        store.put([payload(k) for k in range(10)])
        seen, unseen = reader.get(limit_events=5), reader.get(limit_events=5)
        before = bytes(seen.raw)
        views = list(seen.payloads())
        for k in range(10, 200):
            store.put(payload(k), timeout=20)
        reader.ack(unseen)
        assert bytes(seen.raw) == before == b"".join(map(payload, range(5)))
        assert [bytes(view) for view in views] == [payload(k) for k in range(5)]
        assert [bytes(view) for view in unseen.payloads()] == [payload(k) for k in range(5, 10)]


def test_everything_is_there_after_a_reboot(name: str) -> None:
    """Events, sequences, the epoch and each subscription at its ack: also one that never acked, and one that nobody reads now."""
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


def test_a_second_reader_gets_what_the_first_has_acked(name: str) -> None:
    """``earliest`` is the log's oldest event; a sequence that was acked may be begun at."""
    with EventStore.create(name, capacity=16) as store:
        with store.subscribe("first") as first:
            for k in range(100):
                store.put(payload(k), timeout=20)
            taken(first, 100)
        with store.subscribe("second") as second, store.subscribe("third", start=40) as third:
            assert taken(second, 100) == [payload(k) for k in range(100)]
            assert taken(third, 60) == [payload(k) for k in range(40, 100)]


def test_seek_goes_back_and_forth(name: str) -> None:
    """A reader may go to any event that is kept; batches of before cannot be acked any more; the place is durable at once."""
    with EventStore.create(name, capacity=16) as store, store.subscribe("a") as reader:
        for k in range(200):
            store.put(payload(k), timeout=20)
        taken(reader, 150, limit_events=50)
        held = reader.get(limit_events=5)
        reader.seek(20)
        with pytest.raises(shmstore.AckError):
            reader.ack(held)
        assert taken(reader, 30, limit_events=30)[0] == payload(20)
        reader.seek("latest")
        assert not reader.get(timeout=0)
        reader.seek("earliest")
        store.sync()
    reboot(name)
    with EventStore.attach(name) as store, store.subscribe("a") as reader:
        assert taken(reader, 1, limit_events=1) == [payload(0)]
        with pytest.raises(PositionNotFound):
            reader.seek(201)


def test_places_are_found_in_the_log_and_in_the_ring(name: str) -> None:
    """By position, GTID set and time: the same answers whether the event has left the ring or not."""
    with EventStore.create(name, capacity=16) as store:
        for k in range(120):
            store.put([ddl(k)], timeout=20)
        for k in (0, 1, 57, 100, 117, 118, 119):
            assert store.find(position(k)) == k + 1, k
            assert store.find(datetime.fromtimestamp((1_700_000_000_000 + k) / 1000, UTC)) == k
            assert store.peek(k, limit_events=1).events == [ddl(k)]
        assert store.last_ack_point() == ddl(119).position
        assert store.find(f"{FILE}:5700") == 57


def test_a_subscription_is_durable_from_the_start(name: str) -> None:
    """It is there after a reboot though nothing was ever acked, and gone for good once it was unsubscribed."""
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
    """`clear` is as durable as an ack, for subscriptions that nobody reads, too."""
    with EventStore.create(name, capacity=16) as store:
        store.put([payload(k) for k in range(5)])
        store.subscribe("a").close()
        store.clear()
    reboot(name)
    with EventStore.attach(name) as store:
        assert {each.name: each.ack.sequence for each in store.subscriptions()} == {"a": 4}


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


def small(name: str, **options: object) -> EventStore:
    """A store with the smallest log there can be."""
    return EventStore.create(name, capacity=256, memory_unit=4096, log_size=16 << 20, **options)  # type: ignore[arg-type]


def blocks_of(store: EventStore, megabytes: int, timeout: float | None = 30.0) -> None:
    for _ in range(megabytes * 4):
        store.put([os.urandom(32768)] * 8, timeout=timeout)


def test_retention_lets_go_of_what_was_acked(name: str) -> None:
    """A log grows to its size; what everybody has acked goes first, and ``earliest`` is then what is left."""
    with small(name) as store, store.subscribe("a") as reader:
        for _ in range(40):
            blocks_of(store, 1)
            while batch := reader.get(timeout=0):
                reader.ack(batch)
        log = store.stat().log
        assert log is not None
        assert 0 < store.oldest < store.newest
        assert (
            sum(each.bytes for each in LogFiles(homes.log_folder(log.home), store.epoch, lambda: log.written).sets()) <= 18 << 20
        )
        with pytest.raises(PositionNotFound, match="keeps"):
            store.subscribe("b", start=0)
        with store.subscribe("b") as b:
            assert b.get(limit_events=1).first == store.oldest


def test_what_somebody_needs_holds_the_producer_at_the_bound(name: str) -> None:
    """With lag=block the producer waits at the log's size, the message names the reader, and it goes on when that one has read."""
    with small(name) as store, store.subscribe("slow") as slow:
        with pytest.raises(StoreFull, match=r"as large as it may be.*'slow'"):
            blocks_of(store, 40, timeout=2.0)
        stat = store.stat()
        assert stat.log is not None
        assert "slow" in stat.log.trouble
        assert "slow" in stat.holdup
        newest = store.newest
        slow.ack(slow.get(limit_bytes=4 << 20))  # at most what one file holds
        while slow.ack_cursor.sequence < newest // 2:
            slow.ack(slow.get(limit_events=8))
        blocks_of(store, 4)
        assert slow.ack_cursor.sequence >= store.oldest - 1


def read_all(reader: Subscription, timeout: float = 0) -> None:
    while batch := reader.get(timeout=timeout):
        reader.ack(batch)


def test_a_reader_behind_the_bound_is_let_go_with_evict(name: str) -> None:
    """With lag=evict the producer goes on, and the reader hears of it."""
    with small(name, lag="evict", evict_after=0.2) as store, store.subscribe("slow") as slow:
        blocks_of(store, 40)
        with pytest.raises(SubscriptionLost):
            read_all(slow)
        slow.close()
        store.close()
        reboot(name)
    with EventStore.attach(name) as store:
        with pytest.raises(SubscriptionLost):  # a reboot does not make it whole
            store.subscribe("slow")
        assert store.seek("slow", "earliest") == store.oldest - 1
        with store.subscribe("slow") as again:
            assert again.get(limit_events=1).first == store.oldest


def test_age_lets_go_of_whole_files(name: str) -> None:
    """What was acked and is older than log_keep goes, but for the newest files."""
    with small(name, log_keep=1.0) as store, store.subscribe("a") as reader:
        blocks_of(store, 6)
        while batch := reader.get(timeout=0):
            reader.ack(batch)
        until = time.monotonic() + 20
        while store.oldest == 0 and time.monotonic() < until:
            time.sleep(0.1)
        assert 0 < store.oldest <= store.newest


def test_oversized_events_go_through_the_log(name: str) -> None:
    """An event larger than the ring is kept like any other, and its own segment goes when the log has it."""
    big = [os.urandom(300_000 + k) for k in range(3)]
    with EventStore.create(name, capacity=16, memory_unit=64) as store, store.subscribe("a") as reader:
        for one in big:
            store.put(b"before")
            store.put(one, timeout=20)
        assert taken(reader, 6, limit_events=1) == [one for each in big for one in (b"before", each)]
        wait_for(lambda: overflows(store.segment) == [])
        assert store.check() == []
        store.put(b"last", timeout=20)
        store.sync()
    reboot(name)
    with EventStore.attach(name) as store, store.subscribe("b") as reader:
        assert taken(reader, 7) == [*(one for each in big for one in (b"before", each)), b"last"]
    assert not [each for each in os.listdir("/dev/shm") if each.startswith(f"shmstore.{name}@")]


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
    """Whoever waits, and a producer's heartbeat, hear within two seconds that the memory is gone; the store comes back with everything."""
    store = EventStore.create(name, capacity=16)
    reader = store.subscribe("a")
    store.put([payload(k) for k in range(3)])
    reader.ack(reader.get())
    heard: list[float] = []

    def wait() -> None:
        with EventStore.attach(name) as other, other.subscribe("b", start="latest") as waiting:
            attached.set()
            began = time.monotonic()
            with pytest.raises(StoreClosed, match="removed"):
                read_all(waiting, timeout=20)
            heard.append(time.monotonic() - began)

    attached = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    attached.wait(10)
    reboot(name)
    store.put(b"late")  # to memory that nobody else has any more; the log gets it all the same
    with pytest.raises(StoreClosed, match="removed"):
        store.heartbeat()
    with pytest.raises(StoreClosed, match="removed"):
        store.put(b"later")
    with pytest.raises(StoreClosed, match="removed"):
        read_all(reader, timeout=20)
    thread.join(20)
    assert heard
    assert heard[0] < 5
    reader.close()
    store.close()
    with EventStore.attach(name) as store:
        assert store.newest == 3
        assert store.peek(3).raw == b"late"
        assert {each.name for each in store.subscriptions()} == {"a", "b"}


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


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_disk_that_refuses_stops_the_producer_and_lets_it_go_on(name: str) -> None:
    """What the disk says is in the message, with the folder; when it takes bytes again the producer goes on, and nothing is missing."""
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


def test_options_of_a_log_are_checked(name: str) -> None:
    """A log that is too small to be one is refused, and nothing is left behind."""
    with pytest.raises(ValueError, match="16 MiB"):
        EventStore.create(name, log_size=1000)
    with pytest.raises(ValueError, match="log_keep"):
        EventStore.create(name, log_keep=-1)
    with EventStore.create(name, capacity=16) as store:
        assert store.segment.words[header_word("log_size")] == 10 << 30


def test_a_store_in_a_file_is_found_through_its_home(name: str, tmp_path: Path) -> None:
    """The home knows where the memory is: by its name alone the store is found, and put together again at the same place."""
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


def test_a_log_that_lost_what_was_on_disk_says_so(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Damage in the newest files ends the log there; the store goes on, and says what no crash could have taken."""
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
    with EventStore.attach(name) as store:
        assert store.newest == 0
        assert store.subscriptions()[0].ack.sequence == 0
    assert "ends at event 0, and subscription 'a' had acked up to 2" in caplog.text


@pytest.mark.parametrize("put", [0, 5, 15])
def test_a_ring_in_a_file_is_not_believed_after_a_crash_of_the_host(name: str, tmp_path: Path, put: int) -> None:
    """Its pages reach the disk in any order; what it says is made again from the log, and nobody has acked what is not there."""
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


def test_who_attaches_while_a_store_is_made_waits_for_it(name: str) -> None:
    """A home that is there before its memory is no store to put together again: creator and attacher get the same one, every time."""
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


def fill(store: EventStore) -> None:
    for _ in range(40):
        store.put(b"more", timeout=1)


def test_a_sync_that_fails_is_not_taken_for_one_that_did_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error of the device nothing counts as on disk any more, whatever a later sync says, and the producer stops and says so."""
    with EventStore.create(name, capacity=16) as store:
        store.put(b"one")
        assert store.sync() == 0

        def broken(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fdatasync", broken)
        store.put(b"two")
        assert store.sync(timeout=0.5) == 0
        monkeypatch.undo()
        assert store.sync(timeout=0.5) == 0
        with pytest.raises(StoreFull, match=r"Input/output error; see what the kernel says"):
            fill(store)
        monkeypatch.setattr(shmstore.store.store, "FLUSHING", 0.1)
    with EventStore.attach(name) as store:
        store.claim()
        assert store.sync() == store.newest


def test_an_upgrade_goes_on_where_readers_of_the_old_version_were(name: str) -> None:
    """The checkpoint of a reader of a store without a home says where it goes on in the new one, which has a log: what it had acked is
    passed over, and from then on its durable ack is a sequence."""
    state = home_of(name)
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
        assert not home_of(name).exists()
    over.set()
    for thread in threads:
        thread.join(20)
    assert errors == []
