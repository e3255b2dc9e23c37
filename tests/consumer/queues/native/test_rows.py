"""shmstore.consumer.queues.native.rows: the pure maker of messages is the reference, byte for byte and error for error."""

from __future__ import annotations

import gc
import json
import mmap
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shmstore.consumer.formats import canal, debezium
from shmstore.consumer.formats.formatter import FORMATS
from shmstore.consumer.queues import messages
from shmstore.consumer.queues.canal_routing import CanalRouting
from shmstore.consumer.queues.messages import COMPILED, MessageOptions, Messages, size_of
from shmstore.consumer.queues.queue import Message
from shmstore.encoding.codec import Header, decode, encode_schema, encode_stored
from shmstore.errors import StoreCorrupt
from shmstore.event import Column, EntryType, EventType, TableSchema
from tests.consumer.wire.native.test_entries import damaged, headers, rows_events, transactions

_WANTED = (shutil.which("cc") or shutil.which("gcc")) and os.environ.get("SHMSTORE_PURE", "") in ("", "0")
pytestmark = pytest.mark.skipif(not COMPILED, reason="built without a compiler")

_NOW = 1_700_000_000_123_456_789  # nanoseconds


def test_it_is_built() -> None:
    """Where there is a compiler, the fast maker is there."""
    assert COMPILED or not _WANTED


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still: documents say when they were made."""

    class Clock:
        @staticmethod
        def time_ns() -> int:
            return _NOW

    monkeypatch.setattr(messages, "time", Clock)
    monkeypatch.setattr(debezium, "time", Clock)
    for module in (canal, debezium):
        monkeypatch.setattr(module, "calendar_ms", lambda: _NOW // 1_000_000)


@st.composite
def options(draw: st.DrawFn) -> MessageOptions:
    """How messages are made, in every format."""
    form = draw(st.sampled_from(FORMATS))
    routing = None
    if form == "canal" and draw(st.booleans()):
        hashed = draw(st.sampled_from(["", "s.*:$pk$", ".*\\..*:$pk$", "s.t"]))
        routing = CanalRouting("to", draw(st.sampled_from(["", ".*\\..*"])), partitions_num=3, partition_hash=hashed)
    return MessageOptions(
        "störe",
        form,
        topic=draw(st.sampled_from([None, "{table}"])),
        order="key" if routing is not None else draw(st.sampled_from(["key", "key", "table", "transaction"])),
        tombstones=draw(st.sampled_from([None, True, False])),
        schemas=form == "debezium" and draw(st.booleans()),
        gtids=form == "canal" and draw(st.booleans()),
        headers=draw(st.booleans()),
        tables=draw(st.sampled_from([None, "s.t*", "other.*"])),
        routing=routing,
    )


def outcome(maker: Messages, payload: bytes, sequence: int, *, pure: bool) -> list[Message] | str:
    """The messages, or that there are none in what is damaged."""
    if pure:
        maker._native = None
    try:
        made = maker.of_payloads(iter([payload]), sequence).messages
    except StoreCorrupt:
        return "corrupt"
    return [message._replace(headers=list(message.headers)) for message in made]


def makers(chosen: MessageOptions) -> tuple[Messages, Messages]:
    return Messages(chosen, lambda topic: 7), Messages(chosen, lambda topic: 7)


@given(payloads=st.lists(rows_events() | transactions(), min_size=1, max_size=4), chosen=options())
@settings(max_examples=500)
def test_the_messages_are_the_references(payloads: list[bytes], chosen: MessageOptions) -> None:
    """Of any rows, images, types, NULLs and options, and after whatever came before, the messages are those of the pure maker."""
    maker, reference = makers(chosen)
    for sequence, payload in enumerate(payloads, 5):
        assert outcome(maker, payload, sequence, pure=False) == outcome(reference, payload, sequence, pure=True)


@pytest.mark.parametrize("pure", [False, True])
@given(
    payloads=st.lists(rows_events() | transactions(), max_size=6),
    chosen=options(),
    messages=st.integers(1, 5),
    size=st.sampled_from([1, 600, 1 << 20]),
)
@settings(max_examples=150)
def test_many_events_in_pieces(pure: bool, payloads: list[bytes], chosen: MessageOptions, messages: int, size: int) -> None:
    """A piece ends behind the event that brings it to its bounds. All pieces together are what the reference makes of all events."""
    maker, reference = makers(chosen)
    if pure:
        maker._native = None
    wanted: list[Message] = []
    for number, each in enumerate(payloads, 5):
        said = outcome(reference, each, number, pure=True)
        assume(not isinstance(said, str))
        wanted += said  # type: ignore[arg-type]
    left, behind, found = iter(payloads), 5, []
    while (made := maker.of_payloads(left, behind, messages, size)).last is not None:
        assert made.last is payloads[made.behind - 6]
        assert made.size == size_of(made.messages)
        if made.behind - behind > 1:  # without its last event it was within them
            kept = [each for each in made.messages if each.sequence < made.behind - 1]
            assert len(kept) < messages
            assert size_of(kept) < size
        found += made.messages
        behind = made.behind
    assert behind == 5 + len(payloads)
    assert [each._replace(headers=list(each.headers)) for each in found] == wanted


def test_doubles_are_pythons() -> None:
    """A double is the shortest decimal that reads back as it, the nearest of those: around powers of two, where the neighbors are not equally far; of
    few digits and of many; with and without an exponent."""
    chance, values = random.Random(29), [0.0, -0.0, 1.0, 0.1, 5e-324, 1e22, 1e23, 2.0**53, 2.0**53 - 1, 9.5e15, 1e-4, 123456.789]
    for exponent in range(-20, 60):
        (bits,) = struct.unpack("<q", struct.pack("<d", 2.0**exponent))
        values += [struct.unpack("<d", struct.pack("<q", bits + more))[0] for more in range(-3, 4)]
    values += [chance.random() * 10.0 ** chance.randrange(-6, 18) for _ in range(3000)]
    values += [round(chance.random() * 10.0 ** chance.randrange(8), chance.randrange(7)) for _ in range(3000)]
    values += [-each for each in values]
    table = TableSchema("s", "t", (Column("id", "int"), Column("x", "double")), (0,))
    head = Header(
        int(EntryType.ROWS), int(EventType.INSERT), "b.1", 900, 90, 1_700_000_000_123, 1, "u:5", 0, 0, "", 0, "", "", {}
    )
    payload = encode_stored(
        head, encode_schema(table), [None, None, None, [[number, each] for number, each in enumerate(values)]]
    )
    for form in FORMATS:
        maker, reference = makers(MessageOptions("store", form))
        assert maker._native is not None
        found: list[Message] = []
        assert maker._native.messages(found, iter([payload]), 3, None, _NOW, 1, 1)[2] is False
        wanted = list(reference.of_event(decode(payload, 3)))
        assert [each.value for each in found] == [each.value for each in wanted]


@given(payload=rows_events() | transactions(), data=st.data(), chosen=options())
@settings(max_examples=300)
def test_damaged_bytes(payload: bytes, data: st.DataObject, chosen: MessageOptions) -> None:
    """Whatever is overwritten, cut off or added, the outcome is the reference's, and no memory beyond the event is looked at.

    Of a table that is not wanted, compiled code does not look at the rows, so damage there is no error.
    """
    for changed in damaged(payload, data):
        maker, reference = makers(chosen)
        found, expected = outcome(maker, changed, 5, pure=False), outcome(reference, changed, 5, pure=True)
        assert found == expected or (chosen.tables is not None and found == [] and isinstance(expected, str))


_COLUMNS = (
    *(Column("id", "bigint", unsigned=True, nullable=False), Column("n", "int"), Column("d", "decimal", size=12, scale=2)),
    *(Column("f", "float"), Column("x", "double"), Column("t", "time", scale=3), Column("b", "bit", size=12)),
    *(Column("raw", "varbinary", size=9), Column("j", "json"), Column("e", "enum", members=("a", "b"), charset="utf8mb4")),
    *(Column("s", "set", members=("a", "b"), charset="utf8mb4"), Column("at", "datetime", scale=6), Column("day", "date")),
    *(Column("seen", "timestamp"), Column("v", "varchar", size=80, charset="utf8mb4"), Column("y", "year")),
)
_VALUES = [
    *(2**64 - 1, -5, "-12.30", 1.5, 1e16, -3_020_399_123_000, 3000, b"\x00\xff", '{"a": "\\u0001 ä"}', "b", "a,b"),
    *(1_700_000_000_123_456, 19000, 1_700_000_000_000_000, 'q"\\\b\f\n\r\t\x01\x1f\x7fä日😀', 2024),
]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", [EventType.INSERT, EventType.UPDATE, EventType.DELETE, EventType.READ])
def test_the_usual_is_not_handed_back(form: str, kind: EventType) -> None:
    """Rows as servers log them are made by the compiled code itself, not by the reference: of every kind of type, with control characters and NULLs."""
    table = TableSchema("s", "t", _COLUMNS, (0,))
    nothing = [_VALUES[0], *[None] * (len(_VALUES) - 1)]
    changed = [_VALUES[0], 6, "7.00", 2.5, -0.5, 1000, 1, b"", _VALUES[8], "a", "", 0, 0, 0, "", 1970]
    before = [_VALUES, nothing, changed] if kind in (EventType.UPDATE, EventType.DELETE) else None
    after = [changed, _VALUES, nothing] if kind is not EventType.DELETE else None
    if kind is EventType.UPDATE:  # a document that changes in text may be the same in Maxwell's
        before = [_VALUES, nothing, changed]
        after = [changed, nothing, changed]
    props = {"thread_id": "7"}
    at = ("b.1", 900, 90, 1_700_000_000_123, 1, "u:5")
    head = Header(int(EntryType.ROWS), int(kind), *at, 0, 0, "u:1-5", 0, "", "", props)
    payload = encode_stored(head, encode_schema(table), [None, before, None, after])
    maker, reference = makers(MessageOptions("store", form))
    assert maker._native is not None
    found: list[Message] = []
    behind, last, unsaid, size, thread = maker._native.messages(found, iter([payload]), 3, None, _NOW, 1, 1)
    assert (behind, last, unsaid, size, thread) == (4, payload, False, size_of(found), None)
    wanted = list(reference.of_event(decode(payload, 3)))
    assert [message._replace(headers=list(message.headers)) for message in found] == wanted
    assert any(b"\\u001f" in (message.value or b"") for message in found)
    held = [each for message in found for each in (message, message.headers, *message.headers)]
    assert not any(map(gc.is_tracked, held)), "the collector would walk over a batch of them again and again"


@given(st.data())
@settings(max_examples=100)
def test_a_thread_is_that_of_its_transaction(data: st.DataObject) -> None:
    """Debezium's and Maxwell's documents have the thread that the transaction's begin said, also of a begin that the other maker read."""
    form = data.draw(st.sampled_from(["debezium", "maxwell"]))
    table = TableSchema("s", "t", (Column("id", "int"),), (0,))
    head = data.draw(headers(EntryType.ROWS, EventType.INSERT))
    thread = data.draw(st.sampled_from(["", "7", "4294967295"]))
    begin = encode_stored(
        head._replace(entry=int(EntryType.BEGIN), type=0, props={"thread_id": thread} if thread else {}, sql=""), None, None
    )
    rows = encode_stored(head, encode_schema(table), [None, None, None, [[1]]])
    maker, reference = makers(MessageOptions("store", form))
    for sequence, payload in enumerate((begin, rows)):
        found = outcome(maker, payload, sequence, pure=False)
        assert found == outcome(reference, payload, sequence, pure=True)
    if thread:
        assert thread.encode() in (found[0].value or b"")  # type: ignore[union-attr]


_SCRIBBLER = """
import mmap, os, sys
file, texts = os.open(sys.argv[1], os.O_RDWR), [int(each) for each in sys.argv[2:]]
at = mmap.mmap(file, 0)
whole = bytes(at)
forms = [whole]
for number in range(64):  # each with other bytes of the texts changed: cut characters, quotes, digits
    made = bytearray(whole)
    for begin, end in zip(texts[::2], texts[1::2]):
        for place in range(begin + number % 7, end, 7 + number % 5):
            made[place] = b'\\xff\\xe6\\x80"1.\\x00\\xd9a'[(place + number) % 9]
    forms += [bytes(made), whole]
print("begun", flush=True)
while True:
    for form in forms:
        for place in range(0, len(whole), 64):
            at[place : place + 64] = form[place : place + 64]
"""


@pytest.mark.parametrize("form", FORMATS)
def test_bytes_that_change_while_they_are_read(form: str, tmp_path: Path) -> None:
    """Another process writes into the texts all the time: what comes out is messages of whole JSON in UTF-8, or the error that it is damaged."""
    text = "".join(f'{number} "日本語 ä😀' for number in range(90))
    rows = [[1, "-12.30", f'{{"a": "{"ä日" * 30}", "b": [1.50, 2]}}', "a,b", text, text.encode()] for _ in range(4)]
    columns = (Column("id", "bigint", nullable=False), Column("d", "decimal", size=12, scale=2), Column("j", "json"))
    columns += (Column("s", "set", members=("a", "b"), charset="utf8mb4"), Column("v", "varchar", size=8000, charset="utf8mb4"))
    table = TableSchema("s", "t", (*columns, Column("raw", "varbinary", size=8000)), (0,))
    head = Header(int(EntryType.ROWS), int(EventType.INSERT), "b.1", 900, 90, 0, 1, "u:5", 0, 0, "u:1-5", 0, "", "", {})
    payload = encode_stored(head, encode_schema(table), [None, None, None, rows])
    (file := tmp_path / "event").write_bytes(payload)
    texts = [match.span() for value in rows[0][1:5] for match in re.finditer(re.escape(str(value).encode()), payload)]
    assert len(texts) > 4 * len(rows)  # the text is in the bytes too
    command = [sys.executable, "-c", _SCRIBBLER, str(file), *(str(place) for span in texts for place in span)]
    with (
        file.open("r+b") as opened,
        mmap.mmap(opened.fileno(), 0) as shared,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as scribbler,
        memoryview(shared) as event,
    ):
        try:
            assert scribbler.stdout is not None
            assert scribbler.stdout.readline() == "begun\n"
            for _ in range(2000):
                maker, _ = makers(MessageOptions("store", form))
                try:
                    made = maker.of_payloads(iter([event]), 3).messages
                except (StoreCorrupt, UnicodeError):
                    continue
                assert len(made) == (1 if form == "canal" else len(rows))
                for message in made:
                    assert type(json.loads((message.value or b"").decode())) is dict
        finally:
            scribbler.kill()


def test_pure_on_request() -> None:
    """SHMSTORE_PURE=1 keeps the compiled maker out."""
    script = "from shmstore.consumer.queues import messages; print(messages.COMPILED)"
    environment = {**os.environ, "SHMSTORE_PURE": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
