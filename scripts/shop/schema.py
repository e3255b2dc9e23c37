"""The shop's tables, the DDLs that run in mid-load, and how a reader follows them.

Four tables with 30 column types between them. Keys of every kind that replication must get right: unsigned 64-bit, composite (and
changed by UPDATEs), and binary.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

DATABASE: Final = "shop"

#: table -> (column definitions, primary key columns). The order is the column order.
TABLES: Final[dict[str, tuple[tuple[tuple[str, str], ...], tuple[str, ...]]]] = {
    "customers": (
        (
            ("id", "bigint unsigned not null"),
            ("name", "varchar(80) not null"),
            ("email", "varchar(120) null"),
            ("country", "char(2) not null"),
            ("birthday", "date null"),
            ("vip", "tinyint not null"),
            ("credit", "decimal(12,2) not null"),
            ("rating", "float null"),
            ("interests", "set('books','music','garden','sport') not null"),
            ("wakes", "time null"),
            ("profile", "json null"),
            ("photo", "blob null"),
            ("joined", "timestamp(6) not null default '2020-01-01 00:00:00'"),
        ),
        ("id",),
    ),
    "orders": (
        (
            ("id", "bigint unsigned not null"),
            ("customer_id", "bigint unsigned not null"),
            ("status", "enum('new','paid','sent') not null"),
            ("placed", "datetime(6) not null"),
            ("season", "year not null"),
            ("total", "decimal(14,4) not null"),
            ("flags", "bit(10) not null"),
            ("note", "text null"),
        ),
        ("id",),
    ),
    "order_items": (
        (
            ("order_id", "bigint unsigned not null"),
            ("line", "smallint unsigned not null"),
            ("sku", "char(12) character set latin1 not null"),
            ("quantity", "mediumint not null"),
            ("price", "decimal(10,2) not null"),
            ("weight", "double null"),
            ("code", "binary(6) not null"),
            ("tag", "varbinary(24) null"),
        ),
        ("order_id", "line"),
    ),
    "payments": (
        (
            ("id", "binary(16) not null"),
            ("order_id", "bigint unsigned not null"),
            ("amount", "decimal(30,10) not null"),
            ("currency", "char(3) not null"),
            ("card_hash", "bigint unsigned not null"),
            ("delta", "bigint not null"),
            ("took", "time(3) not null"),
            ("paid", "timestamp(3) null"),
            ("due", "datetime null"),
            ("receipt", "mediumtext null"),
        ),
        ("id",),
    ),
}

#: The DDLs of the live load: each runs once, when that part of the row changes is done.
LIVE_DDL: Final[tuple[tuple[float, str], ...]] = (
    (0.30, "ALTER TABLE customers ADD COLUMN points int unsigned NOT NULL DEFAULT 7 AFTER vip"),
    (0.55, "ALTER TABLE orders MODIFY COLUMN status enum('new','paid','sent','returned') NOT NULL"),
    (0.75, "CREATE INDEX by_order ON payments (order_id)"),
)


def create_statements() -> list[str]:
    """Return the statements that create the shop."""
    statements = [f"CREATE DATABASE {DATABASE}"]
    for table, (columns, key) in TABLES.items():
        body = ", ".join(f"{name} {type_}" for name, type_ in columns)
        statements.append(
            f"CREATE TABLE {DATABASE}.{table} ({body}, PRIMARY KEY ({', '.join(key)})) ENGINE=InnoDB CHARACTER SET utf8mb4"
        )
    return statements


class AddColumn(NamedTuple):
    """A column that a DDL added. `default` is the literal that the rows already there were given, None for NULL."""

    table: str
    name: str
    type: str
    default: str | None


_ADD_COLUMN = re.compile(
    r"^ALTER\s+TABLE\s+(?:`?\w+`?\.)?`?(?P<table>\w+)`?\s+ADD\s+(?:COLUMN\s+)?`?(?P<name>\w+)`?\s+"
    r"(?P<type>\w+(?:\s*\([^)]*\))?(?:\s+unsigned)?)"
    r"(?:\s+(?:NOT\s+)?NULL)?(?:\s+DEFAULT\s+(?P<default>'[^']*'|[-\w.]+))?(?:\s+(?:AFTER\s+`?\w+`?|FIRST))?\s*;?\s*$",
    re.IGNORECASE,
)
_NO_ROW_CHANGES = re.compile(
    r"^(?:CREATE\s+(?:DATABASE|TABLE|INDEX)\b|ALTER\s+TABLE\s+\S+\s+MODIFY\s+COLUMN\s+\w+\s+enum\b)", re.IGNORECASE
)


def follow(sql: str) -> AddColumn | None:
    """Return what a reader must do for the DDL `sql`: add a column, or None where the rows it keeps stay as they are.

    Raises ValueError for a DDL that the demo's readers do not know: a reader that guessed would be wrong in silence.
    """
    sql = re.sub(r"/\*.*?\*/", " ", sql, flags=re.DOTALL).strip()
    if _NO_ROW_CHANGES.match(sql):
        return None
    match = _ADD_COLUMN.match(sql)
    if match is None:
        raise ValueError(f"the demo's readers do not know how to follow this DDL: {sql}")
    default = match["default"]
    if default is not None:
        default = None if default.upper() == "NULL" else default.strip("'")
    return AddColumn(match["table"], match["name"], match["type"].lower(), default)
