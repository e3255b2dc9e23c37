"""A table while a DDL changes it.

The server takes the column names in one ALTER as they were before it, so that two columns can change names with each other.
A column here is a slot that keeps its old name; the primary key is made of slots, so that it follows every renaming.

Nor does the order of an ALTER's parts count: first columns go and change where they stand, then come those that are new or
get another place, in the order written, and at last the primary key, by the new names. `table` does what has to wait.
"""

from __future__ import annotations

from typing import NamedTuple

from shmstore.event import Column
from shmstore.producer.sql.columns import ColumnDefinition, is_text, settled
from shmstore.producer.values.charsets import WIDTHS

__all__ = ["Draft", "Table"]

# MariaDB's WITH SYSTEM VERSIONING: two columns that no SELECT * shows, behind the others.
_ROW_PERIOD = (Column("row_start", "timestamp", scale=6), Column("row_end", "timestamp", scale=6))


class Table(NamedTuple):
    """A table's columns (character sets filled in), the names of its primary key, its default character set."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    charset: str = ""
    versioned: bool = False  # has the implicit row_start and row_end behind its columns
    period_end: str = ""  # of a system-versioned table that names the columns of its rows' period: the one that ends it


class _Slot:
    __slots__ = ("before", "column")

    def __init__(self, column: Column, before: str | None) -> None:
        self.column = column
        self.before = before  # the name before the statement, in lower case; None: it is new


class Draft:
    """Changes a table step by step; `table` is the result. Raises ValueError for a column that is not there.

    `charset` and `convert` (CONVERT TO) hold for the whole statement: they are given before its columns.
    """

    def __init__(self, table: Table, *, charset: str = "", convert: str = "") -> None:
        self._slots = [_Slot(column, column.name.lower()) for column in table.columns]
        self._old = list(self._slots)
        self._places: list[tuple[_Slot, str | None]] = []  # of what is new or moves
        self._key = [_called(self._slots, name) for name in table.key]
        self._new_key: list[str] | None = None
        self._versioned = self._was_versioned = table.versioned
        self._convert = convert
        self.charset = charset or convert or table.charset  # MariaDB takes both: the one for later columns, the other for these
        self.period_end = table.period_end
        if convert:
            self._convert_columns()

    def _before(self, name: str) -> _Slot:
        """The column of this name before the statement."""
        slot = next((slot for slot in self._old if slot.before == name.lower()), None)
        if slot is None:
            raise ValueError(f"column {name} is not known")
        return slot

    def has(self, name: str) -> bool:
        """Whether a column had this name before the statement, or is added by it."""
        added = [slot.column.name.lower() for slot, _ in self._places if slot.before is None]
        return name.lower() in added or any(slot.before == name.lower() for slot in self._old)

    # ------------------------------------------------------------ columns

    def add(self, definition: ColumnDefinition) -> None:
        """Add a column: at the end, first, or behind another."""
        slot = _Slot(self._settled(definition), None)
        self._places.append((slot, definition.place))
        if definition.primary:
            self._new_key = [slot.column.name]
        if definition.ends_period:
            self.period_end = slot.column.name

    def replace(self, old: str, definition: ColumnDefinition) -> None:
        """CHANGE and MODIFY: give a column another definition, and perhaps another name and place."""
        slot = self._before(old)
        slot.column = self._settled(definition)._replace(nullable=slot.column.nullable)
        if definition.place is not None:
            self._slots.remove(slot)
            self._places.append((slot, definition.place))
        if definition.primary:
            self._new_key = [slot.column.name]

    def rename(self, old: str, new: str) -> None:
        """RENAME COLUMN."""
        slot = self._before(old)
        slot.column = slot.column._replace(name=new)

    def drop(self, name: str) -> None:
        """Take a column out, of the primary key too."""
        slot = self._before(name)
        self._slots.remove(slot)
        self._key = [one for one in self._key if one is not slot]

    def _settled(self, definition: ColumnDefinition) -> Column:
        return settled(definition, self.charset, convert=self._convert)

    def _convert_columns(self) -> None:
        for slot in self._slots:
            column = slot.column
            if is_text(column) and column.charset not in ("", self._convert):
                wide = column.charset in WIDTHS or self._convert in WIDTHS
                if column.members and (wide or not "".join(column.members).isascii()):
                    raise ValueError("CONVERT TO of a column whose members are not the same in both: servers garble them")
                bare = ColumnDefinition(column, False, None, members=column.members)
                slot.column = settled(bare, "", convert=self._convert)

    # ------------------------------------------------------------ the table

    def set_key(self, names: list[str]) -> None:
        """PRIMARY KEY (...), by the names that columns have in the end."""
        self._new_key = names

    def drop_key(self) -> None:
        """DROP PRIMARY KEY: what was before the statement."""
        self._key = []

    def version(self) -> None:
        """ADD SYSTEM VERSIONING: two columns that no SELECT * shows, unless the table names some of its own."""
        self._versioned = True

    def unversion(self) -> None:
        """DROP SYSTEM VERSIONING."""
        self._versioned = False
        if self._was_versioned:
            for column in _ROW_PERIOD:
                self.drop(column.name)
        self.period_end = ""

    @property
    def table(self) -> Table:
        """The table as it is after the statement."""
        slots, key = list(self._slots), list(self._key)
        implicit = self._versioned and not self.period_end
        shown = len(slots) - 2 * (implicit and self._was_versioned)
        for slot, place in self._places:
            at = shown if place is None else 0 if place == "" else slots.index(_called(slots, place)) + 1
            slots.insert(at, slot)
            shown += 1
        if implicit and not self._was_versioned:
            slots += [_Slot(column, None) for column in _ROW_PERIOD]
        if self._new_key is not None:
            key = [_called(slots, name) for name in self._new_key]
        if key and (implicit or self.period_end):  # the end of the row's period belongs to the primary key
            end = _called(slots, self.period_end or "row_end")
            key += [end] if end not in key else []
        columns = tuple([slot.column for slot in slots])
        return Table(columns, tuple([slot.column.name for slot in key]), self.charset, implicit, self.period_end)


def _called(slots: list[_Slot], name: str) -> _Slot:
    for slot in slots:
        if slot.column.name.lower() == name.lower():
            return slot
    raise ValueError(f"column {name} is not known")
