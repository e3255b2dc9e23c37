"""The shop's orders, as every page and example has them: the table of scripts/shop/schema.py, whose columns the demo's server has."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from shmstore import Column, TableSchema

ORDERS = TableSchema(
    "shop",
    "orders",
    (
        Column("id", "bigint", unsigned=True, nullable=False),
        Column("customer_id", "bigint", unsigned=True, nullable=False),
        Column("status", "enum", nullable=False, charset="utf8mb4", members=("new", "paid", "sent")),
        Column("placed", "datetime", nullable=False, scale=6),
        Column("season", "year", nullable=False),
        Column("total", "decimal", nullable=False, size=14, scale=4),
        Column("flags", "bit", nullable=False, size=10),
        Column("note", "text", charset="utf8mb4"),
    ),
    (0,),
)
PLACED = datetime(2026, 11, 20, 8, 11, 21, 155_000)


def order_row(key: int, *, status: str = "new", customer: int = 7) -> tuple[Any, ...]:
    """An order of `key` cents, placed `key` seconds after the year began."""
    total = Decimal(key).scaleb(-2).quantize(Decimal("0.0001"))
    return (key, customer, status, datetime(2026, 1, 1) + timedelta(seconds=key), 2026, total, 0, None)


def order(key: int, total: str, *, customer: int = 1, status: str = "new") -> tuple[Any, ...]:
    """An order of the quick start."""
    return (key, customer, status, PLACED, 2026, Decimal(total), 0, None)
