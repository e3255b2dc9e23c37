"""DuckDB: copies of tables in one DuckDB file, or in a DuckLake whose catalog is one.

A batch is one transaction over all copies, DDLs included, so that readers see whole transactions of the source. The table `MARKS`, written in
the same transaction, says of each copy how far it is.

DuckDB gives a file to one process that writes. So the connection is closed while nothing comes (`close`): then other programs may open the file.
Until they close it, the next transaction raises `TargetBusy`, as where a second process keeps the same copies.

An error ends the whole transaction, so what may not fit is asked first (`_fits`). Where DuckDB refuses a copy's step all the same, such as for an index
that a person made, the batch is done again with that copy set aside (`StepRefused`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from shmstore.consumer.copies import schema_evolution
from shmstore.consumer.copies.change_reduction import (
    CURRENT,
    HISTORY,
    OURS,
    REMOVED,
    SEQ,
    VALID_TO,
    Alter,
    CannotCopy,
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
from shmstore.consumer.copies.changed_rows import target_field, target_fields
from shmstore.consumer.copies.database_url import no_folder
from shmstore.consumer.copies.ddl import Change
from shmstore.consumer.copies.reading.duckdb_file import attach_lake, detach_lake
from shmstore.consumer.copies.target import StepRefused, TargetBusy, TargetFailed
from shmstore.consumer.copies.targets.keyed_rows import updated_columns
from shmstore.consumer.copies.targets.names import NamedCopies
from shmstore.event import TableSchema
from shmstore.sql.names import folded

MARKS = f"{OURS}marks"
Fetched = TypeVar("Fetched")
_OF_ONE_TABLE = (duckdb.IntegrityError, duckdb.DataError, duckdb.ProgrammingError, duckdb.NotSupportedError)
_RESERVED = frozenset(["information_schema", "pg_catalog", "temp", "system"])
_TYPES = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.bool_(): "BOOLEAN",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", "UTC"): "TIMESTAMP WITH TIME ZONE",
}


def type_of(field: pa.Field) -> str:
    """Return the DuckDB type of a copy's column, as DuckDB spells it."""
    if pa.types.is_decimal(field.type):
        return f"DECIMAL({field.type.precision},{field.type.scale})"
    return _TYPES[field.type]


class DuckDB(NamedCopies):
    """The copies in a DuckDB file, or in the `lake` that it is the catalog of (`Target`)."""

    at_once = 1  # on one connection

    def __init__(self, path: str, *, lake: bool = False) -> None:
        self._path, self._lake = str(Path(path).absolute()), lake
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._detached: duckdb.DuckDBPyConnection | None = None  # with the extension of lakes: to load it takes 0.15 s
        self.opened = 0  # how often: another process may have written in between
        self.changed: set[str] = set()  # the tables whose rows the transaction has changed
        self._catalog = ""

    def table(self, path: str, name: str) -> DuckDBTable:
        """`Target.table`."""
        return DuckDBTable(self, path, name)

    def named(self, name: str) -> str:
        """`Target.named`."""
        if folded(name) in _RESERVED:
            raise CannotCopy(f"the name {name!r} is DuckDB's own: copies cannot be called so")
        return super().named(name)

    def paths(self, template: str) -> list[str]:
        """`Target.paths`."""
        found = self.query(
            f"SELECT DISTINCT m.path FROM {self.quote('main', MARKS)} m JOIN duckdb_tables() t ON m.path = t.schema_name || '.' || t.table_name "
            "WHERE t.database_name = current_database()"
        )
        paths = [path for (path,) in found if not path.partition(".")[2].startswith(OURS)]
        return paths + [path.removeprefix("main.") for path in paths if path.startswith("main.")]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the body did, or roll it back where it raised. Raises `TargetFailed`, `TargetBusy`."""
        self._open()
        try:
            self.execute("BEGIN")
            self.changed.clear()
            yield
            self.execute("COMMIT")
        except BaseException:
            self.close()  # which rolls back
            raise

    def _open(self) -> None:
        if self._connection is not None:
            return
        if not Path(self._path).parent.is_dir():
            raise TargetFailed(no_folder("ducklake" if self._lake else "duckdb", self._path))
        try:
            self._connection = self._connected()
        except duckdb.IOException as error:
            text = str(error).strip().splitlines()[0]
            if "lock" in text:
                raise TargetBusy(f"another process has {self._path} open: {text}") from error
            raise TargetFailed(f"{self._path} cannot be opened: {text}") from error
        except duckdb.Error as error:
            raise TargetFailed(f"{self._path} cannot be opened: {str(error).strip().splitlines()[0]}") from error
        self.opened += 1
        try:
            self._catalog = self.query("SELECT current_database()")[0][0]
            columns = "path VARCHAR NOT NULL, name VARCHAR NOT NULL, number BIGINT NOT NULL"
            self.execute(f"CREATE TABLE IF NOT EXISTS {self.quote('main', MARKS)} ({columns})")
        except BaseException:
            self.close()
            raise

    def _connected(self) -> duckdb.DuckDBPyConnection:
        if not self._lake:
            return duckdb.connect(self._path)
        connection, self._detached = self._detached or duckdb.connect(), None
        try:
            attach_lake(connection, self._path)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close the file; what was not committed is rolled back. The next transaction opens it again."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._lake and detach_lake(connection):
            self._detached = connection
        else:
            connection.close()

    def quote(self, schema: str, table: str) -> str:
        """Return a table's whole name: with a schema that is called as the file DuckDB would not know which is meant."""
        return ".".join(map(quoted, (self._catalog, schema, table)))

    def execute(self, sql: str, parameters: Sequence[Any] = (), **rows: pa.Table) -> None:
        """Run a statement; `rows` are tables that it may name. Raises `TargetFailed`."""
        self.query(sql, parameters, **rows)

    def query(self, sql: str, parameters: Sequence[Any] = (), **rows: pa.Table) -> list[tuple[Any, ...]]:
        """Run a query; return its rows. Raises `TargetFailed`."""
        return self._run(lambda connection: connection.execute(sql, list(parameters)).fetchall(), sql, rows)

    def arrow(self, sql: str, **rows: pa.Table) -> pa.Table:
        """Run a query; return its rows as a table. Raises `TargetFailed`."""
        return self._run(lambda connection: connection.sql(sql).to_arrow_table(), sql, rows)

    def _run(self, fetch: Callable[[duckdb.DuckDBPyConnection], Fetched], sql: str, rows: Mapping[str, pa.Table]) -> Fetched:
        self._open()
        assert self._connection is not None
        try:
            for name, table in rows.items():
                self._connection.register(name, table)
            try:
                return fetch(self._connection)
            finally:
                for name in rows:
                    with suppress(duckdb.TransactionException):  # of one that `fetch` ended, whose error says why
                        self._connection.unregister(name)
        except duckdb.Error as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            failed = StepRefused if isinstance(error, _OF_ONE_TABLE) else TargetFailed
            raise failed(f"DuckDB refused {' '.join(sql[:80].split())!r} in {self._path}: {said}") from error


class DuckDBTable:
    """One table's copy, the table `path`, ``schema.table``, or ``table`` in the schema main."""

    def __init__(self, database: DuckDB, path: str, name: str) -> None:
        schema, _, table = path.rpartition(".")
        self._database, self._schema, self._bare, self._name = database, schema or "main", table, name
        self._path = f"{self._schema}.{table}"
        self._types: dict[str, str] = {}  # of its columns; none where there is no table
        self._marks: dict[str, int] = {}
        self._seen = -1
        self._other = ""  # the copy that DuckDB would take for this one: it does not tell upper from lower case
        self._look()

    @property
    def _table(self) -> str:
        return self._database.quote(self._schema, self._bare)

    def _look(self) -> None:
        """Read columns and marks, where the file was opened since."""
        if self._seen == self._database.opened:
            return
        query = self._database.query
        found = query(
            "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = current_database() "
            "AND lower(schema_name) = lower(?) AND lower(table_name) = lower(?)",
            (self._schema, self._bare),
        )
        self._other = ".".join(found[0]) if found and found[0] != (self._schema, self._bare) else ""
        if self._other:
            found = []
        columns = query(f"DESCRIBE {self._table}") if found else []
        self._types = {row[0]: row[1] for row in columns}
        marks = self._database.quote("main", MARKS)
        self._marks = dict(query(f"SELECT name, number FROM {marks} WHERE path = ?", (self._path,)))
        if not columns and REMOVED not in self._marks:  # a copy that a person moved away has left its marks
            self._forget_marks()
        self._seen = self._database.opened

    # ---------------------------------------------------------------- what it is

    @property
    def exists(self) -> bool:
        """Whether there is such a table."""
        self._look()
        return bool(self._types)

    @property
    def keeps_history(self) -> bool:
        """Whether it keeps every version of a row."""
        return self.exists and keeps_history(self.mark(HISTORY), self._types)

    @property
    def columns(self) -> Columns:
        """`TargetTable.columns`."""
        kinds = {text: kind for kind, text in _TYPES.items()}
        fields = []
        for name, text in self._types.items():
            if text.startswith("DECIMAL("):
                fields.append(pa.field(name, pa.decimal128(*map(int, text[8:-1].split(",")))))
            elif text in kinds:
                fields.append(pa.field(name, kinds[text]))
        return schema_evolution.columns_in(pa.schema(fields))

    @property
    def names(self) -> list[str]:
        """`SearchableTable.names`."""
        self._look()
        return list(self._types)

    def rows_of(self, keys: pa.Table | None, columns: pa.Schema) -> pa.Table:
        """`SearchableTable.rows_of`."""
        wanted = ", ".join(f"t.{quoted(name)}" for name in columns.names)
        if keys is None:
            return self._database.arrow(f"SELECT {wanted} FROM {self._table} t").cast(columns)
        some = f"SELECT {wanted} FROM {self._table} t SEMI JOIN wanted s ON {_same(keys.column_names)}"
        return self._database.arrow(some, wanted=keys).cast(columns)

    def mark(self, name: str) -> int:
        """The number that was committed last under `name`; -1 where there is none."""
        self._look()
        return self._marks.get(name, -1)

    # ---------------------------------------------------------------- steps

    def create(self, schema: TableSchema, keys: Sequence[str], marks: Mapping[str, int]) -> None:
        """Create the table without rows."""
        self._look()
        self._make(target_fields(schema))
        self._keep(marks)

    def commit(self, step: Step | None, marks: Mapping[str, int]) -> None:
        """Do a step, or none, and keep `marks`, in the transaction that is open. Raises `CopyDiffers`, `CannotFollow`; then nothing was changed."""
        self._look()
        if isinstance(step, Merge):
            self._merge(self._fit(step))
        elif isinstance(step, Versions):
            self._add_versions(self._fit(step))
        elif not self._types:
            return  # changed before it was ever filled
        elif isinstance(step, Alter):
            self._alter(step)
        elif isinstance(step, Replace):
            self._take_over(step)
        elif isinstance(step, Empty) and self.keeps_history:
            moment = pa.table({"moment": pa.array([step.time_ms * 1000], pa.int64()).cast(pa.timestamp("us", "UTC"))})
            sql = f"UPDATE {self._table} SET {VALID_TO} = moment, {CURRENT} = FALSE FROM ended WHERE {CURRENT}"
            self._database.execute(sql, ended=moment)
        elif isinstance(step, Empty):
            self._database.execute(f"DELETE FROM {self._table}")
        if step is not None and not isinstance(step, Alter):
            self._database.changed.add(self._path)
        self._keep(marks)

    def remove(self, marks: Mapping[str, int]) -> None:
        """Drop the table."""
        if self.exists:
            self._database.execute(f"DROP TABLE {self._table}")
            self._types = {}
            self._forget_marks()
            self._keep({**marks, REMOVED: 1} if marks else {})

    def _forget_marks(self) -> None:
        self._database.execute(f"DELETE FROM {self._database.quote('main', MARKS)} WHERE path = ?", (self._path,))
        self._marks = {}

    def _keep(self, marks: Mapping[str, int]) -> None:
        table = self._database.quote("main", MARKS)
        if self._marks.pop(REMOVED, None) is not None:
            self._database.execute(f"DELETE FROM {table} WHERE path = ? AND name = ?", (self._path, REMOVED))
        for name, number in marks.items():
            if name in self._marks:
                sql, values = f"UPDATE {table} SET number = ? WHERE path = ? AND name = ?", (number, self._path, name)
            else:
                sql, values = f"INSERT INTO {table} (number, path, name) VALUES (?, ?, ?)", (number, self._path, name)
            self._database.execute(sql, values)
            self._marks[name] = number

    def _make(self, fields: Sequence[pa.Field]) -> None:
        """Make the table, or another in its place, with these columns. Raises `CopyRefuses`."""
        if self._other:
            raise CopyRefuses(
                f"the copy of {self._name} would be {self._path}, which DuckDB does not tell from {self._other}, another copy's name: leave one of "
                "the tables out"
            )
        self._database.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(self._schema)}")
        columns = {field.name: type_of(field) for field in fields}
        self._database.execute(
            f"CREATE OR REPLACE TABLE {self._table} ({', '.join(f'{quoted(name)} {type_}' for name, type_ in columns.items())})"
        )
        self._database.changed.add(self._path)
        self._types = columns

    def _rewrite(self, columns: str, source: str, **rows: pa.Table) -> None:
        """Put these columns of a source in the place of the table. They go into a table of another name first: in a transaction that has written to
        the table, a DuckLake that replaces it removes files which the query reads."""
        fresh = f"{OURS}new_{self._bare}"
        database, other = self._database, self._database.quote(self._schema, fresh)
        database.execute(f"CREATE TABLE {other} AS SELECT {columns} FROM {source}", **rows)
        database.execute(f"DROP TABLE {self._table}")
        database.execute(f"ALTER TABLE {other} RENAME TO {quoted(self._bare)}")
        database.changed.add(self._path)

    def _fit(self, step: Any) -> Any:
        """Check that the columns are those of the rows, which get the spelling of the copy's; a copy without rows takes theirs."""
        rows = step.upserts if isinstance(step, Merge) else step.versions
        if not self._types:
            self._make(list(rows.schema))
            return step
        history = isinstance(step, Versions)
        schema_evolution.require_kind(self._path, self._name, keeps=self.keeps_history, wanted=history)
        own, step = step, schema_evolution.spelled(step, list(self._types))
        fields = list((step.upserts if isinstance(step, Merge) else step.versions).schema)
        wanted = {field.name: type_of(field) for field in fields}
        if wanted == self._types:
            return step
        if self._database.query(f"SELECT 1 FROM {self._table} LIMIT 1"):
            different = [f"{name} ({type_})" for name, type_ in wanted.items() if self._types.get(name) != type_]
            different += [f"no {name}" for name in self._types if name not in wanted]
            raise CopyDiffers(schema_evolution.no_ddl_explains(self._name, different))
        self._make(list(rows.schema))
        return own

    def _merge(self, step: Merge) -> None:
        keys = list(step.keys)
        touched = pa.concat_tables([step.upserts.select(keys), step.deletes.select(keys)])
        if self._may_have(touched):
            self._database.execute(f"DELETE FROM {self._table} t USING touched s WHERE {_same(keys)}", touched=touched)
        self._insert(step.upserts)
        if changed := updated_columns(step):
            values = ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in changed)
            self._database.execute(
                f"UPDATE {self._table} t SET {values} FROM changed s WHERE {_same(keys)}", changed=step.updates
            )

    def _may_have(self, touched: pa.Table) -> bool:
        """Whether the table may have rows of these keys: of one column of numbers it is asked for their range, for which it looks at few of its rows."""
        if touched.num_columns != 1 or not pa.types.is_integer(touched.schema.field(0).type):
            return True
        ends = pc.min_max(touched.column(0)).as_py()
        some = f"SELECT 1 FROM {self._table} WHERE {quoted(touched.column_names[0])} BETWEEN ? AND ? LIMIT 1"
        return bool(touched.column(0).null_count or self._database.query(some, (ends["min"], ends["max"])))

    def _insert(self, rows: pa.Table) -> None:
        if len(rows):
            self._database.execute(f"INSERT INTO {self._table} BY NAME SELECT * FROM fresh", fresh=rows)

    def _add_versions(self, step: Versions) -> None:
        keys = list(step.keys)
        over = f"{_same(keys)} AND t.{CURRENT} AND t.{SEQ} < s.{SEQ}"
        sql = f"UPDATE {self._table} t SET {VALID_TO} = s.{VALID_TO}, {CURRENT} = FALSE FROM ended s WHERE {over}"
        self._database.execute(sql, ended=step.ends)
        # a version that the copy has came from another query: the same row
        self._database.execute(
            f"DELETE FROM {self._table} t USING fresh s WHERE t.{SEQ} = s.{SEQ}", fresh=step.versions.select([SEQ])
        )
        self._insert(step.versions)

    def _take_over(self, step: Replace) -> None:
        """Take the rows and columns of the table at `step.path`."""
        other = DuckDBTable(self._database, step.path, self._name)
        if not other.exists:
            self._make(target_fields(step.schema))
            return
        self._rewrite("*", other._table)
        self._types = dict(other._types)

    # ---------------------------------------------------------------- columns

    def _alter(self, step: Alter) -> None:
        """All changes at once: the rows are written again, with the values that the new columns have. Columns without values are added alone, where the
        transaction has not changed rows before: DuckDB up to 1.5 could not commit both. Raises `CopyDiffers`."""
        there = {folded(name): name for name in self._types}
        wanted = {
            name: (quoted(name), type_, name) for name, type_ in self._types.items()
        }  # by the old name: value, type, new name
        added: list[tuple[str, str, str]] = []
        constants: dict[str, pa.Array] = {}
        for change in step.changes:
            old = there.get(folded(change.name))
            if not change.name:
                if folded(change.to) not in there and change.column is not None:
                    added.append(self._added(change, constants))
            elif old is not None and not change.to:
                del wanted[old]
            elif old is not None:
                type_ = self._types[old] if change.column is None else type_of(target_field(change.column))
                self._fits(old, type_)
                wanted[old] = (f"CAST({quoted(old)} AS {type_})", type_, change.to)
        columns = [*wanted.values(), *added]
        same = len(wanted) == len(self._types) and all(value == quoted(name) for value, _, name in wanted.values())
        if same and not constants and self._path not in self._database.changed:
            for _, type_, name in added:  # nothing of the rows is read for it
                self._database.execute(f"ALTER TABLE {self._table} ADD COLUMN {quoted(name)} {type_}")
        else:
            values = ", ".join(f"{value} AS {quoted(name)}" for value, _, name in columns)
            one = {"defaults": pa.table(constants)} if constants else {}
            source = f"{self._table}{', defaults' * bool(constants)}"
            self._rewrite(values, source, **one)
        self._types = {name: type_ for _, type_, name in columns}

    def _added(self, change: Change, constants: dict[str, pa.Array]) -> tuple[str, str, str]:
        assert change.column is not None
        field = target_field(change.column._replace(name=change.to))
        type_ = type_of(field)
        if change.default is None:
            return f"CAST(NULL AS {type_})", type_, change.to
        name = f"{OURS}{len(constants)}"
        constants[name] = schema_evolution.constant(change.default, field, 1)
        return f"CAST({name} AS {type_})", type_, change.to

    def _fits(self, name: str, type_: str) -> None:
        """Raise `CopyDiffers` where values of a column are none of a type."""
        if type_ == self._types[name]:
            return
        column = quoted(name)
        wrong = f"{column} IS NOT NULL AND TRY_CAST({column} AS {type_}) IS NULL"
        if found := self._database.query(f"SELECT CAST({column} AS VARCHAR) FROM {self._table} WHERE {wrong} LIMIT 1"):
            raise CopyDiffers(f"column {name} of {self._name} became {type_}, but values in its copy do not fit: {found[0][0]!r}")


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _same(keys: Sequence[str]) -> str:
    return " AND ".join(f"t.{quoted(key)} IS NOT DISTINCT FROM s.{quoted(key)}" for key in keys)
