"""A copy of a table, to be read: what `server_copy` does for a server, and shmstore.consumer.copies for files and databases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from shmstore import TableSchema
from shmstore.producer.verify.source_rows import StoredRow, StoredRows


class ReadableCopy(Protocol):
    """A table's copy, to be read. Rows are in stored form, their values in the order of the columns asked for."""

    def rows(self, table: TableSchema) -> Iterator[StoredRows]:
        """Yield every row, some at a time, perhaps as MessagePack. Raises `CopyUnreadable`."""

    def rows_of(self, table: TableSchema, keys: Sequence[StoredRow]) -> Sequence[StoredRow]:
        """Return the rows that have these values in the columns of ``table.primary_key``; there may be others among them."""

    def close(self) -> None:
        """Let go of files and connections."""
