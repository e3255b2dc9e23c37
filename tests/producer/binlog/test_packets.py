"""Packets in any pieces, checksums, and the layouts of events that are not rows."""

from __future__ import annotations

import contextlib
import random
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmstore import UnsupportedEvent
from shmstore.producer.binlog import events
from shmstore.producer.binlog.events import EventCode, RawEvent
from shmstore.producer.binlog.packets import FULL_PACKET, KEPT, PacketSplitter, ServerRefused, new_splitter, singly
from shmstore.producer.errors import ChecksumMismatch, LinkLost


def event(code: int, body: bytes, *, checksum: bool = True, end: int = 500, flags: int = 0) -> bytes:
    size = 19 + len(body) + (4 if checksum else 0)
    raw = struct.pack("<IBIIIH", 1_700_000_000, code, 7, size, end, flags) + body
    return raw + struct.pack("<I", zlib.crc32(raw)) if checksum else raw


def format_event(checksum: bool) -> bytes:
    body = struct.pack("<H50sIB", 4, b"10.11.19-MariaDB", 0, 19) + bytes(40) + bytes([int(checksum)])
    raw = struct.pack("<IBIIIH", 1, EventCode.FORMAT, 7, 19 + len(body) + 4, 0, 0) + body
    return raw + struct.pack("<I", zlib.crc32(raw))


def packets(*payloads: bytes, first: int = 1) -> bytes:
    out, number = [], first
    for payload in payloads:
        at = 0
        while True:
            part = payload[at : at + FULL_PACKET]
            out.append(struct.pack("<I", len(part))[:3] + bytes([number & 255]) + part)
            number, at = number + 1, at + FULL_PACKET
            if len(part) < FULL_PACKET:
                break
    return b"".join(out)


def feed(stream: bytes, cuts: list[int]) -> list[RawEvent]:
    splitter, found, at = PacketSplitter(), [], 0
    for cut in [*sorted(cuts), len(stream)]:
        if cut > at:
            found += splitter.feed(stream[at:cut])
            at = cut
    return found


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=300), st.booleans(), st.lists(st.integers(0, 20_000), max_size=30))
def test_pieces_do_not_matter(bodies: list[bytes], checksum: bool, cuts: list[int]) -> None:
    """However the stream is cut into pieces, the same events come out, more than 255 packets included."""
    stream = packets(*[b"\0" + e for e in (format_event(checksum), *[event(16, body, checksum=checksum) for body in bodies])])
    found = feed(stream, cuts)
    assert [raw.body for raw in found[1:]] == bodies
    assert found == feed(stream, [])
    assert {(raw.code, raw.timestamp, raw.server_id, raw.end) for raw in found[1:]} == {(16, 1_700_000_000, 7, 500)}


@pytest.mark.parametrize(
    "size", [FULL_PACKET - 100, FULL_PACKET - 24, FULL_PACKET - 23, FULL_PACKET - 22, FULL_PACKET, 2 * FULL_PACKET + 7]
)
def test_large_events_over_several_packets(size: int) -> None:
    """An event of 16 MiB and more comes whole, on both sides of the packet limit."""
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    stream = packets(b"\0" + format_event(True), b"\0" + event(30, body), b"\0" + event(16, b"after"))
    found = feed(stream, list(range(0, len(stream), 1 << 20)))
    assert [raw.body for raw in found[1:]] == [body, b"after"]


SPLITTERS = pytest.mark.parametrize("make", [PacketSplitter, new_splitter], ids=["python", "as installed"])


def raw_events(fed: list[Any]) -> list[RawEvent]:
    return [raw for one in fed for raw in singly(one)]


@SPLITTERS
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("size", [FULL_PACKET - 24, FULL_PACKET - 20, 2 * FULL_PACKET - 24, 2 * FULL_PACKET + 7])
def test_a_large_event_that_is_left_out(make: Any, checksum: bool, size: int, seed: int) -> None:
    """However it is cut, its beginning comes, with its size; what is before and after it comes whole; it is asked of once."""
    rng = random.Random(seed)
    body = rng.randbytes(8) + bytes(size - 8)
    parts = ((16, b"before"), (30, body), (16, b"after"), (31, body))
    events = [format_event(checksum), *[event(code, of, checksum=checksum) for code, of in parts]]
    stream = packets(*[b"\0" + one for one in events])
    asked: list[tuple[int, bytes]] = []
    found: list[RawEvent] = []

    def leaves_out(code: int, beginning: bytes) -> bool:
        assert [raw.body for raw in found[1:]][-1] == (b"before" if code == 30 else b"after")  # handled before it is asked
        asked.append((code, beginning))
        return code == 30

    splitter, at = make(leaves_out=leaves_out), 0
    while at < len(stream):
        piece = rng.choice([1, 3, 5, 40, 1 << 18]) if rng.random() < 0.01 else 1 << 18
        found += raw_events(splitter.feed(stream[at : at + piece]))
        at += piece
    assert [raw.code for raw in found] == [EventCode.FORMAT, 16, 30, 16, 31]
    large = len(events[2]) >= FULL_PACKET - 1
    assert found[2].body == body[: KEPT - 19 if large else None]
    assert found[2].length == len(events[2])
    assert (found[1].body, found[3].body, found[4].body) == (b"before", b"after", body)
    assert asked == ([(30, body[:8]), (31, body[:8])] if large else [])


@SPLITTERS
@pytest.mark.parametrize("where", ["head", "middle", "checksum", "number", "short", "long"])
def test_damage_in_what_is_left_out(make: Any, where: str) -> None:
    """It is verified as it passes: nothing that is not held is believed for that."""
    body = bytes(2 * FULL_PACKET)
    first = packets(b"\0" + format_event(True))
    large = bytearray(packets(b"\0" + event(30, body), first=2))
    if where in ("short", "long"):
        size = struct.pack("<I", 19 + len(body) + 4 + (1 if where == "short" else -1))
        large[14:18] = size
    else:
        large[{"head": 30, "middle": FULL_PACKET + 1000, "checksum": len(large) - 1, "number": FULL_PACKET + 7}[where]] ^= 1
    stream, splitter = first + bytes(large), make(leaves_out=lambda code, beginning: True)
    pieces = (stream[at : at + (1 << 18)] for at in range(0, len(stream), 1 << 18))
    with pytest.raises((ChecksumMismatch, UnsupportedEvent, LinkLost)):
        list(map(splitter.feed, pieces))


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_changed_byte_is_noticed(where: int, flip: int) -> None:
    """A flipped bit anywhere in an event never passes for an event."""
    good = packets(b"\0" + format_event(True), b"\0" + event(16, b"12345678"))
    start = len(packets(b"\0" + format_event(True))) + 5
    damaged = bytearray(good)
    damaged[start + where % (len(good) - start)] ^= flip
    with pytest.raises((ChecksumMismatch, UnsupportedEvent, LinkLost)):
        feed(bytes(damaged), [])


def test_what_is_not_an_event() -> None:
    """Errors come out with code and text; the end of the stream, a wrong number and rubbish are a lost link."""
    with pytest.raises(ServerRefused) as caught:
        feed(packets(b"\xff" + struct.pack("<H", 1236) + b"#HY000Could not find"), [])
    assert caught.value.args == (1236, "Could not find")
    for stream in (packets(b"\xfe\0\0\0\0"), packets(b"\0" + event(16, b"x"), first=2), packets(b""), packets(b"\0short")):
        with pytest.raises(LinkLost):
            feed(stream, [])


def test_rotate_before_format() -> None:
    """The ROTATE that comes before any FORMAT event is read right with and without a checksum."""
    body = struct.pack("<Q", 4) + b"binlog.000007"
    for checksum in (True, False):
        (raw,) = feed(packets(b"\0" + event(EventCode.ROTATE, body, checksum=checksum, end=0, flags=0x20)), [])
        assert events.rotate(raw.body) == ("binlog.000007", 4)


# bodies as MySQL 9.7 and MariaDB 10.11 wrote them
GTID = bytes.fromhex(
    "00ce40bdf1e4b511f18e7c02fc0000000104000000000000000203000000000000000400000000000000de6aaf73b06006fc27015062 0100".replace(
        " ", ""
    )
)
QUERY = (
    b"\t\0\0\0\0\0\0\0\x02\0\0\x1d\0\0\0\0\0\0\x01 \0\xa0E\0\0\0\0\x06\x03std\x04\xff\0\xff\0\xff\0\x12\xff\0\0a1\0BEGIN".replace(
        b"\0\0a1", b"\0a1"
    )
)


def test_gtid_events() -> None:
    """MySQL's and MariaDB's GTID events give the transaction's name."""
    assert events.gtid(GTID) == "ce40bdf1-e4b5-11f1-8e7c-02fc00000001:4"
    gtid = events.mariadb_gtid(bytes.fromhex("0300000000000000000000002900000000 0000".replace(" ", "")))
    assert (gtid.domain, gtid.number, gtid.standalone, gtid.xid) == (0, 3, True, None)
    many = struct.pack("<I", 3) + struct.pack("<IIQ", 0, 1, 9) + struct.pack("<IIQ", 2, 1, 4) + struct.pack("<IIQ", 2, 5, 6)
    assert str(events.mariadb_gtid_list(many)) == "0-1-9,2-5-6"


def test_query_event() -> None:
    """Text, database, thread and client character set of a QUERY event are read."""
    query = events.query(QUERY)
    assert (query.sql, query.database, query.thread_id) == ("BEGIN", "a1", 9)
    status = b"\x04" + struct.pack("<HHH", 8, 8, 8) + b"\x0d" + (250_000).to_bytes(3, "little")
    latin = struct.pack("<IIBHH", 1, 0, 1, 0, len(status)) + status + b"d\0CREATE TABLE `gr\xf6\xdfe` (a INT)"
    query = events.query(latin)
    assert query.sql == "CREATE TABLE `größe` (a INT)"
    assert query.microsecond == 250_000


PARSERS = [
    events.query,
    events.rotate,
    events.xid,
    events.xa_prepare,
    events.gtid,
    events.gtid_tagged,
    events.previous_gtids,
    events.mariadb_gtid,
    events.mariadb_gtid_list,
    events.format_checksum,
]


@settings(max_examples=300)
@given(st.sampled_from(PARSERS), st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(parse: object, body: bytes) -> None:
    """Damaged events raise `UnsupportedEvent`, nothing else, at once."""
    with contextlib.suppress(UnsupportedEvent):
        parse(body)  # type: ignore[operator]
