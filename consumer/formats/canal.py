"""Canal's flat message, as its ``MQMessageUtils`` makes it of an entry: one document for a rows event or a statement, all values text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shmstore.clock import calendar_ms
from shmstore.column_type import column_type
from shmstore.consumer.formats.canal_statement import canal_statement
from shmstore.consumer.formats.canal_values import Values, canal_key, renderings
from shmstore.consumer.formats.context import STATEMENTS, Context, image
from shmstore.event import ABSENT, Event, EventType


def documents(event: Event, context: Context) -> Iterator[dict[str, Any]]:
    """Yield the documents of an event."""
    message: dict[str, Any] = {
        "data": None,
        "database": event.database,
        "es": event.time_ms // 1000 * 1000,
        "gtid": event.position.gtids if context.gtids else "",
        "id": context.sequence or 0,
        "isDdl": False,
        "mysqlType": None,
        "old": None,
        "pkNames": None,
        "sql": "",
        "sqlType": None,
        "table": "",
        "ts": calendar_ms(),
        "type": "INSERT" if event.type is EventType.READ else event.type.name,
    }
    if event.table is not None:
        if "rows_query" in event.props:  # the statement behind the rows, which is an entry of its own
            about = {"database": "", "table": event.props.get("rows_query_table", "")}
            yield message | about | {"sql": event.props["rows_query"], "type": EventType.QUERY.name}
        yield message | _rows(event)
    elif event.entry in STATEMENTS and (sent := canal_statement(event.type, event.sql, event.database, event.props)) is not None:
        yield message | {
            "database": sent.database,
            "isDdl": bool(sent.is_ddl),
            "sql": event.sql,
            "table": sent.table,
            "type": sent.type.name,
        }


def _rows(event: Event) -> dict[str, Any]:
    """What the message of a rows event has of its table and its rows."""
    table = event.table
    assert table is not None
    columns, key, shown = table.columns, canal_key(table), renderings(table, Values.CANAL)
    texts = tuple(column.text for column in shown)
    data, old = [], []
    last: tuple[Any, ...] = ()  # the columns that a row has are the same in all rows of an event
    for before, after in event.rows:
        last = before or () if after is None else after
        now = image(table, last, texts) or {}
        if now:
            data.append(now)
        if before is not None and after is not None:
            # Only what this row changed: Canal lets the set of changed columns grow over the rows of an event.
            was = image(table, before, texts) or {}
            old.append({column: text for column, text in was.items() if column in now and now[column] != text})
    present = [i for i, value in enumerate(last) if value is not ABSENT]
    return {
        "data": data or None,
        "database": table.database,
        "mysqlType": {columns[i].name: column_type(columns[i]) for i in present} or None,
        "old": old or None,
        "pkNames": [columns[i].name for i in present if i in key] or None,
        "sqlType": {columns[i].name: shown[i].type_of(last[i]) for i in present} or None,
        "table": table.table,
    }
