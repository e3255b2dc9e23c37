"""Rules that give tables another name: what they match, what they make, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from shmstore import Column, UnsupportedEvent, producer
from shmstore.producer.errors import PatternError, SettingsError
from shmstore.producer.filters.changed import TablesChanged, as_readers_see
from shmstore.producer.filters.renaming import Renaming
from shmstore.producer.filters.unused import unused_patterns


def test_the_first_rule_that_matches_holds() -> None:
    renaming = Renaming(
        [r"shop_(\d+)\.orders_(\d+) -> shop.orders", r"(?P<base>shop|crm)_\d+\.(.+) -> \g<base>.\2", r"old\.t->new.t"]
    )
    assert renaming.target_of("shop_3", "orders_17") == ("shop", "orders")
    assert renaming.target_of("SHOP_3", "Orders_17") == ("shop", "orders")
    assert renaming.target_of("shop_3", "people") == ("shop", "people")
    assert renaming.target_of("crm_1", "a-b.c`d") == ("crm", "a-b.c`d")
    assert renaming.target_of("old", "t") == ("new", "t")
    for name in (("shop", "orders"), ("xshop_3", "orders_17"), ("old", "tt")):
        assert renaming.target_of(*name) is None
        assert renaming.seen_as(*name) == name
    assert not Renaming()


@pytest.mark.parametrize(
    "rule",
    [
        *(
            "a.b",
            "-> a.b",
            "a.b ->",
            "a.b -> b",
            "a.b -> .b",
            "a.b -> a.",
            "a.b -> a.b.c",
            "",
            "->",
            "(a.b -> c.d",
            "a.b) -> c.d",
        ),
        *(r"a.b -> \1.c", r"(a).b -> c.\2", r"(a).b -> c.\g<x>", r"(a)\1 -> c.d", r"a++ -> c.d", r"[ -> c.d", r"(?<=a)b -> c.d"),
    ],
)
def test_a_rule_with_an_error_is_refused(rule: str) -> None:
    with pytest.raises(PatternError, match=r"^rename "):
        Renaming([rule])


def test_what_a_rule_makes_must_be_a_name() -> None:
    renaming = Renaming([r"a\.x(.*) -> \1.t", r"b\.(.*) -> c.\1\1"])
    with pytest.raises(UnsupportedEvent, match=r"makes '\.t' of table a\.x"):
        renaming.target_of("a", "x")
    with pytest.raises(UnsupportedEvent, match="not a name of 1 to 64 characters"):
        renaming.target_of("b", "y" * 33)


def test_an_expression_that_takes_long_is_bounded() -> None:
    renaming = Renaming([r"(a*)*b\.t -> c.t"])
    assert renaming.target_of("a" * 60, "t") is None


def test_options_that_contradict_each_other_are_refused() -> None:
    for options in ({"rename_origin": "src"}, {"rename": ("a.b -> c.d",), "rename_origin": " x"}, {"rename": ("a.b",)}):
        with pytest.raises(PatternError):
            producer.Settings(store="s", **options)
    with pytest.raises(SettingsError, match="schema_history"):
        producer.Settings(store="s", rename=("a.b -> c.d",), schema_history="off")


class Shown:
    """A server with these tables."""

    def __init__(self, *tables: tuple[str, str]) -> None:
        self._tables = tables

    def names(self) -> list[tuple[str, str]]:
        return list(self._tables)

    def columns(self, database: str) -> dict[str, list[Column]]:
        return {"old": [Column("id", "int")]} if database == "shop_9" else {}


def test_shards_that_differ_and_targets_that_are_tables_are_reported() -> None:
    settings = producer.Settings(store="s", rename=(r"shop_\d\..* -> shop.old",))
    found = list(unused_patterns(Shown(("shop", "old"), ("shop_1", "t"), ("shop_9", "old")), settings))
    assert found == [
        "rename: shop.old is a table of the server, too: the producer refuses to begin",
        "rename: tables shop_1.t and shop_9.old differ, and shop.old is made of both",
    ]
    excluded = dataclasses.replace(settings, exclude=("shop_9.*", "shop.old"))
    assert list(unused_patterns(Shown(("shop", "old"), ("shop_1", "t"), ("shop_9", "old")), excluded)) == []


def test_rules_that_match_nothing_or_twice_are_reported() -> None:
    settings = producer.Settings(store="s", rename=(r"shop_\d\.t -> shop.t", r"shop_1\..* -> one.t", r"nothing\.t -> x.t"))
    found = list(unused_patterns(Shown(("shop_1", "t"), ("shop_2", "t")), settings))
    assert found == [
        r"rename: 'shop_1\\..* -> one.t' is for no table that the server shows",
        r"rename: 'nothing\\.t -> x.t' is for no table that the server shows",
        r"rename: table shop_1.t matches 'shop_\\d\\.t -> shop.t' and 'shop_1\\..* -> one.t'; the first one holds",
    ]


def test_filters_that_change_are_told_by_the_names_that_readers_know() -> None:
    changed = TablesChanged(enter=(("a", "t_1"), ("a", "x")), leave=(("a", "t_2"), ("a", "y")), differ=(("a", "z"),))
    seen = as_readers_see(changed, Renaming([r"a\.t_\d -> a.t"]))
    assert seen == TablesChanged((("a", "x"),), (("a", "y"),), (("a", "z"), ("a", "t")))
