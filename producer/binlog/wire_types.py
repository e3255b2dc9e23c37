"""The types of columns as a TABLE_MAP has them: a byte for each, and the bytes of metadata that say how long a value is."""

from __future__ import annotations

from enum import IntEnum

from shmstore.errors import UnsupportedEvent

__all__ = ["BLOBS", "CHARACTER", "NUMERIC", "PLAIN", "SIGN_BITS", "Wire", "read_wires"]


class Wire(IntEnum):
    """Type bytes of columns (`enum_field_types`); MariaDB's own are 140 and 141."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


_ONE_BYTE_META = {Wire.FLOAT, Wire.DOUBLE, Wire.BLOB, Wire.TINY_BLOB, Wire.MEDIUM_BLOB, Wire.LONG_BLOB, Wire.GEOMETRY}
_ONE_BYTE_META |= {Wire.JSON, Wire.VECTOR, Wire.TIMESTAMP2, Wire.DATETIME2, Wire.TIME2, Wire.BLOB_COMPRESSED}
_TWO_BYTE_META = {Wire.VARCHAR, Wire.VAR_STRING, Wire.VARCHAR_COMPRESSED, Wire.BIT, Wire.NEWDECIMAL}
_TWO_BYTE_META |= {Wire.STRING, Wire.ENUM, Wire.SET}
NUMERIC = {Wire.TINY, Wire.SHORT, Wire.INT24, Wire.LONG, Wire.LONGLONG, Wire.NEWDECIMAL, Wire.FLOAT, Wire.DOUBLE}
SIGN_BITS = NUMERIC | {Wire.YEAR}  # types with a place among the sign bits
BLOBS = {Wire.BLOB, Wire.TINY_BLOB, Wire.MEDIUM_BLOB, Wire.LONG_BLOB, Wire.BLOB_COMPRESSED}
CHARACTER = {Wire.STRING, Wire.VAR_STRING, Wire.VARCHAR, Wire.VARCHAR_COMPRESSED} | BLOBS
PLAIN: dict[int, str] = {
    Wire.TINY: "tinyint",
    Wire.SHORT: "smallint",
    Wire.INT24: "mediumint",
    Wire.LONG: "int",
    Wire.LONGLONG: "bigint",
    Wire.FLOAT: "float",
    Wire.DOUBLE: "double",
    Wire.NEWDECIMAL: "decimal",
    Wire.TIMESTAMP: "timestamp",
    Wire.TIMESTAMP2: "timestamp",
    Wire.DATE: "date",
    Wire.NEWDATE: "date",
    Wire.TIME: "time",
    Wire.TIME2: "time",
    Wire.DATETIME: "datetime",
    Wire.DATETIME2: "datetime",
    Wire.YEAR: "year",
    Wire.BIT: "bit",
    Wire.JSON: "json",
    Wire.VECTOR: "vector",
    Wire.ENUM: "enum",
    Wire.SET: "set",
}


def read_wires(codes: bytes, meta: bytes) -> list[tuple[int, int]]:
    """(type, metadata) of each column; STRING is resolved into CHAR/BINARY (254), ENUM (247) and SET (248)."""
    wires: list[tuple[int, int]] = []
    at = 0
    for code in codes:
        value = 0
        if code in _ONE_BYTE_META:
            value = meta[at]
            at += 1
            if code in (Wire.TIMESTAMP2, Wire.DATETIME2, Wire.TIME2) and value > 6:
                raise ValueError(f"{value} digits of fractional seconds")
        elif code in _TWO_BYTE_META:
            first, second = meta[at], meta[at + 1]
            at += 2
            if code in (Wire.STRING, Wire.ENUM, Wire.SET):
                code, value = _string(first, second)
            elif code == Wire.BIT:
                value = second * 8 + first  # bits
                if not 0 < value <= 64:
                    raise ValueError(f"BIT({value})")
            elif code == Wire.NEWDECIMAL:
                value = first << 8 | second  # precision, scale
                if not 0 < first <= 65 or second > min(first, 38):
                    raise ValueError(f"DECIMAL({first},{second})")
            else:
                value = first | second << 8
        elif code not in PLAIN:
            raise UnsupportedEvent(
                f"column {len(wires)} has type byte {code}, which this version does not know; "
                "leave the table out (exclude it) or change the column's type"
            )
        wires.append((code, value))
    if at != len(meta):
        raise ValueError(f"{len(meta)} bytes of column metadata, {at} used")
    return wires


def _string(first: int, second: int) -> tuple[int, int]:
    """CHAR of more than 255 bytes keeps two bits of its length, inverted, in the type byte (MySQL bug 37426)."""
    real = first | 0x30
    if real not in (Wire.STRING, Wire.ENUM, Wire.SET, Wire.VAR_STRING):
        raise ValueError(f"a string column of real type {real}")
    return (Wire.STRING if real == Wire.VAR_STRING else real), second | (real ^ first) << 4
