"""Copies in a DuckDB file, or in a DuckLake whose catalog is one, read as Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from shmstore.consumer.copies.reading.arrow_copies import ArrowCopy
from shmstore.errors import CopyUnreadable, install

_LAKE = "lake"


def attach_lake(connection: Any, path: str, *, read_only: bool = False) -> None:
    """Make the DuckLake with the catalog file `path` the connection's database, and the catalog where there is none. Its rows are Parquet files in the
    folder that the catalog names: PATH.files of a new one.

    Raises what DuckDB raises, and ImportError where its extension is missing: the package is built for one version of DuckDB, and brings that.
    """
    import duckdb

    try:
        import duckdb_extension_ducklake as package
    except ImportError:
        extension = "ducklake"  # as DuckDB's INSTALL leaves it
    else:
        (extension,) = map(str, Path(package.__file__).parent.rglob("ducklake.duckdb_extension"))
    try:
        connection.execute(f"LOAD {_text(extension)}")
    except (duckdb.IOException, duckdb.InvalidInputException) as error:
        why = str(error).strip().splitlines()[0]
        raise ImportError(
            f"copies in DuckLake need its extension of DuckDB {duckdb.__version__}: {why}: {install('ducklake')}"
        ) from error
    connection.execute(f"ATTACH {_text(f'ducklake:{path}')} AS {_LAKE}{' (READ_ONLY)' * read_only}")
    connection.execute(f"USE {_LAKE}")


def detach_lake(connection: Any) -> bool:
    """Roll back, and let the lake of `attach_lake` go: then others may write to it. False where the connection can only be closed."""
    import duckdb

    try:
        with suppress(duckdb.TransactionException):  # none is open
            connection.execute("ROLLBACK")
        connection.execute("USE memory")
        connection.execute(f"DETACH {_LAKE}")
    except duckdb.Error:
        return False
    return True


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def duckdb_file(path: str, table: str, *, lake: bool = False) -> ArrowCopy:
    """Return the table ``schema.table`` of a DuckDB file, or of the `lake` that it is the catalog of. The file is open while rows are read, and for
    no longer.

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
            with duckdb.connect() if lake else duckdb.connect(path, read_only=True) as connection:
                if lake:
                    attach_lake(connection, path, read_only=True)
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

    return ArrowCopy(DuckDBRows, f"the {'DuckLake' if lake else 'DuckDB'} table {table} in {path}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
