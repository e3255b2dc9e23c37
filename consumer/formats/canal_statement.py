"""What Canal makes of a statement in the binlog: whether it sends it at all, whether that is a DDL, and the table that it names.

By Canal's ``LogEventConvert`` and ``DruidDdlParser``: of what is not about a table only CREATE and DROP DATABASE are sent; a RENAME
has the new name; a filter is asked about every table of a statement, and one that it wants is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from shmstore.consumer.formats.canal_values import DDL_TYPES
from shmstore.consumer.formats.ddl_target import ddl_target
from shmstore.event import EventType
from shmstore.sql.tokens import SqlMode, statement

_CHANGES: Final = (EventType.INSERT, EventType.UPDATE, EventType.DELETE)


class CanalStatement(NamedTuple):
    """A statement as Canal sends it; `is_ddl` is None where it does not say.

    `names`: the tables that filters look at, ``schema.table``; none: no filter holds it back."""

    type: EventType
    database: str
    table: str
    is_ddl: bool | None
    names: tuple[str, ...] = ()


def canal_statement(type_: int, sql: str, database: str, props: Mapping[str, str]) -> CanalStatement | None:
    """Return what Canal would send of a DDL event's statement, or of one that changes rows; None where it would send nothing.

    What ends a prepared transaction names no table: what reads the transaction's rows must see its outcome."""
    if "xa" in props:
        return CanalStatement(EventType(type_), "", "", None)
    if type_ in DDL_TYPES:
        schema, table = ddl_target(sql, database, props)
        names = _listed(props.get("tables", "")) or (((schema, table),) if table else ())
        targets = _listed(props.get("to_table", ""))
        if type_ == EventType.RENAME and targets:
            schema, table = targets[0]
        return CanalStatement(EventType(type_), schema, table, True, tuple([".".join(name) for name in names + targets]))
    change = next((one for one in _CHANGES if type_ == one or props.get("change") == one.name.lower()), None)
    if change is not None:
        table = props.get("table", "")
        names = _listed(props.get("tables", "")) or (((database, table),) if table else ())
        return CanalStatement(change, database, table, False, tuple([".".join(name) for name in names]))
    return CanalStatement(EventType.QUERY, database, "", True) if _about_database(sql, props) else None


def _listed(names: str) -> tuple[tuple[str, str], ...]:
    return tuple([(schema, table) for schema, _, table in [name.partition(".") for name in names.split(",") if name]])


def _about_database(sql: str, props: Mapping[str, str]) -> bool:
    try:
        tokens = statement(sql, SqlMode.named(props.get("sql_mode", "")))
        if tokens.accept_one("CREATE", "DROP") == "CREATE":
            tokens.accept("OR", "REPLACE")
        return tokens.peek() in ("DATABASE", "SCHEMA")
    except ValueError:
        return False
