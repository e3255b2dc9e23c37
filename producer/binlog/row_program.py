"""A table layout as the steps that decode its row images, one for each column present.

Compiled code runs them (`shmstore.producer.native.compiled`) and writes MessagePack; `row_interpreter` runs the same ones in
Python. A step says how many bytes a value takes, or its length in front of it, and by what name its bytes are understood.
What compiled code does not know on its own is a step "call" or "call_fixed", with the function to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address
from typing import Any, NamedTuple

from shmstore.errors import UnsupportedEvent
from shmstore.event import Column
from shmstore.producer.binlog.compression import uncompress_column
from shmstore.producer.binlog.table_map import Field
from shmstore.producer.binlog.wire_types import Wire
from shmstore.producer.values import scalars
from shmstore.producer.values.json_binary import double_text, opaque_text
from shmstore.sql.charsets import decoder, python_codec

__all__ = ["RowStep", "characters", "steps"]


class RowStep(NamedTuple):
    """How one column is decoded."""

    name: str
    size: int  # bytes, or bytes of the length in front of the value
    a: int = 0  # precision, digits of the fraction, bits, or width to pad to
    b: int = 0  # scale
    extra: Any = None  # members, characters or functions


_INTEGERS = {Wire.TINY: 1, Wire.SHORT: 2, Wire.INT24: 3, Wire.LONG: 4, Wire.LONGLONG: 8}
_PLAIN = {Wire.FLOAT: RowStep("float", 4), Wire.DOUBLE: RowStep("double", 8), Wire.YEAR: RowStep("year", 1)}
_PLAIN |= {Wire.DATE: RowStep("date", 3), Wire.NEWDATE: RowStep("date", 3)}
_FRACTIONAL = {Wire.DATETIME2: ("datetime", 5), Wire.TIMESTAMP2: ("timestamp", 4), Wire.TIME2: ("time", 3)}
_WIDEST = {Wire.ENUM: 2, Wire.SET: 8}
_PREFIXES = {Wire.TINY_BLOB: 1, Wire.MEDIUM_BLOB: 3, Wire.LONG_BLOB: 4}
_BY_LENGTH = {Wire.STRING, Wire.VARCHAR, Wire.VAR_STRING, Wire.VARCHAR_COMPRESSED}
_COMPRESSED = {Wire.VARCHAR_COMPRESSED, Wire.BLOB_COMPRESSED}
_MULTI_BYTE = {"big5", "ujis", "sjis", "euckr", "gb2312", "gbk", "gb18030"}
_MULTI_BYTE |= {"ucs2", "utf16", "utf16le", "utf32", "cp932", "eucjpms"}

# MariaDB's types that travel as BINARY, known from a schema history.
_FIXED_TEXTS: dict[str, Callable[[bytes], str]] = {
    "uuid": scalars.uuid_text,
    "inet4": lambda raw: str(IPv4Address(raw.ljust(4, b"\0"))),
    "inet6": scalars.inet6_text,
}


def steps(fields: Sequence[Field], present: Sequence[int]) -> list[RowStep]:
    """Return the step of each column present. Raises `UnsupportedEvent` for widths that no server writes."""
    return [_step(fields[i].wire, fields[i].meta, *fields[i].column[1:]) for i in present]


@lru_cache(maxsize=1024)
def _step(wire: int, meta: int, *rest: Any) -> RowStep:
    """The step of a column, whatever its name: tables have many that are alike."""
    column = Column("", *rest)
    code = Wire(wire)
    if code in _INTEGERS:
        return RowStep("unsigned" if column.unsigned else "signed", _INTEGERS[code])
    if code in _PLAIN:
        return _PLAIN[code]
    if code in _FRACTIONAL:
        name, size = _FRACTIONAL[code]
        return RowStep(name, size + (meta + 1) // 2, meta)
    if code == Wire.NEWDECIMAL:
        return RowStep("decimal", scalars.decimal_size(meta >> 8, meta & 0xFF), meta >> 8, meta & 0xFF)
    if code == Wire.BIT:
        return RowStep("bit", (meta + 7) // 8, meta)
    if code in _WIDEST:
        if not 1 <= meta <= _WIDEST[code]:
            raise UnsupportedEvent(f"{code.name} of {meta} bytes")
        members = [member.encode() for member in column.members]
        # an ENUM's 0 is the empty value that a wrong one became; its text is ''
        return RowStep("enum", meta, extra=[b"", *members]) if code == Wire.ENUM else RowStep("set", meta, extra=members)
    return _old_temporal(code, column.scale) or _variable(code, meta, column)


def _old_temporal(code: Wire, digits: int) -> RowStep | None:
    """Types from before MySQL 5.6; `digits` comes from a schema history, the binlog does not hold it."""
    if code == Wire.TIMESTAMP:
        if not digits:
            return RowStep("old_timestamp", 4)
        size, function = scalars.old_timestamps(digits)
        return RowStep("call_fixed", size, extra=function)
    if code in (Wire.DATETIME, Wire.TIME):
        size, table = (scalars.old_datetimes if code == Wire.DATETIME else scalars.old_times)(digits)
        return RowStep("call_fixed", size, extra=table.__getitem__)
    return None


def _variable(code: Wire, meta: int, column: Column) -> RowStep:
    """A value with its length in front of it."""
    prefix = (1 if meta < 256 else 2) if code in _BY_LENGTH else _PREFIXES.get(code, meta)
    if not 1 <= prefix <= 4:
        raise UnsupportedEvent(f"{code.name} whose length takes {prefix} bytes")
    if code == Wire.JSON:
        return RowStep("json", prefix, extra=(double_text, opaque_text))
    if code in _COMPRESSED:
        decode = decoder(column.charset) if column.charset else bytes
        return RowStep("call", prefix, extra=lambda raw: decode(uncompress_column(raw)))
    if column.charset:
        if python_codec(column.charset) == "utf-8":
            return RowStep("text", prefix)
        table = characters(column.charset)
        return RowStep("table", prefix, extra=table) if table else RowStep("call", prefix, extra=decoder(column.charset))
    if column.type in _FIXED_TEXTS:
        return RowStep("call", prefix, extra=_FIXED_TEXTS[column.type])
    if column.type == "binary":  # the log leaves trailing zeros out
        return RowStep("padded", prefix, column.size)
    return RowStep("bytes", prefix)


def characters(charset: str) -> list[bytes]:
    """The 256 characters of a single-byte charset in UTF-8; empty for others, and where some byte is no character."""
    if charset in _MULTI_BYTE:
        return []
    decode = decoder(charset)
    try:
        return [decode(bytes([i])).encode() for i in range(256)]
    except UnicodeError:
        return []
