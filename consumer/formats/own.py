"""Our own JSON: typed, one document for a row, DDL, begin or end.

``op`` is written out: insert, update, delete, and read for a row of a snapshot (c, u, d and r in Debezium's form, and in Spark and Arrow);
else ddl, statement, begin, end or heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from shmstore.consumer.formats.context import STATEMENTS, Context, Convert, Form
from shmstore.consumer.formats.ddl_target import ddl_target
from shmstore.consumer.formats.json_text import dump_rows
from shmstore.consumer.formats.values import INTEGERS, NUMBERS, text_or_base64, utc_text, value_text
from shmstore.event import ABSENT, Column, EntryType, Event, EventType, TableSchema
from shmstore.sources import sources_text

_OPS: Final = {EventType.INSERT: "insert", EventType.UPDATE: "update", EventType.DELETE: "delete", EventType.READ: "read"}
_ENTRIES: Final = {EntryType.BEGIN: "begin", EntryType.END: "end", EntryType.HEARTBEAT: "heartbeat"}


def _value(column: Column) -> Convert | None:
    if column.type == "timestamp":
        return utc_text(column.scale)
    if column.type in ("decimal", "date", "datetime", "time"):
        return value_text(column)
    if column.type in NUMBERS:
        return None
    return text_or_base64


#: The same for compiled code; of other types it is text, or bytes as base64.
_FORMS: Final = (
    {"timestamp": "utc", "decimal": "digits", "date": "date", "datetime": "moment", "time": "time"}
    | dict.fromkeys(NUMBERS, "real")
    | dict.fromkeys(INTEGERS, "whole")
)


def form(column: Column) -> Form:
    """Return the form of a column's values for compiled code."""
    return _FORMS.get(column.type, "plain"), None, None


@lru_cache(maxsize=1024)
def _values(table: TableSchema) -> tuple[tuple[str, Convert | None], ...]:
    return tuple((column.name, _value(column)) for column in table.columns)


def _image(columns: tuple[tuple[str, Convert | None], ...], values: tuple[Any, ...] | None) -> dict[str, Any] | None:
    """{column name: value} without the absent columns. What is text already stays as it is."""
    if values is None:
        return None
    return {
        name: value if convert is None or value is None or type(value) is str else convert(value)
        for (name, convert), value in zip(columns, values, strict=True)
        if value is not ABSENT
    }


def image_texts(table: TableSchema, present: Sequence[int] | None, rows: Sequence[Sequence[Any]]) -> list[bytes]:
    """Return row images of `table` as JSON in UTF-8; they hold the columns at `present`, all where that is None.

    Column by column: what a type needs is looked up once a column, not once a cell.
    """
    columns = _values(table) if present is None else [_values(table)[i] for i in present]
    if not columns:
        return [b"{}"] * len(rows)
    cells = [
        values if convert is None else [value if value is None or type(value) is str else convert(value) for value in values]
        for (_, convert), values in zip(columns, zip(*rows, strict=True), strict=False)
    ]
    return dump_rows([name for name, _ in columns], zip(*cells, strict=True))


def documents(event: Event, context: Context) -> Iterator[dict[str, Any]]:
    """Yield the documents of an event."""
    position: dict[str, Any] = {"file": event.position.file, "offset": event.position.offset}
    if event.position.gtids:
        position["gtids"] = event.position.gtids
    if event.position.sources:
        position["sources"] = sources_text(event.position.sources)
    tail = {"position": position, "transaction": event.transaction, "server_id": event.server_id}
    if context.sequence is not None:
        tail["seq"] = context.sequence
    if event.table is not None:
        table = event.table
        columns = _values(table)
        head = {"op": _OPS.get(event.type, event.type.name.lower()), "ts_ms": event.time_ms}
        head |= {"database": table.database, "table": table.table}
        names = [table.columns[i].name for i in table.primary_key]
        for number, (was, now) in enumerate(event.rows):
            before, after = _image(columns, was), _image(columns, now)
            newest = (before if after is None else after) or {}
            if before is None or after is None:
                pk = {name: newest.get(name) for name in names}
            else:  # of an update, the part of the key that the new image lacks did not change
                pk = {name: newest[name] if name in newest else before.get(name) for name in names}
            yield {**head, "before": before, "after": after, "pk": pk, **tail, "row": number}
    elif event.entry in STATEMENTS:
        database, table_name = ddl_target(event.sql, event.database, event.props)
        head = {
            "op": "ddl" if event.entry is EntryType.DDL else "statement",
            "ts_ms": event.time_ms,
            "database": database,
            "table": table_name,
        }
        yield head | {"type": event.type.name.lower(), "sql": event.sql} | tail
    else:
        yield {"op": _ENTRIES[event.entry], "ts_ms": event.time_ms} | ({"props": event.props} if event.props else {}) | tail
