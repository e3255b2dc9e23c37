"""Events as lines of JSON, in the shapes that other tools' consumers already read.

    json      our own: typed, one document for a row, DDL, begin or end. ``op`` is written out: insert, update, delete, and read for a row
              of a snapshot (c, u, d and r in Debezium's form, and in Spark and Arrow); else ddl, statement, begin, end or heartbeat
    canal     Canal's flat message: one document for a rows event, all values text
    debezium  Debezium's MySQL envelope (3.x); see `debezium`
    maxwell   Maxwell's, with ``output_ddl``, ``output_server_id``, ``output_thread_id``, ``output_binlog_position``,
              ``output_gtid_position`` and ``output_primary_keys``

Of a DDL the binlog has the statement only: ``tableChanges`` says of dropped tables, Maxwell's ``def`` and ``old`` are left out.
A change that was logged as a statement (``statements = pass``) is a document with the statement in json and canal; debezium and
maxwell have no place for it and leave it out, as those tools do.

Events go out one at a time, so that what is known at a transaction's end only (Maxwell's ``xid`` and ``commit``) is left out, as with
``output_commit_info=false``; what its beginning says (the thread, the number of the row in it) is remembered until then.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from shmstore.consumer.formats.canal import (
    DDL_TYPES,
    Values,
    datetime_text,
    ddl_target,
    mysql_type,
    renderings,
    time_text,
    value_text,
)
from shmstore.consumer.formats.debezium import Telling, documents, gtid, image
from shmstore.event import ABSENT, Column, EntryType, Event, EventType, TableSchema

#: What holds the text of a statement: also rows that were logged as one, which have no table.
_STATEMENTS: Final = (EntryType.DDL, EntryType.ROWS)

_Convert = Callable[[Any], Any]
_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Formatter:
    """Events of one stream, in order, as JSON documents without line ends.

    `name` is Debezium's logical server name, `schemas` its documents with their schema, and `transactions` its transaction metadata.
    Raises ValueError where `format` is not one of `FORMATS`.
    """

    def __init__(
        self, format: str = "json", *, name: str = "shmstore", schemas: bool = False, transactions: bool = False
    ) -> None:
        if format not in _SHAPES:
            raise ValueError(f"format {format!r} is unknown; formats are {', '.join(FORMATS)}")
        if (schemas or transactions) and format != "debezium":
            raise ValueError(f"format {format} has neither schemas nor transactions of its own: these are debezium's")
        self._shape = _SHAPES[format]
        self._telling = Telling(name, schemas, transactions)

    def lines(self, event: Event, sequence: int | None = None, *, wanted: bool = True) -> Iterator[str]:
        """Yield `event`; nothing where the shape has no place for it. `sequence` is its number in its store (``seq``, ``id``).

        What is not `wanted` is only looked at: it may begin the transaction of what is, or end it.
        """
        telling = self._telling
        telling.watch(event)
        if not wanted and not (telling.transactions and event.entry is EntryType.END):
            return
        telling.sequence = sequence
        for document in self._shape(event, telling):
            yield _dump(document)


def format_event(event: Event, format: str = "json", *, sequence: int | None = None, name: str = "shmstore") -> Iterator[str]:
    """Yield the documents of one event alone, as `Formatter` does."""
    return Formatter(format, name=name).lines(event, sequence)


def _base64(value: Any) -> str:
    return base64.b64encode(value).decode("ascii")


def _text_or_base64(value: Any) -> str:
    return value if type(value) is str else _base64(value)


# ---------------------------------------------------------------- json


_OPS: Final = {EventType.INSERT: "insert", EventType.UPDATE: "update", EventType.DELETE: "delete", EventType.READ: "read"}
_ENTRIES: Final = {EntryType.BEGIN: "begin", EntryType.END: "end", EntryType.HEARTBEAT: "heartbeat"}


def _json_value(column: Column) -> _Convert | None:
    if column.type == "timestamp":
        plain = datetime_text(column.scale)
        # A zero timestamp is a str and has no zone.
        return lambda value: plain(value).replace(" ", "T") + "Z" if isinstance(value, datetime) else value
    if column.type in ("decimal", "date", "datetime", "time"):
        return value_text(column)
    if column.type in ("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit", "float", "double"):
        return None
    return _text_or_base64


@lru_cache(maxsize=1024)
def _json_values(table: TableSchema) -> tuple[_Convert | None, ...]:
    return tuple(_json_value(column) for column in table.columns)


def _json(event: Event, telling: Telling) -> Iterator[dict[str, Any]]:
    place: dict[str, Any] = {"file": event.position.file, "offset": event.position.offset}
    if event.position.gtids:
        place["gtids"] = event.position.gtids
    tail = {"position": place, "transaction": event.transaction, "server_id": event.server_id}
    if telling.sequence is not None:
        tail["seq"] = telling.sequence
    if event.table is not None:
        table = event.table
        values = _json_values(table)
        head = {"op": _OPS.get(event.type, event.type.name.lower()), "ts_ms": event.time_ms}
        head |= {"database": table.database, "table": table.table}
        for number, (before, after) in enumerate(event.rows):
            images = {"before": image(table, before, values), "after": image(table, after, values)}
            newest = images["before"] if images["after"] is None else images["after"]
            names = [table.columns[i].name for i in table.primary_key]
            pk = {column: (newest or {}).get(column, (images["before"] or {}).get(column)) for column in names}
            yield head | images | {"pk": pk} | tail | {"row": number}
    elif event.entry in _STATEMENTS:
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


# ---------------------------------------------------------------- canal


def _canal(event: Event, telling: Telling) -> Iterator[dict[str, Any]]:
    message: dict[str, Any] = {
        "data": None,
        "database": event.database,
        "es": event.time_ms,
        "gtid": gtid(event) or "",
        "id": telling.sequence or 0,
        "isDdl": False,
        "mysqlType": None,
        "old": None,
        "pkNames": None,
        "sql": "",
        "sqlType": None,
        "table": "",
        "ts": time.time_ns() // 1_000_000,
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
            "mysqlType": {table.columns[i].name: mysql_type(table.columns[i]) for i in present},
            "old": old or None,
            "pkNames": [table.columns[i].name for i in table.primary_key] or None,
            "sqlType": {table.columns[i].name: shown[i].type_of((first or ())[i]) for i in present},
            "table": table.table,
        }
        yield message
    elif event.entry in _STATEMENTS:
        database, table_name = ddl_target(event.sql, event.database, event.props)
        yield message | {"database": database, "isDdl": event.type in DDL_TYPES, "sql": event.sql, "table": table_name}


# ---------------------------------------------------------------- maxwell

_MAXWELL: Final = {
    EventType.INSERT: "insert",
    EventType.UPDATE: "update",
    EventType.DELETE: "delete",
    EventType.READ: "bootstrap-insert",
}
_MAXWELL_DDL: Final = {EventType.CREATE: "create", EventType.ERASE: "drop"}


def _maxwell_value(column: Column) -> _Convert | None:
    kind = column.type
    if kind == "decimal":
        return _maxwell_decimal
    if kind in ("date", "datetime", "timestamp"):
        return value_text(column)
    if kind == "time":
        return time_text(column.scale)
    if kind == "set":
        return lambda value: value.split(",") if value else []
    if kind == "json":
        return _maxwell_json
    if kind in ("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit", "float", "double"):
        return None
    return _text_or_base64


def _maxwell_decimal(value: Decimal) -> Any:
    # Maxwell writes a JSON number. A float would round it, so it is one only where nothing is lost.
    number = int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
    return number if Decimal(repr(number)) == value else format(value, "f")


def _maxwell_json(value: str) -> Any:
    try:
        return json.loads(value, parse_float=_number)
    except ValueError:
        return value  # not a document after all: as text it is at least whole


def _number(digits: str) -> Any:
    return _maxwell_decimal(Decimal(digits))


@lru_cache(maxsize=1024)
def _maxwell_values(table: TableSchema) -> tuple[_Convert | None, ...]:
    return tuple(_maxwell_value(column) for column in table.columns)


def _maxwell(event: Event, telling: Telling) -> Iterator[dict[str, Any]]:
    place = f"{event.position.file}:{event.position.offset}"
    if event.table is not None:
        table = event.table
        values = _maxwell_values(table)
        head: dict[str, Any] = {"database": table.database, "table": table.table}
        head |= {"type": _MAXWELL.get(event.type, event.type.name.lower()), "ts": event.time_ms // 1000}
        head |= {"position": place, "gtid": gtid(event), "server_id": event.server_id}
        if telling.thread is not None:
            head["thread_id"] = telling.thread
        for before, after in event.rows:
            data = image(table, before if after is None else after, values) or {}
            names = [table.columns[i].name for i in table.primary_key]
            keys = {"primary_key": [data.get(column) for column in names], "primary_key_columns": names}
            document = head | keys | {"data": data}
            if before is not None and after is not None:
                was = image(table, before, values) or {}
                document["old"] = {column: value for column, value in was.items() if column in data and data[column] != value}
            yield document
    elif event.entry is EntryType.DDL:
        database, table_name = ddl_target(event.sql, event.database, event.props)
        kind = _MAXWELL_DDL.get(event.type, "alter")
        yield {
            "type": f"table-{kind}" if table_name else f"database-{kind}",
            "database": database,
            **({"table": table_name} if table_name else {}),
            "ts": event.time_ms,
            "sql": event.sql,
            "position": place,
            "gtid": gtid(event),
        }


_SHAPES: Final = {"json": _json, "canal": _canal, "debezium": documents, "maxwell": _maxwell}
FORMATS: Final = tuple(_SHAPES)
