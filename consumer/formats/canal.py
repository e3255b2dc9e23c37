"""Canal's flat message: one document for a rows event or a statement, all values text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shmstore.clock import calendar_ms
from shmstore.column_type import column_type
from shmstore.consumer.formats.canal_statement import canal_statement
from shmstore.consumer.formats.canal_values import Values, renderings
from shmstore.consumer.formats.context import STATEMENTS, Context, gtid, image
from shmstore.event import ABSENT, Event, EventType


def documents(event: Event, context: Context) -> Iterator[dict[str, Any]]:
    """Yield the documents of an event."""
    message: dict[str, Any] = {
        "data": None,
        "database": event.database,
        "es": event.time_ms,
        "gtid": gtid(event) or "",
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
        table = event.table
        shown = renderings(table, Values.CANAL)
        texts = tuple(column.text for column in shown)
        first = (
            event.rows[0].after
            if event.rows and event.rows[0].after is not None
            else (event.rows[0].before if event.rows else ())
        )
        present = [i for i, value in enumerate(first or ()) if value is not ABSENT]
        data, old = [], []
        for before, after in event.rows:
            data.append(image(table, before if after is None else after, texts))
            if before is not None and after is not None:
                # Only what this row changed: Canal lets the set of changed columns grow over the rows of an event.
                was, now = image(table, before, texts) or {}, data[-1] or {}
                old.append({column: text for column, text in was.items() if column not in now or now[column] != text})
        message |= {
            "data": data,
            "database": table.database,
            "mysqlType": {table.columns[i].name: column_type(table.columns[i]) for i in present},
            "old": old or None,
            "pkNames": [table.columns[i].name for i in table.primary_key] or None,
            "sqlType": {table.columns[i].name: shown[i].type_of((first or ())[i]) for i in present},
            "table": table.table,
        }
        yield message
    elif event.entry in STATEMENTS and (sent := canal_statement(event.type, event.sql, event.database, event.props)) is not None:
        yield message | {
            "database": sent.database,
            "isDdl": bool(sent.is_ddl),
            "sql": event.sql,
            "table": sent.table,
            "type": sent.type.name,
        }
