"""A table as a table map with names describes it, in the form in which DDLs are followed."""

from __future__ import annotations

from shmstore.event import Column, TableSchema
from shmstore.sql.table_change import Table

__all__ = ["seen"]

_LOOK_ALIKE = {("uuid", "binary"), ("inet6", "binary"), ("inet4", "binary"), ("vector", "varbinary")}  # defined, in the log
_ROW_PERIOD = {"row_start", "row_end"}


def seen(known: Table, schema: TableSchema, hidden: int) -> Table:
    """Return `known` where it is as the log has the table; else the table of the log.

    What a table map does not say stays as it was known: the character set of new columns, what a column is called in a period.
    """
    names = [column.name for column in schema.columns]
    key = () if schema.unique_key else tuple([names[i] for i in schema.primary_key])
    columns = known.columns
    same = len(columns) == len(names) and all(map(_alike, columns, schema.columns))
    if same and known.key == key and known.hidden in (hidden, None):
        return known
    versioned = not known.period_end and {*(names if known.versioned else names[-2:])} >= _ROW_PERIOD
    return known._replace(columns=columns if same else schema.columns, key=key, versioned=versioned, hidden=hidden)


def _alike(known: Column, logged: Column) -> bool:
    if known.name != logged.name or known.nullable not in (None, logged.nullable):
        return False
    if (known.type, logged.type) in _LOOK_ALIKE:
        return True
    return _essence(known) == _essence(logged)


def _essence(column: Column) -> tuple[object, ...]:
    return column.type, column.unsigned, column.scale, column.charset, column.members
