"""Events as lines of JSON, in the shapes that other tools' consumers already read.

    json      our own: typed, one document for a row, DDL, begin or end
    canal     Canal's flat message: one document for a rows event, all values text
    debezium  Debezium's MySQL envelope (3.x) without the schema part: ``schemas.enable=false``, ``decimal.handling.mode=string``,
              ``binary.handling.mode=base64``, ``time.precision.mode=adaptive_time_microseconds``
    maxwell   Maxwell's, with ``output_ddl``, ``output_server_id``, ``output_thread_id``, ``output_binlog_position``,
              ``output_gtid_position`` and ``output_primary_keys``; ``xid`` where the event carries it

Of a DDL the binlog has the statement only: Debezium's ``tableChanges`` is empty, Maxwell's ``def`` and ``old`` are left out.
A change that was logged as a statement (``statements = pass``) is a document with the statement in json and canal; debezium and
maxwell have no place for it and leave it out, as those tools do.

One event at a time and no memory between them: what a shape says of a whole transaction (Maxwell's ``commit``,
Debezium's ``transaction`` block) cannot be known from one event and is left out or null, as those tools do when the
option for it is off.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from consumer.canal import DDL_TYPES, Values, datetime_text, ddl_target, mysql_type, renderings, time_text, value_text
from shmstore.event import ABSENT, Column, EntryType, Event, EventType, TableSchema

#: What holds the text of a statement: also rows that were logged as one, which have no table.
_STATEMENTS: Final = (EntryType.DDL, EntryType.ROWS)
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)

_Convert = Callable[[Any], Any]
_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def format_event(event: Event, format: str = "json", *, sequence: int | None = None, name: str = "shmstore") -> Iterator[str]:
    """Yield `event` as JSON documents without line ends; nothing where the shape has no place for it.

    `sequence` is the event's number in its store (``seq`` in json, ``id`` in canal); `name` is Debezium's logical
    server name. Raises ValueError where `format` is not one of `FORMATS`.
    """
    try:
        shape = _SHAPES[format]
    except KeyError:
        raise ValueError(f"format {format!r} is unknown; formats are {', '.join(FORMATS)}") from None
    for document in shape(event, sequence, name):
        yield _dump(document)


def _image(table: TableSchema, values: tuple[Any, ...] | None, converters: tuple[_Convert | None, ...]) -> dict[str, Any] | None:
    """Return {column name: converted value} without the absent columns; a None converter leaves values as they are."""
    if values is None:
        return None
    return {
        column.name: value if value is None or convert is None else convert(value)
        for column, value, convert in zip(table.columns, values, converters, strict=True)
        if value is not ABSENT
    }


def _key(event: Event, values: tuple[Any, ...]) -> tuple[Any, ...]:
    assert event.table is not None
    return tuple([values[i] for i in event.table.primary_key])


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


def _json(event: Event, sequence: int | None, name: str) -> Iterator[dict[str, Any]]:
    place: dict[str, Any] = {"file": event.position.file, "offset": event.position.offset}
    if event.position.gtids:
        place["gtids"] = event.position.gtids
    tail = {"position": place, "transaction": event.transaction, "server_id": event.server_id}
    if sequence is not None:
        tail["seq"] = sequence
    if event.table is not None:
        table = event.table
        values = _json_values(table)
        head = {"op": _OPS.get(event.type, event.type.name.lower()), "ts_ms": event.time_ms}
        head |= {"database": table.database, "table": table.table}
        for number, (before, after) in enumerate(event.rows):
            images = {"before": _image(table, before, values), "after": _image(table, after, values)}
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


def _canal(event: Event, sequence: int | None, name: str) -> Iterator[dict[str, Any]]:
    message: dict[str, Any] = {
        "data": None,
        "database": event.database,
        "es": event.time_ms,
        "gtid": _gtid(event) or "",
        "id": 0 if sequence is None else sequence,
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
            data.append(_image(table, before if after is None else after, texts))
            if before is not None and after is not None:
                # Only what this row changed: Canal lets the set of changed columns grow over the rows of an event.
                was, now = _image(table, before, texts) or {}, data[-1] or {}
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


# ---------------------------------------------------------------- debezium


def _debezium_value(column: Column) -> _Convert | None:
    kind, nothing = column.type, None if column.nullable else 0
    if kind == "decimal":
        return value_text(column)
    if kind == "date":
        return lambda value: value.toordinal() - _EPOCH_DAY if isinstance(value, date) else nothing
    if kind == "datetime":
        unit = 1 if column.scale > 3 else 1000
        return lambda value: (value - _EPOCH) // _MICROSECOND // unit if isinstance(value, datetime) else nothing
    if kind == "timestamp":
        return _debezium_timestamp(column)
    if kind == "time":
        return lambda value: value // _MICROSECOND
    if kind == "bit":
        if column.size == 1:
            return bool
        return lambda value: _base64(value.to_bytes((column.size + 7) // 8 or 8, "little"))
    if kind in ("tinyint", "smallint", "mediumint", "int", "bigint", "year", "float", "double"):
        return None
    return _text_or_base64


def _debezium_timestamp(column: Column) -> _Convert:
    # ISO 8601 as Java prints it: the fraction without trailing zeros, and none where it is zero.
    nothing = None if column.nullable else "1970-01-01T00:00:00Z"

    def text(value: Any) -> str | None:
        if not isinstance(value, datetime):
            return nothing
        whole = value.replace(tzinfo=None).isoformat("T", "microseconds")
        return whole.rstrip("0").removesuffix(".") + "Z"

    return text


@lru_cache(maxsize=1024)
def _debezium_values(table: TableSchema) -> tuple[_Convert | None, ...]:
    return tuple(_debezium_value(column) for column in table.columns)


def _debezium(event: Event, sequence: int | None, name: str) -> Iterator[dict[str, Any]]:
    now = time.time_ns()
    seen = {"ts_ms": now // 1_000_000, "ts_us": now // 1000, "ts_ns": now}
    thread = event.props.get("thread_id")
    source: dict[str, Any] = {
        "version": "shmstore",
        "connector": "mysql",
        "name": name,
        "ts_ms": event.time_ms,
        "snapshot": "true" if event.type is EventType.READ else "false",
        "db": event.database,
        "sequence": None,
        "ts_us": event.time_ms * 1000,
        "ts_ns": event.time_ms * 1_000_000,
        "table": None,
        "server_id": event.server_id,
        "gtid": _gtid(event),
        "file": event.position.file,
        "pos": event.position.offset - event.length,
        "row": 0,
        "thread": int(thread) if thread else None,
        "query": event.props.get("rows_query"),
    }
    if event.table is not None:
        table = event.table
        values = _debezium_values(table)
        source |= {"db": table.database, "table": table.table}

        def change(row: int, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any]:
            return {"before": before, "after": after, "source": source | {"row": row}, "op": op, **seen, "transaction": None}

        for number, (before, after) in enumerate(event.rows):
            was, is_ = _image(table, before, values), _image(table, after, values)
            if before is None:
                yield change(number, "r" if event.type is EventType.READ else "c", None, is_)
            elif after is None:
                yield change(number, "d", was, None)
            elif table.primary_key and ABSENT not in _key(event, after) and _key(event, before) != _key(event, after):
                # An update of the key is a delete of the old key and a create of the new one.
                yield change(number, "d", was, None)
                yield change(number, "c", None, is_)
            else:
                yield change(number, "u", was, is_)
    elif event.entry is EntryType.DDL:
        database, table_name = ddl_target(event.sql, event.database, event.props)
        source |= {"db": database, "table": table_name or None}
        if event.type is EventType.TRUNCATE:
            yield {"before": None, "after": None, "source": source, "op": "t", **seen, "transaction": None}
        else:
            yield {
                "source": source,
                "ts_ms": seen["ts_ms"],
                "databaseName": database,
                "schemaName": None,
                "ddl": event.sql,
                "tableChanges": [],  # the binlog has the statement only
            }


def _gtid(event: Event) -> str | None:
    """The transaction's GTID; None where it is a place in the binlog instead (``file:offset``)."""
    return None if not event.transaction or event.transaction.startswith(event.position.file + ":") else event.transaction


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


def _maxwell(event: Event, sequence: int | None, name: str) -> Iterator[dict[str, Any]]:
    place = f"{event.position.file}:{event.position.offset}"
    if event.table is not None:
        table = event.table
        values = _maxwell_values(table)
        head: dict[str, Any] = {"database": table.database, "table": table.table}
        head |= {"type": _MAXWELL.get(event.type, event.type.name.lower()), "ts": event.time_ms // 1000}
        if "xid" in event.props:
            head["xid"] = int(event.props["xid"])
        head |= {"position": place, "gtid": _gtid(event), "server_id": event.server_id}
        if "thread_id" in event.props:
            head["thread_id"] = int(event.props["thread_id"])
        for before, after in event.rows:
            data = _image(table, before if after is None else after, values) or {}
            names = [table.columns[i].name for i in table.primary_key]
            keys = {"primary_key": [data.get(column) for column in names], "primary_key_columns": names}
            document = head | keys | {"data": data}
            if before is not None and after is not None:
                was = _image(table, before, values) or {}
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
            "gtid": _gtid(event),
        }


_SHAPES: Final = {"json": _json, "canal": _canal, "debezium": _debezium, "maxwell": _maxwell}
FORMATS: Final = tuple(_SHAPES)
