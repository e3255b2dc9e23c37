"""A table while a DDL changes it.

The server takes the column names in one ALTER as they were before it, so that two columns can change names with each other.
A column here is a slot that keeps its old name; the primary key and the periods are made of slots, so that they follow every renaming.

Nor does the order of an ALTER's parts count: first columns go and change where they are, then come those that are new or
get another place, in the order written, and at last the primary key, by the new names. `table` does what has to wait.
"""

from __future__ import annotations

from typing import NamedTuple

from shmstore.event import Column
from shmstore.sql.charsets import WIDTHS
from shmstore.sql.columns import ColumnDefinition, as_wide, converted, is_text, settled, wide_text
from shmstore.sql.names import folded, same

__all__ = ["ROW_ID", "Draft", "Table"]

# MariaDB's WITH SYSTEM VERSIONING: two columns that no SELECT * shows, behind the others.
_ROW_PERIOD = (Column("row_start", "timestamp", nullable=False, scale=6), Column("row_end", "timestamp", nullable=False, scale=6))
# Character sets in which ASCII's backslash, or other signs of it, are other characters.
_OTHER_SIGNS = frozenset(("sjis", "ujis", "cp932", "eucjpms", "swe7", "armscii8"))
# MySQL's name for the key that sql_generate_invisible_primary_key adds. While it is invisible and the key, no column comes before it.
ROW_ID = "my_row_id"


class Table(NamedTuple):
    """A table's columns (character sets filled in), the names of its primary key, its default character set."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    charset: str = ""
    versioned: bool = False  # has the implicit row_start and row_end behind its columns
    period_end: str = ""  # of a system-versioned table that names the columns of its rows' period: the one that ends it
    period: tuple[str, ...] = ()  # of an application: its name, the columns that begin and end it
    row_id: str = ""  # whether MySQL's my_row_id, an AUTO_INCREMENT, is "visible" or "invisible"; empty where there is none
    hidden: int | None = None  # columns behind these that only the log shows (`hidden_columns`); None: not known how many

    @property
    def generated_key(self) -> bool:
        """Whether the primary key is one that MySQL generated."""
        first = self.columns[0].name if self.columns else ""
        return self.row_id == "invisible" and first.lower() == ROW_ID and self.key == (first,)


class _Slot:
    __slots__ = ("before", "column")

    def __init__(self, column: Column, before: str | None) -> None:
        self.column = column
        self.before = before  # the name before the statement, in lower case; None: it is new


class Draft:
    """Changes a table step by step; `table` is the result. Raises ValueError for a column that is not there.

    `charset` and `convert` (CONVERT TO) hold for the whole statement: they are given before its columns. `keeps_width`: of MySQL, where
    a text that CONVERT TO converts gets the width of the column that it was, whatever the statement gives it, unless that is the widest.
    """

    def __init__(self, table: Table, *, charset: str = "", convert: str = "", keeps_width: bool = False) -> None:
        self._slots = [_Slot(column, folded(column.name)) for column in table.columns]
        self._old = list(self._slots)
        self._columns = table.columns
        self._places: list[tuple[_Slot, str | None]] = []  # of what is new or moves
        self._given: list[str] = []  # names of columns that the statement defines
        self._had_key = bool(table.key)
        self._key = [_called(self._slots, name) for name in table.key]
        self._new_key: list[str] | None = None
        self._versioned = self._was_versioned = table.versioned
        self._generated = self._slots[0] if table.generated_key else None
        self._row_id = table.row_id
        self._hidden = table.hidden
        self._period_name = "".join(table.period[:1])
        self._period = [_called(self._slots, name) for name in table.period[1:]]
        self._named: list[_Slot] = []  # columns to which CHANGE gives another name
        self._changed: list[_Slot] = []  # columns of CHANGE, MODIFY and RENAME COLUMN
        self._new_period: tuple[str, ...] = ()
        self._convert = convert
        self._keeps_width = keeps_width
        self.charset = charset or convert or table.charset  # MariaDB takes both: the one for later columns, the other for these
        self._end = _called(self._slots, table.period_end) if table.period_end else None
        self._old_end = next((slot for slot in self._slots if slot.before == "row_end"), None) if table.versioned else self._end
        if convert:
            self._convert_columns()

    def _before(self, name: str) -> _Slot:
        """The column of this name before the statement."""
        slot = next((slot for slot in self._old if slot.before == folded(name)), None)
        if slot is None:
            raise ValueError(f"column {name} is not known")
        return slot

    def _changing(self, name: str) -> _Slot:
        """A column that now gets its new definition or name.

        No server changes one twice, but MariaDB takes the second CHANGE for that of a column which the statement adds, if both have the
        same name.
        """
        slot = self._before(name)
        if slot in self._changed:
            raise ValueError(f"column {name} is changed twice")
        self._changed.append(slot)
        return slot

    def had(self, name: str) -> bool:
        """Whether a column had this name before the statement: what IF EXISTS asks."""
        return any(slot.before == folded(name) for slot in self._old)

    def has(self, name: str) -> bool:
        """Whether a column had this name before the statement, or got it in an earlier part: what IF NOT EXISTS asks."""
        return self.had(name) or any(same(given, name) for given in self._given)

    @property
    def has_key(self) -> bool:
        """Whether there was a primary key before the statement, or an earlier part has given one."""
        return self._had_key or self._new_key is not None

    @property
    def has_period(self) -> bool:
        """Whether there was an application's period before the statement, or an earlier part has given one."""
        return bool(self._period or self._new_period)

    # ------------------------------------------------------------ columns

    def add(self, definition: ColumnDefinition) -> None:
        """Add a column: at the end, first, or behind another."""
        slot = _Slot(self._settled(definition), None)
        self._places.append((slot, definition.place))
        self._defined(slot, definition)

    def replace(self, old: str, definition: ColumnDefinition) -> None:
        """CHANGE and MODIFY: give a column another definition, and perhaps another name and place."""
        slot = self._changing(old)
        wide = definition.length is None and definition.column.type.endswith(("text", "blob"))
        if wide and not definition.column.type.startswith("long") and self._convert and self._keeps_width:
            definition = self._of_old_width(slot, definition)
        slot.column = self._settled(definition)
        if not same(old, slot.column.name):
            self._named.append(slot)
        if definition.place is not None:
            if slot not in self._slots:
                raise ValueError("a column that is dropped gets a place")
            self._slots.remove(slot)
            self._places.append((slot, definition.place))
        self._defined(slot, definition)

    def _defined(self, slot: _Slot, definition: ColumnDefinition) -> None:
        self._given.append(slot.column.name)
        if definition.primary:
            self._new_key = [slot.column.name]
        if definition.ends_period:
            self._end = slot
        if slot.column.name.lower() == ROW_ID:
            counts = definition.counts and slot.column.type == "bigint" and slot.column.unsigned
            self._row_id = "" if not counts else "invisible" if definition.invisible else "visible"

    def _of_old_width(self, slot: _Slot, definition: ColumnDefinition) -> ColumnDefinition:
        before, column = self._columns[self._old.index(slot)], definition.column
        kind = column.type[-4:]
        wide = as_wide(before, kind, "" if kind == "blob" or "binary" in (column.charset, self._convert) else self._convert)
        return definition._replace(column=wide_text(column, wide, column.charset))

    def show(self, name: str, *, visible: bool) -> None:
        """ALTER COLUMN ... SET VISIBLE or INVISIBLE."""
        if self._before(name).before == ROW_ID and self._row_id:
            self._row_id = "visible" if visible else "invisible"

    def rename(self, old: str, new: str) -> None:
        """RENAME COLUMN."""
        slot = self._changing(old)
        slot.column = slot.column._replace(name=new)

    def drop(self, name: str) -> None:
        """Take a column out."""
        slot = self._before(name)
        if slot not in self._slots:
            return  # DROP a, DROP IF EXISTS a
        self._slots.remove(slot)
        if (
            slot is self._end
        ):  # with the column that begins the period: without DROP SYSTEM VERSIONING the table gets two that no SELECT * shows
            self._end = None
            self._versioned = True

    def _settled(self, definition: ColumnDefinition) -> Column:
        # What names a collation alone, of no character set, is of the table's also where the statement converts.
        return settled(definition, self.charset, convert="" if definition.collates else self._convert)

    def _convert_columns(self) -> None:
        for slot in self._slots:
            column = slot.column
            if is_text(column) and column.charset not in ("", self._convert):
                charsets, members = {column.charset, self._convert}, "".join(column.members)
                unlike = not charsets.isdisjoint(WIDTHS) or not (members.isalnum() or charsets.isdisjoint(_OTHER_SIGNS))
                if members and (unlike or not members.isascii()):
                    raise ValueError("CONVERT TO of a column whose members are not the same in both: servers garble them")
                slot.column = converted(column, self._convert, keeps_width=self._keeps_width)

    # ------------------------------------------------------------ the table

    def set_key(self, names: list[str]) -> None:
        """PRIMARY KEY (...), by the names that columns, or with WITHOUT OVERLAPS a period, have in the end."""
        self._new_key = names

    def drop_key(self) -> None:
        """DROP PRIMARY KEY: what was before the statement."""
        self._key = []

    def set_period(self, name: str, begin: str, end: str) -> None:
        """PERIOD FOR name (begin, end), of an application."""
        self._period_name, self._new_period = name, (begin, end)

    def drop_period(self) -> None:
        """DROP PERIOD FOR name."""
        self._period = []

    def version(self) -> None:
        """ADD SYSTEM VERSIONING: two columns that no SELECT * shows, unless the table names some of its own."""
        self._versioned = True

    def end_period(self, name: str) -> None:
        """The column that ends the period of the table's rows."""
        self._end = _called(self._slots, name)

    def unversion(self) -> None:
        """DROP SYSTEM VERSIONING."""
        if self._versioned and self._was_versioned:
            for column in _ROW_PERIOD:
                self.drop(column.name)
        self._versioned = False
        self._end = None

    @property
    def table(self) -> Table:
        """The table as it is after the statement."""
        slots = list(self._slots)
        implicit = self._versioned and self._end is None
        shown = len(slots) - 2 * (implicit and self._was_versioned)
        for slot, place in self._places:
            at = shown if place is None else 0 if place == "" else slots.index(_called(slots, place)) + 1
            slots.insert(at, slot)
            shown += 1
        period = self._period_after(slots)
        key = self._kept_key(slots, period)
        if implicit and not self._was_versioned:
            slots += [_Slot(column, None) for column in _ROW_PERIOD]
        if self._generated in slots:
            slots.remove(self._generated)
            slots.insert(0, self._generated)
        for slot in period:
            slot.column = slot.column._replace(nullable=False)
        if self._new_key is not None:
            key = self._named_key(slots, period)
        end = _called(slots, "row_end") if implicit else self._end
        if key and end is not None and end not in key:  # the end of the row's period belongs to the primary key
            key.insert(len(key) - 2 * (_without_overlaps(key, period) and not implicit), end)
        if implicit and key == [end]:  # one without a name is none alone
            key = []
        for slot in key:  # permanently: it stays so when the key goes
            slot.column = slot.column._replace(nullable=False)
        named = [slot.column.name for slot in slots]
        columns = tuple([slot.column for slot in slots])
        period_end = self._end.column.name if self._end is not None else ""
        row_id = self._row_id if any(name.lower() == ROW_ID for name in named) else ""
        names = (self._period_name, *[slot.column.name for slot in period]) if period else ()
        return Table(
            columns, tuple([slot.column.name for slot in key]), self.charset, implicit, period_end, names, row_id, self._hidden
        )

    def _period_after(self, slots: list[_Slot]) -> list[_Slot]:
        """The columns of the application's period: it follows RENAME COLUMN, and takes the column of the old name where CHANGE gave another."""
        if self._new_period:
            return [_called(slots, name) for name in self._new_period]
        return [_called(slots, slot.before or "") if slot in self._named else slot for slot in self._period]

    def _kept_key(self, slots: list[_Slot], period: list[_Slot]) -> list[_Slot]:
        """The key that was before the statement, of the columns that are there now.

        The servers look for each of its columns from the first on, a new one by its name and another by the name that it had: a new one
        that comes first takes the place of a column that is gone, and of one that gets another name. One WITHOUT OVERLAPS ends with the
        period as it is now, and is gone where none of its own columns is left.
        """
        key = []
        own = [slot for slot in self._key if not (self._was_versioned and slot is self._old_end)]  # which stays the last
        overlapless = _without_overlaps(own, self._period)
        for old in own[:-2] if overlapless else self._key:
            here = [slot for slot in slots if slot is old or (slot.before is None and folded(slot.column.name) == old.before)]
            key += here[:1]
        if not overlapless:
            return key
        return [*key, *period[::-1]] if any(slot is not self._old_end for slot in key) else []

    def _named_key(self, slots: list[_Slot], period: list[_Slot]) -> list[_Slot]:
        key: list[_Slot] = []
        for name in self._new_key or []:
            if period and same(name, self._period_name):  # WITHOUT OVERLAPS: it ends the key, and its end comes first
                key += period[::-1]
            else:
                key.append(_called(slots, name))
        return key


def _without_overlaps(key: list[_Slot], period: list[_Slot]) -> bool:
    """Whether a primary key is one of an application's period: it ends with that, and its end comes first."""
    return bool(period) and len(key) > 2 and key[-2:] == period[::-1]


def _called(slots: list[_Slot], name: str) -> _Slot:
    for slot in slots:
        if same(slot.column.name, name):
            return slot
    raise ValueError(f"column {name} is not known")
