"""How many columns a MariaDB keeps behind a table's own: hashes of UNIQUE keys that are too long for an index. The log has them.

Which keys those are depends on the engine, the row format and the page size. So it is followed as far as it is certain: a table without
UNIQUE has none, nor has one whose columns all fit into any index; else it is not known after a statement that may concern its keys.
"""

from __future__ import annotations

from shmstore.column_type import sized
from shmstore.event import Column
from shmstore.sql.catalog import Catalog, Change
from shmstore.sql.classify import classify
from shmstore.sql.session import Session
from shmstore.sql.table_change import Table
from shmstore.sql.tokens import modes, statement

__all__ = ["with_hidden"]

_SHORT = 700  # bytes that every engine, row format and page size takes into an index, and room for lengths and NULLs
_NEW = frozenset(("UNIQUE",))
_CHANGED = _NEW | {"MODIFY", "CHANGE", "CONVERT", "ENGINE", "ROW_FORMAT"}


def with_hidden(change: Change, catalog: Catalog, sql: str, database: str, session: Session) -> Change:
    """Return `change`, which the statement makes in `catalog`, with the number of hidden columns of each table in it."""
    readings = [[token.upper for token in statement(sql, mode).rest()] for mode in modes(sql, session.mode)]
    words, found = readings[0], frozenset().union(*readings)
    created = words[:1] == ["CREATE"] and "TABLE" in words[1:4] and "LIKE" not in found
    if not change and (_may_add(found) or "DROP" in found):  # it concerns keys only
        tables = [(name, catalog.find(*name)) for name in classify(sql, database, session.mode).tables]
        change = {name: known for name, known in tables if isinstance(known, Table) and known.hidden != _hidden(known, found)}
    return {
        name: now._replace(hidden=_created(now, found) if created else _hidden(now, found)) if isinstance(now, Table) else now
        for name, now in change.items()
    }


def _created(table: Table, words: frozenset[str]) -> int | None:
    return None if words & _NEW and _may_be_long(table, words) else 0


def _hidden(table: Table, words: frozenset[str]) -> int | None:
    """How many the table has after a statement of these words, which had `table.hidden`."""
    if table.hidden == 0:
        return None if _may_add(words) and _may_be_long(table, words) else 0
    return None if _may_add(words) or "DROP" in words else table.hidden


def _may_add(words: frozenset[str]) -> bool:
    """Whether a key may be new or longer. The UNIQUE of a SERIAL stays where IF NOT EXISTS leaves the column out: then it is another column's."""
    return bool(words & _CHANGED) or {"SERIAL", "EXISTS"} <= words


def _may_be_long(table: Table, words: frozenset[str]) -> bool:
    """Whether a key may be too long: the statement asks for a hash, or the columns are long together."""
    return "HASH" in words or sum(map(_bytes, table.columns)) > _SHORT


def _bytes(column: Column) -> int:
    """Bytes that the column takes in an index at most; more than `_SHORT` where that is not known."""
    size = sized(column).size
    if column.type in _FIXED:
        return size or 16
    return size if column.type in _SIZED and column.definition else 2 * _SHORT


_FIXED = frozenset(("tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "decimal", "bit", "enum", "set"))
_FIXED |= {"year", "date", "time", "datetime", "timestamp", "uuid", "inet6", "inet4"}
_SIZED = frozenset(("char", "varchar", "binary", "varbinary"))
