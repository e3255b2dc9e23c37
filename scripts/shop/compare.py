"""The proof: what the server's SELECT says, and what each reader keeps, by row count and a checksum of every column."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts.shop.canonical import Table, checksum_table
from scripts.shop.schema import DATABASE

ABSENT_COLUMN = "absent"


class Layout(NamedTuple):
    """A table as the server describes it at the end: (name, DATA_TYPE) of every column, and the primary key's columns."""

    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]


class Difference(NamedTuple):
    """One place that does not hold what the server holds. `column` is empty where the row count differs."""

    place: str
    table: str
    column: str
    expected: str
    found: str


def layouts(connection: Any) -> dict[str, Layout]:
    """Return the layout of every table of the shop, by information_schema."""
    cursor = connection.cursor()
    cursor.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_schema = %s ORDER BY table_name, ordinal_position",
        (DATABASE,),
    )
    columns: dict[str, list[tuple[str, str]]] = {}
    for table, column, data_type in cursor.fetchall():
        columns.setdefault(table, []).append((column, str(data_type).lower()))
    cursor.execute(
        "SELECT table_name, column_name FROM information_schema.key_column_usage "
        "WHERE table_schema = %s AND constraint_name = 'PRIMARY' ORDER BY table_name, ordinal_position",
        (DATABASE,),
    )
    keys: dict[str, list[str]] = {}
    for table, column in cursor.fetchall():
        keys.setdefault(table, []).append(column)
    return {table: Layout(tuple(columns[table]), tuple(keys[table])) for table in columns}


def of_server(connection: Any, tables: Mapping[str, Layout]) -> dict[str, Table]:
    """Return the checksums of the server's tables by SELECT, in one consistent snapshot."""
    cursor = connection.cursor()
    cursor.execute("SET SESSION time_zone = '+00:00'")
    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    found = {}
    for table, layout in tables.items():
        # A FLOAT is printed with six digits only; as a DOUBLE it is whole.
        wanted = ", ".join(f"`{name}` * 1e0" if type_ == "float" else f"`{name}`" for name, type_ in layout.columns)
        cursor.execute(f"SELECT {wanted} FROM {DATABASE}.{table}")
        found[table] = checksum_table(cursor.fetchall(), layout.columns, layout.key)
    cursor.execute("COMMIT")
    return found


def of_sqlite(path: Path, tables: Mapping[str, Layout]) -> dict[str, Table]:
    """Return the checksums of the SQLite reader's tables."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        found = {}
        for table, layout in tables.items():
            cursor = connection.execute(f'SELECT * FROM "{table}"') if _exists(connection, table) else None
            names = [column[0] for column in cursor.description] if cursor else []
            found[table] = checksum_named(names, cursor or (), layout)
        return found
    finally:
        connection.close()


def _exists(connection: sqlite3.Connection, table: str) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is not None


def of_delta(directory: Path, tables: Mapping[str, Layout]) -> dict[str, Table]:
    """Return the checksums of the Spark query's Delta tables, one folder a table."""
    from deltalake import DeltaTable

    found = {}
    for table, layout in tables.items():
        folder = directory / table
        if not DeltaTable.is_deltatable(str(folder)):
            found[table] = Table(0, {})
            continue
        arrow = DeltaTable(str(folder)).to_pyarrow_table()
        rows = zip(*(column.to_pylist() for column in arrow.columns), strict=True)
        found[table] = checksum_named(arrow.column_names, rows, layout)
    return found


def of_rows(content: Mapping[str, Iterable[Mapping[str, Any]]], tables: Mapping[str, Layout]) -> dict[str, Table]:
    """Return the checksums of tables given as rows by column name."""
    found = {}
    for table, layout in tables.items():
        rows = list(content.get(table, ()))
        names = list({name: None for row in rows for name in row})
        found[table] = checksum_named(names, [[row.get(name) for name in names] for row in rows], layout)
    return found


def checksum_named(names: Sequence[str], rows: Iterable[Sequence[Any]], layout: Layout) -> Table:
    """Return the checksums of `rows` whose values lie in the order of `names`; columns that the server lacks are reported too."""
    types = dict(layout.columns)
    rows = list(rows)
    if any(name not in names for name in layout.key):
        return Table(len(rows), {})
    common = [(name, types[name]) for name in names if name in types]
    indexes = [names.index(name) for name, _ in common]
    table = checksum_table([[row[i] for i in indexes] for row in rows], common, layout.key)
    for name in names:
        if name not in types:
            table.columns[name] = "not on the server"
    return table


def differences(expected: Mapping[str, Table], places: Mapping[str, Mapping[str, Table]]) -> list[Difference]:
    """Return every row count and column checksum in which a place differs from `expected`; empty when all are identical."""
    found = []
    for place, tables in places.items():
        for name in {**expected, **tables}:
            want = expected.get(name, Table(0, {}))
            have = tables.get(name, Table(0, {}))
            if want.rows != have.rows:
                found.append(Difference(place, name, "", f"{want.rows:,} rows", f"{have.rows:,} rows"))
            for column in {**want.columns, **have.columns}:
                left, right = want.columns.get(column, ABSENT_COLUMN), have.columns.get(column, ABSENT_COLUMN)
                if left != right:
                    found.append(Difference(place, name, column, left, right))
    return found


def render(layout: Mapping[str, Layout], server: Mapping[str, Table], places: Mapping[str, Mapping[str, Table]]) -> str:
    """Return the comparison as text: a line of row counts per table, a line of checksums per column."""
    titles = ["table", "column", "type", "server SELECT", *places]
    lines: list[list[str]] = []
    for table, description in layout.items():
        counts = [f"{tables.get(table, Table(0, {})).rows:,}" for tables in (server, *places.values())]
        lines.append([table, "(rows)", "", *counts])
        for column, data_type in description.columns:
            sums = [tables.get(table, Table(0, {})).columns.get(column, ABSENT_COLUMN) for tables in (server, *places.values())]
            lines.append(["", column, data_type, *(found if found == sums[0] else f"{found} !" for found in sums)])
    widths = [max(len(line[i]) for line in [titles, *lines]) for i in range(len(titles))]
    rule = "-" * (sum(widths) + 2 * len(widths) - 2)
    text = [_line(titles, widths), rule]
    for line in lines:
        if line[0] and len(text) > 2:
            text.append("")
        text.append(_line(line, widths))
    return "\n".join([*text, rule])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        cell.ljust(width) if i < 3 else cell.rjust(width) for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()
