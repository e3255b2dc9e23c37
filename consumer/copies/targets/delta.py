"""Delta: a copy of a table in Delta Lake, through delta-rs (package ``deltalake``): no jar, any version of Spark.

Every commit carries its marks as Delta's application transactions: the query's id with the number of its last step, and the state of
the copy. A replayed batch finds the steps that are done and continues after them, whatever line the crash came at.

The copy is never in memory whole: what Delta cannot do by its log alone (a column dropped, renamed or of another type: delta-rs has no
column mapping) is rewritten, some rows at a time, and so are the rows of a copy that take the place of those in another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.table import TableMerger
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyarrow.fs import FileSelector, FileType, PyFileSystem

from shmstore.clock import calendar_ms
from shmstore.consumer.copies import schema_evolution
from shmstore.consumer.copies.change_reduction import (
    CURRENT,
    HISTORY,
    SEQ,
    VALID_TO,
    Alter,
    Columns,
    CopyDamaged,
    CopyDiffers,
    CopyRefuses,
    Empty,
    Merge,
    Replace,
    Step,
    Versions,
    keeps_history,
)
from shmstore.consumer.copies.changed_rows import target_fields
from shmstore.consumer.copies.target import RowFile, TargetFailed
from shmstore.consumer.copies.targets.folders import AT_ONCE, Folders, remove_folder, removed_marks, unremoved
from shmstore.consumer.copies.targets.keyed_rows import DELETE, UPDATE, UPSERT, dataset_rows, merge_rows, updated_columns
from shmstore.event import TableSchema

PART_BYTES = 8 << 20  # on disk, of the rows that are rewritten at a time
_OF_DISK: Final = re.compile(r"Generic \w+ error|\(os error \d+\)")  # of the store of files, in an error's text
_DRAWN: Final = re.compile("\x1b\\[[0-9;]*m|\u21b3 ?")
_STACK: Final = re.compile(r" *\d+: <?\w")
_OF_FILES: Final = re.compile(
    r"not found|range was invalid|\(os error 2\)"
)  # of those: a file is missing, or shorter than it was


def target(storage: Mapping[str, str] | None = None, optimize: int = 0) -> Folders:
    """Return the target whose copies are Delta tables in folders; the arguments are those of `DeltaLakeTable`."""
    return Folders(lambda path, name: DeltaLakeTable(path, name, storage, optimize), lambda url: _folders(url, storage), AT_ONCE)


def _folders(url: str, storage: Mapping[str, str] | None) -> list[str]:
    """Return the names of the folders in a folder of an object store. Raises ValueError where they cannot be listed."""
    try:
        files = PyFileSystem(DeltaStorageHandler(url, dict(storage or {})))
        found = files.get_file_info(FileSelector("", allow_not_found=True))
    except (OSError, DeltaError) as error:
        why = str(error).strip().splitlines()[-1]
        raise ValueError(f"copies in {url!r} cannot be listed: {why}; check the storage options") from error
    return [entry.base_name for entry in found if entry.type == FileType.Directory]


class DeltaLakeTable:
    """One table's copy, a Delta table. `storage` are delta-rs's storage options, for object stores.

    After each `optimize` commits (0: never) small files are put together, and files that no version of the last week needs are removed.
    """

    def __init__(self, path: str, name: str, storage: Mapping[str, str] | None = None, optimize: int = 0) -> None:
        self._path = path
        self._name = name
        self._storage = dict(storage or {}) or None
        self._optimize, self._commits = optimize, 0
        self._marks: tuple[int, dict[str, int]]  # of a version, as far as they were asked for: each question costs milliseconds
        with _reading(path, name):
            there = DeltaTable.is_deltatable(path, storage_options=self._storage)
        self._removed = removed_marks(path)
        self._table = self._opened() if there else None

    def _opened(self) -> DeltaTable:
        self._marks = -1, {}  # another table may have this one's versions
        with self._reading():
            return DeltaTable(self._path, storage_options=self._storage)

    @property
    def exists(self) -> bool:
        """Whether there is a Delta table."""
        return self._table is not None

    @property
    def keeps_history(self) -> bool:
        """Whether it keeps every version of a row."""
        return self._table is not None and keeps_history(self.mark(HISTORY), self.names)

    @property
    def columns(self) -> Columns:
        """`TargetTable.columns`."""
        with self._reading():
            return {} if self._table is None else schema_evolution.columns_in(self._sample().schema)

    @property
    def names(self) -> list[str]:
        """`SearchableTable.names`."""
        return [] if self._table is None else [field.name for field in self._table.schema().fields]

    def rows_of(self, keys: pa.Table | None, columns: pa.Schema) -> pa.Table:
        """`SearchableTable.rows_of`."""
        assert self._table is not None
        with self._reading():
            return dataset_rows(self._table.to_pyarrow_dataset(), keys, columns)

    def mark(self, name: str) -> int:
        """The number that was committed last under `name`; -1 where there is none."""
        if self._table is None:
            return self._removed.get(name, -1)
        with self._reading():
            if self._marks[0] != (version := self._table.version()):
                self._marks = version, {}
            marks = self._marks[1]
            if name not in marks:
                number = self._table.transaction_version(name)
                marks[name] = -1 if number is None else int(number)
        return marks[name]

    def create(self, schema: TableSchema, keys: Sequence[str], marks: Mapping[str, int]) -> None:
        """Create the table without rows."""
        with self._writing():
            self._create(pa.schema(target_fields(schema)).empty_table(), self._marked(marks))

    def _marked(self, marks: Mapping[str, int]) -> CommitProperties:
        """A commit with these marks; the first one has those that a removed copy left, too."""
        return _with(marks if self._table is not None else {**self._removed, **marks})

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """As `_reading`, and `TargetFailed` where another process has removed the table: then it is not damaged."""
        try:
            with _reading(self._path, self._name):
                yield
        except CopyDamaged as error:
            if removed_marks(self._path) != self._removed:
                raise TargetFailed(f"another process removed the copy {self._path} of {self._name}") from error
            raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with unremoved(self._path, self._name, self._removed), _refusals(self._path, self._name):
            yield

    def commit(self, step: Step | None, marks: Mapping[str, int]) -> None:
        """Do a step, or none, and keep `marks`, in one commit; a step of a history is two, of which the first may be done twice.

        Raises `CopyDiffers`, `CannotFollow`, `TargetFailed`; then nothing was changed.
        """
        with self._writing():
            self._commit(step, self._marked(marks), self._now(marks))

    def _now(self, marks: Iterable[str]) -> dict[str, int]:
        """What these marks are. The first of two commits writes them again, so that it, too, is refused where another process has set one."""
        return {name: self.mark(name) for name in marks if self.mark(name) >= 0}

    def _commit(self, step: Step | None, marked: CommitProperties, before: Mapping[str, int]) -> None:
        if self._table is None:
            if isinstance(step, Merge | Versions):
                self._create(step.upserts if isinstance(step, Merge) else step.versions, marked)
            return
        if step is None:
            self._write(self._sample(), marked, mode="append")
        elif isinstance(step, Merge | Versions):
            step = self._fit(step, before)
            if isinstance(step, Merge):
                self._merge(step, marked)
            else:
                self._end_versions(step, _with(before))
                self._update()
                if self._now(before) != before:  # nothing had to end, so that nothing was committed and refused
                    raise TargetFailed(f"another process changed the copy {self._path} of {self._name}")
                self._add_versions(step, marked)
        elif isinstance(step, Alter):
            self._alter(step, marked)
        elif isinstance(step, Replace):
            self._take_over(step, marked)
        elif isinstance(step, Empty):
            self._empty(step, marked)
        self._update()
        self._tidy()

    def _tidy(self) -> None:
        """Now and then, put small files together and remove old ones."""
        self._commits += 1
        if self._optimize and self._commits % self._optimize == 0:
            self._put_together()
            self._table = self._opened()

    def _put_together(self) -> None:
        assert self._table is not None
        self._table.optimize.compact()
        self._table.vacuum(dry_run=False)

    @property
    def folder(self) -> str:
        """Where files for `take` are written."""
        return os.path.abspath(self._path)

    def take(self, schema: TableSchema, files: Sequence[RowFile], marks: Mapping[str, int]) -> None:
        """Create the table of files in `folder`, with `marks`, in one commit."""
        now = calendar_ms()
        with unremoved(self._path, self._name, self._removed):
            create_table_with_add_actions(
                self._path,
                Schema.from_arrow(pa.schema(target_fields(schema))),
                [AddAction(file.name, file.size, {}, now, True, file.stats) for file in files],
                mode="error",
                commit_properties=self._marked(marks),
            )
        self._table = self._opened()

    def remove(self, marks: Mapping[str, int]) -> None:
        """Remove the table's folder; in an object store its files stay, for the process that cleans up there."""
        if self._table is None:
            return
        if "://" not in self._path:
            with unremoved(self._path, self._name, self._removed, alone=True):
                if self._opened().version() != self._table.version():
                    raise TargetFailed(f"another process changed the copy {self._path} of {self._name}")
                remove_folder(self._path, self._name, marks)
        self._table, self._removed = None, dict(marks)

    # ---------------------------------------------------------------- commits

    def _update(self) -> None:
        assert self._table is not None
        with self._reading():
            self._table.update_incremental()

    def _create(self, rows: pa.Table, properties: CommitProperties) -> None:
        try:
            self._write(rows, properties, mode="error")
        except DeltaError as error:
            if self._table is None and DeltaTable.is_deltatable(self._path, storage_options=self._storage):
                raise TargetFailed(f"another process created the copy {self._path} of {self._name}") from error
            raise

    def _write(self, table: pa.Table, properties: CommitProperties, **how: Any) -> None:
        # into the version that the marks were read of: delta-rs refuses where another process has set one of them since
        write_deltalake(self._table or self._path, table, commit_properties=properties, storage_options=self._storage, **how)
        self._table = self._opened()

    def _fit(self, step: Merge | Versions, before: Mapping[str, int]) -> Merge | Versions:
        """Check that the columns are those of the rows, which get the spelling of the copy's; a copy without rows takes theirs."""
        there = self._sample()
        own, step = step, schema_evolution.spelled(step, there.column_names)
        fields = (step.upserts if isinstance(step, Merge) else step.versions).schema
        history = isinstance(step, Versions)
        schema_evolution.require_kind(self._path, self._name, keeps=self.keeps_history, wanted=history)
        if schema_evolution.same_columns(there.schema, list(fields)):
            return step
        assert self._table is not None
        if self._table.count():
            raise CopyDiffers(schema_evolution.difference(there.schema, list(fields), self._name))
        fields = (own.upserts if isinstance(own, Merge) else own.versions).schema
        self._write(fields.empty_table(), _with(before), mode="overwrite", schema_mode="overwrite")
        return own

    def _sample(self) -> pa.Table:
        """The copy without its rows."""
        assert self._table is not None
        return self._table.to_pyarrow_dataset().schema.empty_table()

    def _take_over(self, step: Replace, properties: CommitProperties) -> None:
        if DeltaTable.is_deltatable(step.path, storage_options=self._storage):
            self._rewrite(DeltaTable(step.path, storage_options=self._storage), lambda part: part, properties)
        else:
            empty = pa.schema(target_fields(step.schema)).empty_table()
            self._write(empty, properties, mode="overwrite", schema_mode="overwrite")

    def _rewrite(self, source: DeltaTable, change: Callable[[pa.Table], pa.Table], properties: CommitProperties) -> None:
        """Write the rows of `source`, each part of them `change`d, in place of the copy's, in one commit. Raises what `change` raises, and then
        writes nothing.
        """
        copy = source.to_pyarrow_dataset()  # here: delta-rs runs nothing of its own where it asks for `parts`
        schema = change(copy.schema.empty_table()).schema
        size = sum(pa.table(source.get_add_actions(flatten=True)).column("size_bytes").to_pylist())
        rows = max(1, min(1 << 16, copy.count_rows() * PART_BYTES // max(1, size)))
        streamed = ds.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
        sparing = {"batch_readahead": 0, "fragment_readahead": 0, "use_threads": False, "fragment_scan_options": streamed}
        raised: list[Exception] = []  # delta-rs makes errors of its own of what is raised under it

        def parts() -> Iterator[pa.RecordBatch]:
            try:
                for file in copy.get_fragments():  # one by one: the scan of all continues in the next files
                    for part in file.to_batches(schema=copy.schema, batch_size=rows, **sparing):
                        yield from change(pa.Table.from_batches([part])).combine_chunks().to_batches()
            except Exception as error:
                raised.append(error)
                raise

        try:
            write_deltalake(
                self._table or self._path,
                pa.RecordBatchReader.from_batches(schema, parts()),
                mode="overwrite",
                schema_mode="overwrite",
                writer_properties=WriterProperties(max_row_group_size=4 * rows),
                commit_properties=properties,
                storage_options=self._storage,
            )
        except Exception as error:
            if raised:
                raise raised[0] from error
            raise
        self._table = self._opened()

    # ---------------------------------------------------------------- steps

    def _merger(self, rows: pa.Table, over: str, properties: CommitProperties) -> TableMerger:
        """Rows ``s`` to be merged into the copy ``t``."""
        assert self._table is not None
        return self._table.merge(rows, over, source_alias="s", target_alias="t", commit_properties=properties)

    def _merge(self, step: Merge, properties: CommitProperties) -> None:
        rows, becomes = merge_rows(step)
        values = {_quoted(name): f"s.{_quoted(name)}" for name in step.upserts.column_names}
        merger = (
            self._merger(rows, _same(step.keys), properties)
            .when_matched_delete(predicate=f"s.{becomes} = {DELETE}")
            .when_matched_update(values, predicate=f"s.{becomes} = {UPSERT}")
            .when_not_matched_insert(values, predicate=f"s.{becomes} = {UPSERT}")
        )
        if changed := updated_columns(step):
            some = {_quoted(name): f"s.{_quoted(name)}" for name in changed}
            merger = merger.when_matched_update(some, predicate=f"s.{becomes} = {UPDATE}")
        self._execute(merger.execute, properties)

    def _execute(self, change: Callable[[], object], properties: CommitProperties) -> None:
        """Change rows; where that changes none delta-rs commits nothing, and the marks are committed alone: then it shows, too, what other processes did."""
        assert self._table is not None
        version = self._table.version()
        change()
        if self._table.version() == version:
            self._write(self._sample(), properties, mode="append")

    def _end_versions(self, step: Versions, before: CommitProperties) -> None:
        merger = self._merger(step.ends, f"{_same(step.keys)} AND t.{CURRENT} AND t.{SEQ} < s.{SEQ}", before)
        merger.when_matched_update({VALID_TO: f"s.{VALID_TO}", CURRENT: "false"}).execute()

    def _add_versions(self, step: Versions, properties: CommitProperties) -> None:
        values = {_quoted(name): f"s.{_quoted(name)}" for name in step.versions.column_names}
        merger = self._merger(step.versions, f"{_same(step.keys)} AND t.{SEQ} = s.{SEQ}", properties)
        self._execute(merger.when_not_matched_insert(values).execute, properties)

    def _alter(self, step: Alter, properties: CommitProperties) -> None:
        assert self._table is not None
        sample = self._sample()
        altered = schema_evolution.alter(sample, step.changes, self._name)
        kept = list(altered.schema)[: sample.num_columns] == list(sample.schema)
        if kept and all(change.default is None for change in step.changes):
            self._write(altered, properties, mode="append", schema_mode="merge")  # no rows: those in the copy have NULL there
        else:
            self._rewrite(self._table, lambda part: schema_evolution.alter(part, step.changes, self._name), properties)

    def _empty(self, step: Empty, properties: CommitProperties) -> None:
        assert self._table is not None
        if self.keeps_history and self._table.count():
            moment = f"to_timestamp_micros({step.time_ms * 1000})"
            ended = {VALID_TO: moment, CURRENT: "false"}
            self._execute(partial(self._table.update, ended, predicate=CURRENT, commit_properties=properties), properties)
        else:
            # not DeltaTable.delete(), which commits nothing, and so no mark, where there is no row
            self._write(self._sample(), properties, mode="overwrite")


@contextmanager
def _reading(path: str, name: str) -> Iterator[None]:
    """Raise `CopyDamaged` where what is at `path`, the copy of `name`, cannot be read, and `TargetFailed` where the disk, or the network, refuses it."""
    try:
        yield
    except (OSError, DeltaError, pa.ArrowException) as error:
        if _of_disk(error):
            raise TargetFailed(f"the copy {path} of {name} cannot be read: {_one_line(error)}") from error
        raise CopyDamaged(f"the copy {path} of {name} is damaged: {_one_line(error)}") from error


@contextmanager
def _refusals(path: str, name: str) -> Iterator[None]:
    """Raise `CopyRefuses` where delta-rs cannot take what it was given: another table may be well. Else as `_reading`."""
    try:
        yield
    except CommitFailedError as error:
        raise TargetFailed(f"another process changed the copy {path} of {name}: {_one_line(error)}") from error
    except (OSError, DeltaError) as error:
        if _of_disk(error):
            raise TargetFailed(f"the copy {path} of {name} cannot be written: {_one_line(error)}") from error
        if isinstance(error, OSError | TableNotFoundError):
            raise CopyDamaged(f"the copy {path} of {name} was removed, or is damaged: {_one_line(error)}") from error
        raise CopyRefuses(f"Delta refuses what became of {name}: {_one_line(error)}") from error


def _of_disk(error: Exception) -> bool:
    """Whether the place where files are refused something: then nothing is wrong with the copy."""
    text = str(error)
    return (bool(_OF_DISK.search(text)) or isinstance(error, OSError)) and not _OF_FILES.search(text)


def _one_line(error: Exception) -> str:
    """What an error of delta-rs says, without colors and its stack."""
    lines = []
    for line in _DRAWN.sub("", str(error)).strip().splitlines():
        if _STACK.match(line):
            break
        lines.append(line.strip())
    return ": ".join(lines) or type(error).__name__


def _with(marks: Mapping[str, int]) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(name, number) for name, number in marks.items()])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _same(keys: Sequence[str]) -> str:
    return " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys)
