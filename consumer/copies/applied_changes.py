"""AppliedChanges: changes of rows that come in any order, applied to one table of a target so that each counts once.

A change has a key, a sequence, and is an upsert or a delete. Whatever the order in which changes come, and however often, the table is in the end
what they make in the order of their sequences. For that a change must be compared with what is known of its key:

    the table     has each row with the sequence of the change that wrote it: column `SEQ`, or of a history `VALID_FROM`
    aside of it   the sequences of deletes (`Target.aside_path`): the last one of each key, of a history all

A batch is two commits where the target has no transaction over several tables: first the table, with the batch's mark, then the deletes. What is
to be kept of the deletes follows from the batch's changes alone, and what the table holds from what is known of both, so a kill between the two is
healed by the batch's replay, before which no other batch comes.

A delete that is known and a row that is not look alike once the delete is forgotten. So deletes are kept forever, or until `oldest` says
that no older change will come; one that comes nevertheless, and of whose key nothing is known, is left out, with a warning.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shmstore.consumer.copies.change_reduction import (
    CURRENT,
    HISTORY,
    OURS,
    SEQ,
    VALID_FROM,
    VALID_TO,
    Alter,
    CannotFollow,
    CopyDiffers,
    Merge,
    Step,
)
from shmstore.consumer.copies.ddl import Change
from shmstore.consumer.copies.frame_columns import ORDERED, column_of, plain
from shmstore.consumer.copies.target import SearchableTable, Target
from shmstore.event import TableSchema
from shmstore.sql.names import folded

SEQUENCE, DELETED = f"{OURS}sequence", f"{OURS}deleted"  # columns of a batch
LAYOUT = "shmstore.applied"  # the mark of a table that is kept here: keys, type of the sequence, history
_FORGET_EVERY = 100  # batches
_log = logging.getLogger(__name__)

Key = tuple[Any, ...]


class _BatchChange(NamedTuple):
    """One change of a batch: its row there, and whether it is a delete."""

    row: int
    deleted: bool


class _BatchEffect(NamedTuple):
    """What a batch does to the table: rows of the batch to write, with `ends` of a history; keys of rows to delete; versions that end, each with its
    new end."""

    upserts: list[int]
    ends: list[Any]
    deletes: list[Key]
    updates: list[tuple[Key, Any, Any]]


class AppliedChanges:
    """The table at `path` of `target`, kept up to date. `keys` are the names of its key columns. With `history` every version of a row is kept.

    `oldest` is asked now and then: changes with a smaller sequence do not come any more, so that older deletes are forgotten. One object, in one
    thread at a time, writes to a table.
    """

    def __init__(
        self,
        target: Target,
        path: str,
        keys: Sequence[str],
        *,
        history: bool = False,
        oldest: Callable[[], Any] | None = None,
    ) -> None:
        if not keys:
            raise ValueError("keys must name at least one column")
        if len(set(map(folded, keys))) != len(keys):
            raise ValueError(f"keys={list(keys)} names a column twice")
        self._target, self._path, self._keys, self._history, self._oldest = target, path, tuple(keys), history, oldest
        self._tables: tuple[SearchableTable, SearchableTable] | None = None
        self._batches = 0

    def close(self) -> None:
        """Close what the target has open; the next batch opens it again."""
        self._target.close()

    def apply(self, rows: pa.Table, query: str, batch: int) -> int:
        """Apply a batch of a query, once; return how many changes it has. `rows` has a sequence and whether it is a delete in `SEQUENCE` and
        `DELETED`, and any columns; of a delete the keys count. Raises `CannotFollow`, and what the target raises.
        """
        rows = plain(rows)
        self._check(rows)
        try:
            with self._target.transaction():
                self._apply(rows, query, batch)
        except BaseException:
            self._tables = None
            raise
        return len(rows)

    # ---------------------------------------------------------------- what comes

    def _check(self, rows: pa.Table) -> None:
        """Raise `CannotFollow` where rows cannot be put in order."""
        names = rows.column_names
        missing = [key for key in self._keys if key not in names]
        if missing:
            shown = ", ".join(name for name in names if name not in (SEQUENCE, DELETED))
            raise CannotFollow(f"the frame has no column {', '.join(missing)} to use as a key: it has {shown}")
        own = (VALID_FROM, VALID_TO, CURRENT) if self._history else (SEQ,)
        for name in names:
            if folded(name) in own or (name.startswith(OURS) and name not in (SEQUENCE, DELETED)):
                raise CannotFollow(
                    f"column {name} has a name that the target needs for itself: give it another one, as with withColumnRenamed"
                )
        for name, shown in (*((key, f"key column {key}") for key in self._keys), (SEQUENCE, "the sequence")):
            column = rows.column(name)
            if not any(is_kind(column.type) for is_kind in ORDERED):
                raise CannotFollow(f"{shown} has type {column.type}, whose values have no order that every target keeps: cast it")
            if column.null_count:
                first = rows.slice(pc.index(column.is_null(), True).as_py(), 1)
                if name == SEQUENCE:
                    where, fix = f"{self._named(_tuples(first, self._keys)[0])}", "each change needs one"
                else:
                    where = f"the sequence {first.column(SEQUENCE)[0].as_py()!r}"
                    fix = f"leave such rows out, as with where('{name} IS NOT NULL')"
                raise CannotFollow(
                    f"{shown} is NULL in {column.null_count} of {len(rows)} rows, the first of which has {where}: {fix}"
                )

    def _changes(self, rows: pa.Table) -> dict[Key, dict[Any, _BatchChange]]:
        """The changes of a batch by key and sequence. Raises `CannotFollow` where two different ones have the same."""
        found: dict[Key, dict[Any, _BatchChange]] = {}
        keys = _tuples(rows, self._keys)
        for row, (key, seq, deleted) in enumerate(
            zip(keys, rows.column(SEQUENCE).to_pylist(), rows.column(DELETED).to_pylist(), strict=True)
        ):
            of_key = found.setdefault(key, {})
            other, change = of_key.get(seq), _BatchChange(row, bool(deleted))
            if other is None:
                of_key[seq] = change
            elif other.deleted != change.deleted or not (change.deleted or _row(rows, other.row) == _row(rows, row)):
                raise self._tie(key, seq)
        return found

    def _named(self, key: Key) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in zip(self._keys, key, strict=True))

    def _tie(self, key: Key, seq: Any) -> CannotFollow:
        return CannotFollow(
            f"two different changes of {self._named(key)} have the sequence {seq!r}, so it is not known which is the last: give a sequence_by that tells the "
            "changes of a key apart"
        )

    # ---------------------------------------------------------------- a batch

    def _apply(self, rows: pa.Table, query: str, batch: int) -> None:
        data, aside = self._opened(rows)
        changes = self._changes(rows)
        kind = rows.schema.field(SEQUENCE).type
        deletes = {key: [seq for seq, change in of_key.items() if change.deleted] for key, of_key in changes.items()}
        deletes = {key: seqs for key, seqs in deletes.items() if seqs}
        if data.mark(query) < batch:
            plan = self._plan(changes, data, aside, rows)
            self._commit(data, self._merge(rows, plan, data), {query: batch, LAYOUT: self._layout(kind), HISTORY: 0})
        if deletes:
            self._keep(deletes, aside, rows)
        self._batches += 1
        if self._oldest is not None and aside.exists and self._batches % _FORGET_EVERY == 1:
            self._forget(self._oldest(), aside, rows)

    def _opened(self, rows: pa.Table) -> tuple[SearchableTable, SearchableTable]:
        """The table and what is aside of it. Raises `CannotFollow` where it is not of this kind."""
        if self._tables is None:
            aside_path = getattr(self._target, "aside_path", None)
            found = self._target.table(self._path, self._path)
            if aside_path is None or not isinstance(found, SearchableTable):
                raise CannotFollow(
                    f"the target of {self._path} cannot be asked for single rows, which changes in any order need: choose another one"
                )
            aside = self._target.table(aside_path(self._path), self._path)
            assert isinstance(aside, SearchableTable)
            self._tables = found, aside
        data, _ = self._tables
        kind = rows.schema.field(SEQUENCE).type
        there = data.mark(LAYOUT) if data.exists and not self._was_cut_short(data, kind) else None
        if there == -1:
            raise CannotFollow(f"{self._path} exists, and apply_changes did not make it: choose another target, or remove that")
        if there not in (None, self._layout(kind)):
            raise CannotFollow(
                f"{self._path} was made with other keys, another type of sequence_by, or another history than keys={list(self._keys)}, {kind}, "
                f"history={self._history}: give the same, or another target"
            )
        return self._tables

    def _was_cut_short(self, data: SearchableTable, kind: pa.DataType) -> bool:
        """Whether it is what a process left that was killed between two steps which a database commits one by one: our columns, no marks, no row."""
        if data.mark(LAYOUT) >= 0 or data.mark(HISTORY) >= 0 or self._sequence not in data.names:
            return False
        return not len(data.rows_of(None, pa.schema([pa.field(self._sequence, kind)])))

    def _layout(self, kind: pa.DataType) -> int:
        text = f"{sorted(map(folded, self._keys))} {kind} {self._history}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")

    def _commit(self, table: SearchableTable, step: Step | None, marks: dict[str, int]) -> None:
        try:
            table.commit(step, marks)
        except CopyDiffers as error:
            raise CannotFollow(
                f"{error}. The frame's columns are not those of {self._path}: cast them, or choose another target"
            ) from error

    # ---------------------------------------------------------------- what it does

    def _plan(
        self, changes: dict[Key, dict[Any, _BatchChange]], data: SearchableTable, aside: SearchableTable, rows: pa.Table
    ) -> _BatchEffect:
        deleted = self._known(aside, SEQ, rows, changes)
        oldest = None if self._oldest is None else self._oldest()
        unknown = 0
        plan = _BatchEffect([], [], [], [])
        if self._history:
            versions = self._known(data, VALID_FROM, rows, changes, VALID_TO)
            for key, of_key in changes.items():
                unknown += self._plan_versions(
                    key, of_key, dict(versions.get(key, ())), {seq for (seq,) in deleted.get(key, ())}, oldest, plan
                )
        else:
            written = self._known(data, SEQ, rows, changes)
            for key, of_key in changes.items():
                (row,), (gone,) = written.get(key, [(None,)])[0], deleted.get(key, [(None,)])[0]
                unknown += self._plan_row(key, of_key, row, gone, oldest, plan)
        if unknown:
            _log.warning(
                "%s: %d changes that are older than %r are left out: of their keys nothing is known, so they may have been deleted since",
                *(self._path, unknown, oldest),
            )
        return plan

    def _plan_row(self, key: Key, of_key: dict[Any, _BatchChange], row: Any, gone: Any, oldest: Any, plan: _BatchEffect) -> bool:
        """Plan the last change of a key whose row was written at `row` and which was deleted at `gone`; return whether it is too old."""
        seq = max(of_key)
        change = of_key[seq]
        if seq == (row if change.deleted else gone):
            raise self._tie(key, seq)
        if (row is not None and seq <= row) or (gone is not None and seq <= gone):
            return False
        if change.deleted:
            if row is not None:
                plan.deletes.append(key)
        elif row is None and gone is None and oldest is not None and seq < oldest:
            return True
        else:
            plan.upserts.append(change.row)
        return False

    def _plan_versions(
        self, key: Key, of_key: dict[Any, _BatchChange], versions: dict[Any, Any], gone: set[Any], oldest: Any, plan: _BatchEffect
    ) -> int:
        """Plan the versions of a key, of which the table has `versions` with their ends, and which was deleted at each of `gone`; return how many changes
        are too old."""
        fresh, unknown, first = dict[Any, int](), 0, min(versions, default=None)
        gone = set(gone)
        for seq, change in of_key.items():
            if seq in (versions if change.deleted else gone):
                raise self._tie(key, seq)
            if change.deleted:
                gone.add(seq)
            elif seq not in versions:
                if oldest is not None and seq < oldest and (first is None or seq < first):
                    unknown += 1
                else:
                    fresh[seq] = change.row
        ends = sorted({*versions, *fresh, *gone, *(end for end in versions.values() if end is not None)})

        def end_of(seq: Any) -> Any:
            at = bisect_right(ends, seq)
            return ends[at] if at < len(ends) else None

        for seq, row in fresh.items():
            plan.upserts.append(row)
            plan.ends.append(end_of(seq))
        plan.updates.extend([(key, seq, end_of(seq)) for seq, end in versions.items() if end_of(seq) != end])
        return unknown

    def _known(
        self, table: SearchableTable, sequence: str, rows: pa.Table, keys: Iterable[Key], *more: str
    ) -> dict[Key, list[tuple[Any, ...]]]:
        """What a table has of these keys: for each row of a key its sequence, and `more` of that type."""
        if not table.exists:
            return {}
        schema, kind = rows.schema, rows.schema.field(SEQUENCE).type
        columns = [schema.field(key) for key in self._keys] + [pa.field(name, kind) for name in (sequence, *more)]
        found = table.rows_of(self._key_table(rows, keys), pa.schema(columns))
        known: dict[Key, list[tuple[Any, ...]]] = {}
        for key, values in zip(_tuples(found, self._keys), _tuples(found, (sequence, *more)), strict=True):
            known.setdefault(key, []).append(values)
        return known

    def _key_table(self, rows: pa.Table, keys: Iterable[Key]) -> pa.Table:
        fields = [rows.schema.field(key) for key in self._keys]
        columns = list(zip(*keys, strict=True)) or [()] * len(fields)
        return pa.Table.from_arrays(
            [pa.array(cells, field.type) for cells, field in zip(columns, fields, strict=True)], schema=pa.schema(fields)
        )

    # ---------------------------------------------------------------- steps

    def _merge(self, rows: pa.Table, plan: _BatchEffect, data: SearchableTable) -> Merge | None:
        """What `plan` says, as a step; None where the table has it all. New columns come first."""
        kind = rows.schema.field(SEQUENCE).type
        upserts = rows.drop_columns([DELETED]).take(pa.array(plan.upserts, pa.int64()))
        upserts = upserts.rename_columns([self._sequence if name == SEQUENCE else name for name in upserts.column_names])
        keys, updates = self._keys, None
        if self._history:
            keys = (*keys, VALID_FROM)
            upserts = upserts.append_column(VALID_TO, pa.array(plan.ends, kind))
            upserts = upserts.append_column(CURRENT, pa.array([end is None for end in plan.ends], pa.bool_()))
            updates = self._key_table(rows, [key for key, _, _ in plan.updates])
            updates = updates.append_column(VALID_FROM, pa.array([seq for _, seq, _ in plan.updates], kind))
            updates = updates.append_column(VALID_TO, pa.array([end for _, _, end in plan.updates], kind))
            updates = updates.append_column(CURRENT, pa.array([end is None for _, _, end in plan.updates], pa.bool_()))
        schema = _schema(upserts, keys)
        if data.exists:
            self._add_columns(schema, data)
            if not (plan.upserts or plan.deletes or plan.updates):
                return None
        deletes = self._key_table(rows, plan.deletes)
        if self._history:
            deletes = deletes.append_column(VALID_FROM, pa.array([], kind))
        return Merge(keys, upserts, deletes, schema, updates if plan.updates else None)

    @property
    def _sequence(self) -> str:
        return VALID_FROM if self._history else SEQ

    @property
    def _aside_keys(self) -> tuple[str, ...]:
        """The key of the deletes that are kept: of a history each has its own."""
        return (*self._keys, SEQ) if self._history else self._keys

    def _add_columns(self, schema: TableSchema, data: SearchableTable) -> None:
        """Give the table the columns of `schema` that it lacks: its rows have NULL there. Raises `CannotFollow`."""
        there, wanted = set(map(folded, data.names)), set(map(folded, schema.names))
        if missing := [name for name in data.names if folded(name) not in wanted]:
            raise CannotFollow(
                f"{self._path} has columns {', '.join(missing)}, which the frame does not have: give them, as lit(None), or choose another target"
            )
        if added := [column for column in schema.columns if folded(column.name) not in there]:
            self._commit(data, Alter(tuple([Change("", column.name, column) for column in added])), {})
            _log.info("%s has new columns: %s", self._path, ", ".join(column.name for column in added))

    def _keep(self, deletes: dict[Key, list[Any]], aside: SearchableTable, rows: pa.Table) -> None:
        """Keep the sequences of deletes: of a history all, else the last one of each key."""
        kind = rows.schema.field(SEQUENCE).type
        known = self._known(aside, SEQ, rows, deletes)
        if self._history:
            fresh = [(key, seq) for key, seqs in deletes.items() for seq in seqs if (seq,) not in known.get(key, ())]
        else:
            fresh = [(key, max(seqs)) for key, seqs in deletes.items() if key not in known or known[key][0][0] < max(seqs)]
        if fresh:
            keys = self._aside_keys
            kept = self._key_table(rows, [key for key, _ in fresh]).append_column(SEQ, pa.array([seq for _, seq in fresh], kind))
            self._commit(aside, Merge(keys, kept, kept.select(list(keys)).slice(0, 0), _schema(kept, keys)), {HISTORY: 0})

    def _forget(self, oldest: Any, aside: SearchableTable, rows: pa.Table) -> None:
        """Forget the deletes before `oldest`."""
        kind = rows.schema.field(SEQUENCE).type
        keys = self._aside_keys
        columns = pa.schema([*(rows.schema.field(key) for key in self._keys), pa.field(SEQ, kind)])
        found = aside.rows_of(None, columns)
        old = found.filter(pa.array([seq < oldest for seq in found.column(SEQ).to_pylist()], pa.bool_()))
        if len(old):
            self._commit(aside, Merge(keys, old.slice(0, 0), old.select(list(keys)), _schema(old, keys)), {})


def _schema(rows: pa.Table, keys: Sequence[str]) -> TableSchema:
    """The table that holds such rows. Raises `CannotFollow`."""
    names = rows.column_names
    if len(set(map(folded, names))) != len(names):
        twice = next(name for i, name in enumerate(names) if folded(name) in map(folded, names[:i]))
        raise CannotFollow(f"the frame has column {twice} twice: give one of them another name")
    columns = tuple([column_of(field, key=field.name in keys) for field in rows.schema])
    return TableSchema("", "", columns, tuple([names.index(key) for key in keys]))


def _tuples(table: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*[table.column(name).to_pylist() for name in names], strict=True))


def _row(rows: pa.Table, at: int) -> dict[str, Any]:
    found: dict[str, Any] = rows.slice(at, 1).to_pylist()[0]
    return found
