"""shmstore.producer.filters.condition: LIKE, beside a regular expression."""

from __future__ import annotations

import random
import re

from shmstore.producer.filters.condition import _like


def test_like_is_as_a_regular_expression_and_takes_bounded_time(seed: int) -> None:
    """LIKE is true where the whole text fits, whatever stands where; a pattern of many % does not take long on a long text."""
    rng = random.Random(seed)
    signs = {"%": ".*", "_": "."}
    for _ in range(5000):
        pattern = "".join(rng.choices("ab%_\n", k=rng.randrange(7)))
        text = "".join(rng.choices("ab\n", k=rng.randrange(8)))
        regex = "".join(signs.get(sign, re.escape(sign)) for sign in pattern)
        assert _like(pattern)(text) is (re.fullmatch(regex, text, re.DOTALL) is not None), (pattern, text)
    assert not _like("%a" * 40 + "%b")("a" * 100_000)
