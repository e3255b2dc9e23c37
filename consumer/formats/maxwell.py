"""The JSON of Maxwell, with ``output_ddl``, ``output_server_id``, ``output_thread_id``, ``output_binlog_position``,
``output_gtid_position`` and ``output_primary_keys``.

Events go out one at a time, so that what is known at a transaction's end only (``xid`` and ``commit``) is left out, as with
``output_commit_info=false``; what its beginning says (the thread) is remembered until then. ``def`` and ``old`` of a DDL are left out:
the binlog has the statement only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from shmstore.consumer.formats.context import Context, Convert, Form, gtid, image
from shmstore.consumer.formats.ddl_target import ddl_target
from shmstore.consumer.formats.json_text import dump
from shmstore.consumer.formats.values import INTEGERS, NUMBERS, text_or_base64, value_text
from shmstore.event import Column, EntryType, Event, EventType, TableSchema

_OPS: Final = {
    EventType.INSERT: "insert",
    EventType.UPDATE: "update",
    EventType.DELETE: "delete",
    EventType.READ: "bootstrap-insert",
}
_DDL: Final = {EventType.CREATE: "create", EventType.ERASE: "drop"}


def _value(column: Column) -> Convert | None:
    kind = column.type
    if kind == "decimal":
        return _decimal
    if kind in ("date", "datetime", "timestamp", "time"):
        return value_text(column)
    if kind == "set":
        return lambda value: value.split(",") if value else []
    if kind == "json":
        return _document
    if kind in NUMBERS:
        return None
    return text_or_base64


#: The same for compiled code; of other types it is text, or bytes as base64.
_FORMS: Final = (
    {
        "decimal": "decimal_number",
        "date": "date",
        "datetime": "moment",
        "timestamp": "moment",
        "time": "time",
        "set": "list",
        "json": "document",
    }
    | dict.fromkeys(NUMBERS, "real")
    | dict.fromkeys(INTEGERS, "whole")
)


def form(column: Column) -> Form:
    """Return the form of a column's values for compiled code."""
    make = {"decimal": _decimal_json, "json": _document_json}.get(column.type)
    return _FORMS.get(column.type, "plain"), make, None


def _decimal_json(digits: str) -> bytes:
    return dump(_decimal(Decimal(digits)))


def _document_json(text: str) -> bytes:
    return dump(_document(text))


def _decimal(value: Decimal) -> Any:
    # Maxwell writes a JSON number. A float would round it, so it is one only where nothing is lost.
    number = int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
    return number if Decimal(repr(number)) == value else format(value, "f")


def _document(value: str) -> Any:
    try:
        return json.loads(value, parse_float=_number)
    except ValueError:
        return value  # not a document after all: as text it is at least whole


def _number(digits: str) -> Any:
    return _decimal(Decimal(digits))


@lru_cache(maxsize=1024)
def _values(table: TableSchema) -> tuple[Convert | None, ...]:
    return tuple(_value(column) for column in table.columns)


def documents(event: Event, context: Context) -> Iterator[dict[str, Any]]:
    """Yield the documents of an event."""
    position = f"{event.position.file}:{event.position.offset}"
    if event.table is not None:
        table = event.table
        values = _values(table)
        head: dict[str, Any] = {"database": table.database, "table": table.table}
        head |= {"type": _OPS.get(event.type, event.type.name.lower()), "ts": event.time_ms // 1000}
        head |= {"position": position, "gtid": gtid(event), "server_id": event.server_id}
        if context.thread is not None:
            head["thread_id"] = context.thread
        for before, after in event.rows:
            was, now = image(table, before, values) or {}, image(table, after, values) or {}
            known = was | now  # a column that only the image before has did not change
            data = {column.name: known[column.name] for column in table.columns if column.name in known}
            names = [table.columns[i].name for i in table.primary_key]
            keys = {"primary_key": [data.get(column) for column in names], "primary_key_columns": names}
            document = head | keys | {"data": data}
            if before is not None and after is not None:
                document["old"] = {column: value for column, value in was.items() if column in data and data[column] != value}
            yield document
    elif event.entry is EntryType.DDL:
        database, table_name = ddl_target(event.sql, event.database, event.props)
        kind = _DDL.get(event.type, "alter")
        yield {
            "type": f"table-{kind}" if table_name else f"database-{kind}",
            "database": database,
            **({"table": table_name} if table_name else {}),
            "ts": event.time_ms,
            "sql": event.sql,
            "position": position,
            "gtid": gtid(event),
        }
