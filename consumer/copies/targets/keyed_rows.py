"""Rows of Arrow tables, found and changed by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from shmstore.consumer.copies.change_reduction import OURS, Merge, Versions
from shmstore.sql.names import free

if TYPE_CHECKING:
    import pyarrow.dataset as ds

UPSERT, DELETE, UPDATE = 0, 1, 2  # what becomes of a row of `merge_rows`
BECOMES: Final = OURS + "becomes"
_FILTERED: Final = (pa.types.is_integer, pa.types.is_string, pa.types.is_date)  # types that a file's own statistics are asked for


def merge_rows(step: Merge | Versions) -> tuple[pa.Table, str]:
    """Return all rows of a step as one table, NULL where a row has no value, and the name of the column that says what becomes of each: of the rows of a
    history, DELETE ends the version of a key that is current."""
    whole, gone, some = (
        (step.upserts, step.deletes, step.updates) if isinstance(step, Merge) else (step.versions, step.ends, None)
    )
    fields = whole.schema
    tables, kinds = [whole], [UPSERT] * len(whole)
    for rows, kind in ((gone, DELETE), (some, UPDATE)):
        if rows is not None:
            columns = [
                rows.column(one.name) if one.name in rows.column_names else pa.nulls(len(rows), one.type) for one in fields
            ]
            tables.append(pa.Table.from_arrays(columns, schema=fields))
            kinds += [kind] * len(rows)
    name = free(BECOMES, fields.names)
    return pa.concat_tables(tables).append_column(name, pa.array(kinds, pa.int32())), name


def updated_columns(step: Merge | Versions) -> list[str]:
    """Return the columns that the `updates` of a merge give new values."""
    return (
        []
        if isinstance(step, Versions) or step.updates is None
        else [name for name in step.updates.column_names if name not in step.keys]
    )


def rows_with(part: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the rows of `part` that have the values of a row of `keys` in its columns."""
    names = keys.column_names
    if len(names) == 1:
        return part.filter(pc.is_in(part.column(names[0]), keys.column(0).combine_chunks()))
    columns = part.column_names
    return part.join(keys.select(names), names, join_type="left semi").select(columns)


def dataset_rows(dataset: ds.Dataset, keys: pa.Table | None, columns: pa.Schema) -> pa.Table:
    """Return `columns` of the rows of a dataset that have these keys, of all where that is None. Files whose statistics exclude them are not read."""
    names, some = list(columns.names), None
    if keys is not None:
        first = keys.column(0)
        if any(is_kind(first.type) for is_kind in _FILTERED):
            some = pc.field(keys.column_names[0]).isin(pc.unique(first.combine_chunks()))
        names += [name for name in keys.column_names if name not in names]
    found = dataset.to_table(columns=names, filter=some)
    return (found if keys is None else rows_with(found, keys)).select(columns.names).cast(columns)


def updated(part: pa.Table, updates: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return `part` with the values of `updates` in the rows with their keys."""
    names = [name for name in updates.column_names if name not in keys]
    number = free(OURS + "number", part.column_names)
    fresh = {name: free(OURS + name, part.column_names) for name in names}
    numbers = pa.array(range(len(part)), pa.int64())
    renamed = updates.rename_columns([fresh.get(name, name) for name in updates.column_names])
    hit = part.select(list(keys)).append_column(number, numbers).join(renamed, list(keys), join_type="inner")
    if not len(hit):
        return part
    found = pc.index_in(numbers, hit.column(number).combine_chunks())
    for name in names:
        at = part.column_names.index(name)
        new = hit.column(fresh[name]).combine_chunks().take(found)
        part = part.set_column(at, part.schema.field(at), pc.if_else(pc.is_valid(found), new, part.column(at)))
    return part
