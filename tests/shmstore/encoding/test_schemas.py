"""Table schemas (shmstore/encoding/codec.py, row_check.py): what is none is refused where it is put, and where it is read."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from shmstore.encoding.codec import decode_schema, encode, encode_schema
from shmstore.errors import StoreCorrupt
from shmstore.event import Column, EntryType, Event, EventType, Position, Row, TableSchema
from tests.shmstore.encoding.schemas import TABLE, WRONG, damaged, packed, parts


def test_one_that_is_right() -> None:
    """What the others are made of is a schema, with and without what only a definition says."""
    assert decode_schema(packed(parts())) == TABLE
    assert decode_schema(packed(parts()[:4])) == TABLE
    assert decode_schema(encode_schema(TABLE)) == TABLE


@pytest.mark.parametrize("case", WRONG)
def test_one_that_is_wrong(case: str) -> None:
    """The error is that of a damaged store, and says what is wrong."""
    held, says = WRONG[case]
    with pytest.raises(StoreCorrupt, match=f"table schema of .* cannot be read: .*{says}"):
        decode_schema(packed(held))


def test_damaged_ones(seed: int) -> None:
    """Each is refused, or is a schema that could have been put."""
    read = refused = 0
    for blob in damaged(random.Random(seed), 4000):
        try:
            found = decode_schema(blob)
        except StoreCorrupt:
            refused += 1
        else:
            read += 1
            assert decode_schema(encode_schema(found)) == found
    assert read > 100
    assert refused > 1000


@pytest.mark.parametrize(
    ("kind", "says", "key", "column"),
    [
        (
            ValueError,
            r"primary_key is \(1,\), and there are 1 columns: give indexes of columns, each once",
            (1,),
            Column("id", "int"),
        ),
        (ValueError, r"primary_key is \(-1,\)", (-1,), Column("id", "int")),
        (ValueError, r"primary_key is \(0, 0\)", (0, 0), Column("id", "int")),
        (TypeError, "primary_key is 'id', a str: it is a int", ("id",), Column("id", "int")),
        (TypeError, "name of column 0 is 7, a int: it is a str", (0,), Column(7, "int")),  # type: ignore[arg-type]
        (ValueError, "size -1 and scale 0", (0,), Column("id", "int", size=-1)),
    ],
)
def test_one_of_ones_own(kind: type[Exception], says: str, key: Sequence[int], column: Column) -> None:
    """An event with such a table is refused before it is stored, with what to give."""
    table = TableSchema("shop", "orders", (column,), tuple(key))
    event = Event(EntryType.ROWS, EventType.INSERT, Position("b.1", 4), 5, table=table, rows=(Row(None, (1,)),))
    with pytest.raises(kind, match=says):
        encode(event)
