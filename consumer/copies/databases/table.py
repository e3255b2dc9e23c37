"""DatabaseTable: the copy of one table, a table of a database.

Rows in the table `MARKS`, written in the transaction that writes the rows, are the copy's marks: how far each query is, so that a batch that comes
again is recognized, and the state of the copy. What reads them first owns the copy until the transaction ends: another process that writes to the
same copy waits there, and then sees by the marks what is done.

Where a table's primary key changes, its copy holds the same rows at that moment, each with its own value of the new key, so the copy's key is
changed in the same way, before the first row of the new key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from shmstore.consumer.copies import schema_evolution
from shmstore.consumer.copies.change_reduction import (
    CURRENT,
    HISTORY,
    REMOVED,
    SEQ,
    VALID_FROM,
    VALID_TO,
    Alter,
    CannotFollow,
    Columns,
    CopyDiffers,
    CopyRefuses,
    Empty,
    Merge,
    Replace,
    Step,
    Versions,
    keeps_history,
)
from shmstore.consumer.copies.changed_rows import target_field
from shmstore.consumer.copies.databases.database import Database, DatabaseError
from shmstore.consumer.copies.databases.dialect import Refusal, Reshaping, TablePlace, TableShape
from shmstore.consumer.copies.databases.text_values import arrow_of
from shmstore.consumer.copies.ddl import Change
from shmstore.consumer.copies.targets.names import next_name
from shmstore.event import Column, TableSchema
from shmstore.sql.names import folded

MARKS = "_shmstore_marks"
_NAME = Column("name", "varchar", size=800, charset="utf8mb4")
_SEQ = Column(SEQ, "varchar", size=160)


class DatabaseTable:
    """The copy at `path`, ``schema.table`` or ``table`` in the connection's own schema; `name` is its table's, for messages."""

    def __init__(self, database: Database, path: str, name: str) -> None:
        self._database, self._name = database, name
        dialect = database.dialect
        schema, _, bare = path.rpartition(".")
        if schema and not dialect.schemas:
            raise CannotFollow(f"target {path!r} names a schema, and {dialect.kind} has none: give {{database}}_{{table}}")
        own = schema or dialect.own_schema(database)
        if not own and dialect.schemas:
            raise CannotFollow(
                f"target {path!r} names no schema, and the connection has none of its own: give {{database}}.{{table}}"
            )
        self._place, self._marks_place = TablePlace(own, bare), TablePlace(own, MARKS)
        self._table, self._marks = dialect.table(self._place), dialect.table(self._marks_place)
        self._path = path
        self._shape: TableShape | None = None
        self._fitted: TableSchema | None = None  # whose rows the columns are known to take
        self._created: TableSchema | None = None  # whose columns it was created with, by this object
        self._kept: dict[str, int] | None = None  # marks, as of the transaction
        self._transaction = -1
        if dialect.shape(database, self._marks_place) is None:
            if schema:
                dialect.create_schema(database, schema)
            key = dialect.type_of(_NAME, key=True, columns=3)
            number = dialect.type_of(Column("version", "bigint"), key=False, columns=3)
            marks = TableShape({"query": key, "name": key, "version": number}, ("query", "name"))
            dialect.create(database, self._marks_place, marks)
        self._read_marks()

    # ---------------------------------------------------------------- marks

    @property
    def exists(self) -> bool:
        """Whether there is such a table."""
        return self._shape is not None

    @property
    def keeps_history(self) -> bool:
        """Whether it keeps every version of a row."""
        return self._shape is not None and keeps_history(self.mark(HISTORY), self._shape.columns)

    @property
    def columns(self) -> Columns:
        """`TargetTable.columns`."""
        types = {} if self._shape is None else self._shape.columns
        found = {name: self._database.dialect.known(name, type_) for name, type_ in types.items()}
        return {folded(name): column for name, column in found.items() if column is not None}

    def mark(self, name: str) -> int:
        """The number that was committed last under `name`; -1 where there is none."""
        return self._read_marks().get(name, -1)

    def _read_marks(self) -> dict[str, int]:
        """The marks, read once in a transaction, behind the lock: from then on no other process changes them, nor the table."""
        if self._kept is None or self._transaction != self._database.transactions:
            dialect = self._database.dialect
            self._database.lock(f"{self._place.schema}.{self._place.name}")
            where = f"name = {dialect.text(self._place.name)}"
            found = {
                row[0]: int(row[1]) for row in self._database.query(f"SELECT query, version FROM {self._marks} WHERE {where}")
            }
            if found != self._kept:
                self._look()  # another process was here
            self._kept, self._transaction = found, self._database.transactions
        return self._kept

    def _keep(self, marks: Mapping[str, int]) -> None:
        text, kept = self._database.dialect.text, self._read_marks()
        if kept.pop(REMOVED, None) is not None:
            self._forget_marks(f"query = {text(REMOVED)}")
        for name, number in marks.items():
            if name in kept:
                where = f"query = {text(name)} AND name = {text(self._place.name)}"
                self._database.execute(f"UPDATE {self._marks} SET version = {number} WHERE {where}")
            else:
                values = f"{text(name)}, {text(self._place.name)}, {number}"
                self._database.execute(f"INSERT INTO {self._marks} (query, name, version) VALUES ({values})")
            kept[name] = number

    def _look(self) -> None:
        self._shape, self._fitted = self._database.dialect.shape(self._database, self._place), None

    # ---------------------------------------------------------------- steps

    @property
    def names(self) -> list[str]:
        """`SearchableTable.names`."""
        return [] if self._shape is None else list(self._shape.columns)

    def rows_of(self, keys: pa.Table | None, columns: pa.Schema) -> pa.Table:
        """`SearchableTable.rows_of`."""
        found = self._database.dialect.rows_of(self._database, self._place, keys, columns.names)
        cells = list(zip(*found, strict=True)) if found else [()] * len(columns)
        return pa.Table.from_arrays(
            [arrow_of(one, field.type) for one, field in zip(cells, columns, strict=True)], schema=columns
        )

    def create(self, schema: TableSchema, keys: Sequence[str], marks: Mapping[str, int]) -> None:
        """Create the table without rows. Raises `CopyRefuses`, `DatabaseError`."""
        with self._whole_step():
            self._create(schema, keys, history=False)
        self._keep(marks)

    def commit(self, step: Step | None, marks: Mapping[str, int]) -> None:
        """Do a step, or none, and keep `marks`, inside the transaction that is open.

        Raises `CopyDiffers` and `CannotFollow`, after which nothing was changed, and `DatabaseError`.
        """
        if self._shape is None and not isinstance(step, Merge | Versions):
            return  # changed before it was ever filled
        if step is not None:
            with self._whole_step(step.schema if isinstance(step, Merge | Versions) else None):
                self._do(step)
        self._keep(marks)

    def _do(self, step: Step) -> None:
        dialect, database = self._database.dialect, self._database
        if isinstance(step, Merge):
            self._merge(step)
        elif isinstance(step, Versions):
            self._add_versions(step)
        elif isinstance(step, Alter):
            for change in step.changes:
                self._alter(change)
        elif isinstance(step, Replace):
            self._replace(step)
        elif isinstance(step, Empty) and self.keeps_history:
            moment = dialect.literal(pa.array([step.time_ms * 1000], pa.timestamp("us")))
            off = dialect.literal(pa.array([False]))
            database.execute(f"UPDATE {self._table} SET {VALID_TO} = {moment}, {CURRENT} = {off} WHERE {CURRENT}")
        elif isinstance(step, Empty):
            dialect.empty(database, self._place, at_once=True)

    def remove(self, marks: Mapping[str, int]) -> None:
        """Drop the table. Where a DDL commits, a process that is killed behind it finds the marks of before, and does this again."""
        if self._shape is None and not self._read_marks():
            return
        self._database.execute(f"DROP TABLE IF EXISTS {self._table}")
        self._forget_marks("TRUE")
        self._shape, self._fitted = None, None
        self._read_marks().clear()
        self._keep({**marks, REMOVED: 1} if marks else {})

    def _forget_marks(self, which: str) -> None:
        """Forget marks of the copy, those that the condition `which` is true of."""
        name = self._database.dialect.text(self._place.name)
        self._database.execute(f"DELETE FROM {self._marks} WHERE name = {name} AND {which}")

    @contextmanager
    def _whole_step(self, schema: TableSchema | None = None) -> Iterator[None]:
        """Undo a step that the database refuses, and say whom that concerns. Values of `schema` that do not fit the columns which it was created
        with would not when they are read again. Raises `CopyDiffers`, `CopyRefuses`, `DatabaseError`."""
        try:
            with self._database.all_or_nothing():
                yield
        except DatabaseError as error:
            if error.refusal is Refusal.ALL:
                raise
            self._look()
            own = self._created is not None and schema is not None and schema[2:] == self._created[2:]
            if error.refusal is Refusal.VALUES and not own:
                raise CopyDiffers(f"the copy {self._table} of {self._name} cannot take its rows: {error}") from error
            raise CopyRefuses(f"the copy {self._table} of {self._name} cannot be written: {error}") from error
        except ValueError:
            self._look()
            raise

    # ---------------------------------------------------------------- the table

    def _create(self, schema: TableSchema, keys: Sequence[str], history: bool) -> None:
        dialect, width = self._database.dialect, len(schema.columns)
        dialect.check_names(schema.names, self._place.name)
        types = {column.name: dialect.type_of(column, key=column.name in keys, columns=width) for column in schema.columns}
        if history:
            types |= {VALID_FROM: dialect.moment_type, VALID_TO: dialect.moment_type, CURRENT: dialect.flag_type}
            types[SEQ] = dialect.type_of(_SEQ, key=True, columns=width)
            keys = [*keys, SEQ]
        dialect.create(self._database, self._place, TableShape(types, tuple(keys)))
        self._look()
        self._fitted = self._created = schema

    def _fit(self, schema: TableSchema, keys: Sequence[str], history: bool) -> TableShape:
        """Create the table where it is missing, and check that it is a copy of `schema`. Raises `CannotFollow`, `CopyDiffers`."""
        if self._shape is None:
            self._create(schema, keys, history)
        else:
            schema_evolution.require_kind(self._table, self._name, keeps=self.keeps_history, wanted=history)
        assert self._shape is not None
        if self._fitted is None or self._fitted[2:] != schema[2:]:
            if not history and not self._database.query(f"SELECT 1 FROM {self._table} LIMIT 1"):
                self._take_columns(schema, keys)
            there = set(map(folded, self._shape.columns))
            if missing := [name for name in schema.names if folded(name) not in there]:
                raise CopyDiffers(
                    f"{self._name} has columns {', '.join(missing)} that its copy {self._table} does not have, and no DDL explains it"
                )
        self._fitted = schema
        wanted = {folded(key) for key in keys} | ({SEQ} if history else set())
        if self._shape.keys and set(map(folded, self._shape.keys)) != wanted:
            self._change_key(schema, [*keys, SEQ] if history else list(keys))
        return self._shape

    def _change_key(self, schema: TableSchema, keys: Sequence[str]) -> None:
        """Give the copy its table's new primary key: one statement, so that it has the old one or the new. Raises `CopyDiffers`."""
        dialect, database = self._database.dialect, self._database
        assert self._shape is not None
        before, own = self._shape.keys, {folded(name): name for name in self._shape.columns}
        called = tuple([own[folded(key)] for key in keys])
        modify = {
            own[folded(column.name)]: dialect.type_of(column, key=own[folded(column.name)] in called, columns=len(schema.columns))
            for column in schema.columns
            if (own[folded(column.name)] in called) != (own[folded(column.name)] in before)
        }
        try:
            with database.all_or_nothing():
                dialect.reshape(database, self._place, self._shape, Reshaping(modify=modify, keys=called))
        except DatabaseError as error:
            if error.refusal is Refusal.ALL:
                raise
            raise CopyDiffers(
                f"the primary key of {self._name} is now {', '.join(keys)}, and its copy {self._table} (key {', '.join(sorted(before))}) cannot "
                f"be changed to it: {error}"
            ) from error
        self._look()
        self._fitted = schema

    def _replace(self, step: Replace) -> None:
        """Take the rows, columns and key of the table at `step.path`. Where a DDL commits, readers see it piece by piece."""
        other = DatabaseTable(self._database, step.path, self._name)
        if other._shape is None:
            other.create(step.schema, step.keys, {})
        assert other._shape is not None
        names = self._names(list(other._shape.columns))
        self._database.dialect.empty(self._database, self._place, at_once=not self._database.dialect.ddl_commits)
        self._reshape(other._shape)
        self._database.execute(f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {other._table}")

    def _take_columns(self, schema: TableSchema, keys: Sequence[str]) -> None:
        """Give the copy, which has no rows, the columns of `schema`: as many are dropped and added as differ."""
        number = int.from_bytes(hashlib.sha256(self._table.encode()).digest()[:7], "big")
        other = DatabaseTable(self._database, next_name(self._path, number), self._name)
        other.remove({})  # of a process that was killed here
        other.create(schema, keys, {})
        assert other._shape is not None
        self._reshape(other._shape)
        other.remove({})

    def _reshape(self, wanted: TableShape) -> None:
        """Give the copy, which has no rows, these columns and this key."""
        assert self._shape is not None
        there, new = _typed(self._shape), _typed(wanted)
        drop = tuple([name for name, type_ in there.items() if new.get(name) != type_])
        add = {name: type_[0] for name, type_ in new.items() if there.get(name) != type_}
        if drop or add or self._shape.keys != wanted.keys:
            change = Reshaping(drop, add, keys=wanted.keys)
            self._database.dialect.reshape(self._database, self._place, self._shape, change)
            self._look()

    def _names(self, columns: Sequence[str]) -> str:
        return ", ".join(map(self._database.dialect.quote, columns))

    # ---------------------------------------------------------------- rows

    def _merge(self, step: Merge) -> None:
        shape = self._fit(step.schema, step.keys, history=False)
        step = schema_evolution.spelled(step, list(shape.columns))
        self._widen(step.upserts)
        if step.updates is not None:
            self._widen(step.updates)
        with self._database.all_or_nothing():
            self._database.dialect.merge(self._database, self._place, list(step.keys), step.deletes, step.upserts)
            if step.updates is not None and len(step.updates):
                self._database.dialect.update(self._database, self._place, list(step.keys), step.updates)

    def _add_versions(self, step: Versions) -> None:
        shape = self._fit(step.schema, step.keys, history=True)
        step = schema_evolution.spelled(step, list(shape.columns))
        self._widen(step.versions)
        dialect, database = self._database.dialect, self._database
        with database.all_or_nothing():
            dialect.end_versions(database, self._place, list(step.keys), step.ends)
            # a version that is there came from another query, or from a batch of another number: the same row
            keys = [*step.keys, SEQ]
            dialect.merge(database, self._place, keys, step.versions.select(keys).slice(0, 0), step.versions)

    def _widen(self, rows: pa.Table) -> None:
        """Make room for values that their server holds though its column is too short for them. Done again it changes nothing."""
        assert self._shape is not None
        dialect = self._database.dialect
        if wider := dialect.too_narrow(self._shape, rows):
            dialect.reshape(self._database, self._place, self._shape, Reshaping(modify=wider))
            self._look()

    # ---------------------------------------------------------------- columns

    def _alter(self, change: Change) -> None:
        """Follow one column change; one that is done already changes nothing."""
        assert self._shape is not None
        database, dialect, shape = self._database, self._database.dialect, self._shape
        there = {folded(column): column for column in shape.columns}
        name = there.get(folded(change.name)) if change.name else None
        dialect.check_names([change.to] if change.to else [])
        if not change.name:
            if folded(change.to) not in there and change.column is not None:
                self._add(change, change.column)
        elif name is not None and not change.to:
            dialect.reshape(database, self._place, shape, Reshaping(drop=(name,)))
        else:
            if name is not None and name != change.to:
                dialect.rename(database, self._place, name, change.to)
                self._look()
            if change.column is not None and (name is not None or folded(change.to) in there):
                self._modify(change.column)
        self._look()

    def _modify(self, column: Column) -> None:
        assert self._shape is not None
        name = next(one for one in self._shape.columns if folded(one) == folded(column.name))
        dialect = self._database.dialect
        type_ = dialect.type_of(column, key=name in self._shape.keys, columns=len(self._shape.columns))
        dialect.reshape(self._database, self._place, self._shape, Reshaping(modify={name: type_}))

    def _add(self, change: Change, column: Column) -> None:
        assert self._shape is not None
        dialect = self._database.dialect
        type_ = dialect.type_of(column, key=False, columns=len(self._shape.columns))
        default = ""
        if change.default is not None:
            default = dialect.literal(schema_evolution.constant(change.default, target_field(column), 1))
        dialect.add(self._database, self._place, change.to, type_, default)


def _typed(shape: TableShape) -> dict[str, tuple[str, bool]]:
    """Each column's type, and whether it is part of the key: then it is NOT NULL."""
    return {name: (type_, name in shape.keys) for name, type_ in shape.columns.items()}
