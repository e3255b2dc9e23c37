"""What a change of the filters means for the tables of a server: which come in, which leave, and of which other rows or columns pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shmstore import Column, TableSchema
from shmstore.encoding.codec import encode_schema
from shmstore.producer.filters.fit import ShownTables
from shmstore.producer.filters.renaming import Renaming
from shmstore.producer.filters.table_filter import TableFilter

Name = tuple[str, str]  # database, table


class TablesChanged(NamedTuple):
    """Tables by what becomes of them."""

    enter: tuple[Name, ...] = ()
    leave: tuple[Name, ...] = ()
    differ: tuple[Name, ...] = ()  # read before and after, with other rows or columns


def tables_changed(tables: ShownTables, before: TableFilter, after: TableFilter) -> TablesChanged:
    """Return what changes for the tables of a server. Raises what `tables` raises."""
    names = tables.names() or ()
    stay = [name for name in names if before.passes(*name) and after.passes(*name)]
    return TablesChanged(
        tuple([name for name in names if after.passes(*name) and not before.passes(*name)]),
        tuple([name for name in names if before.passes(*name) and not after.passes(*name)]),
        tuple(_differing(tables, stay, before, after)),
    )


def as_readers_see(tables: TablesChanged, renaming: Renaming) -> TablesChanged:
    """Return the same by the names that readers see: where a table comes or goes that is a part of another to them, that one differs."""
    parts = [name for names in tables for name in names if renaming.target_of(*name) is not None]
    whole = TablesChanged(*[tuple([name for name in names if name not in parts]) for names in tables])
    return whole._replace(differ=tuple(dict.fromkeys((*whole.differ, *[renaming.seen_as(*name) for name in parts]))))


def names_changed(names: Iterable[Name], before: TableFilter, after: TableFilter) -> TablesChanged:
    """The same of tables of which only the names are known."""
    return tables_changed(_Names(tuple(names)), before, after)


class _Names(NamedTuple):
    there: tuple[Name, ...]

    def names(self) -> Sequence[Name]:
        return self.there

    def columns(self, database: str) -> Mapping[str, Sequence[Column]]:
        return {}


def _differing(tables: ShownTables, names: Iterable[Name], before: TableFilter, after: TableFilter) -> Iterator[Name]:
    columns: dict[str, Mapping[str, Sequence[Column]]] = {}
    for database, table in names:
        if before.conditions_of(database, table) != after.conditions_of(database, table):
            yield database, table
        elif before.has_columns or after.has_columns:
            if database not in columns:
                columns[database] = tables.columns(database)
            schema = TableSchema(database, table, tuple(columns[database].get(table, ())))
            blob = encode_schema(schema)
            if before.plan(schema, blob) != after.plan(schema, blob):
                yield database, table


def entered_by_rename(tables: Sequence[Name], targets: Sequence[Name], table_filter: TableFilter) -> list[Name]:
    """Return the tables that a RENAME of `tables` to `targets`, pair by pair, brings in: they pass, under their old names they did not."""
    origin: dict[Name, Name] = {}
    for source, target in zip(tables, targets, strict=False):
        origin[target] = origin.pop(source, source)
    return [now for now, was in origin.items() if table_filter.passes(*now) and not table_filter.passes(*was)]
