"""Statements of the binlog that are events of their own: which pass the filter, and what their events say of them."""

from __future__ import annotations

from shmstore import EventType, UnsupportedEvent
from shmstore.producer.binlog.events import QueryEvent
from shmstore.producer.filters.table_filter import TableFilter
from shmstore.sql.classify import Kind, Statement
from shmstore.sql.tokens import USUAL


def passes(table_filter: TableFilter, statement: Statement, query: QueryEvent) -> bool:
    """Whether a statement passes, which is not about accounts."""
    if statement.kind in (Kind.XA_COMMIT, Kind.XA_ROLLBACK):
        return True  # rows that were put before wait for it
    operations = ["ddl"] if statement.kind is Kind.DDL else ["query"]
    operations += ["query"] if statement.fills else []
    if table_filter.operations.isdisjoint(operations):
        return False
    names = statement.tables + statement.targets
    if not names and statement.kind is Kind.DML:
        return True  # it may change any table: a filter must not lose that
    if not names:
        database = statement.name or query.database
        return not database or table_filter.passes(database, "")
    return any(table_filter.passes(database, table) for database, table in names)


def described(statement: Statement, query: QueryEvent, table_case: str) -> tuple[EventType, str, dict[str, str]]:
    """Return the type, the database and the props of a statement's event. `table_case`: lower_case_table_names, empty where unknown."""
    props = {"thread_id": str(query.thread_id)}
    database = query.database
    if query.database:
        props["default_database"] = query.database
    if query.mode != USUAL:
        props["sql_mode"] = str(query.mode)
    if not query.strict:
        props["sql_strict"] = "off"
    if table_case:
        props["lower_case_table_names"] = table_case
    if statement.kind in (Kind.XA_COMMIT, Kind.XA_ROLLBACK):
        props |= {"xa": "commit" if statement.kind is Kind.XA_COMMIT else "rollback", "xa_xid": statement.name}
    elif statement.tables:
        database, props["table"] = statement.tables[0]
    elif statement.name:
        database = statement.name
    if len(statement.tables) > 1:
        props["tables"] = ",".join(f"{database}.{table}" for database, table in statement.tables)
    if statement.targets:
        props["to_table"] = ",".join(f"{database}.{table}" for database, table in statement.targets)
    type_ = statement.type
    if statement.fills:  # no rows come with it
        props["change"] = "insert"
    elif statement.kind is Kind.DML and type_ is not EventType.QUERY:
        type_, props["change"] = EventType.QUERY, type_.name.lower()
    return type_, database, props


def refused(query: QueryEvent) -> UnsupportedEvent:
    """Return the error for a change that was logged as a statement."""
    shown = query.sql if len(query.sql) <= 60 else query.sql[:57] + "..."
    return UnsupportedEvent(
        f"a change was logged as a statement, not as rows: {shown!r}; SET GLOBAL binlog_format = ROW (sessions may have "
        "set their own), or pass such statements on with statements = pass"
    )
