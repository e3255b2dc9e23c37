"""Events as a server's binlog would bring them, for the Spark tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from shmstore import Column, EntryType, Event, EventType, Position, Row, TableSchema

ORDERS = TableSchema(
    "shop",
    "orders",
    (
        Column("id", "bigint", nullable=False),
        Column("customer", "int", unsigned=True),
        Column("amount", "decimal", size=12, scale=2),
        Column("placed", "datetime", scale=3),
        Column("seen", "timestamp"),
        Column("status", "varchar", size=40, charset="utf8mb4"),
    ),
    (0,),
)


def order_row(key: int, *, status: str | None = "new", customer: int = 7) -> tuple[Any, ...]:
    """A row of ORDERS."""
    moment = datetime(2026, 1, 1) + timedelta(seconds=key)
    return (key, customer, Decimal(key).scaleb(-2).quantize(Decimal("0.01")), moment, moment.replace(tzinfo=UTC), status)


class Binlog:
    """Writes events as a server's binlog would: positions go up, transactions are whole."""

    def __init__(self, table: TableSchema = ORDERS) -> None:
        self.table = table
        self.offset = 4
        self.number = 0

    def _event(self, entry: EntryType, type_: EventType, order: int, **values: Any) -> Event:
        self.offset += 100
        gtids = f"0-1-{self.number}" if entry in (EntryType.END, EntryType.DDL) else ""
        position = Position("binlog.000001", self.offset, gtids)
        return Event(entry, type_, position, 1_700_000_000_000 + self.offset, 1, 100, f"0-1-{self.number}", order, **values)

    def transaction(self, *changes: tuple[EventType, tuple[Row, ...]], table: TableSchema | None = None) -> list[Event]:
        """BEGIN, one rows event for each change, END; without `table`, of the binlog's own."""
        table = table or self.table
        self.number += 1
        events = [self._event(EntryType.BEGIN, EventType.NONE, 0)]
        for order, (type_, rows) in enumerate(changes, 1):
            events.append(self._event(EntryType.ROWS, type_, order, database=table.database, table=table, rows=rows))
        return [*events, self._event(EntryType.END, EventType.NONE, len(changes) + 1)]

    def filters(self, **tables: str) -> list[Event]:
        """The producer's filters change: `tables` are the event's properties."""
        return [self._event(EntryType.HEARTBEAT, EventType.NONE, 0, props={"filters_changed": "include", **tables})]

    def insert(self, *rows: tuple[Any, ...], table: TableSchema | None = None) -> list[Event]:
        """One transaction that inserts `rows`."""
        return self.transaction((EventType.INSERT, tuple(Row(None, row) for row in rows)), table=table)

    def update(self, *pairs: tuple[tuple[Any, ...], tuple[Any, ...]], table: TableSchema | None = None) -> list[Event]:
        """One transaction that updates (before, after) pairs."""
        return self.transaction((EventType.UPDATE, tuple(Row(*pair) for pair in pairs)), table=table)

    def delete(self, *rows: tuple[Any, ...], table: TableSchema | None = None) -> list[Event]:
        """One transaction that deletes `rows`."""
        return self.transaction((EventType.DELETE, tuple(Row(row, None) for row in rows)), table=table)

    def read(
        self,
        part: str,
        *rows: tuple[Any, ...],
        table: TableSchema | None = None,
        snapshot: str = "00000001",
        reason: str = "asked",
        partial: str = "",
    ) -> list[Event]:
        """Transactions of a snapshot: `part` is first, last, whole for both, or nothing for what is in between."""
        if part == "whole":
            options: dict[str, Any] = {"table": table, "snapshot": snapshot, "reason": reason, "partial": partial}
            return [*self.read("first", **options), *self.read("last", *rows, **options)]
        props = {"snapshot": snapshot, "snapshot_reason": reason, **({"snapshot_part": part} if part else {})}
        props |= {"snapshot_partial": partial} if partial else {}
        events = self.transaction((EventType.READ, tuple(Row(None, row) for row in rows)), table=table)
        return [event._replace(props=props) if event.entry is EntryType.ROWS else event for event in events]

    def ddl(self, sql: str, type_: EventType = EventType.ALTER, database: str = "shop") -> list[Event]:
        """One DDL."""
        self.number += 1
        return [self._event(EntryType.DDL, type_, 0, database=database, sql=sql)]
