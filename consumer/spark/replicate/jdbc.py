"""JdbcTarget: copies of tables in PostgreSQL, MariaDB or MySQL, merged in the database.

A micro-batch is one transaction over all its tables, so that readers of the copies see whole transactions of the source. Rows
in the table `MARKS`, written in the same transaction, are a table's marks: how far each query is, so that a replayed batch is
recognized, and the state of the copy. MySQL and MariaDB commit before and after each DDL by themselves; each column change, and a
copy's new rows, can be done again, so that a replay repairs a crash between any two lines.

Changed keys go into a temporary table; rows with these keys are deleted, and rows that are there now are inserted. Unlike
ON CONFLICT or ON DUPLICATE KEY this is right in any order of changes where a copy has further unique indexes (two rows that
swap a value), and never touches a row of another key.

Where a table's primary key changes, its copy holds the same rows at that moment, each with its own value of
the new key, so the copy's key is changed in the same way, before the first row of the new key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import pyarrow as pa

from shmstore.consumer.copies import schema_evolution
from shmstore.consumer.copies.change_reduction import (
    CURRENT,
    HISTORY,
    OURS,
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
    target_field,
)
from shmstore.consumer.copies.ddl import Change
from shmstore.consumer.copies.targets.names import next_name, part_of_name
from shmstore.consumer.spark.replicate.jdbc_connection import Database, DatabaseError
from shmstore.consumer.spark.replicate.sql_dialect import column_of
from shmstore.event import Column, TableSchema
from shmstore.sql.names import folded

MARKS = "_shmstore_marks"
_STAGE = OURS + "stage"
_POSTGRES_NAME = 63  # bytes


def _tables_like(database: Database, head: str, tail: str) -> list[str]:
    """Return the source tables that have a copy: what is between `head` (``schema.prefix``) and `tail` in their names."""
    schema, _, prefix = head.rpartition(".")
    where = database.dialect.text(schema) if schema else database.dialect.current_schema
    found = [row[0] for row in database.query(f"SELECT table_name FROM information_schema.tables WHERE table_schema = {where}")]
    fitting = [name for name in found if name.startswith(prefix) and name.endswith(tail) and not name.startswith(OURS)]
    return [name[len(prefix) : len(name) - len(tail)] for name in fitting]


def _all_tables(database: Database) -> list[str]:
    """Return every copy, as ``schema.table``, those in the connection's own schema as ``table``, too: the tables that have marks."""
    dialect = database.dialect
    schemas = database.query(
        f"SELECT table_schema, {dialect.current_schema} FROM information_schema.tables WHERE table_name = {dialect.text(MARKS)}"
    )
    found = []
    for schema, own in schemas:
        names = [row[0] for row in database.query(f"SELECT DISTINCT name FROM {dialect.quote(schema)}.{MARKS} ORDER BY name")]
        found += [f"{schema}.{name}" for name in names if not name.startswith(OURS)]
        found += [name for name in names if schema == own and not name.startswith(OURS)]
    return found


class JdbcTarget:
    """The copies in a database (`Target`): a micro-batch is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def table(self, path: str, name: str) -> JdbcTable:
        """`Target.table`."""
        return JdbcTable(self._database, path, name)

    def named(self, name: str) -> str:
        """`Target.named`."""
        return part_of_name(name)

    def unnamed(self, part: str) -> str:
        """`Target.unnamed`."""
        return part

    def next_path(self, path: str, number: int) -> str:
        """`Target.next_path`."""
        return next_name(path, number)

    def paths(self, template: str) -> list[str]:
        """`Target.paths`."""
        if "{database}" in template:
            return _all_tables(self._database)
        head, _, tail = template.partition("{table}")
        return [f"{head}{name}{tail}" for name in _tables_like(self._database, head, tail)]

    def transaction(self) -> AbstractContextManager[None]:
        """`Target.transaction`."""
        return self._database.transaction()

    def close(self) -> None:
        """Close the connection."""
        self._database.close()


class JdbcTable:
    """One table's copy, a table of `database`. `path` is ``schema.table``, or ``table`` in the connection's own schema."""

    def __init__(self, database: Database, path: str, name: str) -> None:
        self._database = database
        self._name = name
        dialect = database.dialect
        schema, _, self._bare = path.rpartition(".")
        self._own = not schema
        self._schema = schema or database.query(f"SELECT {dialect.current_schema}")[0][0]
        if not self._schema:
            raise ValueError(f"target {path!r} names no schema, and the URL names no database: give {{database}}.{{table}}")
        self._table = f"{dialect.quote(self._schema)}.{dialect.quote(self._bare)}"
        self._marks = f"{dialect.quote(self._schema)}.{MARKS}"
        # PostgreSQL keeps temporary tables in a schema of their own; MySQL's are in one like any other
        self._stage = _STAGE if dialect.postgres else f"{dialect.quote(self._schema)}.{_STAGE}"
        self._columns: list[str] | None = None
        self._keys: set[str] = set()
        self._constraint = ""
        self._fitted: TableSchema | None = None  # whose rows the columns are known to take
        self._kept: dict[str, int] = {}  # marks, as of the transaction
        self._transaction = -1
        self._look()

    # ---------------------------------------------------------------- marks

    @property
    def exists(self) -> bool:
        """Whether there is such a table."""
        return self._columns is not None

    @property
    def keeps_history(self) -> bool:
        """Whether it keeps every version of a row."""
        return self._columns is not None and keeps_history(self.mark(HISTORY), self._columns)

    @property
    def columns(self) -> Columns:
        """`TargetTable.columns`."""
        found = {} if self._columns is None else {name: column_of(name, type_) for name, (type_, _) in self._types().items()}
        return {folded(name): column for name, column in found.items() if column is not None}

    def mark(self, name: str) -> int:
        """The number that was committed last under `name`; -1 where there is none."""
        if self._transaction != self._database.transactions:
            # FOR UPDATE: an abandoned driver that still runs waits here, and then sees that the batch is done
            where = f"name = {self._database.dialect.text(self._bare)}"
            found = self._database.query(f"SELECT query, version FROM {self._marks} WHERE {where} FOR UPDATE")
            self._kept = {row[0]: int(row[1]) for row in found}
            self._transaction = self._database.transactions
        return self._kept.get(name, -1)

    def _keep(self, marks: Mapping[str, int]) -> None:
        text = self._database.dialect.text
        for name, number in marks.items():
            where = f"query = {text(name)} AND name = {text(self._bare)}"
            if self.mark(name) == -1:
                self._database.execute(f"INSERT INTO {self._marks} VALUES ({text(name)}, {text(self._bare)}, {number})")
            else:
                self._database.execute(f"UPDATE {self._marks} SET version = {number} WHERE {where}")
            self._kept[name] = number

    def _look(self) -> None:
        """Read the table's columns and keys, and create the table of marks where it is missing."""
        database, text = self._database, self._database.dialect.text
        where = f"table_schema = {text(self._schema)} AND table_name = "
        if not database.query(f"SELECT 1 FROM information_schema.tables WHERE {where}{text(MARKS)}"):
            if not self._own and not database.query(
                f"SELECT 1 FROM information_schema.schemata WHERE schema_name = {text(self._schema)}"
            ):
                database.execute(database.dialect.create_schema(self._schema))
            columns = (
                "query VARCHAR(100) NOT NULL, name VARCHAR(150) NOT NULL, version BIGINT NOT NULL, PRIMARY KEY (query, name)"
            )
            database.execute(f"CREATE TABLE IF NOT EXISTS {self._marks} ({columns}){database.dialect.table_options}")
        found = database.query(
            f"SELECT column_name FROM information_schema.columns WHERE {where}{text(self._bare)} ORDER BY ordinal_position"
        )
        self._columns = [row[0] for row in found] or None
        keys = database.query(
            "SELECT k.column_name, c.constraint_name FROM information_schema.table_constraints c JOIN information_schema.key_column_usage k "
            "ON k.constraint_name = c.constraint_name AND k.table_schema = c.table_schema AND k.table_name = c.table_name "
            f"WHERE c.constraint_type = 'PRIMARY KEY' AND c.{where.replace('table_name', 'c.table_name')}{text(self._bare)}"
        )
        self._keys = {folded(row[0]) for row in keys}
        self._constraint = keys[0][1] if keys else ""

    # ---------------------------------------------------------------- steps

    def create(self, schema: TableSchema, keys: Sequence[str], marks: Mapping[str, int]) -> None:
        """Create the table without rows. Raises `CopyRefuses`, `DatabaseError`."""
        self._create(schema, keys, history=False)
        self._keep(marks)

    def commit(self, step: Step | None, marks: Mapping[str, int]) -> None:
        """Do a step, or none, and keep `marks`, inside the transaction that is open.

        Raises `CopyDiffers` and `CannotFollow`, after which nothing was changed, and `DatabaseError`.
        """
        if isinstance(step, Merge):
            self._merge(step)
        elif isinstance(step, Versions):
            self._add_versions(step)
        elif self._columns is None:
            return  # changed before it was ever filled
        elif isinstance(step, Alter):
            self._change_columns(step.changes)
        elif isinstance(step, Replace):
            self._replace(step)
        elif isinstance(step, Empty) and self.keeps_history:
            moment = self._database.dialect.literals(pa.array([step.time_ms * 1000], pa.timestamp("us")))[0]
            self._database.execute(f"UPDATE {self._table} SET {VALID_TO} = {moment}, {CURRENT} = FALSE WHERE {CURRENT}")
        elif isinstance(step, Empty):
            self._database.execute(f"TRUNCATE TABLE {self._table}")
        self._keep(marks)

    def remove(self) -> None:
        """Drop the table and its marks."""
        self._database.execute(f"DROP TABLE IF EXISTS {self._table}")
        self._database.execute(f"DELETE FROM {self._marks} WHERE name = {self._database.dialect.text(self._bare)}")
        self._columns, self._kept, self._fitted = None, {}, None

    def _names(self, columns: Sequence[str]) -> str:
        return ", ".join(map(self._database.dialect.quote, columns))

    def _create(self, schema: TableSchema, keys: Sequence[str], history: bool) -> None:
        dialect, width = self._database.dialect, len(schema.columns)
        self._check_names([self._bare, *schema.names])
        parts = []
        for column in schema.columns:
            key = column.name in keys
            parts.append(f"{dialect.quote(column.name)} {dialect.type_of(column, key=key, columns=width)}")
        if history:
            parts += [f"{VALID_FROM} {dialect.moment}", f"{VALID_TO} {dialect.moment}"]
            parts += [f"{CURRENT} BOOLEAN NOT NULL", f"{SEQ} VARCHAR(160) NOT NULL"]
            keys = [*keys, SEQ]
        parts.append(f"PRIMARY KEY ({self._names(keys)})")
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({', '.join(parts)}){dialect.table_options}")
        self._look()
        self._fitted = schema

    def _check_names(self, names: Sequence[str]) -> None:
        """PostgreSQL would cut names silently. Raises `CopyRefuses`."""
        long = [name for name in names if len(name.encode()) > _POSTGRES_NAME] if self._database.dialect.postgres else []
        if long:
            raise CopyRefuses(
                f"{long[0]!r} has {len(long[0].encode())} bytes, and PostgreSQL's names have at most {_POSTGRES_NAME}: rename it, filter the column "
                "out in the producer, or leave the table out"
            )

    def _fit(self, schema: TableSchema, keys: Sequence[str], history: bool) -> None:
        """Create the table where it is missing, and check that it is a copy of `schema`. Raises `CannotFollow`, `CopyDiffers`."""
        if self._columns is None:
            self._create(schema, keys, history)
        elif history != self.keeps_history:
            fix = "choose another target, or history=True" if not history else "choose another target"
            raise CannotFollow(
                f"the copy {self._table} of {self._name} keeps {'no' if history else 'the'} history of its rows: {fix}"
            )
        if self._fitted is None or self._fitted[2:] != schema[2:]:
            if not history and not self._database.query(f"SELECT 1 FROM {self._table} LIMIT 1"):
                self._take_columns(schema, keys)
            there = {folded(column) for column in self._columns or []}
            if missing := [name for name in schema.names if folded(name) not in there]:
                raise CopyDiffers(
                    f"{self._name} has columns {', '.join(missing)} that its copy {self._table} does not have, and no DDL explains it"
                )
        self._fitted = schema
        wanted = {folded(key) for key in keys} | ({SEQ} if history else set())
        if self._keys and self._keys != wanted:
            self._change_key(schema, [*keys, SEQ] if history else keys)

    def _change_key(self, schema: TableSchema, keys: Sequence[str]) -> None:
        """Give the copy its table's new primary key: one statement, so that it has the old one or the new. Raises `CopyDiffers`."""
        dialect, before = self._database.dialect, self._keys
        changed = [column for column in schema.columns if (column.name in keys) != (folded(column.name) in before)]
        if dialect.postgres:
            parts = [f"DROP CONSTRAINT {dialect.quote(self._constraint)}"]
            parts += [f"ALTER COLUMN {dialect.quote(column.name)} DROP NOT NULL" for column in changed if column.name not in keys]
        else:
            types = [dialect.type_of(column, key=column.name in keys, columns=len(schema.columns)) for column in changed]
            parts = [f"MODIFY COLUMN {dialect.quote(column.name)} {type_}" for column, type_ in zip(changed, types, strict=True)]
            parts.append("DROP PRIMARY KEY")
        sql = f"ALTER TABLE {self._table} {', '.join(parts)}, ADD PRIMARY KEY ({self._names(keys)})"
        try:
            with self._database.all_or_nothing():
                self._database.execute(sql)
        except DatabaseError as error:
            raise CopyDiffers(
                f"the primary key of {self._name} is now {', '.join(keys)}, and its copy {self._table} (key {', '.join(sorted(before))}) cannot "
                f"be changed to it: {error}"
            ) from error
        self._look()

    # ---------------------------------------------------------------- other rows, other columns

    def _replace(self, step: Replace) -> None:
        """Take the rows, columns and key of the table at `step.path`. PostgreSQL shows it all at once, the others after each DDL."""
        other = JdbcTable(self._database, step.path, self._name)
        if not other.exists:
            other.create(step.schema, step.keys, {})
        names = self._names(other._columns or [])
        self._database.execute(f"{'TRUNCATE TABLE' if self._database.dialect.postgres else 'DELETE FROM'} {self._table}")
        self._reshape(other, step.keys)
        self._database.execute(f"INSERT INTO {self._table} ({names}) SELECT {names} FROM {other._table}")

    def _take_columns(self, schema: TableSchema, keys: Sequence[str]) -> None:
        """Give the copy, which has no rows, the columns of `schema`: as many are dropped and added as differ."""
        number = int.from_bytes(hashlib.sha256(self._table.encode()).digest()[:7], "big")
        other = JdbcTable(self._database, next_name(f"{self._schema}.{self._bare}", number), self._name)
        other.remove()  # of a driver that was killed here
        other.create(schema, keys, {})
        self._reshape(other, keys)
        other.remove()

    def _reshape(self, other: JdbcTable, keys: Sequence[str]) -> None:
        quote, there, wanted = self._database.dialect.quote, self._types(), other._types()
        parts = [f"DROP COLUMN {quote(name)}" for name, type_ in there.items() if wanted.get(name) != type_]
        parts += [f"ADD COLUMN {quote(name)} {type_[0]}" for name, type_ in wanted.items() if there.get(name) != type_]
        if not parts and self._keys == other._keys:
            return
        if self._keys:
            drop = f"DROP CONSTRAINT {quote(self._constraint)}" if self._database.dialect.postgres else "DROP PRIMARY KEY"
            parts.insert(0, drop)
        self._database.execute(f"ALTER TABLE {self._table} {', '.join(parts)}, ADD PRIMARY KEY ({self._names(keys)})")
        self._look()

    def _types(self) -> dict[str, tuple[str, bool]]:
        """Each column's type, and whether it is part of the key: then it is NOT NULL."""
        text = self._database.dialect.text
        if self._database.dialect.postgres:
            found = self._database.query(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                f"WHERE attrelid = {text(self._table)}::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
            )
        else:
            found = self._database.query(
                "SELECT column_name, column_type FROM information_schema.columns "
                f"WHERE table_schema = {text(self._schema)} AND table_name = {text(self._bare)} ORDER BY ordinal_position"
            )
        return {name: (type_, folded(name) in self._keys) for name, type_ in found}

    @contextmanager
    def _staged(self, columns: Sequence[str], rows: Sequence[str]) -> Iterator[None]:
        """A temporary table with the types of the copy's `columns`, and these rows."""
        names = self._names(columns)
        if not self._database.dialect.postgres:  # which drops one that is left of rows that were refused
            self._database.execute(f"DROP TEMPORARY TABLE IF EXISTS {self._stage}")
        self._database.execute(f"CREATE TEMPORARY TABLE {self._stage} AS SELECT {names} FROM {self._table} WHERE 1 = 0")
        self._database.insert(self._stage, names, list(rows))
        yield
        self._database.execute(f"DROP {'' if self._database.dialect.postgres else 'TEMPORARY '}TABLE {self._stage}")

    def _same(self, keys: Sequence[str], table: str = "t") -> str:
        quote = self._database.dialect.quote
        return " AND ".join(f"{table}.{quote(key)} = s.{quote(key)}" for key in keys)

    def _delete(self, keys: Sequence[str], rows: Sequence[str]) -> None:
        """Delete the rows with these keys."""
        with self._staged(keys, rows):
            if self._database.dialect.postgres:
                self._database.execute(f"DELETE FROM {self._table} t USING {self._stage} s WHERE {self._same(keys)}")
            else:
                # by its whole name: with an alias MySQL asks for a database of the connection
                over = self._same(keys, self._table)
                self._database.execute(f"DELETE {self._table} FROM {self._table} JOIN {self._stage} s ON {over}")

    @contextmanager
    def _values_fit(self) -> Iterator[None]:
        """Raise `CopyDiffers` where values are no values of the copy's columns: then nothing was changed."""
        try:
            with self._database.all_or_nothing():
                yield
        except DatabaseError as error:
            if not error.of_values:
                raise
            raise CopyDiffers(f"the copy {self._table} of {self._name} cannot take its rows: {error}") from error

    def _merge(self, step: Merge) -> None:
        dialect, keys = self._database.dialect, list(step.keys)
        touched = dialect.rows(pa.concat_tables([step.upserts.select(keys), step.deletes.select(keys)]))
        upserts = dialect.rows(step.upserts)  # before anything is done: they may be none that the database can hold
        self._fit(step.schema, step.keys, history=False)
        step = schema_evolution.spelled(step, self._columns or [])
        keys = list(step.keys)
        with self._values_fit():
            self._delete(keys, touched)
            self._database.insert(self._table, self._names(step.upserts.column_names), upserts)

    def _add_versions(self, step: Versions) -> None:
        versions = self._database.dialect.rows(step.versions)
        self._fit(step.schema, step.keys, history=True)
        step = schema_evolution.spelled(step, self._columns or [])
        with self._values_fit():
            self._add_rows(step, versions)

    def _add_rows(self, step: Versions, versions: list[str]) -> None:
        dialect, keys = self._database.dialect, list(step.keys)
        over = f"{self._same(keys)} AND t.{CURRENT} AND t.{SEQ} < s.{SEQ}"
        with self._staged([*keys, VALID_TO, SEQ], dialect.rows(step.ends)):
            if dialect.postgres:
                set_ = f"{VALID_TO} = s.{VALID_TO}, {CURRENT} = FALSE"
                self._database.execute(f"UPDATE {self._table} t SET {set_} FROM {self._stage} s WHERE {over}")
            else:
                set_ = f"t.{VALID_TO} = s.{VALID_TO}, t.{CURRENT} = FALSE"
                self._database.execute(f"UPDATE {self._table} t JOIN {self._stage} s ON {over} SET {set_}")
        # a version that is there came from another query, or from a batch of another number: the same row
        self._delete([*keys, SEQ], dialect.rows(step.versions.select([*keys, SEQ])))
        self._database.insert(self._table, self._names(step.versions.column_names), versions)

    # ---------------------------------------------------------------- columns

    def _change_columns(self, changes: Sequence[Change]) -> None:
        """Follow column changes, all at once. Raises `CopyDiffers` where a column of the copy has values that the new one cannot have."""
        try:
            with self._values_fit():
                for change in changes:
                    self._alter(change)
        except CopyDiffers:
            self._look()
            raise

    def _alter(self, change: Change) -> None:
        """Follow one column change; one that is done already changes nothing."""
        database, dialect = self._database, self._database.dialect
        there = {folded(column): column for column in self._columns or []}
        name, head = there.get(folded(change.name)), f"ALTER TABLE {self._table}"
        self._check_names([change.to])
        if not change.name:
            if folded(change.to) not in there and change.column is not None:
                self._add(change, change.column)
        elif name is not None and not change.to:
            database.execute(f"{head} DROP COLUMN {dialect.quote(name)}")
        else:
            if name is not None and name != change.to:
                database.execute(f"{head} RENAME COLUMN {dialect.quote(name)} TO {dialect.quote(change.to)}")
            if change.column is not None and (name is not None or folded(change.to) in there):
                self._modify(change.to, change.column, key=folded(change.name) in self._keys)
        self._look()
        self._fitted = None

    def _modify(self, name: str, column: Column, *, key: bool) -> None:
        dialect, quoted = self._database.dialect, self._database.dialect.quote(name)
        type_ = dialect.type_of(column, key=key, columns=len(self._columns or []))
        how = f"ALTER COLUMN {quoted} TYPE {type_}" if dialect.postgres else f"MODIFY COLUMN {quoted} {type_}"
        self._database.execute(f"ALTER TABLE {self._table} {how}")

    def _add(self, change: Change, column: Column) -> None:
        dialect = self._database.dialect
        type_ = dialect.type_of(column, key=False, columns=len(self._columns or []))
        sql = f"ALTER TABLE {self._table} ADD COLUMN {dialect.quote(change.to)} {type_}"
        if change.default is not None:
            # MySQL gives long text no default but in brackets
            sql += f" DEFAULT ({dialect.literals(schema_evolution.constant(change.default, target_field(column), 1))[0]})"
        self._database.execute(sql)
