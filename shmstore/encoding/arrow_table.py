"""The rows of a batch as an Arrow table, for pandas, Polars, DuckDB and whatever else takes Arrow.

column        type                                    what
op            string                                  c, u, d; r: a row of a snapshot
database      string
table         string
before, after struct of the table's columns           the row's images; NULL where there is none (insert, delete)
ts_ms         int64                                   event time, milliseconds since 1970 UTC
server_id     int64
file, offset  string, int64                           the event's end in the binlog
seq           int64                                   number of the event in its store, as `shmstore tail` prints it
row           int32                                   number of the row in its event; seq and row order the rows
transaction   string                                  GTID, or file:offset of the transaction's first event

`Table.flatten()` makes columns of the structs' fields: ``after.id``, ``before.id``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shmstore.encoding.arrow import fit, image_type, row_layout
from shmstore.encoding.arrow_rows import index_events, read_rows, typed_runs
from shmstore.encoding.codec import decode_schema
from shmstore.errors import StoreCorrupt
from shmstore.event import TableSchema

ROWS_PER_CHUNK = 65_536  # the text of a column's chunk has 2 GiB at most


@dataclass(frozen=True)
class TableOptions:
    """What to do with values that a column cannot say: refuse them, or make them NULL."""

    zero_dates: Literal["error", "null"] = "error"
    partial: Literal["error", "null"] = "error"

    def __post_init__(self) -> None:
        for name in ("zero_dates", "partial"):
            if getattr(self, name) not in ("error", "null"):
                raise ValueError(f"{name}={getattr(self, name)!r} is neither 'error' nor 'null'")


#: Given a name and whether to look at rows, too, the type of a table's images; None: there is no such table. See `Batch._known`.
Known = Callable[[str, bool], pa.StructType | None]


def read_table(
    raw: memoryview,
    ends: NDArray[np.int64],
    table: str | TableSchema | None,
    options: TableOptions,
    sequences: NDArray[np.int64],
    known: Known,
) -> pa.Table:
    """Return the rows of the events in `raw`, which end at `ends` and have these `sequences`, as this module's table.

    `known` is asked for a table that the events have no row of. `Batch.to_arrow` says the rest.
    """
    events = index_events(raw, ends)
    chunks = typed_runs(events, ROWS_PER_CHUNK, partial=options.partial == "null")
    found = [(run, events.schemas[events.records["schema"][run[0]]]) for run in chunks]
    schemas = {schema: _table_of(schema) for schema in dict.fromkeys(schema for _, schema in found)}
    wanted = table if isinstance(table, str) else None if table is None else _name(table)
    if wanted is None and len(names := {_name(schema) for schema in schemas.values()}) > 1:
        raise ValueError(f"the batch holds rows of {', '.join(sorted(names))}: name one with table=")
    chosen = [(run, schemas[schema]) for run, schema in found if wanted is None or _name(schemas[schema]) == wanted]
    if isinstance(table, str) and "." not in table:
        there = ", ".join(sorted({_name(schema) for schema in schemas.values()})) or "none"
        raise ValueError(f"table {table!r} has no database: name DATABASE.TABLE; the batch holds rows of {there}")
    if isinstance(table, str) and not chosen:
        there = ", ".join(sorted({_name(schema) for schema in schemas.values()}))
        found_type = known(table, bool(there))
        if found_type is None and there:
            raise ValueError(
                f"table {table!r} is not in the store, and never was as far as it reaches: the batch holds rows of {there}"
            )
        return _layout(found_type or pa.struct([])).empty_table()
    plan = table if isinstance(table, TableSchema) else chosen[-1][1] if chosen else TableSchema("", "", ())
    image, layout = _types_of(plan)
    pieces = [
        read_rows(
            events,
            run,
            source,
            _mapping(source, plan),
            image,
            zero_dates=options.zero_dates,
            partial=options.partial,
            sequences=sequences,
        )
        for run, source in chosen
    ]
    return pa.Table.from_batches(pieces, layout)


def _name(table: TableSchema) -> str:
    return f"{table.database}.{table.table}"


@lru_cache(maxsize=1024)
def _table_of(schema: bytes) -> TableSchema:
    """The table in `schema`. Raises `StoreCorrupt` where its columns have no Arrow types: a damaged event."""
    table = decode_schema(schema)
    try:
        image_type(table)
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise StoreCorrupt(f"table schema of {len(schema)} bytes cannot be used: {error}") from error
    return table


@lru_cache(maxsize=1024)
def _types_of(table: TableSchema) -> tuple[pa.StructType, pa.Schema]:
    """The type of the table's images, and the schema of its rows."""
    image = image_type(table)
    return image, _layout(image)


def _layout(image: pa.StructType) -> pa.Schema:
    return row_layout(image, image, pa.int64())


def _mapping(found: TableSchema, plan: TableSchema) -> list[int | None]:
    """For each column of `plan` the index of the column of `found` with its name. Raises ValueError where its type does not fit."""
    fits = fit(found, plan)
    for name, was, becomes in fits.narrowed:
        raise ValueError(
            f"column {name} of {_name(found)} was {was} in some events of the batch and is {becomes}: "
            "name a TableSchema that holds both, or take smaller batches"
        )
    return fits.mapping
