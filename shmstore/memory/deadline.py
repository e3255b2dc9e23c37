"""Deadline: how long a call may wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from shmstore.errors import LayoutMismatch, StoreClosed, StoreError, SubscriptionLost

RETURN_SECONDS: Final = 5.0  # in which a store with a log, removed under its readers, is to be there again
PAUSE: Final = 0.05  # seconds between two tries
Answer = TypeVar("Answer")


class Attached(Protocol):
    """A store that is attached to."""

    @property
    def lost(self) -> bool:
        """True where it was removed, or its memory was."""

    def close(self) -> None:
        """Let go of it."""


Store = TypeVar("Store", bound=Attached)


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


def retried(call: Callable[[], Answer], seconds: float, ended: Callable[[], object] = lambda: False) -> Answer:
    """Return what `call`, which attaches to a store, returns, called again for `seconds` while it raises `StoreError`, or until `ended`.

    A store that was removed may be about to come back: its producer has not seen yet that it was removed. Raises what the last call raised,
    and at once what stays: `LayoutMismatch`, `SubscriptionLost`.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except (LayoutMismatch, SubscriptionLost):
            raise
        except StoreError:
            if time.monotonic() >= until or ended():
                raise
        time.sleep(PAUSE)


def begun(attach: Callable[[], Store], begin: Callable[[Store], Answer]) -> Answer:
    """Return what `begin` returns of the store that `attach` gives, of the next one where that was removed meanwhile.

    Closes the store where this raises, as what `attach` raises where the store is not there again.
    """
    while True:
        store = attach()
        try:
            return begin(store)
        except BaseException as error:
            lost = isinstance(error, StoreClosed) and store.lost
            store.close()
            if not lost:
                raise
