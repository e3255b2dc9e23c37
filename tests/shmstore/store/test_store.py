"""EventStore: put in all its forms, waiting, roles, ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType
from typing import Any

import numpy as np
import pytest

import shmstore.ring.cursors
import shmstore.store.backpressure
import shmstore.store.store
from shmstore import BatchMode, BatchTooLarge, EventStore, PositionNotFound, ProducerInUse, StoreClosed, StoreFull
from shmstore.memory.layout import DISARMED, MAX_SEQUENCE, header_word
from shmstore.ring.cursors import ACK_WANTED
from tests.shmstore.samples import begin, contents, ddl, encoded, end, position, rows

SOON = 30
pytestmark = pytest.mark.usefixtures("either_way")


def test_every_way_of_putting(make):
    """One event, many, encoded ones: each returns the last sequence, and all are read in order."""
    store = make(capacity=32, memory_unit=1024)
    reader = store.subscribe("a")
    assert store.put(begin(0)) == 0
    assert store.put([rows(1), rows(2)]) == 2
    assert store.put((end(3),)) == 3
    assert reader.get(timeout=0).events == [begin(0), rows(1), rows(2), end(3)]
    assert store.put(b"raw") == 4
    assert store.put([b"a", b"b"]) == 6
    assert store.put_encoded(*encoded([b"c", b"d"])) == 8
    assert store.put_encoded(memoryview(b"ef"), encoded([b"e", b"f"])[1]) == 10
    assert contents(reader.get(timeout=0)) == [b"raw", b"a", b"b", b"c", b"d", b"e", b"f"]


def test_bytes_of_every_kind_can_be_put(make):
    """A bytearray, a memoryview, wide items, a mixture, a tuple: their bytes are what is read."""
    store = make(capacity=32)
    reader = store.subscribe("a")
    wide = memoryview(np.array([1, 2], "<u4"))
    for given, payloads in (
        (bytearray(b"ab"), [b"ab"]),
        (memoryview(b"cd")[::-1], [b"dc"]),
        (wide, [bytes(wide)]),
        ((b"x", b"y"), [b"x", b"y"]),
        ([bytearray(b"x"), b"y", memoryview(b"z")], [b"x", b"y", b"z"]),
        ([b"x", wide], [b"x", bytes(wide)]),
    ):
        store.put(given)
        assert contents(reader.get(timeout=0)) == payloads


def test_nothing_put_is_nothing_done(make):
    """Empty lists store nothing and do not even claim the store."""
    store = make()
    assert store.put([]) == -1
    assert store.put_encoded(*encoded([])) == -1
    assert store.stat().producer_pid == 0


@pytest.mark.parametrize(
    "wrong",
    [5, "text", None, object(), {"a": 1}, [None], [b"x", None], [b"x", "y"], ["x", b"y"], [rows(1), b"x"], [b"x", rows(1)]],
)
def test_what_is_no_event_is_refused(make, wrong):
    """Anything but events and bytes raises, and nothing of it is stored; the next put is right."""
    store = make(memory_unit=1024)
    store.put(b"before")
    with pytest.raises(TypeError):
        store.put(wrong)
    assert store.newest == 0
    store.put(b"after")
    assert contents(store.peek(0)) == [b"before", b"after"]
    assert store.check() == []


@pytest.mark.parametrize(
    ("blob", "slots"),
    [
        (b"abc", encoded([b"ab"])[1]),
        (b"", encoded([b"ab"])[1]),
        (b"ab", np.zeros(1, np.int64)),
        (b"", encoded([b""])[1]),
        (b"ab", encoded([b"ab", b""])[1]),
    ],
)
def test_slots_that_contradict_the_blob_are_refused(make, blob, slots):
    """put_encoded refuses slots of another type, sizes that do not sum to the blob, and events without bytes. Nothing of them is in the store."""
    store = make()
    store.put(b"before")
    with pytest.raises(ValueError):  # noqa: PT011  three different messages
        store.put_encoded(blob, slots)
    assert store.newest == 0
    store.put_encoded(*encoded([b"after", b"it"], rows=[3, 4]))
    assert contents(store.peek(0)) == [b"before", b"after", b"it"]
    assert store.put_cursor.rows == 8
    assert store.check() == []


def test_a_strided_slot_array_is_stored_as_it_reads(make):
    """Slots may be any view: every second record of an array, for one."""
    store = make()
    slots = encoded([b"a", b"-", b"b", b"-"], rows=[1, 9, 2, 9])[1]
    store.put_encoded(b"ab", slots[::2])
    batch = store.peek(0)
    assert contents(batch) == [b"a", b"b"]
    assert batch.rows == 3


def test_all_or_nothing(make):
    """A list that does not fit now stores none of its events; the deadline says StoreFull and names who holds it up."""
    store = make(capacity=4)
    store.subscribe("slow")
    store.put([b"1", b"2"])
    for timeout in (0, 0.05):
        with pytest.raises(StoreFull, match="slow"):
            store.put([b"3", b"4", b"5"], timeout=timeout)
    assert store.newest == 1
    with pytest.raises(TimeoutError):
        store.put([b"3", b"4", b"5"], timeout=0)


def test_what_nobody_subscribed_to_is_kept_for_the_first(make):
    """Before a reader subscribes events are kept, up to the capacity; the first subscriber gets them all."""
    store = make(capacity=4)
    store.put([b"1", b"2", b"3", b"4"])
    with pytest.raises(StoreFull, match="there is no subscription"):
        store.put(b"5", timeout=0)
    reader = store.subscribe("a")
    assert contents(reader.get(timeout=0)) == [b"1", b"2", b"3", b"4"]


def test_space_is_freed_at_the_slowest(make):
    """Every subscription holds back what it has not acked; space comes when the last of them acks."""
    store = make(capacity=4)
    fast, slow = store.subscribe("fast"), store.subscribe("slow")
    store.put([b"1", b"2", b"3", b"4"])
    fast.ack(fast.get(timeout=0))
    with pytest.raises(StoreFull):
        store.put(b"5", timeout=0)
    slow.ack(slow.get(limit_events=1, timeout=0))
    assert store.put(b"5", timeout=0) == 4
    assert store.oldest == 1
    assert contents(fast.get(timeout=0)) == [b"5"]
    assert contents(slow.get(timeout=0)) + contents(slow.get(timeout=0)) == [b"2", b"3", b"4", b"5"]


def test_a_producer_that_waits_in_full_flow_takes_what_space_there_is(make, attach, start, no_slices):
    """A producer that was woken again and again, and waits for a share of the ring, puts though its reader acks one event and stops."""
    store = make(capacity=64)
    reader = attach().subscribe("a")
    store.put([b"x"] * 64)
    for i in range(200):
        putting = start(store.put, b"%d" % i)
        while store.segment.words[ACK_WANTED] == DISARMED and not putting.done():
            time.sleep(0)
        reader.ack(reader.get(limit_events=1))
        assert putting.result(SOON) == 64 + i


def test_a_producer_that_waits_is_woken_by_the_ack(make, attach, start, no_slices):
    """A blocked put continues when the ack that makes space comes, and not before."""
    store, other = make(capacity=4), attach()
    fast, slow = other.subscribe("fast"), other.subscribe("slow")
    store.put([b"1", b"2", b"3", b"4"])
    putting = start(store.put, [b"5", b"6"])
    fast.ack(fast.get(timeout=0))
    slow.ack(slow.get(limit_events=1, timeout=0))
    time.sleep(0.05)
    assert not putting.done()
    slow.ack(slow.get(limit_events=1, timeout=0))
    assert putting.result(SOON) == 5


@pytest.mark.parametrize("how", ["unsubscribe", "clear"])
def test_other_ways_to_space_wake_the_producer(make, attach, start, no_slices, how):
    """A put that waits continues when what held it up is unsubscribed or cleared."""
    store, other = make(capacity=4), attach()
    other.subscribe("a").close()
    fast = other.subscribe("b") if how == "unsubscribe" else None
    store.put([b"1", b"2", b"3", b"4"])
    if fast is not None:
        fast.ack(fast.get(timeout=0))
    putting = start(store.put, b"5")
    while store.segment.words[ACK_WANTED] == DISARMED:
        time.sleep(0.001)
    other.unsubscribe("a") if how == "unsubscribe" else other.clear()
    assert putting.result(SOON) == 4


def test_a_subscription_at_the_latest_wakes_the_producer(make, attach, start, no_slices):
    """A first subscriber that wants nothing of what is kept frees it, and the producer that waits for free space continues."""
    store, other = make(capacity=4), attach()
    store.put([b"1", b"2", b"3", b"4"])
    putting = start(store.put, b"5")
    while store.segment.words[ACK_WANTED] == DISARMED:
        time.sleep(0.001)
    other.subscribe("a", start="latest")
    assert putting.result(SOON) == 4


def test_one_producer_at_a_time(make, attach):
    """A second producer is refused while the first lives, in this process or another, and may follow it."""
    first, second = make(), attach()
    first.put(b"1")
    with pytest.raises(ProducerInUse, match=str(os.getpid())):
        second.put(b"2")
    with pytest.raises(ProducerInUse):
        second.claim()
    first._words[header_word("producer_pid")] = 0  # as it is when a producer ends: before it lets the role go
    with pytest.raises(ProducerInUse, match="a producer that begins or ends right now: try again"):
        second.claim()
    first.close()
    assert second.put(b"2") == 1
    assert second.stat().producer_alive


def test_a_killed_producer_has_a_successor(make, attach, name):
    """A producer killed with -9 leaves the role free and every put whole; bytes and rows continue from there."""
    store = make(capacity=16)
    store.put([b"abc", b"de"])
    store.close()
    pid = os.fork()
    if pid == 0:
        again = EventStore.attach(name)
        again.put([b"fghi"])
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    successor = attach()
    assert any("producer" in found for found in successor.check())
    assert successor.put(b"j") == 3
    assert successor.put_cursor[:3] == (3, 10, 4)
    assert contents(successor.peek(0)) == [b"abc", b"de", b"fghi", b"j"]
    assert successor.check() == []


def test_a_closed_store_says_so(make):
    """Every verb of a closed store raises StoreClosed; closing twice is nothing."""
    store = make()
    reader = store.subscribe("a")
    store.put(b"x")
    batch = reader.get(timeout=0)
    store.close()
    store.close()
    for call in (
        lambda: store.put(b"y"),
        lambda: store.put([b"y", b"z"]),
        lambda: store.put_encoded(*encoded([b"y"])),
        store.claim,
        lambda: store.subscribe("b"),
        lambda: store.unsubscribe("a"),
        store.clear,
        lambda: store.peek(0),
        store.heartbeat,
        store.stat,
        store.check,
        store.subscriptions,
        lambda: reader.get(timeout=0),
        lambda: reader.ack(batch),
        reader.rollback,
    ):
        with pytest.raises(StoreClosed):
            call()
    assert contents(batch) == [b"x"]


def test_a_forked_child_must_attach_again(make, name):
    """After fork the parent keeps its roles; the child's copies refuse to work, and an attachment of its own does."""
    store = make()
    reader = store.subscribe("a")
    store.put(b"1")
    batch = reader.get(timeout=0)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for call in (lambda: store.put(b"2"), lambda: reader.get(timeout=0), lambda: reader.ack(batch)):
                try:
                    call()
                except StoreClosed:
                    continue
                os._exit(2)
            store.close()
            own = EventStore.attach(name)
            try:
                own.put(b"2")
            except ProducerInUse:
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.put(b"2") == 1
    reader.ack(batch)
    assert contents(reader.get(timeout=0)) == [b"2"]


def test_threads_with_attachments_of_their_own(make, attach, start):
    """Threads that each attach may put, get and ack at the same time; nothing is lost, repeated or out of order."""
    store = make(capacity=16, memory_unit=64)
    total, readers = 3000, [attach().subscribe(f"s{i}") for i in range(3)]

    def read(reader: Any) -> list[bytes]:
        seen: list[bytes] = []
        while len(seen) < total:
            batch = reader.get(timeout=SOON)
            seen += contents(batch)
            reader.ack(batch)
        return seen

    reading = [start(read, reader) for reader in readers]
    for i in range(0, total, 3):
        store.put(b"%d" % i)
        store.put([b"%d" % (i + 1), b"%d" % (i + 2)])
    for future in reading:
        assert future.result(120) == [b"%d" % i for i in range(total)]
    assert store.check() == []


@pytest.mark.parametrize("first", [0, 2**31 - 2, 2**32 - 2, 2**53 - 2, MAX_SEQUENCE - 100])
def test_sequences_far_up(make, first):
    """A store works the same at any sequence: cursors, batches, acks, peeks and starts are exact."""
    store = make(capacity=4, first_sequence=first)
    assert (store.oldest, store.newest) == (first, first - 1)
    reader = store.subscribe("a", start=first)
    for i in range(8):
        assert store.put([b"%d" % i, b"x"]) == first + 2 * i + 1
        batch = reader.get(timeout=0)
        assert (batch.first, batch.last, batch.id) == (first + 2 * i, first + 2 * i + 1, first + 2 * i + 1)
        assert contents(store.peek(first + 2 * i)) == [b"%d" % i, b"x"]
        reader.ack(batch.last)
    assert store.check() == []


def test_sequences_end(make, attach):
    """At the last sequence a put raises; the store can still be attached to, read and acked."""
    store = make(capacity=4, first_sequence=MAX_SEQUENCE - 4)
    reader = store.subscribe("a")
    store.put([b"x"] * 4)
    reader.ack(reader.get(timeout=0))
    store.put(b"y")
    for wrong in (b"z", [b"z", b"z"]):
        with pytest.raises(BatchTooLarge, match="sequences"):
            store.put(wrong)
    assert store.newest == MAX_SEQUENCE
    assert contents(attach().peek(MAX_SEQUENCE)) == [b"y"]


def test_itemsize_counts_events_and_memsize_bytes_as_well(make, name):
    """In both modes the capacity bounds events and the memory bounds bytes; a get's limit counts what its mode says."""
    store = make(capacity=8, memory_unit=10, batch_mode=BatchMode.ITEMSIZE)
    assert (store.batch_mode, store.limit_bytes, store.memory_unit) == (BatchMode.ITEMSIZE, 80, 10)
    reader = store.subscribe("a")
    store.put([b"x" * 15] * 4)
    assert len(reader.get(3, timeout=0)) == 3
    store.close()
    EventStore.unlink(name)
    store = make(capacity=8, memory_unit=10)
    reader = store.subscribe("a")
    store.put([b"x" * 15] * 4)
    assert len(reader.get(limit_bytes=30, timeout=0)) == 2
    assert len(reader.get(1, timeout=0)) == 1


def test_peek_moves_nothing(make, attach):
    """peek reads what is kept, from anywhere, without a subscription and without moving one."""
    store = make(capacity=8)
    reader = store.subscribe("a")
    store.put([b"1", b"22", b"333", b"4444"])
    reader.ack(reader.get(limit_events=1, timeout=0))
    other = attach()
    assert contents(other.peek(1)) == [b"22", b"333", b"4444"]
    assert contents(other.peek(1, limit_events=2)) == [b"22", b"333"]
    assert contents(other.peek(1, limit_bytes=5)) == [b"22", b"333"]
    assert contents(other.peek(1, limit_bytes=1)) == [b"22"]
    assert not other.peek(4)
    for gone in (0, -1, 5, 2**62, -(2**62)):
        with pytest.raises(PositionNotFound):
            other.peek(gone)
    assert (reader.get_cursor.sequence, reader.ack_cursor.sequence) == (0, 0)
    kept = other.peek(1)
    reader.ack(reader.get(timeout=0))
    store.put([b"x" * 60] * 7)
    assert contents(kept) == [b"22", b"333", b"4444"]


def test_clear_discards_for_all(make):
    """clear moves every subscription to the end; it is refused while a reader lives, and then moves nothing."""
    store = make(capacity=4)
    with store.subscribe("a"), store.subscribe("b"):
        store.put([b"1", b"2"])
        from shmstore import SubscriptionInUse

        with pytest.raises(SubscriptionInUse):
            store.clear()
        assert store.oldest == 0
    store.clear()
    assert (store.oldest, store.newest) == (2, 1)
    store.put([b"3", b"4", b"5", b"6"], timeout=0)
    for each in ("a", "b"):
        with store.subscribe(each) as reader:
            assert contents(reader.get(timeout=0)) == [b"3", b"4", b"5", b"6"]


def test_clear_without_subscriptions(make):
    """clear discards what is kept while there is no subscription, too."""
    store = make(capacity=4)
    store.put([b"1", b"2", b"3", b"4"])
    store.clear()
    store.put(b"5", timeout=0)
    assert contents(store.subscribe("a").get(timeout=0)) == [b"5"]


def test_positions(make):
    """First and latest position, and where a producer continues, before and after acks."""
    store = make(capacity=8, memory_unit=1024)
    assert (store.first_position, store.latest_position, store.last_ack_point()) == (None, None, None)
    reader = store.subscribe("a")
    store.put([begin(0), end(1), ddl(2), begin(3)])
    assert store.latest_position == begin(3).position
    assert store.last_ack_point() == position(2)
    reader.ack(reader.get(timeout=0))
    assert store.last_ack_point() == position(2)
    store.put(b"not an event")
    assert store.latest_position is None


def test_stat_tells_it_all(make):
    """stat counts events, bytes, rows and time from every ack to the put cursor, and says who lives."""
    store = make(capacity=8, memory_unit=1024)
    store.claim()
    store.heartbeat("mysql://db1", position(3))
    reader = store.subscribe("a")
    store.put([begin(0), rows(1, count=5), end(2)])
    reader.ack(reader.get(limit_events=1, timeout=0))
    stat = store.stat()
    assert (stat.oldest, stat.newest, stat.free_events, stat.producer_pid) == (1, 2, 6, os.getpid())
    assert (stat.producer_alive, stat.source, stat.source_position) == (True, "mysql://db1", position(3))
    (mine,) = stat.subscriptions
    assert (mine.name, mine.state, mine.owner_pid, mine.alive) == ("a", "active", os.getpid(), True)
    assert (mine.lag_events, mine.lag_rows, mine.lag_ms) == (2, 5, 2)
    assert mine.lag_bytes == len(store.peek(1).raw)
    assert stat.put == store.put_cursor


def test_only_the_producer_has_a_heartbeat(make):
    """A store that is not claimed refuses a heartbeat: no other process may pretend to be the producer."""
    store = make()
    with pytest.raises(StoreClosed, match="claim"):
        store.heartbeat("x")


# ---------------------------------------------------------------- interrupts


class Interrupting:
    """Raises KeyboardInterrupt at the k-th line executed in the given modules, as a signal could."""

    def __init__(self, k: int, *modules: Any) -> None:
        self.left = k
        self.files = {module.__file__ for module in modules}
        self.struck = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in self.files or frame.f_code.co_name in ("_resync", "resync"):
            return None
        return self.line

    def line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and not self.struck:
            self.left -= 1
            if self.left < 0:
                self.struck = True
                raise KeyboardInterrupt
        return self.line


PUTS = {
    "one": lambda store: store.put(b"abc", timeout=0),
    "many": lambda store: store.put([b"de", b"fgh"], timeout=0),
    "encoded": lambda store: store.put_encoded(*encoded([b"ij", b"k"], rows=[3, 4]), timeout=0),
    "oversized": lambda store: store.put(b"l" * 1000, timeout=0),
}


@pytest.mark.parametrize("how", PUTS)
@pytest.mark.usefixtures("pure")
def test_an_interrupt_between_any_two_lines_of_a_put(name, how):
    """A signal that raises at any line of a put leaves it done or not done; the next puts and all reads are right."""
    k = 0
    while True:
        with EventStore.create(name, capacity=8, memory_unit=32, log=False) as store:
            reader = store.subscribe("a")
            store.put(b"first")
            tracer = Interrupting(
                k,
                shmstore.store.store,
                shmstore.ring.writer,
                shmstore.ring.cursors,
                shmstore.store.backpressure,
                shmstore.ring.overflow,
            )
            if how == "oversized":
                reader.ack(reader.get(timeout=0))
            sys.settrace(tracer)
            try:
                PUTS[how](store)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            before = [] if how == "oversized" else [b"first"]
            fresh = {"one": [b"abc"], "many": [b"de", b"fgh"], "encoded": [b"ij", b"k"], "oversized": [b"l" * 1000]}[how]
            done = store.newest > 0
            assert done or tracer.struck
            if how == "oversized" and done:
                batch = reader.get(timeout=0)
                assert contents(batch) == fresh
                reader.ack(batch)
                fresh = []
            store.put([b"then", b"more"], timeout=0)
            store.put(b"last", timeout=0)
            assert contents(reader.get(timeout=0)) == before + (fresh if done else []) + [b"then", b"more", b"last"]
            assert [found for found in store.check() if "next producer removes" not in found] == []
            cursor = store.put_cursor
            assert cursor.bytes == sum(map(len, before + (fresh if done else []))) + 12 + (
                0 if how != "oversized" else 5 + (store.limit_bytes if done else 0)
            )
        EventStore.unlink(name)
        if not tracer.struck:
            break
        k += 1
    assert k > 10


def test_an_interrupt_ends_a_put_that_waits(make, interrupted):
    """Ctrl-C and SIGTERM end a wait for free space at once; nothing was stored, and the store continues."""
    store = make(capacity=4)
    reader = store.subscribe("a")
    store.put([b"1", b"2", b"3", b"4"])
    interrupted(lambda: store.put(b"5", timeout=SOON))
    assert store.newest == 3
    reader.ack(reader.get(timeout=0))
    assert store.put(b"5", timeout=0) == 4
