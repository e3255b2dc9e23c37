"""The tables of the performance pages and the recorded run name the same things."""

from __future__ import annotations

import pytest

from scripts.benchmarks import chart, measure
from scripts.documentation.generated import MARKED, ROOT, pages
from scripts.documentation.measured import RECORDED, TABLES, bench, keys


@pytest.mark.parametrize("name", TABLES)
def test_a_recorded_table_has_all_its_lines(name: str) -> None:
    """A subject or case that a bench calls otherwise now would lose its line. A bench that was recorded is on a page."""
    if {key[0] for key in keys(TABLES[name])} - {each.bench for each in measure.read([RECORDED])[1]}:
        assert bench(name).startswith("Not recorded yet")
        return
    lines = bench(name).splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == list(TABLES[name].rows)
    assert name in {match[3] for page in pages() for match in MARKED.finditer(page.read_text()) if match[2] == "bench"}


def test_pictures_are_of_recorded_benches() -> None:
    """There is a picture of each recorded bench that has peers, as it would be drawn now, and a page shows it."""
    machine, taken = measure.read([RECORDED])
    drawn = chart.pictures(taken, machine)
    assert {path.stem.removeprefix("bench-") for path in (ROOT / "docs" / "images").glob("bench-*.svg")} == set(drawn)
    for name, picture in drawn.items():
        assert (ROOT / "docs" / "images" / f"bench-{name}.svg").read_text() == picture
        assert any(f"images/bench-{name}.svg" in page.read_text() for page in pages()), name
