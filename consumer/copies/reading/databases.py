"""Copies in SQLite and PostgreSQL. What a driver would round or give a zone to is asked for as a number or as text."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shmstore.consumer.copies.reading.names import own_names
from shmstore.consumer.copies.reading.stored_values import Stored, rows_with, stored
from shmstore.encoding.arrow import BINARY_TYPES
from shmstore.errors import CopyUnreadable, install
from shmstore.event import Column, TableSchema

BATCH_ROWS = 10_000
_NO_ROWS = "SELECT * FROM {} LIMIT 0"
_PARAMETER = "\0"  # what replaces one until names with a percent sign in them are made safe
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year", "bit")
_MICROS = ("datetime", "timestamp", "time")
# Types of keys that every database compares alike.
_COMPARED = ("tinyint", "smallint", "mediumint", "int", "bigint", "char", "varchar")


class DatabaseCopy:
    """A table of a database. `columns()` are the names of its columns, `select(sql, parameters)` yields its rows; `asked` says how a column is
    read, and what is made of it."""

    def __init__(
        self,
        columns: Callable[[], Sequence[str]],
        select: Callable[[str, Sequence[Any]], Iterator[Sequence[Any]]],
        asked: Callable[[Column], tuple[str, Stored]],
        table: str,
        parameter: str,
        close: Callable[[], None],
    ) -> None:
        self._columns, self._select, self._asked, self.close = columns, select, asked, close
        self._table, self._parameter = table, parameter

    def rows(self, table: TableSchema) -> Iterator[Sequence[Sequence[Any]]]:
        """Yield every row, some at a time, in stored form. Raises `CopyUnreadable` where it cannot stand for the table."""
        yield from self._read(self._own(table), "", ())

    def rows_of(self, table: TableSchema, keys: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the rows that have these keys."""
        table = self._own(table)
        first = table.columns[table.primary_key[0]]
        where, values = "", list[Any]()
        if first.type in _COMPARED:
            values = sorted({key[0] for key in keys})
            where = f" WHERE {_quoted(first.name)} IN ({', '.join([self._parameter] * len(values))})"
        return rows_with(keys, table, self._read(table, where, values))

    def _own(self, table: TableSchema) -> TableSchema:
        """`table` with the copy's own spelling of its columns."""
        # asked for first: SQLite takes a quoted name that it does not know for a text
        names = own_names(table, self._columns(), f"the copy {self._table}")
        return table._replace(
            columns=tuple([column._replace(name=name) for column, name in zip(table.columns, names, strict=True)])
        )

    def _read(self, table: TableSchema, where: str, values: Sequence[Any]) -> Iterator[list[Sequence[Any]]]:
        asked = [self._asked(column) for column in table.columns]
        makes, rows = [make for _, make in asked], list[Sequence[Any]]()
        sql = f"SELECT {', '.join(expression for expression, _ in asked)} FROM {self._table}{where}"
        for row in self._select(sql, values):
            try:
                rows.append([None if value is None else make(value) for make, value in zip(makes, row, strict=True)])
            except (TypeError, ValueError) as error:
                raise CopyUnreadable(f"the copy {self._table} has a value that its column cannot hold: {error}") from error
            if len(rows) == BATCH_ROWS:
                yield rows
                rows = []
        yield rows


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _name(table: str) -> str:
    return ".".join(map(_quoted, table.split(".")))


def sqlite(path: str, table: str) -> DatabaseCopy:
    """Return a table of an SQLite file. Raises `CopyUnreadable` where there is no such file."""
    if not Path(path).exists():
        raise CopyUnreadable(f"there is no copy: {path} does not exist")
    connection = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)

    @contextmanager
    def errors() -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise CopyUnreadable(f"the copy {table} in {path} cannot be read: {error}") from error

    def columns() -> list[str]:
        with errors():
            return [each[0] for each in connection.execute(_NO_ROWS.format(_name(table))).description]

    def select(sql: str, values: Sequence[Any]) -> Iterator[Sequence[Any]]:
        with errors():
            yield from connection.execute(sql, values)

    return DatabaseCopy(
        columns, select, lambda column: (_quoted(column.name), stored(column)), _name(table), "?", connection.close
    )


def postgresql(url: str, table: str, password: str = "") -> DatabaseCopy:
    """Return a table of the PostgreSQL server that `url` names. Raises `CopyUnreadable` where it cannot be reached."""
    try:
        import psycopg
    except ImportError as error:
        raise ImportError(f"copies in PostgreSQL need psycopg, which is not installed: {install('postgresql')}") from error

    @contextmanager
    def errors(what: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise CopyUnreadable(f"{what}: {str(error).strip().splitlines()[0]}") from error

    with errors("the database of the copies cannot be reached"):
        connection = psycopg.connect(url, password=password or None)

    def columns() -> list[str]:
        with errors(f"the copy {table} cannot be read"), connection.transaction():
            found = connection.execute(_NO_ROWS.format(_name(table)).encode())
            return [each.name for each in found.description or ()]

    def select(sql: str, values: Sequence[Any]) -> Iterator[Sequence[Any]]:
        with errors(f"the copy {table} cannot be read"), connection.transaction(), connection.cursor("verify") as cursor:
            cursor.itersize = BATCH_ROWS
            cursor.execute(sql.replace("%", "%%").replace(_PARAMETER, "%s").encode(), values)
            yield from cursor

    return DatabaseCopy(columns, select, _of_postgresql, _name(table), _PARAMETER, connection.close)


def _of_postgresql(column: Column) -> tuple[str, Stored]:
    name, kind = _quoted(column.name), column.type
    if kind in _INTEGERS:
        return name, stored(column)
    if kind in _MICROS:
        return f"(EXTRACT(EPOCH FROM {name}) * 1000000)::bigint", int
    if kind == "date":
        return f"{name} - DATE '1970-01-01'", int
    if kind in ("float", "double"):
        make = stored(column)
        return f"{name}::text", lambda value: make(float(value))
    return (name, bytes) if kind in BINARY_TYPES else (f"{name}::text", stored(column))
