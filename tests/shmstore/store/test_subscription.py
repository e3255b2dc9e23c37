"""Subscription: get within its limits, ack, rollback, ownership."""

from __future__ import annotations

import gc
import os
import signal
import time

import pytest

from shmstore import (
    AckError,
    BatchMode,
    CheckpointFile,
    EventStore,
    PositionNotFound,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    SubscriptionInUse,
    SubscriptionNotFound,
)
from shmstore.memory.layout import subscription_word
from shmstore.ring.cursors import ARMED
from shmstore.store import subscription
from tests.shmstore.commands import until
from tests.shmstore.samples import begin, contents, ddl, encoded, end, position, rows

SOON = 30
pytestmark = pytest.mark.usefixtures("either_way")


def test_get_gives_at_least_one_event(make):
    """Whatever the limits, a get gives at least one event where one is there, and no more than the limits allow beyond it."""
    store = make(capacity=16, memory_unit=10)
    reader = store.subscribe("a")
    store.put([b"x" * 25, b"y" * 4, b"z" * 4, b"w" * 4])
    assert contents(reader.get(limit_bytes=10, timeout=0)) == [b"x" * 25]
    assert contents(reader.get(limit_bytes=10, timeout=0)) == [b"y" * 4, b"z" * 4]
    reader.rollback()
    assert contents(reader.get(limit_bytes=30, timeout=0)) == [b"x" * 25, b"y" * 4]
    reader.rollback()
    assert contents(reader.get(limit_events=3, limit_bytes=30, timeout=0)) == [b"x" * 25, b"y" * 4]
    reader.rollback()
    assert contents(reader.get(limit_events=1, limit_bytes=3000, timeout=0)) == [b"x" * 25]
    reader.rollback()
    assert contents(reader.get(limit_events=4, limit_bytes=28, timeout=0)) == [b"x" * 25]


def test_a_limit_of_bytes_is_filled_with_what_came_since_the_last_get(make):
    """What an earlier get had seen, and left for its limit, is no batch of its own."""
    store = make(capacity=16)
    reader = store.subscribe("a")
    store.put([b"a" * 4, b"b" * 4, b"c" * 4, b"d" * 4])
    assert len(reader.get(limit_bytes=12, timeout=0)) == 3
    store.put([b"e" * 4, b"f" * 4, b"g" * 4])
    assert contents(reader.get(limit_bytes=12, timeout=0)) == [b"d" * 4, b"e" * 4, b"f" * 4]


@pytest.mark.parametrize(
    "limits",
    [{"limit_events": 0}, {"limit_events": -3}, {"min_events": 0}, {"min_events": 9}, {"limit_events": 2, "min_events": 3}],
)
@pytest.mark.parametrize("filled", [False, True])
def test_limits_that_cannot_be_met(make, limits, filled):
    """A get that could never return what is asked raises at once, and moves nothing."""
    store = make(capacity=8)
    reader = store.subscribe("a")
    if filled:
        store.put([b"1", b"2", b"3"])
        reader.get(limit_events=2, timeout=0)
    before = reader.get_cursor
    with pytest.raises(ValueError):  # noqa: PT011
        reader.get(timeout=0, **limits)
    with pytest.raises(ValueError):  # noqa: PT011
        reader.get(timeout=-1, min_events=8)
    assert reader.get_cursor == before


@pytest.mark.parametrize("mode", BatchMode)
def test_a_limit_counts_events(make, mode):
    """A limit without a unit is in events, whatever the store's batch mode; below one event it is refused."""
    store = make(capacity=8, memory_unit=10, batch_mode=mode)
    reader = store.subscribe("a")
    store.put([b"1", b"2", b"3"])
    with pytest.raises(ValueError, match="limit"):
        reader.get(0, timeout=0)
    assert contents(reader.get(2, timeout=0)) == [b"1", b"2"]
    assert contents(reader.get(2, timeout=0)) == [b"3"]
    reader.rollback()
    assert contents(reader.get(limit=2, limit_events=1, timeout=0)) == [b"1"]
    assert contents(reader.get(1, limit_events=2, timeout=0)) == [b"2"]


def test_waiting_for_some_and_for_many(make, attach, start, no_slices):
    """A get waits for as many as asked; at its deadline it returns the events so far, perhaps none."""
    store = make(capacity=16)
    reader = attach().subscribe("a")
    assert not reader.get(timeout=0.01)
    assert not reader.get(timeout=0, min_events=3)
    store.put([b"1", b"2"])
    assert contents(reader.get(timeout=0.01, min_events=3)) == [b"1", b"2"]
    waiting = start(reader.get, min_events=3)
    for _ in range(3):
        assert not waiting.done()
        store.put(b"x")
    assert len(waiting.result(SOON)) == 3


def test_an_interrupt_ends_a_wait(make, interrupted):
    """Ctrl-C and SIGTERM end a waiting get at once; nothing was taken, and the next get works."""
    store = make()
    reader = store.subscribe("a")
    interrupted(lambda: reader.get(timeout=SOON))
    store.put(b"x")
    assert contents(reader.get(timeout=0)) == [b"x"]


def test_interrupt_ends_a_wait_from_another_thread(make, start, no_slices):
    """Subscription.interrupt ends the wait that runs, or the next one, once."""
    reader = make().subscribe("a")
    waiting = start(reader.get)
    reader.interrupt()
    assert not waiting.result(SOON)
    reader.interrupt()
    assert not reader.get()
    assert not reader.get(timeout=0.01)


# ---------------------------------------------------------------- ack


def test_ack_by_batch_sequence_and_position(make):
    """The three ways to ack do the same, cumulatively."""
    store = make(capacity=16, memory_unit=1024)
    reader = store.subscribe("a")
    store.put([begin(0), rows(1), end(2), begin(3), rows(4), end(5)])
    one, two = reader.get(limit_events=2, timeout=0), reader.get(limit_events=2, timeout=0)
    reader.ack(two)
    assert reader.ack_cursor.sequence == 3
    with pytest.raises(AckError):
        reader.ack(one)
    reader.get(timeout=0)
    reader.ack(4)
    assert reader.ack_cursor.sequence == 4
    reader.ack(position(5))
    assert reader.ack_cursor == reader.get_cursor == store.put_cursor
    with pytest.raises(AckError):
        reader.ack(position(5))


def test_only_what_was_got_can_be_acked(make):
    """An ack ahead of get, behind ack, of another's batch or of a peek raises AckError and moves nothing."""
    store = make(capacity=16)
    reader = store.subscribe("a")
    store.put([b"1", b"2", b"3", b"4"])
    batch = reader.get(limit_events=2, timeout=0)
    for wrong in (2, 3, 99, -1, -2, 2**62, position(1), store.peek(0)):
        with pytest.raises(AckError):
            reader.ack(wrong)
        assert reader.ack_cursor.sequence == -1
    reader.ack(batch)
    for wrong in (batch, 0, 1):
        with pytest.raises(AckError):
            reader.ack(wrong)
    assert reader.ack_cursor.sequence == 1


def test_an_empty_batch_is_acked_by_doing_nothing(make):
    """ack of an empty batch is no error and moves nothing; so a loop need not ask."""
    store = make()
    reader = store.subscribe("a")
    reader.ack(reader.get(timeout=0))
    store.put(b"1")
    empty = reader.peek(0) if hasattr(reader, "peek") else store.peek(1)
    reader.ack(empty)
    assert reader.lag_events == 1


@pytest.mark.parametrize("wrong", [None, "0", 1.5, object()])
def test_an_ack_of_nonsense_is_refused(make, wrong):
    """What is neither batch, sequence nor position raises, and moves nothing."""
    store = make()
    reader = store.subscribe("a")
    store.put([b"1", b"2", b"3"])
    reader.get(timeout=0)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        reader.ack(wrong)
    assert reader.ack_cursor.sequence == -1


# ---------------------------------------------------------------- rollback


def test_rollback_gives_everything_again(make):
    """After rollback all that was not acked comes again, in the same order; what was acked does not."""
    store = make(capacity=16)
    reader = store.subscribe("a")
    store.put([b"%d" % i for i in range(6)])
    reader.ack(reader.get(limit_events=2, timeout=0))
    held = reader.get(limit_events=2, timeout=0)
    reader.get(timeout=0)
    reader.rollback()
    with pytest.raises(AckError):
        reader.ack(held)
    assert contents(reader.get(timeout=0)) == [b"2", b"3", b"4", b"5"]


def test_earlier_batches_survive_a_rollback(make):
    """A batch before the one rolled back can still be acked; a rollback of one that is stale or acked raises."""
    store = make(capacity=16)
    reader = store.subscribe("a")
    store.put([b"%d" % i for i in range(6)])
    one, two, three = (reader.get(limit_events=2, timeout=0) for _ in range(3))
    reader.rollback(two)
    for stale in (two, three):
        with pytest.raises(AckError):
            reader.rollback(stale)
    reader.ack(one)
    with pytest.raises(AckError):
        reader.rollback(one)
    assert contents(reader.get(timeout=0)) == [b"2", b"3", b"4", b"5"]


def test_stale_stays_stale_through_many_rollbacks(make):
    """However rollbacks and gets alternate, a batch is stale once any rollback took one of its events back."""
    store = make(capacity=16)
    reader = store.subscribe("a")
    store.put([b"%d" % i for i in range(8)])
    old = [reader.get(limit_events=2, timeout=0) for _ in range(4)]
    reader.rollback(old[3])
    new = [reader.get(limit_events=2, timeout=0)]
    reader.rollback(old[1])
    for stale in (old[1], old[2], old[3], new[0]):
        with pytest.raises(AckError):
            reader.ack(stale)
    again = [reader.get(limit_events=3, timeout=0) for _ in range(2)]
    reader.rollback(again[1])
    for stale in (*old[1:], *new, again[1]):
        with pytest.raises(AckError):
            reader.ack(stale)
    reader.ack(old[0])
    reader.ack(again[0])
    assert reader.ack_cursor.sequence == 4
    for stale in (*old, *new, *again):
        with pytest.raises(AckError):
            reader.ack(stale)


def test_many_rollbacks_cost_no_memory(make):
    """A reader that rolls back forever remembers a bounded number of rollbacks."""
    store = make(capacity=8)
    reader = store.subscribe("a")
    held = []
    for i in range(2000):
        store.put(b"%d" % i)
        held.append(reader.get(timeout=0))
        if i % 3:
            reader.rollback(held[-1])
            reader.rollback()
        else:
            reader.rollback()
            held.append(reader.get(timeout=0))
            reader.ack(held[-1])
        assert len(reader._valid) <= 8
    reader.rollback()
    for stale in held:
        if stale:
            with pytest.raises(AckError):
                reader.ack(stale)


# ---------------------------------------------------------------- life


def test_one_reader_at_a_time(make, attach):
    """A second reader of a subscription is refused while the first lives, in the same process or another."""
    store = make()
    first = store.subscribe("a")
    with pytest.raises(SubscriptionInUse, match=str(os.getpid())):
        attach().subscribe("a")
    with pytest.raises(SubscriptionInUse):
        store.subscribe("a")
    with pytest.raises(SubscriptionInUse):
        store.unsubscribe("a")
    first.close()
    first.close()
    attach().subscribe("a")


def test_who_is_refused_is_told_no_pid_of_nobody(make, attach):
    """While its owner has noted away its pid, as a process does that is about to end, a reader is refused without one."""
    reader = make().subscribe("a")
    reader._resign()
    for refused in (lambda: attach().subscribe("a"), lambda: attach().unsubscribe("a")):
        with pytest.raises(SubscriptionInUse, match="is let go or moved by a process right now: try again"):
            refused()


def test_a_known_name_goes_on_after_its_ack(make):
    """A subscription outlives its reader: the next one starts after the last ack, whatever start it names."""
    store = make(capacity=16)
    with store.subscribe("a") as reader:
        store.put([b"1", b"2", b"3"])
        reader.ack(reader.get(limit_events=1, timeout=0))
        reader.get(timeout=0)
    for start in ("latest", "earliest", 0):
        with store.subscribe("a", start=start) as reader:
            assert contents(reader.get(timeout=0)) == [b"2", b"3"]


def test_a_killed_reader_loses_nothing_and_repeats_no_ack(make, attach, name):
    """A reader killed with -9 frees its subscription; what it acked does not come again, what it only got does."""
    store = make(capacity=16)
    store.subscribe("a").close()
    store.put([b"1", b"2", b"3"])
    pid = os.fork()
    if pid == 0:
        reader = EventStore.attach(name).subscribe("a")
        reader.ack(reader.get(limit_events=1, timeout=0))
        reader.get(timeout=0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert any("died" in found for found in store.check())
    (stat,) = store.subscriptions()
    assert (stat.alive, stat.owner_pid, stat.ack.sequence, stat.get.sequence) == (False, pid, 0, 2)
    assert contents(attach().subscribe("a").get(timeout=0)) == [b"2", b"3"]


def test_a_closed_subscription_says_so(make):
    """Every verb of a closed subscription raises StoreClosed."""
    store = make()
    reader = store.subscribe("a")
    store.put(b"x")
    batch = reader.get(timeout=0)
    reader.close()
    for call in (
        lambda: reader.get(timeout=0),
        lambda: reader.get(timeout=None, min_events=2),
        lambda: reader.ack(batch),
        lambda: reader.ack(0),
        reader.rollback,
        lambda: reader.get_cursor,
        lambda: reader.ack_cursor,
        lambda: reader.lag_events,
    ):
        with pytest.raises(StoreClosed):
            call()


def test_a_subscription_stays_owned_while_its_store_is_open(make, attach):
    """A subscription is owned until it or its store is closed, even when no code holds the object."""
    store, other = make(), attach()
    store.subscribe("a")
    gc.collect()
    with pytest.raises(SubscriptionInUse):
        other.subscribe("a")
    store.close()
    other.subscribe("a")


def test_cursors_are_whole(make):
    """Sequence, bytes, rows and time of get and ack are those of one and the same event."""
    store = make(capacity=16, memory_unit=1024)
    reader = store.subscribe("a")
    sizes = []
    for i in range(1, 5):
        store.put(rows(i, count=i))
        sizes.append(len(store.peek(i - 1).raw))
    reader.ack(reader.get(limit_events=2, timeout=0))
    reader.get(limit_events=1, timeout=0)
    assert reader.ack_cursor == (1, sum(sizes[:2]), 3, 1_700_000_000_002)
    assert reader.get_cursor == (2, sum(sizes[:3]), 6, 1_700_000_000_003)
    assert store.put_cursor == (3, sum(sizes), 10, 1_700_000_000_004)
    assert reader.lag_events == 2


# ---------------------------------------------------------------- starts


def test_starts(make):
    """A new subscription starts at the earliest kept, the latest, a sequence, or after a position."""
    store = make(capacity=16, memory_unit=1024)
    store.subscribe("holder", start="earliest").close()
    store.put([begin(0), rows(1), end(2), begin(3)])
    for start, first in (("earliest", 0), ("latest", 4), (0, 0), (3, 3), (4, 4), (position(1), 2), (position(3), 4)):
        with store.subscribe("new", start=start) as reader:
            assert reader.get(timeout=0).first == first
            assert reader.lag_events == 4 - first
        store.unsubscribe("new")


@pytest.mark.parametrize("start", [5, -1, 1, 2**62, -(2**62), position(0), position(99)])
def test_starts_that_are_gone_or_to_come(make, start):
    """A start that is no longer kept, or not yet there, raises PositionNotFound and makes no subscription."""
    store = make(capacity=16, memory_unit=1024)
    with store.subscribe("a") as reader:
        store.put([begin(0), rows(1), end(2), begin(3)])
        reader.ack(reader.get(limit_events=2, timeout=0))
        if start == position(99):
            assert store.find(start) == 4  # after the last event there is nothing, and that is known
            return
        with pytest.raises(PositionNotFound):
            store.subscribe("new", start=start)
    assert [stat.name for stat in store.subscriptions()] == ["a"]
    assert store.check() == []


@pytest.mark.parametrize("start", ["first", "", None, 1.5, b"latest"])
def test_starts_that_are_none(make, start):
    """A start that is no start is refused with its alternatives; no subscription is made."""
    store = make()
    with pytest.raises((ValueError, TypeError)):
        store.subscribe("a", start=start)
    assert store.subscriptions() == ()
    store.subscribe("a")


@pytest.mark.parametrize("wrong", ["", "a/b", "é", "x" * 65, "a\n", None, "-a"])
def test_names_that_cannot_be(make, wrong):
    """A subscription's name obeys the rules of names, and 64 bytes."""
    with pytest.raises(ValueError, match="name"):
        make().subscribe(wrong)


def test_there_is_space_for_sixty_three(make):
    """63 subscriptions fit; the next one gets an error that says what to do, and an entry that was freed is used again."""
    store = make()
    store.put([b"1", b"2"])
    for i in range(63):
        with store.subscribe(f"s{i}") as reader:
            assert len(reader.get(timeout=0)) == 2
    with pytest.raises(StoreError, match="unsubscribe"):
        store.subscribe("one-more")
    store.unsubscribe("s31")
    store.subscribe("one-more").close()
    assert {stat.name for stat in store.subscriptions()} == {f"s{i}" for i in range(63) if i != 31} | {"one-more"}
    with pytest.raises(SubscriptionNotFound, match="s0"):
        store.unsubscribe("s31")


# ---------------------------------------------------------------- damage


def test_a_damaged_payload_is_not_delivered(make):
    """With checksums a damaged event raises StoreCorrupt, and get does not move over it."""
    store = make(capacity=8, checksum=True)
    reader = store.subscribe("a")
    store.put([b"good", b"evil"])
    store.segment.views.arena[5] ^= 1
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="event 1"):
            reader.get(timeout=0)
    assert reader.get_cursor.sequence == -1
    assert contents(reader.get(limit_events=1, timeout=0)) == [b"good"]


def test_ddl_isolation_over_many_gets(make):
    """With DDL isolation each DDL is a batch of its own, also when it is waited for."""
    store = make(capacity=16, memory_unit=1024, ddl_isolation=True)
    reader = store.subscribe("a")
    store.put([begin(0), rows(1), end(2), ddl(3), ddl(4), begin(5)])
    got = []
    while batch := reader.get(timeout=0):
        got.append([event.position.offset // 100 - 1 for event in batch])
    assert got == [[0, 1, 2], [3], [4], [5]]
    reader.rollback()
    assert len(reader.get(timeout=0, min_events=3)) == 3
    assert [event.entry.name for event in reader.get(timeout=0, min_events=2)] == ["DDL"]


def test_slots_of_raw_events(make):
    """put_encoded keeps the slot records as they were given."""
    store = make(capacity=16)
    reader = store.subscribe("a")
    blob, slots = encoded([b"a", b"bc"], rows=[3, 4])
    store.put_encoded(blob, slots)
    assert (reader.get(timeout=0).slots == slots).all()


# ---------------------------------------------------------------- spin


def test_a_spinning_reader_gets_what_comes(make, attach, start):
    """A get that looks for events for a while finds them without being woken, ends at its time-out and when it is interrupted."""
    store = make(capacity=8)
    reader = attach().subscribe("a")
    reader.spin = SOON
    got = start(reader.get, timeout=SOON)
    time.sleep(0.05)
    assert store.segment.words[ARMED] == 0  # it does not sleep
    store.put(b"x")
    assert contents(got.result(SOON)) == [b"x"]
    assert not reader.get(timeout=0.05)
    got = start(reader.get, timeout=SOON)
    time.sleep(0.05)
    reader.interrupt()
    assert not got.result(SOON)


def test_a_spin_too_short_ends_in_a_sleep(make, attach, start, no_slices):
    """When nothing came while it looked, the reader sleeps, and is woken as ever, again and again."""
    store = make(capacity=8)
    reader = attach().subscribe("a")
    reader.spin = 1e-4
    for i in range(20):
        got = start(reader.get, timeout=SOON)
        time.sleep(0.005 if i % 2 else 0)
        store.put(b"%d" % i)
        batch = got.result(SOON)
        assert contents(batch) == [b"%d" % i]
        reader.ack(batch)


def test_a_reader_in_full_flow_goes_on_looking(make, start, monkeypatch, no_slices):
    """Once a wait was short, the reader looks for events before it sleeps, and does so again for as long as a short look finds some."""
    reader, got = hurried(make, start, monkeypatch, brief=SOON)
    for i in range(5):
        reader.ack(got.result(SOON))
        got = start(reader.get, timeout=SOON)
        time.sleep(0.02)
        assert reader.store.segment.words[ARMED] == 0  # it does not sleep
        reader.store.put(b"%d" % i)
        assert contents(got.result(SOON)) == [b"%d" % i]


def test_a_long_look_is_followed_by_a_sleep(make, start, monkeypatch, no_slices):
    """A look that took as long as a sleep costs is not repeated: the next wait sleeps at once."""
    reader, got = hurried(make, start, monkeypatch, brief=0.0)
    reader.ack(got.result(SOON))
    got = start(reader.get, timeout=SOON)
    time.sleep(0.02)
    assert reader.store.segment.words[ARMED] == 0  # it looks
    reader.store.put(b"found by looking")
    reader.ack(got.result(SOON))
    got = asleep(reader, start)
    reader.store.put(b"found by waking")
    assert contents(got.result(SOON)) == [b"found by waking"]


@pytest.mark.parametrize("n", [1, 2])
def test_events_that_came_before_the_sleep_end_a_short_wait(make, start, monkeypatch, no_slices, n):
    """A reader that arms itself and finds that events have come meanwhile does not sleep, and looks before its next sleep, too."""
    waits(monkeypatch, short=SOON, look=SOON, brief=SOON)
    store = make(capacity=8)
    reader = store.subscribe("a")
    store.put([b"1", b"2"])
    armed = reader._reader.try_wait(None, SOON, SOON) if n == 1 else None
    reader.ack(armed or reader.get(min_events=2, timeout=SOON))
    store.segment.words[ARMED] = 0
    got = start(reader.get, min_events=n, timeout=SOON)
    time.sleep(0.02)
    assert store.segment.words[ARMED] == 0  # it does not sleep
    store.put([b"3", b"4"])
    assert contents(got.result(SOON)) == [b"3", b"4"]


def test_a_look_in_vain_is_a_part_of_the_wait(make, start, monkeypatch, no_slices):
    """A wait that had looked for too long is no short one, however short its sleep was: the next wait sleeps at once."""
    reader, got = hurried(make, start, monkeypatch, brief=SOON)
    reader.ack(got.result(SOON))
    waits(monkeypatch, short=0.05, look=0.05, brief=SOON)
    reader._tune()
    got = asleep(reader, start)
    reader.store.put(b"soon after the look")
    reader.ack(got.result(SOON))
    waits(monkeypatch, short=0.05, look=SOON, brief=SOON)
    reader._tune()
    got = asleep(reader, start)
    reader.store.put(b"found by waking")
    assert contents(got.result(SOON)) == [b"found by waking"]


def waits(monkeypatch, *, short, look, brief):
    """Let readers take a wait of less than `short` seconds for short, look for `look`, and take a look of less than `brief` for short."""
    for name, seconds in (("BUSY", short), ("LOOK", look / subscription.SPINS), ("BRIEF", brief)):
        monkeypatch.setattr(subscription, name, seconds)


def hurried(make, start, monkeypatch, *, brief):
    """A reader whose wait was short, as every one is here and every look is long, and what it gets by that."""
    waits(monkeypatch, short=SOON, look=SOON, brief=brief)
    store = make(capacity=8)
    reader = store.subscribe("a")
    got = asleep(reader, start)
    store.put(b"first")
    return reader, got


def asleep(reader, start):
    """A get that has looked in vain, and is about to sleep."""
    words, heartbeat = reader.store.segment.words, subscription_word(reader.entry, "heartbeat_ms")
    words[heartbeat] = 0
    got = start(reader.get, timeout=SOON)
    until(lambda: words[heartbeat])
    return got


def test_rollback_to_a_sequence(make):
    """A rollback to a sequence gives it and what follows again; the batch that it cut is stale, what lies before it can be acked."""
    store = make(capacity=8)
    reader = store.subscribe("a")
    store.put([b"1", b"2", b"3", b"4", b"5"])
    first, second = reader.get(limit_events=2, timeout=0), reader.get(timeout=0)
    reader.rollback(3)
    with pytest.raises(AckError, match="stale"):
        reader.ack(second)
    assert contents(reader.get(timeout=0)) == [b"4", b"5"]
    reader.ack(first)
    for sequence in (1, 6):
        with pytest.raises(AckError, match=f"{sequence} cannot be rolled back: 'a' has acked up to 1 and got up to 4"):
            reader.rollback(sequence)
    assert reader.get_cursor.sequence == 4
    reader.ack(4)


@pytest.mark.parametrize("by", ["batch", "sequence"])
def test_an_ack_whose_checkpoint_was_refused(make, name, tmp_path, by):
    """Where the disk refuses the checkpoint the ack counts, and called again it writes that alone: it is no error, and moves nothing."""
    store = make(capacity=8, memory_unit=1024)
    file = CheckpointFile(tmp_path / "state", name, "a")
    reader = store.subscribe("a", checkpoint=file, checkpoint_interval=0)
    store.put([begin(0), rows(1), end(2), begin(3)])
    batch = reader.get(limit_events=3, timeout=0)
    what = batch if by == "batch" else 2
    (tmp_path / "state").write_text("no folder")
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be written"):
            reader.ack(what)
        assert reader.ack_cursor.sequence == 2
    (tmp_path / "state").unlink()
    reader.ack(what)
    assert file.load().sequence == 2
    with pytest.raises(AckError):
        reader.ack(what)  # stale, as ever
    assert contents(reader.get(timeout=0)) != []


def test_a_close_whose_checkpoint_is_refused(make, name, tmp_path):
    """It raises, and the subscription is closed all the same, for its next owner."""
    store = make(capacity=8, memory_unit=1024)
    reader = store.subscribe("a", checkpoint=CheckpointFile(tmp_path / "state", name, "a"), checkpoint_interval=3600)
    reader._saved_at = time.monotonic()
    store.put([begin(0), end(1)])
    reader.ack(reader.get(timeout=0))
    (tmp_path / "state").write_text("no folder")
    with pytest.raises(StoreError, match="cannot be written"):
        reader.close()
    with pytest.raises(StoreClosed):
        reader.get(timeout=0)
    reader.close()
    with store.subscribe("a") as following:
        assert following.ack_cursor.sequence == 1


def test_a_store_closes_all_that_it_can(make, attach, name, tmp_path):
    """Where the disk refuses a checkpoint the store is closed all the same, with all its roles, and then says so."""
    store, other = make(capacity=8, memory_unit=1024), attach()
    readers = [
        store.subscribe(each, checkpoint=CheckpointFile(tmp_path / each, name, each), checkpoint_interval=3600) for each in "abc"
    ]
    store.put([begin(0), end(1)])
    for reader in readers:
        reader._saved_at = time.monotonic()
        reader.ack(reader.get(timeout=0))
    (tmp_path / "b").write_text("no folder")
    with pytest.raises(StoreError, match="cannot be written"):
        store.close()
    with pytest.raises(StoreClosed):
        store.stat()
    other.claim()
    assert [stat.alive for stat in other.subscriptions()] == [False] * 3
    assert [(tmp_path / each / name / f"{each}.json").exists() for each in "ac"] == [True] * 2
