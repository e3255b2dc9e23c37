"""The JSON of Debezium's MySQL connector (3.x), as its converter writes it with ``decimal.handling.mode=string``, else by default.

With `Context.schemas` each document is {"schema": ..., "payload": ...}, as with ``schemas.enable=true``. What differs: a BIGINT UNSIGNED
above 2^63-1 is the number that it is (Debezium's default mode wraps it to a negative one), BOOLEAN is the TINYINT that the log has, JSON
the text that MySQL shows, year 0 no 1900, a column's default is not known, and ``tableChanges`` of a DDL says of dropped tables only:
a binlog holds the statement, not what a table is after it. That comes with its next row (with `Context.schemas`).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from shmstore.clock import calendar_ms
from shmstore.consumer.formats.context import Context, Convert, Form, gtid, image
from shmstore.consumer.formats.ddl_target import ddl_target
from shmstore.consumer.formats.key_change import filled, key_changes
from shmstore.consumer.formats.values import base64_text, text_or_base64, utc_text, value_text
from shmstore.event import Column, EntryType, Event, EventType, TableSchema
from shmstore.sql.tokens import statement

_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_GEOMETRIES: Final = frozenset(
    ("geometry", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection")
)


def documents(event: Event, context: Context) -> Iterator[dict[str, Any]]:
    """Yield the documents of an event."""
    for schema, payload in _payloads(event, context):
        yield {"schema": schema(), "payload": payload} if context.schemas else payload


_Document = tuple[Callable[[], dict[str, Any]], dict[str, Any]]


def _payloads(event: Event, context: Context) -> Iterator[_Document]:
    if event.table is not None:
        table = event.table
        for payload in _changes(event, table, context):
            if context.transactions and context.transaction:
                if not context.counts:
                    yield _transaction_schema, _transaction("BEGIN", event, context)
                payload["transaction"] = _counted(f"{table.database}.{table.table}", context)
            yield lambda: envelope_schema(context.name, table), payload
    elif event.entry is EntryType.END:
        if context.transactions and context.counts:
            yield _transaction_schema, _transaction("END", event, context)
        context.transaction, context.thread = "", None
        context.counts.clear()
    elif event.entry is EntryType.DDL:
        database, name = ddl_target(event.sql, event.database, event.props)
        source = _source(event, context.name, database, name or None)
        if event.type is EventType.TRUNCATE:
            yield lambda: envelope_schema(context.name, TableSchema(database, name, ())), _payload("t", source, None, None)
        else:
            for ddl, changes in _statements(event, database, name):
                change = {"databaseName": database, "schemaName": None, "ddl": ddl, "tableChanges": changes}
                yield _change_schema, {"source": source, "ts_ms": calendar_ms(), **change}


def _statements(event: Event, database: str, name: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the statement with what it changes: a DROP of several tables as one of each, anything else as it is and without changes."""
    tokens = statement(event.sql)
    if not name or not (tokens.accept("DROP", "TABLE") or tokens.accept("DROP", "TEMPORARY", "TABLE")):
        yield event.sql, []
        return
    named = event.props.get("tables", f"{database}.{name}").split(",")
    for owner, _, table in (one.partition(".") for one in named):
        drop = {"type": "DROP", "id": f'"{owner}"."{table}"', "table": None}
        yield f"DROP TABLE `{owner}`.`{table}`" if len(named) > 1 else event.sql, [drop]


def _changes(event: Event, table: TableSchema, context: Context) -> Iterator[dict[str, Any]]:
    values = _converters(table)
    source = _source(event, context.name, table.database, table.table, context.thread)
    for number, row in enumerate(event.rows):
        moves = key_changes(row, table.primary_key)
        before, after = filled(row) if moves else row
        here = source | {"row": number}
        was, is_ = image(table, before, values), image(table, after, values)
        if before is None:
            yield _payload("r" if event.type is EventType.READ else "c", here, None, is_)
        elif after is None:
            yield _payload("d", here, was, None)
        elif moves:
            # An update of the key is a delete of the old key and a create of the new one.
            yield _payload("d", here, was, None)
            yield _payload("c", here, None, is_)
        else:
            yield _payload("u", here, was, is_)


def _payload(op: str, source: dict[str, Any], before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any]:
    now = time.time_ns()
    seen = {"ts_ms": now // 1_000_000, "ts_us": now // 1000, "ts_ns": now}
    return {"before": before, "after": after, "source": source, "transaction": None, "op": op, **seen}


def _source(event: Event, name: str, database: str, table: str | None, thread: int | None = None) -> dict[str, Any]:
    return {
        "version": "shmstore",
        "connector": "mysql",
        "name": name,
        "ts_ms": event.time_ms,
        "snapshot": "true" if event.type is EventType.READ else "false",
        "db": database,
        "sequence": None,
        "ts_us": event.time_ms * 1000,
        "ts_ns": event.time_ms * 1_000_000,
        "table": table,
        "server_id": event.server_id,
        "gtid": gtid(event),
        "file": event.position.file,
        "pos": event.position.offset - event.length,
        "row": 0,
        "thread": thread,
        "query": event.props.get("rows_query"),
    }


def _counted(collection: str, context: Context) -> dict[str, Any]:
    context.counts[collection] += 1
    order = {"total_order": context.counts.total(), "data_collection_order": context.counts[collection]}
    return {"id": context.transaction, **order}


def _transaction(status: str, event: Event, context: Context) -> dict[str, Any]:
    ended = status == "END"
    by_table = [{"data_collection": name, "event_count": count} for name, count in context.counts.items()]
    return {
        "status": status,
        "id": context.transaction,
        "event_count": context.counts.total() if ended else None,
        "data_collections": by_table if ended else None,
        "ts_ms": event.time_ms,
    }


# ---------------------------------------------------------------- values


def _converter(column: Column) -> Convert | None:
    kind, nothing = column.type, None if column.nullable else 0
    if kind == "decimal":
        return value_text(column)
    if kind == "date":
        return lambda value: value.toordinal() - _EPOCH_DAY if isinstance(value, date) else nothing
    if kind == "datetime":
        unit = 1 if column.scale > 3 else 1000
        return lambda value: (value - _EPOCH) // _MICROSECOND // unit if isinstance(value, datetime) else nothing
    if kind == "timestamp":
        return _timestamp(column)
    if kind == "time":
        return lambda value: value // _MICROSECOND
    if kind == "bit":
        if column.size == 1:
            return bool
        return lambda value: base64_text(value.to_bytes((column.size + 7) // 8 or 8, "little"))
    if kind in _NUMBERS:
        return None
    if kind in _GEOMETRIES or kind == "point":
        return _point if kind == "point" else _geometry
    if kind == "vector":
        return lambda value: list(struct.unpack(f"<{len(value) // 4}f", value))
    return text_or_base64


#: The same for compiled code; of other types it is text, or bytes as base64.
_FORMS: Final = {"decimal": "digits", "date": "days", "time": "micro_time", "float": "real", "double": "real"}


def form(column: Column) -> Form:
    """Return the form of a column's values for compiled code."""
    kind, nothing = column.type, None if column.nullable else 0
    if kind == "datetime":
        return "micros" if column.scale > 3 else "millis", None, nothing
    if kind == "timestamp":
        return "zoned", None, None if column.nullable else "1970-01-01T00:00:00Z"
    if kind == "bit":
        return "boolean" if column.size == 1 else "bits", None, None
    if kind in _GEOMETRIES or kind in ("point", "vector"):
        return "python", None, None
    return _FORMS.get(kind, "whole" if kind in _NUMBERS else "plain"), None, nothing


def _timestamp(column: Column) -> Convert:
    """ISO 8601 with the column's digits of a second."""
    text, nothing = utc_text(column.scale), None if column.nullable else "1970-01-01T00:00:00Z"
    return lambda value: text(value) if isinstance(value, datetime) else nothing


def _geometry(value: bytes) -> dict[str, Any]:
    """Of what the server stores: the spatial reference system, then well-known binary."""
    return {"wkb": base64_text(value[4:]), "srid": int.from_bytes(value[:4], "little") or None}


def _point(value: bytes) -> dict[str, Any]:
    x, y = struct.unpack_from("<dd" if value[4] else ">dd", value, 9)
    return {"x": x, "y": y, **_geometry(value)}


@lru_cache(maxsize=1024)
def _converters(table: TableSchema) -> tuple[Convert | None, ...]:
    return tuple(_converter(column) for column in table.columns)


# ---------------------------------------------------------------- schemas, as Kafka Connect writes them

_NUMBERS: Final = {  # signed, unsigned
    "tinyint": ("int16", "int16"),
    "smallint": ("int16", "int32"),
    "mediumint": ("int32", "int32"),
    "int": ("int32", "int64"),
    "bigint": ("int64", "int64"),
    "float": ("float", "float"),
    "double": ("double", "double"),
    "year": ("int32", "int32"),
}
_NAMES: Final = {
    "year": "io.debezium.time.Year",
    "date": "io.debezium.time.Date",
    "time": "io.debezium.time.MicroTime",
    "timestamp": "io.debezium.time.ZonedTimestamp",
    "json": "io.debezium.data.Json",
    "vector": "io.debezium.data.FloatVector",
}
_BYTES: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")


def _field(name: str, type_: str, /, optional: bool = True, **more: Any) -> dict[str, Any]:
    return {"type": type_, "optional": optional, **more, "field": name}


def _struct(name: str, version: int | None, fields: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    named = {"optional": more.pop("optional", False), "name": name} | ({} if version is None else {"version": version})
    return {"type": "struct", "fields": fields, **named, **more}


def _column(column: Column) -> dict[str, Any]:
    """A column's field."""
    kind, optional = column.type, column.nullable
    name = _NAMES.get(kind)
    if kind == "datetime":
        name = f"io.debezium.time.{'Micro' * (column.scale > 3)}Timestamp"
    more: dict[str, Any] = {} if name is None else {"name": name, "version": 1}
    if kind in _NUMBERS:
        return _field(column.name, _NUMBERS[kind][column.unsigned], optional, **more)
    if kind == "bit":
        bits = {"name": "io.debezium.data.Bits", "version": 1, "parameters": {"length": str(column.size)}}
        return _field(column.name, "boolean", optional) if column.size == 1 else _field(column.name, "bytes", optional, **bits)
    if kind in ("enum", "set"):
        named = f"io.debezium.data.Enum{'Set' * (kind == 'set')}"
        members = {"name": named, "version": 1, "parameters": {"allowed": ",".join(column.members)}}
        return _field(column.name, "string", optional, **members)
    if kind in _GEOMETRIES or kind == "point":
        return _spatial(column)
    if kind == "vector":
        items = {"type": "float", "optional": False}
        return {"type": "array", "items": items, "optional": optional, **more, "field": column.name}
    types = {"date": "int32", "time": "int64", "datetime": "int64"} | dict.fromkeys(_BYTES, "bytes")
    return _field(column.name, types.get(kind, "string"), optional, **more)


def _spatial(column: Column) -> dict[str, Any]:
    point = column.type == "point"
    fields = [_field("x", "double", optional=False), _field("y", "double", optional=False)] if point else []
    fields += [_field("wkb", "bytes", optional=point), _field("srid", "int32")]
    doc, name = ("Geometry (POINT)", "Point") if point else ("Geometry", "Geometry")
    more = {"optional": column.nullable, "doc": doc, "field": column.name}
    return _struct(f"io.debezium.data.geometry.{name}", 1, fields, **more)


_SNAPSHOT: Final = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
_SOURCE: Final = [
    _field("version", "string", optional=False),
    _field("connector", "string", optional=False),
    _field("name", "string", optional=False),
    _field("ts_ms", "int64", optional=False),
    _field("snapshot", "string", name="io.debezium.data.Enum", version=1, parameters={"allowed": _SNAPSHOT}, default="false"),
    _field("db", "string", optional=False),
    _field("sequence", "string"),
    _field("ts_us", "int64"),
    _field("ts_ns", "int64"),
    _field("table", "string"),
    _field("server_id", "int64", optional=False),
    _field("gtid", "string"),
    _field("file", "string", optional=False),
    _field("pos", "int64", optional=False),
    _field("row", "int32", optional=False),
    _field("thread", "int64"),
    _field("query", "string"),
]


@lru_cache(maxsize=1024)
def envelope_schema(name: str, table: TableSchema) -> dict[str, Any]:
    """Return the schema of a table's documents; `name` is the topics' prefix."""
    columns = [_column(column) for column in table.columns]
    base = f"{name}.{table.database}.{table.table}"
    orders = [_field("total_order", "int64", optional=False), _field("data_collection_order", "int64", optional=False)]
    fields = [
        _struct(f"{base}.Value", None, columns, optional=True, field="before"),
        _struct(f"{base}.Value", None, columns, optional=True, field="after"),
        _struct("io.debezium.connector.mysql.Source", 1, _SOURCE, field="source"),
        _struct("event.block", 1, [_field("id", "string", optional=False), *orders], optional=True, field="transaction"),
        _field("op", "string", optional=False),
        *[_field(each, "int64") for each in ("ts_ms", "ts_us", "ts_ns")],
    ]
    return _struct(f"{base}.Envelope", 2, fields)


@lru_cache(maxsize=1024)
def key_schema(name: str, table: TableSchema) -> dict[str, Any]:
    """Return the schema of the key of a table's messages, as Kafka Connect writes it; `name` is the topics' prefix."""
    columns = [_column(table.columns[i]) for i in table.primary_key]
    return _struct(f"{name}.{table.database}.{table.table}.Key", None, columns)


#: The schema of the key of a transaction's messages.
TRANSACTION_KEY_SCHEMA: Final = _struct(
    "io.debezium.connector.common.TransactionMetadataKey", 1, [_field("id", "string", optional=False)]
)


@lru_cache(maxsize=1)
def _transaction_schema() -> dict[str, Any]:
    counts = [_field("data_collection", "string", optional=False), _field("event_count", "int64", optional=False)]
    items = _struct("event.collection", 1, counts, optional=True)
    fields = [
        _field("status", "string", optional=False),
        _field("id", "string", optional=False),
        _field("event_count", "int64"),
        {"type": "array", "items": items, "optional": True, "field": "data_collections"},
        _field("ts_ms", "int64", optional=False),
    ]
    return _struct("io.debezium.connector.common.TransactionMetadataValue", 1, fields)


@lru_cache(maxsize=1)
def _change_schema() -> dict[str, Any]:
    texts = {"type": "array", "items": {"type": "string", "optional": False}, "optional": True}
    column = [
        _field("name", "string", optional=False),
        _field("jdbcType", "int32", optional=False),
        _field("nativeType", "int32"),
        _field("typeName", "string", optional=False),
        _field("typeExpression", "string"),
        _field("charsetName", "string"),
        _field("length", "int32"),
        _field("scale", "int32"),
        _field("position", "int32", optional=False),
        *[_field(name, "boolean") for name in ("optional", "autoIncremented", "generated")],
        _field("comment", "string"),
        _field("defaultValueExpression", "string"),
        {**texts, "field": "enumValues"},
    ]
    columns = _struct("io.debezium.connector.schema.Column", 1, column)
    table = [
        _field("defaultCharsetName", "string"),
        {**texts, "field": "primaryKeyColumnNames"},
        {"type": "array", "items": columns, "optional": False, "field": "columns"},
        _field("comment", "string"),
    ]
    change = [
        _field("type", "string", optional=False),
        _field("id", "string", optional=False),
        _struct("io.debezium.connector.schema.Table", 1, table, optional=True, field="table"),
    ]
    items = _struct("io.debezium.connector.schema.Change", 1, change)
    fields = [
        _struct("io.debezium.connector.mysql.Source", 1, _SOURCE, field="source"),
        _field("ts_ms", "int64", optional=False),
        *[_field(name, "string") for name in ("databaseName", "schemaName", "ddl")],
        {"type": "array", "items": items, "optional": False, "field": "tableChanges"},
    ]
    return _struct("io.debezium.connector.mysql.SchemaChangeValue", 1, fields)
