"""Databases that copies are kept in, for the tests: a real PostgreSQL, MariaDB or MySQL, through its own JDBC driver."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from shmstore.consumer.spark.replicate.jdbc_connection import DRIVERS, Database
from tests.servers.postgres import start_postgres
from tests.servers.server import Server

USER, PASSWORD = "copies", "s3cret of copies"
_loaded: set[str] = set()
_lock = threading.Lock()


def load_driver(spark: Any, kind: str) -> None:
    """Have the driver's jar in the session, as ``--packages`` would: fetched once, then out of Spark's own cache."""
    with _lock:
        if kind not in _loaded:
            spark.sql(f"ADD JAR 'ivy://{DRIVERS[kind][1]}?transitive=false'")
            _loaded.add(kind)


@dataclass
class Copies:
    """A database for copies. `select` gives a table's rows as `text`."""

    kind: str
    url: str
    account: dict[str, str]
    server: Any
    schema: str
    made: list[Database] = field(default_factory=list)

    def connect(self, spark: Any, **properties: str) -> Database:
        """A `Database` of its own, as a new driver has it."""
        load_driver(spark, self.kind)
        self.made.append(Database(spark, self.url, {**self.account, **properties}))
        return self.made[-1]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run SQL, past the code under test."""
        if self.kind == "postgresql":
            return [tuple(row) for row in self.server.query(sql)]
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(sql)
            return list(cursor.fetchall())

    def select(self, table: str, columns: str = "*") -> list[tuple[str, ...]]:
        """A table's rows, sorted."""
        return sorted(tuple(map(text, row)) for row in self.query(f"SELECT {columns} FROM {self.schema}.{table}"))


@contextmanager
def copies(kind: str, server: Server | None, schema: str) -> Iterator[Copies]:
    """A schema for copies on a server of this kind; on MariaDB and MySQL the user has no rights beyond it."""
    if kind == "postgresql":
        with start_postgres() as postgres:
            account = {"user": postgres.user, "password": postgres.password}
            made = Copies(kind, postgres.url, account, postgres, schema)
            yield made
            for database in made.made:
                database.close()
        return
    assert server is not None
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'")
        cursor.execute(f"GRANT ALL ON {schema}.* TO {USER}@'%'")
    made = Copies(kind, f"jdbc:{kind}://127.0.0.1:{server.port}/", {"user": USER, "password": PASSWORD}, server, schema)
    try:
        yield made
    finally:
        for database in made.made:
            database.close()
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP USER {USER}@'%'")
            cursor.execute(f"DROP DATABASE IF EXISTS {schema}")


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
