"""ParquetTarget: a copy of a table in one Parquet file, replaced whole with every micro-batch that changes it.

The file's own footer says which batch of which query it holds, so that rows and mark change in one rename, and a replayed
batch is recognised. Whoever has the old file open reads it to its end.

A batch is applied while the old file streams into the new one, a row group after the other: memory is bounded by a row group
and the batch's own changes, however large the table. Every changed table is rewritten with each batch, so long triggers
suit it, and a table format (delta) suits large tables. The file system must have atomic renames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shmstore.atomic_file import replace
from shmstore.consumer.spark.replicate import schema_evolution
from shmstore.consumer.spark.replicate.change_reduction import (
    CURRENT,
    HISTORY_FIELDS,
    SEQ,
    VALID_TO,
    Alter,
    CannotFollow,
    Merge,
    Step,
    Versions,
)

FILE = "part-00000.parquet"
_QUERY, _BATCH = b"shmstore.query", b"shmstore.store.batch"
GROUP_BYTES = 32 << 20  # of a row group, in memory

Rows = Iterator[pa.Table]


class Flow(NamedTuple):
    """A table that is read and written in parts: its columns, and its rows some at a time."""

    schema: pa.Schema
    rows: Rows

    @property
    def history(self) -> bool:
        """True for a copy that keeps every version of a row."""
        return SEQ in self.schema.names

    def through(self, change: Callable[[pa.Table], pa.Table], after: Rows | None = None) -> Flow:
        """The same rows, each part `change`d, with the rows of `after` behind them."""

        def rows() -> Rows:
            for part in self.rows:
                yield change(part)
            yield from after or ()

        return Flow(change(self.schema.empty_table()).schema, rows())


class ParquetTarget:
    """One table's copy, a folder with one file."""

    def __init__(self, path: str, name: str) -> None:
        self._path = Path(path)
        self._name = name
        self._mark: tuple[str, int] | None = None
        file = self._path / FILE
        if file.exists():
            metadata = pq.read_schema(file).metadata or {}
            if _QUERY in metadata:
                self._mark = (metadata[_QUERY].decode(), int(metadata[_BATCH]))

    def done(self, query: str, batch: int) -> bool:
        """True when this batch of this query is in the copy."""
        return self._mark is not None and self._mark[0] == query and self._mark[1] >= batch

    def apply(self, steps: Sequence[Step], query: str, batch: int) -> None:
        """Bring the copy up to date, in one rename. Raises `CannotFollow`; then nothing was changed."""
        if self.done(query, batch):
            return
        file = self._path / FILE
        source = pq.ParquetFile(file) if file.exists() else None
        try:
            flow = None if source is None else Flow(source.schema_arrow.remove_metadata(), _read(source))
            for step in steps:
                flow = self._step(flow, step)
            if flow is None:
                return  # dropped before it was ever filled
            for left in self._path.glob(f"_{FILE}.*"):
                left.unlink()  # of a driver that was killed while it wrote; Spark does not see names with an underscore
            rows, mark = flow, {_QUERY: query.encode(), _BATCH: str(batch).encode()}
            replace(file, lambda path: _write(path, rows, mark), f"copy of {self._name},", "choose another target")
        finally:
            if source is not None:
                source.close()
        self._mark = (query, batch)

    def _step(self, flow: Flow | None, step: Step) -> Flow | None:
        if isinstance(step, Merge):
            return self._merge(flow, step)
        if isinstance(step, Versions):
            return self._add_versions(flow, step)
        if flow is None:
            return None
        if isinstance(step, Alter):
            return flow.through(lambda part: schema_evolution.alter(part, step.clauses, self._name))
        if flow.history:
            moment = pa.scalar(step.time_ms * 1000).cast(pa.timestamp("us", "UTC"))
            return flow.through(lambda part: _end(part, part.column(CURRENT), moment))
        return Flow(flow.schema, iter(()))

    def _merge(self, flow: Flow | None, step: Merge) -> Flow:
        if flow is None:
            return Flow(step.upserts.schema, iter([step.upserts]))
        if flow.history:
            raise CannotFollow(
                f"the copy of {self._name} in {self._path} keeps the history of its rows: choose another target, or history=True"
            )
        fields = list(step.upserts.schema)
        touched = pa.concat_tables([step.upserts.select(list(step.keys)), step.deletes.select(list(step.keys))])
        names = schema_evolution.conform(flow.schema.empty_table(), fields, self._name).column_names

        def change(part: pa.Table) -> pa.Table:
            return _without(schema_evolution.conform(part, fields, self._name), touched, step.keys)

        return flow.through(change, iter([step.upserts.select(names)]))

    def _add_versions(self, flow: Flow | None, step: Versions) -> Flow:
        if flow is None:
            return Flow(step.versions.schema, iter([step.versions]))
        if not flow.history:
            raise CannotFollow(f"the copy of {self._name} in {self._path} keeps no history of its rows: choose another target")
        fields = list(step.versions.schema)
        names = schema_evolution.conform(flow.schema.empty_table(), fields, self._name).column_names
        fresh = step.versions.column(SEQ).combine_chunks()
        known: list[pa.Array] = []  # versions of the batch that the file holds: another query wrote them

        def change(part: pa.Table) -> pa.Table:
            part = schema_evolution.conform(part, fields, self._name)
            seqs = part.column(SEQ)
            known.append(seqs.filter(pc.is_in(seqs, fresh)).combine_chunks())
            return _end_versions(part, step)

        def after() -> Rows:
            there = pa.chunked_array(known, pa.string()).combine_chunks()
            yield step.versions.filter(pc.invert(pc.is_in(step.versions.column(SEQ), there))).select(names)

        return flow.through(change, after())


def _read(source: pq.ParquetFile) -> Rows:
    for group in range(source.num_row_groups):
        yield source.read_row_group(group).replace_schema_metadata(None)


def _write(path: Path, flow: Flow, mark: dict[bytes, bytes]) -> None:
    """Write the rows as row groups of some `GROUP_BYTES`: parts that shrank are put together, large ones are cut."""
    waiting: list[pa.Table] = []
    size = 0
    with pq.ParquetWriter(path, flow.schema.with_metadata(mark)) as writer:

        def flush() -> None:
            nonlocal size
            table = pa.concat_tables(waiting)
            rows = max(1, len(table) * GROUP_BYTES // max(1, size))
            writer.write_table(table.replace_schema_metadata(mark), row_group_size=min(rows, 1 << 20))
            waiting.clear()
            size = 0

        for part in flow.rows:
            if len(part):
                waiting.append(part)
                size += part.nbytes
            if size >= GROUP_BYTES:
                flush()
        if waiting:
            flush()


def _end_versions(part: pa.Table, step: Versions) -> pa.Table:
    """Return `part` where the current versions that a change of the batch follows have ended."""
    numbers = pa.array(range(len(part)), pa.int64())
    ends = step.ends.rename_columns([*step.keys, "_end", "_end_seq"])
    numbered = part.append_column("_shmstore_number", numbers)
    hit = numbered.filter(numbered.column(CURRENT)).join(ends, list(step.keys), join_type="inner")
    hit = hit.filter(pc.less(hit.column(SEQ), hit.column("_end_seq")))
    if not len(hit):
        return part
    found = pc.index_in(numbers, hit.column("_shmstore_number").combine_chunks())
    return _end(part, pc.is_valid(found), hit.column("_end").combine_chunks().take(found))


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
