"""shmstore/patterns/linear_regex.py: expressions matched in bounded time, compared with Python's `re`."""

from __future__ import annotations

import random
import re
from contextlib import suppress

import pytest

from shmstore.patterns.linear_regex import DEEPEST, Name, PatternRefused, compile_pattern

LONG = "a" * 64 + "." + "a" * 64


def expression(rng: random.Random, depth: int = 0) -> str:
    """Any expression of what is understood."""

    def part() -> str:
        return expression(rng, depth + 1)

    kind = rng.random()
    if depth > 3 or kind < 0.4:
        return rng.choice(
            ["a", "b", "A", ".", r"\.", r"\w", "[ab]", "[^a]", "[a-c.]", "[]a]", r"[^\]a]", r"\d", "_", "é", r"\x61", "{", "-"]
        )
    if kind < 0.6:
        return part() + part()
    if kind < 0.7:
        return rng.choice(["(", "(?:", f"(?P<n{rng.getrandbits(40)}>"]) + part() + "|" + part() + ")"
    if kind < 0.75:
        return rng.choice(["(?=", "(?!"]) + part() + ")" + part()
    if kind < 0.78:
        return rng.choice(["^", "$", r"\b", r"\B", r"\A", r"\Z"])
    times = rng.choice(["*", "+", "?", "{2}", "{1,2}", "{,2}", "{1,}", "*?", "+?", "{1,2}?"])
    return f"(?:{part()}){times}" if kind < 0.95 else rng.choice("ab.") + times


def test_like_re(seed: int) -> None:
    """Every expression that is understood matches the names that Python's `re` says, in any case of letters and not."""
    rng = random.Random(seed)
    for _ in range(2000):
        text = expression(rng)
        any_case = rng.random() < 0.5
        reference = re.compile(text, re.DOTALL | (re.IGNORECASE if any_case else 0))
        matches = compile_pattern(text, any_case=any_case)
        for _ in range(4):
            name = "".join(rng.choices("abAB._1cÉ]{-", k=rng.randrange(1, 8)))
            assert matches(Name(name)) is (reference.fullmatch(name) is not None), (text, name)


@pytest.mark.parametrize(
    "text",
    [
        r"(a+)+\.x",
        r"(a|a)*\.x",
        r"(a|aa)+$x",
        r"(.*)*b",
        ".*" * 30 + "x",
        "(" * 7 + "a" + ")*" * 7 + "x",
        r"(((a{1,60}){1,60}){1,60}){1,60}x",
        r"(?:(?=(?:(?=.*)a*)*)a*)*x",
        "(" + "|".join("a" * i for i in range(1, 200)) + ")*x",
        "(" + "|" * 3000 + ")*x",
    ],
)
def test_bounded(text: str) -> None:
    """What takes a backtracking engine years is answered, or given up with the name, after so many steps."""
    name = Name(LONG)
    matched = None
    with suppress(PatternRefused):
        matched = compile_pattern(text)(name)
    assert matched is (None if name.steps < 0 else False)
    assert name.steps > -1000


@pytest.mark.parametrize(
    "text",
    [
        "(", ")", "a)", "*", "a**", "a{2}{3}", "a{2,1}", "^*", r"\b+", "(?i)*", "[z-a]", "[", "[]", "[^]", "a\\", r"(a)\1", r"\07", r"\q",
        r"\x6", "(?<=a)b", "(?<!a)b", "(?>a)", "a*+", "(?P=n)", "(?(1)a|b)", "(?#c)", "a|*", "(?", "[\\q]", "(" * (DEEPEST + 1) + ")" * (DEEPEST + 1),
    ],
)  # fmt: skip
def test_refused(text: str) -> None:
    """What is no expression, or says something that is not understood, is refused in one line; it is never taken for something else."""
    with pytest.raises(PatternRefused) as refusal:
        compile_pattern(text)
    assert "\n" not in str(refusal.value)
    assert repr(text[:20])[:-1] in str(refusal.value)


def test_any_case() -> None:
    """Letters match in any case, in classes too; a negative class refuses a letter in any case."""
    for text, name, wanted in (
        ("É[a-c]", "éB", True),
        ("[A-C]", "b", True),
        ("[^a]", "A", False),
        ("[^a]", "b", True),
        ("(?i)a", "A", True),
        ("ß", "ß", True),
    ):
        assert compile_pattern(text)(Name(name)) is wanted
