"""Whether row filters fit the tables that a server has now, which is reported before the first row comes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from shmstore import Column, TableSchema, UnsupportedEvent
from shmstore.errors import did_you_mean
from shmstore.producer.conditions import bind
from shmstore.producer.connection.session import Session
from shmstore.producer.filter import TableFilter
from shmstore.producer.snapshot.tables import list_tables, may_select
from shmstore.sql.columns import column_of_type

__all__ = ["Unfit", "unfit_row_filters"]

_COLUMNS = (
    "SELECT table_name, column_name, column_type, character_set_name FROM information_schema.columns WHERE table_schema = %s "
    "ORDER BY table_name, ordinal_position"
)


class Unfit(NamedTuple):
    """A row filter that does not fit. `stops`: a row of the table stops the producer; else there is no such table."""

    problem: str
    stops: bool


def unfit_row_filters(session: Session, table_filter: TableFilter) -> Iterator[Unfit]:
    """Yield what does not fit; nothing where the account sees no tables. Raises `SourceError` where the server cannot be asked."""
    if not table_filter.row_filters or not may_select(session):
        return
    there = list_tables(session, lambda database, table: True)
    columns: dict[str, dict[str, list[Column]]] = {}
    for text, patterns, node in table_filter.row_filters:
        named = [each for each in there if patterns.match(".".join(each))]
        read = [each for each in named if table_filter.passes(*each)]
        if not read:
            near = did_you_mean(patterns.wanted[0], map(".".join, there))
            why = f"the other filters leave out {'.'.join(named[0])}" if named else f"the server shows none of that name{near}"
            yield Unfit(f"row filter {text!r} is for no table that is read: {why}", stops=False)
        for database, table in read:
            if database not in columns:
                columns[database] = _columns(session, database)
            try:
                bind(node, TableSchema(database, table, tuple(columns[database].get(table, ()))))
            except UnsupportedEvent as error:
                yield Unfit(str(error), stops=True)


def _columns(session: Session, database: str) -> dict[str, list[Column]]:
    found: dict[str, list[Column]] = defaultdict(list)
    for table, name, type_, charset in session.query(_COLUMNS, (database,)):
        found[str(table)].append(column_of_type(str(name), str(type_), str(charset or "")))
    return found
