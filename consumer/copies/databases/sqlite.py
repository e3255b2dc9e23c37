"""SQLite, through Python's own module: one file, whose tables are STRICT, so that no value is ever converted.

MySQL source                     SQLite
integers, YEAR, BIT(n)           INTEGER
BIGINT UNSIGNED, BIT(64)         ANY: an integer, or its digits as text where it is above 2^63 - 1
FLOAT, DOUBLE                    REAL
DECIMAL, DATE, DATETIME, TIME    TEXT, as the source writes them; TIMESTAMP in UTC
BINARY, BLOB, GEOMETRY, VECTOR   BLOB
CHAR, TEXT, ENUM, SET, JSON      TEXT, compared byte by byte

One process writes at a time: another waits. The file is in WAL mode, so that readers see the last whole batch and never wait; a commit is on
the disk before the store may forget its events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from shmstore.consumer.copies.change_reduction import CURRENT, OURS, SEQ, VALID_TO, CopyRefuses
from shmstore.consumer.copies.database_url import no_folder
from shmstore.consumer.copies.databases.database import DatabaseBusy
from shmstore.consumer.copies.databases.dialect import Refusal, Reshaping, Statements, TablePlace, TableShape
from shmstore.consumer.copies.databases.standard_sql import StandardSql
from shmstore.consumer.copies.databases.text_values import plain
from shmstore.encoding.arrow import BINARY_TYPES
from shmstore.event import Column

OLDEST = (3, 37, 0)  # has STRICT tables
_WAIT_SECONDS = 30.0
_LOOK_MS = 500  # that one try to become the writer may take
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year", "bit")
_KNOWN = {"INTEGER": "bigint", "BLOB": "longblob"}
_MOST = (1 << 63) - 1
_CONSTRAINT_DATATYPE = sqlite3.SQLITE_CONSTRAINT | 12 << 8  # which Python 3.11 has no name for
_VALUES_ERRORS = (_CONSTRAINT_DATATYPE, sqlite3.SQLITE_MISMATCH)
_UNIQUE_ERRORS = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_ROWID)
_TABLE_ERRORS = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE)


class Sqlite(StandardSql):
    """The database file `path`, which is created where there is none."""

    kind = "sqlite"
    errors: tuple[type[Exception], ...] = (sqlite3.Error,)
    password = ""
    ddl_commits, schemas = False, False
    moment_type, flag_type = "TEXT", "INTEGER"

    def __init__(self, path: str) -> None:
        self._path = path
        if sqlite3.sqlite_version_info < OLDEST:
            raise ValueError(
                f"copies need SQLite {'.'.join(map(str, OLDEST))} or later, for its STRICT tables; this Python has {sqlite3.sqlite_version}"
            )

    # ---------------------------------------------------------------- the driver

    def open(self, password: str) -> Any:
        """Spark calls from a thread of its own for each batch."""
        if not Path(self._path).absolute().parent.is_dir():
            raise sqlite3.OperationalError(no_folder("sqlite", self._path))
        return sqlite3.connect(self._path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)

    def alive(self, connection: Any) -> bool:
        """Whether the file is still the one at its path: one that was removed would be written to in vain."""
        try:
            ((_, _, file),) = connection.execute("PRAGMA database_list").fetchall()[:1]
            return Path(file).exists()
        except sqlite3.Error:
            return False

    def prepare(self, database: Statements) -> None:
        """A commit waits for the disk: what was acked must not be lost with the power."""
        database.query(
            f"PRAGMA busy_timeout = {_LOOK_MS}"
        )  # as in `begin`: a file that is not in WAL mode yet changes only while no other has it open
        database.query("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA foreign_keys = OFF")  # of a user's tables, and
        database.execute(
            "PRAGMA legacy_alter_table = ON"
        )  # of a user's views: a table that gets a new shape is dropped for a moment

    def begin(self, database: Statements) -> bool:
        """As the one writer; False where there is another for too long."""
        try:
            database.query(f"PRAGMA busy_timeout = {_LOOK_MS}")  # the caller waits, and may be stopped meanwhile
            database.execute("BEGIN IMMEDIATE")
            database.query(f"PRAGMA busy_timeout = {int(_WAIT_SECONDS * 1000)}")
        except DatabaseBusy:
            return False
        return True

    def commit(self, connection: Any) -> None:
        """`SqlDialect.commit`."""
        connection.execute("COMMIT")

    def run(self, connection: Any, sql: str) -> Sequence[Sequence[Any]]:
        """`SqlDialect.run`."""
        rows: Sequence[Sequence[Any]] = connection.execute(sql).fetchall()
        return rows

    def message(self, error: Exception) -> str:
        """`SqlDialect.message`."""
        return str(error)

    def refusal(self, error: Exception) -> Refusal:
        """By SQLite's own number."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Refusal.BUSY
        if code in _VALUES_ERRORS:
            return Refusal.VALUES
        if code in _UNIQUE_ERRORS:
            return Refusal.UNIQUE
        return Refusal.TABLE if code & 0xFF in _TABLE_ERRORS else Refusal.ALL

    def lock(self, database: Statements, name: str) -> bool:
        """The transaction is the only one that writes."""
        return True

    def unlock(self, database: Statements, names: Sequence[str]) -> None:
        """The commit did."""

    # ---------------------------------------------------------------- text

    def literal(self, array: pa.Array) -> str:
        """`SqlDialect.literal`."""
        (value,) = _values(array)
        return "NULL" if value is None else str(value) if isinstance(value, int) else self.text(str(value))

    def type_of(self, column: Column, *, key: bool, columns: int) -> str:
        """`SqlDialect.type_of`."""
        if column.type == "bool":
            return self.flag_type
        if column.type in _INTEGERS:
            return "ANY" if (column.type == "bigint" and column.unsigned) or column.size == 64 else "INTEGER"
        if column.type in ("float", "double"):
            return "REAL"
        return "BLOB" if column.type in BINARY_TYPES else "TEXT"

    def known(self, name: str, type_: str) -> Column | None:
        """`SqlDialect.known`."""
        return Column(name, _KNOWN[type_]) if type_ in _KNOWN else None

    def check_names(self, columns: Sequence[str], table: str = "") -> None:
        """`SqlDialect.check_names`."""
        for name in (table, *columns):
            if "\0" in name or (name == table and name.lower().startswith("sqlite_")):
                raise CopyRefuses(f"{name!r} cannot be a name in SQLite: leave the table out")

    # ---------------------------------------------------------------- tables

    def table(self, place: TablePlace) -> str:
        """`SqlDialect.table`."""
        return self.quote(place.name)

    def own_schema(self, database: Statements) -> str:
        """There are none."""
        return ""

    def create_schema(self, database: Statements, name: str) -> None:
        """There are none."""

    def schemas_with(self, database: Statements, table: str) -> list[str]:
        """`SqlDialect.schemas_with`."""
        found = database.query(f"SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = {self.text(table)}")
        return [""] * bool(found)

    def shape(self, database: Statements, place: TablePlace) -> TableShape | None:
        """`SqlDialect.shape`."""
        found = database.query(f"SELECT name, type, pk FROM pragma_table_info({self.text(place.name)})")
        keys = sorted([(pk, name) for name, _, pk in found if pk])
        return (
            TableShape({name: type_ for name, type_, _ in found}, tuple([name for _, name in keys]), "key" * bool(keys))
            if found
            else None
        )

    def create(self, database: Statements, place: TablePlace, shape: TableShape) -> None:
        """`SqlDialect.create`."""
        parts = [f"{self.quote(name)} {type_}" for name, type_ in shape.columns.items()]
        parts.append(f"PRIMARY KEY ({self.names(shape.keys)})")
        database.execute(f"CREATE TABLE IF NOT EXISTS {self.table(place)} ({', '.join(parts)}) STRICT")

    def reshape(self, database: Statements, place: TablePlace, shape: TableShape, change: Reshaping) -> None:
        """SQLite changes no type and no key of a table that is there: a table of the new shape takes its rows, its name and its indexes."""
        types = {name: type_ for name, type_ in shape.columns.items() if name not in change.drop}
        kept = list(types)
        types |= change.modify
        types |= change.add
        keys = shape.keys if change.keys is None else change.keys
        if types == dict(shape.columns) and keys == shape.keys:
            return
        own = database.query(
            f"SELECT sql FROM sqlite_schema WHERE tbl_name = {self.text(place.name)} AND type IN ('index', 'trigger') AND sql IS NOT NULL"
        )
        new = TablePlace("", f"{OURS}shape")
        self.create(database, new, TableShape(types, keys))
        if kept:
            names = self.names(kept)
            database.execute(f"INSERT INTO {self.table(new)} ({names}) SELECT {names} FROM {self.table(place)}")
        database.execute(f"DROP TABLE {self.table(place)}")
        database.execute(f"ALTER TABLE {self.table(new)} RENAME TO {self.table(place)}")
        for (sql,) in own:
            try:
                with database.all_or_nothing():
                    database.execute(sql)
            except ValueError as error:
                if getattr(error, "refusal", None) is Refusal.ALL:
                    raise  # else it is about a column that went

    def empty(self, database: Statements, place: TablePlace, *, at_once: bool) -> None:
        """SQLite does this at once where it can."""
        database.execute(f"DELETE FROM {self.table(place)}")

    # ---------------------------------------------------------------- rows

    def merge(self, database: Statements, place: TablePlace, keys: Sequence[str], deletes: pa.Table, upserts: pa.Table) -> None:
        """All rows with these keys go before one comes: right where another index is unique, too."""
        table = self.table(place)
        over = " AND ".join(f"{self.quote(key)} = ?" for key in keys)
        names = upserts.column_names
        sql = f"INSERT INTO {table} ({self.names(names)}) VALUES ({', '.join('?' * len(names))})"
        with database.driver(sql) as connection:
            for rows in (deletes, upserts):
                connection.executemany(f"DELETE FROM {table} WHERE {over}", _rows(rows.select(list(keys))))
            connection.executemany(sql, _rows(upserts))

    def update(self, database: Statements, place: TablePlace, keys: Sequence[str], rows: pa.Table) -> None:
        """`SqlDialect.update`."""
        names = [name for name in rows.column_names if name not in keys]
        new, over = (
            between.join(f"{self.quote(name)} = ?" for name in some) for between, some in ((", ", names), (" AND ", keys))
        )
        sql = f"UPDATE {self.table(place)} SET {new} WHERE {over}"
        with database.driver(sql) as connection:
            connection.executemany(sql, _rows(rows.select([*names, *keys])))

    def rows_of(
        self, database: Statements, place: TablePlace, keys: pa.Table | None, columns: Sequence[str]
    ) -> Sequence[Sequence[Any]]:
        """`SqlDialect.rows_of`."""
        sql = f"SELECT {self.names(columns)} FROM {self.table(place)}"
        if keys is None:
            return database.query(sql)
        sql += f" WHERE {' AND '.join(f'{self.quote(key)} = ?' for key in keys.column_names)}"
        with database.driver(sql) as connection:
            return [row for one in _rows(keys) for row in connection.execute(sql, one)]

    def end_versions(self, database: Statements, place: TablePlace, keys: Sequence[str], ends: pa.Table) -> None:
        """`SqlDialect.end_versions`."""
        over = " AND ".join(f"{self.quote(key)} = ?" for key in keys)
        sql = f"UPDATE {self.table(place)} SET {VALID_TO} = ?, {CURRENT} = 0 WHERE {over} AND {CURRENT} AND {SEQ} < ?"
        with database.driver(sql) as connection:
            connection.executemany(sql, _rows(ends.select([VALID_TO, *keys, SEQ])))


def _rows(table: pa.Table) -> Iterable[tuple[Any, ...]]:
    return zip(*[_values(column) for column in table.columns], strict=True)


def _values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Values as SQLite keeps them: what it has no type for is text."""
    kind = array.type
    if pa.types.is_decimal(kind) and not kind.scale:  # of BIGINT UNSIGNED and BIT(64)
        return [
            value if value is None else int(value) if -_MOST <= value <= _MOST else str(int(value)) for value in array.to_pylist()
        ]
    if pa.types.is_decimal(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return list(plain(array).to_pylist())
    if pa.types.is_boolean(kind):
        return [value if value is None else int(value) for value in array.to_pylist()]
    return list(array.to_pylist())
