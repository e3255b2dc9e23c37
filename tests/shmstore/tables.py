"""Tables with every type, and random rows in stored form, for the tests of Arrow and of compiled columns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from shmstore import Column, EntryType, EventType, TableSchema
from shmstore.encoding.codec import Header, encode_schema, encode_stored

DAY, MOMENT = 86_400, 86_400 * 10**6
ALL = TableSchema(
    "d",
    "everything",
    (
        Column("i8", "tinyint"),
        Column("u8", "tinyint", unsigned=True),
        Column("i16", "smallint"),
        Column("u16", "smallint", unsigned=True),
        Column("i24", "mediumint"),
        Column("i32", "int"),
        Column("u32", "int", unsigned=True),
        Column("i64", "bigint", nullable=False),
        Column("u64", "bigint", unsigned=True),
        Column("y", "year"),
        Column("bit", "bit", size=9),
        Column("bit64", "bit", size=64),
        Column("amount", "decimal", size=12, scale=2),
        Column("wide", "decimal", size=38, scale=10),
        Column("whole", "decimal", size=20),
        Column("huge", "decimal", size=65, scale=30),
        Column("f", "float"),
        Column("x", "double"),
        Column("day", "date"),
        Column("at", "datetime", scale=6),
        Column("seen", "timestamp", scale=3),
        Column("took", "time", scale=1),
        Column("name", "varchar", size=400, charset="utf8mb4"),
        Column("kind", "enum", members=("a", "ö")),
        Column("doc", "json"),
        Column("id", "uuid"),
        Column("raw", "varbinary", size=300),
        Column("shape", "geometry"),
    ),
    (7,),
)
NARROW = TableSchema("d", "narrow", (Column("id", "int"), Column("note", "varchar", charset="utf8mb4")), (0,))


def _digits(chance: random.Random, precision: int, scale: int) -> str:
    whole = str(chance.randrange(10 ** chance.randint(1, precision - scale))) if precision > scale else "0"
    after = f".{chance.randrange(10**scale):0{scale}}" if scale else ""
    return chance.choice(["", "-"]) + whole + after


def _text(chance: random.Random, size: int) -> str:
    return "".join(chance.choices("abcdefghij klm\x00\x7fäß\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff", k=size))


def value(chance: random.Random, column: Column) -> Any:
    """A stored value that `column` can have, at its edges more often than not."""
    kind, bits = column.type, {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}.get(column.type)
    if bits:
        low, high = (0, 2**bits - 1) if column.unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return chance.choice(
            [low, high, min(high, max(low, chance.choice([0, -1, -32, -33, 127, 128, 255, 256]))), chance.randint(low, high)]
        )
    if kind == "bit":
        return chance.choice([0, 2**column.size - 1, chance.randrange(2**column.size)])
    if kind == "decimal":
        return _digits(chance, column.size, column.scale)
    size = chance.choice([0, 1, 5, 31, 32, 200, 300])
    kinds = {
        "year": lambda: chance.choice([0, 1901, 2155]),
        "float": lambda: chance.choice([0.0, -0.0, 1.5, 3.4028234663852886e38, 1e-45]),
        "double": lambda: chance.choice([0.0, 1.7976931348623157e308, 5e-324, chance.gauss(0, 1e9)]),
        "date": lambda: chance.choice([0, -354285, 2932896, chance.randint(-354285, 2932896)]),
        "datetime": lambda: chance.randint(-354285 * MOMENT, 2932896 * MOMENT),
        "timestamp": lambda: chance.randint(1, 2**31 * 10**6),
        "time": lambda: chance.randint(-839 * 3600 * 10**6, 839 * 3600 * 10**6),
        "enum": lambda: chance.choice(column.members),
        "uuid": lambda: "123e4567-e89b-12d3-a456-426655440000",
        "varbinary": lambda: chance.randbytes(size),
        "geometry": lambda: chance.randbytes(size),
    }
    return kinds.get(kind, lambda: _text(chance, size))()


def row(chance: random.Random, table: TableSchema) -> list[Any]:
    """A row of `table` in stored form, with NULLs."""
    return [None if column.nullable and chance.random() < 0.1 else value(chance, column) for column in table.columns]


def rows_event(
    number: int,
    type_: EventType,
    before: Sequence[Any] | None,
    after: Sequence[Any] | None,
    table: TableSchema = ALL,
    columns: Sequence[int] | None = None,
) -> bytes:
    """The payload of a rows event whose images, in stored form, have the `columns` (None: all)."""
    here = f"binlog.{7 + number // 50:06}"
    header = Header(int(EntryType.ROWS), int(type_), here, 1000 + 100 * number, 90, 1_700_000_000_000 + number, 3, f"0-3-{number // 3}",
              1 + number % 3, 0, "", number % 2 * 500, table.database, "", {"xid": "5"})  # fmt: skip
    body = [columns if before is not None else None, before, columns if after is not None else None, after]
    return encode_stored(header, encode_schema(table), body)


def other_event(number: int, entry: EntryType, sql: str = "") -> bytes:
    """The payload of an event without rows."""
    header = Header(
        int(entry), 0, "binlog.000007", 1000 + 100 * number, 90, 1_700_000_000_000, 3, "t", 0, 0, "0-3-1", 0, "d", sql, {}
    )
    return encode_stored(header, None, None)


def random_events(chance: random.Random, count: int, table: TableSchema = ALL) -> list[bytes]:
    """Transactions of inserts, updates, deletes and snapshot rows, single rows and many."""
    payloads = []
    for number in range(count):
        type_ = chance.choice([EventType.INSERT, EventType.UPDATE, EventType.DELETE, EventType.READ])
        rows = chance.choice([1, 1, 2, 20])
        before = [row(chance, table) for _ in range(rows)] if type_ in (EventType.UPDATE, EventType.DELETE) else None
        after = [row(chance, table) for _ in range(rows)] if type_ is not EventType.DELETE else None
        payloads.append(rows_event(number, type_, before, after, table))
        if chance.random() < 0.3:
            payloads.append(other_event(number, chance.choice([EntryType.BEGIN, EntryType.END])))
    return payloads
