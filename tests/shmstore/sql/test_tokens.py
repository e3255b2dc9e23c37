"""SQL text as tokens."""

from __future__ import annotations

from itertools import product

import pytest

from shmstore.sql.tokens import SqlMode, Tokens, scan


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (
            "a 1 1.5 .5 1. 1e5 1.5E-3 -2",
            "word:a number:1 number:1.5 number:.5 number:1. number:1e5 number:1.5E-3 other:- number:2",
        ),
        ("1st 1e 5m 2@h", "word:1st word:1e word:5m word:2@h"),
        ("d.1 `d`.1t t1.5", "word:d other:. number:1 name:d other:. word:1t word:t1 other:. number:5"),
        ("x'4a' 0x4a 0x4g b'01' 0b01 0b2", "hex:x'4a' hex:0x4a word:0x4g bits:b'01' bits:0b01 word:0b2"),
        ("a--b -- c\n# d\n/* d */e/*!50100 f*/ /*M!100100 g */", "word:a other:- other:- word:b word:e word:f word:g"),
        ("`a``b` 'it''s' \"a\\\"b\" 'a\\nb\\%'", "name:a`b string:it's string:a\"b string:a\nb\\%"),
        ("größe ¤", "word:größe word:¤"),
    ],
)
def test_tokens(sql: str, wanted: str) -> None:
    """Names come unquoted, numbers whole, comments not at all; what is executed in a comment does."""
    assert " ".join(f"{token.kind}:{token.text}" for token in scan(sql)) == wanted


def test_nothing_is_read_before_it_is_asked_for() -> None:
    """Of a long statement only what is asked for is cut into tokens."""
    taken = 0

    def counted() -> object:
        nonlocal taken
        for token in scan("ALTER TABLE a.b ADD c INT"):
            taken += 1
            yield token

    tokens = Tokens(counted())  # type: ignore[arg-type]
    assert (tokens.accept_one("DROP", "ALTER"), tokens.accept("TABLE", "TABLE"), tokens.accept("TABLE"), taken) == (
        "ALTER",
        False,
        True,
        3,
    )
    assert tokens.table_name("d") == ("a", "b")
    assert [token.upper for token in tokens.rest()] == ["ADD", "C", "INT"]
    assert (tokens.take().text, tokens.left) == ("ADD", True)


@pytest.mark.parametrize("mode", [SqlMode(*on) for on in product((False, True), repeat=5)])
def test_a_mode_is_read_as_it_is_written(mode: SqlMode) -> None:
    """What a DDL event says of its session's sql_mode is what the producer knew."""
    assert SqlMode.named(str(mode)) == mode == SqlMode.of(mode.bits)
