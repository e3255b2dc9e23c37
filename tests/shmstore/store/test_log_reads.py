"""Reading a store with a log beyond the ring, through the same verbs; what retention keeps and lets go."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import shmstore.memory.mapping
from shmstore import (
    Batch,
    EventStore,
    PositionNotFound,
    StoreClosed,
    StoreCorrupt,
    StoreNotFound,
    StoreView,
    SubscriptionLost,
)
from shmstore.home.home import Home
from shmstore.log.files import LogFiles, log_of
from shmstore.ring.overflow import overflows
from tests.shmstore.samples import FILE, ddl, position
from tests.shmstore.store.logged import payload, read_all, reboot, refused_at_the_bound, taken, wait_for


@pytest.fixture(name="name")
def _name(both_ways: str) -> str:
    return both_ways


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


def filled(store: EventStore, events: int) -> list[bytes]:
    """Put so many events, several blocks of the log in several sets; return them."""
    payloads = [payload(k) for k in range(events)]
    for k in range(0, events, 500):
        store.put(payloads[k : k + 500], timeout=20)
    assert store.sync(timeout=20) == events - 1
    return payloads


def test_batches_behind_the_ring_are_as_large_as_asked_for(name: str) -> None:
    """Over the ends of blocks, which say what was checked at once, but not over those of sets of files; a rollback gives the same again."""
    with small(name, capacity=1024) as store, store.subscribe("a") as reader:
        payloads = filled(store, 60_000)
        log = log_of(store.segment)
        lasts = [first - 1 for first in log.refresh()[1:]]
        assert len(lasts) >= 3
        assert len(log.set_of(0, 59_999)[0]._blocks) >= 3
        got: list[bytes] = []
        while reader.ack_cursor.sequence < store.newest:
            batch = reader.get(limit_events=700, timeout=0)
            assert len(batch) == 700 or batch.last in (*lasts, store.newest)
            got += map(bytes, batch.payloads())
            again = reader.get(limit_events=10, timeout=0)
            if again:
                reader.rollback(again)
            reader.ack(batch)
            if len(got) == 14_000:
                reader.seek(700)
                assert [bytes(each) for each in reader.get(limit_events=3).payloads()] == payloads[700:703]
                reader.seek(14_000)
        assert got == payloads


def damage(store: EventStore) -> tuple[int, int]:
    """Damage a block of the log, the third; return its first event, and the one behind it."""
    found = log_of(store.segment).set_of(0, store.newest)[0]
    damaged = found._blocks[2]
    with open(found.stem.with_suffix(".events"), "r+b") as file:
        file.seek(int(damaged["at"]) + 5)
        byte = file.read(1)[0]
        file.seek(int(damaged["at"]) + 5)
        file.write(bytes([byte ^ 1]))
    return int(damaged["first"]), int(damaged["first"] + damaged["count"])


def test_a_damaged_block_ends_what_is_read_ahead(name: str) -> None:
    """All before it is given, in batches that are whole; then an error names what is lost, and a reader may continue behind it."""
    with small(name, capacity=1024) as store, store.subscribe("a") as reader:
        payloads = filled(store, 20_000)
        first, behind = damage(store)
        assert taken(reader, first, limit_events=300) == payloads[:first]
        with pytest.raises(StoreCorrupt, match=rf"events {first} to {behind - 1} of the log are lost"):
            reader.get(limit_events=300)
        reader.seek(behind)
        assert taken(reader, 20_000 - behind, limit_events=300) == payloads[behind:]


@pytest.mark.parametrize("seed", range(4))
def test_read_gives_each_event_once(name: str, seed: int) -> None:
    """Any run of events, out of log and ring, whole and in order, in batches within the limits; up to the newest where no end is given."""
    pick = random.Random(seed)
    with small(name, capacity=1024) as store:
        payloads = filled(store, 6000)
        for _ in range(20):
            first = pick.randrange(6000)
            last = pick.choice([None, pick.randrange(first, 6000), first - 1])
            events, size = pick.choice([None, 1, 700, 5000]), pick.choice([None, 1, 3000, 1 << 20])
            if 1 in (events, size):
                first = max(first, 5900)
                last = last if last is None else max(first - 1, last)
            found = list(store.read(first, last, limit_events=events, limit_bytes=size))
            wanted = payloads[first : 6000 if last is None else last + 1]
            assert [bytes(each) for batch in found for each in batch.payloads()] == wanted, f"seed {seed}"
            assert all(len(batch) <= (events or 6000) for batch in found)
            assert all(len(batch) == 1 or len(batch.raw) <= (size or 1 << 30) for batch in found)


def test_read_comes_upon_what_comes_meanwhile(name: str) -> None:
    """Without an end it reads what was put since it began, too; behind the newest there is nothing, and further on nothing can be."""
    with small(name, capacity=1024) as store:
        payloads = filled(store, 1000)
        batches = store.read(0, limit_events=600)
        assert len(next(batches)) == 600
        store.put([b"late"] * 10)
        assert [bytes(each) for batch in batches for each in batch.payloads()] == payloads[600:] + [b"late"] * 10
        assert list(store.read(1010)) == []
        with pytest.raises(PositionNotFound):
            list(store.read(1011, gone=lambda *_: pytest.fail("they are to come")))


def read_through(read: Callable[[Callable[[int, int], None]], Iterator[Batch]]) -> tuple[list[bytes], list[tuple[int, int]]]:
    """The payloads that `read` gives, and the events that the function which it takes heard of."""
    lost: list[tuple[int, int]] = []
    found = [bytes(each) for batch in read(lambda first, last: lost.append((first, last))) for each in batch.payloads()]
    return found, lost


def test_read_passes_over_what_is_gone_or_damaged(name: str) -> None:
    """Without `gone` and `damaged` it is an error; with them reading continues behind, and they hear which events these are."""
    with small(name, capacity=1024) as store:
        payloads = filled(store, 20_000)
        first, behind = damage(store)
        for last in (19_999, None):
            with pytest.raises(StoreCorrupt, match="are lost"):
                list(store.read(0, last))
            found, lost = read_through(lambda heard, last=last: store.read(0, last, damaged=heard))  # type: ignore[misc]
            assert found == payloads[:first] + payloads[behind:]
            assert lost == [(k, k) for k in range(first, behind)]
        assert store.trim(19_999).files
        oldest = store.oldest
        with pytest.raises(PositionNotFound):
            list(store.read(5, oldest + 3))
        for last, gone in ((oldest + 3, oldest - 1), (oldest - 1, oldest - 1), (9, 9)):
            found, lost = read_through(lambda heard, last=last: store.read(5, last, gone=heard))  # type: ignore[misc]
            assert (found, lost) == (payloads[oldest : last + 1], [(5, gone)])


def test_attach_again_finds_what_has_the_name_now(name: str) -> None:
    """Put together again from its home, for a reader alike; created again, as another epoch says, or else as an error; not there."""
    with EventStore.create(name, capacity=64) as store, StoreView.attach(name) as view:
        store.put(payload(0))
        assert store.sync() == 0
        reboot(name)
        store.close()
        with pytest.raises(StoreNotFound):
            view.attach_again(restore=False)
        with view.attach_again(same=True) as again, again.attach_again() as twice:
            assert type(again) is type(twice) is StoreView
            assert bytes(next(again.read(0)).raw) == payload(0)
        view.close()
        EventStore.unlink(name, log=True)
        with pytest.raises(StoreNotFound):
            view.attach_again()
        with EventStore.create(name, capacity=64), view.attach_again() as another:  # one that is closed knows where it was
            assert another.epoch != view.epoch
            with pytest.raises(StoreClosed, match="another one has its name"):
                view.attach_again(same=True)
            with store.attach_again() as whole:
                whole.put(payload(1))


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_advance_is_a_get_that_reads_nothing(name: str, log: bool, seed: int) -> None:
    """Two readers of the same events, of which one gets what the other advances over: they are given, and may ack, the same from there on."""
    pick = random.Random(seed)
    with EventStore.create(name, capacity=64, memory_unit=64, log=log, ddl_isolation=pick.random() < 0.5) as store:
        got, advanced = store.subscribe("got"), store.subscribe("advanced")
        for k in range(300):
            store.put(payload(k), timeout=20)
            if k % pick.randint(1, 40):
                continue
            to = pick.randint(got.ack_cursor.sequence, store.newest + 3)
            while (left := to - got.get_cursor.sequence) > 0 and got.get(limit_events=left, timeout=0):
                pass
            advanced.advance(to)
            assert advanced.get_cursor == got.get_cursor, f"seed {seed}"
            batches = [each.get(limit_events=5, timeout=0) for each in (got, advanced)]
            assert [bytes(each) for each in batches[0].payloads()] == [bytes(each) for each in batches[1].payloads()]
            for reader in (got, advanced):
                if pick.random() < 0.5:
                    reader.rollback()
                reader.advance(store.newest)
                reader.ack(store.newest)


def test_advance_does_not_look_at_damage(name: str) -> None:
    """A reader that has the events already need not be able to read them."""
    with small(name, capacity=1024) as store, store.subscribe("a") as reader:
        payloads = filled(store, 20_000)
        _, behind = damage(store)
        reader.advance(behind - 1)
        reader.ack(behind - 1)
        reader.advance(5)  # never back
        assert taken(reader, 90, limit_events=30) == payloads[behind : behind + 90]


def test_a_file_that_was_cut_is_not_touched(name: str) -> None:
    """A batch got before is refused with an error that names the file: what is mapped and not there any more would end the process."""
    with small(name, capacity=1024) as store, store.subscribe("a") as reader:
        filled(store, 20_000)
        batches = [reader.get(limit_events=300) for _ in range(3)]
        path = log_of(store.segment).set_of(0, 19_999)[0].stem.with_suffix(".events")
        with open(path, "r+b") as file:
            file.truncate(len(batches[0].raw) + 4096)
        assert batches[0].rows == 300
        with pytest.raises(StoreCorrupt, match=rf"{path}.* is damaged"):
            _ = batches[2].raw


def test_memory_of_what_was_read_is_let_go(name: str) -> None:
    """A reader far behind keeps a few megabytes of the files in its memory, not all that it has read."""
    with small(name, log_size=512 << 20) as store, store.subscribe("a") as reader:  # sets of 32 MiB
        blocks_of(store, 30)
        store.sync(timeout=20)
        most = 0
        while batch := reader.get(limit_events=4, timeout=0):
            _ = bytes(batch.raw), batch.rows
            reader.ack(batch)
            most = max(most, resident(store))
        assert 0 < most <= 8 << 20


def resident(store: EventStore) -> int:
    """Bytes of the log's events that are in this process's memory."""
    found, within = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            within = str(store.segment.home) in line and line.endswith(".events")
        elif within and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


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


def small(name: str, **options: object) -> EventStore:
    """A store with the smallest log there can be, unless `options` say more."""
    return EventStore.create(name, **{"capacity": 256, "memory_unit": 4096, "log_size": 16 << 20, **options})  # type: ignore[arg-type]


def blocks_of(store: EventStore, megabytes: int, timeout: float | None = 30.0) -> None:
    for _ in range(megabytes * 4):
        store.put([os.urandom(32768)] * 8, timeout=timeout)


def test_retention_lets_go_of_what_was_acked(name: str) -> None:
    """A log grows to its size; what all readers have acked goes first, and ``earliest`` is then what is left."""
    with small(name) as store, store.subscribe("a") as reader:
        for _ in range(40):
            blocks_of(store, 1)
            while batch := reader.get(timeout=0):
                reader.ack(batch)
        log = store.stat().log
        assert log is not None
        assert 0 < store.oldest < store.newest
        assert sum(each.bytes for each in LogFiles(Home(log.home).log, store.epoch, lambda: log.written).sets()) <= 18 << 20
        with pytest.raises(PositionNotFound, match="keeps"):
            store.subscribe("b", start=0)
        with store.subscribe("b") as b:
            assert b.get(limit_events=1).first == store.oldest


def test_what_somebody_needs_holds_the_producer_at_the_bound(name: str) -> None:
    """With lag=block the producer waits at the log's size, the message names the reader, and it continues when that one has read."""
    with small(name) as store, store.subscribe("slow") as slow:
        assert "'slow'" in refused_at_the_bound(lambda: blocks_of(store, 40, timeout=2.0))
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


def test_a_reader_behind_the_bound_is_let_go_with_evict(name: str) -> None:
    """With lag=evict the producer continues, and the reader hears of it."""
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
