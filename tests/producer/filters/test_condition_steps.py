"""shmstore.producer.filters.condition_steps: compiled code says of each row what Python says, or leaves it to Python."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest

from shmstore.encoding.codec import pack
from shmstore.event import Column, TableSchema
from shmstore.producer.filters.condition import bind
from shmstore.producer.filters.condition_parser import parse
from shmstore.producer.filters.condition_steps import steps_of
from shmstore.producer.native_code import COMPILED, compiled

pytestmark = pytest.mark.skipif(not COMPILED, reason="of the compiled code")

LETTERS = ["a", "A", "ä", "ß", " ", "%", "_", "\\", "'", "世", "😀"]
EDGES = [0, 1, -1, 127, 128, -128, -129, 255, 256, 65535, 65536, 2**31, -(2**31), 2**32, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]
COLUMNS = {
    "i": Column("i", "bigint"),
    "u": Column("u", "bigint", unsigned=True),
    "b": Column("b", "bit", size=64),
    "y": Column("y", "year"),
    "d": Column("d", "decimal", size=18, scale=4),
    "x": Column("x", "double"),
    "f": Column("f", "float"),
    "v": Column("v", "varchar", charset="utf8mb4"),
    "e": Column("e", "enum", members=("a", "ä", "")),
    "r": Column("r", "varbinary"),
    "da": Column("da", "date"),
    "dt": Column("dt", "datetime", size=6),
    "ti": Column("ti", "time", size=6),
}
SCHEMA = TableSchema("shop", "t", tuple(COLUMNS.values()))


def text(chance: random.Random, most: int = 4) -> str:
    return "".join(chance.choices(LETTERS, k=chance.randint(0, most)))


def quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def value(chance: random.Random, name: str) -> Any:
    """A value of a column in stored form, often one of the edges."""
    if chance.random() < 0.1:
        return None
    if name in ("i", "u", "b"):
        low, high = (-(2**63), 2**63) if name == "i" else (0, 2**64)
        return chance.choice(
            [each for each in EDGES if low <= each < high] + [chance.randrange(low, high), chance.randrange(0, 5)]
        )
    day = chance.randrange(-3, 3)
    made: dict[str, Any] = {
        "y": chance.choice((0, 1901, 2155)),
        "d": format(
            Decimal(chance.choice((1, -1)) * chance.choice((0, 1, 5000, 10**18 - 1, chance.randrange(10**18)))).scaleb(-4), ".4f"
        ),
        "x": chance.choice((0.0, -0.0, 0.1, 1.5, -2.5, 1e300, 5e-324, chance.gauss(0, 1))),
        "f": chance.choice((0.0, 0.1, 1.5, -2.25, 3.4e38)),
        "v": text(chance),
        "e": chance.choice(("a", "ä", "")),
        "r": text(chance).encode(),
        "da": chance.choice((day, "0000-00-00", "2024-02-31")),
        "dt": chance.choice((day * 86_400_000_000 + chance.randrange(3), "0000-00-00 00:00:00.000000")),
        "ti": chance.choice((0, 1, -1, 3_600_000_000, -3_600_000_000)),
    }
    return made[name]


def literal(chance: random.Random, name: str) -> str:
    """A literal for a column: a value of it, or one near."""
    if name in ("i", "u", "b", "y", "d"):
        near = chance.choice([*EDGES, 2**64, -(2**63) - 1, 2**70, 1901, 10**14, chance.randrange(5)])
        return f"{near}{chance.choice(('', '.5', '.0001', '.0000', '.00005', '.' + '9' * 40))}"
    if name in ("x", "f"):
        return chance.choice(("0", "0.1", "1.5", "-2.5", "-2.25", "1e300", "0.10000000149011612"))
    day = chance.choice(("1969-12-31", "1970-01-01", "1970-01-02", "0001-01-01", "9999-12-31"))
    return {
        "v": quoted(text(chance)),
        "e": chance.choice(("'a'", "'ä'", "''")),
        "r": f"x'{text(chance).encode().hex() or '00'}'",
        "da": f"'{day}'",
        "dt": f"'{day}{chance.choice(('', ' 00:00:00', ' 00:00:00.000001'))}'",
        "ti": chance.choice(("'00:00:00'", "'-00:00:00.000001'", "'01:00:00'", "'-838:59:59'")),
    }[name]


def condition(chance: random.Random, depth: int = 2) -> str:
    if depth and chance.random() < 0.5:
        sign = chance.choice((" AND ", " OR "))
        return (
            chance.choice(("", "NOT ")) + "(" + sign.join(condition(chance, depth - 1) for _ in range(chance.randint(1, 3))) + ")"
        )
    name, negated = chance.choice(list(COLUMNS)), chance.choice(("", "NOT "))
    form = chance.choice(("=", "<>", "IN", "IS") if name == "e" else ("=", "<>", "<", "<=", ">", ">=", "IN", "BETWEEN", "IS"))
    if form == "IS":
        return f"{name} IS {negated}NULL"
    if name in ("v", "e") and chance.random() < 0.4:
        return f"{name} {negated}LIKE {quoted(text(chance, 6) + chance.choice(('', '%', '_')))}"
    if form == "IN":
        return f"{name} {negated}IN ({', '.join(literal(chance, name) for _ in range(chance.randint(1, 3)))})"
    if form == "BETWEEN":
        return f"{name} {negated}BETWEEN {literal(chance, name)} AND {literal(chance, name)}"
    return f"{name} {form} {literal(chance, name)}"


def test_the_same_rows_as_in_python(seed: int) -> None:
    """True, false and unknown of the same rows, at the edges of what a column holds; what a value leaves to Python is one that is no time."""
    chance, tried, left = random.Random(seed), 0, 0
    for _ in range(600):
        said = condition(chance)
        bound = bind(parse(said), SCHEMA)
        steps = steps_of(bound, SCHEMA)
        assert steps is not None, said
        made = compiled.Condition(steps)
        for row in [[value(chance, name) for name in COLUMNS] for _ in range(12)]:
            try:
                assert made.tried(pack([row])) == [bound.test(row)], (said, row)
                tried += 1
            except ValueError:
                left += 1
                assert any(isinstance(row[i], str) and SCHEMA.columns[i].type in ("date", "datetime") for i in bound.columns), (
                    said,
                    row,
                )
    assert tried > 4 * left


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (Column("c", "decimal", size=19, scale=2), "c > 1"),
        (Column("c", "decimal", scale=2), "c > 1"),
        (Column("c", "bigint"), "c > 1e300"),
    ],
)
def test_what_is_left_to_python(column: Column, said: str) -> None:
    """Numbers of more digits than a machine's word has are Python's."""
    schema = TableSchema("shop", "t", (column,))
    assert steps_of(bind(parse(said), schema), schema) is None
