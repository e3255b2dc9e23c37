"""The tables of a server as they are now, described exactly as the binlog will describe them.

A snapshot's rows must carry the schema that the same rows have in the stream. There it comes from TABLE_MAP events, here from
information_schema: names, types, signs, character sets and members as `columns` reads them from COLUMN_TYPE, and the sizes
that a TABLE_MAP says on its own; how columns are defined is
not read here, but what the stream knows of it (`defined_as`). One thing no statement tells: members of ENUM and SET outside of Unicode's first plane, which
both servers show as "?" everywhere but in the binlog.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from shmstore import Column, SourceError, TableSchema
from shmstore.producer.connection.session import ServerSession, steady
from shmstore.producer.schema.periods import NO_PERIOD, Period, period_of
from shmstore.sql.catalog import Unreadable
from shmstore.sql.columns import column_of_type, with_definition
from shmstore.sql.names import folded
from shmstore.sql.table_change import Draft
from shmstore.sql.table_change import Table as Drafted

__all__ = [
    "SourceTable",
    "TableKey",
    "VisibleTables",
    "defined_as",
    "list_tables",
    "may_hide_columns",
    "may_select",
    "quoted",
    "read_table",
    "require_all_columns",
]

SYSTEM = ("information_schema", "performance_schema", "sys", "mysql")
_SIZED = {"char", "varchar", "binary", "varbinary", "decimal", "bit"}
_AS_BINARY = {"uuid": 16, "inet6": 16, "inet4": 4}

_COLUMNS = (
    "SELECT column_name, column_type, character_set_name, collation_name, is_nullable, character_octet_length, "
    "numeric_precision, {} FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)
_ALL_COLUMNS = (
    "SELECT table_name, column_name, column_type, character_set_name FROM information_schema.columns WHERE table_schema = %s "
    "ORDER BY table_name, ordinal_position"
)
# the table, and each column of its unique indexes: one question, because each has a way to the server and back
_TABLE = (
    "SELECT table_type, NULL, NULL, NULL, NULL, NULL, table_rows, avg_row_length FROM information_schema.tables "
    "WHERE table_schema = %s AND table_name = %s UNION ALL "
    "SELECT NULL, index_name, seq_in_index, column_name, nullable, sub_part, NULL, NULL FROM information_schema.statistics "
    "WHERE table_schema = %s AND table_name = %s AND non_unique = 0 AND index_type = 'BTREE'"
)


class TableKey(NamedTuple):
    """What tells a table's rows apart: an index without NULLs, and the numbers of its columns."""

    name: str
    columns: tuple[int, ...]


class SourceTable(NamedTuple):
    """One table: its schema as events carry it, its columns' collations, its key, and a guess at its size."""

    schema: TableSchema
    collations: tuple[str, ...]
    key: TableKey | None
    raw: frozenset[int]  # columns that the stream has as bytes, though the server prints them
    versioned: bool  # MariaDB's system versioning: rows of the past are rows too
    rows: int
    row_bytes: int

    @property
    def name(self) -> str:
        """``database.table``, quoted for SQL."""
        return f"{quoted(self.schema.database)}.{quoted(self.schema.table)}"


def quoted(name: str) -> str:
    """Return an identifier for SQL."""
    return "`" + name.replace("`", "``") + "`"


def may_select(session: ServerSession) -> bool:
    """Whether the account may read any table at all: what it may not read, it does not see."""
    grants = " ".join(_grants(session)).upper()
    return "SELECT" in grants or "ALL PRIVILEGES" in grants


def may_hide_columns(session: ServerSession) -> bool:
    """Whether the account has rights to single columns, perhaps by a role: those of a table that it may not read are not shown to it."""
    return any("SELECT (" in grant or " ON " not in grant for grant in _grants(session))


def _grants(session: ServerSession) -> list[str]:
    return [str(row[0]) for row in session.query("SHOW GRANTS")]


def require_all_columns(session: ServerSession, database: str, table: str) -> None:
    """Raise `PrivilegeMissing` where the account may not read all columns of a table. It waits behind a DDL that waits for other sessions."""
    try:
        session.query(f"SELECT * FROM {quoted(database)}.{quoted(table)} LIMIT 0")
    except SourceError as error:
        if type(error) is not SourceError:
            raise
        # else there is no such table, as the next question says, or its rows cannot be read, as the SELECT of the rows says


def list_tables(session: ServerSession, passes: Callable[[str, str], bool]) -> list[tuple[str, str]]:
    """Return (database, table) of the tables that `passes` lets through; no views, none of the server's own."""
    places = ",".join(["%s"] * len(SYSTEM))
    rows = session.query(
        f"SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN ({places}) "
        "AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY table_schema, table_name",
        SYSTEM,
    )
    return [(str(database), str(table)) for database, table in rows if passes(str(database), str(table))]


class VisibleTables:
    """What the account of `session` sees of all tables."""

    def __init__(self, session: ServerSession) -> None:
        self._session = session

    def names(self) -> list[tuple[str, str]] | None:
        """Return (database, table) of each; None where the account may read none at all. Raises `SourceError`."""
        return list_tables(self._session, lambda database, table: True) if may_select(self._session) else None

    def columns(self, database: str) -> dict[str, list[Column]]:
        """Return the columns of the tables of `database`, by table. Raises `SourceError`."""
        found: dict[str, list[Column]] = defaultdict(list)
        for table, name, type_, charset in self._session.query(_ALL_COLUMNS, (database,)):
            found[str(table)].append(column_of_type(str(name), str(type_), str(charset or "")))
        return found


def _with_period(shown: Drafted, found: Period | Unreadable) -> Drafted:
    """The table with the period of its application, where its key is one without overlaps: the implicit end of the row's comes before that."""
    if not isinstance(found, Period) or not found.overlapless or shown.key[-2:] != found.names[:0:-1]:
        return shown
    return shown._replace(period=found.names, overlapless=True)


def read_table(session: ServerSession, database: str, table: str, *, history: str = "auto") -> SourceTable | None:
    """Return the table as it is now; None where there is none. `history`: the option schema_history, which tells types apart.

    Raises `PrivilegeMissing` where the account may read only some of its columns, and other `SourceError`s.
    """
    name = (database, table)
    if may_hide_columns(session):
        require_all_columns(session, database, table)
    generated = "generation_expression" if session.mariadb else "''"
    kind, size = "", (0, 0)  # as last seen; the size is a guess, which changes with the rows

    def kind_and_indexes() -> tuple[str, list[tuple[Any, ...]]]:
        nonlocal kind, size
        kind, indexes = "", []
        for type_, index, place, *column, rows, row_bytes in session.query(_TABLE, (*name, *name)):
            if type_ is None:
                indexes.append((index != "PRIMARY", folded(str(index)), int(place), str(index), *column))
            else:
                kind, size = str(type_), (int(rows or 0), int(row_bytes or 0))
        return kind, [index[3:] for index in sorted(indexes, key=lambda index: index[:3])]

    def columns_and_period() -> tuple[list[tuple[Any, ...]], Period | Unreadable]:
        period = period_of(session.query, *name) if kind == "SYSTEM VERSIONED" else NO_PERIOD
        return session.query(_COLUMNS.format(generated), name), period

    (_, indexes), (asked, period) = steady(kind_and_indexes, columns_and_period)
    if kind not in ("BASE TABLE", "SYSTEM VERSIONED"):
        return None
    columns, collations, raw, begin, end = [], [], set(), "", ""
    for column, type_, charset, collation, nullable, octets, precision, expression in asked:
        made = column_of_type(str(column), str(type_), str(charset or ""))
        made = made._replace(charset=_standard(charset or ""), nullable=nullable == "YES", definition="")
        if made.type in _SIZED:
            made = made._replace(size=int(octets or precision or 0))
        columns.append(_as_logged(made, history, int(octets or 0)) if session.mariadb else made)
        if columns[-1].type == "binary" and made.type in _AS_BINARY:
            raw.add(len(columns) - 1)
        collations.append(str(collation or ""))
        if expression == "ROW START":
            begin = str(column)
        elif expression == "ROW END":
            end = str(column)
    keys = _keys(indexes)
    drafted = Drafted(tuple(columns), tuple(keys.get("PRIMARY", ())), "", period_begin=begin, period_end=end)
    versioned = kind == "SYSTEM VERSIONED"
    if versioned and drafted.key and not end:
        drafted = _with_period(drafted, period)
    draft = Draft(drafted)
    if versioned:
        draft.version()
        keys = {"PRIMARY": list(draft.table.key)} if "PRIMARY" in keys else {}
    own = len(columns)
    columns = [column if i < own else column._replace(nullable=False) for i, column in enumerate(draft.table.columns)]
    names = [column.name for column in columns]
    schema = TableSchema(database, table, tuple(columns), tuple([names.index(part) for part in draft.table.key]))
    collations += [""] * (len(names) - len(collations))
    key = next((TableKey(index, tuple([names.index(part) for part in parts])) for index, parts in keys.items()), None)
    return SourceTable(schema, tuple(collations), key, frozenset(raw), versioned, *size)


def defined_as(table: SourceTable, known: TableSchema | None) -> SourceTable:
    """Return the table with its columns' definitions as `known`, which the stream takes them from, has them."""
    columns = {column.name: column for column in known.columns} if known is not None else {}
    schema = table.schema
    return table._replace(
        schema=schema._replace(columns=tuple([with_definition(column, columns.get(column.name)) for column in schema.columns]))
    )


def _keys(indexes: Iterable[Sequence[Any]]) -> dict[str, list[str]]:
    """The columns of the unique indexes that have no NULL, the primary key first; without those on expressions."""
    keys: dict[str, list[str]] = {}
    unfit = set()
    for index, column, nullable, part in indexes:
        if column is None or nullable == "YES" or (part is not None and index != "PRIMARY"):
            unfit.add(index)
        keys.setdefault(str(index), []).append(str(column))
    return {index: columns for index, columns in keys.items() if index not in unfit}


def _as_logged(column: Column, history: str, octets: int) -> Column:
    """The column as a TABLE_MAP shows it: MariaDB's own types travel as bytes, and only a history knows better."""
    if column.type == "vector" and history != "on":
        return column._replace(type="varbinary", size=octets)
    if column.type in _AS_BINARY and history == "off":
        return column._replace(type="binary", size=_AS_BINARY[column.type])
    return column


def _standard(charset: str) -> str:
    return "utf8mb3" if charset == "utf8" else charset
