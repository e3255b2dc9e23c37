"""The way on where a table's rows cannot be read with what was followed: the server's present definition, if it fits them.

It fits as far as the bytes can show. That it was so when the rows were written only the user may say, with schema_history = now:
two columns of one type may have changed places meanwhile. So it is offered, and used when it was asked for.
"""

from __future__ import annotations

import logging

from shmstore import Position, SchemaUnknown, SourceError
from shmstore.producer.binlog.rows import RowsDecoder
from shmstore.producer.binlog.table_map import TableMap
from shmstore.producer.connection.session import connect
from shmstore.producer.errors import LinkLost, ServerUnreachable
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.schema.snapshot import take_snapshot
from shmstore.producer.settings import ServerAddress, Settings

__all__ = ["PresentTables"]

_HERE = Position("present.000001", 4)  # of a history that holds the present tables alone


class PresentTables:
    """The tables of the server at `endpoint` as they are now."""

    def __init__(self, settings: Settings, endpoint: ServerAddress, log: logging.Logger) -> None:
        self._settings, self._endpoint, self._log = settings, endpoint, log

    def take(self, error: SchemaUnknown, table: TableMap, rows: RowsDecoder, history: SchemaHistory, position: Position) -> None:
        """Let `history` have the present definition of a table whose rows raised `error`. Raises it where that is not to be, with why."""
        name = table.database, table.table
        present = SchemaHistory()
        try:
            session = connect(self._settings, self._endpoint)
            try:
                take_snapshot(present, session, lambda: _HERE, database=table.database)
            finally:
                session.close()
            schema = present.find(*name)
        except (LinkLost, ServerUnreachable):
            raise  # asked again over the next link
        except SourceError as unasked:
            raise SchemaUnknown(f"{error}; the table's present definition cannot be asked: {unasked}") from error
        if schema is None or not rows.fits(table, schema, present.hidden(*name)):
            raise SchemaUnknown(f"{error}; nor do these rows fit the table's present definition") from error
        if self._settings.schema_history != "now":
            raise SchemaUnknown(
                f"{error}; or continue with the table's present definition on the server, which these rows fit: start once with --schema-history now, "
                "if no column was renamed or moved since they were written"
            ) from error
        self._log.warning("table %s.%s: its rows are read with its present definition, as schema_history = now says", *name)
        history.define_as(position, name, present.table(*name))
        rows.again(table)
