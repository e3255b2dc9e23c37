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
from typing import Any, Final

from consumer.canal import DDL_TYPES, Rendering, Sql, Values, ddl_target, mysql_type, renderings
from shmstore.codec import decode_schema, decode_stored
from shmstore.event import EntryType, EventType, TableSchema

_BEFORE: Final = "\x0a"
_AFTER: Final = "\x12"
_KEPT_LENGTHS: Final = 4096
_INSERT: Final = int(EventType.INSERT)
_READ: Final = int(EventType.READ)
_BEGIN_TYPE: Final = "\x10\x01"
_ROWS_TYPE: Final = "\x10\x02"
_END_TYPE: Final = "\x10\x03"
_PROPS: Final = "\x1a"
_THREAD: Final = "\x20"
_SERVER: Final = "\x20"
_TIME: Final = "\x30"
_XA: Final = {EventType.XACOMMIT: "XA COMMIT", EventType.XAROLLBACK: "XA ROLLBACK"}
_GTID: Final = ("curtGtidSn", "curtGtidLct")


#: One entry ready to send: its bytes, with the tag and length of ``Messages.messages`` before them, and its rows. A plain
#: tuple, as there is one for every event.
Encoded = tuple[bytes, int]


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


_SMALL: Final = tuple(_varint(number) for number in range(1 << 14))
# Fourteen bits that more follow: two characters, both with the continuation bit.
_MORE: Final = tuple(chr(number & 0x7F | 0x80) + chr(number >> 7 | 0x80) for number in range(1 << 14))


def varint(number: int) -> str:
    """Return `number` as a varint; a negative one in 64-bit two's complement, as protobuf does."""
    if 0 <= number < 1 << 28:
        return _SMALL[number] if number < 1 << 14 else _MORE[number & 0x3FFF] + _SMALL[number >> 14]
    return _varint(number)


def _string(tag: str, value: str) -> str:
    """A string field; nothing where it is empty."""
    if not value:
        return ""
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode("latin-1")
    length = len(value)
    return f"{tag}{_SMALL[length] if length < 16384 else _varint(length)}{value}"


def _number(tag: str, value: int) -> str:
    """An integer field; nothing where it is 0."""
    return f"{tag}{varint(value)}" if value else ""


def _pair(tag: str, key: str, value: str) -> str:
    """A Pair as field `tag`; `key` is ours, and short."""
    pair = f"\x0a{_SMALL[len(key)]}{key}{_string(_AFTER, value)}"
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


# How a cell may be: in the image before; after, and the same as before; after, and changed or new.
_WAS, _SAME, _CHANGED = 0, 1, 2
_SIDES: Final = (_BEFORE, _AFTER, _AFTER)
_UPDATED: Final = ("", "", "\x28\x01")


class _Column:
    """One column of one table: how its values become bytes."""

    __slots__ = ("_ascii", "_high", "_nulls", "_signed_max", "_text", "_usual", "tail")

    def __init__(self, table: TableSchema, index: int, rendering: Rendering) -> None:
        column = table.columns[index]
        self._text = rendering.text
        self._signed_max = rendering.signed_max
        # Digits and the like need no look at their characters.
        self._ascii = rendering.sql_type not in (Sql.CHAR, Sql.VARCHAR, Sql.CLOB, Sql.BLOB)
        self.tail = tail = _string("\x52", mysql_type(column))
        fixed = _number("\x08", index)
        name = _string("\x1a", column.name) + ("\x20\x01" if index in table.primary_key else "")

        def pieces(sql_type: int) -> tuple[_Pieces, ...]:
            return tuple(
                _Pieces(_SIDES[how], f"{fixed}\x10{varint(sql_type)}{name}{_UPDATED[how]}\x30\x00", len(tail)) for how in range(3)
            )

        self._usual = pieces(rendering.sql_type)
        self._high = pieces(rendering.high_type)
        nulls = [f"{fixed}\x10{varint(rendering.null_type)}{name}{_UPDATED[how]}\x30\x01{tail}" for how in range(3)]
        self._nulls = tuple(f"{_SIDES[how]}{varint(len(null))}{null}" for how, null in enumerate(nulls))

    def cells(self, how: int, values: tuple[Any, ...]) -> list[str]:
        """The bytes of this column in every row, all of them `how`."""
        if None in values or (self._signed_max is not None and max(values) > self._signed_max):
            return [self.cell(how, value) for value in values]
        pieces, tail = self._usual[how], self.tail
        if self._ascii:
            return [f"{pieces[len(text)]}{text}{tail}" for text in map(self._text, values)]
        texts = [
            text if text.isascii() else text.encode("utf-8", "replace").decode("latin-1") for text in map(self._text, values)
        ]
        return [f"{pieces[len(text)]}{text}{tail}" for text in texts]

    def cell(self, how: int, value: Any) -> str:
        """The bytes of this column in one row."""
        if value is None:
            return self._nulls[how]
        text = self._text(value)
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode("latin-1")
        pieces = self._usual if self._signed_max is None or value <= self._signed_max else self._high
        return f"{pieces[how][len(text)]}{text}{self.tail}"


# ---------------------------------------------------------------- rows


class _Table:
    """One table version: how its rows become RowChange.rowDatas."""

    __slots__ = ("columns", "name", "names")

    def __init__(self, schema: TableSchema, values: Values) -> None:
        self.columns = tuple(_Column(schema, i, shown) for i, shown in enumerate(renderings(schema, values)))
        self.names = _string("\x42", schema.database) + _string("\x4a", schema.table)
        self.name = f"{schema.database}.{schema.table}"

    def rows(self, body: list[Any]) -> str:
        """The rowDatas of a stored body that has rows."""
        before_columns, before, after_columns, after = body
        if len(before or after) == 1:
            row = "".join(self._one(before_columns, before, after_columns, after))
            return f"b{varint(len(row))}{row}"
        sides = self._images(before_columns, before, after_columns, after)
        return "".join([f"b{varint(len(row))}{row}" for row in map("".join, zip(*sides, strict=True))])

    def _present(self, present: list[int] | None) -> tuple[_Column, ...]:
        return self.columns if present is None else tuple([self.columns[i] for i in present])

    def _one(self, before_columns: list[int] | None, before: Any, after_columns: list[int] | None, after: Any) -> list[str]:
        """The cells of a single row."""
        columns = self._present(after_columns)
        if not before:
            return [column.cell(_CHANGED, value) for column, value in zip(columns, after[0], strict=True)]
        cells = [column.cell(_WAS, value) for column, value in zip(self._present(before_columns), before[0], strict=True)]
        if after:
            was = dict(zip(self._numbers(before_columns), before[0], strict=True))
            for i, column, value in zip(self._numbers(after_columns), columns, after[0], strict=True):
                cells.append(column.cell(_SAME if i in was and was[i] == value else _CHANGED, value))
        return cells

    def _numbers(self, present: list[int] | None) -> range | list[int]:
        return range(len(self.columns)) if present is None else present

    def _images(
        self, before_columns: list[int] | None, before: Any, after_columns: list[int] | None, after: Any
    ) -> list[list[str]]:
        """The cells of many rows, column by column: those of the image before, then those of the image after."""
        sides = []
        was: dict[int, tuple[Any, ...]] = {}
        if before:
            was = dict(zip(self._numbers(before_columns), zip(*before, strict=True), strict=True))
            sides = [self.columns[i].cells(_WAS, values) for i, values in was.items()]
        if after:
            for i, values in zip(self._numbers(after_columns), zip(*after, strict=True), strict=True):
                column = self.columns[i]
                if i not in was:
                    sides.append(column.cells(_CHANGED, values))
                elif was[i] == values:
                    sides.append(column.cells(_SAME, values))
                else:
                    # Not in one go: what changed differs from row to row.
                    cell = column.cell
                    sides.append(
                        [cell(_SAME if old == value else _CHANGED, value) for old, value in zip(was[i], values, strict=True)]
                    )
        return sides


# ---------------------------------------------------------------- entries


@lru_cache(maxsize=256)
def _count(number: int) -> str:
    return _pair("b", "rowsCount", str(number)) if number else ""


@lru_cache(maxsize=64)
def _type(number: int) -> str:
    return "\x58" + varint(EventType.INSERT if number == EventType.READ else number)


class Encoder:
    """Encodes stored events, those of one client after each other."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._tables: dict[bytes, _Table] = {}
        # What an event shares with the one before it, most of the time: kept as bytes.
        self._file = self._prefix = self._head = ""
        self._second = self._server = -1
        self._middle = ""
        self._transaction = self._current = ""

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
            value = _thread(header[14].get("thread_id", ""))
            return _entry(self._header(header, "", "", ""), _BEGIN_TYPE, value), 0
        if entry == EntryType.END:
            props = header[14]
            xid = props.get("xid", "0")
            value = f"{_string(_AFTER, xid)}{_xa(_PROPS, 'XA END', props) if 'xa' in props else ''}"
            return _entry(self._header(header, "", "", ""), _END_TYPE, value), 0
        return self._ddl(header, wanted) if entry == EntryType.DDL else None

    def _header(self, header: list[Any], names: str, kind: str, props: str) -> str:
        """The Header of a stored header. `names` holds the fields schemaName and tableName, `kind` the field eventType."""
        _, _, file, offset, length, time_ms, server_id, transaction, _, _, gtids, _, _, _, more = header
        if file is not self._file and file != self._file:
            self._file, self._prefix = file, f"{file}:"
            self._head = "\x08\x01" + _string("\x12", file)
            self._transaction = self._current = ""
        second = time_ms // 1000
        if second != self._second or server_id != self._server:
            self._second, self._server = second, server_id
            # serverId, serverenCode UTF-8, executeTime, sourceType MYSQL
            self._middle = f"{_number(_SERVER, server_id)}\x2a\x05UTF-8{_number(_TIME, second * 1000)}\x38\x02"
        if transaction != self._transaction:
            self._transaction = transaction
            # A place in the binlog stands in for the GTID of a server that has none.
            known = transaction and not transaction.startswith(self._prefix)
            self._current = _pair("b", "curtGtid", transaction) if known else ""
        current = self._current
        if current and "curtGtidSn" in more:
            current += _props("b", more, _GTID)
        start = offset - length  # as Canal: where the event starts
        place = f"\x18{varint(start)}" if start else ""
        size = f"P{varint(length)}" if length else ""
        return f"{self._head}{place}{self._middle}{names}{size}{kind}{current}{props}{_string('j', gtids) if gtids else ''}"

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
        props = _count(count)
        if header[1] == _READ:
            props += _pair("b", "snapshot", "true")
        return _entry(self._header(header, table.names, _type(header[1]), props), _ROWS_TYPE, value), count

    def _ddl(self, header: list[Any], wanted: Callable[[str], bool] | None) -> Encoded | None:
        kind, database, sql, props = header[1], header[12], header[13], header[14]
        if "xa" in props:
            # The end of a prepared transaction: every client must see it that may have seen its rows.
            value = f"\x10{varint(kind)}{_xa('j', _XA.get(kind, ''), props)}"
            return _entry(self._header(header, "", _type(kind), ""), _ROWS_TYPE, value), 0
        database, name = ddl_target(sql, database, props)
        # A statement about no table is never filtered by name, as in Canal.
        if wanted is not None and name and not wanted(f"{database}.{name}"):
            return None
        is_ddl = "\x50\x01" if kind in DDL_TYPES else ""
        value = f"\x10{varint(kind)}{is_ddl}{_string('Z', sql)}{_string('r', props.get('default_database', header[12]))}"
        names = _string("\x42", database) + _string("\x4a", name)
        return _entry(self._header(header, names, _type(kind), ""), _ROWS_TYPE, value), 0


@lru_cache(maxsize=1024)
def _thread(text: str) -> str:
    return _number(_THREAD, int(text) if text.isdigit() else 0)


def _props(tag: str, props: dict[str, str], names: tuple[str, ...]) -> str:
    return "".join([_pair(tag, name, props[name]) for name in names if name in props])


def _xa(tag: str, kind: str, props: dict[str, str]) -> str:
    return _pair(tag, "XA_TYPE", kind) + _pair(tag, "XA_XID", props.get("xa_xid", ""))


def _entry(header: str, kind: str, value: str) -> bytes:
    length = len(value)
    stored = f"\x1a{_SMALL[length] if length < 16384 else varint(length)}{value}" if value else ""
    size = varint(len(header))
    total = 1 + len(size) + len(header) + len(kind) + len(stored)
    return f"\x12{_SMALL[total] if total < 16384 else varint(total)}\x0a{size}{header}{kind}{stored}".encode("latin-1")
