"""The table that a DDL is about."""

from __future__ import annotations

from collections.abc import Mapping

from shmstore.sql.classify import classify
from shmstore.sql.tokens import SqlMode


def ddl_target(sql: str, database: str, props: Mapping[str, str]) -> tuple[str, str]:
    """Return the (database, table) that a DDL event is about; the first one where there are several.

    The producer says it (`database`, and ``table`` in `props`). Of an event that does not, the statement is looked at,
    with `database` for names without one. The table is empty where the statement is about none (``CREATE DATABASE``)
    or is not understood; the statement itself always travels along.
    """
    if "table" in props:
        return database, props["table"]
    tables = classify(sql, database, SqlMode.named(props.get("sql_mode", ""))).tables
    return tables[0] if tables else (database, "")
