"""The definitions of the tables, kept in the store's home for readers that come before a table's first row.

They are followed as the schema history follows them, from the DDLs of the binlog in their order. Where a schema history is kept, it is
that one. Where the binlog itself names the columns there is none, and one in memory takes its place: it begins with what was written
down up to where the stream continues; at first with the server's tables as they are, and from there on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shmstore import Position, SchemaUnknown, TableSchema
from shmstore.column_type import sized
from shmstore.encoding.codec import decode_schema, encode_schema
from shmstore.home.definitions import Definition, DefinitionsFile
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.schema.merged import MergedTables
from shmstore.sql.catalog import TableName, Unreadable
from shmstore.sql.session import Session
from shmstore.sql.table_change import Table


class PublishedTables:
    """Keeps `file` up to date with what passes `table_filter`."""

    def __init__(self, file: DefinitionsFile, table_filter: TableFilter, merged: MergedTables | None = None) -> None:
        self._file, self._filter, self._merged = file, table_filter, merged or MergedTables()
        self._history: SchemaHistory | None = None
        self._own = False  # the history is followed by no other process
        self._known: dict[TableName, Table | Unreadable] = {}

    def written(self, until: Position) -> Mapping[TableName, Table]:
        """Return the tables that were written down up to `until`, where the store ends."""
        found: dict[TableName, Table] = {}
        lines = self._file.read()
        targets = {self._merged.renaming.target_of(*one.name) for one in lines}
        for one in lines:
            if not one.reached_by(until) or (one.name in targets and self._merged.renaming.target_of(*one.name) is None):
                continue
            found.pop(one.name, None)
            if one.schema is not None:
                columns = one.schema.columns
                found[one.name] = Table(columns, tuple([columns[i].name for i in one.schema.primary_key]))
        return found

    def begin(self, history: SchemaHistory, position: Position, *, own: bool) -> None:
        """Write down all tables as `history` has them at `position`; `own`: no other process follows it. Raises `StoreError`.

        A definition that is there already keeps the position from which it holds.
        """
        self._history, self._own = history, own
        self._known = dict(history.tables)
        lines = self._file.read()
        before = {one.name: one for one in lines}
        now = list(self._definitions(self._known, position))
        targets: list[Definition] = []
        if self._merged:
            targets = self._merged.begin(position, [one for one in lines if one.reached_by(position)], _defined(now))
        kept = [before.get(one.name) for one in now]
        still = [
            old is not None and old.schema == one.schema and old.reached_by(position) for one, old in zip(now, kept, strict=True)
        ]
        tables = [old if same and old is not None else one for one, old, same in zip(now, kept, still, strict=True)]
        self._file.replace((*tables, *targets))

    def begin_at(self, history: SchemaHistory | None, position: Position) -> None:
        """Write down the tables as they are where the stream begins; where that is not known, as the server has them now, from there on."""
        if history is None or history.first is None:  # no process is asked, or may: rows say how their table is defined
            if self._merged:
                raise SchemaUnknown(
                    "rename compares how tables are defined, and that is not known here: leave out schema_history = off, and GRANT SELECT on the tables"
                )
            self._history = None
            self._file.remove()
        else:
            self.begin(history, history.first if history.waiting else position, own=False)

    def begin_files(self, end: Position | None, position: Position) -> None:
        """The same of local binlog files, which tell of the tables that they create. `end`: where the store ends, if it has anything."""
        history = SchemaHistory()
        history.begin(position, self.written(end) if end is not None else {})
        self.begin(history, position, own=True)

    def follow(self, position: Position, database: str, sql: str, session: Session) -> None:
        """Take in a DDL that ends at `position`, after the schema history has. Raises `StoreError`."""
        history = self._history
        if history is None or (self._own and not history.follow(position, database, sql, session)):
            return
        tables = history.tables
        changed = {name: now for name, now in tables.items() if self._known.get(name) != now}
        gone = [name for name in self._known if name not in tables]
        self._known = dict(tables)
        lines = [*self._definitions(changed, position), *self._unknown(gone, position)]
        if self._merged:
            lines += self._merged.follow(position, {one.name: one.schema for one in lines}, sql, session.mode)
        if lines:
            self._file.append(lines)

    @property
    def names(self) -> list[TableName]:
        """The tables that are known, whatever the filter."""
        return list(self._known)

    def use(self, table_filter: TableFilter, position: Position) -> None:
        """From `position` on, keep what passes `table_filter`. Raises `StoreError`."""
        before = {one.name: one.schema for one in self._definitions(self._known, position)}
        self._filter = table_filter
        now = list(self._definitions(self._known, position))
        names = {one.name for one in now}
        changed = [one for one in now if one.name not in before or before[one.name] != one.schema]
        gone = [Definition(position.file, position.offset, *name, None) for name in before if name not in names]
        if self._merged:
            changed += self._merged.follow(position, {one.name: one.schema for one in (*changed, *gone)}, "")
        if self._history is not None and (changed or gone):
            self._file.append([*changed, *gone])

    def _definitions(self, tables: Mapping[TableName, Table | Unreadable], position: Position) -> Iterable[Definition]:
        for (database, table), now in tables.items():
            if self._filter.passes(database, table):
                yield Definition(position.file, position.offset, database, table, self._schema(database, table, now))

    def _unknown(self, names: Iterable[TableName], position: Position) -> Iterable[Definition]:
        return [Definition(position.file, position.offset, *name, None) for name in names if self._filter.passes(*name)]

    def _schema(self, database: str, table: str, now: Table | Unreadable) -> TableSchema | None:
        """The table as its events will have it: without columns that are left out, with masked ones as text."""
        if isinstance(now, Unreadable):
            return None
        names = [column.name for column in now.columns]
        key = tuple([names.index(name) for name in now.key])
        schema = TableSchema(
            database, table, tuple([sized(column)._replace(nullable=column.nullable is not False) for column in now.columns]), key
        )
        plan = self._filter.plan(schema, encode_schema(schema))
        return schema if plan.blob is None else decode_schema(plan.blob)


def _defined(lines: Iterable[Definition]) -> dict[TableName, TableSchema]:
    return {one.name: one.schema for one in lines if one.schema is not None}
