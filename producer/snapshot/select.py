"""What is asked of a table, chunk by chunk, in the order of its key: the SELECT, and its literals."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from shmstore import Column
from shmstore.producer.connection.prepared import BYTES, INDEXED, NUMBERS
from shmstore.producer.snapshot.tables import Key, SourceTable, quoted
from shmstore.producer.values.charsets import python_codec

HIDDEN = "SET SESSION show_gipk_in_create_table_and_information_schema = ON"  # MySQL's invisible keys are in the binlog


# ---------------------------------------------------------------- the SELECT


class Selection(NamedTuple):
    """What is selected: the table's columns, then what only tells a row's key (`extras`: key column, its expression)."""

    table: SourceTable
    columns: tuple[Column, ...]
    extras: tuple[tuple[int, str], ...]

    def sql(self, after: Sequence[str], limit: int) -> str:
        """Return the SELECT of `limit` rows behind the key `after`; of all rows where the table has no key."""
        table = self.table
        names = [quoted(column.name) for column in table.schema.columns]
        text = f"SELECT {', '.join(_as_logged(table, i) for i in range(len(names)))}"
        text += "".join(f", {expression}" for _, expression in self.extras)
        text += f" FROM {table.name}" + (" FOR SYSTEM_TIME ALL" if table.versioned else "")
        if table.key is None:
            return text
        keys = [names[i] for i in table.key.columns]
        text += f" FORCE INDEX ({quoted(table.key.name)})"
        if after:
            text += f" WHERE {keys[0]} >= {after[0]} AND ({_behind(keys, after)})"
        return f"{text} ORDER BY {', '.join(keys)} LIMIT {limit}"


def _behind(keys: Sequence[str], after: Sequence[str]) -> str:
    """(a, b) > (x, y), written so that an index is used for it."""
    if len(keys) == 1:
        return f"{keys[0]} > {after[0]}"
    return f"{keys[0]} > {after[0]} OR ({keys[0]} = {after[0]} AND ({_behind(keys[1:], after[1:])}))"


def _as_logged(table: SourceTable, i: int) -> str:
    column = table.schema.columns[i]
    return f"CAST({quoted(column.name)} AS BINARY({column.size}))" if i in table.raw else quoted(column.name)


def selection(table: SourceTable) -> Selection:
    """Return how `table` is selected."""
    extras: list[tuple[int, str]] = []
    more: list[Column] = []
    columns = table.schema.columns
    for i in table.key.columns if table.key else ():
        column = columns[i]
        if column.type in ("enum", "set"):  # in the order of their numbers
            extras.append((i, f"CAST({quoted(column.name)} AS UNSIGNED)"))
            more.append(INDEXED)
        elif column.charset and python_codec(column.charset) != "utf-8":
            extras.append((i, f"CAST({quoted(column.name)} AS BINARY)"))
            more.append(BYTES)
    return Selection(table, (*columns, *more), tuple(extras))


def literals(selected: Selection, key: Key, row: Sequence[Any]) -> list[str]:
    """Return the key of a row of `selected` as SQL literals that mean exactly its bytes."""
    table = selected.table
    width = len(table.schema.columns)
    extra = {i: row[width + at] for at, (i, _) in enumerate(selected.extras)}
    return [_literal(table.schema.columns[i], table.collations[i], extra.get(i, row[i])) for i in key.columns]


def _literal(column: Column, collation: str, value: Any) -> str:
    if column.type in NUMBERS or column.type in ("enum", "set"):
        return str(value)
    if column.type == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    if isinstance(value, float):
        return f"{value:.17e}"
    if column.charset:
        raw = value if isinstance(value, bytes) else value.encode()
        return f"_{column.charset} x'{raw.hex()}' COLLATE {collation}"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return f"'{value if isinstance(value, str) else _moment(column.type, value)}'"


def _moment(type_: str, value: int) -> str:
    if type_ == "date":
        return (date(1970, 1, 1) + timedelta(value)).isoformat()
    if type_ == "time":
        seconds, micros = divmod(abs(value), 1_000_000)
        sign = "-" if value < 0 else ""
        return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
    return (datetime(1970, 1, 1) + timedelta(microseconds=value)).isoformat(" ", "microseconds")
