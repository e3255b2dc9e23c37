"""The compiled stream gives byte for byte what the Python one gives, and refuses what it refuses."""

from __future__ import annotations

import os
import random
import shutil
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest

from shmstore import Position, ShmStoreError, UnsupportedEvent
from shmstore.producer.binlog.events import RawEvent
from shmstore.producer.binlog.packets import PacketSplitter, new_splitter
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.producer.gtid import parse
from shmstore.producer.native_code import COMPILED, compiled
from shmstore.producer.transactions.buffer import TransactionBuffer, new_buffer
from shmstore.producer.transactions.decoder import EventDecoder
from tests.servers.server import Server
from tests.shmstore.samples import BAD_UTF8

# Where there is a compiler, an extension that was not built is a failure; where there is none, or it is switched off, there is
# nothing to compare.
_WANTED = (shutil.which("cc") or shutil.which("gcc")) and os.environ.get("SHMSTORE_PURE", "") in ("", "0")
pytestmark = pytest.mark.skipif(not COMPILED and not _WANTED, reason="no compiled decoder, and none to be built")


class Binlog(NamedTuple):
    """A piece of a server's binlog: the events of one file from `offset` on, and the set executed before it."""

    file: str
    offset: int
    events: list[bytes]
    executed: str


def _events(data: bytes, start: int) -> list[bytes]:
    """The FORMAT event as a server sends it before a place in the middle, then the events from `start` on."""
    size = int.from_bytes(data[13:17], "little")
    found = [data[4:17] + b"\0\0\0\0" + data[21 : 4 + size]]
    at = start
    while at + 19 <= len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        found.append(data[at : at + size])
        at += size
    return found


def _stream(events: list[bytes]) -> bytes:
    """The events as packets; an event of 16 MiB and more takes several."""
    out, sequence = [], 1
    for event in events:
        rest = b"\0" + event
        while True:
            packet, rest = rest[:0xFFFFFF], rest[0xFFFFFF:]
            out.append(len(packet).to_bytes(3, "little") + bytes([sequence & 255]) + packet)
            sequence += 1
            if len(packet) < 0xFFFFFF:
                break
    return b"".join(out)


@pytest.fixture(scope="module")
def binlog(any_server: Server) -> Iterator[Binlog]:
    """All that a plain binlog holds: transactions of every size, savepoints, rollbacks, DDLs, many types, two threads."""
    one, two = any_server.connect(), any_server.connect()
    mysql = any_server.flavor == "mysql"
    with one.cursor() as cursor, two.cursor() as other:
        cursor.execute("DROP DATABASE IF EXISTS compiled")
        cursor.execute("CREATE DATABASE compiled CHARACTER SET utf8mb4")
        cursor.execute("USE compiled")
        cursor.execute("SHOW BINARY LOG STATUS" if mysql else "SHOW MASTER STATUS")
        file, offset = cursor.fetchone()[:2]
        cursor.execute("SELECT @@gtid_executed" if mysql else "SELECT @@gtid_binlog_pos")
        executed = cursor.fetchone()[0]
        cursor.execute(
            "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, u BIGINT UNSIGNED, s SMALLINT, d DECIMAL(20,6), f FLOAT, x DOUBLE, b BIT(20), "
            "y YEAR, da DATE, dt DATETIME(3), ts TIMESTAMP(6) NULL, ti TIME(2), e ENUM('a','ö','c'), st SET('x','y','z'), v VARCHAR(300), "
            "l VARCHAR(40) CHARACTER SET latin1, g VARCHAR(40) CHARACTER SET gbk, tx MEDIUMTEXT, bl BLOB, bi BINARY(9), vb VARBINARY(9), j JSON)"
        )
        cursor.execute("CREATE TABLE hidden (id INT PRIMARY KEY, v INT)")
        chance = random.Random(5)
        columns = "u,s,d,f,x,b,y,da,dt,ts,ti,e,st,v,l,g,tx,bl,bi,vb,j"
        for i in range(120):
            cursor.execute("BEGIN")
            for _ in range(chance.choice([1, 1, 2, 5])):
                rows = [_row(chance) for _ in range(chance.choice([1, 1, 3, 40]))]
                marks = "(" + ",".join(["%s"] * 21) + ")"
                cursor.execute(
                    f"INSERT INTO t ({columns}) VALUES {','.join([marks] * len(rows))}", [v for row in rows for v in row]
                )
            if i % 3 == 0:
                cursor.execute("UPDATE t SET s = s + 1, v = NULL, x = x * 3 WHERE id %% 7 = %s", (i % 7,))
            if i % 5 == 0:
                cursor.execute("SAVEPOINT a")
                cursor.execute("DELETE FROM t WHERE id %% 11 = %s", (i % 11,))
                if i % 2:
                    cursor.execute("ROLLBACK TO a")
            if i % 4 == 0:
                cursor.execute("INSERT INTO hidden VALUES (%s, 1)", (i,))
            cursor.execute("ROLLBACK" if i % 17 == 16 else "COMMIT")
            if i % 6 == 0:
                other.execute("INSERT INTO compiled.hidden VALUES (%s, 2)", (10_000 + i,))
            if i == 40:
                cursor.execute("ALTER TABLE t ADD COLUMN more INT DEFAULT 5")
            if i == 80:
                cursor.execute("TRUNCATE TABLE hidden")
        cursor.execute("INSERT INTO t (tx) VALUES (REPEAT('long ', 200000))")
        cursor.execute("UPDATE t SET tx = CONCAT(tx, 'é')")
    data = (Path(any_server.directory) / "data" / file).read_bytes()
    yield Binlog(file, offset, _events(data, offset), executed)
    with one.cursor() as cursor:
        cursor.execute("DROP DATABASE compiled")
    one.close()
    two.close()


def _row(chance: random.Random) -> list[Any]:
    row: list[Any] = [
        chance.randrange(2**64), chance.randrange(-(2**15), 2**15 - 500), f"{chance.randrange(-(10**12), 10**12)}.{chance.randrange(10**6):06}",
        chance.uniform(-1e5, 1e5), chance.gauss(0, 1e9), chance.randrange(2**20), chance.choice([0, 1901, 2024, 2155]),
        chance.choice(["2024-02-29", "1000-01-01", "9999-12-31"]), "2024-05-06 07:08:09.123", "2024-05-06 07:08:09.123456",
        chance.choice(["-838:59:59", "12:34:56.78", "-00:00:00.01"]), chance.choice("aöc"), chance.choice(["", "x", "x,z", "x,y,z"]),
        chance.choice(["", "plain", "ünï 数据 😀"]) * chance.choice([1, 1, 30]), "déjà", "数据", "text", chance.randbytes(chance.choice([0, 5, 300])),
        b"ab\0\0", b"\0\xff", '{"a": [1, 2.5, "x"]}',
    ]  # fmt: skip
    return [None if chance.random() < 0.08 else value for value in row]


class Result(NamedTuple):
    """What came out, and where the stream stood."""

    blob: bytes
    slots: bytes
    position: Position
    executed: str
    left_out: tuple[int, int]


def _decode(binlog: Binlog, compiled: bool, pieces: list[bytes], table_filter: TableFilter, **bounds: int) -> Result:
    splitter: Any = new_splitter() if compiled else PacketSplitter()
    options = {"events": 8192, "size": 4 << 20, "empty_events": 1} | bounds
    buffer = new_buffer(compiled_code=compiled, **options)
    assert compiled != isinstance(buffer, TransactionBuffer)
    decoder = EventDecoder(buffer, table_filter)
    decoder.start(Position(binlog.file, binlog.offset), parse(binlog.executed) if binlog.executed else None)
    blobs, slots = [], []
    for piece in pieces:
        for event in splitter.feed(piece):
            decoder.feed(event)
        while (flush := buffer.take()) is not None:
            blobs.append(bytes(flush.blob))
            slots.append(flush.slots.tobytes())
    left_out = decoder.state.filtered_events, decoder.state.filtered_rows
    return Result(b"".join(blobs), b"".join(slots), decoder.position, str(decoder.executed), left_out)


def _cut(data: bytes, chance: random.Random, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    while at < len(data):
        size = chance.choice(sizes)
        pieces.append(data[at : at + size])
        at += size
    return pieces


FILTERS = {
    "all": {},
    "one table": {"include": ["compiled.t"]},
    "no inserts": {"operations": ["update", "delete", "ddl"]},
    "rows": {"row_filter": ["compiled.t: s > 0 AND v IS NOT NULL", "compiled.t: id > 5"], "column_mask": ["compiled.t.v"]},
    "rows that come and go": {"row_filter": ["compiled.t: s BETWEEN -9000 AND 9000.5 OR x > 1e8 AND NOT v LIKE '%数_ 😀%'"]},
    "rows by text and time": {
        "row_filter": ["compiled.t: e IN ('a', 'ö') OR v < 'q' OR ti > '00:00:00' OR bl >= x'80' OR da IS NULL"]
    },
    "masked": {"column_mask": ["compiled.t.v"], "column_hash": ["compiled.t.u"]},
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("bounds", [{}, {"events": 3}, {"size": 3000}], ids=["whole", "parts of 3 events", "parts of 3 kB"])
def test_the_compiled_stream_equals_the_python_one(binlog: Binlog, name: str, bounds: dict[str, int], seed: int) -> None:
    """Payloads, slots, position, GTID set and what the filters left out are the same to the byte, however the bytes arrive."""
    assert COMPILED, "the extension is not built: pip install -e ."
    data = _stream(binlog.events)
    wanted = _decode(binlog, False, [data], TableFilter(**FILTERS[name]), **bounds)
    events, rows = wanted.left_out
    assert (events > 0, rows > 0) == {
        "one table": (True, False),
        "no inserts": (True, True),
        "masked": (False, False),
        "all": (False, False),
        "rows that come and go": (True, True),
    }.get(name, (True, True))
    assert len(wanted.slots) > 40 * 100
    chance = random.Random(seed)
    for sizes in ([len(data)], [1 << 18], [1, 7, 100, 5000], [3, 4, 5, 1 << 16]):
        assert _decode(binlog, True, _cut(data, chance, sizes), TableFilter(**FILTERS[name]), **bounds) == wanted


def test_events_over_several_packets(mariadb: Server) -> None:
    """An event of 16 MiB and more is put together from its packets."""
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS compiled_long")
        cursor.execute("CREATE OR REPLACE TABLE compiled_long.t (id INT PRIMARY KEY, b LONGBLOB)")
        cursor.execute("SET GLOBAL max_allowed_packet = 1 << 26")
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, offset = cursor.fetchone()[:2]
        cursor.execute("INSERT INTO compiled_long.t VALUES (1, REPEAT('x', 17000000)), (2, 'y')")
        cursor.execute("INSERT INTO compiled_long.t VALUES (3, REPEAT('x', 16777215 - 60))")
        cursor.execute("INSERT INTO compiled_long.t VALUES (4, 'z')")
        data = (Path(mariadb.directory) / "data" / file).read_bytes()
        cursor.execute("DROP DATABASE compiled_long")
    binlog = Binlog(file, offset, _events(data, offset), "0-1-1")
    stream = _stream(binlog.events)
    wanted = _decode(binlog, False, [stream], TableFilter())
    assert wanted.blob.count(b"compiled_long") >= 4
    for size in (1 << 18, 5_000_000, len(stream)):
        assert _decode(binlog, True, _cut(stream, random.Random(1), [size]), TableFilter()) == wanted


def test_damage_is_refused_alike(binlog: Binlog, seed: int) -> None:
    """A flipped byte is an error of the same class on both sides, or the same events; never a crash."""
    data = _stream(binlog.events[:200])
    chance = random.Random(seed)
    for _ in range(100):
        at = chance.randrange(len(data))
        damaged = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        assert _outcome(binlog, True, damaged) == _outcome(binlog, False, damaged), f"byte {at}"


def test_damage_behind_the_checksum_is_refused_alike(binlog: Binlog, seed: int) -> None:
    """Bytes whose checksum is right but which no server wrote: the same error on both sides, or the same events."""
    chance = random.Random(seed)
    plain = [_without_checksum(event) for event in binlog.events[1:200]]
    head = _format_without_checksum(binlog.events[0])
    for _ in range(150):
        events = list(plain)
        i = chance.randrange(len(events))
        event = bytearray(events[i])
        for _ in range(chance.choice([1, 1, 3])):
            event[chance.randrange(19, len(event))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.2:
            del event[chance.randrange(19, len(event)) :]
            event[9:13] = len(event).to_bytes(4, "little")
        events[i] = bytes(event)
        damaged = _stream([head, *events])
        assert _outcome(binlog, True, damaged) == _outcome(binlog, False, damaged), f"event {i}: {bytes(event)!r}"


def test_numbers_of_64_bits_are_refused_alike(binlog: Binlog) -> None:
    """A transaction whose number has its highest bit set: to MySQL that is negative, to MariaDB it is not."""
    events = [_without_checksum(event) for event in binlog.events[1:]]
    first = next(i for i, event in enumerate(events) if event[4] in (33, 162) and events[i + 1][4] in (2, 19))
    at = 19 + (24 if events[first][4] == 33 else 7)
    events[first] = events[first][:at] + bytes([events[first][at] | 0x80]) + events[first][at + 1 :]
    damaged = _stream([_format_without_checksum(binlog.events[0]), *events])
    refused = _outcome(binlog, True, damaged)
    assert (refused is UnsupportedEvent) is (events[first][4] == 33)
    assert refused == _outcome(binlog, False, damaged)


def _without_checksum(event: bytes) -> bytes:
    return event[:9] + (len(event) - 4).to_bytes(4, "little") + event[13:-4]


def _format_without_checksum(event: bytes) -> bytes:
    return event[:-5] + b"\0" + event[-4:]  # the algorithm byte says none; a FORMAT event has space for one all the same


def _outcome(binlog: Binlog, compiled: bool, data: bytes) -> Any:
    try:
        return _decode(binlog, compiled, [data], TableFilter())
    except ShmStoreError as error:
        return type(error)


@pytest.fixture(params=[64, 16, 8])
def width(request: pytest.FixtureRequest) -> Iterator[int]:
    """What processors have of at most so many bytes at a time is used; 8: plain C, as on other kinds of processor."""
    compiled.use_width(request.param)
    yield request.param
    compiled.use_width(64)


def test_the_checksum_is_zlibs(width: int, seed: int) -> None:
    """CRC-32 by the processor's multiplication, by the tables and by zlib are one, for every length and start."""
    chance = random.Random(seed)
    data = memoryview(chance.randbytes(5000))
    for size in [*range(300), *(chance.randrange(4900) for _ in range(200))]:
        at = chance.randrange(100)
        piece = data[at : at + size]
        assert compiled.checksum(piece) == zlib.crc32(piece), (at, size)


def test_the_utf8_check_agrees_with_python(width: int, seed: int) -> None:
    """Text in any script, cut off or damaged anywhere, is UTF-8 exactly where it is to Python's decoder."""
    chance = random.Random(seed)
    edges = ["\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff", "a", "ü", "数"]
    seen = set()
    for _ in range(20_000):
        text = "".join(chance.choices(edges, k=chance.randrange(40))).encode()
        at = chance.randrange(len(text) + 1)
        damage = chance.choice([b"", b"", chance.choice(BAD_UTF8), chance.randbytes(1)])
        text = text[:at] + damage + text[at + chance.randrange(2) :]
        text = text[: chance.randrange(len(text) + 1)] if chance.random() < 0.3 else text
        try:
            right = bool(text.decode()) or True
        except UnicodeDecodeError:
            right = False
        assert compiled.is_text(text) == right, text
        seen.add(right)
    assert seen == {True, False}


def test_texts_are_copied_whole_or_refused(width: int, seed: int) -> None:
    """A text of any length, wherever it is in its event, comes out as it is; one that is no UTF-8 raises Python's error."""
    chance = random.Random(seed)
    program = compiled.Program([("text", 1, 0, 0, None), ("text", 2, 0, 0, None)])
    letters = ["a", "\x7f", "ü", "\u07ff", "数", "\uffff", "\U0010ffff"]
    refused = 0
    for _ in range(3000):
        rows = [
            ["".join(chance.choices(letters, k=chance.choice([0, 1, 5, 16, 20, 50, 85]))) for _ in range(2)] for _ in range(3)
        ]
        texts = [text.encode() for row in rows for text in row]
        assert msgpack.unpackb(compiled.rows_of(None, program, _row_images(texts), 0)[2]) == rows
        at = chance.randrange(6)
        cut = chance.randrange(len(texts[at]) + 1)
        texts[at] = texts[at][:cut] + chance.choice([b"", *BAD_UTF8]) + texts[at][cut + chance.randrange(2) :]
        with suppress(UnicodeDecodeError):
            texts[at].decode()
            continue
        with pytest.raises(UnicodeDecodeError):
            compiled.rows_of(None, program, _row_images(texts), 0)
        refused += 1
    assert refused > 1000


def _row_images(texts: list[bytes]) -> bytes:
    """Rows of two texts, whose lengths have one and two bytes; nothing is behind the last."""
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return b"".join(b"\0" + bytes([len(one)]) + one + len(two).to_bytes(2, "little") + two for one, two in pairs)


def test_a_run_keeps_its_bytes_while_somebody_looks_at_it(binlog: Binlog) -> None:
    """The memory received into is used again once a run is used up, and never before."""
    data = _stream(binlog.events)
    splitter: Any = new_splitter()
    runs = [run for piece in _cut(data, random.Random(1), [10_000]) for run in splitter.feed(piece)]
    kept = [raw for run in runs for raw in run.raw(RawEvent)]
    wanted = [raw for piece in [data] for raw in PacketSplitter().feed(piece)]
    assert kept == wanted
