"""shmstore/patterns/table_patterns.py: one grammar of patterns for the producer's filters, snapshots, `tail` and Spark."""

from __future__ import annotations

import subprocess

import pytest

from shmstore.patterns.table_patterns import FORMS, Patterns
from tests.shmstore.commands import COMMAND

NAMES = ["shop.orders", "shop.order_items", "shop.a.b", "shop.t1", "shop.t$1", "Crm.Log", "shopping.t2"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("*", NAMES),
        ("*.*", NAMES),
        ("shop.order*", ["shop.orders", "shop.order_items"]),
        ("shop.*,!shop.order_?tems, !*.t*", ["shop.orders", "shop.a.b"]),
        ("!shop.*", ["Crm.Log", "shopping.t2"]),
        ("!shop\\..*,!regex:Crm.*", ["shopping.t2"]),
        ("Crm.Log", ["Crm.Log"]),
        ("shop\\.(orders|a\\.b)", ["shop.orders", "shop.a.b"]),
        ("(shop|Crm)\\..*,!.*\\.t.?1", ["shop.orders", "shop.order_items", "shop.a.b", "Crm.Log"]),
        ("^shop.t.*", ["shop.t1", "shop.t$1", "shopping.t2"][:2]),
        ("*.t[12]", ["shop.t1", "shopping.t2"]),
        ("shop.[!ot]*", ["shop.a.b"]),
        ("shop.t$1", ["shop.t$1"]),
        ("shop.t$*", ["shop.t$1"]),
        ("glob:shop.[ot]*", ["shop.orders", "shop.order_items", "shop.t1", "shop.t$1"]),
        ("regex:shop.*t.", ["shop.t1", "shopping.t2"]),
    ],
)
def test_what_matches(text: str, wanted: list[str]) -> None:
    """Globs and regular expressions are distinguished by their form, ! leaves out, and a table's own name always means it."""
    patterns = Patterns.of_tables(text)
    assert [name for name in NAMES if patterns.match(name)] == wanted
    assert patterns.everything == (text == "*")


def test_case() -> None:
    """The producer's patterns take names in any case of letters, a reader's as they are written."""
    for text in ("crm.log", "crm\\.log", "!shop*,!SHOPPING.*"):
        assert [name for name in NAMES if Patterns.parse(text).match(name)] == ["Crm.Log"]
    assert not Patterns.of_tables("crm.log,crm\\.log").match("Crm.Log")


def test_nothing_matches_no_pattern() -> None:
    """An empty list differs from one that leaves tables out."""
    assert not Patterns.parse(())
    assert not Patterns.parse(" , ").match("a.b")
    assert Patterns.parse(["!a.b", "!c.*"]).match("d.e")


@pytest.mark.parametrize(
    ("text", "one"), [("a.b", "a.b"), ("glob:a.b", "a.b"), ("a.b,!c.*", "a.b"), ("a.?", ""), ("a\\.b", ""), ("a.b,c.d", "")]
)
def test_one_table(text: str, one: str) -> None:
    """Whether a list names exactly one table is known."""
    assert Patterns.parse(text).one == one


def test_databases() -> None:
    """Which databases may hold a table that matches is never too few."""
    for text in ("shop.*", "*.x", "*", "sh*.x", "Shop.x", "(shop|crm)\\.x", "!a.b"):
        assert Patterns.parse(text).match_some_of("shop"), text
    assert not Patterns.parse("crm.*,shopping.x").match_some_of("shop")


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "no table pattern"), ("a.b,orders", "'orders' is not DATABASE.TABLE"), ("!log", "'!log'"), ("a(.b", "is no regular")],
)
def test_what_is_no_pattern(text: str, says: str) -> None:
    """The error quotes the pattern and shows how one looks."""
    with pytest.raises(ValueError, match=says):
        Patterns.of_tables(text)


@pytest.mark.parametrize("command", ["produce", "snapshot", "tail", "spark replicate"])
def test_help_says_the_same_everywhere(command: str) -> None:
    """Each command that takes patterns says in the same words what one is."""
    done = subprocess.run([*COMMAND, *command.split(), "--help"], capture_output=True, text=True, check=True)
    assert FORMS in " ".join(done.stdout.split())


def test_matching_takes_bounded_time() -> None:
    """A pattern that a backtracking matcher never gets done with is matched at once, or refused: names come from a server."""
    name = "shop." + "a" * 64
    assert not Patterns.of_tables("regex:shop.(a+)+b").match(name)
    assert not Patterns.of_tables("glob:shop." + "*a" * 40 + "*b").match(name)
    assert not Patterns.of_tables("shop.(?i)A+").match("shop.aab")
    assert Patterns.of_tables("(?i)SHOP.A+").match(name)
    with pytest.raises(ValueError, match="allowed are 32768"):
        Patterns.of_tables("shop." + "a" * 40_000)
