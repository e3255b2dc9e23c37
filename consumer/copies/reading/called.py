"""A copy of any kind, read through a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from shmstore.consumer.copies.reading.names import own_names
from shmstore.consumer.copies.reading.stored_values import rows_with, stored
from shmstore.errors import CopyUnreadable
from shmstore.event import TableSchema

BATCH_ROWS = 10_000
Read = Callable[[TableSchema], Iterable[Mapping[str, Any]]]


class CalledCopy:
    """A copy whose rows `read(table)` gives: every row as a mapping of column names to Python values, as it is at that moment."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def rows(self, table: TableSchema) -> Iterator[Sequence[Sequence[Any]]]:
        """Yield every row, some at a time, in stored form. Raises `CopyUnreadable` where it cannot stand for the table."""
        makes = [stored(column) for column in table.columns]
        found = iter(self._read(table))
        while some := list(islice(found, BATCH_ROWS)):
            columns = list(zip(own_names(table, list(some[0]), "a row of the copy"), makes, strict=True))
            try:
                yield [[make(row[name]) for name, make in columns] for row in some]
            except KeyError as error:
                raise CopyUnreadable(f"the copy's rows have no column {error.args[0]}") from error
            except TypeError as error:
                raise CopyUnreadable(f"the copy has a value that its column cannot hold: {error}") from error

    def rows_of(self, table: TableSchema, keys: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the rows that have these keys: all are read for it."""
        return rows_with(keys, table, self.rows(table))

    def close(self) -> None:
        """Nothing is held."""
