"""JdbcTarget: copies of tables in PostgreSQL, MariaDB or MySQL, merged in the database.

A micro-batch is one transaction over all its tables, so that readers of the copies see whole transactions of the source. A row
in the table `MARKS`, written in the same transaction, says for each query and table how far it is, so that a replayed batch is
recognised. MySQL and MariaDB commit before and after each DDL by themselves; marks count steps, and each column change is a
step of its own that changes nothing when it is done already, so that a replay repairs a crash between any two lines.

Changed keys go into a temporary table; rows with these keys are deleted, and rows that are there now are inserted. Unlike
ON CONFLICT or ON DUPLICATE KEY this is right in any order of changes where a copy has further unique indexes (two rows that
swap a value), and never touches a row of another key.

Where a table's primary key changes, its copy holds the same rows at that moment, each with its own value of
the new key, so the copy's key is changed in the same way, before the first row of the new key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from shmstore.consumer.spark.ddl import Clause
from shmstore.consumer.spark.replicate import schema_evolution
from shmstore.consumer.spark.replicate.change_reduction import (
    CURRENT,
    SEQ,
    VALID_FROM,
    VALID_TO,
    Alter,
    CannotFollow,
    Merge,
    Step,
    Versions,
    target_field,
)
from shmstore.consumer.spark.replicate.jdbc_connection import Database, DatabaseError
from shmstore.event import TableSchema

MARKS = "_shmstore_marks"
_STEPS = 1 << 16
_STAGE = "_shmstore_stage"


def tables_like(database: Database, head: str, tail: str) -> list[str]:
    """Return the source tables that have a copy: what is between `head` (``schema.prefix``) and `tail` in their names."""
    schema, _, prefix = head.rpartition(".")
    where = database.dialect.text(schema) if schema else database.dialect.current_schema
    found = [row[0] for row in database.query(f"SELECT table_name FROM information_schema.tables WHERE table_schema = {where}")]
    fitting = [name for name in found if name.startswith(prefix) and name.endswith(tail) and name != MARKS]
    return [name[len(prefix) : len(name) - len(tail)] for name in fitting]


class JdbcTarget:
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
        self._look()

    # ---------------------------------------------------------------- marks

    def done(self, query: str, batch: int) -> bool:
        """True when all of this batch of this query is in the copy."""
        return self._version(query) >= batch * _STEPS + _STEPS - 1

    def _where(self, query: str) -> str:
        text = self._database.dialect.text
        return f"query = {text(query)} AND name = {text(self._bare)}"

    def _version(self, query: str) -> int:
        # FOR UPDATE: an abandoned driver that still runs waits here, and then sees that the batch is done
        found = self._database.query(f"SELECT version FROM {self._marks} WHERE {self._where(query)} FOR UPDATE")
        return int(found[0][0]) if found else -1

    def _mark(self, query: str, version: int) -> None:
        if not self._database.execute(f"UPDATE {self._marks} SET version = {version} WHERE {self._where(query)}"):
            text = self._database.dialect.text
            self._database.execute(f"INSERT INTO {self._marks} VALUES ({text(query)}, {text(self._bare)}, {version})")

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
        self._keys = {row[0].lower() for row in keys}
        self._constraint = keys[0][1] if keys else ""

    # ---------------------------------------------------------------- steps

    def apply(self, steps: Sequence[Step], query: str, batch: int) -> None:
        """Bring the copy up to date, inside the transaction that is open. Raises `CannotFollow`, `DatabaseError`."""
        version = self._version(query)
        parts: list[Step] = []
        for step in steps:
            parts += [Alter((clause,)) for clause in step.clauses] if isinstance(step, Alter) else [step]
        for number, step in enumerate(parts):
            # the batch's last step has the highest number that the batch can have: `done` then knows it is whole
            this = batch * _STEPS + (_STEPS - 1 if number == len(parts) - 1 else number)
            if version >= this:
                continue
            self._step(step)
            self._mark(query, this)

    def _step(self, step: Step) -> None:
        if isinstance(step, Merge):
            self._merge(step)
        elif isinstance(step, Versions):
            self._add_versions(step)
        elif self._columns is None:
            pass  # changed before it was ever filled
        elif isinstance(step, Alter):
            self._alter(step.clauses[0])
        elif SEQ in self._columns:
            moment = self._database.dialect.literals(pa.array([step.time_ms * 1000], pa.timestamp("us")))[0]
            self._database.execute(f"UPDATE {self._table} SET {VALID_TO} = {moment}, {CURRENT} = FALSE WHERE {CURRENT}")
        else:
            self._database.execute(f"TRUNCATE TABLE {self._table}")

    def _names(self, columns: Sequence[str]) -> str:
        return ", ".join(map(self._database.dialect.quote, columns))

    def _create(self, schema: TableSchema, keys: Sequence[str], history: bool) -> None:
        dialect, width = self._database.dialect, len(schema.columns)
        parts = []
        for column in schema.columns:
            key = column.name in keys
            parts.append(f"{dialect.quote(column.name)} {dialect.type_of(column, key=key, columns=width)}")
        if history:
            parts += [f"{VALID_FROM} {dialect.moment}", f"{VALID_TO} {dialect.moment}"]
            parts += [f"{CURRENT} BOOLEAN NOT NULL", f"{SEQ} VARCHAR(40) NOT NULL"]
            keys = [*keys, SEQ]
        parts.append(f"PRIMARY KEY ({self._names(keys)})")
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({', '.join(parts)}){dialect.table_options}")
        self._look()

    def _fit(self, schema: TableSchema, keys: Sequence[str], history: bool) -> None:
        """Create the table where it is missing, and check that it is a copy of `schema`. Raises `CannotFollow`."""
        if self._columns is None:
            self._create(schema, keys, history)
        columns = self._columns or []
        if history != (SEQ in columns):
            fix = "choose another target, or history=True" if not history else "choose another target"
            raise CannotFollow(
                f"the copy {self._table} of {self._name} keeps {'no' if history else 'the'} history of its rows: {fix}"
            )
        there = {column.lower() for column in columns}
        if missing := [name for name in schema.names if name.lower() not in there]:
            raise CannotFollow(
                f"{self._name} has columns {', '.join(missing)} that its copy {self._table} does not have, and no DDL explains it: "
                "take a new snapshot of the table into a new target"
            )
        wanted = {key.lower() for key in keys} | ({SEQ} if history else set())
        if self._keys and self._keys != wanted:
            self._change_key(schema, [*keys, SEQ] if history else keys)

    def _change_key(self, schema: TableSchema, keys: Sequence[str]) -> None:
        """Give the copy its table's new primary key: one statement, so that it has the old one or the new. Raises `CannotFollow`."""
        dialect, before = self._database.dialect, self._keys
        changed = [column for column in schema.columns if (column.name in keys) != (column.name.lower() in before)]
        if dialect.postgres:
            parts = [f"DROP CONSTRAINT {dialect.quote(self._constraint)}"]
            parts += [f"ALTER COLUMN {dialect.quote(column.name)} DROP NOT NULL" for column in changed if column.name not in keys]
        else:
            types = [dialect.type_of(column, key=column.name in keys, columns=len(schema.columns)) for column in changed]
            parts = [f"MODIFY COLUMN {dialect.quote(column.name)} {type_}" for column, type_ in zip(changed, types, strict=True)]
            parts.append("DROP PRIMARY KEY")
        sql = f"ALTER TABLE {self._table} {', '.join(parts)}, ADD PRIMARY KEY ({self._names(keys)})"
        try:
            self._database.execute(sql)
        except DatabaseError as error:
            raise CannotFollow(
                f"the primary key of {self._name} is now {', '.join(keys)}, and its copy {self._table} (key {', '.join(sorted(before))}) cannot "
                f"be changed to it: {error}. Fix the copy's rows, or take a new snapshot of the table into a new target; then start the query again: it "
                "continues with this batch"
            ) from error
        self._look()

    @contextmanager
    def _staged(self, columns: Sequence[str], rows: Sequence[str]) -> Iterator[None]:
        """A temporary table with the types of the copy's `columns`, and these rows."""
        names = self._names(columns)
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

    def _merge(self, step: Merge) -> None:
        self._fit(step.schema, step.keys, history=False)
        dialect, keys = self._database.dialect, list(step.keys)
        touched = pa.concat_tables([step.upserts.select(keys), step.deletes.select(keys)])
        self._delete(keys, dialect.rows(touched))
        self._database.insert(self._table, self._names(step.upserts.column_names), dialect.rows(step.upserts))

    def _add_versions(self, step: Versions) -> None:
        self._fit(step.schema, step.keys, history=True)
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
        self._database.insert(self._table, self._names(step.versions.column_names), dialect.rows(step.versions))

    # ---------------------------------------------------------------- columns

    def _alter(self, clause: Clause) -> None:
        """Follow one column change; one that is done already changes nothing."""
        database, dialect = self._database, self._database.dialect
        there = {column.lower(): column for column in self._columns or []}
        name = there.get(clause.name.lower())
        head = f"ALTER TABLE {self._table}"
        if clause.kind == "add" and name is None and clause.column is not None:
            self._add(clause)
        elif clause.kind == "drop" and name is not None:
            database.execute(f"{head} DROP COLUMN {dialect.quote(name)}")
        elif clause.kind == "rename" and name is not None and clause.to not in there.values():
            database.execute(f"{head} RENAME COLUMN {dialect.quote(name)} TO {dialect.quote(clause.to)}")
        elif clause.kind == "modify" and name is not None and clause.column is not None:
            type_ = dialect.type_of(clause.column, key=name.lower() in self._keys, columns=len(there))
            if dialect.postgres:
                quoted = dialect.quote(name)
                database.execute(f"{head} ALTER COLUMN {quoted} TYPE {type_} USING {quoted}::{type_}")
            else:
                database.execute(f"{head} MODIFY COLUMN {dialect.quote(name)} {type_}")
        self._look()

    def _add(self, clause: Clause) -> None:
        database, dialect = self._database, self._database.dialect
        assert clause.column is not None
        type_ = dialect.type_of(clause.column, key=False, columns=len(self._columns or []))
        name = dialect.quote(clause.name)
        head = f"ALTER TABLE {self._table}"
        if clause.default is None:
            database.execute(f"{head} ADD COLUMN {name} {type_}")
            return
        value = dialect.literals(schema_evolution.constant(clause.default, target_field(clause.column), 1, self._name))[0]
        # MySQL gives long text no default but in brackets
        database.execute(f"{head} ADD COLUMN {name} {type_} DEFAULT ({value})")
