"""A table while a DDL changes it.

The server takes the column names in one ALTER as they were before it, so that two columns can change names with each other.
A column here is a slot that keeps its old name; the primary key is made of slots, so that it follows every renaming.
"""

from __future__ import annotations

from typing import NamedTuple

from producer.columns import ColumnDefinition, is_text
from shmstore.event import Column

__all__ = ["Draft", "Table"]

# MariaDB's WITH SYSTEM VERSIONING: two columns that no SELECT * shows, behind the others.
_ROW_PERIOD = (Column("row_start", "timestamp", scale=6), Column("row_end", "timestamp", scale=6))


class Table(NamedTuple):
    """A table's columns (character sets filled in), the names of its primary key, its default character set."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    charset: str = ""
    versioned: bool = False  # has the implicit row_start and row_end behind its columns


class _Slot:
    __slots__ = ("before", "column")

    def __init__(self, column: Column, before: str | None) -> None:
        self.column = column
        self.before = before  # the name before the statement, in lower case; None: it is new

    def is_called(self, name: str) -> bool:
        return self.column.name.lower() == name.lower()


class Draft:
    """Changes a table step by step; `table` is the result. Raises ValueError for a column that is not there."""

    def __init__(self, table: Table) -> None:
        self._slots = [_Slot(column, column.name.lower()) for column in table.columns]
        self._key = [self._now(name) for name in table.key]
        self._versioned = table.versioned
        self.charset = table.charset
        self.period_end = ""  # name of the column that ends the row's period, where the table names one

    @property
    def table(self) -> Table:
        """The table as it is by now."""
        columns = tuple([slot.column for slot in self._slots])
        return Table(columns, tuple([slot.column.name for slot in self._key]), self.charset, self._versioned)

    def _now(self, name: str) -> _Slot:
        for slot in self._slots:
            if slot.is_called(name):
                return slot
        raise ValueError(f"column {name} is not known")

    def _before(self, name: str) -> _Slot:
        """The column of this name before the statement, else one that got it within it."""
        return next((slot for slot in self._slots if slot.before == name.lower()), None) or self._now(name)

    def has(self, name: str) -> bool:
        """Whether a column has this name now."""
        return any(slot.is_called(name) for slot in self._slots)

    # ------------------------------------------------------------ columns

    def add(self, definition: ColumnDefinition) -> None:
        """Add a column: at the end, first, or behind another."""
        slot = _Slot(self._filled(definition.column), None)
        if definition.place is None:
            self._slots.insert(len(self._slots) - 2 * self._versioned, slot)
        else:
            self._place(slot, definition.place)
        if definition.primary:
            self._key = [slot]
        if definition.ends_period:
            self.period_end = slot.column.name

    def replace(self, old: str, definition: ColumnDefinition) -> None:
        """CHANGE and MODIFY: give a column another definition, and perhaps another name and place."""
        slot = self._before(old)
        slot.column = self._filled(definition.column)._replace(nullable=slot.column.nullable)
        if definition.place is not None:
            self._slots.remove(slot)
            self._place(slot, definition.place)
        if definition.primary:
            self._key = [slot]

    def rename(self, old: str, new: str) -> None:
        """RENAME COLUMN."""
        slot = self._before(old)
        slot.column = slot.column._replace(name=new)

    def drop(self, name: str) -> None:
        """Take a column out, of the primary key too."""
        slot = self._before(name)
        self._slots.remove(slot)
        self._key = [one for one in self._key if one is not slot]

    def _place(self, slot: _Slot, behind: str) -> None:
        self._slots.insert(0 if behind == "" else self._slots.index(self._now(behind)) + 1, slot)

    def _filled(self, column: Column) -> Column:
        return column._replace(charset=self.charset) if is_text(column) and not column.charset else column

    # ------------------------------------------------------------ the table

    def set_key(self, names: list[str]) -> None:
        """PRIMARY KEY (...); no names: DROP PRIMARY KEY."""
        self._key = [self._now(name) for name in names]

    def convert(self, charset: str) -> None:
        """CONVERT TO CHARACTER SET."""
        self.charset = charset
        for slot in self._slots:
            column = slot.column
            if is_text(column) and column.charset != charset:
                if not "".join(column.members).isascii():
                    raise ValueError("CONVERT TO of a column whose members are not ASCII: servers garble them")
                slot.column = column._replace(charset=charset)

    def version(self) -> None:
        """ADD SYSTEM VERSIONING: the end of the row's period belongs to the primary key."""
        if not self.period_end and not self._versioned:
            self._slots += [_Slot(column, None) for column in _ROW_PERIOD]
            self._versioned = True
        end = self._now(self.period_end or "row_end")
        if self._key and end not in self._key:
            self._key.append(end)

    def unversion(self) -> None:
        """DROP SYSTEM VERSIONING."""
        if self._versioned:
            self._versioned = False
            for column in _ROW_PERIOD:
                self.drop(column.name)
