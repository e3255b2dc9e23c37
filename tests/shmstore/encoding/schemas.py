"""Schemas that are none: what damage or another program left in a store."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgpack

from shmstore.event import Column, TableSchema

TABLE = TableSchema(
    "shop",
    "orders",
    (
        Column("id", "bigint", unsigned=True, nullable=False),
        Column("note", "varchar", size=80, charset="utf8mb4"),
        Column("state", "enum", charset="utf8mb4", members=("new", "paid")),
        Column("amount", "decimal", size=12, scale=2),
        Column("flags", "bit", size=12),
        Column("at", "datetime", scale=6),
    ),
    (0,),
)
ROW: list[Any] = [1, "note 1", "new", "12.30", 5, 1_700_000_000_000_000]
_STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    3,
    7,
    255,
    2**32,
    2**64 - 1,
    -(2**63),
    1.5,
    "",
    "bigint",
    b"\xff",
    [],
    [0],
    ["x"],
    [[]],
    {},
    {"a": 1},
]


def parts(table: TableSchema = TABLE) -> list[Any]:
    """The schema as its bytes hold it, with what a definition says."""
    columns = [list(column[:-1]) for column in table.columns]
    return [
        table.database,
        table.table,
        columns,
        list(table.primary_key),
        [column.definition for column in table.columns],
        table.unique_key,
        0,
    ]


def packed(held: list[Any]) -> bytes:
    """The bytes of `parts`."""
    made: bytes = msgpack.packb(held)
    return made


WRONG: dict[str, tuple[list[Any], str]] = {
    name: ([*parts()[:at], value, *parts()[at + 1 :]], says)
    for name, at, value, says in (
        ("key beyond the columns", 3, [6], "primary_key"),
        ("key far beyond", 3, [2**64 - 1], "primary_key"),
        ("negative key", 3, [-1], "primary_key"),
        ("key twice", 3, [0, 1, 0], "primary_key"),
        ("key as text", 3, ["id"], "primary_key"),
        ("key as a list", 3, [[0]], "primary_key"),
        ("key as a number", 3, 7, ""),
        ("key as nil", 3, None, ""),
        ("name as a number", 1, 7, "table is 7"),
        ("database as bytes", 0, b"shop", "database is"),
        ("unique as text", 5, "yes", "unique_key is"),
        ("a definition as a number", 4, [7, "", "", "", "", ""], "definition of column 0"),
        ("too few definitions", 4, [""], ""),
        ("columns as nil", 2, None, ""),
        ("columns as texts", 2, ["id", "note"], ""),
        ("a column of two fields", 2, [["id", "int"]], ""),
    )
}
WRONG |= {
    f"{name} of a column": ([*parts()[:2], [[*column[:at], value, *column[at + 1 :]], *parts()[2][1:]], *parts()[3:]], says)
    for column in (parts()[2][0],)
    for name, at, value, says in (
        ("name", 0, 7, "name of column 0"),
        ("type", 1, ["int"], "type of column 0"),
        ("unsigned", 2, "yes", "unsigned of column 0"),
        ("size", 4, 2**64 - 1, "size"),
        ("negative size", 4, -1, "size"),
        ("scale", 5, 2**31, "scale"),
        ("charset", 6, None, "charset of column 0"),
        ("members", 7, [7], "member of column 0"),
        ("members as a number", 7, 2**40, ""),
    )
}
WRONG["bits"] = (
    [*parts()[:2], [*parts()[2][:4], ["flags", "bit", False, True, 2**31, 0, "", []], parts()[2][5]], *parts()[3:]],
    "size",
)


def damaged(chance: random.Random, count: int) -> Iterator[bytes]:
    """Schemas with fields of other types, left out, or added; some are schemas still."""
    for _ in range(count):
        held = parts()
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            place: list[Any] = held
            while True:
                at = chance.randrange(len(place))
                if isinstance(place[at], list) and place[at] and chance.random() < 0.7:
                    place = place[at]
                    continue
                break
            how = chance.randrange(6)
            if how < 4:
                place[at] = deepcopy(chance.choice(_STRANGE))
            elif how == 4:
                del place[at]
            else:
                place.insert(at, deepcopy(chance.choice(_STRANGE)))
            if not place or not held:
                break
        yield packed(held)
