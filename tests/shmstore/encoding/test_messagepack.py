"""The codec and the package msgpack: what compiled code writes and reads is what msgpack does, and no byte of an event is believed."""

from __future__ import annotations

import enum
import random
import resource
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore import StoreCorrupt
from shmstore.encoding import codec
from shmstore.encoding.codec import Header, Packed

HEADER = [2, 1, "binlog.000001", 100, 50, 5, 1, "t", 0, 0, "", 0, "d", "", {"xid": "5"}]
RESUMES = [
    *(
        5,
        "x",
        [],
        [{}],
        [{}, 1],
        [{}, 1, 2, 3],
        [[], 1, 2],
        [{}, "1", 2],
        [{}, 1, None],
        [{"a": 5}, 1, 2],
        [{5: ["f", 4, ""]}, 1, 2],
    ),
    *([{"a": at}, 1, 2] for at in (["f", 4], ["f", "4", ""], [5, 4, ""], ["f", 4, None], ["f", 4, "", 0])),
]
READ = [codec.decode, codec.decode_stored, codec.split_stored, codec.stored_head]

plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([edge + step for edge in (0, 32, 128, 256, 2**16, 2**32, 2**63) for step in (-1, 0, 1)])
    | st.floats()
    | st.text()
    | st.binary()
    | st.builds(bytes, st.sampled_from([31, 32, 255, 256, 65535, 65536]))
    | st.builds(lambda size: "ä" * size, st.sampled_from([15, 16, 127, 128, 32768]))
)
values = st.recursive(
    plain, lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner), max_leaves=40
)


class Color(enum.IntEnum):
    RED = 3


@pytest.fixture(params=["compiled", "pure"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to write and read an event."""
    if request.param == "pure":
        monkeypatch.setattr(codec, "COMPILED", False)
    return request.param


@given(values)
def test_values_are_written_as_msgpack_does(value: Any) -> None:
    """The same bytes, whichever writes them; and they are read again as the value."""
    assert codec.pack(value) == msgpack.packb(value)
    assert codec.pack([value, Color.RED, [[]] * 20]) == msgpack.packb([value, 3, [[]] * 20])


@given(st.lists(st.lists(plain, min_size=2, max_size=2), max_size=5), st.lists(st.integers(0, 4095), max_size=3) | st.none())
def test_what_is_packed_is_copied(rows: list[list[Any]], columns: list[int] | None) -> None:
    """A `Packed` in the place of a body, or of its rows, gives the bytes that the values would, by compiled code and without."""
    whole = msgpack.packb([2, HEADER, None, b"s", [columns, rows, None, rows]])
    packed = Packed(memoryview(msgpack.packb(rows)))
    for body in (
        [columns, rows, None, rows],
        [columns, packed, None, packed],
        [columns, rows, None, packed],
        Packed(msgpack.packb([columns, rows, None, rows])),
    ):
        assert codec.encode_stored(Header(*HEADER), b"s", body) == whole
        assert b"".join(codec._pieces((2, HEADER, None, b"s", body))) == whole
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codec, "COMPILED", False)
            assert codec.encode_stored(Header(*HEADER), b"s", body) == whole
            assert isinstance(body, Packed) or b"".join(codec.stored_parts(Header(*HEADER), b"s", body)) == whole
    assert codec.pack([packed] * 4) == b"\x94" + bytes(packed.data) * 4  # more than compiled code takes


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, object(), [1, {"a": {1}}], "\ud800"])
def test_what_msgpack_cannot_write_is_refused(either: str, value: Any) -> None:
    """By the same kinds of error, and the next value is written as if nothing had been."""
    with pytest.raises((TypeError, ValueError, OverflowError)):
        codec.pack(["x" * 100, value])
    assert codec.pack("a") == b"\xa1a"


def test_no_memory_of_a_large_event_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where msgpack writes: what packed it goes, as it would keep as much for as long as the process lives. What packed a small one stays."""
    monkeypatch.setattr(codec, "COMPILED", False)
    kept = [msgpack.Packer()]
    monkeypatch.setattr(codec, "_packers", kept)
    codec.pack(b"x" * 1000)
    assert len(kept) == 1
    codec.pack(b"x" * (4 << 20))
    assert kept == []


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("place", range(len(HEADER)))
@pytest.mark.parametrize("wrong", [None, True, 1.5, "x", 7, b"x", [], ["x"], {}, {"a": 1}, {"a": None}, {"a": {}}, 2**64 - 1])
def test_a_field_of_another_type_is_refused(either: str, read: Callable[[bytes], Any], place: int, wrong: Any) -> None:
    """Each field of a header has its type exactly: a truth value is no number, and props are text to text."""
    header = [*HEADER[:place], wrong, *HEADER[place + 1 :]]
    payload = msgpack.packb([2, header, None, None, None])
    if type(wrong) is type(HEADER[place]) and wrong not in ({"a": 1}, {"a": None}, {"a": {}}):
        codec.split_stored(payload)
    else:
        with pytest.raises(StoreCorrupt):
            read(payload)


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize(
    "event",
    [
        [2, HEADER[:-1], None, None, None],
        [2, [*HEADER, 1], None, None, None],
        [2, tuple(HEADER), None, "schema", None],
        [2, HEADER, None, 5, None],
        [2, HEADER, None, None],
        [2, HEADER, None, None, None, None],
        [2.0, HEADER, None, None, None],
        [True, HEADER, None, None, None],
        [1, HEADER, None, None],
        [3, HEADER, None, None, None],
        *([2, HEADER, resume, None, None] for resume in RESUMES),
        {"a": 1},
        5,
    ],
    ids=str,
)
def test_another_shape_is_refused(either: str, read: Callable[[bytes], Any], event: Any) -> None:
    """An event is an array of five: the format, a header of fifteen fields, where its sources continue, bytes or nil, and one more."""
    with pytest.raises(StoreCorrupt):
        read(msgpack.packb(event))


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("head", [b"", b"\x95\x02", b"\x95\x02\x9f", b"\x95\x02\xdd", b"\x95\x02\x9f\x02\x01"])
@pytest.mark.parametrize(
    "claim",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x05",
    ],
)
def test_a_length_is_not_believed(either: str, read: Callable[[bytes], Any], head: bytes, claim: bytes) -> None:
    """An array, map, text, bytes or extension that claims 4 GiB costs no memory, once or nested a thousand times."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for payload in (head + claim, head + claim * 1000, head + claim * 10 + bytes(1 << 20)):
        with pytest.raises(StoreCorrupt):
            read(payload)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10  # KiB


def test_long_heads(either: str) -> None:
    """A head that is longer than most, as of a long statement or a wide table, is read, and ends where it ends."""
    for size in (10, 60_000, 65_536, 200_000, 3_000_000):
        header = Header(*HEADER[:13], "x" * size, {str(i): "v" for i in range(40)})
        payload = codec.encode_stored(header, b"s" * size, [None, None, None, [[1]]])
        found, schema, body = codec.split_stored(memoryview(payload))
        assert (found, schema, bytes(body.data)) == (header, b"s" * size, msgpack.packb([None, None, None, [[1]]]))


def test_every_cut_and_every_flipped_bit(either: str, seed: int) -> None:
    """A damaged event is read, or is refused as damage: nothing else comes of it."""
    chance = random.Random(seed)
    payload = bytearray(codec.encode_stored(Header(*HEADER), None, None))
    for end in range(len(payload)):
        with pytest.raises(StoreCorrupt):
            codec.decode(bytes(payload[:end]))
    for _ in range(3000):
        damaged = bytearray(payload)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        for read in READ:
            try:
                read(bytes(damaged))
            except StoreCorrupt:
                continue
