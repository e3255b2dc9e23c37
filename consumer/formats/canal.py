"""Canal's flat message, as its ``MQMessageUtils`` makes it of an entry: one document for a rows event or a statement, all values text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from shmstore.clock import calendar_ms
from shmstore.column_type import column_type
from shmstore.consumer.formats.canal_statement import canal_statement
from shmstore.consumer.formats.canal_values import Rendering, Values, canal_key, renderings
from shmstore.consumer.formats.context import STATEMENTS, Context
from shmstore.event import ABSENT, Event, EventType

_ABSENT: Final = frozenset((type(ABSENT),))
_NO_VALUE: Final = _ABSENT | {type(None)}
_OWN: Final = _NO_VALUE | {str}
_SAME_TEXT: Final = frozenset((str, int, bytes, type(None)))  # equal values of these have equal texts, unlike -0.0 and 0.0


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
    """What the message of a rows event has of its table and its rows. Column by column: what a type needs is looked up once for all rows."""
    table = event.table
    assert table is not None
    columns, key, shown = table.columns, canal_key(table), renderings(table, Values.CANAL)
    newest = [before or () if after is None else after for before, after in event.rows]
    changes = [number for number, (before, after) in enumerate(event.rows) if before is not None and after is not None]
    values = list(zip(*newest, strict=True)) or [()] * len(columns)
    earlier = list(zip(*[event.rows[number].before or () for number in changes], strict=True)) or [()] * len(columns)
    names, texts, some_absent = [], [], False
    old: list[dict[str, Any]] = [{} for _ in changes]
    for column, rendered, now, was in zip(columns, shown, values, earlier, strict=True):
        kinds = set(map(type, now))
        if kinds <= _ABSENT:
            continue
        some_absent |= bool(kinds & _ABSENT)
        names.append(column.name)
        texts.append(_texts(rendered, now, kinds))
        # Only what this row changed: Canal lets the set of changed columns grow over the rows of an event.
        before_kinds = set(map(type, was))
        if len(was) == len(now) and was == now and kinds <= _SAME_TEXT and before_kinds <= _SAME_TEXT:
            continue
        before_texts = _texts(rendered, was, before_kinds)
        for number, text, row in zip(changes, before_texts, old, strict=True):
            if text != texts[-1][number] and text is not ABSENT and texts[-1][number] is not ABSENT:
                row[column.name] = text
    data = [dict(zip(names, row, strict=True)) for row in zip(*texts, strict=True)]
    if some_absent:
        data = [held for row in data if (held := {name: text for name, text in row.items() if text is not ABSENT})]
    last = newest[-1] if newest else ()
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


def _texts(rendered: Rendering, values: Sequence[Any], kinds: set[type]) -> Sequence[Any]:
    """A column's values as text; NULL and `ABSENT` stay. `kinds` are the values' types."""
    if rendered.own and kinds <= _OWN:
        return values
    text = rendered.text
    if kinds & _NO_VALUE:
        return [value if value is None or value is ABSENT else text(value) for value in values]
    return list(map(text, values))
