"""A copy on a MySQL or MariaDB server: read as a source is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shmstore import TableSchema
from shmstore.errors import CopyUnreadable
from shmstore.producer.connection.session import connect
from shmstore.producer.filter import TableFilter
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot.tables import read_table
from shmstore.producer.snapshot.watermarks import prepare
from shmstore.producer.verify.source_rows import Row, SourceRows


class ServerCopy:
    """The copy `database`.`table` on the server that `settings` name."""

    def __init__(self, settings: Settings, database: str, table: str, stop: Callable[[], bool] = lambda: False) -> None:
        self._session = connect(settings, settings.endpoints()[0], stop)
        prepare(self._session)
        found = read_table(self._session, database, table)
        if found is None:
            self._session.close()
            raise CopyUnreadable(f"there is no copy: {settings.endpoints()[0].where} has no table {database}.{table}")
        self._source = SourceRows(self._session, found, TableFilter(), settings, stop)
        if self._source.key_problem:
            self._session.close()
            raise CopyUnreadable(f"the copy {database}.{table} cannot be read in parts: {self._source.key_problem}")

    def rows(self, table: TableSchema) -> Iterator[Sequence[Row]]:
        """Yield every row, some at a time, in stored form. Raises `CopyUnreadable`."""
        for rows, _ in self._source.pieces(()):
            yield self._ordered(table, rows)

    def rows_of(self, table: TableSchema, keys: Sequence[Row]) -> Sequence[Row]:
        """Return the rows that have these keys, and perhaps others."""
        own = [column.name for column in self._source.key_columns]
        names = [table.columns[i].name for i in table.primary_key]
        if set(own) != set(names):
            return [row for rows in self.rows(table) for row in rows]
        places = [names.index(name) for name in own]
        return self._ordered(table, self._source.rows_of([[key[i] for i in places] for key in keys]))

    def _ordered(self, table: TableSchema, rows: Sequence[Row]) -> Sequence[Row]:
        names = self._source.schema.names
        if lacking := [name for name in table.names if name not in names]:
            raise CopyUnreadable(f"the copy has no column {lacking[0]}: it has {', '.join(names)}")
        places = [names.index(name) for name in table.names]
        if places == list(range(len(names))):
            return rows
        return [[row[i] for i in places] for row in rows]

    def close(self) -> None:
        """Close the connection."""
        self._session.close()
