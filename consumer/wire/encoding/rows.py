"""Rows of one table version -> the bytes of Canal's RowChange.rowDatas.

Plan. A column of a row is  tag, length | index, sqlType, name, isKey, updated, isNull | value tag, length | value | mysqlType.
Everything but the value is a function of the column, the flags, the sqlType and the value's length: `_Pieces` keeps it
by length. So a cell costs one look-up and one format. A single row is made cell by cell, many rows column by column
and then joined.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from shmstore.column_type import column_type, logged_type
from shmstore.consumer.formats.canal_values import Rendering, Sql, Values, canal_key, renderings
from shmstore.consumer.wire.encoding.protobuf import SMALL, message, narrow, number, string, varint
from shmstore.encoding.codec import bare_schema, decode_schema
from shmstore.event import Column

_BEFORE: Final = "\x0a"
_AFTER: Final = "\x12"
_KEPT_LENGTHS: Final = 4096
_TEXTS: Final = frozenset((Sql.CHAR, Sql.VARCHAR, Sql.CLOB, Sql.BLOB))


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

_Cell = Callable[[Any], str]
_Same = Callable[[Any, Any], bool]


class Plan(NamedTuple):
    """What compiled code needs of a column: how a value becomes text, and the bytes around it, all but the column's length. Those in pairs
    are of a column that is not marked as updated, and of one that is."""

    form: str
    scale: int
    members: tuple[str, ...]
    text: Callable[[Any], str]
    most: int | None  # above that, `high` stands before the value
    usual: tuple[str, str]
    high: tuple[str, str]
    null: tuple[str, str]
    tail: str


class _Column:
    """One column of one table: how its values become bytes."""

    __slots__ = ("_fixed", "_named", "_shown", "_tail", "_usual", "cell", "same")

    def __init__(self, name: str, index: int, is_key: bool, shown: Rendering, tail: str) -> None:
        self._shown = shown
        self._tail = tail
        self._fixed = number("\x08", index)
        self._named = string("\x1a", name) + ("\x20\x01" if is_key else "")
        self._usual = self._pieces(shown.sql_type)
        high = self._pieces(shown.high_type)
        #: What makes one cell's bytes of its value, by how the cell is.
        self.cell = tuple(
            _cell(shown, self._usual[how], high[how], tail, message(_SIDES[how], self._null(how))) for how in range(3)
        )
        #: Whether two values count as the same.
        self.same = _same(shown.text)

    def _head(self, sql_type: int, how: int) -> str:
        """What stands before a value."""
        return f"{self._fixed}\x10{varint(sql_type)}{self._named}{_UPDATED[how]}\x30\x00"

    def _null(self, how: int) -> str:
        """All of a NULL."""
        return f"{self._fixed}\x10{varint(self._shown.null_type)}{self._named}{_UPDATED[how]}\x30\x01{self._tail}"

    def _pieces(self, sql_type: int) -> tuple[_Pieces, ...]:
        return tuple(_Pieces(_SIDES[how], self._head(sql_type, how), len(self._tail)) for how in range(3))

    def plan(self, column: Column) -> Plan:
        """The same for compiled code."""
        shown = self._shown
        return Plan(
            form=shown.form,
            scale=column.scale,
            members=column.members,
            text=shown.text,
            most=shown.signed_max,
            usual=(self._head(shown.sql_type, _SAME), self._head(shown.sql_type, _CHANGED)),
            high=(self._head(shown.high_type, _SAME), self._head(shown.high_type, _CHANGED)),
            null=(self._null(_SAME), self._null(_CHANGED)),
            tail=self._tail,
        )

    def cells(self, how: int, values: tuple[Any, ...]) -> list[str]:
        """The bytes of this column in every row, all of them `how`."""
        shown = self._shown
        if None in values or (shown.signed_max is not None and max(values) > shown.signed_max):
            return list(map(self.cell[how], values))
        pieces, tail = self._usual[how], self._tail
        texts = map(shown.text, values)
        if shown.sql_type in _TEXTS:  # digits and the like need no look at their characters
            texts = map(narrow, texts)
        return [f"{pieces[len(text)]}{text}{tail}" for text in texts]


def _cell(shown: Rendering, usual: _Pieces, high: _Pieces, tail: str, null: str) -> _Cell:
    """What makes one cell's bytes: a closure, since that is one call a cell and no look-ups in it."""
    as_text, most = shown.text, shown.signed_max

    def cell(value: Any) -> str:
        if value is None:
            return null
        text = as_text(value)
        return f"{usual[len(text)]}{text}{tail}"

    def own(value: Any) -> str:
        if value is None:
            return null
        text = value if type(value) is str else as_text(value)
        if not text.isascii():
            text = narrow(text)
        return f"{usual[len(text)]}{text}{tail}"

    def wide(value: Any) -> str:
        if value is None:
            return null
        text = as_text(value)
        if not text.isascii():
            text = narrow(text)
        return f"{usual[len(text)]}{text}{tail}"

    if most is None:
        return own if shown.own else wide if shown.wide else cell

    def unsigned(value: Any) -> str:
        if value is None:
            return null
        text = as_text(value)
        return f"{(usual if value <= most else high)[len(text)]}{text}{tail}"

    return unsigned


def _same(text: Callable[[Any], str]) -> _Same:
    """What says whether two values are the same: as Canal, by what is printed, so that 0 is not -0, and a moment is not the same hour of
    summer time."""

    def same(old: Any, new: Any) -> bool:
        if old is None or new is None:
            return old is new
        if old == new and type(new) is not float:
            return True
        return text(old) == text(new)

    return same


class EntryTable:
    """One table version, as the entries of its rows need it. `blob` is its stored schema."""

    __slots__ = ("_after", "_changed", "_columns", "_schema", "_was", "head", "name", "names")

    def __init__(self, blob: bytes, values: Values) -> None:
        self._schema = schema = decode_schema(blob)
        type_of = column_type if values is Values.CANAL else logged_type
        key = canal_key(schema) if values is Values.CANAL else schema.primary_key
        self._columns = tuple(
            _Column(column.name, i, i in key, shown, string("\x52", type_of(column)))
            for i, (column, shown) in enumerate(zip(schema.columns, renderings(schema, values), strict=True))
        )
        self._was = tuple(column.cell[_WAS] for column in self._columns)
        self._after = tuple((column.same, column.cell[_SAME], column.cell[_CHANGED]) for column in self._columns)
        self._changed = tuple(column.cell[_CHANGED] for column in self._columns)
        #: The name that filters see.
        self.name = f"{schema.database}.{schema.table}"
        #: Header.schemaName and tableName.
        self.names = string("\x42", schema.database) + string("\x4a", schema.table)
        #: RowChange.tableId. The server's own number is not kept in a store; like that one this has 48 bits and is another
        #: for another definition of the table, and unlike that one it is the same after a restart of the server.
        self.head = number("\x08", int.from_bytes(blake2b(bare_schema(blob), digest_size=6).digest(), "big") or 1)

    @property
    def plans(self) -> list[Plan]:
        """The columns for compiled code."""
        return [made.plan(column) for made, column in zip(self._columns, self._schema.columns, strict=True)]

    def rows(self, body: list[Any]) -> str:
        """The rowDatas of a stored body that has rows."""
        before_columns, before, after_columns, after = body
        if len(before or after) == 1:
            if before_columns is not None or after_columns is not None:
                cells = self._one(before_columns, before, after_columns, after)
            elif not before:
                cells = [cell(value) for cell, value in zip(self._changed, after[0], strict=True)]
            else:
                was = before[0]
                cells = [cell(value) for cell, value in zip(self._was, was, strict=True)]
                if after:
                    cells += [
                        (usual if same(old, new) else changed)(new)
                        for (same, usual, changed), old, new in zip(self._after, was, after[0], strict=True)
                    ]
            row = "".join(cells)
            length = len(row)
            return f"b{SMALL[length] if length < 16384 else varint(length)}{row}"
        sides = self._images(before_columns, before, after_columns, after)
        rows = map("".join, zip(*sides, strict=True)) if sides else [""] * len(before or after)  # without any column
        return "".join([f"b{SMALL[len(row)] if len(row) < 16384 else varint(len(row))}{row}" for row in rows])

    def _numbers(self, present: list[int] | None) -> range | list[int]:
        return range(len(self._columns)) if present is None else present

    def _one(self, before_columns: list[int] | None, before: Any, after_columns: list[int] | None, after: Any) -> list[str]:
        """The cells of a single row that lacks columns."""
        columns = self._columns
        was: dict[int, Any] = {}
        cells = []
        if before:
            was = dict(zip(self._numbers(before_columns), before[0], strict=True))
            cells = [columns[i].cell[_WAS](value) for i, value in was.items()]
        if after:
            for i, value in zip(self._numbers(after_columns), after[0], strict=True):
                column = columns[i]
                cells.append(column.cell[_SAME if i in was and column.same(was[i], value) else _CHANGED](value))
        return cells

    def _images(
        self, before_columns: list[int] | None, before: Any, after_columns: list[int] | None, after: Any
    ) -> list[list[str]]:
        """The cells of many rows, column by column: those of the image before, then those of the image after."""
        sides = []
        was: dict[int, tuple[Any, ...]] = {}
        if before:
            was = dict(zip(self._numbers(before_columns), zip(*before, strict=True), strict=True))
            sides = [self._columns[i].cells(_WAS, values) for i, values in was.items()]
        if after:
            for i, values in zip(self._numbers(after_columns), zip(*after, strict=True), strict=True):
                column = self._columns[i]
                if i not in was:
                    sides.append(column.cells(_CHANGED, values))
                else:
                    # Not in one go: what changed differs from row to row.
                    _, usual, changed = column.cell
                    sides.append(
                        [(usual if column.same(old, new) else changed)(new) for old, new in zip(was[i], values, strict=True)]
                    )
        return sides
