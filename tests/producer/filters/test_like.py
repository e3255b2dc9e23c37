"""shmstore.producer.filters.condition: LIKE, compared with a regular expression."""

from __future__ import annotations

import random
import re

from shmstore.encoding.codec import pack
from shmstore.event import Column, TableSchema
from shmstore.producer.filters.condition import _like, bind
from shmstore.producer.filters.condition_steps import steps_of
from shmstore.producer.filters.condition_tree import Comparison
from shmstore.producer.native_code import COMPILED, compiled


def test_like_is_as_a_regular_expression_and_takes_bounded_time(seed: int) -> None:
    """LIKE is true where the whole text fits, whatever stands where; a pattern of many % does not take long on a long text."""
    rng = random.Random(seed)
    signs = {"%": ".*", "_": "."}
    for _ in range(5000):
        pattern = "".join(rng.choices("ab%_\n", k=rng.randrange(7)))
        text = "".join(rng.choices("ab\n", k=rng.randrange(8)))
        regex = "".join(signs.get(sign, re.escape(sign)) for sign in pattern)
        wanted = re.fullmatch(regex, text, re.DOTALL) is not None
        assert _like(pattern)(text) is wanted, (pattern, text)
        assert compiled_like(pattern, text) in (wanted, None), (pattern, text)
    for pattern in ("%a" * 40 + "%b", "%a" * 40 + "%b%", "%" + "_a" * 40 + "b"):
        assert not _like(pattern)("a" * 100_000)
        assert not compiled_like(pattern, "a" * 100_000)


def compiled_like(pattern: str, text: str) -> bool | None:
    """What compiled code says; None where there is none."""
    if not COMPILED:
        return None
    schema = TableSchema("shop", "t", (Column("v", "text", charset="utf8mb4"),))
    bound = bind(Comparison("v", "LIKE", (pattern,)), schema)
    (found,) = compiled.Condition(steps_of(bound, schema)).tried(pack([[text]]))
    return bool(found)
