"""Parquet: a copy of a table in one Parquet file, replaced whole with every micro-batch that changes it.

The file's own footer has the marks that say how far it is, so that rows and marks change in one rename, and a replayed
batch is recognized. The process that has the old file open reads it to its end. Of two processes that write, the second waits for the first one's
rename, and then sees that its marks are old: the file is as it was before the change that it planned only where they are not.

A batch is applied while the old file streams into the new one, a row group after the other: memory is bounded by a row group
and the batch's own changes, however large the table. Every changed table is rewritten with each batch, so long triggers
suit it, and a table format (delta) suits large tables. The file system must have atomic renames.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shmstore.atomic_file import replace
from shmstore.consumer.copies import schema_evolution
from shmstore.consumer.copies.change_reduction import (
    CURRENT,
    HISTORY,
    HISTORY_FIELDS,
    SEQ,
    VALID_TO,
    Alter,
    Columns,
    CopyDamaged,
    CopyDiffers,
    Merge,
    Replace,
    Step,
    Versions,
    keeps_history,
)
from shmstore.consumer.copies.changed_rows import target_fields
from shmstore.consumer.copies.target import RowFile, TargetFailed
from shmstore.consumer.copies.targets.folders import held, remove_folder, removed_marks, unremoved
from shmstore.consumer.copies.targets.keyed_rows import dataset_rows, updated
from shmstore.errors import StoreError
from shmstore.event import TableSchema
from shmstore.sql.names import free

FILE = "part-00000.parquet"
_MARKS = b"shmstore.marks"
GROUP_BYTES = 32 << 20  # of a row group, in memory

Rows = Iterator[pa.Table]


class TableFlow(NamedTuple):
    """A table that is read and written in parts: its columns, and its rows some at a time."""

    schema: pa.Schema
    rows: Rows

    def through(self, change: Callable[[pa.Table], pa.Table], after: Rows | None = None) -> TableFlow:
        """The same rows, each part `change`d, with the rows of `after` behind them."""

        def rows() -> Rows:
            for part in self.rows:
                yield change(part)
            yield from after or ()

        return TableFlow(change(self.schema.empty_table()).schema, rows())


class ParquetTable:
    """One table's copy, a folder with one file."""

    def __init__(self, path: str, name: str) -> None:
        self._path = Path(path)
        self._name = name
        self._schema: pa.Schema | None
        self._marks: dict[str, int]
        self._removed = removed_marks(path)
        self._schema, self._marks = self._footer()

    def _footer(self) -> tuple[pa.Schema | None, dict[str, int]]:
        """The columns, None where there is no file, and the marks."""
        if not (self._path / FILE).exists():
            return None, dict(self._removed)
        with _reading(self._path / FILE, self._name):
            schema = pq.read_schema(self._path / FILE)
            return schema.remove_metadata(), dict(json.loads((schema.metadata or {}).get(_MARKS, b"{}")))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process changes the copy meanwhile. Raises `TargetFailed` where one has since its marks were read."""
        with unremoved(self._path, self._name, self._removed), held(self._path, self._path, self._name, alone=True):
            self._require_unchanged()
            yield

    def _require_unchanged(self) -> None:
        schema, marks = self._footer()
        if schema is not None and (self._schema is None or marks != self._marks):
            raise TargetFailed(f"another process changed the copy {self._path} of {self._name}")

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return self._schema is not None

    @property
    def keeps_history(self) -> bool:
        """Whether it keeps every version of a row."""
        return self._schema is not None and keeps_history(self.mark(HISTORY), self._schema.names)

    @property
    def columns(self) -> Columns:
        """`TargetTable.columns`."""
        return {} if self._schema is None else schema_evolution.columns_in(self._schema)

    @property
    def names(self) -> list[str]:
        """`SearchableTable.names`."""
        return [] if self._schema is None else list(self._schema.names)

    def rows_of(self, keys: pa.Table | None, columns: pa.Schema) -> pa.Table:
        """`SearchableTable.rows_of`."""
        import pyarrow.dataset as ds  # takes pandas along, which no process of Spark's needs to start

        with _reading(self._path / FILE, self._name):
            return dataset_rows(ds.dataset(self._path / FILE, format="parquet"), keys, columns)

    def mark(self, name: str) -> int:
        """The number that was committed last under `name`; -1 where there is none."""
        return self._marks.get(name, -1)

    def create(self, schema: TableSchema, keys: Sequence[str], marks: Mapping[str, int]) -> None:
        """Write a file without rows. Raises `TargetFailed`."""
        with self._alone():
            self._empty(schema, marks)

    def _empty(self, schema: TableSchema, marks: Mapping[str, int]) -> None:
        self._replace(TableFlow(pa.schema(target_fields(schema)), iter(())), marks)

    def commit(self, step: Step | None, marks: Mapping[str, int]) -> None:
        """Do a step, or none, and keep `marks`, in one rename. Raises `CopyDiffers`, `CannotFollow`, `TargetFailed`; then nothing was changed."""
        if self._schema is not None or isinstance(step, Merge | Versions):
            with self._alone():
                self._commit(step, marks)

    def _commit(self, step: Step | None, marks: Mapping[str, int]) -> None:
        if self._schema is None:
            assert isinstance(step, Merge | Versions)
            rows = step.upserts if isinstance(step, Merge) else step.versions
            self._replace(TableFlow(rows.schema, iter([rows])), marks)
            return
        path = Path(step.path) / FILE if isinstance(step, Replace) else self._path / FILE
        if isinstance(step, Replace) and not path.exists():
            self._empty(step.schema, marks)
            return
        with _reading(path, self._name):
            source = pq.ParquetFile(path)
        with source:
            flow = TableFlow(source.schema_arrow.remove_metadata(), _read(source, path, self._name))
            self._replace(
                flow if step is None or isinstance(step, Replace) else self._step(flow, step, source.metadata.num_rows), marks
            )

    @property
    def folder(self) -> str:
        """Where files for `take` are written."""
        return str(self._path.absolute() / "_rows")

    def take(self, schema: TableSchema, files: Sequence[RowFile], marks: Mapping[str, int]) -> None:
        """Create the copy with the rows of files in `folder`, which are removed, and with `marks`."""

        def rows() -> Rows:
            for file in files:
                path = Path(self.folder, file.name)
                with pq.ParquetFile(path) as source:
                    yield from _read(source, path, self._name)

        with self._alone():
            self._replace(TableFlow(pa.schema(target_fields(schema)), rows()), marks)
        shutil.rmtree(self.folder, ignore_errors=True)

    def remove(self, marks: Mapping[str, int]) -> None:
        """Remove the folder."""
        if self._schema is not None:
            with unremoved(self._path, self._name, self._removed, alone=True):
                self._require_unchanged()
                remove_folder(self._path, self._name, marks)
            self._schema, self._marks, self._removed = None, dict(marks), dict(marks)

    def _replace(self, flow: TableFlow, marks: Mapping[str, int]) -> None:
        for left in self._path.glob(f"_{FILE}.*"):
            left.unlink()  # of a driver that was killed while it wrote; Spark does not see names with an underscore
        kept = {**self._marks, **marks}
        footer = {_MARKS: json.dumps(kept).encode()}
        file = self._path / FILE
        try:
            replace(file, lambda path: write(path, flow, footer), f"copy of {self._name},", "choose another target")
        except StoreError as error:
            raise TargetFailed(str(error)) from error  # a full disk is of all copies: the same batch comes again
        self._schema, self._marks = flow.schema, kept

    def _step(self, flow: TableFlow, step: Step, rows: int) -> TableFlow:
        if isinstance(step, Merge | Versions):
            own, step = step, schema_evolution.spelled(step, flow.schema.names)
            fields = list((step.upserts if isinstance(step, Merge) else step.versions).schema)
            history = isinstance(step, Versions)
            schema_evolution.require_kind(str(self._path), self._name, keeps=self.keeps_history, wanted=history)
            if not schema_evolution.same_columns(flow.schema, fields):
                if rows:
                    raise CopyDiffers(schema_evolution.difference(flow.schema, fields, self._name))
                step = own
                flow = TableFlow((step.upserts if isinstance(step, Merge) else step.versions).schema, iter(()))
            return self._merge(flow, step) if isinstance(step, Merge) else self._add_versions(flow, step)
        if isinstance(step, Alter):
            return flow.through(lambda part: schema_evolution.alter(part, step.changes, self._name))
        if self.keeps_history:
            moment = pa.scalar(step.time_ms * 1000).cast(pa.timestamp("us", "UTC"))  # type: ignore[union-attr]
            return flow.through(lambda part: _end(part, part.column(CURRENT), moment))
        return TableFlow(flow.schema, iter(()))

    def _merge(self, flow: TableFlow, step: Merge) -> TableFlow:
        touched = pa.concat_tables([step.upserts.select(list(step.keys)), step.deletes.select(list(step.keys))])

        def change(part: pa.Table) -> pa.Table:
            part = _without(part, touched, step.keys)
            return part if step.updates is None else updated(part, step.updates, step.keys)

        return flow.through(change, iter([step.upserts.select(flow.schema.names)]))

    def _add_versions(self, flow: TableFlow, step: Versions) -> TableFlow:
        names = flow.schema.names
        fresh = step.versions.column(SEQ).combine_chunks()
        known: list[pa.Array] = []  # versions of the batch that the file holds: another query wrote them

        def change(part: pa.Table) -> pa.Table:
            seqs = part.column(SEQ)
            known.append(seqs.filter(pc.is_in(seqs, fresh)).combine_chunks())
            return _end_versions(part, step)

        def after() -> Rows:
            there = pa.chunked_array(known, pa.string()).combine_chunks()
            yield step.versions.filter(pc.invert(pc.is_in(step.versions.column(SEQ), there))).select(names)

        return flow.through(change, after())


def _read(source: pq.ParquetFile, path: Path, name: str) -> Rows:
    for group in range(source.num_row_groups):
        with _reading(path, name):
            rows = source.read_row_group(group).replace_schema_metadata(None)
        yield rows


@contextmanager
def _reading(path: Path, name: str) -> Iterator[None]:
    """Raise `CopyDamaged` where the file `path`, the copy of `name`, has no rows that can be read, and `TargetFailed` where the disk refuses them."""
    if not path.is_file():  # nor a FIFO, at which the open would wait
        raise CopyDamaged(f"the copy {path} of {name} is not a file, or was removed")
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # else Arrow's own, of what it read
            raise TargetFailed(f"the copy {path} of {name} cannot be read: {_first_line(error)}") from error
        raise CopyDamaged(f"the copy {path} of {name} is damaged: {_first_line(error)}") from error
    except ValueError as error:  # Arrow's are, too
        raise CopyDamaged(f"the copy {path} of {name} is damaged: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def write(path: Path, flow: TableFlow, mark: Mapping[bytes, bytes]) -> None:
    """Write the rows as row groups of some `GROUP_BYTES`: parts that shrank are put together, large ones are cut."""
    waiting: list[pa.Table] = []
    size = 0
    with pq.ParquetWriter(path, flow.schema.with_metadata(dict(mark))) as writer:

        def flush() -> None:
            nonlocal size
            table = pa.concat_tables(waiting)
            rows = max(1, len(table) * GROUP_BYTES // max(1, size))
            writer.write_table(table.replace_schema_metadata(dict(mark)), row_group_size=min(rows, 1 << 20))
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
    number, moment, seq = (free(name, part.column_names) for name in ("_number", "_end", "_end_seq"))
    ends = step.ends.rename_columns([*step.keys, moment, seq])
    numbered = part.append_column(number, numbers)
    hit = numbered.filter(numbered.column(CURRENT)).join(ends, list(step.keys), join_type="inner")
    hit = hit.filter(pc.less(hit.column(SEQ), hit.column(seq)))
    if not len(hit):
        return part
    found = pc.index_in(numbers, hit.column(number).combine_chunks())
    return _end(part, pc.is_valid(found), hit.column(moment).combine_chunks().take(found))


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
