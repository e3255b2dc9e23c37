"""Damaged binlogs: an error that says so or a right answer; never another exception, a hang or a huge allocation.

The seed events are real ones, of both servers, with every type, image and compression. A mutated event counts as answered only
when what came out can be stored and read back.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmstore.errors import SchemaUnknown, UnsupportedEvent
from shmstore.producer.binlog.compression import payload_events, uncompress_query
from shmstore.producer.binlog.rows import ROWS_EVENTS, DecodedRows, RowsDecoder
from tests.producer.decoding import TABLE_MAP, database_of, plain, reference, run, stored
from tests.producer.values.test_json_binary import DOCUMENT
from tests.servers.server import Server

Pair = tuple[bytes, int, bytes]  # TABLE_MAP body, type and body of a rows event that follows it
SLOW = 5.0  # seconds of the processor for one event: far above any real need, far below a hang
MEMORY = 1 << 30  # bytes that decoding may take over what the process had

COLUMNS = (
    "id int primary key, a tinyint unsigned, b bigint unsigned, c mediumint, d float, e double, f decimal(12,2), g decimal(40,20), "
    "h bit(13), i year, j date, k datetime(6), l datetime, m timestamp(3) null, n time(4), o char(20), p varchar(300), q tinytext, "
    "r mediumtext, s longblob, t binary(9), u varbinary(20), v enum('a','b','ü'), w set('x','y','z'), x varchar(20) character set gbk, "
    "y varchar(20) character set latin1, z varchar(20) character set utf16, aa geometry, bb time"
)
VALUES = (
    "200, 18446744073709551615, -5, 1.5, 2.5, -123456.78, 1.5, 8191, 2024, '2024-02-29', '2024-01-02 03:04:05.678901', '0000-00-00', "
    "'2024-01-02 03:04:05.678', '-12:34:56.789', 'char', repeat('ü', 100), 'tiny', 'medium', x'00ff', x'61', x'6200', 'ü', 'x,z', "
    "'世界', 'é', '世', ST_GeomFromText('POINT(1 2)'), '838:59:59'"
)


def corpus(server: Server) -> list[Pair]:
    """Events of all kinds that this server writes."""
    pairs: list[Pair] = []
    with database_of(server, "fuzz") as (connection, log):
        extra, value = (", j1 json, j2 json", f", '{DOCUMENT}', '[1, 2.5, [\"x\"]]'") if server.flavor == "mysql" else ("", "")
        value = value.replace("\\", "\\\\")
        run(connection, f"CREATE TABLE t ({COLUMNS}{extra})", "SET SESSION sql_mode='ALLOW_INVALID_DATES'")
        log.skip()
        modes = ["SET SESSION binlog_row_image = full", "SET SESSION binlog_row_image = minimal"]
        if server.flavor == "mysql":
            modes += [
                "SET SESSION binlog_row_image = full, binlog_row_value_options = PARTIAL_JSON",
                "SET SESSION binlog_row_value_options = '', binlog_transaction_compression = ON",
            ]
        else:
            modes += ["SET GLOBAL log_bin_compress_min_len = 10", "SET GLOBAL log_bin_compress = ON"]
        for i, mode in enumerate(modes):
            run(connection, mode, f"INSERT INTO t VALUES ({3 * i}, {VALUES}{value}), ({3 * i + 1}, {VALUES}{value})")
            run(connection, f"INSERT INTO t (id) VALUES ({3 * i + 2})")
            change = "j1 = json_set(j1, '$.a', 5, '$.\"new\"', 'x')" if server.flavor == "mysql" else "p = 'y'"
            run(connection, f"UPDATE t SET {change}, a = 1 WHERE id >= {3 * i}", f"DELETE FROM t WHERE id = {3 * i}")
        map_ = b""
        for type_, body in log.events():
            if type_ == TABLE_MAP:
                map_ = body
            elif type_ in ROWS_EVENTS:
                pairs.append((map_, type_, body))
        if server.flavor == "mariadb":
            run(connection, "SET GLOBAL log_bin_compress = OFF")
    return pairs


@pytest.fixture(scope="module")
def seeds(mariadb: Server, mysql: Server) -> list[Pair]:
    found = corpus(mariadb) + corpus(mysql)
    assert {23, 24, 25, 30, 31, 32, 39, 166} <= {type_ for _, type_, _ in found}
    return found


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Asking for more than MEMORY raises MemoryError here, which no decoder turns into another error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def decode(map_: bytes, type_: int, body: bytes) -> bool:
    """True when the event was answered, False when it was refused; anything else is a failed test, and so are two answers."""
    decoded = _decoded(reference(), map_, type_, body)
    compiled = _decoded(RowsDecoder(), map_, type_, body)
    if decoded is None or compiled is None:
        assert decoded is compiled
        return False
    assert repr(plain(compiled.body)) == repr(plain(decoded.body))
    assert len(stored(decoded).rows) == decoded.count
    return True


def _decoded(decoder: RowsDecoder, map_: bytes, type_: int, body: bytes) -> DecodedRows | None:
    started = time.thread_time()
    try:
        table = decoder.table_map(map_)
        return decoder.rows(type_, table.table_id.to_bytes(6, "little") + body[6:])
    except (UnsupportedEvent, SchemaUnknown):
        return None
    finally:
        assert time.thread_time() - started < SLOW


def mutated(random_: random.Random, data: bytes, other: bytes) -> bytes:
    """One to four small damages: bits, bytes, lengths, cuts, insertions, a piece of another event."""
    out = bytearray(data)
    for _ in range(random_.choice((1, 1, 1, 2, 4))):
        at = random_.randrange(len(out) + 1)
        kind = random_.randrange(8)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << random_.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = random_.choice((0, 1, 0x7F, 0x80, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF))
        elif kind == 2 and at < len(out):
            out[at] = random_.randrange(256)
        elif kind == 3:
            del out[at:]
        elif kind == 4:
            del out[at : at + random_.randrange(1, 9)]
        elif kind == 5:
            out[at:at] = random_.randbytes(random_.randrange(1, 9))
        elif kind == 6:
            out[at : at + 4] = random_.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\0\0\0\x80"))
        elif other:
            start = random_.randrange(len(other))
            out[at : at + 16] = other[start : start + random_.randrange(1, 32)]
    return bytes(out)


def mutate_all(seeds: list[Pair], count: int, seed: int) -> None:
    random_ = random.Random(seed)
    answered = 0
    with bounded_memory():
        for _ in range(count):
            map_, type_, body = random_.choice(seeds)
            other = random_.choice(seeds)[2]
            if random_.random() < 0.3:
                map_ = mutated(random_, map_, random_.choice(seeds)[0])
            if random_.random() < 0.8:
                body = mutated(random_, body, other)
            if random_.random() < 0.05:
                type_ = random_.choice(sorted(ROWS_EVENTS))
            answered += decode(map_, type_, body)
    print(f"{answered} of {count} answered")
    assert 0 < answered < count  # the damages are neither harmless nor total


@pytest.mark.server
def test_the_seeds_themselves_decode(seeds: list[Pair]) -> None:
    """What is mutated next is right before."""
    assert all(decode(*pair) for pair in seeds)


@pytest.mark.server
def test_mutated_events(seeds: list[Pair], seed: int) -> None:
    """4,000 damaged events (random)."""
    mutate_all(seeds, 4000, seed)


@pytest.mark.server
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_mutated_events(seeds: list[Pair], seed: int) -> None:
    """100,000 damaged events (random)."""
    mutate_all(seeds, 100_000, seed)


@settings(max_examples=1500, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=300), st.sampled_from(sorted(ROWS_EVENTS)), st.binary(max_size=300))
def test_random_bytes(map_: bytes, type_: int, body: bytes) -> None:
    """Bytes that were never an event."""
    decode(map_, type_, body)


def layouts(random_: random.Random) -> bytes:
    """A TABLE_MAP as a server may write it, or almost: any types, their metadata, names, signs, members and character sets."""
    types = random_.choices(TYPES, k=random_.randint(1, 6))
    meta = b"".join(_metadata(random_, type_) for type_ in types)
    nullable = bytes((len(types) + 7) // 8)
    numbers = sum(type_ in (1, 2, 3, 4, 5, 8, 9, 246) for type_ in types)
    members = b"\x02\x01a\x02\xc3\xa9" * len(types)
    collation = random_.choice((b"\x2d", b"\x3f", b"\x08", b"\x1c", b"\xfc\xff\0"))
    tags = {
        1: random_.randbytes((numbers + 7) // 8),
        2: collation,
        10: collation,
        5: members,
        6: members,
        4: b"\x02ca" * len(types),
    }
    if random_.random() < 0.05:
        tags[random_.randrange(14)] = random_.randbytes(random_.randrange(9))
    listed = b"".join(bytes([tag, len(value)]) + value for tag, value in tags.items())
    return bytes(8) + b"\x01d\0\x01t\0" + bytes([len(types)]) + bytes(types) + bytes([len(meta)]) + meta + nullable + listed


TYPES = (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 140, 141, 242, 245, 246, 247, 252, 254, 254, 254, 255)


def _metadata(random_: random.Random, type_: int) -> bytes:
    if type_ in (15, 16, 140, 246, 247, 254) and random_.random() < 0.3:
        return random_.randbytes(2)
    if type_ in (15, 140):
        return bytes([random_.randrange(256), random_.randrange(2)])
    if type_ == 16:
        return bytes([random_.randrange(8), random_.randrange(9)])
    if type_ == 246:
        return bytes([random_.randrange(70), random_.randrange(32)])
    if type_ in (247, 254):
        return bytes([random_.choice((247, 248, 254)), random_.randrange(10)])
    return bytes([random_.randrange(9)]) if type_ in (4, 5, 17, 18, 19, 141, 242, 245, 252, 255) else b""


def test_random_layouts(seed: int) -> None:
    """TABLE_MAPs that are well formed as far as most of their lengths go, and rows of any bytes."""
    random_ = random.Random(seed)
    answered = 0
    for _ in range(300):
        map_ = layouts(random_)
        count = map_[14]
        for _ in range(10):
            type_ = random_.choice((23, 24, 25, 30, 31, 32, 39))
            images = b"\xff" * (2 if type_ in (24, 31, 39) else 1)
            data = bytes(random_.choices((0, 0, 1, 2, 4, 0x80, 0xFF, random_.randrange(256)), k=random_.randrange(60)))
            answered += decode(map_, type_, bytes(8) + (b"\x02\0" if type_ >= 30 else b"") + bytes([count]) + images + data)
    assert answered > 30


@settings(max_examples=1000)
@given(st.binary(max_size=200))
def test_random_payloads_and_statements(body: bytes) -> None:
    """TRANSACTION_PAYLOAD and QUERY_COMPRESSED events of any bytes."""
    with suppress(UnsupportedEvent):
        list(payload_events(body))
    with suppress(UnsupportedEvent):
        uncompress_query(body)
