"""shmstore.consumer.copies.reading.stored_values: an Arrow column as the stored values that its Python values have."""

from __future__ import annotations

import random
from decimal import Decimal, localcontext

import pyarrow as pa
import pytest

from shmstore.consumer.copies.reading.stored_values import stored, stored_column
from shmstore.event import Column


def test_decimals_of_every_scale(seed: int) -> None:
    """A DECIMAL's digits are written out, also where Arrow writes 1E-7."""
    chance = random.Random(seed)
    with localcontext() as context:
        context.prec = 80
        for scale in range(31):
            for size in {max(1, scale), 38, 65}:
                kind = pa.decimal128(size, scale) if size <= 38 else pa.decimal256(size, scale)
                digits = [chance.choice((1, -1)) * chance.randrange(10 ** chance.randrange(1, size + 1)) for _ in range(60)]
                values = [
                    None,
                    Decimal(0).scaleb(-scale),
                    Decimal(1).scaleb(-scale),
                    *[Decimal(each).scaleb(-scale) for each in digits],
                ]
                found = stored_column(Column("c", "decimal", size=size, scale=scale), pa.array(values, kind))
                assert found == [None if each is None else format(each, "f") for each in values]


@pytest.mark.parametrize("unsigned", [False, True])
def test_integers_that_are_kept_as_decimals(seed: int, unsigned: bool) -> None:
    """A BIGINT in a DECIMAL(20, 0) is its integer; one that the column cannot hold is the integer all the same, which equals nothing of the source."""
    chance = random.Random(seed)
    column = Column("n", "bigint", unsigned=unsigned)
    low, high = (0, 2**64) if unsigned else (-(2**63), 2**63)
    values = [None, low, high - 1, *[chance.randrange(low, high) for _ in range(50)]]
    array = pa.array([None if each is None else Decimal(each) for each in values], pa.decimal128(20, 0))
    assert stored_column(column, array) == values
    beyond = pa.array([Decimal(high), Decimal(low - 1)], pa.decimal128(20, 0))
    assert stored_column(column, beyond) == [stored(column)(each) for each in beyond.to_pylist()] == [high, low - 1]
