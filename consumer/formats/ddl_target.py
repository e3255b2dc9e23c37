"""The table that a DDL is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shmstore.sql.tokens import SqlMode, Tokens, statement


def ddl_target(sql: str, database: str, props: Mapping[str, str]) -> tuple[str, str]:
    """Return the (database, table) that a DDL event is about; the first one where there are several.

    The producer says it (`database`, and ``table`` in `props`). Of an event that does not, the statement is looked at,
    with `database` for names without one. The table is empty where the statement is about none (``CREATE DATABASE``)
    or is not understood; the statement itself always travels along.
    """
    if "table" in props:
        return database, props["table"]
    try:
        return _read(statement(sql, SqlMode.named(props.get("sql_mode", ""))), database)
    except ValueError:  # it ends early, or something else stands where a name belongs
        return database, ""


_MODIFIERS: Final = ("OR", "REPLACE", "TEMPORARY", "ONLINE", "OFFLINE", "IGNORE", "UNIQUE", "FULLTEXT", "SPATIAL")


def _read(tokens: Tokens, database: str) -> tuple[str, str]:
    verb = tokens.accept_one("CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME")
    while tokens.accept_one(*_MODIFIERS):
        pass
    if verb in ("CREATE", "DROP") and tokens.accept("INDEX"):
        while tokens.take().upper != "ON":
            pass
    elif not verb or not (tokens.accept_one("TABLE", "TABLES") or verb == "TRUNCATE"):
        return database, ""
    tokens.if_exists()
    return tokens.table_name(database)
