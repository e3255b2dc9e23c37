"""apply_changes: a stream of one's own, filtered, joined or masked, kept as a table: each change counts once, in the order of its sequence."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import coalesce, col, expr, lit, when
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from shmstore.consumer.copies.applied_changes import DELETED, SEQUENCE, AppliedChanges
from shmstore.consumer.copies.change_reduction import OURS
from shmstore.consumer.copies.databases.database import Password
from shmstore.consumer.spark.callbacks import answering
from shmstore.consumer.spark.decode.schema import JSON_SCHEMA
from shmstore.consumer.spark.replicate.local_checkpoints import checkpoint_location
from shmstore.consumer.spark.replicate.query_id import QueryId
from shmstore.consumer.spark.replicate.replicate import require_iceberg
from shmstore.consumer.spark.replicate.target_choice import chosen_target, is_database

_BEFORE: Final = f"{OURS}before_"  # with a key's name: its value before the change
_ENVELOPE: Final = frozenset(JSON_SCHEMA.names)  # what a row of the source has around its images


def apply_changes(
    frame: DataFrame,
    *,
    target: str,
    keys: str | Sequence[str],
    sequence_by: str = "seq",
    deletes: str | None = "op = 'd'",
    history: bool = False,
    columns: Sequence[str] | None = None,
    oldest: Callable[[], Any] | None = None,
    format: str = "",
    checkpoint: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    password: Password = "",
    storage: Mapping[str, str] | None = None,
    optimize: int = 0,
) -> StreamingQuery:
    """Keep the rows that a stream of changes leaves in one table, `target`; return the running query.

    Each row of `frame` is a change of the row with its `keys`. Changes count in the order of `sequence_by`, an expression over the frame's columns, in
    whatever order and however often they come. Where the condition `deletes` is true the change is a delete; None: no change is.

    A frame that still has the structs `before` and `after` of `changes` gives the columns of `after`, and those that were joined to it; a change of the
    key deletes the row with the old one. Of any other frame all columns but `op` and the one that `sequence_by` names become columns of the target.
    `columns` chooses among them.

    `target` is a path, with `format` delta (where none is given) or parquet; ``catalog.database.table`` with format iceberg; or a table of a database:
    ``postgresql://USER@HOST/DATABASE#schema.table``, ``mysql://...#database.table``, ``sqlite:FILE#table``, ``duckdb:///FILE#schema.table``.
    Its further column ``_seq`` is the sequence of a row's last change. With `history` every version of a row is kept (SCD type 2): ``_valid_from`` and
    ``_valid_to`` are sequences, ``_current`` marks the version that is valid.

    The sequences of deletes are kept aside, in ``_deleted`` in a folder or a table ``_shmstore_deleted_TABLE``, so that an older change that comes late does
    not bring a row back. `oldest` is a function that returns a sequence behind which no change comes: deletes before it are forgotten.

    `checkpoint` is by default in ``_checkpoint`` next to the rows of a folder; `trigger` is what ``DataStreamWriter.trigger`` takes; `password`, `storage` and
    `optimize` are as `replicate` has them. Raises ValueError where the frame or the target does not fit; a change without a key ends the query.
    """
    spark, named = frame.sparkSession, [keys] if isinstance(keys, str) else list(keys)
    if "{" in target:
        raise ValueError(f"target {target!r} has a placeholder, and apply_changes keeps one table: give its whole name")
    if format == "iceberg":
        require_iceberg(spark, target, checkpoint)
    if checkpoint is None and (is_database(target) or storage):
        raise ValueError(
            f"copies in {'a database' if is_database(target) else 'an object store'} need checkpoint='/path/of/a/folder'"
        )
    held_by, path = chosen_target(format, target, password, storage, optimize, spark)
    if "{" in path:
        raise ValueError(
            f"target {target!r} names no table: give it behind #, as {target}#{path.replace('{', '').replace('}', '')}"
        )
    prepared = prepare(frame, named, sequence_by, deletes, columns)
    where = checkpoint or os.path.join(path, "_checkpoint")
    applied, query = AppliedChanges(held_by, path, named, history=history, oldest=oldest), QueryId(where, "apply_changes")

    def apply(part: DataFrame, batch: int) -> None:
        with answering():
            try:
                applied.apply(with_moved_keys(part.toArrow(), named), query.of(part.sparkSession), batch)
            finally:
                if target.startswith("duckdb:"):  # one process has the file open: between batches others may
                    applied.close()

    writer = prepared.writeStream.foreachBatch(apply).option("checkpointLocation", checkpoint_location(spark, where))
    writer = writer.trigger(**(trigger or {"processingTime": "0 seconds"}))
    return (writer.queryName(name) if name else writer).start()


def prepare(
    frame: DataFrame, keys: Sequence[str], sequence_by: str, deletes: str | None, columns: Sequence[str] | None
) -> DataFrame:
    """Return the frame with the columns of the target, its keys, `SEQUENCE` and `DELETED`, and of a frame with images the keys before each change.

    Raises ValueError.
    """
    types = frame.schema
    structs = {one.name: one.dataType for one in types if isinstance(one.dataType, StructType)}
    images = "before" in structs and "after" in structs
    found = (
        _of_images(types, structs["before"], structs["after"])
        if images
        else {one: col(_quoted(one)) for one in types.names if one not in ("op", sequence_by)}
    )
    if columns is not None:
        if missing := [name for name in columns if name not in found]:
            raise ValueError(f"the frame has no column {', '.join(missing)}: it has {', '.join(found)}")
        found = {name: found[name] for name in dict.fromkeys([*keys, *columns]) if name in found}
    if missing := [key for key in keys if key not in found]:
        raise ValueError(f"the frame has no column {', '.join(missing)} to use as a key: it has {', '.join(found)}")
    gone = lit(False) if deletes is None else coalesce(expr(deletes), lit(False))
    more = {SEQUENCE: expr(sequence_by), DELETED: gone}
    if images:
        more |= {_BEFORE + key: col(f"before.{_quoted(key)}") for key in keys if key in structs["before"].names}
    try:
        prepared = frame.select(*[column.alias(name) for name, column in (found | more).items()])
        prepared.schema  # noqa: B018 - under Spark Connect it is looked at here
    except PySparkException as error:
        raise ValueError(
            f"sequence_by={sequence_by!r} must be an expression and deletes={deletes!r} a condition over the frame's columns "
            f"{', '.join(types.names)}: {str(error).strip().splitlines()[0]}"
        ) from error
    return prepared


def _of_images(types: StructType, before: StructType, after: StructType) -> dict[str, Column]:
    """The columns of `after`, or where there is none of `before`, and those that the source's rows do not have."""
    found = {}
    for name in after.names:
        other = col(f"before.{_quoted(name)}") if name in before.names else lit(None)
        found[name] = when(col("after").isNotNull(), col(f"after.{_quoted(name)}")).otherwise(other)
    for name in types.names:
        if name not in _ENVELOPE:
            if name in found:
                raise ValueError(f"the frame has column {name} and after.{name}: give one of them another name")
            found[name] = col(_quoted(name))
    return found


def with_moved_keys(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows without the keys before each change: where they were others, a delete of the row that had them is added."""
    before = {key: _BEFORE + key for key in keys if _BEFORE + key in rows.column_names}
    plain = rows.drop_columns(list(before.values()))
    if len(before) < len(keys):
        return plain
    same = [pc.fill_null(pc.equal(rows.column(key), rows.column(old)), False) for key, old in before.items()]
    known = [pc.is_valid(rows.column(old)) for old in before.values()]
    moved, all_known = same[0], known[0]
    for one, other in zip(same[1:], known[1:], strict=True):
        moved, all_known = pc.and_(moved, one), pc.and_(all_known, other)
    some = rows.filter(pc.and_(all_known, pc.invert(moved)))
    if not len(some):
        return plain
    cells = []
    for field in plain.schema:
        if field.name in before:
            cells.append(some.column(before[field.name]).cast(field.type))
        elif field.name == DELETED:
            cells.append(pa.chunked_array([pa.array([True] * len(some), pa.bool_())]))
        elif field.name == SEQUENCE:
            cells.append(some.column(SEQUENCE))
        else:
            cells.append(pa.chunked_array([pa.nulls(len(some), field.type)]))
    schema = pa.schema([field.with_nullable(True) for field in plain.schema])
    return pa.concat_tables([plain.cast(schema), pa.Table.from_arrays(cells, schema=schema)])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
