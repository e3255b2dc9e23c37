"""Each kind of column, compiled: from any bytes the value that the interpreter gives, or an error where it gives one."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgpack
import pytest

from shmstore.errors import UnsupportedEvent
from shmstore.event import Column
from shmstore.producer.binlog import row_interpreter
from shmstore.producer.binlog.row_program import steps
from shmstore.producer.binlog.table_map import Field
from shmstore.producer.binlog.wire_types import Wire
from shmstore.producer.native_code import COMPILED, compiled

pytestmark = pytest.mark.skipif(not COMPILED, reason="no compiled decoder")

_ERRORS = (struct.error, LookupError, ValueError, TypeError, OverflowError)
_MEMBERS = ("a", "ö" * 20, "c" * 300, "")


def _integers() -> list[Field]:
    wires = (Wire.TINY, Wire.SHORT, Wire.INT24, Wire.LONG, Wire.LONGLONG)
    return [Field(wire, 0, Column("c", "int", unsigned=unsigned)) for wire in wires for unsigned in (False, True)]


def _decimals(chance: random.Random) -> list[Field]:
    sizes = [(12, 2), (65, 38), (65, 0), (38, 38), (9, 9), (1, 1), (18, 9)]
    sizes += [(precision, chance.randrange(min(precision, 38) + 1)) for precision in range(1, 66)]
    return [Field(Wire.NEWDECIMAL, precision << 8 | scale, Column("c", "decimal")) for precision, scale in sizes]


def _fields(chance: random.Random) -> list[Field]:
    timed = (Wire.DATETIME2, Wire.TIMESTAMP2, Wire.TIME2)
    fields = [Field(wire, digits, Column("c", "time", scale=digits)) for wire in timed for digits in range(7)]
    fields += [Field(wire, 0, Column("c", "")) for wire in (Wire.DATE, Wire.DOUBLE, Wire.YEAR, Wire.TIMESTAMP, Wire.FLOAT)]
    fields += [Field(Wire.BIT, bits, Column("c", "bit")) for bits in (1, 7, 8, 20, 63, 64)]
    fields += [Field(Wire.ENUM, size, Column("c", "enum", members=_MEMBERS)) for size in (1, 2)]
    fields += [Field(Wire.SET, size, Column("c", "set", members=_MEMBERS)) for size in (1, 2, 8)]
    fields += [Field(Wire.LONG_BLOB, prefix, Column("c", "text", charset="utf8mb4")) for prefix in (4,)]
    fields += [Field(Wire.VARCHAR, size, Column("c", "varbinary")) for size in (20, 3000)]
    fields += [Field(Wire.STRING, 20, Column("c", "binary", size=20))] + [Field(Wire.JSON, 4, Column("c", "json"))] * 5
    return fields + _integers() + _decimals(chance)


def _bytes(chance: random.Random, field: Field) -> bytes:
    """One value's bytes, often of a right one."""
    name, size = steps([field], [0])[0][:2]
    if name in ("text", "bytes", "padded"):
        content = chance.choice([chance.randbytes(chance.randrange(30)), "aü数😀".encode() * chance.randrange(20)])[
            : 255 if size == 1 else None
        ]
        return len(content).to_bytes(size, "little") + content
    if name == "json":
        content = _json(chance)
        return len(content).to_bytes(size, "little") + content
    data = chance.choice(
        [bytes(size), b"\xff" * size, chance.randbytes(size), b"\x80" + bytes(size), chance.randbytes(1) + bytes(size)]
    )
    if name == "decimal" and chance.random() < 0.9:
        digits = _digits(chance, (field.meta >> 8) - (field.meta & 255), field.meta & 255)
        data = bytes([digits[0] ^ 0x80, *digits[1:]])
        data = bytes(byte ^ 0xFF for byte in data) if chance.random() < 0.5 else data
    elif name == "float" and chance.random() < 0.9:
        number = chance.choice(
            [chance.uniform(-1000, 1000), 10.0 ** chance.randrange(-8, 20), chance.randrange(10**8) / 100, chance.gauss(0, 1)]
        )
        data = struct.pack("<f", chance.choice([number, round(number, chance.randrange(7))]))
    elif name == "datetime":
        year, month, day = _date(chance)
        packed = (1 << 39) + (year * 13 + month << 22) + (day << 17) + (chance.randrange(25) << 12) + (chance.randrange(61) << 6)
        data = (packed + chance.randrange(61)).to_bytes(5, "big") + chance.randrange(1000000).to_bytes(3, "big")
    elif name == "date":
        year, month, day = _date(chance)
        data = (year << 9 | month << 5 | day).to_bytes(3, "little")
    return data[:size]


def _json(chance: random.Random) -> bytes:
    """A string, with what must be escaped or is no UTF-8 anywhere in it, or a number."""
    if chance.random() < 0.3:
        kind, size = chance.choice([(5, 2), (6, 2), (7, 4), (8, 4), (9, 8), (10, 8)])
        return bytes([kind]) + chance.choice([chance.randrange(256**size), 10 ** chance.randrange(20) % 256**size]).to_bytes(
            size, "little"
        )
    letters, marks = "aaaaaaaü数😀", '"\\' + "".join(map(chr, range(34)))
    text = "".join(chance.choices(letters, k=chance.randrange(12)) + chance.choices(marks, k=chance.randrange(3)))
    raw = (text + chance.choice('"\\\n') + "".join(chance.choices(letters, k=20))).encode()
    raw = raw[chance.choice([0, 0, 0, 1]) : chance.choice([None, None, 30])]
    return bytes([12, len(raw)]) + raw


def _date(chance: random.Random) -> tuple[int, int, int]:
    """A date, not always one that there is."""
    year = chance.choice([0, 1, 4, 1900, 2000, 2023, 2024, 9999, 10000, chance.randrange(10000)])
    return year, chance.choice([2, 2, chance.randrange(14)]), chance.choice([28, 29, 30, 31, chance.randrange(32)])


def _digits(chance: random.Random, whole: int, scale: int) -> bytes:
    """A DECIMAL's groups of digits, now and then with a digit too many."""
    out = b""
    for digits in filter(None, [whole % 9, *[9] * (whole // 9 + scale // 9), scale % 9]):
        number = chance.choice([0, 0, 1, 10**digits - 1, chance.randrange(10**digits), chance.randrange(10**digits)])
        out += (number + (chance.random() < 0.01)).to_bytes((digits + 1) // 2 if digits < 9 else 4, "big")
    return out


def test_values_are_the_references(seed: int) -> None:
    """Whatever the bytes are, whether or not more follows them in the event, and where the event is cut off."""
    chance = random.Random(seed)
    refused = 0
    for field in _fields(chance):
        fields, present = [field, Field(Wire.TINY, 0, Column("d", "tinyint"))], [0, 1]
        fast = compiled.Program(steps(fields, present))
        slow = row_interpreter.Program(steps(fields, present))
        given = 0
        for _ in range(200):
            data = (b"\0" + _bytes(chance, field) + b"\x05") * chance.choice([1, 4])
            data = data if chance.random() < 0.8 else data[: chance.randrange(1, len(data))]
            wanted, got = _outcome(_slow, slow, data), _outcome(_fast, fast, data)
            assert got == wanted, (field, data)
            given, refused = given + (got is not None), refused + (got is None)
        assert given > 5, field  # of the scarcest, one in six on average
    assert refused > 2000


def test_widths_that_no_server_writes_are_refused() -> None:
    """An ENUM of three bytes and the like, from a damaged table map, are refused and not read somehow; twice."""
    for wire, sizes in ((Wire.ENUM, [0, 3, 4, 8, 255]), (Wire.SET, [0, 9, 255])):
        for size in sizes:
            with pytest.raises(UnsupportedEvent):
                steps([Field(wire, size, Column("c", wire.name.lower(), members=_MEMBERS))], [0])
            with pytest.raises(NotImplementedError):
                compiled.Program([(wire.name.lower(), size, 0, 0, [b"a"])])


def _slow(program: row_interpreter.Program, data: bytes) -> Any:
    return msgpack.packb(row_interpreter.rows_of(None, program, data, 0)[2])


def _fast(program: compiled.Program, data: bytes) -> Any:
    return compiled.rows_of(None, program, data, 0)[2]


def _outcome(decode: Any, how: Any, data: bytes) -> Any:
    try:
        return decode(how, data)
    except _ERRORS:
        return None
