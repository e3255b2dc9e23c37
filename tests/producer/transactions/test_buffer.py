"""The transaction buffer: whole transactions, numbered parts, savepoints, empty ones thinned."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore import EntryType, Event, EventType, Position, SlotFlag
from shmstore.encoding.codec import decode, slot_of
from shmstore.event import Cut
from shmstore.producer.binlog.events import RawEvent
from shmstore.producer.transactions.buffer import Flush, TransactionBuffer, new_buffer
from shmstore.producer.transactions.state import HalfTransaction, TransactionState
from shmstore.producer.transactions.writer import EventWriter

RAW = RawEvent(16, 1_700_000_000, 7, 40, 0, 0, b"")


def write(writer: EventWriter, sizes: list[int], *, number: int, empty: bool = False) -> None:
    """One transaction with a statement of each of `sizes` bytes."""
    for order, size in enumerate([0, *sizes, 0]):
        entry = EntryType.BEGIN if order == 0 else EntryType.END if order == len(sizes) + 1 else EntryType.ROWS
        writer.state.order = order
        writer.state.advance(writer.state.offset + 40)
        if order == 0:
            writer.state.begin(f"uuid:{number}", 40)
        writer.write(RAW, entry, EventType.QUERY, sql="x" * size, rows=1)
    writer.end(SlotFlag.TRANSACTION_END, empty=empty)


def drain(buffer: TransactionBuffer) -> list[list[Event]]:
    flushes = []
    while (flush := buffer.take()) is not None:
        flushes.append(events_of(flush))
    return flushes


def events_of(flush: Flush) -> list[Event]:
    found, at = [], 0
    for slot in flush.slots.tolist():
        payload = flush.blob[at : at + slot[3]]
        event = decode(payload)
        assert slot[:4] == slot_of(event, len(payload))[:4]
        assert slot[6:9] == slot_of(event, len(payload))[6:9]
        found.append(event)
        at += slot[3]
    assert at == len(flush.blob)
    return found


@given(st.lists(st.lists(st.integers(0, 900), max_size=12), min_size=1, max_size=12), st.integers(1, 20), st.integers(200, 2000))
def test_parts_and_flushes(transactions: list[list[int]], most_events: int, most_bytes: int) -> None:
    """Nothing is lost or reordered; a flush is within its bounds unless one event alone is larger; a transaction that fits
    is never split; parts count up and all but the last say where the transaction began."""
    buffer = TransactionBuffer(events=most_events, size=most_bytes)
    writer = EventWriter(buffer, TransactionState())
    writer.state.move("binlog.000003", 4)
    for number, sizes in enumerate(transactions):
        write(writer, sizes, number=number)
        writer.state.gtids = f"uuid:0-{number}"
    flushes = drain(buffer)
    events = [event for flush in flushes for event in flush]
    assert [(event.transaction, event.order) for event in events] == [
        (f"uuid:{number}", order) for number, sizes in enumerate(transactions) for order in range(len(sizes) + 2)
    ]
    for flush in flushes:
        assert len(flush) <= most_events
    parts: dict[str, list[int]] = {}
    for event in events:
        parts.setdefault(event.transaction, []).append(event.part)
    for numbers in parts.values():
        assert numbers == sorted(numbers)
        assert sorted(set(numbers)) == list(range(numbers[-1] + 1))
    previous = events[0]
    for event in events[1:]:
        if event.transaction == previous.transaction and event.part != previous.part:
            number = int(event.transaction.split(":")[1])
            begun = 4 + sum(40 * (len(sizes) + 2) for sizes in transactions[:number])
            executed = f"uuid:0-{number - 1}" if number else ""
            assert previous.cut == Cut((("", Position("binlog.000003", begun, executed)),), previous.order)
        else:
            assert previous.cut is None
        previous = event
    for flush in flushes:
        whole = [event for event in flush if event.part == 0 and max(parts[event.transaction]) == 0]
        counts = {event.transaction: whole.count(event) for event in whole}
        assert all(len([e for e in whole if e.transaction == name]) == len(parts[name]) for name in counts)


def test_an_event_larger_than_the_buffer_goes_alone() -> None:
    """Whatever its size, an event passes; it shares its part and its flush with no other."""
    buffer = TransactionBuffer(events=100, size=1000)
    writer = EventWriter(buffer, TransactionState())
    writer.state.move("binlog.000001", 4)
    write(writer, [10, 5000, 10], number=1)
    assert [len(flush) for flush in drain(buffer)] == [2, 1, 2]


def test_small_transactions_share_a_flush() -> None:
    """What is ready together leaves together."""
    buffer = TransactionBuffer(events=100, size=100_000)
    writer = EventWriter(buffer, TransactionState())
    for number in range(5):
        write(writer, [10], number=number)
    assert not buffer.full
    assert [len(flush) for flush in drain(buffer)] == [15]
    assert buffer.take() is None


@given(st.integers(0, 6), st.integers(2, 6))
def test_a_tail_is_passed_over(order: int, part: int) -> None:
    """Of a transaction that stands half in the store the events up to its tail are left out; the parts count on from there."""
    buffer = TransactionBuffer(events=100, size=100_000)
    writer = EventWriter(buffer, TransactionState())
    writer.state.tail = HalfTransaction("uuid:1", order, part)
    write(writer, [1, 2, 3, 4, 5, 6], number=1)
    write(writer, [1], number=2)
    events = [event for flush in drain(buffer) for event in flush]
    assert [event.order for event in events] == [*range(order + 1, 8), 0, 1, 2]
    assert [event.part for event in events] == [part + 1] * (7 - order) + [0] * 3


@pytest.mark.parametrize("compiled_code", [True, False])
def test_what_was_taken_stays_as_it_is(compiled_code: bool, seed: int) -> None:
    """A flush that is still held is not changed by what comes next, be it larger, or a new beginning; nor is a copy needed."""
    rng = random.Random(seed)
    buffer = new_buffer(compiled_code=compiled_code, events=10, size=10_000)
    held: list[tuple[Flush, bytes, list[int]]] = []
    for _ in range(400):
        sizes = [rng.choice((1, 50, 9_000, 200_000)) for _ in range(rng.randrange(1, 12))]
        for size in sizes:
            payload = rng.randbytes(1) * size
            if buffer.overflows(size):
                buffer.cut()
            buffer.add([payload], (0, 0, 0, 1, 2))
        if rng.random() < 0.8:
            buffer.end(1)
        if rng.random() < 0.1:
            buffer.reset()
        while rng.random() < 0.7 and (flush := buffer.take()) is not None:
            if rng.random() < 0.5:
                held.append((flush, bytes(flush.blob), flush.slots["size"].tolist()))
        if rng.random() < 0.3:
            held.clear()
        for flush, blob, taken in held:
            assert flush.blob == blob
            assert flush.slots["size"].tolist() == taken


def test_savepoints() -> None:
    """What came after a savepoint is taken back; the savepoint stays, those after it go; an unknown one is refused."""
    buffer = TransactionBuffer(events=4, size=100_000)

    def add(name: str) -> None:
        buffer.add([name.encode()], (0, 0, 0, 1, 2))

    add("a")
    buffer.mark("s1")
    add("b")
    buffer.mark("s2")
    add("c")
    assert buffer.rollback_to("s1")
    assert not buffer.rollback_to("s2")
    add("d")
    assert buffer.rollback_to("s1")
    add("e")
    buffer.end(1)
    flush = buffer.take()
    assert flush is not None
    assert bytes(flush.blob) == b"ae"
    assert flush.rows == 2
    buffer.mark("s3")
    add("f")
    buffer.cut()
    assert not buffer.rollback_to("s3"), "it has left with its part"


def test_empty_transactions() -> None:
    """Of empty transactions one in so many passes; a full one passes always and starts the count again."""
    buffer = TransactionBuffer(events=100, size=100_000, empty_events=3, empty_seconds=1000)
    writer = EventWriter(buffer, TransactionState())
    for number in range(10):
        write(writer, [], number=number, empty=number != 4)
    names = [event.transaction for flush in drain(buffer) for event in flush if event.entry is EntryType.END]
    assert names == ["uuid:2", "uuid:4", "uuid:7"]


def test_the_last_empty_transaction_passes_when_it_is_quiet() -> None:
    """The position reaches the end of filtered traffic without waiting for more of it."""
    buffer = TransactionBuffer(events=100, size=100_000, empty_events=1000, empty_seconds=0.1)
    writer = EventWriter(buffer, TransactionState())
    write(writer, [1], number=0)
    for number in range(1, 6):
        write(writer, [], number=number, empty=True)
    buffer.tick()
    assert [event.transaction for flush in drain(buffer) for event in flush][-1] == "uuid:0"
    deadline = time.monotonic() + 5
    while (flush := buffer.take()) is None and time.monotonic() < deadline:
        buffer.tick()
    assert flush is not None
    assert {event.transaction for event in events_of(flush)} == {"uuid:5"}


def test_an_empty_transaction_does_not_pass_inside_another() -> None:
    """One held back stays so while a part of a later transaction has left."""
    buffer = TransactionBuffer(events=2, size=100_000, empty_events=1000, empty_seconds=0.0)
    writer = EventWriter(buffer, TransactionState())
    buffer._empty_seconds = 1000.0
    write(writer, [], number=0, empty=True)
    buffer._empty_seconds = 0.0
    writer.state.begin("uuid:1", 40)
    for order in range(4):
        writer.state.order = order
        writer.write(RAW, EntryType.ROWS if order else EntryType.BEGIN)
    assert len(drain(buffer)) == 1
    buffer.tick()
    assert buffer.take() is None


@pytest.mark.parametrize(("start", "ends"), [(0xFFFFFF00, [0x10, 0x90]), (5 << 32, [4, 900])])
def test_positions_beyond_4_gib(start: int, ends: list[int]) -> None:
    """A log_pos has 32 bits; in a longer file the position continues counting."""
    writer = EventWriter(TransactionBuffer(events=10, size=1000), TransactionState())
    writer.state.move("binlog.000001", start)
    seen = []
    for end in ends:
        writer.state.advance(end)
        seen.append(writer.state.offset)
    assert seen == sorted(seen)
    assert all(offset >= start and offset & 0xFFFFFFFF == end for offset, end in zip(seen, ends, strict=True))
    assert Position("binlog.000001", seen[-1]).order > Position("binlog.000001", start).order
