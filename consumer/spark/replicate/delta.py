"""DeltaTarget: a copy of a table in Delta Lake, through delta-rs (package ``deltalake``): no jar, any version of Spark.

Every commit carries the query's id and a number made of batch and step, as Delta's application transaction. A replayed
batch finds the steps that are done and goes on after them, whatever line the crash came at.

The copy is never in memory whole: what Delta cannot do by its log alone (a column dropped, renamed or of another type: delta-rs has no
column mapping) is rewritten, some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.table import TableMerger

from shmstore.consumer.spark.replicate import schema_evolution
from shmstore.consumer.spark.replicate.change_reduction import CURRENT, SEQ, VALID_TO, Alter, CannotFollow, Merge, Step, Versions

_STEPS = 1 << 16
PART_BYTES = 8 << 20  # on disk, of the rows that are rewritten at a time


class DeltaTarget:
    """One table's copy, a Delta table."""

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = name
        self._table = DeltaTable(path) if DeltaTable.is_deltatable(path) else None

    def _columns(self) -> list[str]:
        assert self._table is not None
        return [field.name for field in self._table.schema().fields]

    def done(self, query: str, batch: int) -> bool:
        """True when all of this batch of this query is in the copy."""
        return self._version(query) >= batch * _STEPS + _STEPS - 1

    def _version(self, query: str) -> int:
        version = self._table.transaction_version(query) if self._table is not None else None
        return -1 if version is None else int(version)

    def apply(self, steps: Sequence[Step], query: str, batch: int) -> None:
        """Bring the copy up to date, one commit a step (two with history). Raises `CannotFollow`."""
        commits: list[tuple[Any, Any]] = []
        for step in steps:
            if isinstance(step, Versions):
                commits += [(self._end_versions, step), (self._add_versions, step)]
            elif isinstance(step, Merge):
                commits.append((self._merge, step))
            elif isinstance(step, Alter):
                commits.append((self._alter, step))
            else:
                commits.append((self._empty, step))
        for number, (commit, step) in enumerate(commits):
            last = number == len(commits) - 1
            # the batch's last commit has the highest number that the batch can have: `done` then knows it is whole
            version = batch * _STEPS + (_STEPS - 1 if last else number)
            if self._version(query) >= version:
                continue
            commit(step, CommitProperties(app_transactions=[Transaction(query, version)]))
            if self._table is not None:
                self._table.update_incremental()

    def _write(self, table: pa.Table, properties: CommitProperties, **how: Any) -> None:
        write_deltalake(self._path, table, commit_properties=properties, **how)
        self._table = DeltaTable(self._path)

    def _conform(self, fields: list[pa.Field]) -> None:
        """Bring types that widened without a DDL clause of their own up to date; raises `CannotFollow` for other columns."""
        sample = self._sample()
        if schema_evolution.conform(sample, fields, self._name).schema != sample.schema:
            self._rewrite(lambda part: schema_evolution.conform(part, fields, self._name), None)

    def _sample(self) -> pa.Table:
        """The copy without its rows."""
        assert self._table is not None
        return self._table.to_pyarrow_dataset().schema.empty_table()

    def _rewrite(self, change: Callable[[pa.Table], pa.Table], properties: CommitProperties | None) -> None:
        """Rewrite the copy, each part of its rows `change`d, in one commit. Raises what `change` raises, and then writes nothing."""
        assert self._table is not None
        copy = self._table.to_pyarrow_dataset()  # here: delta-rs runs nothing of its own where it asks for `parts`
        schema = change(copy.schema.empty_table()).schema
        size = sum(pa.table(self._table.get_add_actions(flatten=True)).column("size_bytes").to_pylist())
        rows = max(1, min(1 << 16, copy.count_rows() * PART_BYTES // max(1, size)))
        streamed = ds.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
        sparing = {"batch_readahead": 0, "fragment_readahead": 0, "use_threads": False, "fragment_scan_options": streamed}
        raised: list[Exception] = []  # delta-rs makes errors of its own of what is raised under it

        def parts() -> Iterator[pa.RecordBatch]:
            try:
                for file in copy.get_fragments():  # one by one: the scan of all reads on in the files that follow
                    for part in file.to_batches(schema=copy.schema, batch_size=rows, **sparing):
                        yield from change(pa.Table.from_batches([part])).combine_chunks().to_batches()
            except Exception as error:
                raised.append(error)
                raise

        try:
            write_deltalake(
                self._path,
                pa.RecordBatchReader.from_batches(schema, parts()),
                mode="overwrite",
                schema_mode="overwrite",
                writer_properties=WriterProperties(max_row_group_size=4 * rows),
                commit_properties=properties,
            )
        except Exception as error:
            if raised:
                raise raised[0] from error
            raise
        self._table = DeltaTable(self._path)

    # ---------------------------------------------------------------- steps

    def _merger(self, rows: pa.Table, over: str, properties: CommitProperties) -> TableMerger:
        """Rows ``s`` to be merged into the copy ``t``."""
        assert self._table is not None
        return self._table.merge(rows, over, source_alias="s", target_alias="t", commit_properties=properties)

    def _merge(self, step: Merge, properties: CommitProperties) -> None:
        if self._table is None:
            self._write(step.upserts, properties, mode="append")
            return
        if SEQ in self._columns():
            raise CannotFollow(
                f"the copy of {self._name} in {self._path} keeps the history of its rows: choose another target, or history=True"
            )
        self._conform(list(step.upserts.schema))
        deletes = step.deletes
        for field in step.upserts.schema:
            if field.name not in step.keys:
                deletes = deletes.append_column(field, pa.nulls(len(deletes), field.type))
        rows = pa.concat_tables([step.upserts, deletes.select(step.upserts.column_names)])
        rows = rows.append_column("_shmstore_deleted", pa.array([False] * len(step.upserts) + [True] * len(deletes), pa.bool_()))
        values = {_quoted(name): f"s.{_quoted(name)}" for name in step.upserts.column_names}
        (
            self._merger(rows, _same(step.keys), properties)
            .when_matched_delete(predicate="s._shmstore_deleted")
            .when_matched_update(values, predicate="NOT s._shmstore_deleted")
            .when_not_matched_insert(values, predicate="NOT s._shmstore_deleted")
            .execute()
        )

    def _end_versions(self, step: Versions, properties: CommitProperties) -> None:
        if self._table is None:
            self._write(step.versions.slice(0, 0), properties, mode="append")
            return
        if SEQ not in self._columns():
            raise CannotFollow(f"the copy of {self._name} in {self._path} keeps no history of its rows: choose another target")
        self._conform(list(step.versions.schema))
        merger = self._merger(step.ends, f"{_same(step.keys)} AND t.{CURRENT} AND t.{SEQ} < s.{SEQ}", properties)
        merger.when_matched_update({VALID_TO: f"s.{VALID_TO}", CURRENT: "false"}).execute()

    def _add_versions(self, step: Versions, properties: CommitProperties) -> None:
        values = {_quoted(name): f"s.{_quoted(name)}" for name in step.versions.column_names}
        merger = self._merger(step.versions, f"{_same(step.keys)} AND t.{SEQ} = s.{SEQ}", properties)
        merger.when_not_matched_insert(values).execute()

    def _alter(self, step: Alter, properties: CommitProperties) -> None:
        if self._table is None:
            return
        sample = self._sample()
        altered = schema_evolution.alter(sample, step.clauses, self._name)
        kept = list(altered.schema)[: sample.num_columns] == list(sample.schema)
        if kept and all(clause.kind == "modify" or (clause.kind == "add" and clause.default is None) for clause in step.clauses):
            self._write(altered, properties, mode="append", schema_mode="merge")  # no rows: those in the copy have NULL there
        else:
            self._rewrite(lambda part: schema_evolution.alter(part, step.clauses, self._name), properties)

    def _empty(self, step: Any, properties: CommitProperties) -> None:
        if self._table is None:
            return
        if SEQ in self._columns():
            moment = f"to_timestamp_micros({step.time_ms * 1000})"
            self._table.update({VALID_TO: moment, CURRENT: "false"}, predicate=CURRENT, commit_properties=properties)
        else:
            # not DeltaTable.delete(), which commits nothing, and so no mark, where there is no row
            self._write(self._sample(), properties, mode="overwrite")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _same(keys: Sequence[str]) -> str:
    return " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys)
