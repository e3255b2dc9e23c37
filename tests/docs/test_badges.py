"""The README's badges say what the tests run on, and are files of the checkout."""

from __future__ import annotations

import re
import tomllib

import pytest

from scripts.documentation import badges
from tests.consumer.spark.test_versions import OLDEST
from tests.docs.pages import README, ROOT
from tests.servers.developer import KINDS


@pytest.mark.parametrize("name", badges.BADGES)
def test_a_badge_is_drawn_and_shown(name: str) -> None:
    """The picture is the one that the script draws, and the README shows it."""
    assert badges.file(name).read_text() == badges.drawn(name), "run python -m scripts.documentation.badges"
    assert f"](docs/images/{badges.file(name).name})" in README.read_text()


def test_badges_say_what_the_tests_run_on() -> None:
    """The oldest Python and Spark, and the oldest and newest MariaDB."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert badges.BADGES["python"][1] == required.removeprefix(">=") + "+"
    assert badges.BADGES["spark"][1] == f"{OLDEST}+"
    versions = sorted(float(version) for version in re.findall(r"MariaDB (\d+\.\d)\b", " ".join(KINDS.values())))
    assert badges.BADGES["mariadb"][1] == f"{versions[0]} to {versions[-1]}"
