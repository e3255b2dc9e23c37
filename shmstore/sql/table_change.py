"""A table while a DDL changes it.

The server takes the column names in one ALTER as they were before it, so that two columns can change names with each other.
A column here is a slot that keeps its old name; the primary key and the periods are made of slots, so that they follow every renaming.

Nor does the order of an ALTER's parts count: first columns go and change where they are, then come those that are new or
get another place, in the order written, and at last the primary key, by the new names. `table` does what has to wait.

A system-versioned table of MariaDB has two columns for the period of its rows. Without names of their own no SELECT * shows them, and an
ALTER puts them behind all others. Columns that have names lose them with DROP COLUMN, and stay where they are until the next ALTER.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from shmstore.event import Column
from shmstore.sql.charsets import WIDTHS
from shmstore.sql.columns import ColumnDefinition, as_wide, converted, is_text, settled, wide_text
from shmstore.sql.names import folded, same

__all__ = ["ROW_ID", "Draft", "Table"]

# MariaDB's WITH SYSTEM VERSIONING: two columns that no SELECT * shows, behind the others.
_ROW_PERIOD = (Column("row_start", "timestamp", nullable=False, scale=6), Column("row_end", "timestamp", nullable=False, scale=6))
_IMPLICIT = tuple([column.name for column in _ROW_PERIOD])
# Character sets in which ASCII's backslash, or other signs of it, are other characters.
_OTHER_SIGNS = frozenset(("sjis", "ujis", "cp932", "eucjpms", "swe7", "armscii8"))
# MySQL's name for the key that sql_generate_invisible_primary_key adds. While it is invisible and the key, no column comes before it.
ROW_ID = "my_row_id"


class Table(NamedTuple):
    """A table's columns (character sets filled in), the names of its primary key, its default character set."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    charset: str = ""
    versioned: bool = False  # has the implicit row_start and row_end, as a rule behind its columns
    period_end: str = ""  # of a system-versioned table that names the columns of its rows' period: the one that ends it
    period: tuple[str, ...] = ()  # of an application: its name, the columns that begin and end it
    row_id: str = ""  # whether MySQL's my_row_id, an AUTO_INCREMENT, is "visible" or "invisible"; empty where there is none
    hidden: int | None = None  # columns behind these that only the log shows (`hidden_columns`); None: not known how many
    period_begin: str = ""  # the column that begins the period of a row which `period_end` ends
    overlapless: bool = (
        False  # the primary key is one WITHOUT OVERLAPS: it ends with the columns of `period`, the end of it first
    )

    @property
    def shown(self) -> tuple[Column, ...]:
        """The columns that a SELECT * shows, as far as system versioning decides that."""
        return tuple([column for column in self.columns if column.name not in _IMPLICIT]) if self.versioned else self.columns

    @property
    def scattered(self) -> bool:
        """Whether the implicit columns are not the last: the next ALTER that makes the table again puts them there."""
        return self.versioned and {column.name for column in self.columns[-2:]} != {*_IMPLICIT}

    @property
    def generated_key(self) -> bool:
        """Whether the primary key is one that MySQL generated."""
        first = self.columns[0].name if self.columns else ""
        return self.row_id == "invisible" and first.lower() == ROW_ID and self.key == (first,)


class _Slot:
    __slots__ = ("before", "column", "instead")

    def __init__(self, column: Column, before: str | None, instead: str = "") -> None:
        self.column = column
        self.before = before  # the name before the statement, in lower case; None: it is new
        self.instead = instead  # of a new one: the name of the column for which it stands

    @property
    def key_name(self) -> str:
        """The name by which a key that was before the statement finds it."""
        return folded(self.column.name) if self.before is None and not self.instead else self.before or self.instead


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
        self._key_overlapless = table.overlapless
        self._versioned = bool(table.versioned or table.period_end)
        self._implicit = table.versioned  # the columns of the rows' period have no names of their own
        begin, end = _IMPLICIT if table.versioned else (table.period_begin, table.period_end)
        self._begin = _called(self._slots, begin) if begin else None
        self._end = _called(self._slots, end) if end else None
        self._last = [slot for slot in self._slots if table.versioned and slot in (self._begin, self._end)]
        self._new_begin: _Slot | None = None
        self._new_end: _Slot | None = None
        self._unnamed: list[_Slot] = []  # columns of the rows' period that DROP COLUMN names
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
        if convert:
            self._convert_columns()

    def _before(self, name: str) -> _Slot:
        """The column of this name before the statement."""
        slot = next((slot for slot in self._old if slot.before == folded(name)), None)
        if slot is None:
            raise ValueError(f"column {name} is not known")
        return slot

    def _changing(self, name: str) -> _Slot:
        """A column that now gets its new definition or name: no server changes one twice."""
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
        self._put(_Slot(self._settled(definition), None), definition)

    def _put(self, slot: _Slot, definition: ColumnDefinition) -> None:
        self._places.append((slot, definition.place))
        self._defined(slot, definition)

    def replace(self, old: str, definition: ColumnDefinition) -> None:
        """CHANGE and MODIFY: give a column another definition, and perhaps another name and place.

        A MariaDB takes that of a column which is dropped, or which another part changes, for that of a new one of the same name.
        """
        name = definition.column.name
        others = [(slot, place) for slot, place in self._places if slot.before is not None or not same(slot.column.name, name)]
        if len(others) < len(self._places):
            self._places = others
            self._put(_Slot(self._settled(definition), None, folded(old)), definition)
            return
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
        if definition.begins_period:
            self._new_begin = slot
        if definition.ends_period:
            self._new_end = slot
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
        if slot not in (self._begin, self._end):
            self._slots.remove(slot)
        elif slot not in self._unnamed:
            self._unnamed.append(slot)

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

    def unversion(self) -> None:
        """DROP SYSTEM VERSIONING."""
        self._versioned = False

    @cached_property
    def table(self) -> Table:
        """The table as it is after the statement: asked once all its parts are applied."""
        slots = list(self._slots)
        self._settle_versioning(slots)
        last = self._last if self._implicit else []
        for slot in last:
            slots.remove(slot)
        for slot, place in self._places:
            at = len(slots) if place is None else 0 if place == "" else slots.index(_called(slots, place)) + 1
            slots.insert(at, slot)
        slots += last
        period = self._period_after(slots)
        if self._new_key is not None:
            key = self._named_key(slots, period)
        else:
            key = self._kept_key(slots, period)
        if self._versioned and self._end is None:
            self._begin, self._end = [_Slot(column, None) for column in _ROW_PERIOD]
            self._implicit = True
            slots += [self._begin, self._end]
        if self._generated in slots:
            slots.remove(self._generated)
            slots.insert(0, self._generated)
        for slot in period:
            slot.column = slot.column._replace(nullable=False)
        if key and self._end is not None and self._begin not in key and self._end not in key:
            key.insert(len(key) - 2 * self._key_overlapless, self._end)  # it belongs to the row's key
        for slot in key:  # permanently: it stays so when the key goes
            slot.column = slot.column._replace(nullable=False)
        return self._table(slots, key, period)

    def _settle_versioning(self, slots: list[_Slot]) -> None:
        """Take out the columns of the rows' period that go, and their names where only those go; see which columns are new."""
        if not self._versioned:
            for slot in self._last or self._unnamed:
                slots.remove(slot)
            self._begin = self._end = None
            self._last, self._implicit = [], False
        elif self._last and self._new_end is not None:  # from MariaDB 11.7 on they become those that were there, where those are
            for there, new in ((self._begin, self._new_begin), (self._end, self._new_end)):
                if there is None or new is None:
                    raise ValueError("a period of rows with one column")
                there.column = new.column
                self._places = [(one, place) for one, place in self._places if one is not new]
            self._implicit = all(slot.column.name.lower() in _IMPLICIT for slot in self._last)  # the same names: nothing changes
        elif self._new_end is not None:
            self._begin, self._end = self._new_begin, self._new_end
        elif self._unnamed:
            if self._begin is None:
                raise ValueError("it is not known which column begins the period of its rows")
            for there, column in zip((self._begin, self._end), _ROW_PERIOD, strict=True):
                assert there is not None
                there.column = there.column._replace(name=column.name)
            self._implicit = True

    def _table(self, slots: list[_Slot], key: list[_Slot], period: list[_Slot]) -> Table:
        named = [slot.column.name if slot is not None and not self._implicit else "" for slot in (self._begin, self._end)]
        return Table(
            tuple([slot.column for slot in slots]),
            tuple([slot.column.name for slot in key]),
            self.charset,
            versioned=self._implicit,
            period_begin=named[0],
            period_end=named[1],
            period=(self._period_name, *[slot.column.name for slot in period]) if period else (),
            row_id=self._row_id if any(slot.column.name.lower() == ROW_ID for slot in slots) else "",
            hidden=self._hidden,
            overlapless=self._key_overlapless and bool(key),
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
        period as it is now. It is gone where none of its own columns is left but one of the rows' period that has no name.
        """
        key = []
        for old in self._key[:-2] if self._key_overlapless else self._key:
            key += [slot for slot in slots if slot.key_name == old.before][:1]
        if self._implicit and {*key} <= {self._begin, self._end}:
            return []
        return [*key, *period[::-1]] if key and self._key_overlapless else key

    def _named_key(self, slots: list[_Slot], period: list[_Slot]) -> list[_Slot]:
        key: list[_Slot] = []
        self._key_overlapless = False
        for name in self._new_key or []:
            if period and same(name, self._period_name):  # WITHOUT OVERLAPS: it ends the key, and its end comes first
                key += period[::-1]
                self._key_overlapless = True
            else:
                key.append(_called(slots, name))
        return key


def _called(slots: list[_Slot], name: str) -> _Slot:
    for slot in slots:
        if same(slot.column.name, name):
            return slot
    raise ValueError(f"column {name} is not known")
