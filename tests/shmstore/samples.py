"""Events to put into stores in tests, and what else the store's tests share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from shmstore import SLOT, Column, EntryType, Event, EventType, Position, Row, SlotFlag, TableSchema

ORDERS = TableSchema(
    "shop",
    "orders",
    (
        Column("id", "bigint", unsigned=True, nullable=False),
        Column("note", "varchar", size=400, charset="utf8mb4"),
        Column("price", "decimal", size=12, scale=2),
        Column("at", "datetime", scale=6),
    ),
    (0,),
)
FILE = "binlog.000007"
#: No UTF-8: stray, overlong, surrogate, behind the last character
BAD_UTF8 = [
    b"\x80",
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xe0\x9f\xbf",
    b"\xed\xa0\x80",
    b"\xf0\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
]


def position(i: int, gtids: str = "") -> Position:
    """End of event `i` in the binlog of these samples."""
    return Position(FILE, 100 * (i + 1), gtids)


def rows(i: int, *, count: int = 1, note: str = "", part: int = 0) -> Event:
    """An INSERT of `count` rows whose ids begin at ``i * 1000``."""
    images = tuple(
        Row(None, (i * 1000 + k, note or f"ордер {i}", Decimal("12.30"), datetime(2026, 2, 3, 4, 5, 6, i % 1_000_000)))
        for k in range(count)
    )
    return Event(
        EntryType.ROWS, EventType.INSERT, position(i), 1_700_000_000_000 + i, 7, 100, f"t{i}", 1, part, "shop", ORDERS, images
    )


def begin(i: int) -> Event:
    """The start of a transaction. Like every event of it, it may carry the transaction's own GTID set (Canal's do)."""
    return Event(EntryType.BEGIN, EventType.NONE, position(i, "u:1-9"), 1_700_000_000_000 + i, 7, 100, f"t{i}")


def end(i: int, gtids: str = "") -> Event:
    """The end of a transaction: an ack point."""
    return Event(EntryType.END, EventType.NONE, position(i, gtids), 1_700_000_000_000 + i, 7, 100, f"t{i}", 2)


def ddl(i: int, sql: str = "ALTER TABLE orders ADD x int") -> Event:
    """A DDL: an ack point, alone where the store isolates DDL."""
    return Event(EntryType.DDL, EventType.ALTER, position(i), 1_700_000_000_000 + i, 7, 100, f"t{i}", database="shop", sql=sql)


def encoded(
    payloads: Iterable[bytes], *, flags: Iterable[int] | None = None, rows: Iterable[int] | None = None
) -> tuple[bytes, NDArray[np.void]]:
    """Arguments of `put_encoded` for raw payloads."""
    payloads = list(payloads)
    slots = np.zeros(len(payloads), SLOT)
    slots["size"] = [len(payload) for payload in payloads]
    slots["rows"] = 1 if rows is None else list(rows)
    slots["flags"] = 0 if flags is None else [int(flag) for flag in flags]
    slots["offset"] = np.arange(1, len(payloads) + 1) * 100
    slots["file"] = 7
    return b"".join(payloads), slots


DDL = int(SlotFlag.DDL)
END = int(SlotFlag.TRANSACTION_END)


def leftovers(name: str) -> list[str]:
    """What of a store is in shared memory, overflow segments included."""
    own = f"shmstore.{name}"
    return sorted(entry for entry in os.listdir("/dev/shm") if entry == own or entry.startswith(f"{own}@"))


def contents(batch: object) -> list[bytes]:
    """The payloads of a batch, as bytes."""
    return [bytes(payload) for payload in batch.payloads()]  # type: ignore[attr-defined]
