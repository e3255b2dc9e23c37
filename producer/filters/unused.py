"""Patterns that name nothing a server has now: a misspelled one reads nothing, or leaves nothing out, without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from shmstore import Column
from shmstore.errors import did_you_mean
from shmstore.patterns.table_patterns import Patterns
from shmstore.producer.errors import PatternError
from shmstore.producer.filters.fit import ShownTables
from shmstore.producer.filters.renaming import Renaming, TableName
from shmstore.producer.filters.table_filter import read_patterns

__all__ = ["unused_patterns"]

OF_TABLES: Final = ("include", "exclude")
OF_COLUMNS: Final = ("column_include", "column_exclude", "column_mask", "column_hash")
SHOWN: Final = 10  # tables that match several rules, of which each is reported
_SERVERS_OWN: Final = ("mysql", "information_schema", "performance_schema", "sys")  # which are not shown


def unused_patterns(tables: ShownTables, settings: Any) -> Iterator[str]:
    """Yield, for each pattern of the options that names no table, or no column, what is wrong; nothing where the account sees no tables.

    `settings` has the options as attributes. Raises what `tables` raises.
    """
    given = {option: read_patterns(getattr(settings, option)) for option in (*OF_TABLES, *OF_COLUMNS)}
    renaming = Renaming(settings.rename)
    if not (any(given.values()) or renaming) or (there := tables.names()) is None:
        return
    if renaming:
        passes = settings.table_filter().passes
        yield from _of_shards(renaming, [name for name in there if passes(*name)], tables)
        yield from _of_renaming(renaming, there)
    names = [f"{database}.{table}" for database, table in there]
    columns: list[str] = []
    if any(given[option] for option in OF_COLUMNS):
        for database in dict.fromkeys(database for database, _ in there):
            columns += [f"{database}.{table}.{one.name}" for table, found in tables.columns(database).items() for one in found]
    for option, patterns in given.items():
        known, what = (names, "table") if option in OF_TABLES else (columns, "column")
        for pattern in (*patterns.wanted, *patterns.left_out):
            if not _names_one(pattern, known) and not _is_servers_own(pattern):
                yield f"{option}: {pattern!r} names no {what} that the server shows{_likely(pattern, known)}"


def _of_shards(renaming: Renaming, tables: Sequence[TableName], shown: ShownTables) -> Iterator[str]:
    """What the producer would refuse of `tables`, which are read."""
    first: dict[TableName, TableName] = {}  # the first table of each target
    columns: dict[str, Mapping[str, Sequence[Column]]] = {}
    for name in tables:
        target = renaming.target_of(*name)
        if target is None:
            continue
        if target in tables and renaming.target_of(*target) is None and target not in first:
            yield f"rename: {'.'.join(target)} is a table of the server, too: the producer refuses to begin"
        other = first.setdefault(target, name)
        if name[0] not in columns:
            columns[name[0]] = shown.columns(name[0])
        ours, theirs = (list(map(_plain, columns[database].get(table, ()))) for database, table in (name, other))
        if ours != theirs:
            yield f"rename: tables {'.'.join(other)} and {'.'.join(name)} differ, and {'.'.join(target)} is made of both"


def _of_renaming(renaming: Renaming, tables: Sequence[TableName]) -> Iterator[str]:
    for text in renaming.unused(tables):
        yield f"rename: {text!r} is for no table that the server shows"
    doubly = list(renaming.doubly(tables))
    for table, first, other in doubly[:SHOWN]:
        yield f"rename: table {'.'.join(table)} matches {first.text!r} and {other.text!r}; the first one holds"
    if len(doubly) > SHOWN:
        yield f"rename: so do {len(doubly) - SHOWN} more tables"


def _plain(column: Column) -> Column:
    return column._replace(definition="")


def _names_one(pattern: str, names: Sequence[str]) -> bool:
    patterns = Patterns((pattern,))
    try:
        return any(map(patterns.match, names))
    except ValueError as error:
        raise PatternError(str(error)) from error


def _is_servers_own(pattern: str) -> bool:
    bare = pattern.removeprefix("regex:").removeprefix("glob:").lower()
    return bare.startswith(_SERVERS_OWN)


def _likely(pattern: str, names: Sequence[str]) -> str:
    if "\\\\" in pattern and _names_one(pattern.replace("\\\\", "\\"), names):
        plain = pattern.replace("\\\\", "\\")
        return f": \\\\ is one backslash in a .properties file alone; here write {plain}"
    return did_you_mean(pattern, names)
