"""A table and its copies, compared: rows as text that the same value always has, whether it is of SELECT, of Arrow or of psql."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any


def types_of(connection: Any, database: str, table: str) -> dict[str, str]:
    """The columns of a table in the order of their names, with their types."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
            (database, table),
        )
        return dict(sorted((name, type_.lower()) for name, type_ in cursor.fetchall()))


def selected(connection: Any, database: str, table: str) -> tuple[set[str], list[tuple[str, ...]]]:
    """What SELECT shows: the columns, and rows as text, columns in the order of their names."""
    types = types_of(connection, database, table)
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+00:00'")
        cursor.execute(f"SELECT {', '.join(expression(*column) for column in types.items())} FROM {database}.{table}")
        return set(types), texts(list(types), types, cursor.fetchall())


def texts(names: Sequence[str], types: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> list[tuple[str, ...]]:
    """Rows as text, sorted; `types` are those of the source's columns."""
    return sorted(tuple(text_of(types.get(name, ""), value) for name, value in zip(names, row, strict=True)) for row in rows)


def expression(name: str, type_: str) -> str:
    """What to select of a column."""
    name = f"`{name.replace('`', '``')}`"
    if type_ == "float":
        return f"CAST({name} AS DOUBLE)"
    if type_ == "bit":
        return f"{name} + 0"
    if type_ in ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"):
        return f"HEX({name})"
    return name if type_ in ("year", "double") or "int" in type_ else f"CAST({name} AS CHAR)"


def text_of(type_: str, value: Any) -> str:
    """A value as text that the same value always has: of SELECT, of Arrow or of psql."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes) and type_ not in ("json",):
        value = value.hex().upper()
    text = value if isinstance(value, str) else str(value)
    if type_ in ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"):
        return text.removeprefix("\\x").upper()
    if type_ in ("float", "double"):
        return f"{float(text):.5e}"
    if type_ == "decimal" or "int" in type_ or type_ in ("bit", "year"):
        return format(Decimal(text).normalize(), "f")
    if type_ in ("date", "datetime", "timestamp"):
        if "-00" in text[:10] or text.startswith("0000"):
            return "NULL"  # as zeroDates=null has it
        text = text.removesuffix("+00:00").removesuffix("+00")
    if type_ in ("datetime", "timestamp", "time") and "." in text:
        text = text.rstrip("0").rstrip(".")
    if type_ == "json":
        return json.dumps(json.loads(text), sort_keys=True)
    return text
