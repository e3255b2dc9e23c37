"""Rows of a SELECT, compiled: from any bytes what the Python reference makes of them, or an error where it gives one."""

from __future__ import annotations

import random
import struct

import msgpack
import pytest

from shmstore import Column
from shmstore.producer.binlog.packets import FULL_PACKET
from shmstore.producer.binlog.result_rows import Cell, ResultRows, new_rows
from shmstore.producer.binlog.wire_types import Wire
from shmstore.producer.native_code import COMPILED

pytestmark = pytest.mark.skipif(not COMPILED, reason="no compiled decoder")

_UNSIGNED, _ZEROFILL = 32, 64
_END = struct.pack("<I", 5)[:3] + b"\xff\xfe\x00\x00\x02\x00"
_CELLS = [
    *[
        (Cell(wire, flags), Column("c", "int", unsigned=bool(flags)))
        for wire in (Wire.TINY, Wire.SHORT, Wire.INT24, Wire.LONG, Wire.LONGLONG, Wire.YEAR)
        for flags in (0, _UNSIGNED)
    ],
    (Cell(Wire.FLOAT, 0), Column("c", "float")),
    (Cell(Wire.DOUBLE, 0), Column("c", "double")),
    (Cell(Wire.NEWDECIMAL, 0), Column("c", "decimal")),
    (Cell(Wire.NEWDECIMAL, _ZEROFILL), Column("c", "decimal")),
    (Cell(Wire.DATE, 0), Column("c", "date")),
    *[(Cell(Wire.DATETIME, 0), Column("c", "datetime", scale=digits)) for digits in (0, 3, 6)],
    (Cell(Wire.TIMESTAMP, 0), Column("c", "timestamp", scale=1)),
    (Cell(Wire.TIME, 0), Column("c", "time", scale=6)),
    (Cell(Wire.BIT, 0), Column("c", "bit")),
    (Cell(Wire.VAR_STRING, 0), Column("c", "varchar", charset="utf8mb4")),
    (Cell(Wire.VAR_STRING, 0), Column("c", "varchar", charset="latin1")),
    (Cell(Wire.VAR_STRING, 0), Column("c", "varchar", charset="gbk")),
    (Cell(Wire.STRING, 0), Column("c", "enum", charset="utf8mb4")),
    (Cell(Wire.STRING, 0), Column("c", "set", charset="latin1")),
    (Cell(Wire.BLOB, 0), Column("c", "blob")),
    (Cell(Wire.JSON, 0), Column("c", "json")),
    (Cell(Wire.GEOMETRY, 0), Column("c", "geometry")),
]


def _counted(raw: bytes) -> bytes:
    n = len(raw)
    return (
        bytes([n]) + raw
        if n < 251
        else b"\xfc" + struct.pack("<H", n) + raw
        if n < 1 << 16
        else b"\xfd" + struct.pack("<I", n)[:3] + raw
    )


def _value(chance: random.Random, cell: Cell, column: Column) -> bytes:
    """A value as a server sends it."""
    wire = cell.wire
    if width := {Wire.TINY: 1, Wire.SHORT: 2, Wire.YEAR: 2, Wire.INT24: 4, Wire.LONG: 4, Wire.LONGLONG: 8}.get(wire):
        return chance.choice([bytes(width), b"\xff" * width, chance.randbytes(width)])
    if wire == Wire.FLOAT:  # no server holds what is not a number
        return struct.pack("<f", chance.choice([0.0, -0.0, 1.1, 3.4028234e38, 1e-45, chance.gauss(0, 1e9)]))
    if wire == Wire.DOUBLE:
        return struct.pack("<d", chance.choice([0.0, -0.0, 1.1, 5e-324, chance.gauss(0, 1e9)]))
    if wire in (Wire.DATE, Wire.DATETIME, Wire.TIMESTAMP):
        day = struct.pack("<HBB", chance.choice([0, 1, 1900, 1970, 2024, 9999]), chance.randrange(13), chance.randrange(32))
        clock = bytes([chance.randrange(24), chance.randrange(60), chance.randrange(60)])
        micros = struct.pack("<I", chance.randrange(1_000_000))
        sizes = [b"", day] if wire == Wire.DATE else [b"", day, day + clock, day + clock + micros]
        return _counted(chance.choice(sizes))
    if wire == Wire.TIME:
        clock = struct.pack("<BIBBB", chance.randrange(2), chance.randrange(35), *(chance.randrange(60) for _ in range(3)))
        return _counted(chance.choice([b"", clock, clock + struct.pack("<I", chance.randrange(1_000_000))]))
    if wire == Wire.NEWDECIMAL:
        return _counted(chance.choice([b"0", b"-1.50", b"000.10", b"0012", b"00.0", b"9" * 65]))
    if wire == Wire.BIT:
        return _counted(chance.randbytes(chance.randrange(1, 9)))
    if column.charset == "utf8mb4" or column.type == "json":
        return _counted("aü数😀\0".encode() * chance.choice([0, 1, 7, 30, 9000]))
    if column.charset == "gbk":
        return _counted("世界a".encode("gbk") * chance.randrange(60))
    return _counted(chance.randbytes(chance.choice([0, 1, 31, 32, 250, 251, 300, 70000])))


def _packet(body: bytes, number: int) -> bytes:
    """A row as packets."""
    packets = []
    for at in range(0, len(body) + 1, FULL_PACKET):
        part = body[at : at + FULL_PACKET]
        packets.append(struct.pack("<I", len(part))[:3] + bytes([number & 255]) + part)
    return b"".join(packets)


def _row(chance: random.Random, columns: list[tuple[Cell, Column]]) -> bytes:
    nulls, values = 0, b""
    for i, (cell, column) in enumerate(columns):
        if chance.random() < 0.2:
            nulls |= 1 << (i + 2)
        else:
            values += _value(chance, cell, column)
    return b"\0" + nulls.to_bytes((len(columns) + 9) // 8, "little") + values


def _read(rows: ResultRows, stream: bytes, sizes: random.Random) -> bytes | str | None:
    """Feed the stream in pieces; return the packet behind the rows, or that there was an error."""
    at = 0
    while at < len(stream):
        size = min(len(stream) - at, sizes.choice([1, 3, 50, 4000, 1 << 18]))
        memory = rows.buffer(1 << 18)
        memory[:size] = stream[at : at + size]
        memory.release()
        try:
            if (body := rows.took(size)) is not None:
                return body
        except (struct.error, LookupError, ValueError, TypeError, OverflowError):
            return "error"
        at += size
    return None


def _both(columns: list[tuple[Cell, Column]], shown: int) -> list[ResultRows]:
    cells, kinds = [cell for cell, _ in columns], [column for _, column in columns]
    return [new_rows(cells, kinds, shown, compiled_code=compiled_code) for compiled_code in (True, False)]


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_those_of_the_reference(seed: int) -> None:
    """All types, NULLs, empty rows, any cut of the stream; the values that only tell the key; rows left out by key."""
    chance = random.Random(seed)
    columns = [chance.choice(_CELLS) for _ in range(chance.choice([1, 2, 6, 7, 8, 30]))]
    shown = chance.randint(max(1, len(columns) - 2), len(columns))
    stream = b"".join(_packet(_row(chance, columns), i) for i in range(chance.choice([1, 2, 40]))) + _END
    compiled, reference = _both(columns, shown)
    assert _read(compiled, stream, random.Random(seed)) == _read(reference, stream, random.Random(seed + 1)) == _END[4:]
    assert len(compiled) == len(reference) > 0
    assert compiled.last == reference.last
    assert compiled.array(0, len(compiled)) == reference.array(0, 1 << 30)
    assert compiled.array(1, 3) == reference.array(1, 3)
    key = tuple(chance.sample(range(shown), min(shown, 2)))
    values = msgpack.unpackb(reference.array(0, 1 << 30))
    out = {b"".join(msgpack.packb(row[i]) for i in key) for row in chance.sample(values, len(values) // 2)}
    for rows in (compiled, reference):
        rows.leave_out([set(), out], key)
    assert compiled.array(0, 1 << 30) == reference.array(0, 1 << 30)
    assert len(compiled) == len(reference) < max(2, len(values))
    for rows in (compiled, reference):
        rows.clear()
    assert compiled.array(0, 9) == reference.array(0, 9) == b"\x90"


def test_a_row_over_several_packets_is_one_row() -> None:
    """Of 16 MiB and more, also where its last packet is empty, with others before and behind it."""
    columns = [(Cell(Wire.LONG, 0), Column("c", "int")), (Cell(Wire.BLOB, 0), Column("c", "longblob"))]
    heads = [b"\0\0" + struct.pack("<i", i) for i in range(4)]
    sizes = [3, FULL_PACKET - 10, FULL_PACKET + 5, 1]  # the second's packet is full, so that an empty one follows
    bodies = [
        head + b"\xfd" + struct.pack("<I", size)[:3] + bytes(size)
        if size < 1 << 24
        else head + b"\xfe" + struct.pack("<Q", size) + bytes(size)
        for head, size in zip(heads, sizes, strict=True)
    ]
    assert len(bodies[1]) == FULL_PACKET
    compiled, reference = _both(columns, 2)
    stream = b"".join(_packet(body, i) for i, body in enumerate(bodies)) + _END
    for rows in (compiled, reference):
        memory = rows.buffer(len(stream))
        memory[:] = stream
        memory.release()
        assert rows.took(len(stream)) == _END[4:]
    assert compiled.array(0, 4) == reference.array(0, 4)
    assert [len(row[1]) for row in msgpack.unpackb(compiled.array(0, 4))] == sizes


@pytest.mark.parametrize("seed", range(200))
def test_damaged_rows_raise_or_are_read_alike(seed: int) -> None:
    """Bytes changed, rows cut short: never a row that the reference does not give, nor a byte beyond what came."""
    chance = random.Random(seed)
    columns = [chance.choice(_CELLS) for _ in range(chance.choice([1, 3, 9]))]
    body = bytearray(_row(chance, columns))
    for _ in range(chance.randrange(1, 4)):
        if chance.random() < 0.5 and len(body) > 2:
            del body[chance.randrange(2, len(body)) :]
        else:
            body[chance.randrange(1, len(body))] = chance.randrange(256)
    compiled, reference = _both(columns, len(columns))
    stream = _packet(bytes(body), 0) + _END
    ended = _read(compiled, stream, random.Random(seed)), _read(reference, stream, random.Random(seed))
    if "error" not in ended:
        assert ended[0] == ended[1]
        assert repr(msgpack.unpackb(compiled.array(0, 9))) == repr(msgpack.unpackb(reference.array(0, 9)))  # nan
    else:
        assert len(compiled) == 0
