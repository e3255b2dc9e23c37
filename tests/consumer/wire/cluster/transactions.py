"""Transactions of three events, number n at offset 1000 n, with GTIDs or without."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shmstore import Column, EntryType, Event, EventStore, EventType, Position, Row, TableSchema

TABLE = TableSchema("shop", "orders", (Column("id", "bigint", nullable=False),), (0,))


def mariadb(number: int) -> tuple[str, str]:
    """The GTID of a transaction, and the set with it."""
    return f"0-1-{number}", f"0-1-{number}"


def mysql(number: int) -> tuple[str, str]:
    """As MySQL has them, every third of another server."""
    servers = ("aaaaaaaa-1111-2222-3333-444444444444", "bbbbbbbb-1111-2222-3333-444444444444")
    counts = [0, 0]
    for each in range(1, number + 1):
        counts[each % 3 == 0] += 1
    mine = number % 3 == 0
    return f"{servers[mine]}:{counts[mine]}", ",".join(f"{name}:1-{n}" for name, n in zip(servers, counts, strict=True) if n)


def none(number: int) -> tuple[str, str]:
    """Of a server without GTIDs."""
    return f"binlog.000001:{1000 * number}", ""


def transaction(number: int, gtid: Callable[[int], tuple[str, str]] = mariadb, file: str = "binlog.000001") -> list[Event]:
    """BEGIN, a row with the transaction's number, END."""
    name, executed = gtid(number)
    offset, time_ms = 1000 * number, 1000 * number

    def event(entry: EntryType, end: int, gtids: str = "", **more: object) -> Event:
        return Event(entry, EventType.NONE, Position(file, offset + end, gtids), time_ms, 1, 100, transaction=name, **more)  # type: ignore[arg-type]

    row = event(EntryType.ROWS, 200, table=TABLE, rows=(Row(None, (number,)),))._replace(type=EventType.INSERT)
    return [event(EntryType.BEGIN, 100), row, event(EntryType.END, 300, executed)]


def put(
    store: EventStore, numbers: Iterable[int], gtid: Callable[[int], tuple[str, str]] = mariadb, file: str = "binlog.000001"
) -> None:
    for number in numbers:
        store.put(transaction(number, gtid, file), timeout=30)
