"""The faults of Alibaba Canal's memory store and its surroundings that this store does not repeat.

Each docstring names the promise; the comment says what Canal does, so that the test would fail on it.
"""

from __future__ import annotations

import pytest

from shmstore import AckError, BatchMode, BatchTooLarge, CheckpointFile, EventStore, StoreFull
from shmstore.encoding.codec import encode
from shmstore.memory import layout as segment_layout
from tests.shmstore.samples import DDL, begin, contents, ddl, encoded, end, position, rows

SOON = 30  # seconds until a thread that should have come back counts as stuck


def test_01_limits_beyond_two_gigabytes(name):
    """A store of 2 GiB and a get of 4 GiB work: limits are 64-bit."""
    # Canal: bufferSize * memUnit and batch * memUnit are int products; put never succeeds, get indexes an empty list.
    with EventStore.create(name, capacity=1024, memory_unit=2**21, log=False) as store, store.subscribe("a") as reader:
        assert store.limit_bytes == 2**31
        store.put([b"x", b"y"], timeout=0)
        assert len(reader.get(limit_bytes=2**32, timeout=0)) == 2
        reader.rollback()
        assert len(reader.get(limit_bytes=2**43, timeout=0)) == 2
    EventStore.unlink(name)
    big = segment_layout.sizes(2**26, 2**42)
    assert big.total > 2**42
    assert big.slot_count == 2**27


def test_02_the_incoming_bytes_count(make):
    """A put is admitted only when it fits with the present events: the limit binds to the byte."""
    # Canal: only the bytes already there are compared with the limit, so any list is let in below it.
    store = make(capacity=8, memory_unit=64)
    reader = store.subscribe("a")
    store.put(b"x" * 500, timeout=0)
    with pytest.raises(StoreFull):
        store.put(b"y" * 13, timeout=0)
    with pytest.raises(StoreFull):
        store.put([b"y" * 6, b"z" * 7], timeout=0)
    store.put(b"y" * 12, timeout=0)
    assert store.stat().free_bytes == 0
    assert contents(reader.get(timeout=0)) == [b"x" * 500, b"y" * 12]


def test_03_a_list_that_can_never_fit(make):
    """A list longer, or larger, than the ring raises at once, whatever the time-out; nothing of it is stored."""
    # Canal: a list longer than bufferSize never fits; the sink spins forever.
    store = make(capacity=8, memory_unit=64)
    for too_much in ([b"x"] * 9, [b"x" * 300, b"y" * 300]):
        with pytest.raises(BatchTooLarge):
            store.put(too_much, timeout=None)
    assert store.newest == -1
    assert store.put([b"x"] * 8, timeout=0) == 7


def test_04_waiting_for_many_and_waiting_for_space(make, attach, start, no_slices):
    """A reader that waits for more than can come before it acks takes the present events when the producer wants space."""
    # Canal #2228: get(7) waits for a seventh event, put(12) waits for free space: both forever.
    store = make(capacity=16, memory_unit=64)
    reader = attach().subscribe("a")
    store.put([b"1"] * 6)
    waiting = start(reader.get, min_events=7)
    putting = start(store.put, [b"2"] * 12)
    batch = waiting.result(SOON)
    assert contents(batch) == [b"1"] * 6
    reader.ack(batch)
    assert putting.result(SOON) == 17
    assert len(reader.get(min_events=12, timeout=SOON)) == 12


def test_04_also_when_the_producer_only_tries(make, attach, start, no_slices):
    """The same holds for a producer that tries with timeout=0 again and again, as Canal's sink does."""
    store = make(capacity=16, memory_unit=64)
    reader = attach().subscribe("a")
    store.put([b"1"] * 6)
    waiting = start(reader.get, min_events=7)
    while not waiting.done():
        with pytest.raises(StoreFull):
            store.put([b"2"] * 12, timeout=0)
    reader.ack(waiting.result(SOON))
    assert store.put([b"2"] * 12, timeout=0) == 17


def test_05_each_waiter_is_woken_for_its_own_condition(make, attach, start, no_slices):
    """One event wakes the reader that waits for one, and not the reader that waits for five."""
    # Canal: signal() wakes any one waiter of the condition, perhaps the one that cannot continue; the right one sleeps.
    store = make(capacity=16, memory_unit=64)
    many, one = attach().subscribe("many"), attach().subscribe("one")
    first_many = start(many.get, min_events=5)
    first_one = start(one.get)
    store.put(b"1")
    assert contents(first_one.result(SOON)) == [b"1"]
    assert not first_many.done()
    second_one = start(one.get)
    store.put([b"2", b"3", b"4", b"5"])
    assert contents(first_many.result(SOON)) == [b"1", b"2", b"3", b"4", b"5"]
    assert second_one.result(SOON).first == 1


def test_06_bytes_stay_right_when_ddl_comes_alone(make):
    """With DDL isolation the bytes of get, ack and put agree after every step: a DDL's bytes count like others'."""
    # Canal: a DDL returned alone adds nothing to getMem, but its ack adds its size: getMem drifts below the truth.
    store = make(capacity=16, memory_unit=64, ddl_isolation=True)
    reader = store.subscribe("a")
    store.put_encoded(*encoded([b"a" * 10, b"b" * 20, b"c" * 30, b"d" * 40], flags=[0, DDL, DDL, 0]))
    taken = 0
    for size in (10, 20, 30, 40):
        batch = reader.get(timeout=0)
        assert [len(payload) for payload in contents(batch)] == [size]
        taken += size
        assert reader.get_cursor.bytes == taken
        reader.ack(batch)
        assert reader.ack_cursor.bytes == taken
    assert reader.get_cursor == reader.ack_cursor == store.put_cursor
    assert store.stat().free_bytes == store.limit_bytes


def test_07_a_rollback_takes_back_the_later_batches(make):
    """After rollback(batch) the later batches are stale: their acks raise, and all their events are given again."""
    # Canal: the store goes back, but later ids stay ackable; such an ack passes get and drops events.
    store = make(capacity=16, memory_unit=64)
    reader = store.subscribe("a")
    store.put([b"1", b"2", b"3", b"4"])
    one, two, three = (reader.get(limit_events=1, timeout=0) for _ in range(3))
    reader.ack(one)
    reader.rollback(two)
    for stale in (three, two):
        with pytest.raises(AckError):
            reader.ack(stale)
    again = reader.get(timeout=0)
    assert contents(again) == [b"2", b"3", b"4"]
    for stale in (two, three):  # although get stands behind them again
        with pytest.raises(AckError):
            reader.ack(stale)
    reader.ack(again)
    assert reader.ack_cursor.sequence == reader.get_cursor.sequence == 3


def test_08_an_ack_that_fails_changes_nothing(make):
    """An ack that raises moves no cursor, forgets no batch and frees no space; the right one still works."""
    # Canal: the batch is removed and the cursor moved before the store's ack; when that throws, the space is never freed.
    store = make(capacity=4, memory_unit=64)
    reader = store.subscribe("a")
    store.put([b"1", b"2", b"3", b"4"])
    batch = reader.get(limit_events=2, timeout=0)
    for wrong in (2, 99, -1, position(5)):
        with pytest.raises(AckError):
            reader.ack(wrong)
    assert (reader.ack_cursor.sequence, reader.get_cursor.sequence) == (-1, 1)
    with pytest.raises(StoreFull):
        store.put(b"5", timeout=0)
    reader.ack(batch)
    assert store.put([b"5", b"6"], timeout=0) == 5


def test_09_no_start_gives_an_event_twice(make):
    """A subscription that starts at the position of an event begins with the next one, nothing got or acked yet."""
    # Canal: `included` makes get begin AT the last event got; with nothing got it reads the last slot, null.
    store = make(capacity=16, memory_unit=1024)
    store.put([begin(0), rows(1), end(2)])
    with store.subscribe("at-first", start=position(0)) as reader:
        assert [event.position for event in reader.get(timeout=0)] == [position(1), position(2)]
    with store.subscribe("at-last", start=store.latest_position) as reader:
        assert not reader.get(timeout=0)
        store.put(begin(3))
        assert reader.get(timeout=0).events == [begin(3)]


def test_10_the_first_position_means_one_thing(make):
    """first_position is the oldest event kept, or the last event put when all are acked: before and after acks."""
    # Canal: the first event while nothing is acked, then the last ACKED one; it changed between versions.
    store = make(capacity=16, memory_unit=1024)
    reader = store.subscribe("a")
    assert store.first_position is None
    store.put([begin(0), rows(1), end(2)])
    assert store.first_position == begin(0).position
    reader.ack(reader.get(limit_events=2, timeout=0))
    assert store.first_position == position(2)
    reader.ack(reader.get(timeout=0))
    assert store.first_position == store.latest_position == position(2)


@pytest.mark.parametrize("last", [end(2), ddl(2)])
def test_11_a_checkpoint_is_the_end_of_the_transaction(make, name, tmp_path, last):
    """A reader resumed from its checkpoint begins after the transaction end or DDL that it acked."""
    # Canal: the cursor is the START of the last END or DDL: a restart replays it, the DDL too.
    file = CheckpointFile(tmp_path, name, "a")
    store = make(capacity=16, memory_unit=1024)
    store.claim(start=position(-1))
    reader = store.subscribe("a", checkpoint=file)
    store.put([begin(0), rows(1), last, begin(3)])
    reader.ack(reader.get(timeout=0))
    store.close()
    assert file.load().position == last.position
    EventStore.unlink(name)
    store = make(capacity=16, memory_unit=1024)
    store.claim(start=position(-1))
    store.put([begin(0), rows(1), last, begin(3), rows(4), end(5)])
    assert store.subscribe("a", checkpoint=file).get(timeout=0).events == [begin(3), rows(4), end(5)]


def test_12_the_begin_of_a_transaction_is_no_ack_point(make, name, tmp_path):
    """A checkpoint never stands inside a transaction, though its BEGIN carries the transaction's own GTID set."""
    # Canal: gtid on every entry contains that very transaction, so a cursor on BEGIN loses the transaction.
    file = CheckpointFile(tmp_path, name, "a")
    store = make(capacity=16, memory_unit=1024)
    reader = store.subscribe("a", checkpoint=file, checkpoint_interval=0)
    store.put([end(0, "u:1-8"), begin(1), rows(2)])
    assert begin(1).position.gtids == "u:1-9"
    reader.ack(reader.get(limit_events=1, timeout=0))
    batch = reader.get(timeout=0)
    assert batch.ack_point is None
    assert not batch.ends_transaction
    reader.ack(batch)
    assert file.load().position.gtids == "u:1-8"
    store.put(end(3, "u:1-9"))
    reader.ack(reader.get(timeout=0))
    assert file.load().position.gtids == "u:1-9"


def test_13_a_gtid_inside_an_interval_does_not_shrink_it():
    """Merging GTID intervals takes the larger end: an old or contained GTID never makes the set smaller."""
    # Canal: the later interval's end replaces the earlier one's, and what lies between is delivered again.
    from shmstore.producer.gtid import GtidSet

    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    seen = GtidSet(f"{uuid}:1-100")
    for gtid in (f"{uuid}:50", f"{uuid}:1", f"{uuid}:100"):
        seen.add(gtid)
    seen.update(GtidSet(f"{uuid}:20-30"))
    assert str(seen) == f"{uuid}:1-100"
    assert seen.covers(GtidSet(f"{uuid}:1-100"))


def test_14_a_transaction_end_put_alone_counts(make):
    """The end of a transaction is where a producer continues, even when it was put alone."""
    # Canal: buildLastTransactionPosition skips index 0, so a flush of END alone is not recorded.
    store = make(capacity=16, memory_unit=1024)
    store.put([begin(0), rows(1)])
    assert store.last_ack_point() is None
    store.put(end(2))
    assert store.last_ack_point() == position(2)
    store.put([end(3)])
    assert store.last_ack_point() == position(3)


def test_15_a_split_transaction_sent_again_is_stored_once(make, attach):
    """A producer that died inside a large transaction can put what is missing of it, and nothing twice."""
    # Canal: a transaction larger than the buffer is split; after a reconnect all of it comes again behind the stored part.
    source = [end(0), begin(1), rows(2, part=0), rows(3, part=1), rows(4, part=1), end(5)]
    store = make(capacity=16, memory_unit=1024)
    store.claim(start=position(-1))
    reader = attach().subscribe("a")
    store.put(source[:1])
    store.put(source[1:3])  # the first part
    store.close()
    successor = attach()
    assert successor.last_ack_point() == position(0)  # where the source is opened again
    stored = successor.latest_position  # up to where what comes again is there already
    again = [event for event in source if event.position.order > successor.last_ack_point().order]
    successor.put([event for event in again if event.position.order > stored.order])
    assert [encode(event) for event in reader.get(timeout=0)] == [encode(event) for event in source]


def test_counts_in_both_modes(make):
    """A get's limit counts events in ITEMSIZE, and memory units in MEMSIZE."""
    store = make(capacity=16, memory_unit=4, batch_mode=BatchMode.ITEMSIZE)
    reader = store.subscribe("a")
    store.put([b"12345678"] * 4)
    assert len(reader.get(3, timeout=0)) == 3
