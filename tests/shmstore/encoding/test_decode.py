"""Rows decoded by compiled code are the Python values of the reference, or its refusal."""

from __future__ import annotations

import gc
import itertools
import random
import re
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shmstore import ABSENT, Event, EventType, StoreCorrupt, TableSchema
from shmstore.encoding import codec
from shmstore.encoding.codec import encode, encode_schema
from tests.shmstore.tables import ALL, NARROW, random_events, rows_event

pytestmark = pytest.mark.skipif(not codec.COMPILED, reason="no compiled columns here")


def decoded(payload: bytes) -> Event | StoreCorrupt:
    try:
        return codec.decode(payload, 7)
    except StoreCorrupt as error:
        return error


def shown(event: Event | StoreCorrupt) -> str:
    """All of an event, types too, or what a refusal reports; without the addresses of objects that a damaged header may hold."""
    return re.sub(r" at 0x[0-9a-f]+", "", f"{event!r} {getattr(event, 'sequence', None)}")


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], Event | None]:
    """Decodes both ways, which must agree on values and their types, and on what they say of damage; None for what is refused."""

    def read(payload: bytes) -> Event | None:
        compiled = decoded(payload)
        with monkeypatch.context() as patch:
            patch.setattr(codec, "COMPILED", False)
            reference = decoded(payload)
        assert shown(compiled) == shown(reference)
        return None if isinstance(compiled, StoreCorrupt) else compiled

    return read


ALONE = (
    codec._event_reader(lambda payload, sequence: None) if codec.COMPILED else None
)  # what compiled code leaves to the reference is None


def with_body(table: TableSchema, body: bytes) -> bytes:
    """An event's bytes, of this table and with this body."""
    header = [2, 1, "binlog.000001", 100, 50, 5, 1, "t", 0, 0, "", 0, "d", "", {}]
    return msgpack.packb([2, header, None, encode_schema(table), None])[:-1] + body


def compiled_alone(table: TableSchema, body: Any) -> Any:
    """The rows by compiled code; None where it leaves them to the reference."""
    event = ALONE.event(with_body(table, msgpack.packb(body)), 1)
    return None if event is None else event.rows


def test_every_type_and_kind_of_event(seed: int, both: Callable[[bytes], Event | None]) -> None:
    """Random rows of every type come out the same, by compiled code, and go back into the same bytes."""
    for payload in random_events(random.Random(seed), 240):
        event = both(payload)
        assert event is not None
        if event.table is None:
            continue
        assert compiled_alone(event.table, codec.decode_stored(payload)[2]) == event.rows
        assert codec.decode(encode(event)) == event


TEXTS = TableSchema("d", "t", (ALL.columns[22],))
ALPHABET = "a\x00\x7f\x80ß\xff\u0100\u07ff\u0800数\ud7ff\ue000\uffff\U00010000\U0010ffff"


def text_of(data: bytes) -> str | None:
    """What compiled code makes of a text of these bytes; None where it leaves it to the reference."""
    head = b"\xdb" + len(data).to_bytes(4, "big")
    body = b"\x94\xc0\xc0\xc0\x91\x91" + head + data
    event = ALONE.event(with_body(TEXTS, body), 1)
    return None if event is None else event.rows[0].after[0]


def python_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


@given(st.text() | st.text(ALPHABET, max_size=80), st.integers(0, 1030), st.integers(0, 20))
@example("é", 0, 0)
@example("数" * 341, 1, 0)
@example("é" * 512, 0, 0)
@example("é" * 512, 1, 0)
def test_text_is_what_python_makes_of_it(text: str, before: int, behind: int) -> None:
    """Equal, of the same hash, size in memory and bytes, at each length and each width of a character."""
    for wanted in (text, "a" * before + text + "b" * behind, text * 7):
        data = wanted.encode()
        found, wanted = text_of(data), data.decode()
        assert found is not None
        assert (found, hash(found), repr(found), found.encode()) == (wanted, hash(wanted), repr(wanted), data)
        # Python keeps the UTF-8 of a text that was encoded once.
        assert found.__sizeof__() - wanted.__sizeof__() in (0, len(data) + 1)
        assert found.isascii() == wanted.isascii()
        assert {found: 1}[wanted] == 1


@given(st.text(ALPHABET, min_size=1, max_size=60), st.integers(0, 255), st.data())
def test_text_with_a_wrong_byte_is_the_references(text: str, byte: int, data: st.DataObject) -> None:
    """A byte changed or the end cut off anywhere gives Python's text, or is refused as Python refuses it."""
    whole = bytearray(text.encode())
    at = data.draw(st.integers(0, len(whole) - 1))
    assert text_of(bytes(whole[:at])) == python_text(bytes(whole[:at]))
    whole[at] = byte
    assert text_of(bytes(whole)) == python_text(bytes(whole))


def test_neighbors_share_what_they_have_in_common() -> None:
    """Table, file, transaction and names are one object as long as they are equal. A name that only begins alike is another."""
    names = [("binlog.000001", "0-1-1", "d"), ("binlog.000001", "0-1-10", "dä"), ("binlog.00000", "0-1-1", "dä"), ("", "", "")]
    tables = [NARROW, ALL, NARROW._replace(table="narro"), NARROW._replace(primary_key=(1,))]
    headers = [
        [2, 1, file, 100, 50, 5, 1, gtid, 0, 0, gtid, 0, name, "", {"xid": gtid, name: name}] for file, gtid, name in names
    ]
    chosen = [(header, table) for header in headers for table in tables for _ in range(2)]
    payloads = [msgpack.packb([2, header, None, encode_schema(table), [None] * 4]) for header, table in chosen]
    events = list(codec.decode_each(payloads, range(len(chosen))))
    for event, number, (header, table) in zip(events, range(len(chosen)), chosen, strict=True):
        assert (event.position.file, event.transaction, event.position.gtids, event.database) == (
            header[2],
            header[7],
            header[7],
            header[12],
        )
        assert (event.table, event.props, event.sequence) == (table, header[14], number)
    for event, same in zip(events[::2], events[1::2], strict=True):
        assert same.table is event.table
        assert same.position.file is event.position.file
        assert same.transaction is event.transaction is event.position.gtids
        assert same.props is not event.props


def test_a_batch_is_its_events(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event of many is what it is alone, whatever came before: of another table, with sources, damaged."""
    chance = random.Random(seed)
    payloads = [payload for table in (ALL, NARROW) for payload in random_events(chance, 60, table)]
    place = {"b": ["f.000007", 4, "0-1-1"], "a": ["f.000001", 400, "ä"]}
    for entry in (2, 3, 5):
        header = [entry, 1, "binlog.000001", 100, 50, 5, 1, "t", 0, 0, "", 3, "d", "", {"xid": "5"}]
        payloads += [
            msgpack.packb([2, header, [sources, 3, 9], None, None])
            for sources in (place, {}, dict.fromkeys("abcdefghijklmnopq", place["a"]))
        ]
    payloads += [payload[: chance.randrange(len(payload))] for payload in payloads[::5]]
    chance.shuffle(payloads)
    with monkeypatch.context() as patch:
        patch.setattr(codec, "COMPILED", False)
        wanted = [shown(decoded(payload)) for payload in payloads]
    for kind in (bytes, memoryview, bytearray):
        each = codec.decode_each(map(kind, payloads), itertools.repeat(7))
        for one in wanted:
            try:
                found: Event | StoreCorrupt = next(each)
            except StoreCorrupt as error:
                found = error
            assert shown(found) == one
        assert list(each) == []


def test_bytes_that_are_none_are_refused() -> None:
    """Neither text nor a view that was released is read."""
    view = memoryview(random_events(random.Random(1), 1)[0])
    view.release()
    for payload in (view, "text", None, memoryview(b"abcdef")[::2]):
        for read in (lambda payload: codec.decode(payload), lambda payload: list(codec.decode_each([payload], [1]))):
            with pytest.raises((TypeError, ValueError, BufferError)):
                read(payload)


def test_the_collector_does_not_know_rows(seed: int) -> None:
    """It would walk over those of a batch again and again."""
    for payload in random_events(random.Random(seed), 40):
        for row in codec.decode(payload).rows:
            assert not any(map(gc.is_tracked, (row, row.before, row.after)))


def test_images_without_all_columns(both: Callable[[bytes], Event | None]) -> None:
    """Columns that an image lacks are ABSENT; places that repeat or lie outside the table are the reference's to judge."""
    event = both(rows_event(0, EventType.UPDATE, [[5, "2.50"], [7, None]], [[6, "-0.10"], [8, "1.00"]], columns=[7, 12]))
    assert event is not None
    assert [len([value for value in row.after or () if value is not ABSENT]) for row in event.rows] == [2, 2]
    assert (event.rows[0].before or ())[7] == 5
    assert compiled_alone(ALL, [[7, 12], [[5, "2.50"]], None, None]) is not None
    for columns in ([7, 7], [7, 99], [-1, 7], [7], ["7", 12], [7, 12, 13], "ab", 5, []):
        assert compiled_alone(ALL, [columns, [[5, "2.50"]], None, None]) is None
        both(rows_event(0, EventType.UPDATE, [[5, "2.50"]], [[6, "3.00"]], columns=columns))  # type: ignore[arg-type]


@pytest.mark.parametrize("place", range(len(ALL.columns)), ids=ALL.names)
def test_any_value_in_any_column(place: int, both: Callable[[bytes], Event | None]) -> None:
    """Whatever a column holds, its own type or not, at the edges of the calendar and beyond: the same value or the same refusal."""
    values: list[Any] = [
        None,
        True,
        False,
        0,
        -1,
        2**63 - 1,
        -(2**63),
        2**63,
        2**64 - 1,
        1.5,
        float("inf"),
        "",
        "x",
        "1e5",
        "NaN",
        "1.50",
    ]
    values += ["0000-00-00", b"", b"\xff", [1], {"a": 1}, -719162, -719163, 2932896, 2932897]
    values += [(day * 86400 + second) * 10**6 + micro for day in (-719163, -719162, -1, 0, 59, 11016, 2932896, 2932897)
               for second in (0, 86399) for micro in (0, 999999)]  # fmt: skip
    for value in values:
        cells: list[Any] = [None] * len(ALL.columns)
        cells[place] = value
        both(rows_event(0, EventType.INSERT, None, [cells]))


def test_every_day_of_the_calendar() -> None:
    """Each day from the year 1 to 9999 is the day that Python's own calendar has."""
    table = TableSchema("d", "t", (ALL.columns[18],))
    days = list(range(-719162, 2932897, 7)) + list(range(-800, 800))
    rows = compiled_alone(table, [None, None, None, [[day] for day in days]])
    assert [row.after[0].toordinal() - 719163 for row in rows] == days


def test_damaged_events(both: Callable[[bytes], Event | None], seed: int) -> None:
    """Damaged payloads give the reference's event, or are refused as it refuses them."""
    chance = random.Random(seed)
    read = refused = 0
    for _ in range(1500):
        payload = bytearray(chance.choice(random_events(chance, 1, chance.choice([ALL, NARROW, NARROW]))))
        for _ in range(chance.choice([1, 1, 3])):
            at = chance.randrange(len(payload))
            how = chance.randrange(5)
            if how <= 2:
                payload[at] = chance.choice([chance.randrange(256), payload[at] ^ 1 << chance.randrange(8), 0xC0, 0xDD, 0xDB])
            elif how == 3:
                payload[at:at] = chance.randbytes(chance.randint(1, 5))
            elif at:
                del payload[at:]
        if both(bytes(payload)) is None:
            refused += 1
        else:
            read += 1
    assert read > 50
    assert refused > 50


def test_bodies_that_are_none() -> None:
    """Whatever is no body at all is left to the reference."""
    for body in (None, 5, [], [None] * 3, [None] * 5, [None, [[1]], None, [[1], [2]]], [None, {}, None, None], "text"):
        assert compiled_alone(TableSchema("d", "t", (ALL.columns[0],)), body) is None
    assert compiled_alone(TableSchema("d", "t", (ALL.columns[0],)), [None] * 4) == ()
    assert ALONE.event(with_body(NARROW, msgpack.packb([None] * 4)), 1) is not None
    assert ALONE.event(with_body(NARROW, msgpack.packb([None] * 4) + b"\x00"), 1) is None


def test_schemas_with_lists_for_text(both: Callable[[bytes], Event | None]) -> None:
    """A damaged schema is refused as the reference refuses it."""
    for strange in ({"a": 1}, [1], ["x"], 5, None):
        for field in range(8):
            column: list[Any] = ["id", "int", False, True, 0, 0, "", []]
            column[field] = strange
            header = [2, 1, "binlog.000001", 100, 50, 5, 1, "t", 0, 0, "", 0, "d", "", {}]
            schema = msgpack.packb(["d", "t", [column], []])
            both(msgpack.packb([2, header, None, schema, [None, None, None, [[1]]]]))


def test_bodies_without_a_schema(both: Callable[[bytes], Event | None]) -> None:
    """An event without a table has no body: whatever is in its place is damage."""
    payload = msgpack.packb([2, [1, 0, "binlog.000001", 100, 50, 5, 1, "t", 0, 0, "", 0, "d", "", {}], None, None, None])
    assert both(payload) is not None
    for body in (b"\xa1a", b"\xa1\xff", b"\x94\xc0\xc0\xc0\xc0", b"\xc0\xc0", b""):
        assert both(payload[:-1] + body) is None
