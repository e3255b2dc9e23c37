"""Deadline: how long a call may wait."""

from __future__ import annotations

import time


class Deadline:
    """A moment on the monotonic clock, made from a time-out in seconds; None never comes."""

    __slots__ = ("_at",)

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout is {timeout!r}: give seconds from 0 up, or None to wait without limit")
        self._at = None if timeout is None else time.monotonic() + timeout

    def left(self, most: float) -> float:
        """Seconds left, at most `most`; 0.0 when the moment is past."""
        return most if self._at is None else max(0.0, min(most, self._at - time.monotonic()))

    @property
    def passed(self) -> bool:
        """True once the moment is past."""
        return self._at is not None and time.monotonic() >= self._at
