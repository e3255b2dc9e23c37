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


def test_long_text_and_characters_of_many_bytes(seed: int) -> None:
    """The same of texts and words that are looked for many bytes at a time, at any place of a text, and where a character has several bytes."""
    rng = random.Random(seed)
    for _ in range(5000):
        letters = rng.choice(("ab", "aä", "äö世丗😀😁", "abäö世丗😀😁"))
        text = "".join(rng.choices(letters, k=rng.randrange(70)))
        at = rng.randrange(len(text) + 1)
        word = text[at : at + rng.choice((1, 2, 3, 5, 17, 40))]
        if rng.random() < 0.5:
            word += rng.choice(letters)
        if rng.random() < 0.3:
            word = "".join("_" if rng.random() < 0.2 else char for char in word)
        pattern = rng.choice(("", "%", "%", "%", rng.choice(letters) + "%")) + word + rng.choice(("", "%", "%", "%_", "%%"))
        regex = "".join({"%": ".*", "_": "."}.get(sign, sign) for sign in pattern)
        wanted = re.fullmatch(regex, text, re.DOTALL) is not None
        assert _like(pattern)(text) is wanted, (pattern, text)
        assert compiled_like(pattern, text) in (wanted, None), (pattern, text)


def compiled_like(pattern: str, text: str) -> bool | None:
    """What compiled code says; None where there is none."""
    if not COMPILED:
        return None
    schema = TableSchema("shop", "t", (Column("v", "text", charset="utf8mb4"),))
    bound = bind(Comparison("v", "LIKE", (pattern,)), schema)
    (found,) = compiled.Condition(steps_of(bound, schema)).tried(pack([[text]]))
    return bool(found)
