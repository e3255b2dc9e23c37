"""Asking for the end: a function that says whether to stop, and what ends work that is under way then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Stop = Callable[[], bool]


class StopEvent(Protocol):
    """What threading.Event and multiprocessing.Event have in common."""

    def is_set(self) -> bool:
        """Whether to stop."""


class Stopped(Exception):
    """Work ended before it was done, because it was asked to stop. It is not an error of source or store, and is never retried."""
