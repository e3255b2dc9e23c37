"""DeltaTarget: a copy of a table in Delta Lake, through delta-rs (package ``deltalake``): no jar, any version of Spark.

Every commit carries the query's id and a number made of batch and step, as Delta's application transaction. A replayed
batch finds the steps that are done and goes on after them, whatever line the crash came at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.table import TableMerger

from consumer.spark import reshape
from consumer.spark.changes import CURRENT, SEQ, VALID_TO, Alter, CannotFollow, Merge, Step, Versions

_STEPS = 1 << 16


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
        """True when this batch of this query is in the copy, whole."""
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

    def _write(self, table: pa.Table, properties: CommitProperties, mode: str) -> None:
        if mode == "overwrite":
            write_deltalake(self._path, table, mode="overwrite", schema_mode="overwrite", commit_properties=properties)
        else:
            write_deltalake(self._path, table, mode="append", commit_properties=properties)
        self._table = DeltaTable(self._path)

    def _conform(self, fields: list[pa.Field]) -> None:
        """Bring types that widened without a DDL clause of their own up to date; raises `CannotFollow` for other columns."""
        assert self._table is not None
        sample = pa.table(self._table.to_pyarrow_dataset().schema.empty_table())
        wanted = reshape.conform(sample, fields, self._name)
        if wanted.schema != sample.schema:
            write_deltalake(self._path, self._load().cast(wanted.schema), mode="overwrite", schema_mode="overwrite")
            self._table = DeltaTable(self._path)

    def _load(self) -> pa.Table:
        assert self._table is not None
        return self._table.to_pyarrow_table()

    # ---------------------------------------------------------------- steps

    def _merger(self, rows: pa.Table, over: str, properties: CommitProperties) -> TableMerger:
        """Rows ``s`` to be merged into the copy ``t``."""
        assert self._table is not None
        return self._table.merge(rows, over, source_alias="s", target_alias="t", commit_properties=properties)

    def _merge(self, step: Merge, properties: CommitProperties) -> None:
        if self._table is None:
            self._write(step.upserts, properties, "append")
            return
        if SEQ in self._columns():
            raise CannotFollow(
                f"the copy of {self._name} in {self._path} holds its history: choose another target, or history=True"
            )
        self._conform(list(step.upserts.schema))
        deletes = step.deletes
        for field in step.upserts.schema:
            if field.name not in step.keys:
                deletes = deletes.append_column(field, pa.nulls(len(deletes), field.type))
        rows = pa.concat_tables([step.upserts, deletes.select(step.upserts.column_names)])
        rows = rows.append_column("_gone", pa.array([False] * len(step.upserts) + [True] * len(deletes), pa.bool_()))
        values = {_quoted(name): f"s.{_quoted(name)}" for name in step.upserts.column_names}
        (
            self._merger(rows, _same(step.keys), properties)
            .when_matched_delete(predicate="s._gone")
            .when_matched_update(values, predicate="NOT s._gone")
            .when_not_matched_insert(values, predicate="NOT s._gone")
            .execute()
        )

    def _end_versions(self, step: Versions, properties: CommitProperties) -> None:
        if self._table is None:
            self._write(step.versions.slice(0, 0), properties, "append")
            return
        if SEQ not in self._columns():
            raise CannotFollow(f"the copy of {self._name} in {self._path} holds no history: choose another target")
        self._conform(list(step.versions.schema))
        merger = self._merger(step.ends, f"{_same(step.keys)} AND t.{CURRENT} AND t.{SEQ} < s.{SEQ}", properties)
        merger.when_matched_update({VALID_TO: f"s.{VALID_TO}", CURRENT: "false"}).execute()

    def _add_versions(self, step: Versions, properties: CommitProperties) -> None:
        values = {_quoted(name): f"s.{_quoted(name)}" for name in step.versions.column_names}
        merger = self._merger(step.versions, f"{_same(step.keys)} AND t.{SEQ} = s.{SEQ}", properties)
        merger.when_not_matched_insert(values).execute()

    def _alter(self, step: Alter, properties: CommitProperties) -> None:
        if self._table is not None:
            self._write(reshape.alter(self._load(), step.clauses, self._name), properties, "overwrite")

    def _empty(self, step: Any, properties: CommitProperties) -> None:
        if self._table is None:
            return
        if SEQ in self._columns():
            moment = f"to_timestamp_micros({step.time_ms * 1000})"
            self._table.update({VALID_TO: moment, CURRENT: "false"}, predicate=CURRENT, commit_properties=properties)
        else:
            self._write(self._load().slice(0, 0), properties, "overwrite")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _same(keys: Sequence[str]) -> str:
    return " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys)
