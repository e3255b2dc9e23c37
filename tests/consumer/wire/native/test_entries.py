"""shmstore.consumer.wire.native.entries: the pure encoder is the reference, byte for byte and error for error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shmstore.consumer.formats.canal_values import Values
from shmstore.consumer.wire.encoding.entry import COMPILED, Encoder, compiled
from shmstore.encoding.codec import Header, encode_schema, encode_stored
from shmstore.errors import StoreCorrupt
from shmstore.event import Column, EntryType, EventType, TableSchema

_WANTED = (shutil.which("cc") or shutil.which("gcc")) and os.environ.get("SHMSTORE_PURE", "") in ("", "0")
pytestmark = pytest.mark.skipif(not COMPILED, reason="built without a compiler")


def test_it_is_built() -> None:
    """Where there is a compiler, the fast encoder is there."""
    assert COMPILED or not _WANTED


# ---- every type, as the producer stores it and as it may be stored besides

_TYPES = [
    *("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit", "year"),
    *("date", "time", "datetime", "timestamp", "char", "varchar", "binary", "varbinary"),
    *(
        "tinytext",
        "text",
        "mediumtext",
        "longtext",
        "tinyblob",
        "blob",
        "json",
        "enum",
        "set",
        "geometry",
        "uuid",
        "inet6",
        "vector",
    ),
]

_DAY = 86_400_000_000
_micros = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)  # the years 1 to 9999
_text = st.text(max_size=20) | st.text("a0äß日😀\x7f\x80\xa0 \\\"'", max_size=200) | st.text(min_size=130, max_size=140)
_bytes = st.binary(max_size=20) | st.binary(min_size=120, max_size=140) | st.just(b"ab\0\0") | st.just(b"\xff" * 200)
_zero_dates = st.sampled_from(["0000-00-00", "2024-02-31", "0000-00-00 00:00:00.000"])
_members = st.lists(st.text("abäö日c", max_size=4), min_size=1, max_size=8)
_json = st.text('{}[]:, "\\bfu0019.eE-+äx\x7f\x85\xa0٣', max_size=30) | st.sampled_from(
    [
        *('{"a": 1.0, "b": [10000000000.0, 1e10, -0.5]}', '"\\b\\f\\u0008"', '{"ä.e": [1, null]}', '{"x": 1.50}', "[]"),
        *('"日本e"', '["4e5", 1e5]', '{"5e": "\\"1e5"}', '"5e1', '\\""1e5"', "\\1e1"),
    ]
)
_real = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, -0.0, 1e7, 1e-3, 9.99e-4, 1e15, 1e16, 1e-5, 5e-324, 0.1]
)


@st.composite
def _digits(draw: st.DrawFn, size: int, scale: int) -> str:
    whole = draw(st.text("0123456789", min_size=1, max_size=max(1, size - scale))).lstrip("0") or "0"
    part = draw(st.text("0001239", min_size=scale, max_size=scale)) if draw(st.booleans()) else "0" * scale
    return draw(st.sampled_from(["", "-"])) + whole + (f".{part}" if scale else "")


@st.composite
def columns(draw: st.DrawFn) -> tuple[Column, st.SearchStrategy[Any]]:
    """A column, and its stored values."""
    kind = draw(st.sampled_from(_TYPES))
    column = Column(draw(st.text("abcä", min_size=1, max_size=6)), kind, nullable=draw(st.booleans()))
    bits = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64, "bit": 64}.get(kind)
    if bits:
        unsigned = kind == "bit" or draw(st.booleans())
        least, most = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
        edges = [least, most, most // 2, most // 2 + 1, 0, 127, min(128, most)]
        width = draw(st.sampled_from(["", f"{kind}({draw(st.integers(1, 9))}) zerofill", "BOOLEAN"]))
        column = column._replace(unsigned=unsigned, definition=width, size=bits if kind == "bit" else 0)
        return column, st.sampled_from(edges) | st.integers(least, most)
    if kind == "decimal":
        size = draw(st.integers(1, 40))
        scale = draw(st.integers(0, min(30, size)))
        return column._replace(size=size, scale=scale, unsigned=draw(st.booleans())), _digits(size, scale)
    if kind in ("float", "double"):
        return column, _real
    if kind in ("date", "time", "datetime", "timestamp"):
        column = column._replace(scale=0 if kind == "date" else draw(st.integers(0, 6)))
        if kind == "date":
            return column, st.integers(-719_162, 2_932_896) | _zero_dates
        if kind == "time":
            return column, st.integers(-3_020_399_999_999, 3_020_399_999_999) | st.integers(-(10**15), 10**15)
        whole = st.integers(0, 2**32 * 1_000_000) if kind == "timestamp" else _micros
        return column, whole | whole.map(lambda value: value // _DAY * _DAY) | _zero_dates
    if kind in ("enum", "set"):
        members = tuple(draw(_members.filter(lambda found: kind == "enum" or "," not in "".join(found))))
        value = st.sampled_from([*members, ""])
        if kind == "set":
            value = st.lists(st.sampled_from(members), unique=True).map(",".join)
        return column._replace(members=members, charset="utf8mb4"), value
    if kind == "json":
        return column, _json
    if kind == "year":
        return column, st.integers(0, 2155)
    if kind in ("binary", "varbinary", "tinyblob", "blob", "geometry", "vector"):
        return column._replace(size=draw(st.integers(0, 60))), _bytes
    definition = draw(st.sampled_from(["", "JSON", "text(100)", kind])) if "text" in kind else ""
    charset = draw(st.sampled_from(["utf8mb4", "latin1", "utf8mb3"]))
    return column._replace(size=draw(st.integers(0, 400)), charset=charset, definition=definition), _text


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableSchema, list[st.SearchStrategy[Any]]]:
    """A table version, and the stored values of its columns, NULL among them."""
    drawn = draw(st.lists(columns(), min_size=1, max_size=6))
    made = tuple(column for column, _ in drawn)
    key = tuple(draw(st.lists(st.integers(0, len(made) - 1), unique=True, max_size=2)))
    table = TableSchema(
        draw(st.sampled_from(["s", "shöp"])), draw(st.sampled_from(["t", "t" * 150])), made, key, draw(st.booleans())
    )
    return table, [st.none() | values for _, values in drawn]


@st.composite
def headers(draw: st.DrawFn, entry: EntryType, type_: EventType) -> Header:
    """A header in stored form."""
    length = draw(st.sampled_from([0, 60, 20_000, 2**31]))
    file = draw(st.sampled_from(["binlog.000001", "b.2", "bin-ä.000003"]))
    transaction = draw(
        st.sampled_from(["", "0-1-7", "3e11fa47-71ca-11e1-9e33-c80aa9429562:23", "binlog.000001:4", "b.2:4", "b.2"])
    )
    props = draw(
        st.dictionaries(
            st.sampled_from(["curtGtidSn", "curtGtidLct", "thread_id", "xid", "other"]), st.sampled_from(["", "7", "ä", "123456"])
        )
    )
    offset = length + draw(st.sampled_from([0, 4, 300, 2**40]))
    time_ms, server = draw(st.sampled_from([0, 999, 1_700_000_000_123])), draw(st.sampled_from([0, 1, 2**32 - 1]))
    gtids = draw(st.sampled_from(["", "0-1-7", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-23" * 10]))
    sources = draw(st.dictionaries(st.sampled_from(["", "a", "c d"]), st.sampled_from([["f.1", 4, ""], ["f", 2**40, "0-1-7"]])))
    resume = draw(st.sampled_from([None, None, [sources, 0, 0], [sources, 5, 2**31]]))
    place = (file, offset, length, time_ms, server, transaction)
    return Header(int(entry), int(type_), *place, 0, 0, gtids, 0, "", "", props, resume)


@st.composite
def rows_events(draw: st.DrawFn) -> bytes:
    """A rows event of any type, with whole and with partial images."""
    table, values = draw(tables())
    type_ = draw(st.sampled_from([EventType.INSERT, EventType.UPDATE, EventType.DELETE, EventType.READ]))
    count = draw(st.sampled_from([1, 1, 2, 3, 20]))
    everything = list(range(len(values)))

    def present() -> list[int] | None:
        return None if draw(st.booleans()) else [i for i in everything if draw(st.booleans())]

    def image(columns: list[int] | None) -> list[list[Any]]:
        return [[draw(values[i]) for i in (everything if columns is None else columns)] for _ in range(count)]

    body: list[Any] = [None, None, None, None]
    if type_ in (EventType.UPDATE, EventType.DELETE):
        body[0] = present()
        body[1] = image(body[0])
    if type_ is not EventType.DELETE:
        body[2] = present()
        body[3] = image(body[2])
        if body[1] and body[0] == body[2]:  # most columns stay as they are
            body[3] = [
                [old if draw(st.booleans()) else new for old, new in zip(was, now, strict=True)]
                for was, now in zip(body[1], body[3], strict=True)
            ]
    if draw(st.integers(0, 20)) == 0:
        body = [None, None, None, None]
    return encode_stored(draw(headers(EntryType.ROWS, type_)), encode_schema(table), body)


@st.composite
def transactions(draw: st.DrawFn) -> bytes:
    """A BEGIN or an END."""
    entry = draw(st.sampled_from([EntryType.BEGIN, EntryType.END]))
    return encode_stored(draw(headers(entry, draw(st.sampled_from([EventType.NONE, EventType.READ])))), None, None)


def outcome(encoder: Encoder, payload: bytes, *, pure: bool) -> bytes | str | None:
    """The entry, or what kind of error there was."""
    try:
        return encoder.encode_pure(payload) if pure else encoder.encode(payload)
    except StoreCorrupt:
        return "corrupt"


_options = {"values": st.sampled_from(list(Values)), "gtids": st.sampled_from([None, True, False])}


@given(payloads=st.lists(rows_events() | transactions(), min_size=1, max_size=4), **_options)
@settings(max_examples=300)
def test_the_bytes_are_the_references(payloads: list[bytes], values: Values, gtids: bool | None) -> None:
    """Of any rows, images, types, NULLs and options, and after whatever came before, the entry is that of the pure encoder."""
    encoder, reference = Encoder(values, gtids=gtids), Encoder(values, gtids=gtids)
    for payload in payloads:
        assert outcome(encoder, payload, pure=False) == outcome(reference, payload, pure=True)


@given(payload=rows_events(), **_options)
@settings(max_examples=200)
def test_the_usual_is_not_handed_back(payload: bytes, values: Values, gtids: bool | None) -> None:
    """What the producer stores is encoded by the compiled code itself, not by the reference."""
    encoder = Encoder(values, gtids=gtids)
    assume(outcome(encoder, payload, pure=True) != "corrupt")
    native = compiled.Entries(encoder._table, values is Values.CANAL, encoder._with_gtids)
    assert native.encode(payload) is not NotImplemented


def damaged(payload: bytes, data: st.DataObject) -> tuple[bytes, ...]:
    """An event with bytes that are overwritten, cut off or added."""
    changed = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(
            st.sampled_from([0x00, 0x90, 0xC0, 0xC2, 0xCA, 0xCB, 0xFF]) | st.integers(0, 255)
        )
    cut = data.draw(st.sampled_from([0, 0, 1, 7]))
    return bytes(changed), bytes(changed[: len(changed) - cut]), payload[:-1], payload + b"\xc0"


@given(payload=rows_events() | transactions(), data=st.data(), **_options)
@settings(max_examples=300)
def test_damaged_bytes(payload: bytes, data: st.DataObject, values: Values, gtids: bool | None) -> None:
    """Whatever is overwritten, cut off or added, the outcome is the reference's, and no memory beyond the event is looked at."""
    for changed in damaged(payload, data):
        encoder, reference = Encoder(values, gtids=gtids), Encoder(values, gtids=gtids)
        assert outcome(encoder, changed, pure=False) == outcome(reference, changed, pure=True)


def test_a_filter_is_asked_and_its_error_is_its_own() -> None:
    """A table that is refused gives nothing; what the filter raises comes out with the filter's error in it or as it is."""
    table = TableSchema("s", "t", (Column("id", "int"),), (0,))
    head = Header(2, 1, "b.1", 9, 0, 0, 1, "", 0, 0, "", 0, "", "", {})
    payload = encode_stored(head, encode_schema(table), [None, None, None, [[1]]])
    asked: list[str] = []
    encoder = Encoder(Values.CANAL)
    assert encoder.encode(payload, lambda name: bool(asked.append(name))) is None
    assert asked == ["s.t"]

    def refuses(name: str) -> bool:
        raise ZeroDivisionError(name)

    with pytest.raises(ZeroDivisionError):
        encoder.encode(payload, refuses)
    assert encoder.encode(payload) == encoder.encode_pure(payload)  # and is usable after it


def test_pure_on_request() -> None:
    """SHMSTORE_PURE=1 keeps the compiled encoder out."""
    script = "from shmstore.consumer.wire.encoding import entry; print(entry.COMPILED)"
    environment = {**os.environ, "SHMSTORE_PURE": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
