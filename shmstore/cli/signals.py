"""SIGTERM, SIGHUP and Ctrl-C for commands that run until they are stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_signal(stop: Callable[[], None], reload: Callable[[], None] | None = None) -> Iterator[list[int]]:
    """Call `stop` on SIGTERM, Ctrl-C, and SIGHUP unless that is ignored, as by nohup; a second Ctrl-C interrupts at once. With `reload`
    SIGHUP calls that instead.

    Yields the list of the signals that came. A command says that it is ready inside the block: who reads that may send a signal at once.
    """
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and signal.SIGINT in came:
            raise KeyboardInterrupt
        came.append(number)
        stop()

    def hang_up(number: int, frame: FrameType | None) -> None:
        assert reload is not None
        reload()

    ending = [signal.SIGINT, signal.SIGTERM]
    if reload is None and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ending.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in ending}
    if reload is not None:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, hang_up)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ended(came: list[int]) -> int:
    """Exit code of an orderly end after these signals: Ctrl-C is 130, SIGTERM, SIGHUP and none are 0."""
    return 130 if signal.SIGINT in came else 0
