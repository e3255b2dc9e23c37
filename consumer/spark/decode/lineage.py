"""Which column of a table's rows is which planned one, while DDLs rename, drop and swap columns and tables.

A `Lineage` goes through the events in their order. It has, for each table that is known to have planned columns, the present name of each of
them: a renamed column keeps its place in the plan, a dropped one loses it. A table that comes into the place of another one, or is created again,
has its columns by name. Only names are followed here: what a column's values become is `decode.conversion`'s matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shmstore.encoding.codec import Header
from shmstore.event import Column, TableSchema
from shmstore.sql.names import folded, places_of
from shmstore.sql.tokens import SqlMode, Tokens, statement

Names = tuple[str | None, ...]  # of each planned column: what it is called in the rows; None: they do not have it
TableName = tuple[str, str]

# What DROP and ADD are about where that is no column, unless the word COLUMN comes first.
_NO_COLUMN = frozenset(
    (
        "PRIMARY",
        "INDEX",
        "KEY",
        "UNIQUE",
        "FULLTEXT",
        "SPATIAL",
        "VECTOR",
        "FOREIGN",
        "CONSTRAINT",
        "CHECK",
        "PARTITION",
        "PERIOD",
        "SYSTEM",
    )
)
_VERBS = frozenset(["ADD", "ALTER", "CHANGE", "CONVERT", "DROP", "MODIFY", "RENAME"])


class LineageState(NamedTuple):
    """Where a lineage is: the names by table, the statement since then that could not be read, and the columns of the last rows."""

    names: dict[TableName, Names]
    unread: str = ""
    columns: tuple[Column, ...] = ()


class Lineage:
    """Follows the columns of `plan`. `state` can be kept and set again."""

    def __init__(self, plan: TableSchema) -> None:
        self._plan = plan
        self._table = plan.database, plan.table
        self.state = LineageState({self._table: tuple(plan.names)})

    def take_ddl(self, header: Header) -> None:
        """Take in what a statement does to the names."""
        names, database = dict(self.state.names), header.props.get("default_database", header.database)
        try:
            mode = SqlMode.named(header.props.get("sql_mode", ""))
            _Renaming(names, statement(header.sql, mode), database).read()
        except ValueError:
            texts = folded(header.sql)
            if any(folded(table) in texts for _, table in (*names, self._table)):
                self.state = self.state._replace(unread=header.sql)
            return
        self.state = self.state._replace(names=names)

    def take_rows(self, table: TableSchema) -> Names | None:
        """Return the names that the planned columns have in rows of the query's table, which is now `table`.

        None where that is unknown: its columns changed, and a statement before them could not be read.
        """
        names, unread, columns = self.state
        if unread and columns != table.columns:
            return None
        known = list(names.get(self._table, self._plan.names))
        there = list(table.names)
        places: list[int | None] = places_in(known, there)
        free = [name for i, name in enumerate(there) if i not in places]
        for i, found in enumerate(places_of(self._plan.names, free) if free else ()):
            if places[i] is None and found is not None:  # dropped and added again, or of another table
                known[i] = free[found]
            elif places[i] is None:
                known[i] = None
        if not free:
            known = [None if place is None else name for name, place in zip(known, places, strict=True)]
        now = tuple(known)
        self.state = LineageState({**names, self._table: now}, "", table.columns)
        return now


def places_in(names: Sequence[str | None], there: Sequence[str]) -> list[int | None]:
    """Return where each of `names` is among the columns that are `there`; None where it is not, or is None."""
    found = iter(places_of([name for name in names if name is not None], there))
    return [None if name is None else next(found) for name in names]


class _Renaming:
    """One statement: changes `names` as it does."""

    def __init__(self, names: dict[TableName, Names], tokens: Tokens, database: str) -> None:
        self._names, self._tokens, self._database = names, tokens, database

    def read(self) -> None:
        """Read it. Raises ValueError where it cannot be read."""
        tokens = self._tokens
        verb = tokens.accept_one("ALTER", "RENAME", "DROP", "CREATE")
        if verb == "ALTER":
            while tokens.accept_one("ONLINE", "OFFLINE", "IGNORE"):
                pass
            if tokens.accept("TABLE"):
                self._alter()
        elif verb == "RENAME" and tokens.accept_one("TABLE", "TABLES"):
            tokens.if_exists()
            for part in map(Tokens, tokens.parts()):
                old = self._table(part)
                part.wait()
                if not part.accept("TO"):
                    raise ValueError("RENAME TABLE without TO")
                self._move(old, self._table(part))
        elif verb == "DROP" and tokens.accept_one("DATABASE", "SCHEMA"):
            tokens.if_exists()
            gone = tokens.name()
            for name in [name for name in self._names if name[0] in (gone, folded(gone))]:
                del self._names[name]
        elif verb == "DROP" and tokens.accept_one("TABLE", "TABLES"):
            tokens.if_exists()
            for part in map(Tokens, tokens.parts()):
                self._names.pop(self._table(part), None)
        elif verb == "CREATE":
            self._create()

    def _table(self, tokens: Tokens) -> TableName:
        """A table's name, as a server that stores names in lower case has it where only that one is known."""
        database, table = tokens.table_name(self._database)
        lower = folded(database), folded(table)
        return lower if (database, table) not in self._names and lower in self._names else (database, table)

    def _move(self, old: TableName, new: TableName) -> None:
        names = self._names.pop(old, None)
        self._names.pop(new, None)
        if names is not None:
            self._names[new] = names

    def _create(self) -> None:
        tokens = self._tokens
        tokens.accept("OR", "REPLACE")
        if not tokens.accept("TABLE") or tokens.if_exists():
            return
        name = self._table(tokens)
        self._names.pop(name, None)
        if tokens.accept("LIKE") or tokens.accept("(", "LIKE"):
            model = self._names.get(self._table(tokens))
            if model is not None:  # as a tool for online changes begins: the table gets the rows, and then the name, of its model
                self._names[name] = model

    def _alter(self) -> None:
        tokens = self._tokens
        tokens.if_exists()
        table, target = self._table(tokens), None
        tokens.wait()
        renamed: dict[str, str | None] = {}  # by the names before the statement, whatever the order of its parts
        ordering = False
        for part in map(Tokens, tokens.parts()):
            if ordering and part.peek() not in _VERBS:
                continue  # ORDER BY a, b
            ordering = part.peek() == "ORDER"
            verb = part.accept_one("RENAME", "CHANGE", "DROP")
            column = part.accept("COLUMN")
            if verb == "RENAME" and column:
                part.if_exists()
                old = part.name()
                if not part.accept("TO"):
                    raise ValueError("RENAME COLUMN without TO")
                renamed[folded(old)] = part.name()
            elif verb == "RENAME" and not part.accept_one("INDEX", "KEY"):
                part.accept_one("TO", "AS", "=")
                target = self._table(part)
            elif verb == "CHANGE":
                part.if_exists()
                old = part.name()
                renamed[folded(old)] = part.name()
            elif verb == "DROP" and (column or part.peek() not in _NO_COLUMN):
                part.if_exists()
                renamed[folded(part.name())] = None
        if table in self._names:
            names = self._names[table]
            self._names[table] = tuple([name if name is None else renamed.get(folded(name), name) for name in names])
        if target is not None and target != table:
            self._move(table, target)
