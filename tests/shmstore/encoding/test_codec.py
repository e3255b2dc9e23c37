"""Events to MessagePack bytes and back, exact for every type."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmstore import (
    ABSENT,
    Column,
    EntryType,
    Event,
    EventType,
    Position,
    Row,
    ShmStoreError,
    SlotFlag,
    StoreCorrupt,
    TableSchema,
)
from shmstore.encoding.codec import (
    Header,
    decode,
    decode_schema,
    decode_stored,
    encode,
    encode_batch,
    encode_schema,
    encode_stored,
    split_stored,
)
from tests.shmstore.samples import begin, ddl, end, rows

VALUES = {
    "bigint": st.integers(-(2**63), 2**64 - 1),
    "double": st.floats(allow_nan=False),
    "varchar": st.text(max_size=20),
    "varbinary": st.binary(max_size=20),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**30), max_value=10**30),
    "date": st.dates(),
    "datetime": st.datetimes(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "time": st.timedeltas(min_value=timedelta(hours=-839), max_value=timedelta(hours=839)),
}


@st.composite
def events(draw: st.DrawFn) -> Event:
    types = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=6))
    table = TableSchema("db", draw(st.text(max_size=5)), tuple(Column(f"c{i}", type_) for i, type_ in enumerate(types)), (0,))
    absent = draw(st.sets(st.integers(0, len(types) - 1), max_size=len(types) - 1))
    image = st.tuples(*(st.just(ABSENT) if i in absent else st.none() | VALUES[type_] for i, type_ in enumerate(types)))
    kind = draw(st.sampled_from([EventType.INSERT, EventType.UPDATE, EventType.DELETE]))
    images = [
        Row(
            None if kind is EventType.INSERT else draw(image),
            None if kind is EventType.DELETE else draw(image),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    return Event(
        EntryType.ROWS,
        kind,
        Position(draw(st.text(max_size=9)), draw(st.integers(0, 2**63 - 1)), draw(st.text(max_size=9)), draw(st.integers(0, 9))),
        draw(st.integers(0, 2**53)),
        table=table,
        database="db",
        rows=tuple(images),
        props=draw(st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)),
    )


@given(events())
@settings(max_examples=150)
def test_an_event_comes_back_as_it_was(event):
    """Every value of every type, NULL, ABSENT, unsigned 64 bits and far dates included, survives encode and decode."""
    assert decode(encode(event)) == event


@given(events())
@settings(max_examples=50)
def test_the_bytes_are_plain_messagepack(event):
    """Any MessagePack library reads an event: five elements, the schema a bin that is MessagePack itself."""
    format_, header, resume, schema, body = msgpack.unpackb(encode(event), strict_map_key=False)
    assert (format_, resume) == (2, None)
    assert header[2:4] == [event.position.file, event.position.offset]
    assert msgpack.unpackb(schema)[1] == event.table.table
    assert len(body) == 4


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("date", "0000-00-00"),
        ("datetime", "2026-02-30 00:00:00"),
        ("timestamp", "0000-00-00 00:00:00"),
        ("date", date.min),
        ("date", date.max),
        ("datetime", datetime.max),
        ("timestamp", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("time", timedelta(hours=-838, minutes=-59, seconds=-59)),
        ("decimal", Decimal("-0.00")),
        ("decimal", Decimal("12345678901234567890123456789012345.678901234567890123456789012345")),
        ("bigint", 2**64 - 1),
        ("bigint", -(2**63)),
    ],
)
def test_edge_values_are_neither_shifted_nor_rounded(type_, value):
    """Zero and impossible dates stay the text MySQL shows; 65-digit decimals, extreme dates and integers stay exact."""
    table = TableSchema("d", "t", (Column("c", type_),))
    event = Event(EntryType.ROWS, EventType.INSERT, Position("b.1", 4), 0, table=table, rows=(Row(None, (value,)),))
    back = decode(encode(event)).rows[0].after[0]
    assert back == value
    assert str(back) == str(value)


def test_one_schema_has_one_encoding_and_is_decoded_once():
    """The schema's bytes are its identity: equal tables give equal bytes, and the same bytes the same object."""
    event = rows(1)
    other = TableSchema(*event.table)
    assert encode_schema(event.table) == encode_schema(other)
    assert decode(encode(event)).table is decode(encode(rows(2))).table


def test_slots_say_what_the_event_is():
    """A slot answers ack, seek and DDL isolation without its payload: size, rows, time, place, kind, flags."""
    sample = [begin(1), rows(2, count=3), end(3), ddl(4)]
    blob, slots = encode_batch(sample)
    assert slots["size"].sum() == len(blob)
    assert slots["rows"].tolist() == [0, 3, 0, 0]
    assert slots["flags"].tolist() == [0, 0, SlotFlag.TRANSACTION_END, SlotFlag.DDL]
    assert slots["offset"].tolist() == [event.position.offset for event in sample]
    assert slots["file"].tolist() == [7] * 4
    assert slots["entry"].tolist() == [event.entry for event in sample]
    start = 0
    for event, size in zip(sample, slots["size"].tolist(), strict=True):
        assert decode(blob[start : start + size]) == event
        start += size


HEADER = [2, 1, "binlog.000001", 4, 0, 0, 0, "", 0, 0, "", 0, "", "", {}]
FORGED = {
    "empty": b"",
    "not msgpack": b"\xc1",
    "cut": encode(rows(1))[:-3],
    "trailing": encode(rows(1)) + b"\x00",
    "nil": msgpack.packb(None),
    "map": msgpack.packb({"a": 1}),
    "format 3": msgpack.packb([3, HEADER, None, None, None]),
    "format nil": msgpack.packb([None, HEADER, None, None, None]),
    "header int": msgpack.packb([2, 5, None, None, None]),
    "header short": msgpack.packb([2, [2, 1], None, None, None]),
    "header nil": msgpack.packb([2, None, None, None, None]),
    "entry unknown": msgpack.packb([2, [99, *HEADER[1:]], None, None, None]),
    "entry list": msgpack.packb([2, [[], *HEADER[1:]], None, None, None]),
    "schema int": msgpack.packb([2, HEADER, None, 7, None]),
    "schema str": msgpack.packb([2, HEADER, None, "abc", None]),
    "schema garbage": msgpack.packb([2, HEADER, None, b"\xc1\xc1", None]),
    "schema short": msgpack.packb([2, HEADER, None, msgpack.packb(["d"]), None]),
    "columns int": msgpack.packb([2, HEADER, None, msgpack.packb(["d", "t", 5, []]), [None] * 4]),
    "body nil": msgpack.packb([2, HEADER, None, encode_schema(rows(1).table), None]),
    "body short": msgpack.packb([2, HEADER, None, encode_schema(rows(1).table), [None]]),
    "rows int": msgpack.packb([2, HEADER, None, encode_schema(rows(1).table), [None, None, None, 5]]),
    "row width": msgpack.packb([2, HEADER, None, encode_schema(rows(1).table), [None, None, None, [[1]]]]),
    "columns far": msgpack.packb([2, HEADER, None, encode_schema(rows(1).table), [None, None, [99], [[1]]]]),
    "columns str": msgpack.packb([2, HEADER, None, encode_schema(rows(1).table), [None, None, ["x"], [[1]]]]),
    "decimal text": msgpack.packb([2, HEADER, None, encode_schema(rows(1).table), [None, None, None, [[1, "n", "12,30", 0]]]]),
    "date far": msgpack.packb([2, HEADER, None, encode_schema(rows(1).table), [None, None, None, [[1, "n", "1", 2**62]]]]),
    "deep": b"\x91" * 100_000 + b"\xc0",
    "deep body": b"\x95\x02" + msgpack.packb(HEADER) + b"\xc0\xc0" + b"\x91" * 100_000 + b"\xc0",
    "array of four billion": b"\xdd\xff\xff\xff\xff",
    "bin of four gigabytes": b"\x95\x02\xc6\xff\xff\xff\xff",
    "utf-8": b"\x95\x02\xa2\xff\xfe\xc0\xc0\xc0",
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_messagepack_is_refused(case):
    """Bytes that are not an event raise StoreCorrupt: no other exception, no crash, no endless allocation."""
    with pytest.raises(StoreCorrupt):
        decode(FORGED[case])


@pytest.mark.parametrize("case", FORGED)
def test_forged_messagepack_has_no_position(case):
    """The short way to a position refuses the same bytes, or reads the position that is there."""
    with suppress(StoreCorrupt):
        assert isinstance(decode_stored(FORGED[case])[0].position, Position)


@pytest.mark.parametrize("read", [decode, decode_stored, split_stored])
@pytest.mark.parametrize("field", Header._fields)
def test_a_header_of_the_wrong_types_is_refused(field, read):
    """A header whose file is a number, whose offset is a text, or the like, is not read at all, whole or in part."""
    right = Header(*HEADER)
    assert read(encode_stored(right, None, None))
    wrong = right._replace(**{field: "x" if isinstance(getattr(right, field), int) else 7})
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        read(encode_stored(wrong, None, None))


@pytest.mark.parametrize("read", [decode, decode_stored, split_stored])
@pytest.mark.parametrize("header", [HEADER, [*HEADER, "a field more"], None])
def test_another_format_is_named_whatever_follows(header, read):
    """An event of a later shmstore is refused as such, also where its header is no longer what this one reads."""
    with pytest.raises(StoreCorrupt, match="event format 3 is unknown: this shmstore reads format 2; upgrade the reader"):
        read(msgpack.packb([3, header, None, None, None]))


@pytest.mark.parametrize("read", [decode, decode_stored, split_stored])
def test_an_event_of_the_format_before_is_named(read):
    """It is refused as such, with what to do."""
    with pytest.raises(
        StoreCorrupt, match="event format 1 is unknown: this shmstore reads format 2; read it with the shmstore that"
    ):
        read(msgpack.packb([1, HEADER, None, None]))


def test_the_header_of_an_event_is_read_back():
    """What `encode` writes of an event is what `Header` names."""
    event = rows(1)
    header = decode_stored(encode(event))[0]
    same = ["entry", "type", "length", "time_ms", "server_id", "transaction", "order", "part", "database", "sql", "props"]
    assert {name: getattr(header, name) for name in same} == {name: getattr(event, name) for name in same}
    assert header.position == event.position


def test_a_forged_schema_alone_is_refused():
    """decode_schema never raises anything but StoreCorrupt."""
    for blob in (b"", b"\xc0", b"\x95\x02\x02\x03\x04\x05", b"\x91" * 5000):
        with pytest.raises(StoreCorrupt):
            decode_schema(blob)


def test_bit_flips_never_crash_the_decoder(seed: int):
    """A thousand damaged events: each is refused with StoreCorrupt, or reads as some event."""
    rng = random.Random(seed)
    whole = [encode(event) for event in (rows(1, count=3), ddl(2), end(3))]
    for _ in range(1000):
        damaged = bytearray(rng.choice(whole))
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        with suppress(ShmStoreError):
            decode(bytes(damaged))


def test_unencodable_values_are_refused_by_the_encoder():
    """A value no column can hold raises where it is put, not where it is read."""
    event = rows(1)
    with pytest.raises(TypeError):
        encode(event._replace(rows=(Row(None, (1, object(), None, None)),)))
