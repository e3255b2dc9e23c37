"""Stored events -> the bytes of Canal's Entry, filled as Canal's MySQL parser fills it.

Plan. The protobuf package builds the same bytes and is the reference in the tests; here they are put together from
prepared pieces, since a column's bytes differ from row to row in its value alone. Text of one byte a character
(ISO-8859-1) stands for bytes until an event is whole: Python joins and formats text faster than bytes.

A column of a row is  tag, length | index, sqlType, name, isKey, updated, isNull | value tag, length | value | mysqlType.
Everything but the value is a function of the column, the flags, the sqlType and the value's length: `_Pieces` keeps it
by length. So a cell costs one look-up and one format. Events of many rows are encoded column by column, then joined.

What cannot be as Canal has it: RowChange.tableId (a number of the server's table cache, not kept in a store) and the
display widths in mysqlType. Snapshot rows (READ) go out as INSERT with a header property ``snapshot``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from consumer.canal import Rendering, Sql, Values, ddl_target, mysql_type, renderings
from shmstore.codec import decode_schema, decode_stored
from shmstore.event import EntryType, EventType, TableSchema

_BEFORE: Final = "\x0a"
_AFTER: Final = "\x12"
_KEPT_LENGTHS: Final = 4096
_INSERT: Final = int(EventType.INSERT)
_READ: Final = int(EventType.READ)
_ENTRY_TYPE: Final = {
    EntryType.BEGIN: "\x10\x01",
    EntryType.ROWS: "\x10\x02",
    EntryType.END: "\x10\x03",
    EntryType.DDL: "\x10\x02",
}


class Encoded(NamedTuple):
    """One entry ready to send. `data` has the tag and length of ``Messages.messages`` before it."""

    data: bytes
    rows: int


# ---------------------------------------------------------------- protobuf primitives, as text of one byte a character


def _varint(number: int) -> str:
    if number < 0:
        number += 1 << 64
    out = []
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out).decode("latin-1")


_SMALL: Final = tuple(_varint(number) for number in range(4096))


def varint(number: int) -> str:
    """Return `number` as a varint; a negative one in 64-bit two's complement, as protobuf does."""
    return _SMALL[number] if 0 <= number < 4096 else _varint(number)


def _text(value: str) -> str:
    """UTF-8 of `value`, one character a byte."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("latin-1")


def _string(tag: str, value: str) -> str:
    """A string field; nothing where it is empty."""
    if not value:
        return ""
    text = _text(value)
    return f"{tag}{varint(len(text))}{text}"


def _number(tag: str, value: int) -> str:
    """An integer field; nothing where it is 0."""
    return f"{tag}{varint(value)}" if value else ""


@lru_cache(maxsize=4096)
def _pair(tag: str, key: str, value: str) -> str:
    pair = _string("\x0a", key) + _string("\x12", value)
    return f"{tag}{varint(len(pair))}{pair}"


# ---------------------------------------------------------------- columns


class _Pieces(dict[int, str]):
    """The bytes before a column's value, by the value's length in bytes."""

    __slots__ = ("_before", "_head", "_rest")

    def __init__(self, head: str, before: str, rest: int) -> None:
        self._head = head
        self._before = before
        self._rest = rest

    def __missing__(self, length: int) -> str:
        value = f"\x42{varint(length)}" if length else ""
        size = len(self._before) + len(value) + length + self._rest
        piece = f"{self._head}{varint(size)}{self._before}{value}"
        if length < _KEPT_LENGTHS:
            self[length] = piece
        return piece


class _Column:
    """One column of one table: how its values become bytes."""

    __slots__ = ("_fixed", "_key", "_name", "_nulls", "_pieces", "ascii", "rendering", "tail", "text")

    def __init__(self, table: TableSchema, index: int, rendering: Rendering) -> None:
        column = table.columns[index]
        self.rendering = rendering
        self.text = rendering.text
        #: True where the text is known to need no UTF-8: digits and the like
        self.ascii = rendering.sql_type not in (Sql.CHAR, Sql.VARCHAR, Sql.CLOB, Sql.BLOB)
        self._fixed = _number("\x08", index)
        self._name = _string("\x1a", column.name) + ("\x20\x01" if index in table.primary_key else "")
        self.tail = _string("\x52", mysql_type(column))
        self._pieces: dict[tuple[str, bool, int], _Pieces] = {}
        self._nulls: dict[tuple[str, bool], str] = {}

    def pieces(self, side: str, updated: bool, sql_type: int) -> _Pieces:
        """What goes before a value."""
        found = self._pieces.get((side, updated, sql_type))
        if found is None:
            before = f"{self._fixed}\x10{varint(sql_type)}{self._name}{_UPDATED[updated]}\x30\x00"
            found = self._pieces[side, updated, sql_type] = _Pieces(side, before, len(self.tail))
        return found

    def null(self, side: str, updated: bool) -> str:
        """A NULL."""
        found = self._nulls.get((side, updated))
        if found is None:
            body = f"{self._fixed}\x10{varint(self.rendering.null_type)}{self._name}{_UPDATED[updated]}\x30\x01{self.tail}"
            found = self._nulls[side, updated] = f"{side}{varint(len(body))}{body}"
        return found

    def cells(self, side: str, values: list[Any], updated: bool) -> list[str]:
        """The bytes of this column in every row, all with the same `updated`."""
        shown, tail = self.rendering, self.tail
        if None in values or (shown.signed_max is not None and max(values) > shown.signed_max):
            return [self.cell(side, value, updated) for value in values]
        pieces = self.pieces(side, updated, shown.sql_type)
        if self.ascii:
            return [f"{pieces[len(text)]}{text}{tail}" for text in map(self.text, values)]
        return [
            f"{pieces[len(text)]}{text}{tail}"
            for text in [
                text if text.isascii() else text.encode("utf-8", "replace").decode("latin-1") for text in map(self.text, values)
            ]
        ]

    def cell(self, side: str, value: Any, updated: bool) -> str:
        """The bytes of this column in one row."""
        if value is None:
            return self.null(side, updated)
        text = self.text(value)
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode("latin-1")
        return f"{self.pieces(side, updated, self.rendering.type_of(value))[len(text)]}{text}{self.tail}"


_UPDATED: Final = ("", "\x28\x01")


# ---------------------------------------------------------------- rows


class _Table:
    """One table version: how its rows become RowChange.rowDatas."""

    __slots__ = ("columns", "name", "names", "schema")

    def __init__(self, schema: TableSchema, values: Values) -> None:
        self.schema = schema
        self.columns = tuple(_Column(schema, i, shown) for i, shown in enumerate(renderings(schema, values)))
        self.names = _string("\x42", schema.database) + _string("\x4a", schema.table)
        self.name = f"{schema.database}.{schema.table}"

    def rows(self, body: list[Any]) -> str:
        """The rowDatas of a stored body."""
        before_columns, before, after_columns, after = body
        sides = []
        if before:
            sides += self._image(_BEFORE, before_columns, before, None)
        if after:
            sides += self._image(_AFTER, after_columns, after, self._by_column(before_columns, before))
        if len(before or after) == 1:
            row = "".join([cells[0] for cells in sides])
            return f"b{varint(len(row))}{row}"
        rows = ["".join(cells) for cells in zip(*sides, strict=True)]
        return "".join([f"b{varint(len(row))}{row}" for row in rows])

    def _present(self, present: list[int] | None) -> list[_Column] | tuple[_Column, ...]:
        return self.columns if present is None else [self.columns[i] for i in present]

    def _by_column(self, present: list[int] | None, rows: list[list[Any]] | None) -> dict[int, list[Any]] | None:
        if not rows:
            return None
        return dict(
            zip(range(len(self.columns)) if present is None else present, map(list, zip(*rows, strict=True)), strict=True)
        )

    def _image(
        self, side: str, present: list[int] | None, rows: list[list[Any]], before: dict[int, list[Any]] | None
    ) -> list[list[str]]:
        columns = self._present(present)
        numbers = range(len(self.columns)) if present is None else present
        updated = side is _AFTER
        if len(rows) == 1:
            if before is None:
                return [[column.cell(side, value, updated)] for column, value in zip(columns, rows[0], strict=True)]
            return [
                [column.cell(side, value, i not in before or before[i][0] != value)]
                for i, column, value in zip(numbers, columns, rows[0], strict=True)
            ]
        sides = []
        for i, column, values in zip(numbers, columns, zip(*rows, strict=True), strict=True):
            was = before.get(i) if before else None
            if was is None:
                sides.append(column.cells(side, list(values), updated))
            elif was == list(values):
                sides.append(column.cells(side, list(values), False))
            else:
                # Not in one go: what changed differs from row to row.
                sides.append([column.cell(side, value, value != old) for value, old in zip(values, was, strict=True)])
        return sides


# ---------------------------------------------------------------- entries


@lru_cache(maxsize=64)
def _file(name: str) -> str:
    return "\x08\x01" + _string("\x12", name)


@lru_cache(maxsize=64)
def _server(server_id: int) -> str:
    return _number("\x20", server_id) + "\x2a\x05UTF-8"


@lru_cache(maxsize=1024)
def _time(second: int) -> str:
    return _number("\x30", second * 1000) + "\x38\x02"


@lru_cache(maxsize=64)
def _type(number: int) -> str:
    return "\x58" + varint(EventType.INSERT if number == EventType.READ else number)


class Encoder:
    """Encodes stored events. One serves all clients of a server that want the same `values`."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._tables: dict[bytes, _Table] = {}

    def encode(self, payload: bytes | memoryview, wanted: Callable[[str], bool] | None = None) -> Encoded | None:
        """Return the entry of a stored event; None for a heartbeat, and for a table that `wanted` (of ``schema.table``) refuses.

        Raises `StoreCorrupt` where the payload is not an event.
        """
        header, schema, body = decode_stored(payload)
        entry = header[0]
        if entry == EntryType.ROWS:
            table = self._table(schema or b"")
            if wanted is not None and not wanted(table.name):
                return None
            return self._rows(header, table, body or [None, None, None, None])
        if entry == EntryType.BEGIN:
            value = _props("\x1a", header[14], ("XA_TYPE", "XA_XID")) + _number("\x20", _integer(header[14].get("thread_id")))
            return Encoded(_entry(_header(header, "", "", ""), _ENTRY_TYPE[EntryType.BEGIN], value), 0)
        if entry == EntryType.END:
            value = _string("\x12", header[14].get("xid", "0")) + _props("\x1a", header[14], ("XA_TYPE", "XA_XID"))
            return Encoded(_entry(_header(header, "", "", ""), _ENTRY_TYPE[EntryType.END], value), 0)
        return self._ddl(header, wanted) if entry == EntryType.DDL else None

    def _table(self, blob: bytes) -> _Table:
        table = self._tables.get(blob)
        if table is None:
            if len(self._tables) >= 4096:
                self._tables.clear()
            table = self._tables[blob] = _Table(decode_schema(blob), self._values)
        return table

    def _rows(self, header: list[Any], table: _Table, body: list[Any]) -> Encoded:
        count = len(body[1] or body[3] or ())
        rows = table.rows(body) if count else ""
        type_ = _INSERT if header[1] == _READ else header[1]
        value = f"\x10{varint(type_)}\x50\x00{rows}"
        props = _pair("b", "rowsCount", str(count)) if count else ""
        if header[1] == _READ:
            props += _pair("b", "snapshot", "true")
        return Encoded(_entry(_header(header, table.names, _type(header[1]), props), _ENTRY_TYPE[EntryType.ROWS], value), count)

    def _ddl(self, header: list[Any], wanted: Callable[[str], bool] | None) -> Encoded | None:
        sql = header[13]
        database, name = ddl_target(sql, header[12])
        # A statement about no table is never filtered by name, as in Canal.
        if wanted is not None and name and not wanted(f"{database}.{name}"):
            return None
        is_ddl = "" if header[1] == EventType.QUERY else "\x50\x01"
        value = f"\x10{varint(header[1])}{is_ddl}{_string('Z', sql)}{_string('r', header[12])}"
        names = _string("\x42", database) + _string("\x4a", name)
        return Encoded(_entry(_header(header, names, _type(header[1]), ""), _ENTRY_TYPE[EntryType.DDL], value), 0)


def _integer(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _props(tag: str, props: dict[str, str], names: tuple[str, ...]) -> str:
    return "".join([_pair(tag, name, props[name]) for name in names if name in props]) if props else ""


def _header(header: list[Any], names: str, kind: str, props: str) -> str:
    """The Header of a stored header. `names` holds the fields schemaName and tableName, `kind` the field eventType."""
    _, _, file, offset, length, time_ms, server_id, transaction, _, _, gtids, _, _, _, more = header
    current = ""
    if transaction and not transaction.startswith(file + ":"):
        current = _pair("b", "curtGtid", transaction) + _props("b", more, ("curtGtidSn", "curtGtidLct"))
    # The event's start, as Canal: its end less its length.
    start = _number("\x18", offset - length)
    return (
        f"{_file(file)}{start}{_server(server_id)}{_time(time_ms // 1000)}{names}"
        f"{_number('P', length)}{kind}{current}{props}{_string('j', gtids)}"
    )


def _entry(header: str, kind: str, value: str) -> bytes:
    stored = f"\x1a{varint(len(value))}{value}" if value else ""
    size = varint(len(header))
    total = 1 + len(size) + len(header) + len(kind) + len(stored)
    return f"\x12{varint(total)}\x0a{size}{header}{kind}{stored}".encode("latin-1")
