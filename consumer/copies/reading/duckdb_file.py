"""Copies in a DuckDB file, read as Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from shmstore.consumer.copies.reading.arrow_copies import ArrowCopy
from shmstore.errors import CopyUnreadable, install


def duckdb_file(path: str, table: str) -> ArrowCopy:
    """Return the table ``schema.table`` of a DuckDB file. The file is open while rows are read, and for no longer.

    Raises `CopyUnreadable` where there is no such file or table, or another process has the file open to write.
    """
    try:
        import duckdb
    except ImportError as error:
        raise ImportError(f"copies in DuckDB need duckdb, which is not installed: {install('duckdb')}") from error

    @contextmanager
    def opened() -> Iterator[duckdb.DuckDBPyConnection]:
        if not Path(path).exists():
            raise CopyUnreadable(f"there is no copy: {path} does not exist")
        try:
            with duckdb.connect(path, read_only=True) as connection:
                connection.execute("SET TimeZone = 'UTC'").fetchall()
                yield connection
        except duckdb.Error as error:
            raise CopyUnreadable(f"the copy {table} in {path} cannot be read: {str(error).strip().splitlines()[0]}") from error

    def named(connection: duckdb.DuckDBPyConnection) -> str:
        ((catalog,),) = connection.execute("SELECT current_database()").fetchall()
        schema, _, bare = table.rpartition(".")
        return ".".join(_quoted(part) for part in (catalog, schema or "main", bare))

    class DuckDBRows:
        @property
        def schema(self) -> pa.Schema:
            with opened() as connection:
                found: pa.Schema = connection.sql(f"SELECT * FROM {named(connection)} LIMIT 0").to_arrow_table().schema
                return found

        def to_batches(self, columns: list[str], filter: Any, batch_size: int) -> Iterator[pa.RecordBatch]:
            with opened() as connection:
                sql = f"SELECT {', '.join(map(_quoted, columns))} FROM {named(connection)}"
                yield from pa.RecordBatchReader.from_stream(connection.sql(sql))

    return ArrowCopy(DuckDBRows, f"the DuckDB table {table} in {path}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
