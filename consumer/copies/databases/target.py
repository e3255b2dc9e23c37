"""DatabaseTarget: copies of tables in PostgreSQL, MariaDB, MySQL or SQLite, brought up to date in the database.

A batch is one transaction over all its tables, so that readers of the copies see whole transactions of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from shmstore.consumer.copies.change_reduction import OURS, REMOVED
from shmstore.consumer.copies.database_url import KINDS, file_of, server_url, without_secrets
from shmstore.consumer.copies.databases.database import Database, Password
from shmstore.consumer.copies.databases.dialect import SqlDialect, TablePlace
from shmstore.consumer.copies.databases.table import MARKS, DatabaseTable
from shmstore.consumer.copies.targets.names import NamedCopies
from shmstore.errors import did_you_mean, install


class DatabaseTarget(NamedCopies):
    """Copies in `database`; each is at ``schema.table`` or ``table``."""

    at_once = 1  # on one connection

    def __init__(self, database: Database) -> None:
        self.database = database

    def table(self, path: str, name: str) -> DatabaseTable:
        """`Target.table`."""
        return DatabaseTable(self.database, path, name)

    def paths(self, template: str) -> Iterable[str]:
        """The tables that have marks, but those that were removed, in every schema."""
        database, dialect = self.database, self.database.dialect
        own = dialect.own_schema(database)
        found = list[str]()
        for schema in dialect.schemas_with(database, MARKS):
            marks = dialect.table(TablePlace(schema, MARKS))
            gone = f"SELECT name FROM {marks} WHERE query = {dialect.text(REMOVED)}"
            found_names = database.query(f"SELECT DISTINCT name FROM {marks} WHERE name NOT IN ({gone}) ORDER BY name")
            names = [str(row[0]) for row in found_names]
            copies = [name for name in names if not name.startswith(OURS)]
            found += [f"{schema}.{name}" for name in copies] if schema else []
            found += copies if schema == own else []
        return found

    def transaction(self) -> AbstractContextManager[None]:
        """`Target.transaction`."""
        return self.database.transaction()

    def close(self) -> None:
        """`Target.close`."""
        self.database.close()


def database_target(url: str, password: Password = "", stopped: Callable[[], bool] | None = None) -> DatabaseTarget:
    """Return the target that `url` names: ``postgresql://USER@HOST/DATABASE``, ``mysql://USER@HOST`` or ``sqlite:///FILE``. It is not connected yet.

    `password` is asked for each connection, where it is a function; `stopped` as in `Database`. Raises ValueError without a secret in it, ImportError.
    """
    return DatabaseTarget(Database(_dialect(url), url, password, stopped))


def _dialect(url: str) -> SqlDialect:
    kind, _, place = url.partition(":")
    if kind == "sqlite":
        from shmstore.consumer.copies.databases.sqlite import Sqlite

        return Sqlite(file_of(kind, place))
    if kind == "postgresql" and place.startswith("//"):
        try:
            from shmstore.consumer.copies.databases.postgresql import PostgreSql
        except ImportError as error:
            raise ImportError(f"copies in PostgreSQL need psycopg, which is not installed: {install('postgresql')}") from error
        return PostgreSql(url)
    if kind in ("mysql", "mariadb") and place.startswith("//"):
        try:
            from shmstore.consumer.copies.databases.mysql import MySql
        except ImportError as error:
            raise ImportError(f"copies in MySQL need PyMySQL, which is not installed: {install('mysql')}") from error
        return MySql(server_url(url))
    raise ValueError(
        f"{without_secrets(url)!r} names no database that can hold copies: give postgresql://USER@HOST:PORT/DATABASE, mysql://USER@HOST:PORT, "
        f"mariadb://USER@HOST:PORT or sqlite:///FILE{did_you_mean(kind, KINDS)}"
    )
