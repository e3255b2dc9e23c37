"""Texts of conditions: what they mean, and the errors of those that mean nothing."""

from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shmstore import Column, TableSchema, UnsupportedEvent
from shmstore.producer.errors import PatternError
from shmstore.producer.filters.condition import bind
from shmstore.producer.filters.condition_parser import parse
from shmstore.producer.filters.condition_tree import Both, Comparison, Either, Not
from shmstore.producer.filters.table_filter import TableFilter, read_row_filter


def test_precedence_and_forms() -> None:
    """NOT before AND before OR; names in backticks, both kinds of quotes, comments as in SQL."""
    a, b, c = (Comparison(name, "=", (Decimal(1),)) for name in ("a", "b", "c"))
    assert parse("a = 1 OR b = 1 AND NOT c = 1") == Either((a, Both((b, Not(c)))))
    assert parse("(a = 1 or b=1) and not (c = 1)") == Both((Either((a, b)), Not(c)))
    assert parse("`from` <> 'it''s'") == Comparison("from", "<>", ("it's",))
    assert parse('x != "DE"') == Comparison("x", "<>", ("DE",))
    assert parse("x NOT IN (-1, 2.5, x'0aff', TRUE)") == Not(
        Comparison("x", "IN", (Decimal(-1), Decimal("2.5"), b"\x0a\xff", Decimal(1)))
    )
    assert parse("x BETWEEN 1 AND 2 AND y IS NOT NULL") == Both(
        (Comparison("x", "BETWEEN", (Decimal(1), Decimal(2))), Not(Comparison("y", "IS NULL", ())))
    )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("lower(x) = 1", 6),
        ("x == 1", 3),
        ("x =", 4),
        ("x = y", 5),
        ("x = NULL", 5),
        ("x LIKE 'a", 8),
        ("x LIKE 1", 8),
        ("x = 1 y = 2", 7),
        ("x IN (1", 8),
        ("x IN ()", 7),
        ("x NOT = 1", 7),
        ("5 < x", 1),
        ("'x' = 1", 1),
        ("x = 1; DROP TABLE t", 6),
        ("x < = 1", 5),
        ("(x = 1", 7),
        ("", 1),
        ("NOT", 4),
        ("x = -'a'", 6),
        ("x = 1e9999", 5),
        ("NOT " * 51 + "x = 1", 201),
    ],
)
def test_errors_say_where(text: str, place: int) -> None:
    """What cannot be read is refused with the character where it stops making sense."""
    with pytest.raises(PatternError, match=rf"at character {place} belongs "):
        parse(text)


@given(st.text("ax=<>!'\"()`, 1.-%_\\NOTANDORISLIKEUL\n/*#é\0", max_size=40))
@example("(" * 5000)
@example("NOT " * 5000)
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes the parser fail in another way."""
    with contextlib.suppress(PatternError):
        parse(text)


COLUMNS = (
    Column("id", "int"),
    Column("country", "varchar", charset="utf8mb4"),
    Column("kind", "enum", charset="utf8mb4", members=("a", "b")),
    Column("day", "date"),
    Column("body", "json"),
    Column("raw", "varbinary"),
    Column("size", "double"),
    Column("at", "time"),
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("contry = 'DE'", "no column 'contry'.*did you mean.*country"),
        ("country = 5", "with a string, in quotes"),
        ("id = '5'", "with a number, without quotes"),
        ("kind < 'b'", "no order"),
        ("day = '2026-02-30'", "day is out of range|out of range"),
        ("day = '2026-02-03 10:00:00'", "with a date"),
        ("body = '{}'", "only IS NULL"),
        ("raw = 5", "with bytes"),
        ("raw LIKE 'a%'", "LIKE is for text"),
        ("size = 1e400", "larger than a DOUBLE"),
        ("at = '10:00'", "with a span"),
    ],
)
def test_what_does_not_fit_a_table_is_refused(text: str, what: str) -> None:
    """A comparison that could not be the server's is refused, with what is possible."""
    with pytest.raises(UnsupportedEvent, match=rf"(?s)table shop\.t as it is here: .*({what})"):
        bind(parse(text), TableSchema("shop", "t", COLUMNS))


def test_filters_of_tables() -> None:
    """TABLES: CONDITION, where a colon in the condition is part of it; several filters of one table hold together."""
    schema = TableSchema("shop", "t", COLUMNS)
    both = TableFilter(row_filter=["shop.*: id > 1", "*.t: country = 'a:b'", "shop.u: no = 1"]).condition(schema, b"1")
    assert both is not None
    rows = [[i, text, *[None] * 6] for i in (1, 2) for text in ("a:b", "A:b", "a:b ", None)]
    assert [row[:2] for row in rows if both.test(row) is True] == [[2, "a:b"]]
    assert TableFilter(row_filter=["shop.u: no = 1"]).condition(schema, b"1") is None
    for text in ("id = 1", "shop.t:", ": id = 1"):
        with pytest.raises(PatternError, match="is not TABLES: CONDITION"):
            read_row_filter(text)
