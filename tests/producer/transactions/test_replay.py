"""What a restarted producer reads again of a transaction that is half in the store: the same events, or it stops."""

from __future__ import annotations

import random

import pytest

from shmstore import Column, EntryType, Event, EventType, Position, Row, SlotFlag, TableSchema
from shmstore.encoding.codec import decode, encode_schema
from shmstore.producer.binlog.events import RawEvent
from shmstore.producer.errors import TransactionBroken
from shmstore.producer.transactions.buffer import TransactionBuffer
from shmstore.producer.transactions.replay import Replay
from shmstore.producer.transactions.state import HalfTransaction, TransactionState
from shmstore.producer.transactions.writer import EventWriter

RAW = RawEvent(16, 1_700_000_000, 7, 40, 0, 0, b"")
TABLE = TableSchema("d", "t", (Column("id", "int"), Column("s", "varchar")), (0,))
Change = tuple[
    str, str, tuple[int, ...]
]  # database; SQL, or with none, rows; of several events of one row filter, their first rows


def changes(rng: random.Random, count: int) -> list[Change]:
    """What one transaction has between its BEGIN and its END."""
    rows = ((0,), (0,), (0,), (0, 3, 5))
    return [(rng.choice("de"), rng.choice(("", "", f"x{rng.random()}")), rng.choice(rows)) for _ in range(count)]


def put(
    given: list[Change], tail: HalfTransaction | None, *, spelled: str = "", most: int = 3, left_out: int = 0
) -> list[list[bytes]]:
    """The events of each put of one transaction, of which the store has what `tail` says. `left_out`: the order of an event that a filter
    leaves out. `spelled`: how a column is defined. A change whose database is "rollback" is taken back by a savepoint."""
    buffer = TransactionBuffer(events=most, size=100_000)
    state = TransactionState()
    writer = EventWriter(buffer, state)
    state.move("binlog.000001", 4)
    state.tail = tail
    state.begin("uuid:1", 0)
    columns = tuple([column._replace(definition=spelled) for column in TABLE.columns])
    schema = encode_schema(TABLE._replace(columns=columns))
    writer.write(RAW, EntryType.BEGIN)
    for order, (database, sql, firsts) in enumerate(given, 1):
        state.order = order
        state.advance(state.offset + 40)
        if database == "rollback":
            buffer.mark("s")
            state.mark("s")
        if order == left_out:
            continue
        if sql:
            writer.write(RAW, EntryType.ROWS, EventType.QUERY, sql=sql, database=database)
        for first in firsts if not sql else ():
            body = [None, None, None, [[order, "x" * first]]]
            writer.write(RAW, EntryType.ROWS, EventType.INSERT, schema=schema, body=body, rows=1, row=first, database=database)
        if database == "rollback":
            assert buffer.rollback_to("s")
            state.rolled_back_to("s")
    state.order = len(given) + 1
    writer.write(RAW, EntryType.END)
    writer.end(SlotFlag.TRANSACTION_END)
    found = []
    while (flush := buffer.take()) is not None:
        sizes = flush.slots["size"].tolist()
        found.append([bytes(flush.blob[sum(sizes[:i]) : sum(sizes[: i + 1])]) for i in range(len(sizes))])
    return found


def tail_of(stored: list[memoryview | None]) -> HalfTransaction:
    """Where a store ends that has `stored`."""
    last = stored[-1]
    assert last is not None
    event: Event = decode(last)
    return HalfTransaction.of(event, Replay(stored, event.transaction))


def test_a_replay_is_compared(seed: int) -> None:
    """Whatever part the store ends with, over several lives, and whatever it has lost of its beginning or in between: the same events give
    what is missing and no more; others, or fewer, as another server or other options give them, stop the producer."""
    rng = random.Random(seed)
    for _ in range(300):
        given = changes(rng, rng.randrange(3, 12))
        puts = put(given, None)
        if len(puts) < 2:
            continue
        cut = rng.randrange(1, len(puts))
        payloads = [payload for one in puts[:cut] for payload in one]
        stored: list[memoryview | None] = [memoryview(payload) for payload in payloads]
        missing = [payload for one in puts[cut:] for payload in one]
        again = put(given, tail_of(stored), spelled=rng.choice(("", "INT(11)")))
        assert [_bare(each) for one in again for each in one] == [_bare(each) for each in missing]
        for i in rng.sample(range(len(stored) - 1), rng.randrange(len(stored))):
            stored[i] = None  # gone with an ack, or with the log's retention
        assert sum(map(len, put(given, tail_of(stored)))) == len(missing)
        last = decode(payloads[-1])
        assert last.cut is not None
        orders = [decode(each).order for each in stored if each is not None]
        order = rng.choice(orders)
        if order:
            _, sql, firsts = given[order - 1]
            other = [*given]
            other[order - 1] = ("other", sql, firsts)
            for changed, left_out in ((other, 0), (given, order)):
                with pytest.raises(TransactionBroken, match="but on this server its events up to there are others"):
                    put(changed, tail_of(stored), left_out=left_out)
        if last.cut.order > 1:
            with pytest.raises(TransactionBroken, match="on this server it ends with event"):
                put(given[: last.cut.order - 1], tail_of(stored))


def test_what_was_rolled_back_to_a_savepoint_is_no_difference(seed: int) -> None:
    """It is in the binlog, and not in the store."""
    rng = random.Random(seed)
    for _ in range(100):
        given: list[Change] = [("d", "", (0,)), ("rollback", "", (0,)), *changes(rng, 5)]
        puts = put(given, None, most=4)
        stored: list[memoryview | None] = [memoryview(payload) for payload in puts[0]]
        missing = [payload for one in puts[1:] for payload in one]
        assert sum(map(len, put(given, tail_of(stored), most=4))) == len(missing)


def test_an_event_more_is_a_difference() -> None:
    """What the store should have, and has not, between two events that it has."""
    given: list[Change] = [("d", "", (0,))] * 6
    stored: list[memoryview | None] = [memoryview(payload) for one in put(given, None)[:2] for payload in one]
    tail = tail_of([*stored[:2], *stored[3:]])
    with pytest.raises(TransactionBroken, match="its events up to there are others"):
        put(given, tail)


def _bare(payload: bytes) -> Event:
    event = decode(payload)
    table = event.table
    if table is not None:
        table = table._replace(columns=tuple([column._replace(definition="") for column in table.columns]))
    return event._replace(table=table, part=0, position=Position("", 0), cut=None, rows=tuple(Row(*row) for row in event.rows))
