"""Copies that are read as Arrow: Delta and Iceberg tables, and Parquet files. One version of them is read from its first row to its last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset as ds

from shmstore.consumer.copies.reading.names import own_names
from shmstore.consumer.copies.reading.stored_values import rows_with, stored_rows
from shmstore.errors import CopyUnreadable, install
from shmstore.event import TableSchema
from shmstore.sql.names import index_of

BATCH_ROWS = 1 << 16
_CURRENT = "_current"
_FILTERED = (pa.types.is_integer, pa.types.is_string, pa.types.is_date)  # key types that a file's own statistics are asked for


class Dataset(Protocol):
    """One version of a copy; a `pyarrow.dataset.Dataset` is one."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""

    def to_batches(self, columns: list[str], filter: Any, batch_size: int) -> Iterator[pa.RecordBatch]:
        """Read these columns of the rows that a filter is true of, and perhaps of others."""


class ArrowCopy:
    """A copy that `open` gives a dataset of: again for each reading, so that it is the newest version."""

    def __init__(self, open: Callable[[], Dataset], what: str) -> None:
        self._open, self._what = open, what

    def rows(self, table: TableSchema) -> Iterator[Sequence[Sequence[Any]]]:
        """Yield every row, some at a time, in stored form. Raises `CopyUnreadable` where it cannot stand for the table."""
        yield from self._read(table, None)

    def rows_of(self, table: TableSchema, keys: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the rows that have these keys."""
        first = table.columns[table.primary_key[0]]
        schema = self._open().schema
        at = index_of(first.name, schema.names)
        kind = None if at is None else schema.field(at).type
        some = None
        if (
            kind is not None
            and any(is_kind(kind) for is_kind in _FILTERED)
            and all(isinstance(key[0], int | str) for key in keys)
        ):
            values = pa.array([key[0] for key in keys], pa.int32() if pa.types.is_date32(kind) else None)
            some = ds.field(schema.names[at]).isin(values.cast(kind))
        return rows_with(keys, table, self._read(table, some))

    def _read(self, table: TableSchema, some: Any) -> Iterator[list[tuple[Any, ...]]]:
        dataset = self._open()
        names = dataset.schema.names
        columns = own_names(table, names, self._what)
        if _CURRENT in names and _CURRENT not in columns:  # of a table that has such a column there is no history
            raise CopyUnreadable(f"{self._what} holds the table's history: verify compares a table with its present rows")
        for batch in dataset.to_batches(columns=columns, filter=some, batch_size=BATCH_ROWS):
            if batch.num_rows:
                try:
                    yield stored_rows(table.columns, batch.select(columns))
                except (TypeError, ValueError, pa.ArrowException) as error:
                    raise CopyUnreadable(f"{self._what} has a value that its column cannot hold: {error}") from error

    def close(self) -> None:
        """Nothing is held."""


def delta(path: str, storage: Mapping[str, str] | None = None) -> ArrowCopy:
    """Return the Delta table at `path`; `storage` are delta-rs's storage options. Raises `CopyUnreadable` where there is none."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError
    except ImportError as error:
        raise ImportError(f"copies in Delta need deltalake, which is not installed: {install('delta')}") from error

    def open() -> ds.Dataset:
        try:
            return DeltaTable(path, storage_options=dict(storage or {}) or None).to_pyarrow_dataset()
        except TableNotFoundError:
            raise CopyUnreadable(f"there is no copy: {path} is not a Delta table") from None

    return ArrowCopy(open, f"the Delta table {path}")


def parquet(path: str) -> ArrowCopy:
    """Return the Parquet files of a folder, or the file, at `path`, as they are now. Raises `CopyUnreadable` where there is none."""

    def open() -> ds.Dataset:
        if not Path(path).exists():
            raise CopyUnreadable(f"there is no copy: {path} does not exist")
        return ds.dataset(path, format="parquet")

    return ArrowCopy(open, f"the Parquet copy {path}")


class _IcebergTable:
    def __init__(self, table: Any) -> None:
        self._table = table

    @property
    def schema(self) -> pa.Schema:
        found: pa.Schema = self._table.schema().as_arrow()
        return found

    def to_batches(self, columns: list[str], filter: Any, batch_size: int) -> Iterator[pa.RecordBatch]:
        scan = self._table.scan(selected_fields=tuple(columns))
        yield from scan.to_arrow_batch_reader()


def iceberg(place: str, name: str = "") -> ArrowCopy:
    """Return the Iceberg table in the folder `place`, or the table `name` of the catalog `place`, as pyiceberg is configured.

    Raises `CopyUnreadable` where there is none.
    """
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise ImportError(f"copies in Iceberg need pyiceberg, which is not installed: {install('iceberg')}") from error

    def open() -> Dataset:
        try:
            return _IcebergTable(load_catalog(place).load_table(name) if name else StaticTable.from_metadata(_metadata(place)))
        except NoSuchTableError:
            raise CopyUnreadable(f"there is no copy: catalog {place} has no table {name}") from None
        except (OSError, ValueError) as error:
            raise CopyUnreadable(f"there is no copy that can be read in {place}: {error}") from error

    return ArrowCopy(open, f"the Iceberg table {name or place}")


def _metadata(folder: str) -> str:
    """The newest metadata of a table: as its hint says, which Spark's own catalog writes, else the file with the highest number."""
    place = Path(folder, "metadata")
    hint = place / "version-hint.text"
    if hint.exists():
        return str(place / f"v{hint.read_text().strip()}.metadata.json")
    found = sorted(place.glob("*.metadata.json"), key=lambda path: int(path.name.partition("-")[0]))
    if not found:
        raise CopyUnreadable(f"there is no copy: {folder} has no metadata of an Iceberg table")
    return str(found[-1])
