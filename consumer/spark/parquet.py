"""ParquetTarget: a copy of a table in one Parquet file, replaced whole with every micro-batch that changes it.

The file's own footer says which batch of which query it holds, so that rows and mark change in one rename, and a replayed
batch is recognised. Whoever has the old file open reads it to its end. It fits tables that fit into memory, on a file
system with atomic renames; a table format (delta) fits the rest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from consumer.spark import reshape
from consumer.spark.changes import CURRENT, HISTORY_FIELDS, SEQ, VALID_TO, Alter, CannotFollow, Merge, Step, Versions

FILE = "part-00000.parquet"
_QUERY, _BATCH = b"shmstore.query", b"shmstore.batch"
_KEEP_BYTES = 256 << 20


class ParquetTarget:
    """One table's copy, a folder with one file."""

    def __init__(self, path: str, name: str) -> None:
        self._path = Path(path)
        self._name = name
        self._table: pa.Table | None = None
        self._mark: tuple[str, int] | None = None
        self._load()

    def _load(self) -> None:
        file = self._path / FILE
        if not file.exists():
            return
        table = pq.read_table(file)
        metadata = table.schema.metadata or {}
        if _QUERY in metadata:
            self._mark = (metadata[_QUERY].decode(), int(metadata[_BATCH]))
        self._table = table.replace_schema_metadata(None)

    def done(self, query: str, batch: int) -> bool:
        """True when this batch of this query is in the copy."""
        return self._mark is not None and self._mark[0] == query and self._mark[1] >= batch

    def apply(self, steps: Sequence[Step], query: str, batch: int) -> None:
        """Bring the copy up to date, in one rename. Raises `CannotFollow`; then nothing was changed."""
        if self.done(query, batch):
            return
        if self._table is None:
            self._load()
        table = self._table
        for step in steps:
            table = self._step(table, step)
        if table is None:
            return  # dropped before it was ever filled
        self._path.mkdir(parents=True, exist_ok=True)
        temporary = self._path / f"_{FILE}.{os.getpid()}"  # Spark does not see names with an underscore
        marked = table.replace_schema_metadata({_QUERY: query.encode(), _BATCH: str(batch).encode()})
        with open(temporary, "wb") as file:
            pq.write_table(marked, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path / FILE)
        self._mark = (query, batch)
        self._table = table if table.nbytes <= _KEEP_BYTES else None

    def _step(self, table: pa.Table | None, step: Step) -> pa.Table | None:
        if isinstance(step, Merge):
            return self._merge(table, step)
        if isinstance(step, Versions):
            return self._add_versions(table, step)
        if table is None:
            return None
        if isinstance(step, Alter):
            return reshape.alter(table, step.clauses, self._name)
        if VALID_TO in table.column_names:
            return _end(table, table.column(CURRENT), pa.scalar(step.time_ms * 1000).cast(pa.timestamp("us", "UTC")))
        return table.slice(0, 0)

    def _merge(self, table: pa.Table | None, step: Merge) -> pa.Table:
        if table is None or not len(table):
            return step.upserts
        if SEQ in table.column_names:
            raise CannotFollow(
                f"the copy of {self._name} in {self._path} holds its history: choose another target, or history=True"
            )
        table = reshape.conform(table, list(step.upserts.schema), self._name)
        touched = pa.concat_tables([step.upserts.select(list(step.keys)), step.deletes.select(list(step.keys))])
        kept = _without(table, touched, step.keys)
        return pa.concat_tables([kept, step.upserts.select(table.column_names)]).combine_chunks()

    def _add_versions(self, table: pa.Table | None, step: Versions) -> pa.Table:
        if table is None:
            return step.versions
        if SEQ not in table.column_names:
            raise CannotFollow(f"the copy of {self._name} in {self._path} holds no history: choose another target")
        table = reshape.conform(table, list(step.versions.schema), self._name)
        numbered = table.append_column("_place", pa.array(range(len(table)), pa.int64()))
        ends = step.ends.rename_columns([*step.keys, "_end", "_end_seq"])
        hit = numbered.filter(numbered.column(CURRENT)).join(ends, list(step.keys), join_type="inner")
        hit = hit.filter(pc.less(hit.column(SEQ), hit.column("_end_seq")))
        if len(hit):
            order = pa.array(range(len(table)), pa.int64())
            found = pc.index_in(order, hit.column("_place").combine_chunks())
            moments = hit.column("_end").combine_chunks().take(found)
            table = _end(table, pc.is_valid(found), moments)
        known = pc.is_in(step.versions.column(SEQ), table.column(SEQ).combine_chunks())
        fresh = step.versions.filter(pc.invert(known))
        return pa.concat_tables([table, fresh.select(table.column_names)]).combine_chunks()


def _end(table: pa.Table, which: pa.Array, moment: pa.Array | pa.Scalar) -> pa.Table:
    """Return `table` where the versions `which` have ended at `moment`."""
    to, current = table.column_names.index(VALID_TO), table.column_names.index(CURRENT)
    table = table.set_column(to, HISTORY_FIELDS[1], pc.if_else(which, moment, table.column(to)))
    return table.set_column(current, HISTORY_FIELDS[2], pc.and_(table.column(current), pc.invert(which)))


def _without(table: pa.Table, keys: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows of `table` whose key is not in `keys`."""
    if len(names) == 1:
        found = pc.is_in(table.column(names[0]), keys.column(names[0]).combine_chunks())
        return table.filter(pc.invert(found))
    columns = table.column_names
    return table.join(keys, list(names), join_type="left anti").select(columns)
