"""What the binlog does not tell of tables though it names their columns, asked of the server as it is now, and followed from there.

That is how columns were defined: display widths, ZEROFILL, whether the key is a primary one; and MariaDB's UUID, INET4 and INET6,
which look like BINARY in the binlog.
"""

from __future__ import annotations

from shmstore import Column, Position, SourceError, TableSchema
from shmstore.producer.connection.session import connect, steady
from shmstore.producer.errors import LinkLost, LoginRefused, ServerUnreachable
from shmstore.producer.settings import ServerAddress, Settings
from shmstore.sql.catalog import Catalog, Unreadable
from shmstore.sql.columns import column_of_type
from shmstore.sql.session import UNKNOWN, Session
from shmstore.sql.table_change import Table

_COLUMNS = (
    "SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
    "ORDER BY ordinal_position"
)
_KEY = (
    "SELECT column_name FROM information_schema.statistics "
    "WHERE table_schema = %s AND table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index"
)
# Types whose definition may say more than the log: of the others the log has the sizes, and those of its time.
_WIDE = frozenset(("tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "year"))


class CurrentTables:
    """Tables as they are defined now. Each is asked for once; from there its DDLs are followed, in the order of the log.

    What it says is used as far as it fits the log, since a table may have been another one when the event was written. Where
    nothing can be asked, no process knows: the process that needs the table gets the error. One of the connection may be gone at the next try.
    """

    def __init__(self, settings: Settings, endpoint: ServerAddress, *, mariadb: bool, fold_case: bool = False) -> None:
        self._settings, self._endpoint = settings, endpoint
        self._catalog = Catalog(mariadb=mariadb, fold_case=fold_case)
        self._found: dict[tuple[str, str], TableSchema | SourceError | None] = {}

    def find(self, database: str, table: str) -> TableSchema | None:
        """Return the columns, by name, in a schema without a table name; None where the account sees none.

        Raises `SourceError`, `LinkLost` where it may be known later.
        """
        key = self._catalog.key(database, table)
        if key not in self._found:
            try:
                self._found[key] = self._ask(database, table)
            except SourceError as error:
                reason = f"how its columns are defined cannot be asked: {error}; with schema_history = off they are as the log has them"
                if isinstance(error, LinkLost | ServerUnreachable | LoginRefused):
                    raise LinkLost(reason) from error  # not kept: a snapshot asks again over the same link
                self._found[key] = SourceError(reason)
        found = self._found[key]
        if isinstance(found, SourceError):
            raise type(found)(*found.args)  # a new one: each raise of the same makes its traceback longer
        return found

    def follow(self, position: Position, database: str, sql: str, session: Session = UNKNOWN) -> bool:
        """Take in a DDL. A table whose new definition it does not tell is asked for again."""
        change = self._catalog.read(sql, database, session)
        for (schema, table), now in change.items():
            key = self._catalog.key(schema, table)
            if isinstance(now, Table):
                now = self._once(now, self._catalog.find(schema, table))
            self._catalog.take({(schema, table): None if isinstance(now, Unreadable) else now})  # the server knows
            if not table and not isinstance(now, str):  # a database that is dropped, or whose tables are not known
                for known in [one for one in self._found if one[0] == key[0]]:
                    del self._found[known]
            elif isinstance(now, Table):
                self._found[key] = self._schema(schema, now)
            else:
                self._catalog.tables.pop(key, None)
                self._found.pop(key, None)
        return bool(change)

    def seek(self, position: Position) -> None:
        """Now is now."""

    def _once(self, now: Table, before: Table | Unreadable | None) -> Table:
        """The table with each column once: where the server was asked behind a DDL that comes now, it has what that adds already."""
        old = before.columns if isinstance(before, Table) else ()
        columns: dict[str, Column] = {}
        for column in now.columns:
            if column.name not in columns or column not in old:
                columns[column.name] = column
        return now._replace(columns=tuple(columns.values()))

    def _schema(self, database: str, table: Table) -> TableSchema:
        names = [column.name for column in table.columns]
        return TableSchema(database, "", table.columns, tuple([names.index(name) for name in table.key]))

    def _ask(self, database: str, table: str) -> TableSchema | None:
        session = connect(self._settings, self._endpoint)
        try:
            keys, rows = steady(
                lambda: session.query(_KEY, (database, table)), lambda: session.query(_COLUMNS, (database, table))
            )
        finally:
            session.close()
        if not rows:
            return None
        columns = tuple([_column(str(name), str(type_)) for name, type_ in rows])
        key = tuple([str(name) for (name,) in keys])
        if not {column.name for column in columns}.issuperset(key):  # MySQL shows it though the account may not read its columns
            key = ()
        found = Table(columns, key, self._catalog.charset)
        self._catalog.take({(database, table): found})
        return self._schema(database, found)


def _column(name: str, type_: str) -> Column:
    try:
        column = column_of_type(name, type_)
    except ValueError:  # a type that this version does not know
        return Column(name, "")
    known = column.type in _WIDE or "zerofill" in column.definition
    return column if known else column._replace(definition="")
