"""A table layout as the steps of the compiled row decoder (`shmstore.producer.native.compiled`), where that is there.

What the compiled decoder does not know by itself it does by calling the expression that the generated Python decoder
(`image`) uses for the same column, so that both give the same values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from shmstore.event import Column
from shmstore.producer.binlog.row_source import Source, reading
from shmstore.producer.binlog.table_map import Field, Wire
from shmstore.producer.native_code import compiled
from shmstore.producer.values.charsets import decoder, python_codec
from shmstore.producer.values.json_binary import double_text, opaque_text

Step = tuple[str, int, int, int, Any]  # name, bytes or bytes of its length, two numbers, what else it takes

_INTEGERS = {Wire.TINY: 1, Wire.SHORT: 2, Wire.INT24: 3, Wire.LONG: 4, Wire.LONGLONG: 8}
_MULTI_BYTE = {
    "big5",
    "ujis",
    "sjis",
    "euckr",
    "gb2312",
    "gbk",
    "gb18030",
    "ucs2",
    "utf16",
    "utf16le",
    "utf32",
    "cp932",
    "eucjpms",
}


def program(fields: Sequence[Field], present: Sequence[int]) -> Any:
    """Return the compiled program for the columns present."""
    return compiled.Program(steps(fields, present))


def rows_of(before: Any, after: Any, data: bytes, at: int) -> tuple[int, bytes | None, bytes | None]:
    """Decode the rows in data[at:] with the programs of their images: (rows, images before, images after) as MessagePack."""
    rows: tuple[int, bytes | None, bytes | None] = compiled.rows_of(before, after, data, at)
    return rows


def steps(fields: Sequence[Field], present: Sequence[int]) -> list[Step]:
    """Return the step of each column present."""
    return [_step(fields[i]) for i in present]


def _step(field: Field) -> Step:
    return _step_of(field.wire, field.meta, *field.column[1:])


@lru_cache(maxsize=1024)
def _step_of(wire: int, meta: int, *rest: Any) -> Step:
    """The step of a column, whatever its name: tables have many that are alike."""
    column = Column("", *rest)
    field = Field(wire, meta, column)
    code = Wire(wire)
    if code in _INTEGERS:
        return ("unsigned" if column.unsigned else "signed", _INTEGERS[code], 0, 0, None)
    if code in (Wire.ENUM, Wire.SET):
        members = [member.encode() for member in column.members]
        return ("enum", meta, 0, 0, [b"", *members]) if code == Wire.ENUM else ("set", meta, 0, 0, members)
    source = Source()
    read = reading(field, source)
    size = struct.calcsize("<" + read.codes) if read.codes else read.prefix
    if code == Wire.NEWDECIMAL:
        return ("decimal", size, meta >> 8, meta & 0xFF, None)
    plain = {
        Wire.FLOAT: "float",
        Wire.DOUBLE: "double",
        Wire.BIT: "bit",
        Wire.YEAR: "year",
        Wire.DATE: "date",
        Wire.NEWDATE: "date",
    }
    if code in plain:
        return (plain[code], size, meta if code == Wire.BIT else 0, 0, None)
    timed = {Wire.DATETIME2: "datetime", Wire.TIMESTAMP2: "timestamp", Wire.TIME2: "time"}
    if code in timed and meta <= 6:
        return (timed[code], size, meta, 0, None)
    if code == Wire.TIMESTAMP and not column.scale:
        return ("old_timestamp", 4, 0, 0, None)
    return _text(code, size, column, source, read)


def _text(code: Wire, size: int, column: Any, source: Source, read: Any) -> Step:
    compressed = code in (Wire.VARCHAR_COMPRESSED, Wire.BLOB_COMPRESSED)
    if code == Wire.JSON:
        return ("json", size, 0, 0, (double_text, opaque_text))
    if not read.codes and not compressed:
        if column.charset:
            if python_codec(column.charset) == "utf-8":
                return ("text", size, 0, 0, None)
            table = _single_bytes(column.charset)
            if table:
                return ("table", size, 0, 0, table)
        elif read.expression == "{0}":
            return ("bytes", size, 0, 0, None)
        elif column.type == "binary":
            return ("padded", size, column.size, 0, None)
    if read.first:
        raise NotImplementedError(f"column type {code} with metadata {size}")
    return ("call_fixed" if read.codes else "call", size, 0, 0, _expression(read, source))


def _expression(read: Any, source: Source) -> Callable[[bytes], Any]:
    """The reading's expression as a function of the value's bytes."""
    parts = [f"p{n}" for n in range(len([code for code in read.codes if code.isalpha()]) or 1)]
    inner = f"lambda {', '.join(parts)}: {read.expression.format(*parts)}"
    function: Callable[..., Any] = eval(inner, source.names)
    if not read.codes:
        return function
    unpack = struct.Struct("<" + read.codes).unpack
    return lambda raw: function(*unpack(raw))


def _single_bytes(charset: str) -> list[bytes]:
    """The 256 characters of a single-byte charset; empty for others, and where some byte is no character."""
    if charset in _MULTI_BYTE:
        return []
    decode = decoder(charset)
    try:
        return [decode(bytes([i])).encode() for i in range(256)]
    except UnicodeError:
        return []
