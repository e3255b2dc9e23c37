"""TABLE_MAP events: the layout of the rows that follow, and the table's schema.

Plan. A TABLE_MAP body is, in order: table id (6 bytes), flags (2), database and table name (length, text, NUL), the number of
columns, one type byte for each, the types' metadata, the nullable bits, and then, in tag-length-value form, the optional
metadata that `binlog_row_metadata` asks for: signs, character sets, names, ENUM and SET members, primary key. Types say how
many bytes a value takes; only the optional metadata says what they mean.

What cannot be told (no names, an unknown type) is kept as an error and raised when the schema is asked for, so that a table
which nobody wants cannot stop the producer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from producer.charsets import charset_of, decoder
from producer.packed import packed
from shmstore.codec import encode_schema
from shmstore.errors import SchemaUnknown, SourceError, UnsupportedEvent
from shmstore.event import Column, TableSchema

__all__ = ["Field", "Layout", "TableMap", "Wire", "parse_layout"]


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


class Tag(IntEnum):
    """Tags of the optional metadata."""

    SIGNEDNESS = 1
    DEFAULT_CHARSET = 2
    COLUMN_CHARSET = 3
    COLUMN_NAME = 4
    SET_MEMBERS = 5
    ENUM_MEMBERS = 6
    GEOMETRY_TYPE = 7
    PRIMARY_KEY = 8
    PRIMARY_KEY_WITH_PREFIX = 9
    ENUM_AND_SET_DEFAULT_CHARSET = 10
    ENUM_AND_SET_COLUMN_CHARSET = 11


_ONE_BYTE_META = {Wire.FLOAT, Wire.DOUBLE, Wire.BLOB, Wire.TINY_BLOB, Wire.MEDIUM_BLOB, Wire.LONG_BLOB, Wire.GEOMETRY}
_ONE_BYTE_META |= {Wire.JSON, Wire.VECTOR, Wire.TIMESTAMP2, Wire.DATETIME2, Wire.TIME2, Wire.BLOB_COMPRESSED}
_TWO_BYTE_META = {Wire.VARCHAR, Wire.VAR_STRING, Wire.VARCHAR_COMPRESSED, Wire.BIT, Wire.NEWDECIMAL}
_TWO_BYTE_META |= {Wire.STRING, Wire.ENUM, Wire.SET}
_NUMERIC = {Wire.TINY, Wire.SHORT, Wire.INT24, Wire.LONG, Wire.LONGLONG, Wire.NEWDECIMAL, Wire.FLOAT, Wire.DOUBLE}
_SIGNED_BITS = _NUMERIC | {Wire.YEAR}  # types with a place among the sign bits
_BLOBS = {Wire.BLOB, Wire.TINY_BLOB, Wire.MEDIUM_BLOB, Wire.LONG_BLOB, Wire.BLOB_COMPRESSED}
_CHARACTER = {Wire.STRING, Wire.VAR_STRING, Wire.VARCHAR, Wire.VARCHAR_COMPRESSED} | _BLOBS
_PLAIN = {
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
_BLOB_PREFIX = {1: "tiny", 2: "", 3: "medium", 4: "long"}
_GEOMETRY = ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection")


class Field(NamedTuple):
    """One column on the wire: type byte (ENUM and SET told from STRING), metadata as one number, and the column."""

    wire: int
    meta: int
    column: Column


class Layout:
    """What the bytes of a TABLE_MAP after its id and flags say; shared by all events with the same bytes."""

    __slots__ = ("_error", "_fields", "blob", "database", "decoders", "schema", "table")

    def __init__(
        self, database: str, table: str, fields: tuple[Field, ...], key: tuple[int, ...], error: SourceError | None
    ) -> None:
        self.database = database
        self.table = table
        self.schema = TableSchema(database, table, tuple([field.column for field in fields]), key)
        self.blob = encode_schema(self.schema) if error is None else b""
        self.decoders: dict[Any, Any] = {}  # (images, columns present) -> the function that decodes them
        self._fields = fields
        self._error = error

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns in order. Raises what kept them from being understood."""
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        return self._fields


class TableMap:
    """A table as one TABLE_MAP event described it. Shared between events, never changed."""

    __slots__ = ("layout", "table_id")

    def __init__(self, table_id: int, layout: Layout) -> None:
        self.table_id = table_id
        self.layout = layout

    @property
    def database(self) -> str:
        """Name of the database; always known."""
        return self.layout.database

    @property
    def table(self) -> str:
        """Name of the table; always known."""
        return self.layout.table

    @property
    def schema(self) -> TableSchema:
        """The schema. Raises `SchemaUnknown` or `UnsupportedEvent` where the log does not tell it."""
        _ = self.layout.fields
        return self.layout.schema

    @property
    def schema_blob(self) -> bytes:
        """The encoded schema, as events carry it. Raises like `schema`."""
        _ = self.layout.fields
        return self.layout.blob

    def __repr__(self) -> str:
        return f"TableMap({self.table_id}, {self.database}.{self.table})"


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = packed(data, at)
    end = at + length
    if end > len(data):
        raise IndexError(f"text of {length} bytes past the end")
    return data[at:end], end


def parse_layout(body: bytes, known: Callable[[str, str], TableSchema | None] | None = None) -> Layout:
    """Return the layout in a TABLE_MAP body. `known` gives what the schema history knows of (database, table).

    Raises `UnsupportedEvent` on malformed bytes.
    """
    try:
        return _parse(body, known)
    except (IndexError, ValueError, KeyError) as error:
        raise UnsupportedEvent(
            f"TABLE_MAP event (type 19) of {len(body)} bytes is malformed: {error}; "
            "check the binlog with mysqlbinlog --verify-binlog-checksum"
        ) from error


def _parse(body: bytes, known: Callable[[str, str], TableSchema | None] | None) -> Layout:
    at = 8
    names = []
    for _ in range(2):
        end = at + 1 + body[at]
        if body[end] != 0:
            raise ValueError("a name does not end with NUL")
        names.append(body[at + 1 : end].decode())
        at = end + 1
    database, table = names
    count, at = packed(body, at)
    codes = body[at : at + count]
    if len(codes) != count or count > 4096:
        raise ValueError(f"{count} columns; the event holds {len(codes)} type bytes, and a table 4096 columns at most")
    meta, at = _text(body, at + count)
    bits = body[at : at + (count + 7) // 8]
    if len(bits) != (count + 7) // 8:
        raise ValueError("the nullable bits are cut off")
    tags = _tags(body, at + len(bits))
    error: SourceError | None = None
    try:
        wires = _wires(codes, meta)
    except UnsupportedEvent as unsupported:
        return Layout(database, table, (), (), UnsupportedEvent(f"table {database}.{table}: {unsupported}"))
    nullable = [bool(bits[i >> 3] >> (i & 7) & 1) for i in range(count)]
    history = known(database, table) if known is not None else None
    try:
        fields = tuple(_fields(wires, nullable, tags, history))
        key = _key(tags, count) if Tag.COLUMN_NAME in tags or history is None else history.primary_key
    except SourceError as unknown:
        fields, key = (), ()
        error = type(unknown)(f"table {database}.{table}: {unknown}")
    return Layout(database, table, fields, key, error)


def _tags(body: bytes, at: int) -> dict[int, bytes]:
    tags: dict[int, bytes] = {}
    while at < len(body):
        tag = body[at]
        tags[tag], at = _text(body, at + 1)
    return tags


def _wires(codes: bytes, meta: bytes) -> list[tuple[int, int]]:
    """(type, metadata) of each column; STRING is resolved into CHAR/BINARY (254), ENUM (247) and SET (248)."""
    wires: list[tuple[int, int]] = []
    at = 0
    for code in codes:
        value = 0
        if code in _ONE_BYTE_META:
            value = meta[at]
            at += 1
        elif code in _TWO_BYTE_META:
            first, second = meta[at], meta[at + 1]
            at += 2
            if code in (Wire.STRING, Wire.ENUM, Wire.SET):
                code, value = _string(first, second)
            elif code == Wire.BIT:
                value = second * 8 + first  # bits
            elif code == Wire.NEWDECIMAL:
                value = first << 8 | second  # precision, scale
                if not 0 < first <= 65 or second > min(first, 38):
                    raise ValueError(f"DECIMAL({first},{second})")
            else:
                value = first | second << 8
        elif code not in _PLAIN:
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
    if first & 0x30 != 0x30:
        return first | 0x30, second | ((first & 0x30) ^ 0x30) << 4
    if first not in (Wire.STRING, Wire.ENUM, Wire.SET, Wire.VAR_STRING):
        raise ValueError(f"a string column of real type {first}")
    return (Wire.STRING if first == Wire.VAR_STRING else first), second


def _is_character(wire: tuple[int, int]) -> bool:
    return wire[0] in _CHARACTER


def _is_member_type(wire: tuple[int, int]) -> bool:
    return wire[0] in (Wire.ENUM, Wire.SET)


def _fields(
    wires: list[tuple[int, int]], nullable: list[bool], tags: dict[int, bytes], history: TableSchema | None
) -> list[Field]:
    """Combine the types with the optional metadata, and with the history where the log is silent."""
    names = _texts(tags.get(Tag.COLUMN_NAME, b""))
    if not names and wires:
        if history is None:
            raise SchemaUnknown(
                "the binlog holds no column names here (binlog_row_metadata was not FULL when it was written) and no schema "
                "history covers it; SET GLOBAL binlog_row_metadata=FULL and start behind that, or keep a schema history"
            )
        if len(history.columns) != len(wires):
            raise SchemaUnknown(
                f"the schema history has {len(history.columns)} columns, the event {len(wires)}: they are of different times; "
                "take a new snapshot of the schema at the start position"
            )
        names = [column.name.encode() for column in history.columns]
    if len(names) != len(wires):
        raise ValueError(f"{len(names)} column names for {len(wires)} columns")
    given = {column.name: column for column in history.columns} if history is not None else {}
    collations = _collations(wires, tags, _is_character, Tag.DEFAULT_CHARSET, Tag.COLUMN_CHARSET)
    member_sets = _collations(wires, tags, _is_member_type, Tag.ENUM_AND_SET_DEFAULT_CHARSET, Tag.ENUM_AND_SET_COLUMN_CHARSET)
    unsigned = _signs(wires, tags.get(Tag.SIGNEDNESS))
    enums = iter(_members(tags.get(Tag.ENUM_MEMBERS, b"")))
    sets = iter(_members(tags.get(Tag.SET_MEMBERS, b"")))
    shapes = iter(_numbers(tags.get(Tag.GEOMETRY_TYPE, b"")))
    fields = []
    for i, (code, meta) in enumerate(wires):
        name = names[i].decode()
        before = given.get(name)
        charset = ""
        members: tuple[str, ...] = ()
        if code in _CHARACTER:
            charset = _charset(name, collations.get(i), before)
        elif code in (Wire.ENUM, Wire.SET):
            raw = next(enums if code == Wire.ENUM else sets, None)
            charset = _charset(name, member_sets.get(i), before)
            if raw is not None:
                members = tuple([decoder(charset)(member) for member in raw])
            elif before is not None and before.type == ("enum" if code == Wire.ENUM else "set"):
                members = before.members
            else:
                raise SchemaUnknown(f"column {name}: the binlog holds no members of this {Wire(code).name} and no history does")
        sign = False
        if code in _NUMERIC:
            if unsigned is None and before is None:
                raise SchemaUnknown(f"column {name}: the binlog does not say whether it is UNSIGNED and no history does")
            sign = unsigned[i] if unsigned is not None else bool(before and before.unsigned)
        shape = next(shapes, 0) if code == Wire.GEOMETRY else 0
        fields.append(Field(code, meta, _column(name, code, meta, sign, nullable[i], charset, members, shape, before)))
    return fields


def _charset(name: str, collation: int | None, before: Column | None) -> str:
    if collation is not None:
        return charset_of(collation)
    if before is None:
        raise SchemaUnknown(f"column {name}: the binlog does not say its character set and no history does")
    return before.charset or "binary"


# Types that look like others in the binlog; only a schema history can tell them: (as decoded, size) -> names.
_REFINED = {("binary", 16): {"uuid", "inet6"}, ("binary", 4): {"inet4"}}


def _column(
    name: str,
    code: int,
    meta: int,
    unsigned: bool,
    nullable: bool,
    charset: str,
    members: tuple[str, ...],
    shape: int,
    before: Column | None,
) -> Column:
    size = scale = 0
    binary = charset == "binary"
    if code in (Wire.VARCHAR, Wire.VAR_STRING, Wire.VARCHAR_COMPRESSED):
        type_, size = ("varbinary" if binary else "varchar"), meta
        if code == Wire.VARCHAR_COMPRESSED:
            size = max(meta - 1, 0)  # the length counts the method byte
    elif code == Wire.STRING:
        type_, size = ("binary" if binary else "char"), meta
    elif code in _BLOBS:
        width = {Wire.TINY_BLOB: 1, Wire.MEDIUM_BLOB: 3, Wire.LONG_BLOB: 4}.get(Wire(code), meta)
        if width not in _BLOB_PREFIX:
            raise ValueError(f"column {name}: a blob whose length takes {width} bytes")
        type_ = _BLOB_PREFIX[width] + ("blob" if binary else "text")
    elif code == Wire.GEOMETRY:
        type_ = _GEOMETRY[shape] if shape < len(_GEOMETRY) else "geometry"
    else:
        type_ = _PLAIN[Wire(code)]
    if code == Wire.NEWDECIMAL:
        size, scale = meta >> 8, meta & 0xFF
    elif code == Wire.BIT:
        size = meta
        if not 0 < size <= 64:
            raise ValueError(f"column {name}: BIT({size})")
    elif code in (Wire.TIMESTAMP2, Wire.DATETIME2, Wire.TIME2):
        scale = meta
        if scale > 6:
            raise ValueError(f"column {name}: {scale} digits of fractional seconds")
    if binary:
        charset = ""
    if before is not None and before.type in _REFINED.get((type_, size), ()):
        type_, size = before.type, 0
    return Column(name, type_, unsigned, nullable, size, scale, charset, members)


def _texts(value: bytes) -> list[bytes]:
    texts = []
    at = 0
    while at < len(value):
        text, at = _text(value, at)
        texts.append(text)
    return texts


def _numbers(value: bytes) -> list[int]:
    numbers = []
    at = 0
    while at < len(value):
        number, at = packed(value, at)
        numbers.append(number)
    return numbers


def _members(value: bytes) -> list[list[bytes]]:
    columns = []
    at = 0
    while at < len(value):
        count, at = packed(value, at)
        if count > len(value) - at:
            raise ValueError(f"{count} members in {len(value) - at} bytes")
        members = []
        for _ in range(count):
            member, at = _text(value, at)
            members.append(member)
        columns.append(members)
    return columns


def _signs(wires: list[tuple[int, int]], value: bytes | None) -> dict[int, bool] | None:
    """UNSIGNED by column index: one bit for each numeric column, the first in the highest bit."""
    numeric = [i for i, wire in enumerate(wires) if wire[0] in _SIGNED_BITS]
    if value is None:
        return None
    if len(value) * 8 < len(numeric):
        raise ValueError(f"{len(value)} bytes of signs for {len(numeric)} numeric columns")
    return {i: bool(value[n >> 3] << (n & 7) & 0x80) for n, i in enumerate(numeric)}


def _collations(
    wires: list[tuple[int, int]], tags: dict[int, bytes], belongs: Callable[[tuple[int, int]], bool], default: Tag, each: Tag
) -> dict[int, int]:
    """Collation id by column index, from whichever of the two forms the server chose."""
    where = [i for i, wire in enumerate(wires) if belongs(wire)]
    if each in tags:
        numbers = _numbers(tags[each])
        if len(numbers) != len(where):
            raise ValueError(f"{len(numbers)} collations for {len(where)} columns")
        return dict(zip(where, numbers, strict=True))
    if default in tags:
        numbers = _numbers(tags[default])
        collations = dict.fromkeys(where, numbers[0])
        for nth, collation in _pairs(numbers[1:]):
            collations[where[nth]] = collation
        return collations
    return {}


def _pairs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    if len(numbers) % 2:
        raise ValueError("an odd number of values where pairs belong")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _key(tags: dict[int, bytes], count: int) -> tuple[int, ...]:
    if Tag.PRIMARY_KEY in tags:
        key = _numbers(tags[Tag.PRIMARY_KEY])
    else:
        key = [index for index, _prefix in _pairs(_numbers(tags.get(Tag.PRIMARY_KEY_WITH_PREFIX, b"")))]
    if any(index >= count for index in key):
        raise ValueError(f"primary key {key} of a table with {count} columns")
    return tuple(key)
