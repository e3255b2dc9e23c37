"""Whether row filters fit the tables that a server has now, which is reported before the first row comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from shmstore import Column, TableSchema, UnsupportedEvent
from shmstore.errors import did_you_mean
from shmstore.producer.filters.condition import bind
from shmstore.producer.filters.table_filter import TableFilter

__all__ = ["ShownTables", "Unfit", "unfit_row_filters"]


class ShownTables(Protocol):
    """The tables that an account sees on a server."""

    def names(self) -> Sequence[tuple[str, str]] | None:
        """Return (database, table) of each; None where the account may read none at all."""

    def columns(self, database: str) -> Mapping[str, Sequence[Column]]:
        """Return the columns of the tables of `database`, by table."""


class Unfit(NamedTuple):
    """A row filter that does not fit. `stops`: a row of the table stops the producer; else there is no such table."""

    problem: str
    stops: bool


def unfit_row_filters(tables: ShownTables, table_filter: TableFilter) -> Iterator[Unfit]:
    """Yield what does not fit; nothing where the account sees no tables. Raises what `tables` raises."""
    if not table_filter.row_filters or (there := tables.names()) is None:
        return
    columns: dict[str, Mapping[str, Sequence[Column]]] = {}
    for text, patterns, node in table_filter.row_filters:
        named = [each for each in there if patterns.match(".".join(each))]
        read = [each for each in named if table_filter.passes(*each)]
        if not read:
            near = did_you_mean(patterns.wanted[0], map(".".join, there))
            why = f"the other filters leave out {'.'.join(named[0])}" if named else f"the server shows none of that name{near}"
            yield Unfit(f"row filter {text!r} is for no table that is read: {why}", stops=False)
        for database, table in read:
            if database not in columns:
                columns[database] = tables.columns(database)
            try:
                bind(node, TableSchema(database, table, tuple(columns[database].get(table, ()))))
            except UnsupportedEvent as error:
                yield Unfit(str(error), stops=True)
