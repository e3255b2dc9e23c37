"""The transaction buffer: whole transactions, numbered parts, savepoints, empty ones thinned."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore import EntryType, Event, EventType, Position, SlotFlag
from shmstore.encoding.codec import decode, decode_stored, slot_of
from shmstore.producer.binlog.events import RawEvent
from shmstore.producer.errors import TransactionBroken
from shmstore.producer.native_code import COMPILED
from shmstore.producer.settings import Settings
from shmstore.producer.transactions.buffer import Flush, TransactionBuffer, new_buffer
from shmstore.producer.transactions.seal import Seal
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
            begun = f"binlog.000003:{4 + sum(40 * (len(sizes) + 2) for sizes in transactions[:number])}"
            assert previous.props["resume"] == begun + (f" uuid:0-{number - 1}" if number else "")
        else:
            assert "resume" not in previous.props
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


@given(st.integers(1, 8), st.sampled_from(["same", "other", "fewer"]))
def test_what_is_passed_over_is_compared(cut: int, then: str) -> None:
    """Of a transaction that stands half in the store, what is passed over must have the checksum of what is there; whichever
    part it ends with, and over several lives. With other options that cannot be said, and is not."""
    sizes = [3, 5, 8, 13, 21, 34, 55, 89]
    settings = Settings(store="s")

    def parts(sizes: list[int], tail: HalfTransaction | None) -> list[Flush]:
        buffer, seal = TransactionBuffer(events=2, size=100_000), Seal(settings)
        writer = EventWriter(buffer, TransactionState())
        writer.state.tail = seal.begin(tail)
        if tail is None:
            write(writer, [1], number=0)
        write(writer, sizes, number=1)
        flushes = []
        while (flush := buffer.take()) is not None:
            seal.close(flush)
            flushes.append(flush)
        return flushes

    whole = [flush for flush in parts(sizes, None) if events_of(flush)[-1].transaction == "uuid:1"]
    assert len(whole) == 5

    def tail_of(flush: Flush) -> HalfTransaction:
        last = events_of(flush)[-1]
        return HalfTransaction(last.transaction, last.order, last.part, "", last.props["checksum"])

    tail = tail_of(whole[min(cut, len(whole) - 1) - 1])
    if then == "same":
        rest = parts(sizes, tail)
        assert [event.order for flush in rest for event in events_of(flush)] == list(range(tail.order + 1, 10))
        if len(rest) > 1:  # a second life's checksum goes on from the first's
            assert tail_of(rest[0]).checksum == next(
                tail_of(flush).checksum for flush in whole if tail_of(flush).order == tail_of(rest[0]).order
            )
    elif then == "other" and tail.order:
        with pytest.raises(
            TransactionBroken, match=f"behind its event {tail.order}, but on this server its events up to there are others"
        ):
            parts([4, *sizes[1:]], tail)
    elif then == "fewer" and tail.order:
        with pytest.raises(TransactionBroken, match="it ends with event"):
            parts(sizes[: tail.order - 1], tail)
    for options in (Settings(store="s", exclude=("a.*",)), Settings(store="s", ghost_tables="keep")):
        other = Seal(options).begin(tail)
        assert other is not None
        assert other.checksum == ""


@pytest.mark.parametrize("compiled_code", [True, False])
def test_what_was_taken_stays_as_it_is(compiled_code: bool, seed: int) -> None:
    """A flush that somebody holds is not changed by what comes next, be it larger, or a new beginning; nor is a copy needed."""
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
    """A log_pos has 32 bits; in a longer file the position goes on counting."""
    writer = EventWriter(TransactionBuffer(events=10, size=1000), TransactionState())
    writer.state.move("binlog.000001", start)
    seen = []
    for end in ends:
        writer.state.advance(end)
        seen.append(writer.state.offset)
    assert seen == sorted(seen)
    assert all(offset >= start and offset & 0xFFFFFFFF == end for offset, end in zip(seen, ends, strict=True))
    assert Position("binlog.000001", seen[-1]).order > Position("binlog.000001", start).order


@pytest.mark.skipif(not COMPILED, reason="no compiled code here")
def test_the_compiled_checksum_is_the_same(seed: int) -> None:
    """Events of every kind and size, cut from their transaction anywhere: compiled or not, the checksum is the same."""
    rng = random.Random(seed)
    for _ in range(40):
        buffer = TransactionBuffer(events=1000, size=10_000_000)
        writer = EventWriter(buffer, TransactionState())
        writer.state.move("binlog.000001", 4)
        writer.state.begin("uuid:1", 0)
        for order in range(rng.choice((1, 3, 300))):
            writer.state.order = rng.choice((order, order * 1000, order * 10**8, 2**40))
            body = [[rng.randbytes(rng.choice((0, 3, 40, 300, 70_000 if order < 3 else 9)))]]
            schema = rng.randbytes(rng.choice((20, 255, 256, 66_000 if order < 3 else 30)))
            sql = rng.choice(("", "", "", "ALTER TABLE t ADD x int"))
            props = rng.choice(({}, {"a": "b" * 50}))
            kind = (EntryType.ROWS, EventType.UPDATE) if not sql else (EntryType.DDL, EventType.ALTER)
            writer.write(RAW, *kind, schema=None if sql else schema, body=None if sql else body, rows=1, sql=sql, props=props)
        writer.cut()
        flush = buffer.take()
        assert flush is not None
        sealed = []
        for compiled in (True, False):
            one = flush._replace(blob=memoryview(bytearray(flush.blob)))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("shmstore.producer.transactions.seal.COMPILED", compiled)
                Seal(Settings(store="s")).close(one)
            sealed.append(one.blob)
        assert sealed[0] == sealed[1]
        last = sealed[0][-int(flush.slots["size"][-1]) :]
        assert len(bytes.fromhex(decode_stored(last)[0].props["checksum"])) == 8
