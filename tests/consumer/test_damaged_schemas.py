"""All readers of stored events meet a damaged table schema with one error, or where they only look, with none."""

from __future__ import annotations

import random
from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest

from shmstore import EventStore
from shmstore.consumer.copies.change_reduction import pieces
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.formats.canal_values import Values
from shmstore.consumer.formats.formatter import FORMATS
from shmstore.consumer.live.events import Feed, Filter
from shmstore.consumer.monitoring.table_counts import TableCounts
from shmstore.consumer.queues.messages import MessageOptions, Messages
from shmstore.consumer.tail import Peek, tail
from shmstore.consumer.wire.encoding.entry import Encoder
from shmstore.encoding.arrow_rows import index_events
from shmstore.encoding.arrow_table import TableOptions, read_table
from shmstore.encoding.codec import Header, decode, encode_schema, encode_stored
from shmstore.errors import StoreCorrupt
from shmstore.event import Column, EntryType, EventType, TableSchema
from shmstore.patterns.table_patterns import Patterns
from tests.shmstore.encoding.schemas import ROW, WRONG, damaged, packed, parts
from tests.shmstore.samples import encoded

VECTOR = encode_schema(TableSchema("shop", "points", (Column("id", "int"), Column("at", "vector")), (0,)))
Reader = Callable[[bytes], object]
HEADER = Header(int(EntryType.ROWS), int(EventType.INSERT), "b.1", 900, 90, 1_700_000_000_123, 1, "u:5", 0, 0, "", 0, "", "", {})


def payload_of(schema: bytes) -> bytes:
    """An event with a row of that table."""
    return encode_stored(HEADER, schema, [None, None, None, [ROW]])


def batch_of(payload: bytes) -> object:
    """The event, as readers of columns have it."""
    return index_events(memoryview(payload), np.array([len(payload)], np.int64))


def as_queue(form: str, pure: bool) -> Reader:
    """A sender's maker of messages."""

    def read(payload: bytes) -> object:
        maker = Messages(MessageOptions("store", form), lambda topic: 7)
        if pure:
            maker._native = None
        return maker.of_payloads(iter([payload]), 5).messages

    return read


def as_canal(values: Values, pure: bool) -> Reader:
    """What clients of Canal are served."""

    def read(payload: bytes) -> object:
        encoder = Encoder(values)
        return encoder.encode_pure(payload) if pure else encoder.encode(payload)

    return read


def as_arrow(payload: bytes) -> object:
    """`Batch.to_arrow`, and what Spark, Flight and copies begin with."""
    ends = np.array([len(payload)], np.int64)
    return read_table(memoryview(payload), ends, None, TableOptions("null", "null"), np.array([5]), lambda name, rows: None)


def as_copies(payload: bytes) -> object:
    """The rows of the tables that are copied."""
    return list(pieces(batch_of(payload), CopiedTables("store", "copies", Patterns.parse("*.*"))))


READERS: dict[str, Reader] = {
    "events": decode,
    "arrow": as_arrow,
    "copies": as_copies,
    **{f"queue {form} {'pure' * pure}": as_queue(form, pure) for form in FORMATS for pure in (False, True)},
    **{f"canal {values.name} {'pure' * pure}": as_canal(values, pure) for values in Values for pure in (False, True)},
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(name: str, case: str) -> None:
    """A key beyond the columns, a name that is a number, and the like: the store is damaged, and the error says where."""
    held, says = WRONG[case]
    with pytest.raises(StoreCorrupt, match=f"table schema of .*{says}"):
        READERS[name](payload_of(packed(held)))


@pytest.mark.parametrize("name", READERS)
def test_whatever_is_damaged(name: str, seed: int) -> None:
    """Fields of other types, left out or added: an event is read, or said to be damaged; there is no other error."""
    chance, said = random.Random(seed), 0
    assert READERS[name](payload_of(packed(parts())))
    for blob in damaged(chance, 600):
        try:
            READERS[name](payload_of(blob))
        except StoreCorrupt:
            said += 1
    assert said > 100


@pytest.mark.parametrize("form", FORMATS)
def test_a_value_that_is_none_of_its_column(form: str) -> None:
    """A vector of five bytes: senders stop with the event's number, or take its bytes; there is no other error."""
    payload = encode_stored(HEADER, VECTOR, [None, None, None, [[1, b"12345"]]])
    for pure in (False, True):
        read = READERS[f"queue {form} {'pure' * pure}"]
        if form == "debezium":
            with pytest.raises(StoreCorrupt, match="event 5 has a value that is none of its column"):
                read(payload)
        else:
            assert read(payload)


def test_readers_that_only_look(store_name: str, state: object) -> None:
    """The page, the counts of tables and `tail` pass over a damaged event, count it, or say it."""
    good, bad = payload_of(packed(parts())), payload_of(packed(WRONG["key beyond the columns"][0]))
    with EventStore.create(store_name, capacity=64) as store:
        blob, slots = encoded([good, bad, good])
        slots["entry"], slots["type"] = int(EntryType.ROWS), int(EventType.INSERT)
        store.put_encoded(blob, slots)
        feed = Feed(store, Filter(), show_values=True)
        assert len(feed.step()) == 2
        assert feed.passed == 1
        counts = TableCounts(store.epoch, store.oldest)
        counts.follow(store)
        assert (sum(counts.rows.values()), counts.uncounted) == (2, 1)
        with pytest.raises(StoreCorrupt, match="primary_key"), Peek(store, "earliest") as peek:
            tail(peek, BytesIO())
