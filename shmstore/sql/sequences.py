"""MariaDB's sequences, which are tables of one row: their columns, of which four have the sequence's type."""

from __future__ import annotations

from shmstore.event import Column
from shmstore.sql.table_change import Table
from shmstore.sql.tokens import Tokens

__all__ = ["is_sequence", "sequence_table", "typed_sequence"]

_TYPED = ("next_not_cached_value", "minimum_value", "maximum_value", "start_value")
_OTHERS = (
    Column("increment", "bigint", nullable=False),
    Column("cache_size", "bigint", True, False),
    Column("cycle_option", "tinyint", True, False),
    Column("cycle_count", "bigint", nullable=False),
)
_TYPES = {
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "MEDIUMINT": "mediumint",
    "INT": "int",
    "INTEGER": "int",
    "BIGINT": "bigint",
}
_TYPES |= {"INT1": "tinyint", "INT2": "smallint", "INT3": "mediumint", "MIDDLEINT": "mediumint", "INT4": "int", "INT8": "bigint"}


def sequence_table(tokens: Tokens) -> Table:
    """Return the table of CREATE SEQUENCE; `tokens` are what follows its name. Raises ValueError for an unknown type."""
    type_, unsigned = _type(tokens) or ("bigint", False)
    return Table(tuple([Column(name, type_, unsigned, False) for name in _TYPED]) + _OTHERS)


def is_sequence(table: Table) -> bool:
    """Whether the table is a sequence's."""
    return tuple([column.name for column in table.columns[: len(_TYPED)]]) == _TYPED


def typed_sequence(tokens: Tokens, table: Table) -> Table:
    """Return the table after an ALTER SEQUENCE; `tokens` are what follows its name. Raises ValueError for an unknown type."""
    found = _type(tokens)
    if found is None:
        return table
    type_, unsigned = found
    columns = [Column(column.name, type_, unsigned, False) if column.name in _TYPED else column for column in table.columns]
    return table._replace(columns=tuple(columns))


def _type(tokens: Tokens) -> tuple[str, bool] | None:
    """(type, UNSIGNED) of the last AS; None without one."""
    found = None
    while tokens.left:
        if tokens.take().upper == "AS":
            word = tokens.take().upper
            if word not in _TYPES:
                raise ValueError(f"{word!r} as the type of a sequence")
            found = _TYPES[word], tokens.accept_one("SIGNED", "UNSIGNED", "ZEROFILL") in ("UNSIGNED", "ZEROFILL")
    return found
