"""Databases that copies are kept in, for the tests: a real PostgreSQL, MariaDB or MySQL, or an SQLite file."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from shmstore.consumer.copies.databases.target import DatabaseTarget, database_target
from tests.consumer.spark.comparison import expression
from tests.servers.postgres import start_postgres
from tests.servers.server import Server

USER, PASSWORD = "copies", "s3cret of copies"
KINDS = ("postgresql", "mariadb", "mysql", "sqlite")


@dataclass
class Copies:
    """A database for copies, in `schema` where it has schemas. `select` gives a table's rows as `text`."""

    kind: str
    url: str
    password: str
    server: Any
    schema: str
    made: list[DatabaseTarget] = field(default_factory=list)

    @property
    def template(self) -> str:
        """The target's template."""
        return "{table}" if self.kind == "sqlite" else f"{self.schema}.{{table}}"

    @property
    def address(self) -> str:
        """The whole target, as a command names it."""
        return f"{self.url}#{self.template}"

    def connect(self) -> DatabaseTarget:
        """A target of its own, as a new process has it."""
        self.made.append(database_target(self.url, self.password))
        return self.made[-1]

    def name(self, table: str) -> str:
        """A table's name in a statement."""
        return table if self.kind == "sqlite" else f"{self.schema}.{table}"

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL, past the code under test."""
        if self.kind == "postgresql":
            return [tuple(row) for row in self.server.query(sql)]
        if self.kind == "sqlite":
            with _closing(sqlite3.connect(self.server, isolation_level=None)) as file:
                return list(file.execute(sql).fetchall())
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(sql)
            return list(cursor.fetchall())

    def select(self, table: str, columns: str = "*") -> list[tuple[str, ...]]:
        """A table's rows, sorted."""
        return sorted(tuple(map(text, row)) for row in self.query(f"SELECT {columns} FROM {self.name(table)}"))

    def held(self, table: str, types: Mapping[str, str]) -> tuple[list[str], list[tuple[Any, ...]]]:
        """A table's columns, sorted, and its rows; `types` are those of the source's columns."""
        if self.kind == "sqlite":
            found = self.query(f"SELECT name FROM pragma_table_info('{table}')")
        else:
            where = f"table_schema = '{self.schema}' AND table_name = '{table}'"
            found = self.query(f"SELECT column_name FROM information_schema.columns WHERE {where}")
        names = sorted(row[0] for row in found)
        if self.kind in ("mariadb", "mysql"):
            columns = [expression(name, types.get(name, "")) for name in names]
        else:
            columns = ['"' + name.replace('"', '""') + '"' for name in names]
        return names, self.query(f"SELECT {', '.join(columns)} FROM {self.name(table)}")

    def keys(self, table: str) -> set[str]:
        """The columns of a table's primary key."""
        if self.kind == "sqlite":
            return {row[0] for row in self.query(f"SELECT name FROM pragma_table_info('{table}') WHERE pk > 0")}
        where = f"table_schema = '{self.schema}' AND table_name = '{table}' AND constraint_name IN ('PRIMARY', '{table}_pkey')"
        return {row[0] for row in self.query(f"SELECT column_name FROM information_schema.key_column_usage WHERE {where}")}

    def tables(self) -> set[str]:
        """The names of all tables."""
        if self.kind == "sqlite":
            return {row[0] for row in self.query("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        return {
            row[0] for row in self.query(f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{self.schema}'")
        }

    def clear(self) -> None:
        """Remove all copies and marks."""
        for target in self.made:
            target.close()
        if self.kind == "sqlite":
            for file in Path(self.server).parent.glob(f"{Path(self.server).name}*"):
                file.unlink()
        else:
            self.query(f"DROP {'SCHEMA' if self.kind == 'postgresql' else 'DATABASE'} IF EXISTS {self.schema}{self._cascade}")

    @property
    def _cascade(self) -> str:
        return " CASCADE" if self.kind == "postgresql" else ""


@contextmanager
def _closing(file: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        yield file
    finally:
        file.close()


@contextmanager
def copies(kind: str, server: Server | None, schema: str, folder: Path) -> Iterator[Copies]:
    """A schema for copies on a server of this kind, or a file in `folder`; on MariaDB and MySQL the user has no rights beyond it."""
    if kind == "sqlite":
        yield from _closed(Copies(kind, f"sqlite:{folder}/copies.db", "", str(folder / "copies.db"), schema))
    elif kind == "postgresql":
        with start_postgres() as postgres:
            url = f"postgresql://{postgres.user}@127.0.0.1:{postgres.port}/postgres"
            yield from _closed(Copies(kind, url, postgres.password, postgres, schema))
    else:
        assert server is not None
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'")
            cursor.execute(f"GRANT ALL ON {schema}.* TO {USER}@'%'")
        try:
            yield from _closed(Copies(kind, f"{kind}://{USER}@127.0.0.1:{server.port}", PASSWORD, server, schema))
        finally:
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"DROP USER {USER}@'%'")
                cursor.execute(f"DROP DATABASE IF EXISTS {schema}")


def _closed(made: Copies) -> Iterator[Copies]:
    try:
        yield made
    finally:
        for target in made.made:
            target.close()


def text(value: Any) -> str:
    """A value as text that the same value always has, whichever way it came."""
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, Decimal):
        value = format(value, "f")
    if isinstance(value, bool):
        value = int(value)
    found = str(value)
    found = {"t": "1", "f": "0"}.get(found, found)
    found = re.sub(r"(\d\d:\d\d:\d\d)(\+00(:00)?)$", r"\1", re.sub(r"\+00(:00)?$", "", found))
    if re.fullmatch(r"-?[\d: -]+\.\d+", found):
        found = found.rstrip("0").rstrip(".")
    return found
