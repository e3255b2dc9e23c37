"""The events that the page on formats shows, and each format's documents of them."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from typing import Any
from unittest.mock import patch

from shmstore import Column, EntryType, Event, EventType, Position, Row, TableSchema
from shmstore.consumer.formats.formatter import Formatter

ORDERS = TableSchema(
    "shop",
    "orders",
    (
        Column("id", "bigint", unsigned=True, nullable=False),
        Column("customer", "varchar", size=80, charset="utf8mb4"),
        Column("total", "decimal", size=10, scale=2),
        Column("placed", "datetime", scale=3),
        Column("state", "enum", charset="utf8mb4", members=("open", "paid")),
    ),
    (0,),
)
PLACED = datetime(2026, 11, 20, 8, 11, 21, 155_000)
OPEN = (1, "Ada", Decimal("12.50"), PLACED, "open")
PAID = (1, "Ada", Decimal("13.00"), PLACED, "paid")


def _event(entry: EntryType, type_: EventType, offset: int, order: int, **values: Any) -> Event:
    gtid = "0-1-10" if entry is EntryType.DDL else "0-1-9"
    gtids = gtid if entry in (EntryType.END, EntryType.DDL) else ""
    position = Position("binlog.000001", offset, gtids)
    return Event(entry, type_, position, 1_795_162_281_000, 1, 100, gtid, order, **values)


EVENTS = (
    _event(EntryType.BEGIN, EventType.NONE, 2426, 0, props={"thread_id": "31"}),
    _event(EntryType.ROWS, EventType.INSERT, 2539, 1, database="shop", table=ORDERS, rows=(Row(None, OPEN),)),
    _event(EntryType.ROWS, EventType.UPDATE, 2858, 2, database="shop", table=ORDERS, rows=(Row(OPEN, PAID),)),
    _event(EntryType.END, EventType.NONE, 2889, 3, props={"xid": "77"}),
    _event(EntryType.DDL, EventType.ALTER, 3010, 0, database="shop", sql="ALTER TABLE orders ADD note TEXT"),
)


def documents(format: str) -> list[dict[str, Any]]:
    """Return a format's documents of `EVENTS`; the time of printing is 0."""
    formatter = Formatter(format, name="orders")
    with patch("time.time_ns", return_value=0):
        return [json.loads(line) for sequence, event in enumerate(EVENTS) for line in formatter.lines(event, sequence)]


def shown(format: str) -> str:
    """Return them as a block of Markdown, a field a line."""
    blocks = []
    for document in documents(format):
        lines = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in document.items()]
        blocks.append("{\n" + ",\n".join(lines) + "\n}")
    return "```json\n" + "\n".join(blocks) + "\n```"
