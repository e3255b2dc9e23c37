"""Target: what holds copies, such as a folder, a database or a catalog. TargetTable: what holds the copy of one table in it.

A target does what the steps of a batch say (`shmstore.consumer.copies.change_reduction.Step`), and knows nothing of the stream. Exactly once
rests on one promise: a step and its marks are kept both or neither (`TargetTable.commit`). Marks are numbers by name, kept with the copy.

Errors, by what they concern:

    CopyDiffers    one copy cannot take this step, and was not changed: its rows are read again
    CopyRefuses    one copy cannot take it, and reading again is no use: the copy is set aside
    CannotCopy     one table can have no copy here: the others can
    CopyDamaged    one copy cannot be read: what it missed until it can be is read again
    CannotFollow   all of the run: the target is not what the command asks for
    TargetFailed   all of the run: the target cannot be reached, or refused a statement; the same batch is tried again
    StepRefused    one copy, and with it the transaction over all: the same batch is tried again, with that copy set aside
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from shmstore.consumer.copies.change_reduction import Columns, Step
from shmstore.event import TableSchema


class TargetFailed(ValueError):
    """The target cannot be reached, or refused a statement. One line, without secrets."""


class StepRefused(TargetFailed):
    """A copy refused a step, which ended the transaction over all copies: nothing of it was kept. The batch is done again, with that copy set aside."""


class TargetBusy(TargetFailed):
    """Another process has the target: it is tried again until that process leaves it."""


class TargetTable(Protocol):
    """What holds the rows of one copy. It is opened where no copy is, too: then it does not exist yet."""

    @property
    def exists(self) -> bool:
        """Whether it was ever written to."""

    @property
    def keeps_history(self) -> bool:
        """Whether it keeps every version of a row."""

    @property
    def columns(self) -> Columns:
        """For each column a source's column that holds every value of it and no other; without those of which that is not known."""

    def mark(self, name: str) -> int:
        """The number that was committed last under `name`; -1 where there is none."""

    def create(self, schema: TableSchema, keys: Sequence[str], marks: Mapping[str, int]) -> None:
        """Create it with the columns of `schema` and no rows. Raises `CopyRefuses`."""

    def commit(self, step: Step | None, marks: Mapping[str, int]) -> None:
        """Do a step, or none, and keep `marks`, both or neither. A `Merge` or `Versions` creates it where it does not exist; any other step does
        nothing then. Raises `CopyDiffers`, `CopyDamaged`, `StepRefused`; then neither is done."""

    def remove(self, marks: Mapping[str, int]) -> None:
        """Remove it, with its other marks: `mark` gives `marks` from then on, though it does not exist, so that a process that was overtaken finds
        that it is behind. Without `marks` nothing of it is left. Raises `TargetFailed` where another process has changed it."""


class Target(Protocol):
    """Where all copies of a run are. A copy's path in it is the run's template with the names of its database and table, each as `named`."""

    @property
    def at_once(self) -> int:
        """How many copies may be written at the same time, each by a thread of its own; with 1 the thread that calls writes them all."""

    def table(self, path: str, name: str) -> TargetTable:
        """Return what holds the copy of table `name` (``database.table``, for messages) at `path`. Raises `CopyDamaged`."""

    def named(self, name: str) -> str:
        """Return a name of a database, table or source as a part of a path. Raises `CannotCopy`."""

    def unnamed(self, part: str) -> str:
        """Return the name that `named` made this part of."""

    def next_path(self, path: str, number: int) -> str:
        """Return the path of the copy that is to replace the one at `path`: `paths` does not give it, and readers do not see it."""

    def aside_path(self, path: str) -> str:
        """Return the path of what is kept aside of the copy at `path`, such as which rows were deleted: `paths` does not give it, and readers do
        not see it."""

    def paths(self, template: str) -> Iterable[str]:
        """Return the paths of copies that `template` fits, in which ``{database}`` and ``{table}`` are open, or one of them; others may be among
        them. Raises ValueError where they cannot be listed."""

    def transaction(self) -> AbstractContextManager[None]:
        """One transaction over all copies, where the target has such: what the body did is kept, or, where it raised, nothing of it."""

    def close(self) -> None:
        """Close what is open, also where nothing comes for a moment: the next transaction opens it again. Idempotent."""


class RowFile(NamedTuple):
    """A file of rows that was written into a copy's `folder`; `stats` is what Delta's log says of such a file, as JSON."""

    name: str
    rows: int
    size: int
    stats: str


@runtime_checkable
class SearchableTable(TargetTable, Protocol):
    """A copy that can be asked for some of its rows, and that does `Merge.updates`: what changes that come in another order need."""

    @property
    def names(self) -> Sequence[str]:
        """The names of its columns; none where it does not exist."""

    def rows_of(self, keys: pa.Table | None, columns: pa.Schema) -> pa.Table:
        """Return these columns of the rows that have the values in `keys` in the columns of its names, each row once; of all where that is None.

        It exists, and has these columns.
        """


@runtime_checkable
class FileTable(TargetTable, Protocol):
    """A copy that can be created of files which other processes wrote."""

    @property
    def folder(self) -> str:
        """Where these are written, of a target in a folder."""

    def take(self, schema: TableSchema, files: Sequence[RowFile], marks: Mapping[str, int]) -> None:
        """Create it with the rows of these files and `marks`, in one commit."""
