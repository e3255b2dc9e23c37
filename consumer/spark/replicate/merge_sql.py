"""What Spark merges into a table that it writes: the rows of a step, with the columns as the copy calls them, and the statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame

from shmstore.consumer.copies.change_reduction import (
    CURRENT,
    HISTORY_FIELDS,
    OURS,
    SEQ,
    VALID_TO,
    Merge,
    RowsElsewhere,
    Versions,
)
from shmstore.consumer.copies.changed_rows import target_fields
from shmstore.consumer.copies.targets.keyed_rows import DELETE, UPDATE, UPSERT, merge_rows, updated_columns
from shmstore.consumer.spark.replicate.event_runs import RunSource
from shmstore.sql.names import places_of

Rows = Merge | Versions | RowsElsewhere


def without_rows(step: Rows) -> Merge | Versions:
    """Return a step of no rows that has the columns and keys of `step`."""
    if isinstance(step, Merge):
        return step._replace(upserts=step.upserts.slice(0, 0), deletes=step.deletes.slice(0, 0), updates=None)
    if isinstance(step, Versions):
        return step._replace(ends=step.ends.slice(0, 0), versions=step.versions.slice(0, 0))
    fields = target_fields(step.schema)
    keys = pa.schema([column for column in fields if column.name in step.keys]).empty_table()
    if not step.history:
        return Merge(step.keys, pa.schema(fields).empty_table(), keys, step.schema)
    for column in (HISTORY_FIELDS[1], HISTORY_FIELDS[3]):
        keys = keys.append_column(column, pa.nulls(0, column.type))
    return Versions(step.keys, keys, pa.schema(fields + HISTORY_FIELDS).empty_table(), step.schema)


def new_rows(step: Merge | Versions) -> pa.Table:
    """The whole rows of a step, without the keys of those that it deletes or ends."""
    return step.upserts if isinstance(step, Merge) else step.versions


class MergeSource(NamedTuple):
    """The rows of a step, in the form of `merge_rows`: `names` are their columns, without `becomes`; `changed` those that an UPDATE gives values."""

    frame: DataFrame
    names: list[str]
    keys: list[str]
    becomes: str
    changed: list[str]
    history: bool

    def statement(self, table: str, rows: str) -> str:
        """The MERGE of `rows`, the name of a view of the frame, into `table`: one for a history, too, since a version that ends began before all that come."""
        same = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in self.keys)
        values = f"({', '.join(map(quoted, self.names))}) VALUES ({', '.join(f's.{quoted(name)}' for name in self.names)})"
        insert = f"WHEN NOT MATCHED AND s.{self.becomes} = {UPSERT} THEN INSERT {values}"
        gone = f"s.{self.becomes} = {DELETE}"
        if self.history:
            same += f" AND (({gone} AND t.{CURRENT} AND t.{SEQ} < s.{SEQ}) OR (NOT {gone} AND t.{SEQ} = s.{SEQ}))"
            change = f"WHEN MATCHED AND {gone} THEN UPDATE SET t.{VALID_TO} = s.{VALID_TO}, t.{CURRENT} = false"
        else:
            some = (
                f"WHEN MATCHED AND s.{self.becomes} = {UPDATE} THEN UPDATE SET {_assigned(self.changed)} " if self.changed else ""
            )
            change = f"WHEN MATCHED AND {gone} THEN DELETE {some}WHEN MATCHED THEN UPDATE SET {_assigned(self.names)}"
        return f"MERGE INTO {table} t USING {rows} s ON {same} {change} {insert}"


def source_of(step: Rows, there: Sequence[str], frame_of: Callable[[pa.Table], DataFrame]) -> MergeSource:
    """Return the rows of a step with the columns called as the copy, with columns `there`, calls them. `frame_of` makes a frame of rows of the driver's."""
    own = without_rows(step)
    names, changed = new_rows(own).column_names, list[str]()
    if isinstance(step, RowsElsewhere):
        assert isinstance(step.source, RunSource)
        frame, becomes = step.source.rows(step.schema, step.keys, step.runs, step.history)
    else:
        rows, becomes = merge_rows(step)
        frame, changed = frame_of(rows), updated_columns(step)
    called = [name if at is None else there[at] for name, at in zip(names, places_of(names, there), strict=True)]
    keys, changed = ([called[names.index(name)] for name in some] for some in (step.keys, changed))
    return MergeSource(frame.toDF(*called, becomes), called, keys, becomes, changed, isinstance(own, Versions))


@contextmanager
def viewed(frame: DataFrame) -> Iterator[str]:
    """The name of a view of `frame` that every session of its Spark sees."""
    name = f"{OURS}{uuid4().hex}"
    frame.createGlobalTempView(name)
    try:
        yield f"global_temp.{name}"
    finally:
        frame.sparkSession.catalog.dropGlobalTempView(name)


def _assigned(names: Sequence[str]) -> str:
    return ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in names)


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return "`" + name.replace("`", "``") + "`"
