"""Columns of a copy in a file, changed as those of its table were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa

from shmstore.consumer.copies.change_reduction import CannotFollow, CopyDiffers, Merge, Versions
from shmstore.consumer.copies.changed_rows import target_field
from shmstore.consumer.copies.ddl import Change
from shmstore.event import Column
from shmstore.sql.names import folded, index_of, places_of


def alter(table: pa.Table, changes: Sequence[Change], name: str) -> pa.Table:
    """Return `table` with its columns changed: no column is named twice, so in any order. What is done already changes nothing.

    Raises `CopyDiffers` where values that are there do not fit a column's new type.
    """
    for change in changes:
        index = _index(table, change.name)
        if not change.name:
            if _index(table, change.to) is None and change.column is not None:
                field = target_field(change.column)
                table = table.append_column(field, constant(change.default, field, len(table)))
        elif index is not None and not change.to:
            table = table.remove_column(index)
        elif index is not None:
            if change.column is not None:
                table = _cast(table, index, target_field(change.column._replace(name=change.to)), name)
            table = table.rename_columns([change.to if i == index else old for i, old in enumerate(table.column_names)])
    return table


def require_kind(copy: str, name: str, *, keeps: bool, wanted: bool) -> None:
    """Raise `CannotFollow` where the copy `copy` of table `name`, which `keeps` a history or not, is not as `wanted`."""
    if keeps != wanted:
        kept, more = ("the", ", or history=True") if keeps else ("no", "")
        raise CannotFollow(f"the copy {copy} of {name} keeps {kept} history of its rows: choose another target{more}")


Rows = TypeVar("Rows", bound=Merge | Versions)


def spelled(step: Rows, names: Sequence[str]) -> Rows:
    """Return `step` with the columns of its rows called as the copy, with columns `names`, calls them."""
    rows = step.upserts if isinstance(step, Merge) else step.versions
    places = places_of(rows.column_names, names)
    called = {name: names[i] for name, i in zip(rows.column_names, places, strict=True) if i is not None and names[i] != name}
    if not called:
        return step

    def renamed(table: pa.Table) -> pa.Table:
        return table.rename_columns([called.get(name, name) for name in table.column_names])

    keys = tuple([called.get(key, key) for key in step.keys])
    columns = tuple([column._replace(name=called.get(column.name, column.name)) for column in step.schema.columns])
    schema = step.schema._replace(columns=columns)
    if isinstance(step, Merge):
        updates = None if step.updates is None else renamed(step.updates)
        return step._replace(
            keys=keys, upserts=renamed(step.upserts), deletes=renamed(step.deletes), schema=schema, updates=updates
        )
    return step._replace(keys=keys, ends=renamed(step.ends), versions=renamed(step.versions), schema=schema)


def same_columns(schema: pa.Schema, fields: Sequence[pa.Field]) -> bool:
    """Whether a copy's columns are `fields`, in any order."""
    return {column.name: column.type for column in schema} == {field.name: field.type for field in fields}


def difference(schema: pa.Schema, fields: Sequence[pa.Field], name: str) -> str:
    """Return how the columns of the rows of table `name`, `fields`, differ from those of its copy, `schema`."""
    there = {column.name: column.type for column in schema}
    wanted = {field.name: field.type for field in fields}
    different = [f"{column} ({type_})" for column, type_ in wanted.items() if there.get(column) != type_]
    different += [f"no {column}" for column in there if column not in wanted]
    return no_ddl_explains(name, different)


def no_ddl_explains(name: str, different: Sequence[str]) -> str:
    """Return what is wrong where the columns of rows of table `name` and of its copy are `different`."""
    return f"rows of {name} have columns that its copy does not have so, and no DDL explains it: {', '.join(different)}"


def _index(table: pa.Table, name: str) -> int | None:
    return index_of(name, table.column_names) if name else None


def _cast(table: pa.Table, index: int, field: pa.Field, name: str) -> pa.Table:
    try:
        return table.set_column(index, field, table.column(index).cast(field.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CopyDiffers(
            f"column {field.name} of {name} became {field.type}, but values in its copy do not fit: {error}"
        ) from error


_INTEGERS = {pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint"}


def columns_in(schema: pa.Schema) -> dict[str, Column]:
    """Return `TargetTable.columns` of a copy whose columns are `schema`."""
    found = {}
    for field in schema:
        if kind := _INTEGERS.get(field.type):
            found[folded(field.name)] = Column(field.name, kind)
        elif pa.types.is_date32(field.type):
            found[folded(field.name)] = Column(field.name, "date")
        elif pa.types.is_decimal128(field.type) and field.type.scale:  # without a scale it may be of BIGINT UNSIGNED
            found[folded(field.name)] = Column(field.name, "decimal", size=field.type.precision, scale=field.type.scale)
        elif pa.types.is_binary(field.type):
            found[folded(field.name)] = Column(field.name, "longblob")
    return found


def constant(value: int | str | None, field: pa.Field, count: int) -> pa.Array:
    """Return `count` times the value that rows get for a column that is added."""
    return pa.nulls(count, field.type) if value is None else pa.repeat(pa.scalar(value).cast(field.type), count)
