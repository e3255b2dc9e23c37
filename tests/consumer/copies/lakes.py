"""Copies in each kind of target, brought up to date with events and read again: what the tests of targets share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from shmstore import Event
from shmstore.consumer.copies.copied_tables import CopiedTables
from shmstore.consumer.copies.copy_set import CopySet
from shmstore.consumer.copies.reading import arrow_copies
from shmstore.consumer.copies.reading.arrow_copies import ArrowCopy
from shmstore.consumer.copies.reading.duckdb_file import attach_lake, duckdb_file
from shmstore.consumer.copies.target import Target
from shmstore.consumer.copies.targets import delta
from shmstore.consumer.copies.targets.duckdb import DuckDB
from shmstore.consumer.copies.targets.folders import AT_ONCE, Folders
from shmstore.consumer.copies.targets.parquet import ParquetTable
from shmstore.encoding.codec import encode
from shmstore.patterns.table_patterns import Patterns

DUCKDB = ("duckdb", "ducklake")
#: "ducklake" alone in a process of its own, which `test_ducklake` starts with the DuckDB that its extension is for.
FORMATS = os.environ.get("SHMSTORE_TEST_COPIES", "parquet delta duckdb").split()


@contextmanager
def duckdb_in(copy: LocalCopies) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection whose database is the one with the copies, called lake."""
    file = str(copy.folder / "lake.duckdb")
    with duckdb.connect() if copy.format == "ducklake" else duckdb.connect(file) as connection:
        if copy.format == "ducklake":
            attach_lake(connection, file)
        yield connection


def target_in(folder: Path, format: str, optimize: int = 0) -> tuple[Target, str]:
    """A target in a folder, and the template of its copies' paths."""
    if format in DUCKDB:
        folder.mkdir(parents=True, exist_ok=True)
        return DuckDB(str(folder / "lake.duckdb"), lake=format == "ducklake"), "{database}.{table}"
    target = delta.target(optimize=optimize) if format == "delta" else Folders(ParquetTable, at_once=AT_ONCE)
    return target, str(folder / "lake/{database}/{table}")


class LocalCopies(CopySet):
    """Copies of all tables of a store that need not exist."""

    def __init__(
        self,
        folder: Path,
        format: str,
        *,
        store: str = "none",
        subscription: str = "spark",
        zero_dates: str = "fail",
        state: str | None = None,
        optimize: int = 0,
        **named: Any,
    ) -> None:
        self.folder, self.format = folder, format
        target, template = target_in(folder, format, optimize)
        super().__init__(
            CopiedTables(store, subscription, Patterns.of_tables("*"), zero_dates, state=state), target, template, **named
        )


def replication(folder: Path, format: str, **named: Any) -> LocalCopies:
    return LocalCopies(folder, format, **named)


def apply(copy: CopySet, batch: int, *transactions: list[Event], query: str = "q") -> None:
    copy.apply([encode(event) for events in transactions for event in events], query, batch)
    copy.close()  # as where nothing comes for a moment


def read(copy: LocalCopies, format: str, table: str = "orders", database: str = "shop") -> pa.Table:
    """The rows of a copy."""
    path = copy.path(database, table)
    if format in DUCKDB:
        with duckdb_in(copy) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            schema, _, name = path.partition(".")
            return connection.sql(f"SELECT * FROM lake.{quoted(schema)}.{quoted(name)}").to_arrow_table()
    return DeltaTable(path).to_pyarrow_table() if format == "delta" else pq.read_table(path)


def exists(copy: LocalCopies, table: str = "orders", database: str = "shop") -> bool:
    """Whether there is a copy."""
    if copy.format not in DUCKDB:
        return Path(copy.path(database, table)).exists()
    with duckdb_in(copy) as connection:
        sql = "SELECT 1 FROM duckdb_tables() WHERE schema_name || '.' || table_name = ?"
        return connection.execute(sql, [copy.path(database, table)]).fetchone() is not None


def hidden(copy: LocalCopies, table: str = "orders", database: str = "shop") -> list[str]:
    """What is to replace a copy."""
    if copy.format not in DUCKDB:
        return [path.name for path in Path(copy.path(database, table)).glob("_next*")]
    with duckdb_in(copy) as connection:
        sql = "SELECT table_name FROM duckdb_tables() WHERE table_name LIKE '\\_shmstore\\_next%' ESCAPE '\\'"
        return [name for (name,) in connection.execute(sql).fetchall()]


def move_away(copy: LocalCopies, table: str = "orders", database: str = "shop") -> None:
    """A person moves a copy away, with its marks."""
    if copy.format not in DUCKDB:
        Path(copy.path(database, table)).rename(copy.folder / "moved")
        return
    with duckdb_in(copy) as connection:
        connection.execute(f'ALTER TABLE lake.{database}."{table}" RENAME TO moved')


def rows(copy: LocalCopies, format: str, table: str = "orders") -> dict[Any, tuple[Any, ...]]:
    found = [tuple(row.values()) for row in read(copy, format, table).to_pylist()]
    assert len({row[0] for row in found}) == len(found), "a key is there twice"
    return {row[0]: row for row in found}


def as_verify_reads(copy: LocalCopies, table: str = "orders", database: str = "shop") -> ArrowCopy:
    """A copy as `verify` reads it."""
    path = copy.path(database, table)
    if copy.format in DUCKDB:
        return duckdb_file(str(copy.folder / "lake.duckdb"), path, lake=copy.format == "ducklake")
    return {"parquet": arrow_copies.parquet, "delta": arrow_copies.delta}[copy.format](path)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
