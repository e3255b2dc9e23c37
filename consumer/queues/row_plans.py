"""What compiled code needs of a table to make the messages of its rows (`consumer/queues/native`), as bytes and names that need no look again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from shmstore.column_type import column_type
from shmstore.consumer.formats import debezium, maxwell, own
from shmstore.consumer.formats.canal_values import Values, canal_key, renderings
from shmstore.consumer.formats.json_text import dump
from shmstore.event import Column, TableSchema

_NOT_CANAL: Final = (b"", b"", b"")


class ColumnPlan(NamedTuple):
    """A column. `form` says how a value becomes JSON, and `text` does it where Python must; `most`: see `canal_values.Rendering`.

    `name` and `key_name` are JSON with a comma before and a colon behind, in the document and in the key. `nothing` is what a zero date is where it
    is not itself. The others are Canal's mysqlType and its sqlType of ordinary values, of those above `most`, and of NULL.
    """

    form: str
    scale: int
    size: int
    members: tuple[str, ...]
    text: Callable[[Any], Any] | None
    most: int | None
    name: bytes
    key_name: bytes
    nothing: bytes
    mysql_type: bytes
    sql_types: tuple[bytes, bytes, bytes]


class MessagePlan(NamedTuple):
    """A table. `keyed` and `unkeyed` are the partitions of messages with and without a key, `key` the columns of the key in its order, `shown_key`
    those that Canal names. `around` stands around a document, `key_around` around the parts of a key. The rows of an `unwanted` one are left out."""

    topic: str
    keyed: int | None
    unkeyed: int | None
    unwanted: bool
    columns: tuple[ColumnPlan, ...]
    key: tuple[int, ...]
    shown_key: tuple[int, ...]
    database: bytes
    table: bytes
    around: tuple[bytes, bytes]
    key_around: tuple[bytes, bytes]
    key_columns: bytes


def message_plan(
    table: TableSchema, form: str, name: str, *, schemas: bool, topic: str, keyed: int | None, unkeyed: int | None, unwanted: bool
) -> MessagePlan | None:
    """Return the plan of a table in a format; None where it has something that only Python makes. `name` is Debezium's name of the server."""
    if len(set(table.names)) != len(table.names):
        return None
    columns = _canal_columns(table) if form == "canal" else [_column(column, form) for column in table.columns]
    database, named = dump(table.database), dump(table.table)
    around, key_around = (b"", b""), (b"{", b"}")
    if form == "maxwell":
        key_around = b'{"database":' + database + b',"table":' + named, b"}"
    if schemas:
        around = b'{"schema":' + dump(debezium.envelope_schema(name, table)) + b',"payload":', b"}"
        key_around = b'{"schema":' + dump(debezium.key_schema(name, table)) + b',"payload":{', b"}}"
    return MessagePlan(
        topic=topic,
        keyed=keyed,
        unkeyed=unkeyed,
        unwanted=unwanted,
        columns=tuple(columns),
        key=() if form == "canal" else table.primary_key,
        shown_key=canal_key(table),
        database=database,
        table=named,
        around=around,
        key_around=key_around,
        key_columns=dump([table.columns[i].name for i in table.primary_key]),
    )


def _canal_columns(table: TableSchema) -> list[ColumnPlan]:
    found = []
    for column, shown in zip(table.columns, renderings(table, Values.CANAL), strict=True):
        types = (shown.sql_type, shown.high_type, shown.null_type)
        found.append(
            ColumnPlan(
                form=shown.form,
                scale=column.scale,
                size=0,
                members=column.members,
                text=shown.text,
                most=shown.signed_max,
                name=_named(column.name),
                key_name=b"",
                nothing=b"",
                mysql_type=_named(column.name, column_type(column)),
                sql_types=(_named(column.name, types[0]), _named(column.name, types[1]), _named(column.name, types[2])),
            )
        )
    return found


def _column(column: Column, form: str) -> ColumnPlan:
    chosen, text, nothing = {"json": own.form, "maxwell": maxwell.form, "debezium": debezium.form}[form](column)
    return ColumnPlan(
        form=chosen,
        scale=column.scale,
        size=(column.size + 7) // 8 or 8,
        members=(),
        text=text,
        most=None,
        name=_named(column.name),
        key_name=_named(f"pk.{column.name}" if form == "maxwell" else column.name),
        nothing=dump(nothing),
        mysql_type=b"",
        sql_types=_NOT_CANAL,
    )


_NO_VALUE: Final = object()


def _named(name: str, value: Any = _NO_VALUE) -> bytes:
    """``,"name":`` and the value."""
    return b"," + dump(name) + b":" + (b"" if value is _NO_VALUE else dump(value))
