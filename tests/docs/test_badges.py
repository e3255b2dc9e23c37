"""The README's badges say what the tests run on, and are files of the checkout."""

from __future__ import annotations

import re

import pytest

from scripts.documentation import badges
from tests.consumer.spark.test_versions import OLDEST
from tests.docs.pages import README, page_of


@pytest.mark.parametrize("name", badges.BADGES)
def test_a_badge_is_drawn_and_shown(name: str) -> None:
    """The picture is the one that the script draws, and the README shows it."""
    assert badges.file(name).read_text() == badges.drawn(name), "run python -m scripts.documentation.badges"
    assert f"](docs/images/{badges.file(name).name})" in README.read_text()


def test_badges_say_what_the_pages_say() -> None:
    """Guarantees and limits, and the versions of Spark, of which the oldest is tested at each change."""
    limits = page_of("guarantees").read_text()
    for name in ("mariadb", "mysql"):
        label, versions = badges.BADGES[name]
        assert f"{label} {versions.replace(', ', ' and ')}" in limits
    assert f"CI runs {badges.BADGES['python'][1]}, " in limits
    tested = re.findall(r"\d\.\d", re.findall(r"The tests run on ([\d., and]+)\. ", page_of("spark-cluster").read_text())[0])
    assert tested[0] == OLDEST
    assert badges.BADGES["spark"][1] == f"{tested[0]} to {tested[-1]}"
