"""shmstore/report.py: figures as people read them."""

from __future__ import annotations

import pytest

from shmstore import report


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (16 << 20, "16.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (5 << 50, "5,120.0 TiB"),
    ],
)
def test_quantity(size: int, text: str) -> None:
    """Bytes come with the largest unit of which there is at least one."""
    assert report.quantity(size) == text


def test_owner() -> None:
    """Nobody, a living owner and one that died in the role are told apart."""
    assert [report.owner(0, False), report.owner(7, True), report.owner(7, False)] == ["none", "pid 7", "pid 7 died"]


def test_moment() -> None:
    """Times are shown in UTC, and say so."""
    assert report.moment(0) == "1970-01-01 00:00:00 UTC"
