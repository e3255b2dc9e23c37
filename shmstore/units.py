"""Figures as text for people: bytes, lengths of time, moments."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["moment", "quantity", "span"]


def quantity(size: float) -> str:
    """Return a number of bytes with a unit that suits it."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:,.1f} {units[0]}"


def span(seconds: float) -> str:
    """Return a length of time in the unit that suits it: 90 s, 30 min, 24 h, 7 days."""
    for unit, size, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds / 86400:,.0f} days"


def moment(time_ms: int) -> str:
    """Return milliseconds since 1970 as date and time, UTC."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
