"""TABLE_MAP events: the layout of the rows that follow, and the table's schema.

Plan. A TABLE_MAP body is, in order: table id (6 bytes), flags (2), database and table name (length, text, NUL), the number of
columns, one type byte for each, the types' metadata, the nullable bits, and then, in tag-length-value form, the optional
metadata that `binlog_row_metadata` asks for: signs, character sets, names, ENUM and SET members, primary key. Types say how
many bytes a value takes; only the optional metadata says what they mean.

What cannot be determined (no names, an unknown type) is kept as an error and raised when the schema is asked for, so that a table
which no process wants cannot stop the producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from shmstore.encoding.codec import encode_schema
from shmstore.errors import SchemaUnknown, SourceError, UnsupportedEvent
from shmstore.event import Column, TableSchema
from shmstore.producer.binlog.table_map_check import Logged, contradictions
from shmstore.producer.binlog.table_map_metadata import (
    BEGIN_BEHIND,
    Tag,
    read_bits,
    read_collations,
    read_members,
    read_numbers,
    read_primary_key,
    read_tags,
    read_text,
    read_texts,
)
from shmstore.producer.binlog.wire_types import BLOBS, CHARACTER, NUMERIC, PLAIN, SIGN_BITS, Wire, read_wires
from shmstore.producer.values.varint import packed
from shmstore.sql.charsets import charset_of, member_text
from shmstore.sql.columns import GEOMETRY, with_definition

__all__ = ["Field", "Layout", "TableMap", "parse_layout"]


_BLOB_PREFIX = {1: "tiny", 2: "", 3: "medium", 4: "long"}


class Field(NamedTuple):
    """One column on the wire: type byte (ENUM and SET distinguished from STRING), metadata as one number, and the column.

    A hidden column is in the row images but in no SELECT: MariaDB's hash of a UNIQUE over BLOBs. It is always behind the others.
    """

    wire: int
    meta: int
    column: Column
    hidden: bool = False


class Layout:
    """What the bytes of a TABLE_MAP after its id and flags say; shared by all events with the same bytes."""

    __slots__ = ("_fields", "blob", "database", "decoders", "error", "schema", "table")

    def __init__(
        self,
        database: str,
        table: str,
        fields: tuple[Field, ...],
        key: tuple[int, ...],
        unique_key: bool = False,
        error: SourceError | None = None,
        decoders: dict[Any, Any] | None = None,
    ) -> None:
        self.database = database
        self.table = table
        self.schema = TableSchema(database, table, tuple([field.column for field in fields if not field.hidden]), key, unique_key)
        self.blob = encode_schema(self.schema) if error is None else b""
        # (kind of event, columns present) -> what decodes them
        self.decoders: dict[Any, Any] = {} if decoders is None else decoders
        self._fields = fields
        self.error = error

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns in order. Raises what kept them from being understood."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)
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


def parse_layout(
    body: bytes,
    known: Callable[[str, str], TableSchema | None] | None = None,
    mariadb: bool | None = None,
    alike: dict[Any, Layout] | None = None,
    hidden: Callable[[str, str], int | None] | None = None,
    define: Callable[[str, str], TableSchema | None] | None = None,
) -> Layout:
    """Return the layout in a TABLE_MAP body. `known` gives what the schema history knows of (database, table); `define` is asked instead
    where the log names the columns, if it is given.

    `mariadb`: whether MariaDB or MySQL wrote it, None where that is not known. `alike`: layouts read before, by that, their bytes
    behind the names and what was known; this one is put there, or shares what another table has the same. `hidden`: how many columns
    a table has that no SELECT shows, behind the others; None where that is not known.

    Raises `UnsupportedEvent` on malformed bytes.
    """
    try:
        return _parse(body, known, mariadb, {} if alike is None else alike, hidden, define or known)
    except (IndexError, ValueError, KeyError) as error:
        raise UnsupportedEvent(
            f"TABLE_MAP event (type 19) of {len(body)} bytes is malformed: {error}; "
            "check the binlog with mysqlbinlog --verify-binlog-checksum"
        ) from error


def _parse(
    body: bytes,
    known: Callable[[str, str], TableSchema | None] | None,
    mariadb: bool | None,
    alike: dict[Any, Layout],
    hidden: Callable[[str, str], int | None] | None,
    define: Callable[[str, str], TableSchema | None] | None,
) -> Layout:
    at = 8
    names = []
    for _ in range(2):
        end = at + 1 + body[at]
        if body[end] != 0:
            raise ValueError("a name does not end with NUL")
        names.append(body[at + 1 : end].decode())
        at = end + 1
    database, table = names
    names_end = at
    count, at = packed(body, at)
    codes = body[at : at + count]
    if len(codes) != count or count > 4096:
        raise ValueError(f"{count} columns; the event holds {len(codes)} type bytes, and a table 4096 columns at most")
    meta, at = read_text(body, at + count)
    bits = body[at : at + (count + 7) // 8]
    if len(bits) != (count + 7) // 8:
        raise ValueError("the nullable bits are cut off")
    tags = read_tags(body, at + len(bits))
    history: TableSchema | None = None
    error: SourceError | None = None
    try:
        ask = define if Tag.COLUMN_NAME in tags else known
        history = ask(database, table) if ask is not None else None
    except SourceError as unknown:
        error = unknown
    more = hidden(database, table) if hidden is not None else None
    behind = (mariadb, body[names_end:], more, history and (history.table != "", history.columns, history.primary_key))
    twin = alike.get(behind) if error is None else None
    if twin is not None:
        key, unique = twin.schema.primary_key, twin.schema.unique_key
        return Layout(database, table, twin.fields, key, unique, decoders=twin.decoders)
    try:
        wires = read_wires(codes, meta)
    except UnsupportedEvent as unsupported:
        return Layout(database, table, (), (), error=UnsupportedEvent(f"table {database}.{table}: {unsupported}"))
    nullable = [bool(bits[i >> 3] >> (i & 7) & 1) for i in range(count)]
    try:
        if error is not None:
            raise error
        fields = tuple(_fields(wires, nullable, tags, history, mariadb, more))
        key = read_primary_key(tags, count) if Tag.COLUMN_NAME in tags or history is None else history.primary_key
    except SourceError as unknown:
        fields, key = (), ()
        where = f"table {database}.{table}: "
        error = type(unknown)(str(unknown) if str(unknown).startswith(where) else f"{where}{unknown}")
    # The server itself takes a UNIQUE key for the primary one where there is none; the definition tells them apart.
    unique = bool(key and history is not None and history.columns and not history.primary_key)
    layout = Layout(database, table, fields, key, unique, error)
    if error is None:
        alike[behind] = layout
    return layout


_HASH = b"DB_ROW_HASH_"  # MariaDB's reserved name
_WITH_CHARSET = CHARACTER | {Wire.ENUM, Wire.SET}
_BINARY = 63  # the collation's id


def _fields(
    wires: list[tuple[int, int]],
    nullable: list[bool],
    tags: dict[int, bytes],
    history: TableSchema | None,
    mariadb: bool | None,
    hidden: int | None,
) -> list[Field]:
    """Combine the types with the optional metadata, and with the history where the log is silent."""
    choices = [i for i, (code, _) in enumerate(wires) if code in (Wire.ENUM, Wire.SET)]
    collations = _collations(wires, tags, mariadb)
    collations |= read_collations(tags, choices, Tag.ENUM_AND_SET_DEFAULT_CHARSET, Tag.ENUM_AND_SET_COLUMN_CHARSET)
    numeric = [i for i, (code, _) in enumerate(wires) if code in SIGN_BITS]
    signs: dict[int, bool] = {}
    if Tag.SIGNEDNESS in tags:
        signs = dict(zip(numeric, read_bits(tags[Tag.SIGNEDNESS], len(numeric)), strict=True))
    members: dict[int, Iterator[list[bytes]]] = {Wire.ENUM: iter(read_members(tags.get(Tag.ENUM_MEMBERS, b"")))}
    members[Wire.SET] = iter(read_members(tags.get(Tag.SET_MEMBERS, b"")))
    shapes = _shapes(wires, tags)
    names = read_texts(tags.get(Tag.COLUMN_NAME, b""))
    if not names and wires:
        # a schema without a table name is today's: it tells types apart, but not the names of columns of another time
        followed = _require_followed(history)
        charsets = {i: charset_of(collation) for i, collation in collations.items() if wires[i][0] in _WITH_CHARSET}
        logged = [Logged(*wire, nullable[i], signs.get(i), charsets.get(i), shapes.get(i)) for i, wire in enumerate(wires)]
        _require_fit(logged, followed, hidden if mariadb else 0)
        names = [column.name.encode() for column in followed] + [_HASH] * (len(wires) - len(followed))
    if len(names) != len(wires):
        raise ValueError(f"{len(names)} column names for {len(wires)} columns")
    visible = len(names)
    while visible and wires[visible - 1][0] == Wire.LONGLONG and names[visible - 1].startswith(_HASH):
        visible -= 1
    given = {column.name: column for column in history.columns} if history is not None else {}
    fields = []
    for i, (code, meta) in enumerate(wires):
        name = names[i].decode()
        before = given.get(name)
        charset, unsigned = "", False
        listed: tuple[str, ...] = ()
        if code in CHARACTER:
            charset = _charset(name, collations.get(i), before)
        elif code in members:
            charset = _charset(name, collations.get(i), before)
            listed = _members(code, charset, next(members[code], None), name, before)
        elif code in NUMERIC:
            if i not in signs and before is None and i < visible:
                raise SchemaUnknown(f"column {name}: the binlog does not say whether it is UNSIGNED and no history does")
            unsigned = signs[i] if i in signs else bool(before and before.unsigned)
        type_, size, scale = _typed(name, charset, code, meta, shapes.get(i, GEOMETRY[0]), before)
        charset = "" if charset == "binary" else charset
        column = Column(name, type_, unsigned, nullable[i], size, scale, charset, listed)
        fields.append(Field(code, meta, with_definition(column, before), i >= visible))
    return fields


def _require_followed(history: TableSchema | None) -> tuple[Column, ...]:
    if history is None or not history.table:
        raise SchemaUnknown(
            "the binlog holds no column names here (binlog_row_metadata was not FULL when it was written) and no schema "
            "history covers it; SET GLOBAL binlog_row_metadata=FULL and start after that, or keep a schema history"
        )
    return history.columns


def _require_fit(logged: list[Logged], followed: tuple[Column, ...], hidden: int | None) -> None:
    """Raise `SchemaUnknown` where the log contradicts the columns that the history has; `hidden`: how many more it may have, if known."""
    if found := contradictions(logged, followed, hidden):
        raise SchemaUnknown(
            f"its rows are not of the table as its DDLs were followed: {found}. A DDL is missing (sql_log_bin = 0) or was misread, "
            f"or the account may not read all columns: GRANT SELECT ON the table; leave the table out with --exclude, or {BEGIN_BEHIND}"
        )


def _shapes(wires: list[tuple[int, int]], tags: dict[int, bytes]) -> dict[int, str]:
    """The kind of geometry by index of its column, where the log says it."""
    where = [i for i, (code, _) in enumerate(wires) if code == Wire.GEOMETRY]
    numbers = read_numbers(tags.get(Tag.GEOMETRY_TYPE, b""))
    return {i: GEOMETRY[number] if number < len(GEOMETRY) else GEOMETRY[0] for i, number in zip(where, numbers, strict=False)}


def _collations(wires: list[tuple[int, int]], tags: dict[int, bytes], mariadb: bool | None) -> dict[int, int]:
    """Collation id by index of text column. To MySQL a VECTOR is a text column too, of collation binary; to MariaDB a GEOMETRY."""
    texts = [i for i, (code, _) in enumerate(wires) if code in CHARACTER or code == Wire.VECTOR]
    shapes = [i for i, (code, _) in enumerate(wires) if code == Wire.GEOMETRY]
    forms = (Tag.DEFAULT_CHARSET, Tag.COLUMN_CHARSET)
    if shapes and mariadb is None and Tag.COLUMN_VISIBILITY not in tags:  # which only MySQL writes, from 8.0.23 on
        try:
            guess = read_collations(tags, sorted(texts + shapes), *forms)
            mariadb = all(guess.get(i) == _BINARY for i in shapes)
        except (ValueError, IndexError):
            mariadb = False
    return read_collations(tags, sorted(texts + shapes) if mariadb else texts, *forms)


def _members(code: int, charset: str, raw: list[bytes] | None, name: str, before: Column | None) -> tuple[str, ...]:
    if raw is not None:
        return tuple([member_text(member, charset) for member in raw])
    if before is None or before.type != PLAIN[code]:
        raise SchemaUnknown(f"column {name}: the binlog holds no members of this {Wire(code).name} and no history does")
    return before.members


def _charset(name: str, collation: int | None, before: Column | None) -> str:
    if collation is not None:
        return charset_of(collation)
    if before is None:
        raise SchemaUnknown(f"column {name}: the binlog does not say its character set and no history does")
    return before.charset or "binary"


# Types that look like others in the binlog; only a schema history can tell them: (as decoded, size) -> names.
_REFINED = {("binary", 16): {"uuid", "inet6"}, ("binary", 4): {"inet4"}}


_BLOB_WIDTHS: dict[int, int] = {Wire.TINY_BLOB: 1, Wire.MEDIUM_BLOB: 3, Wire.LONG_BLOB: 4}


def _typed(name: str, charset: str, code: int, meta: int, shape: str, before: Column | None) -> tuple[str, int, int]:
    """Return a column's type by name, its size and its scale."""
    size = scale = 0
    binary = charset == "binary"
    if code in (Wire.VARCHAR, Wire.VAR_STRING, Wire.VARCHAR_COMPRESSED):
        type_, size = ("varbinary" if binary else "varchar"), meta
        if code == Wire.VARCHAR_COMPRESSED:
            size = max(meta - 1, 0)  # the length counts the method byte
    elif code == Wire.STRING:
        type_, size = ("binary" if binary else "char"), meta
    elif code in BLOBS:
        width = _BLOB_WIDTHS.get(code, meta)
        if width not in _BLOB_PREFIX:
            raise ValueError(f"column {name}: a blob whose length takes {width} bytes")
        type_ = _BLOB_PREFIX[width] + ("blob" if binary else "text")
    elif code == Wire.GEOMETRY:
        type_ = shape
    else:
        type_ = PLAIN[code]
    if code == Wire.NEWDECIMAL:
        size, scale = meta >> 8, meta & 0xFF
    elif code == Wire.BIT:
        size = meta
    elif code in (Wire.TIMESTAMP2, Wire.DATETIME2, Wire.TIME2):
        scale = meta
    elif code in (Wire.TIMESTAMP, Wire.DATETIME, Wire.TIME) and before is not None and before.type == type_:
        scale = before.scale  # the log does not hold it
    if before is not None and (before.type in _REFINED.get((type_, size), ()) or (before.type, type_) == ("vector", "varbinary")):
        type_, size = before.type, 0
    return type_, size, scale
