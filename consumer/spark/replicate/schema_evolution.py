"""Columns of a copy, brought to the columns of its source."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from shmstore.consumer.spark.ddl import Clause
from shmstore.consumer.spark.replicate.change_reduction import HISTORY_FIELDS, CannotFollow, target_field

_OURS = frozenset(field.name for field in HISTORY_FIELDS)


def alter(table: pa.Table, clauses: Sequence[Clause], name: str) -> pa.Table:
    """Return `table` with its columns altered. A clause that is done already changes nothing, so that replays are safe.

    Raises `CannotFollow` where values that are there do not fit a column's new type.
    """
    for clause in clauses:
        index = _index(table, clause.name)
        if clause.kind == "add" and index is None and clause.column is not None:
            field = target_field(clause.column)
            table = table.append_column(field, constant(clause.default, field, len(table), name))
        elif clause.kind == "drop" and index is not None:
            table = table.remove_column(index)
        elif clause.kind == "rename" and index is not None:
            table = table.rename_columns([clause.to if i == index else old for i, old in enumerate(table.column_names)])
        elif clause.kind == "modify" and index is not None and clause.column is not None:
            table = _cast(table, index, target_field(clause.column), name)
    return table


def conform(table: pa.Table, fields: Sequence[pa.Field], name: str) -> pa.Table:
    """Return `table` with the types of `fields`, the columns that rows now have. Raises `CannotFollow` for other columns."""
    there = [column for column in table.column_names if column not in _OURS]
    wanted = [field.name for field in fields if field.name not in _OURS]
    if sorted(map(str.lower, there)) != sorted(map(str.lower, wanted)):
        raise CannotFollow(
            f"{name} has columns {', '.join(wanted)} now, its copy has {', '.join(there)}, and no DDL explains it: "
            "take a new snapshot of the table into a new target"
        )
    for field in fields:
        index = _index(table, field.name)
        if index is not None and table.schema.field(index) != field:
            table = _cast(table, index, field, name)
    return table


def _index(table: pa.Table, name: str) -> int | None:
    """Column names are equal in any case of letters, as in MySQL."""
    return next((i for i, column in enumerate(table.column_names) if column.lower() == name.lower()), None)


def _cast(table: pa.Table, index: int, field: pa.Field, name: str) -> pa.Table:
    if table.schema.field(index).equals(field):
        return table
    try:
        return table.set_column(index, field, table.column(index).cast(field.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CannotFollow(
            f"column {field.name} of {name} became {field.type}, but values in its copy do not fit: {error}; take a new snapshot"
        ) from error


def constant(default: str | None, field: pa.Field, count: int, name: str) -> pa.Array:
    """Return `count` times the value that rows of table `name` get for a column added with `default`. Raises `CannotFollow`."""
    if default is None:
        return pa.nulls(count, field.type)
    try:
        value = pa.scalar(default.encode(), field.type) if pa.types.is_binary(field.type) else pa.scalar(default).cast(field.type)
    except pa.ArrowInvalid as error:
        raise CannotFollow(
            f"column {field.name} of {name} was added with default {default!r}, which is not a {field.type}: take a new snapshot"
        ) from error
    return pa.repeat(value, count)
