"""Two clocks: the calendar's, which is set now and then, and the host's since its boot, which only goes forward.

What has an age is noted by the second, the same in all processes of the host, and shown by the first: so a calendar that was set makes
nothing seem hours old, or still to come.
"""

from __future__ import annotations

import time


def calendar_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """Return the milliseconds since the host was started, its sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def as_calendar_ms(then: int) -> int:
    """Return when `boot_ms` was `then`, by the calendar as it is set now. 0, for never, stays 0."""
    return then + _booted_ms() if then else 0


def as_boot_ms(then: int) -> int:
    """Return the other way round."""
    return then - _booted_ms() if then else 0


def _booted_ms() -> int:
    """When the host was started, by the calendar as it is set now."""
    return round((time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / 1_000_000)
