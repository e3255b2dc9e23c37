"""Column types that the binlog does not tell, asked of the server as it is now (MariaDB's UUID, INET4, INET6)."""

from __future__ import annotations

from shmstore import Column, Position, SourceError, TableSchema
from shmstore.producer.connection.session import connect
from shmstore.producer.errors import LinkLost, LoginRefused, ServerUnreachable
from shmstore.producer.settings import Endpoint, Settings
from shmstore.sql_tokens import USUAL, SqlMode

_LIKE_BINARY = "('uuid', 'inet4', 'inet6')"


class CurrentTables:
    """A MariaDB's UUID, INET4 and INET6 columns as they are now: in the binlog they look like BINARY.

    Asked once a table, and again after a DDL. Where nothing can be asked, nobody knows: whoever needs the table gets the error,
    and a new link asks again.
    """

    settled = True  # a DDL gives a table a new id, so what was said of one id stays true

    def __init__(self, settings: Settings, endpoint: Endpoint) -> None:
        self._settings, self._endpoint = settings, endpoint
        self._tables: dict[tuple[str, str], TableSchema | SourceError | None] = {}

    def find(self, database: str, table: str) -> TableSchema | None:
        """Return a schema of only those columns, without a table name; None where there are none. Raises `SourceError`,
        `LinkLost` where it may be known later."""
        key = (database, table)
        if key not in self._tables:
            try:
                self._tables[key] = self._ask(database, table)
            except SourceError as error:
                again = isinstance(error, LinkLost | ServerUnreachable | LoginRefused)
                reason = (
                    f"which of its columns are UUID or INET cannot be asked: {error}; with schema_history = off they are bytes"
                )
                self._tables[key] = LinkLost(reason) if again else SourceError(reason)
        found = self._tables[key]
        if isinstance(found, SourceError):
            raise type(found)(*found.args)  # a new one: each raise of the same makes its traceback longer
        return found

    def follow(self, position: Position, database: str, sql: str, mode: SqlMode = USUAL) -> bool:
        """Forget what was asked: a DDL may have changed it."""
        self._tables.clear()
        return True

    def seek(self, position: Position) -> None:
        """Now is now."""

    def _ask(self, database: str, table: str) -> TableSchema | None:
        session = connect(self._settings, self._endpoint)
        try:
            rows = session.query(
                "SELECT column_name, data_type FROM information_schema.columns "
                f"WHERE table_schema = %s AND table_name = %s AND data_type IN {_LIKE_BINARY}",
                (database, table),
            )
        finally:
            session.close()
        return TableSchema(database, "", tuple(Column(str(name), str(type_)) for name, type_ in rows)) if rows else None
