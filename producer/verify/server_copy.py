"""A copy on a MySQL or MariaDB server: read as a source is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from shmstore import SourceError, TableSchema
from shmstore.encoding.codec import unpack_rows
from shmstore.errors import CopyUnreadable
from shmstore.producer.connection.session import connect
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.producer.settings import Settings
from shmstore.producer.snapshot.tables import read_table
from shmstore.producer.snapshot.watermarks import prepare
from shmstore.producer.stop import Stop
from shmstore.producer.verify.source_rows import SourceRows, StoredRow, StoredRows
from shmstore.sql.names import places_of


class ServerCopy:
    """The copy `database`.`table` on the server that `settings` name."""

    def __init__(self, settings: Settings, database: str, table: str, stop: Stop = lambda: False) -> None:
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

    def rows(self, table: TableSchema) -> Iterator[StoredRows]:
        """Yield every row, some at a time, in stored form. Raises `CopyUnreadable`."""
        places = self._places(table)
        with self._reading(), closing(self._source.pieces()) as pieces:
            for rows in pieces:
                yield self._ordered(places, rows)

    def rows_of(self, table: TableSchema, keys: Sequence[StoredRow]) -> Sequence[StoredRow]:
        """Return the rows that have these keys, and perhaps others; whatever the copy's own key is. Raises `CopyUnreadable`."""
        places, names = self._places(table), self._source.schema.names
        with self._reading():
            found = self._source.rows_of(keys, [names[places[i]] for i in table.primary_key])
            return list(unpack_rows(self._ordered(places, found)))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """What goes wrong while the copy is read is the copy's trouble, and not the source's."""
        try:
            yield
        except SourceError as error:
            raise CopyUnreadable(f"the copy cannot be read: {error}") from error

    def _places(self, table: TableSchema) -> list[int]:
        """Where the columns of `table` are in the copy. Raises `CopyUnreadable`."""
        names = self._source.schema.names
        places = places_of(table.names, names)
        if lacking := [name for name, i in zip(table.names, places, strict=True) if i is None]:
            raise CopyUnreadable(f"the copy has no column {lacking[0]}: it has {', '.join(names)}")
        return [i for i in places if i is not None]

    def _ordered(self, places: list[int], rows: StoredRows) -> StoredRows:
        if places == list(range(len(self._source.schema.columns))):
            return rows
        return [[row[i] for i in places] for row in unpack_rows(rows)]

    def close(self) -> None:
        """Close the connection."""
        self._session.close()
